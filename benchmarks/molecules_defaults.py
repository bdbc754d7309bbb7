"""Compare `rgat.fit` with its defaults and a random forest on Morgan fingerprints, on the same splits of tables.

    RGAT_DATA=... python benchmarks/molecules_defaults.py --molecules 1500 --splits 2

Tables: two tasks of Tox21, and two columns of numbers that RDKit computes from its structures, whose answer is known:
Crippen's logP and the number of rings. RDKit's descriptors contain both, so "graph alone" is the fair row there. Test
parts are used once, at the end: nothing is chosen on them.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import tempfile
import time
from pathlib import Path

import torch
from rdkit import Chem
from rdkit.Chem import Crippen

import rgat
from rgat.baselines import GRAPH_BASELINES
from rgat.baselines.targets import random_forest
from rgat.data import GraphData
from rgat.data.molecules.smiles import parse_smiles

TABLES = {"SR-MMP": "ROC-AUC", "NR-AhR": "ROC-AUC", "logP": "R2", "rings": "R2"}


def write_table(path: Path, count: int) -> None:
    """Write some molecules of Tox21 with the columns of all tables."""
    data = rgat.data.load("tox21-distinct")
    order = torch.randperm(len(data.graphs), generator=torch.Generator().manual_seed(0))[:count].tolist()
    tasks = [data.tasks.index(name) for name in ("SR-MMP", "NR-AhR")]
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["smiles", *TABLES])
        for graph in order:
            molecule = parse_smiles(data.graph_names[graph], relaxed=True)
            labels = ["" if (label := int(data.labels[graph, task])) < 0 else label for task in tasks]
            numbers = [round(Crippen.MolLogP(molecule), 4), len(Chem.GetSSSR(molecule))]
            rows.writerow([data.graph_names[graph], *labels, *numbers])


def forest_score(data: GraphData, seed: int) -> float:
    """Return the test score of a random forest."""
    if data.values is None:
        return float(GRAPH_BASELINES["random forest"](data, seed).scores(data)["test"])
    return float(random_forest(data, seed)["test"])


def main() -> None:
    """Print a row of test scores for each table and system."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--molecules", type=int, default=1500)
    parser.add_argument("--splits", type=int, default=2)
    given = parser.parse_args()
    print(f"{'table':8} {'metric':8} {'system':16} {'test scores':>18} {'seconds':>8}  chosen on validation data")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "molecules.csv"
        write_table(path, given.molecules)
        for name, metric in TABLES.items():
            rows: dict[str, list[tuple[float, float, str]]] = {}
            for seed in range(given.splits):
                task = "regression" if metric == "R2" else "binary"
                data = rgat.data.from_smiles(path, tasks=[name], task=task, seed=seed, relaxed=True)
                began = time.perf_counter()
                rows.setdefault("random forest", []).append((forest_score(data, seed), time.perf_counter() - began, ""))
                for system, options in (("graph alone", {"descriptors": "none"}), ("ours, defaults", {})):
                    began = time.perf_counter()
                    fitted = rgat.fit(data, seed=seed, **options)
                    chosen = fitted.report.get("choice", {}).get("input", "")
                    score = float(fitted.report["scores"]["test"])
                    rows.setdefault(system, []).append((score, time.perf_counter() - began, chosen))
            for system, runs in rows.items():
                scores = " ".join(f"{score:.3f}" for score, _, _ in runs)
                seconds = statistics.mean(seconds for _, seconds, _ in runs)
                chosen = " ".join(filter(None, (kind for _, _, kind in runs)))
                print(f"{name:8} {metric:8} {system:16} {scores:>18} {seconds:8.0f}  {chosen}", flush=True)


if __name__ == "__main__":
    main()
