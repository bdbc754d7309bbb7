"""Compare the paper's models on the built-in data sets, each run in its own worker process (`rgat demo`)."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import as_completed
from functools import cache
from pathlib import Path
from typing import Any

from rgat.checks import check_count, check_word
from rgat.data import load
from rgat.experiments.folds import FoldedData
from rgat.experiments.records import (
    EXPERIMENT,
    Record,
    describe_data,
    open_experiment,
    read_record,
    write_record,
)
from rgat.experiments.units import Unit, make_unit, train_units
from rgat.training.configuration import VARIANTS
from rgat.workers import WorkerPool

COMMAND = "rgat demo"  # the command that writes these records and may replace them
# The configuration for each data set, the same for all models; chosen on validation data.
_PLANTED: dict[str, Any] = {"max_epochs": 150, "patience": 30, "learning_rate": 0.05}
_KERNEL_L2 = {"kernel_l2_1": 5e-4, "kernel_l2_2": 5e-4}
_MOLECULES = {"hidden_channels": 32, "dense_channels": 32, "batch_size": 64}
SETUPS: dict[str, dict[str, Any]] = {
    "institute": {"max_epochs": 60, "patience": 30, "learning_rate": 0.01, **_KERNEL_L2},
    "molecules": {"max_epochs": 40, "patience": 15, "learning_rate": 0.005, **_MOLECULES},
    "planted-needle": _PLANTED,
    "planted-rivals": _PLANTED,
    "planted-consensus": _PLANTED,
}


@cache
def _load(name: str) -> FoldedData:
    """Load a data set with its own train, valid and test parts as the only split."""
    data = load(name)
    return FoldedData(data, [], {None: (data.train, data.valid, data.test)})


def _unit(name: str, model: str, seed: int) -> Unit:
    selected_on = "validation data: the options once for all models, the epoch in each run"
    config = VARIANTS[model] | SETUPS[name]
    return make_unit("run", name, model, config, seed=seed, split=None, selected_on=selected_on)


def _train(unit: Unit) -> Record:
    (record,) = train_units([unit], _load(unit["data"]))
    if record["status"] == "failed":  # these settings work on these data: the failure belongs to the machine
        raise RuntimeError(f"{unit['model']} on {unit['data']}, seed {unit['seed']}: {record['error']}")
    return record


def _clear(folder: Path) -> None:
    """Delete the records of an earlier call; a folder with anything else is refused."""
    if not folder.exists() or not any(folder.iterdir()):
        return
    path = folder / EXPERIMENT
    if not path.is_file() or not str(read_record(path).get("command", "")).startswith(COMMAND):
        raise ValueError(
            f"{folder} must be new, empty or from an earlier `{COMMAND}`, got something else; "
            "give another folder with --out"
        )
    path.unlink()
    shutil.rmtree(folder / "records", ignore_errors=True)


def compare(
    names: Sequence[str],
    models: Sequence[str] = tuple(VARIANTS),
    seeds: int = 3,
    workers: int | None = None,
    out: Path | None = None,
    on_run: Callable[[Record], None] | None = None,
) -> list[Record]:
    """Train each model on each data set with each seed; return the records in this order.

    There is one worker process per core by default. Records go into ``out``, one experiment per data set, and replace
    those of an earlier call; ``on_run`` is called with each record when its run ends.
    """
    names = list(dict.fromkeys(names))
    for name in names:
        check_word("data set", name, tuple(SETUPS))
    for model in models:
        check_word("model", model, tuple(VARIANTS))
    check_count("seeds", seeds)
    workers = (os.cpu_count() or 1) if workers is None else workers
    check_count("workers", workers)
    if out is not None:
        for name in names:
            _clear(out / name)
            request = {"budget": "custom", "trials": 0, "seeds": seeds, "command": f"{COMMAND} --seeds {seeds}"}
            open_experiment(out / name, describe_data({None: _load(name).data}) | request)
    units = [_unit(name, model, seed) for name in names for model in models for seed in range(seeds)]
    records: dict[int, Record] = {}
    with WorkerPool(min(workers, len(units)) or 1) as pool:
        futures = {pool.submit(_train, unit): number for number, unit in enumerate(units)}
        for future in as_completed(futures):
            record = records[futures[future]] = future.result()
            if out is not None:
                write_record(out / record["data"], record)
            if on_run is not None:
                on_run(record)
    return [records[number] for number in range(len(units))]
