import dataclasses
import math

import pytest
import torch

from rgat import RelationalGraph
from rgat.baselines import NODE_BASELINES
from rgat.data import load
from rgat.models import NodeClassifier
from rgat.training import Settings, build_model, fit, fit_many, task
from rgat.training.task import NodeTask

DROPOUT = {"feature_dropout": 0.3, "edge_dropout": 0.3}


@pytest.mark.parametrize("name", ["institute", "molecules"])
def test_one_seed_gives_one_result_twice(name):
    data = load(name)

    def run(seed):
        model = build_model(data, seed, hidden_channels=8, heads=2, **DROPOUT)
        result = fit(model, data, Settings(max_epochs=4), seed)
        return dataclasses.replace(result, seconds=0.0), list(model.state_dict().values())

    (first, state), (second, again), (other, _) = run(1), run(1), run(2)
    assert first == second
    assert all(torch.equal(a, b) for a, b in zip(state, again, strict=True))
    assert first != other


def test_the_model_is_left_at_its_best_epoch_by_validation():
    data = load("institute")
    model = build_model(data)
    seen = []
    result = fit(model, data, Settings(max_epochs=60, patience=5, learning_rate=0.05), on_epoch=seen.append)
    assert seen == result.curve
    losses = [epoch.valid_loss for epoch in result.curve]
    assert result.best_epoch == losses.index(min(losses)) + 1
    assert len(losses) == result.best_epoch + 5 < 60
    assert not model.training
    with torch.no_grad():
        logits = model(data.x, data.graph)
    right = logits.argmax(1) == data.labels
    for part, value in result.scores.items():
        assert value == pytest.approx(right[getattr(data, part)].double().mean().item())
    assert result.constant_scores.keys() == result.scores.keys() == {"train", "valid", "test"}


@pytest.mark.parametrize("name", ["institute", "molecules"])
def test_without_patience_all_epochs_are_run_and_validation_data_are_not_seen(name):
    data = load(name)
    bare = dataclasses.replace(data, valid=data.valid[:0])
    states = []
    for varied in (data, bare):
        model = build_model(data, hidden_channels=8)
        result = fit(model, varied, Settings(max_epochs=4, patience=None))
        states.append(list(model.state_dict().values()))
        assert result.best_epoch == len(result.curve) == 4
        assert all(math.isnan(epoch.valid_loss) and math.isnan(epoch.valid_metric) for epoch in result.curve)
        assert not math.isnan(result.scores["test"])
    assert all(torch.equal(a, b) for a, b in zip(*states, strict=True))


def test_without_patience_a_diverged_run_shows_in_its_best_epoch():
    data = load("institute")
    result = fit(build_model(data), data, Settings(max_epochs=5, patience=None, learning_rate=1e30))
    assert result.best_epoch < 5


def only_attention_before_the_end(evaluate, seen):
    def watched(self, model, parts, constant_attention=False):
        seen.append((list(parts), constant_attention))
        return evaluate(self, model, parts, constant_attention)

    return watched


def test_selection_never_sees_test_labels_or_constant_attention(monkeypatch):
    data = load("institute")
    seen = []
    scrambled = data.labels.clone()
    scrambled[data.test] = (scrambled[data.test] + 1) % 4
    results = []
    for labels in (data.labels, scrambled):
        varied = dataclasses.replace(data, labels=labels)
        model = build_model(data)
        if labels is scrambled:  # constant attention is only ever asked for at the end
            monkeypatch.setattr(NodeTask, "evaluate", only_attention_before_the_end(NodeTask.evaluate, seen))
        results.append(fit(model, varied, Settings(max_epochs=10)))
    everything = ["train", "valid", "test"]
    assert seen == [(["valid"], False)] * 10 + [(everything, False), (everything, True)]
    assert results[0].curve == results[1].curve
    assert results[0].best_epoch == results[1].best_epoch
    assert results[0].scores["test"] != results[1].scores["test"]


def test_a_diverged_run_ends_and_is_never_the_best():
    data = load("institute")
    model = build_model(data)
    result = fit(model, data, Settings(max_epochs=40, patience=3, learning_rate=1e30))
    assert len(result.curve) <= 4 + result.best_epoch
    assert all(parameter.isfinite().all() for parameter in model.parameters())


def test_progress_is_shown_on_request_alone(capsys):
    data = load("institute")
    fit(build_model(data), data, Settings(max_epochs=2))
    assert capsys.readouterr().out == ""
    fit(build_model(data), data, Settings(max_epochs=2), progress=True)
    assert "epoch 2 of 2, validation accuracy 0." in capsys.readouterr().out


def test_progress_tells_epochs_batches_and_examples():
    nodes, molecules, steps = load("institute"), load("molecules"), []
    fanouts = Settings(max_epochs=2, fanouts=(5, 5), batch_size=50, patience=None)
    fit(build_model(nodes), nodes, fanouts, progress=steps.append)
    assert {(step.stage, step.unit) for step in steps} == {("training", "seed nodes")}
    assert steps[1].text == "epoch 1 of 2, batch 2 of 3"
    assert steps[-1].text.startswith("epoch 2 of 2, batch 3 of 3, training loss ")
    assert (steps[-1].share, steps[-1].items) == (1.0, 2 * len(nodes.train))
    steps.clear()
    fit(build_model(molecules), molecules, Settings(max_epochs=1), progress=steps.append)
    assert (steps[-1].unit, steps[-1].items) == ("graphs", len(molecules.train))
    assert ", validation mean ROC-AUC 0." in steps[-1].text


def test_data_that_cannot_be_learned_or_selected_on_are_refused():
    data = load("institute")
    with pytest.raises(ValueError, match="got an empty valid part"):
        fit(build_model(data), dataclasses.replace(data, valid=data.valid[:0]))
    planted = load("planted-needle")
    with pytest.raises(ValueError, match="node features of planted-needle must not contain NaN"):
        fit(build_model(planted), dataclasses.replace(planted, x=planted.x * float("nan")))
    molecules = load("molecules")
    with pytest.raises(ValueError, match="must have both classes among its validation graphs, got none"):
        fit(build_model(molecules), dataclasses.replace(molecules, valid=molecules.valid[:1]))


def relabelled(data, part, value, number=3):
    """The data with another label for some examples of a part."""
    labels = data.labels.clone()
    labels[getattr(data, part)[:number]] = value
    return dataclasses.replace(data, labels=labels)


@pytest.mark.parametrize("train", [fit, lambda model, data, settings: fit_many([model, model], data, settings)])
def test_nodes_without_a_label_are_neither_learned_from_nor_selected_on(train):
    data, settings = load("institute"), Settings(max_epochs=1)
    for part in ("train", "valid"):
        size = len(getattr(data, part))
        message = f"every {part} node of institute must have a label, got 3 of {size} without one; leave them out"
        with pytest.raises(ValueError, match=message):
            train(build_model(data), relabelled(data, part, -1), settings)


def test_scores_leave_out_nodes_without_a_label():
    data = load("institute")
    results = []
    for varied in (relabelled(data, "test", -1), dataclasses.replace(data, test=data.test[3:])):
        results.append(fit(build_model(data), varied, Settings(max_epochs=3)))
    assert results[0].scores == results[1].scores
    assert results[0].constant_scores == results[1].constant_scores
    hidden = relabelled(data, "test", -1, number=len(data.test))
    assert math.isnan(fit(build_model(data), hidden, Settings(max_epochs=1)).scores["test"])
    unseen = relabelled(data, "valid", -1)  # without patience nothing is selected on them
    fit(build_model(data), unseen, Settings(max_epochs=1, patience=None))


@pytest.mark.parametrize(("name", "most"), [("institute", 3), ("molecules", 1)])
@pytest.mark.parametrize("part", ["train", "valid", "test"])
def test_labels_must_be_classes(name, most, part):
    data = load(name)
    for value in (-2, most + 1):
        message = f"labels of {name} must be classes from 0 to {most}, or -1 for none, got {value} in the {part} part"
        with pytest.raises(ValueError, match=message):
            fit(build_model(data), relabelled(data, part, value), Settings(max_epochs=1))


def test_penalties_are_noticed():
    data = load("institute")
    base = fit(build_model(data), data, Settings(max_epochs=2)).curve[0].train_loss
    for change in ({"kernel_l2": (0.1, 0.0)}, {"kernel_l2": (0.0, 0.1)}, {"attention_l2": (0.1, 0.0)}):
        assert fit(build_model(data), data, Settings(max_epochs=2, **change)).curve[0].train_loss > base


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"learning_rate": 0.0}, "`learning_rate` must be above 0, got 0.0"),
        ({"patience": 0}, "`patience` must be above 0, got 0"),
        ({"max_epochs": -1}, "`max_epochs` must be above 0, got -1"),
        ({"attention_l2": (1.0, -1.0)}, "`attention_l2` must be numbers of at least 0"),
        ({"validate_every": 0}, "`validate_every` must be above 0, got 0"),
        ({"wide_l1": -1.0}, "`wide_l1` must be at least 0, got -1.0"),
    ],
)
def test_bad_settings_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        Settings(**change)


def test_l2_coefficients_must_be_as_many_as_layers():
    data = load("institute")
    with pytest.raises(ValueError, match=r"`kernel_l2` must be 2 numbers, one for each relational layer, got \(1.0,\)"):
        fit(build_model(data), data, Settings(max_epochs=1, kernel_l2=(1.0,)))
    assert fit(build_model(data, num_layers=3), data, Settings(max_epochs=1)).best_epoch == 1


@pytest.mark.parametrize("options", [{}, DROPOUT, {"batch_norm": True}])
def test_training_on_the_edges_that_the_labelled_nodes_need_changes_nothing(options, monkeypatch):
    data, found, fields = load("institute"), [], []

    def run(worth):
        monkeypatch.setattr(task, "_WORTH", worth)
        model = build_model(data, 3, **options).double()
        result = fit(model, data, Settings(max_epochs=5), 3)
        found.append(
            [torch.tensor([[point.train_loss, point.valid_loss] for point in result.curve]), *model.parameters()]
        )

    whole = RelationalGraph.receptive_fields
    monkeypatch.setattr(
        RelationalGraph, "receptive_fields", lambda graph, *given: fields.append(len(given[0])) or whole(graph, *given)
    )
    run(2.0)  # always
    assert len(fields) == (1 if options else 2)  # validation, and training unless it needs the whole graph
    run(-1.0)  # never
    for part, other in zip(*found, strict=True):
        assert torch.allclose(part, other, rtol=1e-9, atol=1e-12)


def test_models_derived_from_ours_see_the_whole_graph():
    data, seen = load("institute"), []

    class Own(NodeClassifier):
        def forward(self, x, graph, constant_attention=False):
            seen.append(graph.num_edges)
            return super().forward(x, graph, constant_attention)

    model = Own(data.graph.num_nodes, len(data.classes), data.graph.num_relations, graph=data.graph)
    fit(model, data, Settings(max_epochs=2))
    assert set(seen) == {data.graph.num_edges}


def test_graphs_without_any_label_are_not_learned_from():
    data = load("molecules")
    data = dataclasses.replace(data, labels=torch.full_like(data.labels, -1))
    with pytest.raises(ValueError, match="must have labels to learn from, got none"):
        fit(build_model(data), data, Settings(max_epochs=1, patience=None))


@pytest.mark.parametrize("name", ["FEAT", "WL", "R-GCN"])
def test_other_systems_refuse_nodes_without_a_label(name):
    data = load("institute")
    labels = data.labels.clone()
    labels[data.train[:3]] = -1
    with pytest.raises(ValueError, match="every train node of institute must have a label, got 3 of"):
        NODE_BASELINES[name](dataclasses.replace(data, labels=labels), 0)
