"""Measure whether sets and intervals of a nominal coverage of 90 % cover 90 % of held-out parts, over random splits.

    RGAT_DATA=FOLDER python benchmarks/uncertainty.py
    python benchmarks/uncertainty.py institute consensus --splits 5

Each split trains a small model for a few epochs: the coverage must hold for any model, a bad one included. The labelled
examples of a data set are divided at random into a training, a validation and a test part, or where cross-validation
inside the training part calibrates (`folds`) into two parts. The coverage of one split varies by itself, by the choice
of its test part and of its held-out part, so that its mean over splits is what can be compared with 90 %.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import rgat
from rgat.data import GraphData, NodeData, Target
from rgat.data.molecules.smiles import parse_smiles
from rgat.data.targets import TargetTable, standardise
from rgat.predictor.conformal import Question, hold_out, measure_coverage, regions

QUICK = {"model": "RGCN", "comparison": False}
NODES = QUICK | {"hidden_channels": 8, "max_epochs": 40, "patience": 10}
TARGET = (0.88, 0.92)
Row = dict[str, float]


def shuffled(ids: torch.Tensor, seed: int, *sizes: int) -> list[torch.Tensor]:
    """Return parts of the ids in random order: of these sizes, and the rest."""
    order = ids[torch.randperm(len(ids), generator=torch.Generator().manual_seed(seed))]
    return list(order.split([*sizes, len(ids) - sum(sizes)]))


def nodes(name: str, train: float, valid: float, **options: Any) -> Callable[[int], Row]:
    """Return a function that fits and tests a split of the labelled nodes; without ``valid``, folds calibrate."""
    data = rgat.data.load(name)
    assert isinstance(data, NodeData)
    labelled = torch.cat([data.train, data.valid, data.test])

    def run(seed: int) -> Row:
        sizes = int(train * len(labelled)), int(valid * len(labelled))
        parts = dict(zip(("train", "valid", "test"), shuffled(labelled, seed, *sizes), strict=True))
        model = rgat.fit(dataclasses.replace(data, **parts), seed=seed, **NODES | options)
        labels = data.labels[parts["test"]].numpy()[:, None]
        return tested(model, [data.node_names[node] for node in parts["test"].tolist()], labels)

    return run


def molecules(name: str, train: int, valid: int, test: int, **options: Any) -> Callable[[int], Row]:
    """Return a function that fits and tests a random split of some of the molecules."""
    data = rgat.data.load(name)
    assert isinstance(data, GraphData)

    def run(seed: int) -> Row:
        order = shuffled(torch.arange(len(data.labels)), seed, train, valid)
        parts = {"train": order[0], "valid": order[1], "test": order[2][:test]}
        model = rgat.fit(dataclasses.replace(data, **parts), seed=seed, **QUICK | options)
        labels = data.labels[parts["test"]].numpy()
        return tested(model, [data.graph_names[graph] for graph in parts["test"].tolist()], labels)

    return run


def tested(model: Any, names: list[str], labels: Any) -> Row:
    """Return the coverage of test examples, over all and as the mean over classes."""
    predictions = model.predict(names)
    found = measure_coverage(predictions.regions, np.where(labels < 0, np.nan, labels))["sets"]
    per_class = []
    for region, column in zip(predictions.regions, labels.T, strict=True):
        for each in np.unique(column).tolist():
            if each >= 0 and (column == each).sum() >= 10:
                per_class.append(region.inside[column == each, each].mean())
    far = float((predictions.distance > 1).mean())
    return found | {
        "balanced": float(np.mean(per_class)),
        "far": far,
        "held out": len(model.calibration.held_out.scores),
    }


def log_p(train: int, valid: int, test: int, **options: Any) -> Callable[[int], Row]:
    """Return a function that fits and tests the computed logP of molecules of Tox21, on random splits."""
    from rdkit.Chem.Crippen import MolLogP

    data = rgat.data.load("tox21")
    assert isinstance(data, GraphData)
    values = torch.tensor([[MolLogP(parse_smiles(text, relaxed=True))] for text in data.graph_names]).double()
    fields: dict[str, Any] = {"tasks": ("logP",), "values": values, "labels": torch.zeros_like(values).long()}

    def run(seed: int) -> Row:
        order = shuffled(torch.arange(len(values)), seed, train, valid)
        parts = {"train": order[0], "valid": order[1], "test": order[2][:test]}
        targets = standardise(TargetTable((Target("logP", "regression"),), values), parts["train"])
        model = rgat.fit(dataclasses.replace(data, **fields, **parts, targets=targets), seed=seed, **QUICK | options)
        return model.report["intervals"]["logP"] | {"held out": valid, "far": model.report["far"]}

    return run


def number_of_class(train: float, valid: float, **options: Any) -> Callable[[int], Row]:
    """Return a function that fits and tests noisy numbers of the nodes of a made-up graph, on random splits."""
    data = rgat.data.load("planted-consensus")
    assert isinstance(data, NodeData)
    labelled = torch.cat([data.train, data.valid, data.test])
    noise = torch.randn(len(data.labels), generator=torch.Generator().manual_seed(0)).exp()
    values = torch.where(data.labels < 0, torch.nan, data.labels + noise).double()[:, None]
    fields: dict[str, Any] = {"classes": ("y",), "values": values, "labels": torch.where(data.labels < 0, -1, 0)}

    def run(seed: int) -> Row:
        sizes = int(train * len(labelled)), int(valid * len(labelled))
        parts = dict(zip(("train", "valid", "test"), shuffled(labelled, seed, *sizes), strict=True))
        targets = standardise(TargetTable((Target("y", "regression"),), values), parts["train"])
        model = rgat.fit(dataclasses.replace(data, **fields, **parts, targets=targets), seed=seed, **NODES | options)
        held_out = len(model.calibration.held_out.scores)
        return model.report["intervals"]["y"] | {"held out": held_out, "far": model.report["far"]}

    return run


def numbers() -> Callable[[int], Row]:
    """Return a function that fits a ridge regression to made-up numbers with skewed noise, and tests its intervals."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2000, 10))
    y = x @ rng.normal(size=10) + np.abs(x[:, 0]) * rng.exponential(size=2000)

    def run(seed: int) -> Row:
        order = np.random.default_rng(seed).permutation(2000)
        train, valid, test = order[:300], order[300:400], order[400:]
        weights = np.linalg.solve(x[train].T @ x[train] + np.eye(10), x[train].T @ y[train])
        predictions, truth, questions = (x @ weights)[:, None], y[:, None], [Question("y", slice(0, 1))]
        found = regions(questions, predictions[test], hold_out(questions, predictions[valid], truth[valid]))
        return measure_coverage(found, truth[test])["intervals"]["y"] | {"held out": len(valid)}

    return run


def many_classes() -> Callable[[int], Row]:
    """Return a function that tests sets of 20 classes of unequal frequency, of known noisy probabilities."""
    rng = np.random.default_rng(0)
    frequency = 1 / np.arange(1, 21)

    def run(seed: int) -> Row:
        labels = rng.choice(20, size=3000, p=frequency / frequency.sum())
        logits = rng.normal(size=(3000, 20)) + 2 * np.eye(20)[labels]
        p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        questions, truth = [Question("class", slice(0, 20), tuple(map(str, range(20))))], labels[:, None].astype(float)
        found = regions(questions, p[500:], hold_out(questions, p[:500], truth[:500]))
        return measure_coverage(found, truth[500:])["sets"] | {"held out": 500}

    return run


SETS: dict[str, Callable[[], Callable[[int], Row]]] = {
    "institute": lambda: nodes("institute", 0.5, 0.25),
    "institute, folds": lambda: nodes("institute", 0.6, 0.0),
    "consensus": lambda: nodes("planted-consensus", 0.3, 0.2),
    "aifb, folds": lambda: nodes("aifb", 0.6, 0.0),
    "mutag": lambda: nodes("mutag", 0.3, 0.3, hidden_channels=4, max_epochs=20),
    "tox21": lambda: molecules("tox21", 1000, 400, 1000, hidden_channels=16, dense_channels=16, max_epochs=3),
    "molecules": lambda: molecules("molecules", 120, 80, 120, hidden_channels=16, dense_channels=16, max_epochs=6),
    "logP of tox21": lambda: log_p(1000, 400, 1000, hidden_channels=16, dense_channels=16, max_epochs=3),
    "noisy numbers of consensus": lambda: number_of_class(0.3, 0.2),
    "noisy numbers of consensus, folds": lambda: number_of_class(0.3, 0.0),
    "20 classes (arrays)": many_classes,
    "numbers (arrays)": numbers,
}


def measured(name: str, splits: int) -> Iterator[Row]:
    run = SETS[name]()
    for seed in range(splits):
        yield run(seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", choices=[[], *SETS], help="data sets; all by default")
    parser.add_argument("--splits", type=int, default=20)
    parser.add_argument("--out", type=Path, help="JSON file of all splits")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    print(
        "data set | held out | coverage, % | standard error | classes or width | empty, % | mean of classes, % | far, %"
    )
    records: dict[str, list[Row]] = {}
    outside = []
    for name in arguments.names or SETS:
        started = time.perf_counter()
        rows = records[name] = list(measured(name, arguments.splits))
        mean = {key: float(np.mean([row[key] for row in rows])) for key in rows[0]}
        error = float(np.std([row["covered"] for row in rows], ddof=1) / np.sqrt(len(rows)))
        percent = {key: f"{100 * mean[key]:.1f}" if key in mean else "-" for key in ("empty", "balanced", "far")}
        size = mean["size"] if "size" in mean else mean["width"]
        cells = [name, f"{mean['held out']:.0f}", f"{100 * mean['covered']:.1f}", f"{100 * error:.1f}", f"{size:.2f}"]
        print(" | ".join([*cells, *percent.values(), f"({time.perf_counter() - started:.0f} s)"]), flush=True)
        if not TARGET[0] <= mean["covered"] <= TARGET[1]:
            outside.append(name)
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(records, indent=1))
    print(f"outside {TARGET[0]:.0%} to {TARGET[1]:.0%}: {', '.join(outside) or 'none'}")


if __name__ == "__main__":
    main()
