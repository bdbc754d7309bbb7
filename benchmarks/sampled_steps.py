"""Time sampled training steps on one GPU, replayed from a CUDA graph and not: sampling, forward, backward and update.

The graphs are those of `graphs.py`, made up; models have 64 features, two layers and additive attention within
relations. A step is timed over whole epochs, after the first.

    python benchmarks/sampled_steps.py --out benchmarks/results/sampled_steps.json
"""

import argparse
import json
import statistics
import time
from itertools import pairwise
from pathlib import Path

import torch
from graphs import load

from rgat.data import NodeData
from rgat.models import NodeClassifier
from rgat.training import Settings, fit, sampled

CELLS = [  # graph, batch size, fan-outs
    ("aifb-like", 64, (10, 10)),
    ("mutag-like", 64, (10, 10)),
    ("am-like", 64, (10, 5)),
    ("am-like", 1024, (15, 10)),
]


def made_up(name, num_labels=4096):
    graph = load(name)
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(4, (graph.num_nodes,), generator=generator)
    nodes = torch.randperm(graph.num_nodes, generator=generator)[:num_labels]
    names = tuple(map(str, range(max(graph.num_nodes, graph.num_relations))))
    x = torch.randn(graph.num_nodes, 64, generator=generator)
    return NodeData(
        name, graph, x, labels, names[:4], nodes, nodes[:0], nodes[:0], names[: graph.num_nodes],
        names[: graph.num_relations],
    )  # fmt: skip


def milliseconds(data, batch_size, fanouts, epochs):
    """Return the time of a step in each epoch but the first, and how steps were taken."""
    torch.manual_seed(0)
    model = NodeClassifier(64, 4, data.graph.num_relations, hidden_channels=64, heads=4).cuda()
    settings = Settings(fanouts=fanouts, batch_size=batch_size, max_epochs=epochs, patience=None)
    times = []

    def note(_):
        torch.cuda.synchronize()
        times.append(time.perf_counter())

    result = fit(model, data, settings, on_epoch=note)
    steps = -(-len(data.train) // batch_size)
    return [1e3 * (b - a) / steps for a, b in pairwise(times)], result.how


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--graphs", nargs="+", default=[name for name, _, _ in CELLS])
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    options = parser.parse_args()
    rows, limit, made = [], sampled.PADDED_EDGES, {}
    for name, batch_size, fanouts in (cell for cell in CELLS if cell[0] in options.graphs):
        data = made[name] = made.get(name) or made_up(name)
        row = {"graph": name, "batch": batch_size, "fanouts": fanouts}
        for word, edges in (("replayed", 2**40), ("not replayed", 0)):
            sampled.PADDED_EDGES = edges
            times, how = milliseconds(data, batch_size, fanouts, options.epochs)
            row |= {word: statistics.median(times), f"{word} samples": times, f"{word} how": how}
        sampled.PADDED_EDGES = limit
        rows.append(row)
        print(
            name,
            batch_size,
            fanouts,
            f"{row['replayed']:.3f} ms replayed, {row['not replayed']:.3f} ms not",
            flush=True,
        )
    if options.out:
        rows.append({"device": torch.cuda.get_device_name(), "torch": torch.__version__})
        options.out.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
