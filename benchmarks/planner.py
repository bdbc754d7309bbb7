"""Time every alternative of the planner on graphs of many shapes, and compare its choice with the fastest.

    python benchmarks/planner.py --out benchmarks/results/planner.json    # measure; about 5 minutes
    python benchmarks/planner.py --fit benchmarks/results/planner.json    # the rates that fit these measurements best

Each cell is a graph (sources, targets, relations, edges) and a layer (F, D, H, bases). The table shows the CPU
milliseconds of forward and backward of each alternative (median, one thread), the planner's choice, and how far it is
from the best.
"""

import argparse
import json
import statistics
import time

import torch

from rgat import RelationalGraph
from rgat.nn import RGATConv
from rgat.ops import planner

SIDES = {"even": (6000, 6000), "many sources": (9000, 300), "many targets": (300, 9000)}
LAYERS = [(16, 16, 1, None), (64, 16, 4, None), (64, 16, 1, None), (16, 64, 1, None), (64, 64, 1, 4), (32, 32, 2, 2)]
RELATIONS = (1, 8, 60)
EXTRA = [("even", (2, 64, 1, None), 8), ("many sources", (8, 128, 1, None), 8), ("even", (256, 8, 2, None), 8)]


def cells():
    for side in SIDES:
        for R in RELATIONS:
            for layer in LAYERS:
                yield side, layer, R
    yield from EXTRA


def make_graph(side, num_relations, edges=30_000):
    generator = torch.Generator().manual_seed(0)
    ends = [torch.randint(size, (edges,), generator=generator) for size in SIDES[side]]
    relation = torch.randint(num_relations, (edges,), generator=generator)
    sizes = {"num_nodes": max(SIDES[side]), "num_relations": num_relations}
    return RelationalGraph(torch.stack(ends), relation, **sizes).prepare()


def measure(side, layer, num_relations, calls):
    F, D, H, B = layer
    graph = make_graph(side, num_relations)
    torch.manual_seed(0)
    conv = RGATConv(F, D, num_relations, heads=H, num_bases=B)
    x = torch.randn(graph.num_nodes, F, requires_grad=True)
    cotangent = torch.randn(graph.num_nodes, H * D)
    chosen = conv.plan(graph)
    plans = {name: conv.plan(graph, name) for name in chosen.costs}

    def step(plan):
        x.grad = None
        conv.zero_grad()
        started = time.process_time()
        conv(x, graph, plan=plan).backward(cotangent)
        return 1e3 * (time.process_time() - started)

    samples = {name: [] for name in plans}
    for _ in range(calls):  # in turns, so that a slow minute of the machine is everybody's
        for name, plan in plans.items():
            step(plan)
            samples[name] += [step(plan), step(plan)]
    sizes = next(iter(graph.plans))[0]
    return {
        "side": side,
        "layer": layer,
        "relations": num_relations,
        "choice": chosen.alternative,
        "milliseconds": {name: statistics.median(times) for name, times in samples.items()},
        "estimates": chosen.costs,
        "work": {name: [3 * unit for unit in work] for name, work in planner.total_work(graph, sizes).items()},
    }


def show(records):
    names = planner.ALTERNATIVES
    print(
        f"{'sources/targets':16s} {'F':>4s} {'D':>4s} {'H':>2s} {'B':>2s} {'R':>3s}",
        *(f"{n:>15s}" for n in names),
        sep=" ",
    )
    good, winners = 0, {}
    for record in records:
        times, choice = record["milliseconds"], record["choice"]
        times = {name: time for name, time in times.items() if name in names}  # files of earlier versions have more
        best = min(times, key=times.get)
        winners[best] = winners.get(best, 0) + 1
        loss = times[choice] / times[best] - 1
        good += loss <= 0.2
        F, D, H, B = record["layer"]
        marks = (
            "" if n not in times else f"{'>' if n == choice else ''}{times[n]:.2f}{'*' if n == best else ''}"
            for n in names
        )
        head = f"{record['side']:16s} {F:4d} {D:4d} {H:2d} {B or '-':>2} {record['relations']:3d}"
        print(head, *(f"{mark:>15s}" for mark in marks), f"{100 * loss:5.0f} %")
    print(
        f"> the planner's choice, * the fastest; choice within 20 % of the fastest in {good} of {len(records)} cells;"
    )
    print("fastest: " + ", ".join(f"{name} {count}" for name, count in sorted(winners.items())))
    return good, winners


def fit(records):
    """Non-negative least squares of relative errors."""
    from scipy.optimize import nnls

    rows, ones = [], []
    for record in records:
        for name, units in record["work"].items():
            measured = record["milliseconds"][name]
            rows.append([unit / 1e6 / measured for unit in units])
            ones.append(1.0)
    scale = [max(column) or 1.0 for column in zip(*rows, strict=True)]
    rates, error = nnls([[value / s for value, s in zip(row, scale, strict=True)] for row in rows], ones)
    print("residual", round(error / len(rows) ** 0.5, 3))
    for name, rate, s in zip(planner.Work._fields, rates, scale, strict=True):
        print(f"  {name:14s} {rate / s:.4g}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=5)
    parser.add_argument("--out", help="write the table to this JSON file")
    parser.add_argument("--fit", help="fit rates to a table that was written before")
    parser.add_argument("--show", help="show a table that was written before")
    arguments = parser.parse_args()
    for path in filter(None, (arguments.fit, arguments.show)):
        with open(path, encoding="utf-8") as file:
            records = json.load(file)["cells"]
        return fit(records) if arguments.fit else show(records)
    torch.set_num_threads(1)
    records = [measure(*cell, arguments.calls) for cell in cells()]
    show(records)
    if arguments.out:
        with open(arguments.out, "w", encoding="utf-8") as file:
            json.dump({"torch": torch.__version__, "cells": records}, file, separators=(",", ":"))
    return None


if __name__ == "__main__":
    main()
