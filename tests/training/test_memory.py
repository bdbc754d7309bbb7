import contextlib
import ctypes
import gc
import os
import weakref

import pytest
import torch
from helpers import labelled_graph, large_graphs

from rgat.data import load
from rgat.models import GraphClassifier, Stack
from rgat.training import Settings, build_model, fit, fit_many, loop, many, mean_roc_auc


def resident_bytes():
    """Return the memory of this process without what is freed and kept for the next step."""
    with contextlib.suppress(AttributeError):  # glibc has it
        ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_the_last_of_500_epochs_takes_no_more_memory_than_the_hundredth():  # 2,000: benchmarks/training.py
    data, levels = labelled_graph(12), {}

    def watch(epoch):
        if epoch.epoch % 100 == 0:
            levels[epoch.epoch] = resident_bytes()

    model = build_model(data, feature_dropout=0.3, edge_dropout=0.3, batch_norm=True)
    result = fit(model, data, Settings(max_epochs=500, patience=500), on_epoch=watch)
    assert len(result.curve) == 500
    # The masks of a layer's last 1,024 calls are remembered, a kilobyte each.
    assert max(levels.values()) - levels[100] < 2 * 2**20, levels


class Uncaptured:
    """What stands for a captured step where there is no GPU: it runs the work each time."""

    def forget(self):
        pass

    def __call__(self, function):
        return function()


@pytest.fixture
def _no_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def watch_stacks(monkeypatch):
    """References to all stacks that are made from now on."""
    stacks = []
    make = many.stack
    monkeypatch.setattr(many, "stack", lambda models: (found := make(models), stacks.append(weakref.ref(found)))[0])
    return stacks


@pytest.mark.usefixtures("_no_collector")
@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("name", ["institute", "molecules"])
def test_a_model_is_freed_with_its_last_reference(name, captured, monkeypatch):
    if captured:
        monkeypatch.setattr(loop, "why_not_capture", lambda task, device: None)
        monkeypatch.setattr(loop, "Captured", Uncaptured)
    data, settings, stacks = load(name), Settings(max_epochs=2), watch_stacks(monkeypatch)

    def models():
        return [build_model(data, seed, hidden_channels=4) for seed in range(2)]

    def stop(*_):
        raise KeyboardInterrupt

    for train in (
        lambda some: fit(some[0], data, settings),
        lambda some: fit_many(some, data, settings),
        lambda some: fit(some[0], data, settings, on_epoch=stop),
        lambda some: fit_many(some, data, settings, on_epoch=stop),
    ):
        some = models()
        seen = [weakref.ref(model) for model in some]
        with contextlib.suppress(KeyboardInterrupt):
            train(some)
        del some
        assert [reference() for reference in seen + stacks] == [None] * len(seen + stacks)
    assert len(stacks) == 3, "one to train and one to score, then one that was interrupted"


@pytest.mark.parametrize(("members", "most"), [(1, 2), (2, 1)])
def test_the_memory_of_scoring_does_not_grow_with_the_data(members, most):
    data, seen = large_graphs(), []

    def watch(model, arguments):
        if isinstance(model, GraphClassifier | Stack) and not model.training:
            seen.append(arguments[1].num_graphs)

    models = [build_model(data, seed, hidden_channels=2, dense_channels=2, layer="rgcn") for seed in range(members)]
    hook = torch.nn.modules.module.register_module_forward_pre_hook(watch)
    try:
        (result, *_) = fit_many(models, data, Settings(max_epochs=1, batch_size=1))
    finally:
        hook.remove()
    assert max(seen) == most
    with torch.no_grad():
        for part in ("train", "valid", "test"):
            ids = getattr(data, part)
            logits = models[0](*data.graphs.batch(ids))
            assert result.scores[part] == mean_roc_auc(logits, data.labels[ids])


def test_a_training_batch_may_always_be_scored_at_once():
    data = large_graphs()
    seen = []
    model = build_model(data, hidden_channels=2, dense_channels=2, layer="rgcn")
    model.register_forward_pre_hook(lambda module, arguments: seen.append(arguments[1].num_graphs))
    fit(model, data, Settings(max_epochs=1, batch_size=3))
    assert max(seen) == 3
