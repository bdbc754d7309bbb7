"""Train and predict on a graph in a store, and print time and peak resident memory.

    python benchmarks/beyond_memory.py make STORE --graph am-like
    python benchmarks/beyond_memory.py make STORE --nodes 12500000 --triples 44000000 --relations 20
    python benchmarks/beyond_memory.py run STORE --seeds 100000 --embedding 64

`make` writes a made-up graph with power-law degrees, inverses and self-loops. `run` opens it, trains node embeddings
and two layers for an epoch on random labels, and computes exact logits of all nodes. Resident memory counts the pages
of the store that are in memory.
"""

import argparse
import json
import resource
import time
from pathlib import Path

import numpy as np
import torch
from graphs import SHAPES

from rgat.data import NodeData, StoreWriter, open_store
from rgat.models import NodeClassifier
from rgat.training import Settings, fit, node_logits

CHUNK = 1 << 22  # triples written at once
CLASSES = 11


def make(options):
    nodes, triples, relations = SHAPES[options.graph] if options.graph else (
        options.nodes, options.triples, options.relations
    )  # fmt: skip
    generator = np.random.default_rng(0)
    shuffle = generator.permutation(nodes).astype(np.int32)
    began = time.perf_counter()
    names = [f"<http://example.org/r{number:04d}>" for number in range(relations)]
    with StoreWriter(options.store, nodes, names) as writer:
        for start in range(0, triples, CHUNK):
            size = min(CHUNK, triples - start)
            # Weights are rank to the power of -0.6 for nodes, as in `graphs.py`; relations are skewed likewise.
            ends = [shuffle[(generator.random(size) ** 2.5 * nodes).astype(np.int64)] for _ in range(2)]
            relation = (generator.random(size) ** 3 * relations).astype(np.int64)
            writer.add(ends[0], relation, ends[1])
    store = open_store(options.store)
    seconds = time.perf_counter() - began
    print(json.dumps({
        "nodes": store.num_nodes, "edges": store.num_edges, "relations": store.num_relations,
        "seconds": round(seconds, 1), "peak_gib": peak(),
    }))  # fmt: skip


def peak():
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2)


def run(options):
    began = time.perf_counter()
    store = open_store(options.store)
    opened = time.perf_counter() - began
    torch.manual_seed(0)
    seeds = torch.randperm(store.num_nodes)[: options.seeds]
    labels = torch.full((store.num_nodes,), -1)
    labels[seeds] = torch.randint(CLASSES, (len(seeds),))
    none = seeds[:0]
    parts = {"train": seeds, "valid": none, "test": none}
    classes = tuple(f"class {number}" for number in range(CLASSES))
    names = {"node_names": store.node_names, "relation_names": store.relation_names}
    data = NodeData(name="made up", graph=store, x=None, labels=labels, classes=classes, **parts, **names)
    sizes = {"hidden_channels": options.hidden, "heads": options.heads, "embedding_channels": options.embedding}
    model = NodeClassifier(store.num_nodes, CLASSES, store.num_relations, **sizes)
    fanouts = tuple(int(number) for number in options.fanouts.split(","))
    settings = Settings(max_epochs=1, patience=None, fanouts=fanouts, batch_size=options.batch_size)
    times = []
    began = time.perf_counter()
    fit(model, data, settings, progress=lambda step: times.append(time.perf_counter()))  # after each step and the epoch
    trained = {"epoch_seconds": round(times[-1] - began, 1), "steps": len(times) - 1, "peak_gib": peak()}
    result = {"opened_ms": round(1000 * opened, 1), "train": trained}
    if not options.skip_inference:
        began = time.perf_counter()
        logits = node_logits(model, data)
        result["inference"] = {
            "seconds": round(time.perf_counter() - began, 1),
            "nodes": len(logits),
            "peak_gib": peak(),
        }
    print(json.dumps(result))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    maker = commands.add_parser("make")
    maker.add_argument("store", type=Path)
    maker.add_argument("--graph", choices=list(SHAPES))
    maker.add_argument("--nodes", type=int)
    maker.add_argument("--triples", type=int)
    maker.add_argument("--relations", type=int)
    maker.set_defaults(function=make)
    runner = commands.add_parser("run")
    runner.add_argument("store", type=Path)
    runner.add_argument("--seeds", type=int, default=100_000)
    runner.add_argument("--embedding", type=int, default=64)
    runner.add_argument("--hidden", type=int, default=64)
    runner.add_argument("--heads", type=int, default=4)
    runner.add_argument("--fanouts", default="15,10")
    runner.add_argument("--batch-size", type=int, default=1024)
    runner.add_argument("--skip-inference", action="store_true")
    runner.set_defaults(function=run)
    options = parser.parse_args()
    options.function(options)


if __name__ == "__main__":
    main()
