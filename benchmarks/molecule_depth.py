"""Compare numbers of relational layers of molecule models on held-out molecules, to choose defaults.

    RGAT_DATA=... OMP_NUM_THREADS=1 python benchmarks/molecule_depth.py --draws 6

One model of the graph alone with the default options, on the tables of `chemprop.py`: 1,200 molecules of Tox21 to learn
from, 150 for early stopping, 1,500 that are held out. None of them is among the molecules of `chemprop.py`, nor in a
test part of the three splits of `tox21-distinct`, which therefore stay unused. Parts and random seeds differ between
draws and are the same for all rows. Differences to the first row are paired by draw, with their standard errors.
"""

from __future__ import annotations

import argparse
import csv
import random
import statistics
import tempfile
import time
from pathlib import Path

from chemprop import LABELS, TABLES, TOX21, made_up_columns, shuffled_molecules

import rgat
from rgat.data.benchmarks.registry import SPLIT_SEEDS
from rgat.data.splits import random_parts

FIRST = 1500  # of the shuffled molecules; chemprop.py takes those before
PARTS = ["train"] * 1200 + ["valid"] * 150 + ["test"] * 1500
MOST_RINGS = 20  # one molecule has 70, which would decide R2 by itself
DEPTHS = {
    "two layers": {"residual": False},
    "two, residual": {"residual": True},
    "three": {"num_layers": 3, "residual": False},
    "three, residual": {"num_layers": 3, "residual": True},
}


def write_table(path: Path, draw: int) -> None:
    """Write the columns of all tables and the parts of one draw."""
    data, generator, parts = rgat.data.load("tox21-distinct"), random.Random(draw), list(PARTS)
    tested = {graph for seed in SPLIT_SEEDS for graph in random_parts(len(data.graphs), seed)[2].tolist()}
    molecules = [(graph, each) for graph, each in shuffled_molecules(data)[FIRST:] if graph not in tested]
    generator.shuffle(parts)
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["smiles", "number", *LABELS, "oily", "logP", "rings", *TOX21, "part"])
        for (graph, molecule), part in zip(molecules, parts, strict=False):
            assays = ["" if label < 0 else label for label in data.labels[graph].tolist()]
            *cells, rings = made_up_columns(molecule, generator)
            rings = "" if int(rings) > MOST_RINGS else rings
            rows.writerow([data.graph_names[graph], *cells, rings, *assays, part])


def main() -> None:
    """Print a row for each table and depth."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=6)
    parser.add_argument("--tables", nargs="+", default=list(TABLES), choices=list(TABLES))
    given = parser.parse_args()
    print("| table | layers | held-out score of each draw | difference | CPU s |\n| --- | --- | ---: | ---: | ---: |")
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{draw}.csv" for draw in range(given.draws)]
        for draw, path in enumerate(paths):
            write_table(path, draw)
        for table in given.tables:
            columns, kind = TABLES[table]
            first: list[float] = []
            for words, options in DEPTHS.items():
                scores, began = [], time.process_time()
                for draw, path in enumerate(paths):
                    data = rgat.data.from_smiles(path, tasks=list(columns), task=kind, split_column="part")
                    model = rgat.fit(data, seed=draw, ensemble=1, comparison=False, descriptors="none", **options)
                    scores.append(float(model.report["scores"]["test"]))
                first = first or scores
                differences = [score - base for score, base in zip(scores, first, strict=True)]
                error = statistics.stdev(differences) / len(scores) ** 0.5 if len(scores) > 1 else float("nan")
                cells = [table, words, " ".join(f"{score:.3f}".lstrip("0") for score in scores)]
                cells += [f"{statistics.mean(differences):+.4f} ± {error:.4f}", f"{time.process_time() - began:.0f}"]
                print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
