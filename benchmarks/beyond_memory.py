"""Train, predict and explain on a graph in a store, and print CPU time and peak resident memory of each step.

    python benchmarks/beyond_memory.py make STORE --graph am-like
    python benchmarks/beyond_memory.py make STORE --nodes 12500000 --triples 44000000 --relations 20
    python benchmarks/beyond_memory.py run STORE --valid 1000 --explain --out benchmarks/results/beyond_memory.json

`make` writes a made-up graph with power-law degrees, inverses and self-loops. `run` opens it, trains node embeddings
and two layers for an epoch on random labels, with early stopping if there are nodes to validate on, computes exact
logits of all nodes, and explains the node with the most incoming edges. Resident memory counts the pages of the store
that are in memory.
"""

import argparse
import json
import resource
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from graphs import SHAPES

from rgat.data import NodeData, StoreWriter, open_store
from rgat.models import NodeClassifier
from rgat.predictor.ensemble import Calibration, Ensemble
from rgat.predictor.explain_node import explain_node
from rgat.sampling import NeighborSampler
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


def resident(name):
    return round(int(Path("/proc/self/status").read_text().partition(f"{name}:")[2].split()[0]) / 2**20, 2)


@contextmanager
def measured(result, name):
    """Add the CPU time and the peak of resident memory of a block to the result."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
    times = resource.getrusage(resource.RUSAGE_SELF)
    result[name] = {"before_gib": resident("VmRSS")}
    yield result[name]
    done = resource.getrusage(resource.RUSAGE_SELF)
    result[name] |= {
        "cpu_seconds": round(done.ru_utime + done.ru_stime - times.ru_utime - times.ru_stime, 2),
        "peak_gib": resident("VmHWM"),
    }
    print(name, result[name], flush=True)


def make_data(store, options):
    torch.manual_seed(0)
    nodes = torch.randperm(store.num_nodes)[: options.seeds + options.valid]
    labels = torch.full((store.num_nodes,), -1)
    labels[nodes] = torch.randint(CLASSES, (len(nodes),))
    parts = {"train": nodes[: options.seeds], "valid": nodes[options.seeds :], "test": nodes[:0]}
    classes = tuple(f"class {number}" for number in range(CLASSES))
    names = {"node_names": store.node_names, "relation_names": store.relation_names}
    return NodeData(name="made up", graph=store, x=None, labels=labels, classes=classes, **parts, **names)


def run(options):
    result, given = (
        {},
        {name: value for name, value in vars(options).items() if name not in ("function", "out", "store")},
    )
    with measured(result, "open"):
        store = open_store(options.store)
    with measured(result, "build"):
        data = make_data(store, options)
        sizes = {"hidden_channels": options.hidden, "heads": options.heads, "embedding_channels": options.embedding}
        model = NodeClassifier(store.num_nodes, CLASSES, store.num_relations, **sizes)
    fanouts = tuple(int(number) for number in options.fanouts.split(","))
    patience = 1 if options.valid else None
    settings = Settings(max_epochs=1, patience=patience, fanouts=fanouts, batch_size=options.batch_size)
    with measured(result, "train") as row:
        steps = []
        fit(model, data, settings, progress=steps.append)  # after each step and the epoch
        row["steps"] = len(steps) - 1
    if not options.skip_inference:
        with measured(result, "predict all nodes"):
            node_logits(model, data)
    if options.explain:
        degrees = NeighborSampler(store, [-1]).degrees(torch.arange(store.num_nodes))
        hub, calibration = int(degrees.argmax()), Calibration(torch.ones(()), torch.zeros(CLASSES))
        with measured(result, "explain the largest hub") as row:
            explanation = explain_node(Ensemble([model], {}, calibration, {}), data, hub)
            row |= {"edges_into_it": int(degrees[hub]), "edges_in_its_field": explanation.num_edges}
    graph = {"nodes": store.num_nodes, "edges": store.num_edges, "relations": store.num_relations}
    record = {"torch": torch.__version__, "graph": graph, "options": given, "steps": result}
    if options.out is not None:
        options.out.write_text(json.dumps(record, indent=1) + "\n")


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
    runner.add_argument("--valid", type=int, default=0, help="validation nodes; some turn early stopping on")
    runner.add_argument("--skip-inference", action="store_true")
    runner.add_argument("--explain", action="store_true", help="explain the node with the most incoming edges")
    runner.add_argument("--out", type=Path, help="write the figures as JSON")
    runner.set_defaults(function=run)
    options = parser.parse_args()
    options.function(options)


if __name__ == "__main__":
    main()
