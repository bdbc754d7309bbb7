import dataclasses

import pytest
import torch
from helpers import labelled_graph

from rgat.data import load
from rgat.data.splits import stratified_folds
from rgat.experiments.variants import build_variant
from rgat.models import stack
from rgat.training import Job, Settings, build_model, fit, fit_many, plan_stacks
from rgat.training import many as module
from rgat.training.distributed import Processes

EIGHT = [
    Settings(learning_rate=0.01 * (1 + k % 3), max_epochs=30, patience=(3, 30)[k % 2], kernel_l2=(1e-3 * k, 5e-4))
    for k in range(8)
]


def folds(data, count):
    """Data sets over one graph, each with a fold of the training nodes for validation."""
    parts = stratified_folds(data.labels[data.train].tolist(), count, seed=0)
    return [
        dataclasses.replace(
            data,
            train=data.train[torch.cat([other for other in parts if other is not part])],
            valid=data.train[part],
        )
        for part in parts
    ]


def eight_models(data, **options):
    rates = [{"feature_dropout": 0.1 * (k % 4), "edge_dropout": 0.2 * (k % 3)} for k in range(8)]
    return [build_model(data, k, **rates[k], **options).double() for k in range(8)]


@pytest.mark.parametrize("options", [{"batch_norm": True, "heads": 2}, {"num_bases": 3, "score": "multiplicative"}])
@pytest.mark.parametrize("more", [{}, {"weight_averaging": True, "label_smoothing": 0.1}])
def test_eight_members_of_different_seeds_rates_and_folds_train_as_they_would_alone(options, more):
    data = labelled_graph()
    settings = [dataclasses.replace(each, **more) for each in EIGHT]
    datas = folds(data, 4) * 2
    together, alone = (eight_models(data, hidden_channels=8, **options) for _ in range(2))
    results = fit_many(together, datas, settings)
    lengths = set()
    for k, (model, result) in enumerate(zip(alone, results, strict=True)):
        expected = fit(model, datas[k], settings[k])
        assert result.best_epoch == expected.best_epoch
        assert len(result.curve) == len(expected.curve)
        assert result.scores == expected.scores
        assert result.constant_scores == expected.constant_scores
        for ours, theirs in zip(result.curve, expected.curve, strict=True):
            assert dataclasses.astuple(ours) == pytest.approx(dataclasses.astuple(theirs), abs=1e-8)
        for name, tensor in model.state_dict().items():
            assert (together[k].state_dict()[name] - tensor).abs().max() <= 1e-8, name
        assert result.how.startswith("in a stack of 8; ")
        lengths.add(len(result.curve))
    assert min(lengths) < max(lengths) == 30, "some member must stop early, and some not"


def test_wide_members_of_different_penalties_train_as_they_would_alone():
    data = dataclasses.replace(labelled_graph(), x=torch.randn(40, 5, dtype=torch.float64))
    settings = [Settings(max_epochs=20, patience=None, wide_l1=coefficient) for coefficient in (0.0, 0.05, 1.0)]
    together, alone = ([build_model(data, k, wide=True).double() for k in range(3)] for _ in range(2))
    assert all("stack of 3" in result.how for result in fit_many(together, data, settings))
    for model, ours, each in zip(alone, together, settings, strict=True):
        fit(model, data, each)
        torch.testing.assert_close(ours.jump0.weight, model.jump0.weight)
    free, some, strong = (float(model.jump0.weight.detach().abs().sum()) for model in alone)
    assert free > some > strong


def test_a_finished_member_changes_no_more():
    data = load("institute")
    models = eight_models(data, hidden_channels=8)[:2]
    settings = [Settings(max_epochs=2, patience=None), Settings(max_epochs=12, patience=None)]
    seen = []
    fit_many(models, data, settings, on_epoch=lambda number, epoch: seen.append((number, epoch.epoch)))
    assert seen == [(0, 1), (1, 1), (0, 2), (1, 2)] + [(1, epoch) for epoch in range(3, 13)]
    (alone,) = eight_models(data, hidden_channels=8)[:1]
    fit(alone, data, settings[0])
    for name, tensor in alone.state_dict().items():
        torch.testing.assert_close(models[0].state_dict()[name], tensor)
    assert models[0].conv1.dropout_state[1] == 0  # the first has no dropout, the second has
    assert models[1].conv1.dropout_state[1] == 12


def test_a_diverged_member_does_not_touch_the_others():
    data = load("institute")
    settings = [Settings(max_epochs=6, learning_rate=rate) for rate in (1e30, 0.01)]
    models = [build_model(data, 1) for _ in range(2)]
    results = fit_many(models, data, settings)
    (alone,) = [build_model(data, 1)]
    assert fit(alone, data, settings[1]).curve[-1].train_loss == pytest.approx(results[1].curve[-1].train_loss, 1e-4)
    assert all(parameter.isfinite().all() for model in models for parameter in model.parameters())


def test_graph_classifiers_with_the_same_batches_train_as_they_would_alone():
    data = load("molecules")
    options = {"hidden_channels": 8, "dense_channels": 8, "batch_norm": True, "feature_dropout": 0.2}
    settings = [Settings(max_epochs=3, learning_rate=rate) for rate in (0.01, 0.003)]

    def models():
        return [build_model(data, k, **options).double() for k in range(2)]

    wide = dataclasses.replace(data, graphs=dataclasses.replace(data.graphs, x=data.graphs.x.double()))
    together, alone = models(), models()
    results = fit_many(together, wide, settings, seeds=[4, 4])
    for k, model in enumerate(alone):
        expected = fit(model, wide, settings[k], seed=4)
        assert results[k].scores == pytest.approx(expected.scores)
        assert results[k].how.startswith("in a stack of 2; ")
        for name, tensor in model.state_dict().items():
            assert (together[k].state_dict()[name] - tensor).abs().max() <= 1e-8, name


def jobs(data, *changes, **options):
    base = {"data": data, "settings": Settings(), "seed": 0}
    return [Job(build_model(data, k, **options), **(base | change)) for k, change in enumerate(changes)]


def test_what_cannot_be_stacked_is_trained_alone_and_says_why():
    nodes, graphs = load("institute"), load("molecules")
    again = dataclasses.replace(nodes, graph=load("institute").graph)
    short = {"settings": Settings(patience=None)}
    half = {"settings": Settings(autocast=True)}
    plan = plan_stacks(jobs(nodes, {}, {}, {"data": again}, short, half, {"settings": Settings(learning_rate=0.1)}))
    assert [numbers for numbers, _ in plan] == [[0, 1, 5], [2], [3], [4]]
    assert [how for _, how in plan] == [
        "in a stack of 3",
        "alone: others have another graph",
        "alone: others are selected in another way",
        "alone: others have another precision",
    ]
    plan = plan_stacks(jobs(graphs, {}, {"seed": 1}, {"data": dataclasses.replace(graphs, name="copy")}))
    assert [numbers for numbers, _ in plan] == [[0], [1], [2]]
    assert "others have other batches" in plan[1][1]
    assert "others have other graphs" in plan[2][1]
    assert plan_stacks(jobs(nodes, {}, {}), stacked=False) == [([k], "alone, as asked for") for k in range(2)]
    different = [*jobs(nodes, {}), *jobs(nodes, {}, hidden_channels=8)]
    assert "another architecture: different `conv1" in plan_stacks(different)[1][1]
    assert plan_stacks(jobs(nodes, {})) == [([0], "alone: nothing to stack it with")]


def test_a_stack_is_no_larger_than_memory_allows(monkeypatch):
    data = load("institute")
    monkeypatch.setattr(module, "members_that_fit", lambda job: 2)
    plan = plan_stacks(jobs(data, {}, {}, {}))
    assert plan == [([0, 1], "in a stack of 2 (2 fit in memory)"), ([2], plan[1][1])]
    assert plan[1][1].endswith("(2 fit in memory)")
    monkeypatch.undo()
    assert module.members_that_fit(jobs(data, {})[0]) > 1


def test_there_must_be_one_setting_for_all_models_or_one_for_each():
    data = load("institute")
    with pytest.raises(ValueError, match="`seeds` must be one for all models or one for each of the 2, got 3"):
        fit_many([build_model(data) for _ in range(2)], data, seeds=[1, 2, 3])


def test_a_stack_is_no_part_of_what_fit_returns():
    data = load("institute")
    models = [build_model(data, k) for k in range(2)]
    together = stack(models)
    fit_many(models, data, Settings(max_epochs=2))
    assert not torch.equal(together.model.conv2.bias[0], models[0].conv2.bias)


def test_what_cannot_be_stacked_is_trained_alone():
    data = load("institute")
    models = [build_variant(data, seed, layer="ggnn") for seed in (0, 0)] + [build_model(data, 0)]
    results = fit_many(models, data, Settings(max_epochs=2))
    assert all(result.how.startswith("alone: ") for result in results)
    assert "a GGNNNodeClassifier, of which there are no stacks" in results[0].how
    assert results[0].curve == results[1].curve


def test_a_checkpoint_is_for_one_model_alone(tmp_path):
    data = load("institute")
    with pytest.raises(ValueError, match="`checkpoint` must be given for one model alone, got 2 models"):
        fit_many([build_model(data) for _ in range(2)], data, checkpoint=tmp_path)


def test_several_processes_stack_no_models(monkeypatch):
    data = load("molecules")
    monkeypatch.setattr(module, "processes", lambda: Processes(0, 2))
    plan = plan_stacks([Job(build_model(data, seed), data, Settings(), 0) for seed in range(2)])
    assert plan == [([0], "alone: several processes train it"), ([1], "alone: several processes train it")]
