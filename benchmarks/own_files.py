"""Measure how well `rgat.fit` with default settings does on plain files, and whether explanations are right.

    python benchmarks/own_files.py aifb FOLDER --ensemble 5 --seeds 10
    python benchmarks/own_files.py tox21 tox21.csv.gz --ensemble 3
    python benchmarks/own_files.py planted --ensemble 5 --seeds 2
    python benchmarks/own_files.py literals --ensemble 1 --seeds 3

The default settings were selected by cross-validation inside the training part of AIFB and on the validation part of
Tox21. The test part is used once per random seed. `literals` has the made-up graphs of `tests/helpers_literals.py`, 400
people whose class follows from a number, a date or a word, each drawn anew for each seed: all classes can be known.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

import rgat
from rgat.data import from_rdf, from_smiles

TARGET = 34  # of the 36 test persons of AIFB
FIRST_SEED = 910  # of made-up graphs; nothing was chosen with seeds from here on


def aifb(folder: Path, ensemble: int, seeds: int) -> None:
    data = from_rdf(
        folder / "aifb_stripped.nt.gz",
        train=folder / "trainingSet.tsv",
        test=folder / "testSet.tsv",
        node_column="person",
        label_column="label_affiliation",
    )
    right = []
    for seed in range(seeds):
        started = time.perf_counter()
        report = rgat.fit(data, ensemble=ensemble, seed=seed, comparison=False).report
        right.append(report["right"])
        seconds = time.perf_counter() - started
        print(json.dumps({"seed": seed, "right": right[-1], "of": report["tested"], "seconds": seconds}), flush=True)
    print(f"{sum(number >= TARGET for number in right)} of {seeds} seeds have {TARGET} or more of 36 right: {right}")


def tox21(path: Path, ensemble: int, seed: int) -> None:
    started = time.perf_counter()
    data = from_smiles(path, seed=seed, relaxed=True, skip_invalid=True)
    report = rgat.fit(data, ensemble=ensemble, seed=seed, comparison=False).report
    print(json.dumps(report | {"seconds": time.perf_counter() - started}, indent=1))


def planted(ensemble: int, seeds: int) -> None:
    """Print how often the planted edge is the first reason of a correct prediction."""
    options = {"learning_rate": 0.05, "feature_dropout": 0.0, "kernel_l2_1": 0.0, "kernel_l2_2": 0.0}
    for kind, model in (("needle", "additive WIRGAT"), ("rivals", "additive ARGAT")):
        data = rgat.data.load(f"planted-{kind}")
        loud = data.x[:, 4] > 0
        for seed in range(seeds):
            fitted = rgat.fit(data, model=model, ensemble=ensemble, seed=seed, comparison=False, **options)
            right = fitted.logits.mean(0).argmax(1) == data.labels
            nodes = [node for node in data.test.tolist() if right[node]]
            first = [fitted.find(fitted.explain(data.node_names[node], top=4).reasons[0].source) for node in nodes]
            share = sum(bool(loud[node]) for node in first) / len(nodes)
            print(json.dumps({"set": kind, "seed": seed, "right": len(nodes), "planted edge first": share}), flush=True)


def literals(ensemble: int, seeds: int) -> None:
    """Print the share of the test people whose class is right, and the predicate that contributes most."""
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
    from helpers_literals import EX, PREDICATE, write_people

    for kind in ("number", "date", "word"):
        for seed in range(FIRST_SEED, FIRST_SEED + seeds):
            with tempfile.TemporaryDirectory() as folder:
                data = from_rdf(*write_people(Path(folder), kind, seed), shares=(0.8, 0.0), seed=seed)
            report = rgat.fit(data, ensemble=ensemble, seed=seed).report
            chosen = {word: report["choice"][word] for word in ("input", "model")}
            named = report["contributions"]["predicates"][0]["predicate"]
            row = {"set": kind, "seed": seed, "right": report["right"], "of": report["tested"], **chosen}
            print(json.dumps(row | {"named": named, "is it": named == f"<{EX}{PREDICATE[kind]}>"}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", choices=("aifb", "tox21", "planted", "literals"))
    parser.add_argument("path", type=Path, nargs="?", help="folder of AIFB, or CSV file of Tox21")
    parser.add_argument("--ensemble", type=int, default=5, help="members of the ensemble (default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=10, help="number of random seeds; for tox21 the seed itself")
    arguments = parser.parse_args()
    if arguments.data in ("planted", "literals"):
        run_made_up = planted if arguments.data == "planted" else literals
        run_made_up(arguments.ensemble, arguments.seeds)
    else:
        run = aifb if arguments.data == "aifb" else tox21
        run(arguments.path, arguments.ensemble, arguments.seeds)


if __name__ == "__main__":
    main()
