"""Run the paper's other systems and write records like those of the models."""

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
    Record,
    describe_data,
    has_record,
    open_experiment,
    read_record,
    record_name,
    rounded,
    write_record,
)
from rgat.experiments.units import Unit, complete_record, failure, make_unit, score_entries


def baselines_for(data: NodeData | GraphData) -> dict[str, Callable[..., Outcome]]:
    """Return the systems for node or for graph data, by their names in the tables."""
    return NODE_BASELINES if isinstance(data, NodeData) else GRAPH_BASELINES


def run_baseline(name: str, data: NodeData | GraphData, seed: int = 0, split: int | None = None) -> Record:
    """Train one system once and return the record of the run, even if it failed or diverged.

    ``split`` is the seed of the split that ``data`` has, None where the split is fixed.
    """
    check_word("baseline", name, tuple(baselines_for(data)))
    hashes = data.provenance.get("sha256", {})
    unit = make_unit("run", data.name, name, {}, seed=seed, split=split, data_hashes=hashes)
    started = time.perf_counter()
    try:
        outcome = baselines_for(data)[name](data, seed)
        result: dict[str, Any] = {"config": outcome.config, "selected_on": outcome.selected_on}
        if any(logits.isnan().any() for logits in outcome.logits.values()):
            result |= {"status": "diverged", "error": "the outputs are not numbers"}
        else:
            curve = {"train_loss": rounded(outcome.train_loss), "valid_loss": [], "valid_metric": []}
            result |= {"status": "done", "best_epoch": outcome.best_epoch, "curve": curve}
            result |= score_entries(data, outcome.logits, outcome.scores(data))
            result |= score_entries(data, None, None, "constant_")
    except (RuntimeError, ArithmeticError, MemoryError) as error:
        result = failure(error)
    return complete_record(unit, result, time.perf_counter() - started)


def run_baselines(name: str, data_name: str, seeds: int, out: Path) -> Iterator[Record]:
    """Run a system on a data set, write its records and yield them; runs that have a record are not repeated.

    The name may have any spelling, or be "all". A system runs ``seeds`` times, a deterministic one once, on Tox21 on
    each of the three splits. The folder of the records has the name of the data set and lies in ``out``.
    """
    check_count("seeds", seeds)
    seeds_of_splits: tuple[int | None, ...] = SPLIT_SEEDS if data_name.startswith("tox21") else (None,)
    splits = {split: load(data_name, **({} if split is None else {"split": split})) for split in seeds_of_splits}
    data = splits[seeds_of_splits[0]]
    names = _find_names(name, tuple(baselines_for(data)))
    folder = out / data_name
    budget_and_hashes = {"budget": "custom", "data_hashes": data.provenance.get("sha256", {})}
    open_experiment(folder, describe_data(splits) | budget_and_hashes)
    for name in names:
        for split, data in splits.items():
            for seed in range(1 if name in DETERMINISTIC else seeds):
                unit: Unit = {"kind": "run", "model": name, "split": split, "seed": seed}
                if not has_record(folder, unit):
                    write_record(folder, run_baseline(name, data, seed, split))
                yield read_record(folder / "records" / record_name(unit))


def _find_names(name: str, known: tuple[str, ...]) -> tuple[str, ...]:
    """Return the systems that a name stands for; spelling is free: "kernel-svm" is the kernel SVM."""
    if name == "all":
        return known
    spellings = {_letters(word): word for word in known}
    if _letters(name) not in spellings:
        check_word("baseline", name, (*known, "all"))
    return (spellings[_letters(name)],)


def is_baseline(name: str) -> bool:
    """Return whether a name is that of a system, in any spelling."""
    return _letters(name) in {_letters(word) for word in (*NODE_BASELINES, *GRAPH_BASELINES)}


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
