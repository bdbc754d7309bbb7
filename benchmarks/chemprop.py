"""Compare `rgat.fit` with chemprop 2 and a random forest on the same tables and splits of molecules, on one CPU thread.

    python3.11 -m venv chemprop_env && chemprop_env/bin/pip install chemprop
    RGAT_DATA=... OMP_NUM_THREADS=1 python benchmarks/chemprop.py --chemprop chemprop_env/bin/chemprop

Tables: a number and five labels that are made up from substructures, with noise; the twelve tasks of Tox21; and two
numbers that RDKit computes, logP by Crippen's rules and the number of rings. RDKit's descriptors contain the last two,
so that "graph alone" is the fair row there. Molecules are distinct ones of Tox21's, the parts are random (80/10/10),
and all systems have their default options. Everything is chosen on validation parts; test parts are used once.

Seconds are CPU time of a single thread. An epoch, with its validation, is the difference between trainings of few and
of more epochs; a prediction is the difference between files of few and of more molecules, so that starting, reading
and compiling count for neither system. Results are added to the JSON file, and those that are in it are not measured
again: an interrupted run goes on.

`--rounds 5` measures predictions alone, of our graph alone and of chemprop in turn, after a short training of both.

`--benchmark 122 123 124` scores chemprop alone, on these splits of all molecules of `tox21-distinct`.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rdkit import Chem
from rdkit.Chem import Crippen, rdMolDescriptors

import rgat
from rgat.baselines import GRAPH_BASELINES
from rgat.baselines.targets import random_forest, score_parts
from rgat.data import GraphData
from rgat.data.molecules.smiles import rdkit
from rgat.training import mean_roc_auc

COUNTED = {  # substructures, and what each adds to the made-up number
    "[OX2H]": 1.2,
    "c[F,Cl,Br,I]": -0.8,
    "C(=O)[NX3]": 1.0,
    "[NX3;H2,H1;!$(NC=O)]": 0.6,
    "[CX4H3]": -0.3,
}
LABELS = {"acid": "C(=O)[OX2H1]", "ester": "C(=O)[OX2][#6]", "halide": "[F,Cl,Br,I]", "amine": "[NX3;!$(NC=O)]"}
NOISE, FLIPPED, MISSING = 0.5, 0.05, 0.1  # deviation of the number; shares of wrong and of missing labels
TOX21 = tuple(rgat.data.load("tox21-distinct").tasks)
TABLES = {  # name -> columns, and their kind
    "made-up number": (("number",), "regression"),
    "made-up labels": ((*LABELS, "oily"), "binary"),
    "Tox21": (TOX21, "binary"),
    "logP": (("logP",), "regression"),
    "rings": (("rings",), "regression"),
}
SYSTEMS = ("chemprop", "random forest", "graph alone", "three of the graph", "one member", "defaults", "search")
CHEMPROP_EPOCHS = 50  # its default
FEW, MORE = 3, 13  # epochs, to measure one
SMALL, LARGE = 1000, 4000  # molecules, to measure a prediction
WORDS = {"train": "train", "valid": "val", "test": "test"}  # chemprop's names of the parts


def made_up_columns(molecule: Any, generator: random.Random) -> list[str]:
    """Return the cells of all tables but Tox21's."""
    count: Callable[[str], int] = lambda pattern: len(molecule.GetSubstructMatches(Chem.MolFromSmarts(pattern)))
    number = sum(weight * count(pattern) for pattern, weight in COUNTED.items()) + generator.gauss(0, NOISE)
    number += 1.5 * (count(LABELS["acid"]) > 0 and count(LABELS["amine"]) > 0)
    true = [count(pattern) > 0 for pattern in LABELS.values()] + [Crippen.MolLogP(molecule) > 3.5]
    flipped = [is_true != (generator.random() < FLIPPED) for is_true in true]
    labels = ["" if generator.random() < MISSING else str(int(label)) for label in flipped]
    formulas = [f"{Crippen.MolLogP(molecule):.4f}", str(rdMolDescriptors.CalcNumRings(molecule))]
    return [f"{number:.4f}", *labels, *formulas]


def shuffled_molecules(data: GraphData) -> list[tuple[int, Any]]:
    """Return number and structure of the molecules that RDKit reads, in one random order for all splits and scripts."""
    rdkit()  # without its warnings
    order = list(range(len(data.graphs)))
    random.Random(0).shuffle(order)
    molecules = [(graph, Chem.MolFromSmiles(data.graph_names[graph])) for graph in order]
    return [(graph, each) for graph, each in molecules if each is not None and each.GetNumAtoms() > 3]


def write_tables(path: Path, count: int, seed: int) -> list[str]:
    """Write one file with the columns of all tables and a random split; return molecules to measure predictions on."""
    data, generator = rgat.data.load("tox21-distinct"), random.Random(seed)
    molecules = shuffled_molecules(data)
    parts = ["train"] * round(0.8 * count) + ["valid"] * round(0.1 * count)
    parts += ["test"] * (count - len(parts))
    generator.shuffle(parts)
    header = ["smiles", "number", *LABELS, "oily", "logP", "rings", *TOX21, "part", "chemprop part"]
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(header)
        for (graph, molecule), part in zip(molecules, parts, strict=False):
            assays = ["" if label < 0 else label for label in data.labels[graph].tolist()]
            cells = made_up_columns(molecule, generator)
            rows.writerow([data.graph_names[graph], *cells, *assays, part, WORDS[part]])
    return [data.graph_names[graph] for graph, _ in molecules[:LARGE]]


def cpu_seconds() -> float:
    """Return the CPU time of this process and its children that ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def seconds_of(work: Callable[[], Any]) -> tuple[float, Any]:
    """Return the CPU time of a function, and what it returns."""
    began = cpu_seconds()
    found = work()
    return cpu_seconds() - began, found


def marginal(small: float, large: float, steps: float) -> float:
    """Return the time of one step from the times of few and of so many more."""
    return (large - small) / steps


class Ours:
    """A fit of ours, and its times."""

    def __init__(self, data: GraphData, molecules: list[str], seed: int, **options: Any) -> None:
        self.data, self.molecules, self.seed, self.options = data, molecules, seed, options

    def measure(self) -> dict[str, Any]:
        """Return the test score, times and what was chosen."""
        seconds, model = seconds_of(lambda: rgat.fit(self.data, seed=self.seed, **self.options))
        model.predict(self.molecules[:100])
        few, more = (seconds_of(lambda n=n: model.predict(self.molecules[:n]))[0] for n in (SMALL, LARGE))
        kind = model.vocabulary.descriptors.kind if model.vocabulary.descriptors else "none"
        epochs = {n: self._epochs(n, model.config, kind) for n in (FEW, MORE)}
        return {
            "score": float(model.report["scores"]["test"]),
            "train": seconds,
            "epoch": marginal(epochs[FEW], epochs[MORE], MORE - FEW),
            "predict": marginal(few, more, (LARGE - SMALL) / 1000),
            "chosen": f"{model.config['model']}, descriptors: {kind}",
        }

    def _epochs(self, number: int, config: dict[str, Any], kind: str) -> float:
        given = config | {"max_epochs": number, "patience": number}
        return seconds_of(lambda: rgat.fit(self.data, comparison=False, descriptors=kind, **given))[0]


class Chemprop:
    """A training of chemprop's command line, and its times."""

    def __init__(self, command: str, table: Path, columns: tuple[str, ...], kind: str, seed: int) -> None:
        self.command, self.table, self.columns, self.seed = command, table, columns, seed
        self.task = "classification" if kind == "binary" else kind

    def _run(self, *arguments: object) -> float:
        threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONPATH": ""}
        command = [self.command, *map(str, arguments), "--accelerator", "cpu", "-n", "0", "-s", "smiles"]
        run: Callable[[], Any] = lambda: subprocess.run(
            command, env=os.environ | threads, check=True, capture_output=True, cwd=self.table.parent
        )
        return seconds_of(run)[0]

    def _train(self, epochs: int, out: Path) -> float:
        where = ("-i", self.table, "-o", out, "--splits-column", "chemprop part", "--target-columns", *self.columns)
        return self._run("train", *where, "-t", self.task, "--epochs", epochs, "--pytorch-seed", self.seed)

    def measure(self, data: GraphData, molecules: list[str]) -> dict[str, Any]:
        """Return the test score and times."""
        folder = self.table.parent
        few = self._train(FEW, folder / "few")
        whole = self._train(CHEMPROP_EPOCHS, folder / "whole")
        model = folder / "whole" / "model_0" / "best.pt"
        predicted = self.predict(model, data.test.tolist(), data)
        times = {n: self._predict(model, molecules[:n]) for n in (SMALL, LARGE)}
        return {
            "score": score(data, predicted),
            "train": whole,
            "epoch": marginal(few, whole, CHEMPROP_EPOCHS - FEW),
            "predict": marginal(times[SMALL], times[LARGE], (LARGE - SMALL) / 1000),
            "chosen": "",
        }

    def predict(self, model: Path, graphs: list[int], data: GraphData) -> np.ndarray:
        """Return the predictions of some molecules, a row for each."""
        self._predict(model, [data.graph_names[graph] for graph in graphs])
        with (self.table.parent / "out.csv").open() as file:
            return np.array([[float(row[name]) for name in self.columns] for row in csv.DictReader(file)])

    def _predict(self, model: Path, molecules: list[str]) -> float:
        source = self.table.parent / "in.csv"
        source.write_text("\n".join(["smiles", *molecules]) + "\n")
        return self._run("predict", "-i", source, "--model-paths", model, "-o", self.table.parent / "out.csv")


def compare_predictions(command: str, table: Path, molecules: list[str], rounds: int) -> None:
    """Print the CPU time of chemprop's and our predictions, which take turns, and their ratio."""
    columns, kind = TABLES["made-up number"]
    chemprop, out = Chemprop(command, table, columns, kind, 0), table.parent / "few"
    chemprop._train(FEW, out)
    data = rgat.data.from_smiles(table, tasks=list(columns), task=kind, split="column", split_column="part")
    model = rgat.fit(data, comparison=False, max_epochs=FEW)
    model.predict(molecules[:SMALL])
    ours: Callable[[int], float] = lambda n: seconds_of(lambda: model.predict(molecules[:n]))[0]
    theirs: Callable[[int], float] = lambda n: chemprop._predict(out / "model_0" / "best.pt", molecules[:n])
    for _ in range(rounds):
        first, second = (marginal(run(SMALL), run(LARGE), (LARGE - SMALL) / 1000) for run in (theirs, ours))
        print(f"1,000 molecules: chemprop {first:.3f} s, ours {second:.3f} s, {first / second:.2f} times", flush=True)


def score_on_split(command: str, split: int, seed: int) -> dict[str, Any]:
    """Return chemprop's score on the test part of a split of Tox21's distinct molecules, and its time.

    A molecule that RDKit does not read has no prediction, and is left out of every part.
    """
    data = rgat.data.load("tox21-distinct", split=split)
    rdkit()  # without its warnings
    is_read = [Chem.MolFromSmiles(name) is not None for name in data.graph_names]
    kept = {part: [g for g in getattr(data, part).tolist() if is_read[g]] for part in WORDS}
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "table.csv"
        with table.open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["smiles", *TOX21, "chemprop part"])
            for part, graphs in kept.items():
                for graph in graphs:
                    assays = ["" if label < 0 else label for label in data.labels[graph].tolist()]
                    rows.writerow([data.graph_names[graph], *assays, WORDS[part]])
        chemprop = Chemprop(command, table, TOX21, "binary", seed)
        seconds = chemprop._train(CHEMPROP_EPOCHS, table.parent / "whole")
        found = {}
        for part in ("valid", "test"):
            graphs = kept[part]
            predicted = chemprop.predict(table.parent / "whole" / "model_0" / "best.pt", graphs, data)
            margin = torch.from_numpy(predicted)
            logits = torch.stack([torch.zeros_like(margin), margin], dim=-1)
            found[part] = mean_roc_auc(logits, data.labels[graphs])
    return {"score": found["test"], "valid": found["valid"], "train": seconds, "unread": is_read.count(False)}


def score(data: GraphData, predicted: np.ndarray) -> float:
    """Return the score of predictions of the test part, the same as that of our report."""
    if data.values is None:
        margin = torch.from_numpy(predicted)
        logits = torch.stack([torch.zeros_like(margin), margin], dim=-1)
        return mean_roc_auc(logits, data.labels[data.test])
    everywhere = torch.zeros_like(data.values)
    everywhere[data.test] = torch.from_numpy(predicted).to(everywhere)
    return score_parts(data, everywhere)["test"]


def forest(data: GraphData, seed: int) -> dict[str, Any]:
    """Return the test score of a random forest, and its time."""
    learn: Callable[[], Any] = lambda: (
        GRAPH_BASELINES["random forest"](data, seed).scores(data) if data.values is None else random_forest(data, seed)
    )
    seconds, scores = seconds_of(learn)
    return {"score": float(scores["test"]), "train": seconds, "epoch": None, "predict": None, "chosen": ""}


def measure(
    system: str, table: Path, name: str, molecules: list[str], seed: int, given: argparse.Namespace
) -> dict[str, Any]:
    """Return the results of a system on a table."""
    columns, kind = TABLES[name]
    how: dict[str, Any] = {"tasks": list(columns), "task": kind, "split": "column", "split_column": "part"}
    data = rgat.data.from_smiles(table, **how)
    if system == "chemprop":
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / "table.csv"
            copy.write_bytes(table.read_bytes())
            return Chemprop(given.chemprop, copy, columns, kind, seed).measure(data, molecules)
    if system == "random forest":
        return forest(data, seed)
    alone: dict[str, Any] = {"descriptors": "none", "comparison": False}
    options = {
        "graph alone": alone,
        "three of the graph": alone | {"ensemble": 3},
        "one member": {"ensemble": 1},
        "search": {"search": given.search},
    }
    return Ours(data, molecules, seed, **options.get(system, {})).measure()


def print_table(results: dict[str, Any]) -> None:
    """Print the results as a table of Markdown."""
    print("| table | system | test score | CPU s per epoch | CPU s per 1,000 molecules | training, CPU s | chosen |")
    print("| --- | --- | --- | ---: | ---: | ---: | --- |")
    cell: Callable[[list[float]], str] = lambda found: f"{np.mean(found):.2f}" if found else "-"
    for name in TABLES:
        for system in SYSTEMS:
            runs = [run for key, run in results.items() if key.split("/")[0::2] == [name, system]]
            if not runs:
                continue
            parts = ("epoch", "predict", "train")
            known = {part: [run[part] for run in runs if run[part] is not None] for part in parts}
            scores = " ".join(f"{run['score']:.3f}" for run in runs)
            chosen = "; ".join(dict.fromkeys(filter(None, (run["chosen"] for run in runs))))
            print(f"| {name} | {system} | {scores} | {cell(known['epoch'])} | {cell(known['predict'])} ", end="")
            print(f"| {cell(known['train'])} | {chosen} |")


def main() -> None:
    """Measure all systems on all tables and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chemprop", help="chemprop's command; without it, the others are measured")
    parser.add_argument("--molecules", type=int, default=1500)
    parser.add_argument("--splits", type=int, default=1)
    parser.add_argument("--search", type=int, default=8, help="trials of a search")
    parser.add_argument("--rounds", type=int, help="only measure predictions, so many times")
    parser.add_argument("--benchmark", nargs="+", type=int, help="score chemprop on splits of tox21-distinct")
    parser.add_argument("--systems", nargs="+", default=SYSTEMS, choices=SYSTEMS)
    parser.add_argument("--tables", nargs="+", default=tuple(TABLES), choices=tuple(TABLES))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/chemprop.json"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.rounds is not None:
        with tempfile.TemporaryDirectory() as folder:
            table = Path(folder) / "table.csv"
            compare_predictions(given.chemprop, table, write_tables(table, given.molecules, 0), given.rounds)
        return
    results = json.loads(given.out.read_text()) if given.out.exists() else {}
    if given.benchmark is not None:
        for split in given.benchmark:
            key = f"tox21-distinct/{split}/chemprop"
            results[key] = results.get(key) or score_on_split(given.chemprop, split, split)
            print(key, results[key], flush=True)
            given.out.write_text(json.dumps(results, indent=1) + "\n")
        return
    for seed in range(given.splits):
        with tempfile.TemporaryDirectory() as folder:
            table = Path(folder) / "table.csv"
            molecules = write_tables(table, given.molecules, seed)
            for name in given.tables:
                for system in given.systems:
                    key = f"{name}/{seed}/{system}"
                    if key in results or (system == "chemprop" and given.chemprop is None):
                        continue
                    results[key] = measure(system, table, name, molecules, seed, given)
                    print(key, results[key], flush=True)
                    given.out.write_text(json.dumps(results, indent=1) + "\n")
    print_table(results)


if __name__ == "__main__":
    main()
