"""Data that are large for the memory there is: one thing after the other, and nothing is lost."""

import gc
import weakref

import numpy as np
import pytest

import rgat
from rgat import memory
from rgat.data import load
from rgat.predictor import estimates, evaluation, fitting, trainer
from rgat.training import Settings, many
from rgat.training.configuration import configure

QUICK = {"model": "additive WIRGAT", "max_epochs": 3, "patience": 3, "hidden_channels": 8}


def test_where_memory_is_short_folds_are_trained_one_at_a_time_to_the_same_model(node_data, monkeypatch):
    together = rgat.fit(node_data, comparison=False, **QUICK)
    sizes, models, alive = [], [], []

    def watched(given, *arguments, **options):
        gc.collect()
        alive.append(sum(one() is not None for one in models))
        sizes.append(len(given))
        models.extend(map(weakref.ref, given))
        return fit_many(given, *arguments, **options)

    fit_many = trainer.fit_many
    monkeypatch.setattr(trainer, "fit_many", watched)
    monkeypatch.setattr(many, "free_memory", lambda device: 1)
    alone = rgat.fit(node_data, comparison=False, **QUICK)
    assert sizes == [1] * 6, "five folds and the model"
    assert alive == [0] * 6, "none of them is kept"
    np.testing.assert_allclose(alone.predict().probabilities, together.predict().probabilities, atol=1e-5)


@pytest.mark.parametrize(("free", "sizes"), [(3.5, [1, 1, 1, 1, 1]), (5, [2, 2, 1]), (1000, [5])])
def test_so_many_folds_are_trained_together_as_fit_in_half_of_the_free_memory(node_data, monkeypatch, free, sizes):
    found, fit_many = [], trainer.fit_many

    def counted(given, *arguments, **options):
        found.append(len(given))
        return fit_many(given, *arguments, **options)

    monkeypatch.setattr(trainer, "fit_many", counted)
    model = trainer.build_model(node_data, hidden_channels=8)
    needed = many.bytes_needed(many.Job(model, node_data, Settings(), 0))
    monkeypatch.setattr(many, "free_memory", lambda device: free * needed)
    rgat.fit(node_data, comparison=False, **QUICK)
    assert found == [*sizes, 1]


def test_a_comparison_for_which_memory_is_short_is_left_out_and_says_why(node_data, monkeypatch):
    monkeypatch.setattr(memory, "free_memory", lambda device: 1000)
    monkeypatch.setattr(trainer, "free_memory", lambda device: 1000)
    fitted = rgat.fit(node_data, **QUICK)
    majority, *others = fitted.report["comparison"]
    assert majority["scores"]
    assert [row["name"] for row in others] == ["FEAT", "RGCN"]
    for row in others:
        assert row["scores"] == {}
        assert row["note"].startswith("left out: it may take 0.0 GiB of memory, and 0.0 GiB are free")


@pytest.mark.parametrize(
    ("error", "note"),
    [
        (MemoryError(), "memory ran out"),
        (RuntimeError("cannot allocate"), "cannot allocate"),
        (IndexError("out of range"), "out of range"),
        (AssertionError(), "AssertionError"),
    ],
)
def test_a_comparison_that_fails_leaves_the_model(node_data, monkeypatch, error, note):
    def fail(*arguments):
        raise error

    monkeypatch.setitem(evaluation.NODE_BASELINES, "FEAT", fail)
    monkeypatch.setattr(evaluation, "_score", fail)
    rows = rgat.fit(node_data, **QUICK).report["comparison"]
    assert [row["note"] for row in rows] == ["", f"left out: {note}", f"left out: {note}"]


def test_a_model_is_kept_before_it_is_compared(node_data, monkeypatch, tmp_path):
    def killed(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(fitting, "compare", killed)
    with pytest.raises(KeyboardInterrupt):
        rgat.fit(node_data, keep=lambda fitted: fitted.save(tmp_path), **QUICK)
    assert rgat.predictor.load(tmp_path).report["scores"]["test"] >= 0


def test_what_a_fit_can_take_is_counted_before_it_begins(node_data, monkeypatch):
    seconds = {"RGCN": 1.0}

    def measured(data, config, seed, device):
        return estimates.Cost(seconds.get(config["model"], 2.0), 5.0, (2**30, 2**31), 3, 2**29)

    monkeypatch.setattr(estimates, "measure", measured)
    monkeypatch.setattr(estimates, "_seconds_of_feat", lambda nodes, classes: 100.0)
    monkeypatch.setattr(estimates, "num_passes", lambda data: 20)
    monkeypatch.setattr(estimates, "_seconds_of_pass", lambda *arguments: 3.0)
    # 6 times 105 of 150 epochs and 4 evaluations of each model, FEAT, and contributions of predicates
    assert estimates.forecast(node_data, max_epochs=150, model="additive WIRGAT") == (
        "time: about 0:38:10 (h:mm:ss) for cross-validation in 5 folds, the model, an RGCN to compare with; "
        "up to 150 epochs each; memory: about 3.6 GiB"
    )
    # Four models and an RGCN to choose from, in five folds; then the best and the RGCN once more.
    assert estimates.forecast(node_data, max_epochs=150) == (
        "time: about 1:35:40 (h:mm:ss) for 5 candidates of input and model in 5 folds, the model, an RGCN to "
        "compare with; up to 150 epochs each; memory: about 3.6 GiB"
    )
    assert estimates.forecast(node_data, comparison=False, max_epochs=1) == (
        "time: about 0:03:08 (h:mm:ss) for cross-validation in 5 folds, the model; up to 1 epoch each; "
        "memory: about 3.6 GiB"
    )
    found = estimates.forecast(load("molecules"), ensemble=2, search=4, max_epochs=1000)
    assert found.startswith(
        "time: about 3:45:00 (h:mm:ss) for 3 candidates of input and model, 4 configurations to try (larger "
        "ones take longer), 2 models, an RGCN to compare with"
    )
    assert found.endswith("memory: about 2.9 GiB")


@pytest.mark.parametrize("options", [{}, {"fanouts": [3, 3], "batch_size": 16, "embedding_channels": 4}])
def test_a_model_is_measured_on_the_data(node_data, options):
    config = configure("node", QUICK | options)
    cost = estimates.measure(fitting.make_folds(node_data, 0)[0], config, 0, "cpu")
    assert cost.epoch > 0
    assert cost.evaluation > 0
    assert cost.members >= 1
    if cost.used is not None:  # the system tells
        assert 2**26 < cost.used[0] <= cost.used[1]
        before, most = cost.used
        assert cost.memory(1) == before + int(memory.GROWTH * (most - before))


def test_the_time_of_a_sampled_epoch_has_its_share_of_a_validation(node_data, monkeypatch):
    clock = iter(range(0, 1000, 7))
    monkeypatch.setattr(estimates.time, "perf_counter", lambda: float(next(clock)))
    data = fitting.make_folds(node_data, 0)[0]
    options = {"fanouts": [3, 3], "batch_size": 16, "embedding_channels": 4}
    costs = [
        estimates.measure(data, configure("node", QUICK | options | {"validate_every": every}), 0, "cpu")
        for every in (1, 7)
    ]
    assert costs[0].epoch - costs[1].epoch == pytest.approx(costs[0].evaluation * 6 / 7)
