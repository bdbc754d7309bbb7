"""Two processes learn numbers, classes and labels as one does: shares of molecules, of a graph and of its samples."""

import dataclasses

import pytest
import torch
from helpers_processes import run_ranks
from helpers_targets import with_targets

from rgat.data import load
from rgat.ops import backend
from rgat.training import Settings, build_model, fit
from rgat.training.distributed import joined_processes, processes

RUNS = {
    "molecules": {"batch_size": 64},
    "institute": {},
    "institute, sampled": {"fanouts": (3, 3), "batch_size": 50},
}


def train(name):
    """Return the curve, scores and parameters of a run in float64."""
    data = with_targets(load(name.partition(",")[0]))
    if hasattr(data, "graphs"):
        data = dataclasses.replace(data, graphs=dataclasses.replace(data.graphs, x=data.graphs.x.double()))
    model = build_model(data, 1, hidden_channels=8, heads=2).double()
    result = fit(model, data, Settings(max_epochs=3, class_weights="balanced", **RUNS[name]), 4)
    curve = [(epoch.train_loss, epoch.valid_loss, epoch.valid_metric) for epoch in result.curve]
    return {"curve": curve, "scores": result.scores, "state": model.state_dict()}


def train_all(out):
    """Do all runs in this process and those that were started with it; the first one writes what came out."""
    torch.set_num_threads(1)
    with backend("torch"), joined_processes(torch.device("cpu")):  # nothing to compile
        found = {name: train(name) for name in RUNS}
        if processes().rank == 0:
            torch.save(found, out)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What one process and two have learned."""
    folder = tmp_path_factory.mktemp("targets")
    for count in (1, 2):
        run_ranks(count, train_all, folder / str(count))
    return [torch.load(folder / str(count), weights_only=True) for count in (1, 2)]


@pytest.mark.parametrize("name", RUNS)
def test_two_processes_learn_what_one_does(found, name):
    one, two = (each[name] for each in found)
    assert len(one["curve"]) == 3
    assert one["curve"][-1][0] < one["curve"][0][0]
    for ours, theirs in zip(two["curve"], one["curve"], strict=True):
        assert ours == pytest.approx(theirs, abs=1e-6)
    assert two["scores"] == pytest.approx(one["scores"], abs=1e-6)
    for key, value in one["state"].items():
        torch.testing.assert_close(two["state"][key], value, rtol=1e-6, atol=1e-6, msg=key)
