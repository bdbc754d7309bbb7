"""Scores of each class: their definitions, what is printed, and class weights."""

import dataclasses

import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, f1_score, precision_recall_fscore_support
from sklearn.metrics import confusion_matrix as confusion_of_sklearn

import rgat
from rgat.data import load
from rgat.predictor import load as load_predictor
from rgat.predictor.text import MOST_CLASSES, class_tables
from rgat.training import Settings, many
from rgat.training.checkpoint import run_difference
from rgat.training.configuration import build_model
from rgat.training.loop import make_task
from rgat.training.metric import confusion_matrix, score_classes


def test_scores_of_classes_are_those_of_scikit_learn():
    generator = torch.Generator().manual_seed(0)
    labels, predicted = torch.randint(5, (2, 200), generator=generator)
    confusion = confusion_matrix(labels, predicted, 5)
    report = score_classes(confusion)
    assert confusion.tolist() == confusion_of_sklearn(labels, predicted).tolist() == report["confusion"]
    precision, recall, f1, _ = precision_recall_fscore_support(labels, predicted)
    assert report["classes"]["precision"] == pytest.approx(precision)
    assert report["classes"]["recall"] == pytest.approx(recall)
    assert report["classes"]["f1"] == pytest.approx(f1)
    assert report["macro_f1"] == pytest.approx(f1_score(labels, predicted, average="macro"))
    assert report["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(labels, predicted))


def test_a_class_without_examples_or_predictions_has_no_score_and_is_left_out_of_the_means():
    report = score_classes(confusion_matrix(torch.tensor([0, 0, 1]), torch.tensor([0, 2, 0]), 4))
    assert report["classes"]["recall"] == [0.5, 0.0, None, None]
    assert report["classes"]["precision"] == [0.5, None, 0.0, None]
    assert report["classes"]["f1"] == [0.5, 0.0, 0.0, None]
    assert report["balanced_accuracy"] == 0.25
    assert report["macro_f1"] == pytest.approx(0.5 / 3)


def test_a_model_keeps_the_scores_of_its_classes(node_model, tmp_path):
    report = node_model.report
    assert sum(map(sum, report["confusion"])) == report["tested"]
    assert sum(report["confusion"][i][i] for i in range(4)) == report["right"]
    node_model.save(tmp_path)
    assert load_predictor(tmp_path).report["confusion"] == report["confusion"]


def with_confusion(predictor, confusion):
    classes = tuple(f"<http://x.org/c{number}>" for number in range(len(confusion)))
    report = predictor.report | score_classes(torch.tensor(confusion))
    return dataclasses.replace(predictor, data=dataclasses.replace(predictor.data, classes=classes), report=report)


def test_few_classes_are_printed_with_their_confusion_matrix(node_model):
    scores, matrix = class_tables(with_confusion(node_model, [[9, 1], [3, 1]]))
    assert "lowest recall first; macro-F1 57.6%, balanced accuracy 57.5%, average precision " in scores[0]
    assert scores[1] == ("class", "mistaken for", "nodes", "recall", "precision", "f1")
    assert scores[2] == [
        ("c1", "c0 (3)", "4", "25.0%", "50.0%", "33.3%"),
        ("c0", "c1 (1)", "10", "90.0%", "75.0%", "81.8%"),
    ]
    assert matrix[1:] == (("", "1", "2"), [("1 c0", "9", "1"), ("2 c1", "3", "1")])


def test_of_many_classes_the_worst_are_printed(node_model):
    confusion = (torch.eye(40, dtype=torch.long) * torch.arange(1, 41)).tolist()
    confusion[7][3] = 100
    (table,) = class_tables(with_confusion(node_model, confusion))
    assert "the 12 of lowest recall" in table[0]
    assert len(table[2]) == MOST_CLASSES
    assert table[2][0][:3] == ("c7", "c3 (100)", "108")


def test_a_model_without_these_scores_prints_none(node_model, graph_model):
    report = {name: value for name, value in node_model.report.items() if name not in ("confusion", "classes")}
    assert class_tables(dataclasses.replace(node_model, report=report)) == []
    assert class_tables(graph_model) == []


def test_balanced_class_weights_raise_the_recall_of_a_rare_class():
    """Features say little, so that without weights nearly all nodes are predicted as the larger class."""
    data = load("institute")
    generator = torch.Generator().manual_seed(0)
    labels = torch.where(torch.rand(data.graph.num_nodes, generator=generator) < 0.1, 1, 0)
    x = torch.randn(data.graph.num_nodes, 1, generator=generator) + labels.unsqueeze(1)
    nodes = torch.randperm(data.graph.num_nodes, generator=generator)
    parts = {"train": nodes[:500], "valid": nodes[500:600], "test": nodes[600:]}
    data = dataclasses.replace(data, x=x, labels=labels, classes=("a", "b"), **parts)
    options = {"comparison": False, "max_epochs": 30, "hidden_channels": 8, "feature_dropout": 0.0}
    recall = {
        weights: rgat.fit(data, class_weights=weights, **options).report["classes"]["recall"][1]
        for weights in (None, "balanced")
    }
    assert recall["balanced"] > recall[None] + 0.2


def test_sampled_and_stacked_training_have_the_same_class_weights(node_data):
    """With all edges of all training nodes in one batch, sampling changes nothing."""
    data = dataclasses.replace(node_data, train=node_data.train[4:], valid=node_data.train[:4])
    settings = Settings(class_weights="balanced")
    sampled = dataclasses.replace(settings, fanouts=(-1, -1), batch_size=len(data.train))
    model = build_model(data, embedding_channels=4, hidden_channels=8).eval()
    losses = []
    for each in (settings, sampled, Settings()):
        task = make_task([data], each, torch.device("cpu"))
        (batch,) = task.batches(torch.Generator(), 0)
        losses.append((task.losses(model, batch).item(), task.evaluate(model, ["valid"])[0][0][0]))
    assert losses[0] == pytest.approx(losses[1])
    assert losses[0][0] != pytest.approx(losses[2][0])
    jobs = [many.Job(model, data, each, 0) for each in (settings, Settings())]
    assert many._why_not_together(*jobs) == "others have other class weights"


def test_losses_of_graphs_balance_classes_unless_asked_not_to():
    data, cpu = rgat.data.load("molecules"), torch.device("cpu")
    usual, balanced, none = (
        make_task([data], Settings(class_weights=word), cpu).class_weights for word in (None, "balanced", "none")
    )
    assert torch.equal(usual, balanced)
    assert (usual[:, 1] > 1).any()
    assert (none == 1).all()
    with pytest.raises(ValueError, match='`class_weights` must be "balanced" or "none", got "some"'):
        Settings(class_weights="some")


def test_a_checkpoint_of_a_version_with_fewer_settings_is_resumed():
    mine = {"data": "d", "model": "m", "seed": 0, "settings": dict(vars(Settings())), "digests": {}}
    settings = {name: value for name, value in mine["settings"].items() if name != "class_weights"}
    assert run_difference(mine, mine | {"settings": settings}) is None
    mine["settings"]["class_weights"] = "balanced"
    assert "class_weights" in run_difference(mine, mine | {"settings": settings})
