"""Of the model and the RGCN trained beside it, the better one by validation is kept; the test part selects nothing."""

import dataclasses

import pytest
import torch

import rgat
from rgat.data import load as load_data
from rgat.predictor import files as own_data
from rgat.predictor import load, members, trainer
from rgat.predictor.text import comparison_rows, verdicts
from rgat.predictor.validation import make_folds
from rgat.progress import Stages
from rgat.training.configuration import configure

QUICK = {"max_epochs": 3, "patience": 3, "hidden_channels": 8}
WIRGAT = "additive WIRGAT"


@pytest.fixture
def valid(monkeypatch):
    """The validation scores that the models are said to have."""
    scores = {WIRGAT: 0.915, "RGCN": 0.936}
    monkeypatch.setattr(trainer.Trainer, "valid_score", lambda self, config, results: scores[config["model"]])
    return scores


def test_an_rgcn_with_a_higher_validation_score_becomes_the_model_of_molecules(tmp_path, monkeypatch):
    scores = {"multiplicative WIRGAT": 0.915, "RGCN": 0.936}
    monkeypatch.setattr(trainer.Trainer, "valid_score", lambda self, config, results: scores[config["model"]])
    quick = {"max_epochs": 1, "hidden_channels": 8, "descriptors": "none", "ensemble": 1}
    predictor = own_data.train(load_data("molecules"), tmp_path, **quick)
    assert predictor.config["model"] == load(tmp_path).config["model"] == "RGCN"
    report = predictor.report
    assert report["selection"] == {
        "on": "mean ROC-AUC of the validation part",
        "scores": scores,
        "selected": "RGCN",
    }
    assert [row["name"] for row in report["comparison"]] == ["majority vote", "logistic regression", *list(scores)[:1]]
    alone = rgat.fit("molecules", model="RGCN", comparison=False, **quick)
    assert report["scores"] == alone.report["scores"]
    assert report["training"] == alone.report["training"]
    rows, notes = comparison_rows(predictor)
    assert [row[0] for row in rows] == ["RGCN", "majority vote", "logistic regression", "multiplicative WIRGAT"]
    assert notes[0] == (
        "RGCN was kept: it has the higher mean ROC-AUC of the validation part (93.6%, multiplicative WIRGAT 91.5%)."
    )


@pytest.mark.parametrize("score", [0.915, 0.9])
def test_else_the_model_is_kept_whatever_the_test_part_says(node_data, valid, score):
    valid["RGCN"] = score
    predictor = rgat.fit(node_data, model=WIRGAT, **QUICK)
    assert predictor.config["model"] == predictor.report["selection"]["selected"] == WIRGAT
    line = next(line for line in verdicts(predictor) if "kept" in line)
    assert line.startswith(f"{WIRGAT} was kept: {'RGCN has the same' if score == 0.915 else 'it has the higher'} ")


@pytest.mark.parametrize("options", [{}, {"ensemble": 2}])
def test_what_was_asked_for_is_kept_and_the_better_one_named(node_data, valid, options):
    predictor = rgat.fit(node_data, model=WIRGAT, **QUICK, **options)
    assert predictor.config["model"] == predictor.report["selection"]["selected"] == WIRGAT
    assert next(line for line in verdicts(predictor) if "RGCN has" in line) == (
        "RGCN has a higher accuracy in cross-validation inside the training part (93.6%) than additive WIRGAT (91.5%); "
        "train with --model RGCN to use it."
    )


def test_validation_scores_are_those_of_cross_validation_or_of_the_validation_part(node_data):
    report = rgat.fit(node_data, model=WIRGAT, **QUICK).report["selection"]
    for model in (WIRGAT, "RGCN"):
        stages = Stages(lambda step: None, [trainer.CROSS_VALIDATION])
        folds = make_folds(node_data, 0)
        trained = trainer.Trainer(node_data, folds, torch.device("cpu"), 0, stages, None)
        best, _ = trained.cross_validate(configure("node", QUICK | {"model": model}), stages)
        mean = sum(point.valid_metric for point in best) / 5
        assert report["scores"][model] == pytest.approx(mean)
    molecules = rgat.fit(load_data("molecules"), max_epochs=2, hidden_channels=8, ensemble=1)
    selection, (member,) = molecules.report["selection"], molecules.report["training"]
    assert selection["on"] == "mean ROC-AUC of the validation part"
    assert selection["scores"][molecules.config["model"]] == pytest.approx(member["scores"]["valid"])
    assert max(selection["scores"].values()) == selection["scores"][selection["selected"]]


def test_few_molecules_get_three_members_of_the_kept_model_unless_one_is_asked_for(monkeypatch):
    options = {"max_epochs": 1, "hidden_channels": 8, "descriptors": "none"}
    data, fit_many, begun = load_data("molecules"), trainer.fit_many, []

    def recording(models, *arguments, **more):
        begun.extend(float(sum(each.detach().sum() for each in model.parameters())) for model in models)
        return fit_many(models, *arguments, **more)

    monkeypatch.setattr(trainer, "fit_many", recording)
    predictor = rgat.fit(data, **options)
    assert len(begun) == len(set(begun)) == 4  # three members and a rival; none is trained twice
    assert (len(predictor.members), len(predictor.report["training"]), predictor.report["ensemble"]) == (3, 3, 3)
    alone = rgat.fit(data, model=predictor.config["model"], comparison=False, ensemble=3, **options)
    assert predictor.report["scores"] == pytest.approx(alone.report["scores"])
    assert predictor.predict("CCO").probabilities == pytest.approx(alone.predict("CCO").probabilities, abs=1e-6)
    sentence = "The outputs of 3 models are averaged, because there are fewer than 2,000 training molecules"
    assert any(line.startswith(sentence) for line in verdicts(predictor))
    assert not any("averaged" in line for line in verdicts(alone))
    assert members.members_for(data, None, comparison=False) == 1
    assert members.members_for(data, 2, comparison=True) == 2
    assert members.members_for(load_data("institute"), None, comparison=True) == 1
    monkeypatch.setattr(members, "FEW_MOLECULES", 10)
    assert members.members_for(data, None, comparison=True) == 1


def with_scores(predictor, model, test, **others):
    rows = [{"name": name, "scores": {"train": 1.0, "test": score}, "note": ""} for name, score in others.items()]
    report = {"metric": "accuracy", "scores": {"test": test}, "comparison": rows}
    return dataclasses.replace(predictor, config=predictor.config | {"model": model}, report=report)


def test_verdicts_name_what_they_are_about_and_do_not_contradict_each_other(node_model):
    lines = verdicts(with_scores(node_model, WIRGAT, 0.954, RGCN=0.915, FEAT=0.5))
    assert lines == [
        "Attention changes the test score by +3.9 points (additive WIRGAT against RGCN); test scores select nothing."
    ]
    lines = verdicts(with_scores(node_model, "RGCN", 0.9, **{WIRGAT: 0.85, "FEAT": 0.95}))
    assert lines == [
        "Attention changes the test score by -5.0 points (additive WIRGAT against RGCN); test scores select nothing.",
        "RGCN (90.0%) is not better on the test part than FEAT (95.0%): use the simpler system, or let the model read "
        "literals as numbers, dates and text (--features auto).",
    ]
    described = dataclasses.replace(node_model, data=dataclasses.replace(node_model.data, x=node_model.logits[0]))
    assert verdicts(with_scores(described, "RGCN", 0.9, FEAT=0.95))[-1].endswith(
        "use the simpler system, or add labels."
    )
    (line,) = verdicts(with_scores(node_model, WIRGAT, 0.9, RGCN=0.9))
    assert line.startswith("Attention does not change the test score (")
