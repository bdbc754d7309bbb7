"""Units of work: a search trial or a final run, described in full by plain values; and the records they become.

A unit is what its record will be before the work is done. It can travel as JSON, and its record depends on it and on
the data alone: not on the worker, nor on the number of threads.
"""

from __future__ import annotations

import copy
import json
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rgat.data import GraphData, NodeData
from rgat.data.dataset import PARTS
from rgat.experiments.folds import Division
from rgat.experiments.records import Record, environment, pack_array, rounded
from rgat.experiments.variants import build_variant
from rgat.training import Result, fit_many, graph_logits, roc_auc_per_task
from rgat.training.capture import training_on
from rgat.training.configuration import split_config

Unit = dict[str, Any]
UNKNOWN: dict[str, dict[str, Any]] = {  # what a record says of work that did not end well
    "trial": {"objective": None, "tie_breaker": None, "folds": []},
    "run": {"best_epoch": None, "curve": None, "scores": None, "constant_scores": None},
}


def together(units: Iterable[Unit]) -> list[list[Unit]]:
    """Units whose models train as one stack, side by side: final runs say which seeds they share one with."""
    groups: dict[str, list[Unit]] = {}
    for number, unit in enumerate(units):
        shared = {key: unit.get(key) for key in ("model", "setting", "split", "stack", "config")}
        key = json.dumps(shared) if unit.get("stack") else str(number)
        groups.setdefault(key, []).append(unit)
    return list(groups.values())


def train_many(units: Iterable[Unit], division: Division, device: str = "cpu") -> Iterator[Record]:
    """Do the work of the units and yield each record as soon as it is there."""
    for group in together(units):
        started = time.perf_counter()
        trial = group[0]["kind"] == "trial"
        try:
            with _one_thread(), training_on(torch.device(device)):
                found = [_run_trial(group[0], division, device)] if trial else _run(group, division, device)
        except Exception as error:  # whatever it is, it is found again in the record, and the others go on
            found = [{"status": "failed", "error": f"{type(error).__name__}: {error}"}] * len(group)
        if device != "cpu":
            torch.cuda.empty_cache()  # other workers need it
        seconds = (time.perf_counter() - started) / len(group)
        for unit, one in zip(group, found, strict=True):
            yield unit | UNKNOWN[unit["kind"]] | one | {"seconds": seconds} | environment(device)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Sums must not depend on the number of threads; many units at once use the other cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _train(
    config: dict[str, Any], datas: Sequence[NodeData | GraphData], seeds: Sequence[int], device: str
) -> tuple[list[nn.Module], list[Result]]:
    """One model for each data set and seed, as one stack where they can be."""
    options, settings = split_config(config)
    models: list[nn.Module] = [
        build_variant(data, seed, **options).to(device) for data, seed in zip(datas, seeds, strict=True)
    ]
    return models, fit_many(models, datas, settings, seeds)


def fold_seed(trial: int, fold: int) -> int:
    """The seed of one training in a search: another one for each, and none of those of final runs."""
    return 1000 * (trial + 1) + fold


def _run_trial(unit: Unit, division: Division, device: str) -> dict[str, Any]:
    """Train on each fold; the objective is the mean of the validation metric at the folds' best epochs."""
    folds: list[dict[str, Any]] = []
    seeds = [fold_seed(unit["trial"], number) for number in unit["folds"]]
    _, results = _train(unit["config"], [division.fold(number) for number in unit["folds"]], seeds, device)
    for number, result in zip(unit["folds"], results, strict=True):
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


def _run(group: Sequence[Unit], division: Division, device: str) -> list[dict[str, Any]]:
    """Train a stack of seeds and report on those asked for.

    All seeds of the stack are trained, even if some of their records are there: rounding may depend on the neighbours.
    """
    unit = group[0]
    data, seeds = division.split(unit["split"]), unit.get("stack") or [unit["seed"]]
    models, results = _train(unit["config"], [data] * len(seeds), seeds, device)
    places = [seeds.index(one["seed"]) for one in group]
    return [_found(unit["config"], models[place], results[place], data) for place in places]


def _found(config: dict[str, Any], model: nn.Module, result: Result, data: NodeData | GraphData) -> dict[str, Any]:
    """What a model does on the test part, with attention and with constant attention."""
    found: dict[str, Any] = {"best_epoch": result.best_epoch, "curve": _curve(result)}
    cut_short = config["patience"] is None and result.best_epoch < config["max_epochs"]
    with torch.no_grad():
        logits = {flag: _logits(model, data, flag) for flag in (False, True)}
    if cut_short or result.best_epoch == 0 or not all(values.isfinite().all() for values in logits[False].values()):
        return found | {"status": "diverged", "error": f"no finite loss after epoch {result.best_epoch}"}
    found["status"] = "done"
    for prefix, flag, scores in (("", False, result.scores), ("constant_", True, result.constant_scores)):
        absent = flag and config.get("layer") in ("rgcn", "ggnn")  # without attention nothing can be made constant
        found[f"{prefix}scores"] = None if absent else scores
        found[f"{prefix}outputs"] = None if absent else {"test": pack_array(logits[flag]["test"].numpy())}
        if isinstance(data, GraphData):
            found[f"{prefix}task_scores"] = None if absent else _task_scores(data, logits[flag])
    return found


def _logits(model: nn.Module, data: NodeData | GraphData, constant_attention: bool) -> dict[str, Tensor]:
    """Those of each part, on the CPU."""
    ids = {part: getattr(data, part) for part in PARTS}
    if isinstance(data, GraphData):
        return {part: graph_logits(model, data.graphs, own, constant_attention) for part, own in ids.items()}
    device = next(model.parameters()).device
    graph = copy.copy(data.graph) if data.graph.device == device else data.graph.to(device)
    graph.validate = False  # a diverged model is a finding
    x = None if data.x is None else data.x.to(device)
    logits = model(x, graph, constant_attention=constant_attention).float().cpu()
    return {part: logits[own] for part, own in ids.items()}


def _task_scores(data: GraphData, logits: dict[str, Tensor]) -> dict[str, dict[str, float | None]]:
    """ROC-AUC of each task in each part; null where a part has one class only."""
    table: dict[str, dict[str, float | None]] = {}
    for part in PARTS:
        values = roc_auc_per_task(logits[part], data.labels[getattr(data, part)])
        table[part] = {
            task: None if math.isnan(value) else value for task, value in zip(data.tasks, values, strict=True)
        }
    return table
