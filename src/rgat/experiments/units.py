"""Units of work: a search trial or a final run, described in full by plain values; and the records they become.

A unit is what its record will be before the work is done. It can travel as JSON, and its record depends on it and on
the data alone: not on the worker, nor on the number of threads.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rgat.data import GraphData, NodeData
from rgat.data.records import PARTS
from rgat.experiments.division import Division
from rgat.experiments.records import Record, environment, pack_array, rounded
from rgat.experiments.variants import build_model
from rgat.training import Result, Settings, fit, roc_auc_per_task

Unit = dict[str, Any]
UNKNOWN: dict[str, dict[str, Any]] = {  # what a record says of work that did not end well
    "trial": {"objective": None, "tie_breaker": None, "folds": []},
    "run": {"best_epoch": None, "curve": None, "scores": None, "constant_scores": None},
}
PER_LAYER = ("kernel_l2", "attention_l2")  # in a flat configuration as kernel_l2_1, kernel_l2_2, ...


def read_config(config: dict[str, Any]) -> tuple[dict[str, Any], Settings]:
    """Options of the model and settings of training, from one flat configuration."""
    options = dict(config)
    settings = {field.name: options.pop(field.name) for field in dataclasses.fields(Settings) if field.name in options}
    for name in PER_LAYER:
        settings[name] = tuple(options.pop(f"{name}_{layer}", 0.0) for layer in (1, 2))
    return options, Settings(**settings)


def train_many(units: Iterable[Unit], division: Division, device: str = "cpu") -> Iterator[Record]:
    """Do the work of each unit and yield its record as soon as it is there."""
    if device != "cpu" and division.task == "graph":
        raise ValueError(f'`device` must be "cpu" for sets of graphs, whose batches are made there, got "{device}"')
    for unit in units:
        started = time.perf_counter()
        try:
            with _one_thread():
                found = _run_trial(unit, division, device) if unit["kind"] == "trial" else _run(unit, division, device)
        except Exception as error:  # whatever it is, it is found again in the record, and the others go on
            found = {"status": "failed", "error": f"{type(error).__name__}: {error}"}
        yield unit | UNKNOWN[unit["kind"]] | found | {"seconds": time.perf_counter() - started} | environment(device)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Sums must not depend on the number of threads; many units at once use the other cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _train(config: dict[str, Any], data: NodeData | GraphData, seed: int, device: str) -> tuple[nn.Module, Result]:
    options, settings = read_config(config)
    model = build_model(data, seed, **options).to(device)
    return model, fit(model, data, settings, seed)


def _place(data: NodeData | GraphData, device: str) -> NodeData | GraphData:
    """Data of nodes on the device of the model."""
    if isinstance(data, GraphData) or device == "cpu":
        return data
    moved = {name: getattr(data, name).to(device) for name in ("labels", *PARTS)}
    return dataclasses.replace(
        data, graph=data.graph.to(device), x=None if data.x is None else data.x.to(device), **moved
    )


def fold_seed(trial: int, fold: int) -> int:
    """The seed of one training in a search: another one for each, and none of those of final runs."""
    return 1000 * (trial + 1) + fold


def _run_trial(unit: Unit, division: Division, device: str) -> dict[str, Any]:
    """Train on each fold; the objective is the mean of the validation metric at the folds' best epochs."""
    folds: list[dict[str, Any]] = []
    for number in unit["folds"]:
        data = _place(division.fold(number), device)
        _, result = _train(unit["config"], data, fold_seed(unit["trial"], number), device)
        if result.best_epoch == 0:
            return {"status": "diverged", "error": f"no finite validation loss in fold {number}", "folds": folds}
        best = result.curve[result.best_epoch - 1]
        folds.append(
            {
                "best_epoch": result.best_epoch,
                "valid_metric": best.valid_metric,
                "valid_loss": best.valid_loss,
                "curve": _curve(result),
            }
        )
    means = [float(np.mean([fold[name] for fold in folds])) for name in ("valid_metric", "valid_loss")]
    return {"status": "done", "objective": means[0], "tie_breaker": means[1], "folds": folds}


def _curve(result: Result) -> dict[str, list[float]]:
    names = ("train_loss", "valid_loss", "valid_metric")
    return {name: list(rounded(getattr(epoch, name) for epoch in result.curve)) for name in names}


def _run(unit: Unit, division: Division, device: str) -> dict[str, Any]:
    """Train once and report on the test part, with attention and with constant attention."""
    data = _place(division.split(unit["split"]), device)
    model, result = _train(unit["config"], data, unit["seed"], device)
    found: dict[str, Any] = {"best_epoch": result.best_epoch, "curve": _curve(result)}
    config = unit["config"]
    cut_short = config["patience"] is None and result.best_epoch < config["max_epochs"]
    with torch.no_grad():
        logits = {flag: {part: _logits(model, data, part, flag) for part in PARTS} for flag in (False, True)}
    if cut_short or result.best_epoch == 0 or not all(values.isfinite().all() for values in logits[False].values()):
        return found | {"status": "diverged", "error": f"no finite loss after epoch {result.best_epoch}"}
    found["status"] = "done"
    for prefix, flag, scores in (("", False, result.scores), ("constant_", True, result.constant_scores)):
        absent = flag and config.get("layer") == "rgcn"  # its attention is constant anyway
        found[f"{prefix}scores"] = None if absent else scores
        found[f"{prefix}outputs"] = None if absent else {"test": pack_array(logits[flag]["test"].cpu().numpy())}
        if isinstance(data, GraphData):
            found[f"{prefix}task_scores"] = None if absent else _task_scores(data, logits[flag])
    return found


def _logits(model: nn.Module, data: NodeData | GraphData, part: str, constant_attention: bool) -> Tensor:
    ids = getattr(data, part)
    if isinstance(data, GraphData):
        graph_logits: Tensor = model(*data.graphs.batch(ids), constant_attention=constant_attention)
        return graph_logits.float()
    graph = copy.copy(data.graph)
    graph.validate = False  # a diverged model is a finding
    node_logits: Tensor = model(data.x, graph, constant_attention=constant_attention)
    return node_logits[ids].float()


def _task_scores(data: GraphData, logits: dict[str, Tensor]) -> dict[str, dict[str, float | None]]:
    """ROC-AUC of each task in each part; null where a part has one class only."""
    table: dict[str, dict[str, float | None]] = {}
    for part in PARTS:
        values = roc_auc_per_task(logits[part], data.labels[getattr(data, part)])
        table[part] = {
            task: None if math.isnan(value) else value for task, value in zip(data.tasks, values, strict=True)
        }
    return table
