"""Compare `rgat.fit` with its defaults and a random forest on Morgan fingerprints, on the same splits of tables.

    RGAT_DATA=... python benchmarks/molecules_defaults.py --molecules 1500 --splits 2

Tables: all tasks of Tox21, two of its tasks alone, and two whose labels RDKit computes from the structures of Tox21: a
Crippen logP above the median, and at least two rings. Descriptors of RDKit contain logP and rings, so that "graph
alone" is the fair row there. Test parts are used once, at the end: nothing is chosen on them.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import time

import torch
from rdkit import Chem
from rdkit.Chem import Crippen

import rgat
from rgat.baselines import GRAPH_BASELINES
from rgat.data import GraphData
from rgat.data.molecules.smiles import parse_smiles
from rgat.data.splits import random_parts


def tables(data: GraphData) -> dict[str, GraphData]:
    """Return the tables by name, all with the same molecules."""
    molecules = [parse_smiles(text, relaxed=True) for text in data.graph_names]
    logp = torch.tensor([Crippen.MolLogP(molecule) for molecule in molecules])
    rings = torch.tensor([len(Chem.GetSSSR(molecule)) for molecule in molecules])
    columns = {"logP above the median": logp > logp.median(), "two rings or more": rings >= 2}
    found = {"Tox21, 12 tasks": data}
    for task in ("SR-MMP", "NR-AhR"):
        number = data.tasks.index(task)
        found[f"Tox21, {task}"] = dataclasses.replace(data, labels=data.labels[:, [number]], tasks=(task,))
    for name, column in columns.items():
        found[name] = dataclasses.replace(data, labels=column.long().unsqueeze(1), tasks=(name,))
    return found


def main() -> None:
    """Print a row of test scores for each table and system."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--molecules", type=int, default=1500)
    parser.add_argument("--splits", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=40)
    given = parser.parse_args()
    whole = rgat.data.load("tox21-distinct")
    order = torch.randperm(len(whole.graphs), generator=torch.Generator().manual_seed(0))[: given.molecules]
    names = tuple(whole.graph_names[i] for i in order.tolist())
    data = dataclasses.replace(whole, graphs=whole.graphs.select(order), labels=whole.labels[order], graph_names=names)
    print(f"{'table':24} {'system':16} {'test ROC-AUC':>20} {'seconds':>8}  descriptors chosen on validation data")
    for name, table in tables(data).items():
        rows: dict[str, list[tuple[float, float, str]]] = {}
        for seed in range(given.splits):
            train, valid, test = random_parts(len(table.graphs), seed)
            split = dataclasses.replace(table, train=train, valid=valid, test=test)
            began = time.perf_counter()
            forest = GRAPH_BASELINES["random forest"](split, seed).scores(split)["test"]
            rows.setdefault("random forest", []).append((forest, time.perf_counter() - began, ""))
            for system, options in (("graph alone", {"descriptors": "none"}), ("ours, defaults", {})):
                began = time.perf_counter()
                fitted = rgat.fit(split, seed=seed, max_epochs=given.epochs, **options)
                kind = fitted.report.get("choice", {}).get("input", "")
                rows.setdefault(system, []).append((fitted.report["scores"]["test"], time.perf_counter() - began, kind))
        for system, runs in rows.items():
            scores = " ".join(f"{score:.3f}" for score, _, _ in runs)
            kinds = " ".join(kind for _, _, kind in runs)
            seconds = statistics.mean(seconds for _, seconds, _ in runs)
            print(f"{name:24} {system:16} {scores:>20} {seconds:8.0f}  {kinds}", flush=True)


if __name__ == "__main__":
    main()
