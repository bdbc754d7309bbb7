"""Runs of the paper's other systems, as records like those of the models."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rgat.baselines import DETERMINISTIC, GRAPH_BASELINES, NODE_BASELINES, Outcome
from rgat.checks import check_count, check_word
from rgat.data import GraphData, NodeData, load
from rgat.data.benchmarks.registry import SPLIT_SEEDS
from rgat.experiments.records import (
    EXPERIMENT,
    SAME_DATA,
    Record,
    environment,
    has_record,
    open_experiment,
    pack_array,
    read_experiment,
    read_record,
    record_name,
    rounded,
    write_record,
)
from rgat.training import roc_auc_per_task


def baselines_for(data: NodeData | GraphData) -> dict[str, Callable[..., Outcome]]:
    """The systems for this kind of data, by their names in the tables."""
    return NODE_BASELINES if isinstance(data, NodeData) else GRAPH_BASELINES


def run_baseline(
    name: str,
    data: NodeData | GraphData,
    seed: int = 0,
    split: int | None = None,
    budget: str = "custom",
    **settings: Any,
) -> Record:
    """Train one system once and return the record of the run, also of one that did not end well.

    Args:
        name: of the system, as in the tables.
        data: what to learn from, divided as ``split`` says.
        seed: of the run.
        split: seed of the data's split, for the record; None where it is fixed.
        budget: of the experiment, for the record.
        **settings: of the system, in place of its usual ones.
    """
    check_word("baseline", name, tuple(baselines_for(data)))
    record: Record = {"kind": "run", "data": data.name, "budget": budget, "model": name, "setting": None}
    record |= {"seed": seed, "split": split, "data_hashes": data.provenance.get("sha256", {}), **environment()}
    started = time.perf_counter()
    try:
        outcome = baselines_for(data)[name](data, seed, **settings)
        found = _found(data, outcome)
    except (RuntimeError, ArithmeticError, MemoryError) as error:
        found = {"status": "failed", "error": f"{type(error).__name__}: {error}", "config": settings, "scores": None}
    return record | {"constant_scores": None} | found | {"seconds": time.perf_counter() - started}


def _found(data: NodeData | GraphData, outcome: Outcome) -> dict[str, Any]:
    """What a record says of an outcome."""
    found: dict[str, Any] = {"config": outcome.config, "selected_on": outcome.selected_on}
    if any(logits.isnan().any() for logits in outcome.logits.values()):
        return found | {"status": "diverged", "error": "outputs are not numbers", "scores": None}
    found |= {
        "status": "done",
        "best_epoch": outcome.best_epoch,
        "curve": {"train_loss": list(rounded(outcome.train_loss)), "valid_loss": [], "valid_metric": []},
        "scores": outcome.scores(data),
        "outputs": {"test": pack_array(outcome.logits["test"].numpy())},
        "constant_outputs": None,
    }
    if isinstance(data, GraphData):
        found |= {"task_scores": _task_scores(data, outcome), "constant_task_scores": None}
    return found


def _task_scores(data: GraphData, outcome: Outcome) -> dict[str, dict[str, float]]:
    return {
        part: dict(zip(data.tasks, roc_auc_per_task(logits, data.labels[getattr(data, part)]), strict=True))
        for part, logits in outcome.logits.items()
    }


def run_baselines(name: str, data_name: str, seeds: int, out: Path) -> Iterator[Record]:
    """Yield the records of a system on a data set, after writing them; those that are there are not made again.

    A system that no seed can change is run once, with seed 0; on Tox21 every system is run on each of the three splits.

    Args:
        name: of the system, in any spelling of its name in the tables, or "all".
        data_name: of the data set.
        seeds: how many runs of each system (on each split).
        out: the experiment is the folder at this place that has the name of the data set.
    """
    check_count("seeds", seeds)
    splits: tuple[int | None, ...] = SPLIT_SEEDS if data_name.startswith("tox21") else (None,)
    parts = {split: load(data_name, **({} if split is None else {"split": split})) for split in splits}
    names = _named(name, tuple(baselines_for(parts[splits[0]])))
    folder = out / data_name
    _open(folder, parts)
    for name in names:
        for split, data in parts.items():
            for seed in range(1 if name in DETERMINISTIC else seeds):
                unit: Record = {"kind": "run", "model": name, "split": split, "seed": seed}
                if not has_record(folder, unit):
                    write_record(folder, run_baseline(name, data, seed, split))
                yield read_record(folder / "records" / record_name(unit))


def _named(name: str, known: tuple[str, ...]) -> tuple[str, ...]:
    """The systems that a word of the command line means: "kernel-svm" is the kernel SVM."""
    if name == "all":
        return known
    spellings = {_letters(word): word for word in known}
    if _letters(name) not in spellings:
        check_word("baseline", name, (*known, "all"))
    return (spellings[_letters(name)],)


def is_baseline(name: str) -> bool:
    """Whether this is the name of a system, in any spelling."""
    return _letters(name) in {_letters(word) for word in (*NODE_BASELINES, *GRAPH_BASELINES)}


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _open(folder: Path, parts: dict[int | None, NodeData | GraphData]) -> None:
    """Make the experiment's folder, or check that it is about the same data."""
    description = describe(parts)
    if (folder / EXPERIMENT).exists():
        found = read_experiment(folder).description
        description = found | {key: description[key] for key in SAME_DATA}
    open_experiment(folder, description)


def describe(parts: dict[int | None, NodeData | GraphData]) -> dict[str, Any]:
    """What ``experiment.json`` says of data under each of its splits."""
    data = next(iter(parts.values()))
    description: dict[str, Any] = {
        "data": data.name,
        "budget": "custom",
        "data_hashes": data.provenance.get("sha256", {}),
        "test_labels": {
            "" if split is None else str(split): part.labels[part.test].tolist() for split, part in parts.items()
        },
    }
    if isinstance(data, GraphData):
        return description | {"task": "graph", "metric": "mean ROC-AUC", "tasks": list(data.tasks)}
    largest = data.labels[data.train].mode().values
    majority = float((data.labels[data.test] == largest).double().mean())
    return description | {"task": "node", "metric": "accuracy", "classes": list(data.classes), "majority": majority}
