"""Train on targets of every kind, in one process or under torchrun; write losses, scores and parameters."""

import dataclasses
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

from helpers_targets import with_targets

from rgat.data import load
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
    state = {key: value.clone() for key, value in model.state_dict().items()}
    return {"curve": curve, "scores": result.scores, "state": state}


if __name__ == "__main__":
    torch.set_num_threads(1)
    with joined_processes(torch.device("cpu")):
        found = {name: train(name) for name in RUNS}
        if processes().rank == 0:
            torch.save(found, sys.argv[1])
