"""Test label smoothing and the averaging of weights in the training loop."""

import dataclasses

import pytest
import torch

from rgat.data import load
from rgat.training import Job, Settings, build_model, fit, fit_many, plan_stacks
from rgat.training.averaging import WeightAverage
from rgat.training.checkpoint import identify, run_difference
from rgat.training.configuration import check_options, configure, split_config
from rgat.training.task import node_logits

OPTIONS = {"hidden_channels": 8, "heads": 2, "batch_norm": True, "feature_dropout": 0.3, "edge_dropout": 0.3}
BOTH = {"weight_averaging": True, "label_smoothing": 0.1}


def with_features(data):
    x = torch.randn(data.graph.num_nodes, 6, generator=torch.Generator().manual_seed(0))
    return dataclasses.replace(data, x=x)


def test_later_epochs_have_more_weight():
    layer = torch.nn.Linear(7, 1, bias=False)
    average = WeightAverage(layer, on=True)
    for epoch in range(7):
        torch.nn.init.zeros_(layer.weight).data[0, epoch] = 1
        average.update(epoch + 1)
    weights = torch.tensor([s * (s + 1) * (s + 2.0) for s in range(1, 8)])
    torch.testing.assert_close(average.mean["weight"][0], weights / weights.sum())
    with average.in_place():
        torch.testing.assert_close(layer.weight.data[0], weights / weights.sum())
    assert layer.weight.tolist() == [[0, 0, 0, 0, 0, 0, 1]]


@pytest.mark.parametrize("name", ["institute", "molecules"])
def test_the_kept_model_is_the_mean_over_the_epochs_statistics_included(name):
    data, states = load(name), []
    model = build_model(data, 3, **OPTIONS)
    plain = fit(build_model(data, 3, **OPTIONS), data, Settings(max_epochs=4, patience=None), 3)
    settings = Settings(max_epochs=4, patience=None, weight_averaging=True)
    result = fit(
        model,
        data,
        settings,
        3,
        lambda _: states.append({name: tensor.clone() for name, tensor in model.state_dict().items()}),
    )
    assert [epoch.train_loss for epoch in result.curve] == [epoch.train_loss for epoch in plain.curve]
    weights = torch.tensor([s * (s + 1) * (s + 2.0) for s in range(1, 5)])
    averaged = 0
    for key, tensor in model.state_dict().items():
        if tensor.is_floating_point():
            history = torch.stack([state[key] for state in states])
            torch.testing.assert_close(tensor, torch.tensordot(weights / weights.sum(), history, 1))
            averaged += 1
        else:
            assert torch.equal(tensor, states[-1][key]), key
    assert averaged > 5
    assert any("running_var" in key for key in model.state_dict())


def test_validation_scores_are_those_of_the_mean():
    data = load("institute")
    model = build_model(data, 3, **OPTIONS)
    result = fit(model, data, Settings(max_epochs=8, **BOTH), 3)
    best = result.curve[result.best_epoch - 1]
    logits = node_logits(model, data)[data.valid]
    loss = torch.nn.functional.cross_entropy(logits, data.labels[data.valid])
    assert best.valid_loss == pytest.approx(float(loss), rel=1e-5), "of the mean, and with labels that are not smoothed"
    assert best.valid_metric == result.scores["valid"]


def test_smoothed_labels_raise_the_training_loss():
    data, losses = load("institute"), []
    for smoothing in (0.0, 0.3):
        model = build_model(data, 3, hidden_channels=8)
        result = fit(model, data, Settings(max_epochs=60, patience=None, label_smoothing=smoothing))
        losses.append(result.curve[-1].train_loss)
    assert losses[1] > losses[0] + 0.2


CASES = {
    "institute": ({}, {}),
    "molecules": ({}, {"batch_size": 32}),
    "features": ({"identity": True, "residual": True, "layer_norm": True, "jumping_knowledge": True}, {}),
    "wide": ({"wide": True}, {"wide_l1": 0.01}),
    "sampled": ({"identity": True}, {"fanouts": (2, 2), "batch_size": 16}),
}


@pytest.mark.parametrize("name", CASES)
def test_an_interrupted_run_goes_on_to_the_same_bits(tmp_path, name):
    options, more = CASES[name]
    data = load(name if name == "molecules" else "institute")
    data = with_features(data) if name in ("features", "wide", "sampled") else data
    settings = Settings(max_epochs=6, kernel_l2=(1e-4, 0.0), **BOTH, **more)

    def run(folder, stop_after=None):
        def stop(epoch):
            if epoch.epoch == stop_after:
                raise KeyboardInterrupt

        model = build_model(data, 3, **OPTIONS, **options)
        return model, fit(model, data, settings, 3, stop, checkpoint=folder, checkpoint_seconds=0)

    model, whole = run(None)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, 4)
    again, resumed = run(tmp_path)
    assert dataclasses.replace(resumed, seconds=0) == dataclasses.replace(whole, seconds=0)
    assert all(torch.equal(again.state_dict()[key], tensor) for key, tensor in model.state_dict().items())


def test_stacks_of_graph_classifiers_average_as_their_members_alone():
    data, settings = load("molecules"), Settings(max_epochs=3, batch_size=32, **BOTH)
    together, alone = ([build_model(data, seed, **OPTIONS).double() for seed in range(3)] for _ in range(2))
    data = dataclasses.replace(data, graphs=dataclasses.replace(data.graphs, x=data.graphs.x.double()))
    results = fit_many(together, data, settings)
    for model, other, result in zip(alone, together, results, strict=True):
        assert result.how.startswith("in a stack of 3")
        assert result.best_epoch == fit(model, data, settings).best_epoch
        for key, tensor in model.state_dict().items():
            assert (other.state_dict()[key] - tensor).abs().max() < 1e-8, key


def test_jobs_with_other_settings_are_not_stacked():
    data = load("institute")
    for more, reason in (
        ({"label_smoothing": 0.1}, "others have another label smoothing"),
        ({"weight_averaging": True}, "others average their weights, or do not"),
    ):
        jobs = [Job(build_model(data), data, Settings(**each), 0) for each in ({}, more)]
        plan = plan_stacks(jobs)
        assert [numbers for numbers, _ in plan] == [[0], [1]]
        assert all(reason in why for _, why in plan)


def test_checkpoints_of_earlier_versions_resume():
    data = load("institute")
    model = build_model(data)
    ours, theirs = (identify(model, data, Settings(), 0) for _ in range(2))
    for name in BOTH:
        del theirs["settings"][name]
    assert run_difference(ours, theirs) is None
    smooth = identify(model, data, Settings(label_smoothing=0.1), 0)
    assert "label_smoothing" in run_difference(smooth, theirs)


def test_settings_are_part_of_configurations_and_checked():
    for task in ("node", "graph"):
        assert split_config(configure(task, BOTH))[1].weight_averaging
        assert split_config(configure(task, {"label_smoothing": 0.2}))[1].label_smoothing == 0.2
    for value in ("much", True):
        with pytest.raises(ValueError, match="`label_smoothing` must be a number of at least 0 and below 1, got"):
            check_options({"label_smoothing": value})
    with pytest.raises(ValueError, match="`label_smoothing` must be at least 0 and below 1, got 1"):
        Settings(label_smoothing=1.0)
    with pytest.raises(ValueError, match="`weight_averaging` must be true or false, got 1"):
        check_options({"weight_averaging": 1})
