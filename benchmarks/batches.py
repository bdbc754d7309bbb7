"""Compare the time to collate a batch of molecules with a training step of the Tox21 model.

    python benchmarks/batches.py

64 prepared molecules per batch, `GraphClassifier` with 64 units and 4 heads; median CPU time on one thread.
"""

import statistics
import time

import torch

import rgat.data
from rgat.models import GraphClassifier
from rgat.training.loss import balanced_class_weights, multi_task_cross_entropy


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = rgat.data.load("tox21")
    model = GraphClassifier(data.in_channels, len(data.tasks), data.graphs.num_relations, heads=4)
    optimiser = torch.optim.Adam(model.parameters())
    weights = balanced_class_weights(data.labels[data.train])
    seconds = {"collate": [], "step": []}
    for ids in torch.split(data.train[torch.randperm(len(data.train))], 64)[:60]:
        started = time.process_time()
        x, graph = data.graphs.batch(ids)
        collated = time.process_time()
        optimiser.zero_grad()
        multi_task_cross_entropy(model(x, graph), data.labels[ids], weights).backward()
        optimiser.step()
        seconds["collate"].append(collated - started)
        seconds["step"].append(time.process_time() - collated)
    collate, step = (1e3 * statistics.median(values[5:]) for values in seconds.values())
    print(f"collating {collate:.2f} ms, training step {step:.2f} ms: {collate / step:.3f} of a step")


if __name__ == "__main__":
    main()
