"""Train several models on several data sets with several seeds, each run in a worker process of its own."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import as_completed
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rgat.checks import check_count, check_word
from rgat.data import GraphData, NodeData, load
from rgat.experiments.records import (
    EXPERIMENT,
    Record,
    environment,
    open_experiment,
    pack_array,
    read_record,
    rounded,
    write_record,
)
from rgat.training import Settings, fit, graph_logits, roc_auc_per_task
from rgat.training.configuration import VARIANTS, build_model
from rgat.workers import WorkerPool

COMMAND = "rgat demo"  # makes these records, and may replace them


@dataclass(frozen=True)
class Setup:
    """Model options and training settings for one data set, the same for all models; chosen on validation data."""

    options: dict[str, Any]
    settings: Settings


SETUPS = {
    "institute": Setup({}, Settings(max_epochs=60, kernel_l2=(5e-4, 5e-4))),
    "molecules": Setup(
        {"hidden_channels": 32, "dense_channels": 32}, Settings(max_epochs=40, patience=15, learning_rate=0.005)
    ),
    "planted-needle": Setup({}, Settings(max_epochs=150, learning_rate=0.05)),
    "planted-rivals": Setup({}, Settings(max_epochs=150, learning_rate=0.05)),
    "planted-consensus": Setup({}, Settings(max_epochs=150, learning_rate=0.05)),
}


@cache
def _load(name: str) -> NodeData | GraphData:
    return load(name)


def _train(name: str, model: str, seed: int) -> Record:
    """One run as a record."""
    data, setup = _load(name), SETUPS[name]
    built = build_model(data, seed, **VARIANTS[model], **setup.options)
    result = fit(built, data, setup.settings, seed)
    record: Record = {
        "kind": "run",
        "data": name,
        "budget": "custom",
        "model": model,
        "setting": None,
        "config": VARIANTS[model] | setup.options | asdict(setup.settings),
        "seed": seed,
        "split": None,
        "selected_on": "validation data: the options once for all models, the epoch in each run",
        "status": "done" if result.best_epoch else "diverged",
        "best_epoch": result.best_epoch,
        "curve": {
            key: list(rounded(getattr(epoch, key) for epoch in result.curve))
            for key in ("train_loss", "valid_loss", "valid_metric")
        },
        "scores": result.scores,
        "constant_scores": None if model == "RGCN" else result.constant_scores,
        "seconds": result.seconds,
        **environment(),
    }
    if not result.best_epoch:
        return record | {"scores": None, "constant_scores": None, "error": "the loss was not a number from the start"}
    record |= _on_test(built, data, constant=False)
    return record if model == "RGCN" else record | _on_test(built, data, constant=True)


@torch.no_grad()
def _on_test(model: nn.Module, data: NodeData | GraphData, constant: bool) -> Record:
    """Outputs and scores of the tasks on the test part, as they stand in a record."""
    prefix = "constant_" if constant else ""
    if isinstance(data, NodeData):
        logits: Tensor = model(data.x, data.graph, constant_attention=constant)[data.test]
        return {f"{prefix}outputs": {"test": pack_array(logits.numpy())}}
    logits = graph_logits(model, data.graphs, data.test, constant)
    scores = dict(zip(data.tasks, roc_auc_per_task(logits, data.labels[data.test]), strict=True))
    return {f"{prefix}outputs": {"test": pack_array(logits.numpy())}, f"{prefix}task_scores": {"test": scores}}


def _describe(name: str, seeds: int) -> dict[str, Any]:
    """The experiment of one data set."""
    data = _load(name)
    asked = {"data": name, "budget": "custom", "trials": 0, "seeds": seeds, "command": f"{COMMAND} --seeds {seeds}"}
    labels = data.labels[data.test]
    if isinstance(data, GraphData):
        tests = {"": labels.tolist()}
        return asked | {"task": "graph", "metric": "mean ROC-AUC", "tasks": list(data.tasks), "test_labels": tests}
    largest = data.labels[data.train].bincount().argmax()
    return asked | {
        "task": "node",
        "metric": "accuracy",
        "classes": list(data.classes),
        "majority": float((labels == largest).double().mean()),
        "test_labels": {"": labels.tolist()},
    }


def _clear(folder: Path) -> None:
    """Make room for new records where earlier ones of the same command are, and only there."""
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
    """Return the records of all runs, ordered by data set, model and seed, whatever the number of workers.

    Args:
        names: data sets, of those in ``SETUPS``.
        models: of those in ``VARIANTS``.
        seeds: how many; seed ``s`` draws the parameters, dropout and the order of batches.
        workers: processes; by default one per core.
        out: folder to write the records to, an experiment for each data set; those of an earlier call are replaced.
        on_run: called after every run, in the order in which they end.
    """
    names = list(dict.fromkeys(names))
    for name in names:
        check_word("data set", name, tuple(SETUPS))
    for model in models:
        check_word("model", model, tuple(VARIANTS))
    check_count("seeds", seeds)
    jobs = [(name, model, seed) for name in names for model in models for seed in range(seeds)]
    workers = (os.cpu_count() or 1) if workers is None else workers
    check_count("workers", workers)
    if out is not None:
        for name in names:
            _clear(out / name)
            open_experiment(out / name, _describe(name, seeds))
    runs = {}
    with WorkerPool(min(workers, len(jobs)) or 1, torch.set_num_threads, 1) as pool:  # one run per core
        futures = {pool.submit(_train, *job): job for job in jobs}
        for future in as_completed(futures):
            run = runs[futures[future]] = future.result()
            if out is not None:
                write_record(out / run["data"], run)
            if on_run is not None:
                on_run(run)
    return [runs[job] for job in jobs]
