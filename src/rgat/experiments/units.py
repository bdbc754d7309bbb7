"""Units of work: train the models of a search trial or a final run, and return its record.

A unit is a record without its results. It is plain JSON, and its record depends only on it and on the data: not on the
worker, nor on the number of threads.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rgat.data import MISSING, GraphData, NodeData
from rgat.data.dataset import PARTS
from rgat.experiments.folds import FoldedData, decode
from rgat.experiments.records import Record, environment, pack_array, rounded
from rgat.experiments.variants import build_variant
from rgat.training import Result, fit_many, graph_logits, roc_auc_per_task
from rgat.training.capture import training_on
from rgat.training.configuration import split_config
from rgat.training.metric import confusion_matrix, score_classes
from rgat.training.task import node_logits

Unit = dict[str, Any]
NO_RESULT: dict[str, dict[str, Any]] = {  # the results in a record of a unit that failed or diverged
    "trial": {"objective": None, "tie_breaker": None, "folds": []},
    "run": {"best_epoch": None, "curve": None, "scores": None, "constant_scores": None},
}


def make_unit(kind: str, data: str, model: str, config: dict[str, Any], **more: Any) -> Unit:
    """Return a unit: the entries of a record that are known before it runs; ``more`` may replace the defaults."""
    return {"kind": kind, "data": data, "budget": "custom", "model": model, "setting": None, "config": config} | more


def group_by_stack(units: Iterable[Unit]) -> list[list[Unit]]:
    """Group the units whose models train as one stack: final runs list the seeds of theirs."""
    groups: dict[str, list[Unit]] = {}
    for number, unit in enumerate(units):
        shared = {key: unit.get(key) for key in ("model", "setting", "split", "stack", "config")}
        key = json.dumps(shared) if unit.get("stack") else str(number)
        groups.setdefault(key, []).append(unit)
    return list(groups.values())


def train_units(units: Iterable[Unit], data: FoldedData, device: str = "cpu") -> Iterator[Record]:
    """Train the models of the units and yield each record when it is complete."""
    for group in group_by_stack(units):
        started = time.perf_counter()
        try:
            with _one_thread(), training_on(torch.device(device)):
                is_trial = group[0]["kind"] == "trial"
                results = [_run_trial(group[0], data, device)] if is_trial else _run_stack(group, data, device)
        except Exception as error:  # of any kind: the record has it, and the other units go on
            results = [failure(error)] * len(group)
        if device != "cpu":
            torch.cuda.empty_cache()  # other processes need the memory
        seconds = (time.perf_counter() - started) / len(group)
        for unit, result in zip(group, results, strict=True):
            yield complete_record(unit, result, seconds, device)


_decode = lru_cache(maxsize=1)(decode)  # a worker gets the same data with each stack


def run_encoded(group: Sequence[Unit], content: bytes, device: str) -> list[Record]:
    """Run the units of one stack in a worker; the content is that of :func:`rgat.experiments.folds.encode`."""
    return list(train_units(group, _decode(content), device))


def failure(error: Exception) -> dict[str, Any]:
    """Return the results in the record of a unit that raised an error."""
    return {"status": "failed", "error": f"{type(error).__name__}: {error}"}


def complete_record(unit: Unit, result: dict[str, Any], seconds: float, device: str = "cpu") -> Record:
    """Return the record of a unit: its own entries, its results, the time and the environment."""
    return unit | NO_RESULT[unit["kind"]] | result | {"seconds": seconds} | environment(device)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Run on one thread: sums must not depend on the number of threads, and other units use the other cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _train(
    config: dict[str, Any], datas: Sequence[NodeData | GraphData], seeds: Sequence[int], device: str
) -> tuple[list[nn.Module], list[Result]]:
    """Train one model for each data set and seed, as one stack where possible."""
    options, settings = split_config(config)
    models: list[nn.Module] = [
        build_variant(data, seed, **options).to(device) for data, seed in zip(datas, seeds, strict=True)
    ]
    return models, fit_many(models, datas, settings, seeds)


def fold_seed(trial: int, fold: int) -> int:
    """Return the seed of one training in a search: unique, and never the seed of a final run."""
    return 1000 * (trial + 1) + fold


def _run_trial(unit: Unit, data: FoldedData, device: str) -> dict[str, Any]:
    """Train on each fold; the objective is the mean validation metric at the best epochs."""
    folds: list[dict[str, Any]] = []
    seeds = [fold_seed(unit["trial"], number) for number in unit["folds"]]
    _, results = _train(unit["config"], [data.fold(number) for number in unit["folds"]], seeds, device)
    for number, result in zip(unit["folds"], results, strict=True):
        if result.best_epoch == 0:
            return {"status": "diverged", "error": f"no finite validation loss in fold {number}", "folds": folds}
        best = result.curve[result.best_epoch - 1]
        metric, loss = best.valid_metric, best.valid_loss
        fold = {"best_epoch": result.best_epoch, "valid_metric": metric, "valid_loss": loss, "curve": _curve(result)}
        folds.append(fold)
    objective, tie_breaker = (float(np.mean([fold[name] for fold in folds])) for name in ("valid_metric", "valid_loss"))
    return {"status": "done", "objective": objective, "tie_breaker": tie_breaker, "folds": folds}


def _curve(result: Result) -> dict[str, list[float]]:
    names = ("train_loss", "valid_loss", "valid_metric")
    return {name: rounded(getattr(epoch, name) for epoch in result.curve) for name in names}


def _run_stack(group: Sequence[Unit], folded: FoldedData, device: str) -> list[dict[str, Any]]:
    """Train a stack of seeds and return the results of the units in the group.

    All seeds of the stack are trained, even if some have a record: rounding may depend on the other members.
    """
    unit = group[0]
    data, seeds = folded.split(unit["split"]), unit.get("stack") or [unit["seed"]]
    models, results = _train(unit["config"], [data] * len(seeds), seeds, device)
    members = [seeds.index(unit["seed"]) for unit in group]
    return [_evaluate(unit["config"], models[member], results[member], data) for member in members]


def _evaluate(config: dict[str, Any], model: nn.Module, result: Result, data: NodeData | GraphData) -> dict[str, Any]:
    """Evaluate a trained model with attention and with constant attention, where it has attention."""
    entries: dict[str, Any] = {"best_epoch": result.best_epoch, "curve": _curve(result)}
    cut_short = config["patience"] is None and result.best_epoch < config["max_epochs"]
    logits = _part_logits(model, data, constant_attention=False)
    constant_logits = _part_logits(model, data, constant_attention=True)
    if cut_short or result.best_epoch == 0 or not all(values.isfinite().all() for values in logits.values()):
        return entries | {"status": "diverged", "error": f"no finite loss after epoch {result.best_epoch}"}
    entries |= {"status": "done"} | score_entries(data, logits, result.scores)
    if config.get("layer") in ("rgcn", "ggnn"):  # without attention
        return entries | score_entries(data, None, None, "constant_")
    return entries | score_entries(data, constant_logits, result.constant_scores, "constant_")


def score_entries(
    data: NodeData | GraphData,
    logits: Mapping[str, Tensor] | None,
    scores: Mapping[str, float] | None,
    prefix: str = "",
) -> dict[str, Any]:
    """Return scores, test outputs and the scores of each task or class as a record has them; null without logits.

    Logits and scores are given by part. The prefix is "constant_" for the evaluation with constant attention.
    """
    outputs = None if logits is None else {"test": pack_array(logits["test"].numpy())}
    entries: dict[str, Any] = {f"{prefix}scores": scores, f"{prefix}outputs": outputs}
    if isinstance(data, NodeData) and logits is not None and not prefix:
        known = data.labels[data.test] != MISSING
        labels, predicted = data.labels[data.test][known], logits["test"].argmax(-1)[known]
        entries["class_scores"] = {"test": score_classes(confusion_matrix(labels, predicted, len(data.classes)))}
    if isinstance(data, GraphData):
        entries[f"{prefix}task_scores"] = (
            None
            if logits is None
            else {
                part: dict(zip(data.tasks, roc_auc_per_task(values, data.labels[getattr(data, part)]), strict=True))
                for part, values in logits.items()
            }
        )
    return entries


def _part_logits(model: nn.Module, data: NodeData | GraphData, constant_attention: bool) -> dict[str, Tensor]:
    """Return the logits of each part, on the CPU."""
    ids = {part: getattr(data, part) for part in PARTS}
    if isinstance(data, GraphData):
        return {part: graph_logits(model, data.graphs, rows, constant_attention) for part, rows in ids.items()}
    logits = node_logits(model, data, constant_attention)
    return {part: logits[rows] for part, rows in ids.items()}
