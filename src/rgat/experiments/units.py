"""Units of work: train the models of a search trial or a final run, and return its record.

A unit is a record without its results. It is plain JSON, and its record depends only on it and on the data: not on the
worker, nor on the number of threads.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import nll_loss

from rgat.baselines import DETERMINISTIC, GRAPH_BASELINES, NODE_BASELINES, Outcome
from rgat.data import MISSING, GraphData, NodeData
from rgat.data.dataset import PARTS
from rgat.experiments.folds import FoldedData, decode
from rgat.experiments.inputs import select_inputs, without_inputs
from rgat.experiments.records import Record, environment, pack_array, rounded
from rgat.experiments.request import CANDIDATES
from rgat.experiments.variants import build_variant
from rgat.training import Epoch, Result, accuracy, fit_many, graph_logits, mean_roc_auc, roc_auc_per_task
from rgat.training.capture import training_on
from rgat.training.configuration import split_config
from rgat.training.metric import confusion_matrix, score_classes
from rgat.training.search import common_epoch
from rgat.training.task import node_logits

Unit = dict[str, Any]
OnEpoch = Callable[[int, Epoch], None]
NO_RESULT: dict[str, dict[str, Any]] = {  # the results in a record of a unit that failed or diverged
    "trial": {"objective": None, "tie_breaker": None, "folds": []},
    "run": {"best_epoch": None, "curve": None, "scores": None, "constant_scores": None},
    "declaration": {},
}
LEAST_LOG = -60.0  # of a stored log-probability, which has 16 bits
MEMBER_SEED = 1000  # seeds of an ensemble's members differ by this much, more than the number of its runs


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


class OutOfTimeError(Exception):
    """Raised in a training that goes on after its time; it leaves no record."""


def train_units(
    units: Iterable[Unit], data: FoldedData, device: str = "cpu", until: float | None = None
) -> Iterator[Record]:
    """Train the models of the units and yield each record when it is complete.

    At ``until``, a time of ``time.monotonic``, it stops; the trial that is in training then has no record.
    """

    def on_epoch(number: int, epoch: Epoch) -> None:
        if until is not None and time.monotonic() >= until:
            raise OutOfTimeError

    for group in group_by_stack(units):
        started = time.perf_counter()
        try:
            with _one_thread(), training_on(torch.device(device)):
                results = _run_group(group, data, device, on_epoch)
        except OutOfTimeError:
            return
        except Exception as error:  # of any kind: the record has it, and the other units go on
            results = [failure(error)] * len(group)
        if device != "cpu":
            torch.cuda.empty_cache()  # other processes need the memory
        seconds = (time.perf_counter() - started) / len(group)
        for unit, result in zip(group, results, strict=True):
            yield complete_record(unit, result, seconds, device)


def _run_group(group: Sequence[Unit], data: FoldedData, device: str, on_epoch: OnEpoch) -> list[dict[str, Any]]:
    if group[0]["model"] in CANDIDATES:
        return [_run_candidate(unit, data) for unit in group]
    if group[0]["kind"] == "trial":
        return [_run_trial(group[0], data, device, on_epoch)]
    if group[0]["kind"] == "declaration":  # it says what the final runs will be; there is nothing to train
        return [{"status": "done"}]
    return _run_ensembles(group, data, device) if group[0].get("members") else _run_stack(group, data, device)


_decode = lru_cache(maxsize=1)(decode)  # a worker gets the same data with each stack


def run_encoded(group: Sequence[Unit], content: bytes, device: str) -> list[Record]:
    """Run the units of one stack in a worker; the content is that of `rgat.experiments.folds.encode`."""
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
    config: dict[str, Any],
    datas: Sequence[NodeData | GraphData],
    seeds: Sequence[int],
    device: str,
    on_epoch: OnEpoch | None = None,
) -> tuple[list[nn.Module], list[Result]]:
    """Train one model for each data set and seed, as one stack where possible."""
    options, settings = split_config(without_inputs(config))
    models: list[nn.Module] = [
        build_variant(data, seed, **options).to(device) for data, seed in zip(datas, seeds, strict=True)
    ]
    return models, fit_many(models, datas, settings, seeds, on_epoch)


def fold_seed(trial: int, fold: int) -> int:
    """Return the seed of one training in a search: unique, and never the seed of a final run."""
    return 1000 * (trial + 1) + fold


def _run_trial(unit: Unit, data: FoldedData, device: str, on_epoch: OnEpoch) -> dict[str, Any]:
    """Train on each fold; the objective is the mean validation metric at the folds' best epochs, or at a common one.

    A rehearsal trains as a final run does, without validation, and is measured after its last epoch. At a common epoch
    or after a rehearsal, metric and loss are those of the outputs that the record keeps.
    """
    folds: list[dict[str, Any]] = []
    data = _with_inputs(data, unit["config"])
    datas = [data.fold(number) for number in unit["folds"]]
    models, results, diverged = _train_folds(unit, datas, device, on_epoch)
    if diverged:
        return {"status": "diverged", "error": f"no finite loss in fold {diverged[0]}"}
    for number, model, fold_data, result in zip(unit["folds"], models, datas, results, strict=True):
        point = result.curve[result.best_epoch - 1]
        fold = {
            "best_epoch": result.best_epoch,
            "valid_metric": point.valid_metric,
            "valid_loss": point.valid_loss,
            "curve": _curve(result),
        }
        if "rung" in unit:  # an ensemble may be chosen by these
            outputs = _part_logits(model, fold_data, constant_attention=False)["valid"].log_softmax(-1)
            if not outputs.isfinite().all():  # the last step of a training, whose loss is not computed
                return {"status": "diverged", "error": f"no finite outputs in fold {number}"}
            fold |= {"fold": number, "outputs": pack_array(outputs.clamp(min=LEAST_LOG).numpy())}
            if unit.get("common_epoch"):
                labels = fold_data.labels[fold_data.valid]
                fold |= {"valid_metric": accuracy(outputs, labels), "valid_loss": nll_loss(outputs, labels).item()}
        folds.append(fold)
    return _with_objective(folds)


def _with_objective(folds: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the results of a trial from those of its folds."""
    objective, tie_breaker = (float(np.mean([fold[name] for fold in folds])) for name in ("valid_metric", "valid_loss"))
    return {"status": "done", "objective": objective, "tie_breaker": tie_breaker, "folds": folds}


def _run_candidate(unit: Unit, folded: FoldedData) -> dict[str, Any]:
    """Train what may join an ensemble beside models of the graph, on each fold or on a split."""
    if unit["kind"] == "run":
        data = folded.split(unit["split"])
        outcome = _train_candidate(unit, data, unit["seed"])
        return _score_outputs(outcome.logits, data) | {"chosen": outcome.config}
    folds = []
    for number in unit["folds"]:
        data = folded.fold(number)
        logits = _train_candidate(unit, data, fold_seed(unit["trial"], number)).logits["valid"].log_softmax(-1)
        labels = data.labels[data.valid]
        loss = nll_loss(logits.flatten(0, -2), labels.flatten(), ignore_index=MISSING).item()
        fold = {"fold": number, "valid_metric": _metric(data)(logits, labels), "valid_loss": loss}
        folds.append(fold | {"outputs": pack_array(logits.clamp(min=LEAST_LOG).numpy())})
    return _with_objective(folds)


def _train_candidate(about: Mapping[str, Any], data: NodeData | GraphData, seed: int) -> Outcome:
    """Train the candidate that a unit or a member of an ensemble names, on one thread of the linear algebra too."""
    systems = NODE_BASELINES if isinstance(data, NodeData) else GRAPH_BASELINES
    with _one_blas_thread():
        return systems[about["model"]](data, seed, **about["config"])


def _one_blas_thread() -> AbstractContextManager[Any]:
    try:
        from threadpoolctl import threadpool_limits
    except ImportError:  # it comes with scikit-learn, and the candidate says that this is missing
        return nullcontext()
    return threadpool_limits(1)  # type: ignore[no-any-return]


def _metric(data: NodeData | GraphData) -> Callable[[Tensor, Tensor], float]:
    return accuracy if isinstance(data, NodeData) else mean_roc_auc


def _train_folds(
    unit: Unit, datas: Sequence[NodeData | GraphData], device: str, on_epoch: OnEpoch
) -> tuple[list[nn.Module], list[Result], list[int]]:
    """Return the models of a trial's folds, the results of early stopping, and the numbers of the folds that diverged.

    The models are those of the folds' best epochs or, if the trial is compared at a common epoch, of that one.
    """
    config: dict[str, Any] = unit["config"]
    seeds = [fold_seed(unit["trial"], number) for number in unit["folds"]]
    models, results = _train(config, datas, seeds, device, on_epoch)
    last = results
    if unit.get("common_epoch") and not unit["rehearsal"] and not any(_is_diverged(config, each) for each in results):
        common = common_epoch([_curve(each)["valid_loss"] for each in results])  # as a reader of the record finds it
        if any(each.best_epoch != common for each in results):
            # Early stopping has kept the models of other epochs. All folds are trained again, because kernels of a GPU
            # are compiled for the number of models in a stack.
            config = config | {"max_epochs": common, "patience": None}
            models, last = _train(config, datas, seeds, device, on_epoch)
    diverged = [number for number, each in zip(unit["folds"], last, strict=True) if _is_diverged(config, each)]
    return models, results, diverged


def _with_inputs(folded: FoldedData, config: Mapping[str, Any]) -> FoldedData:
    """Return the data as the configuration wants to see them; all folds and splits share one graph."""
    return dataclasses.replace(folded, data=select_inputs(folded.data, config))


def _curve(result: Result) -> dict[str, list[float]]:
    names = ("train_loss", "valid_loss", "valid_metric")
    return {name: rounded(getattr(epoch, name) for epoch in result.curve) for name in names}


def _run_stack(group: Sequence[Unit], folded: FoldedData, device: str) -> list[dict[str, Any]]:
    """Train a stack of seeds and return the results of the units in the group.

    All seeds of the stack are trained, even if some have a record: rounding may depend on the other members.
    """
    unit = group[0]
    data, seeds = _with_inputs(folded, unit["config"]).split(unit["split"]), unit.get("stack") or [unit["seed"]]
    models, results = _train(unit["config"], [data] * len(seeds), seeds, device)
    members = [seeds.index(unit["seed"]) for unit in group]
    return [_evaluate(unit["config"], models[member], results[member], data) for member in members]


def _run_ensembles(group: Sequence[Unit], folded: FoldedData, device: str) -> list[dict[str, Any]]:
    """Train the members of declared ensembles, those of all seeds of a stack together, and score their weighted means.

    No member is scored alone, so a run evaluates its test part once.
    """
    unit = group[0]
    seeds: list[int] = unit.get("stack") or [unit["seed"]]
    means: list[dict[str, Tensor]] = [{} for _ in seeds]
    lost: dict[int, int] = {}  # seed: the member that diverged
    fixed: dict[str, Tensor] = {}  # outputs of a member that no seed changes
    for number, member in enumerate(unit["members"]):
        own_seeds = [seed + MEMBER_SEED * number for seed in seeds]
        if member.get("model") in DETERMINISTIC:
            if not fixed:
                fixed = _train_candidate(member, folded.split(unit["split"]), own_seeds[0]).logits
            outputs = [fixed] * len(seeds)
        elif member.get("model") in CANDIDATES:
            data = folded.split(unit["split"])
            outputs = [_train_candidate(member, data, seed).logits for seed in own_seeds]
        else:
            data = _with_inputs(folded, member["config"]).split(unit["split"])
            models, results = _train(member["config"], [data] * len(seeds), own_seeds, device)
            lost |= {s: number for s, r in zip(seeds, results, strict=True) if _is_diverged(member["config"], r)}
            outputs = [_part_logits(model, data, constant_attention=False) for model in models]
        for mean, of_parts in zip(means, outputs, strict=True):
            for part, logits in of_parts.items():
                mean[part] = mean.get(part, 0) + member["weight"] * logits.softmax(-1)
    data = folded.split(unit["split"])
    return [
        {"status": "diverged", "error": f"no finite loss of member {lost[unit['seed']]}"}
        if unit["seed"] in lost
        else _score_outputs(
            {part: values.log().clamp(min=LEAST_LOG) for part, values in means[seeds.index(unit["seed"])].items()}, data
        )
        for unit in group
    ]


def _score_outputs(logits: Mapping[str, Tensor], data: NodeData | GraphData) -> dict[str, Any]:
    """Return the results of a run that has outputs of each part and no constant attention."""
    scores = {part: _metric(data)(values, data.labels[getattr(data, part)]) for part, values in logits.items()}
    return {"status": "done"} | score_entries(data, logits, scores) | score_entries(data, None, None, "constant_")


def _is_diverged(config: Mapping[str, Any], result: Result) -> bool:
    """Return whether a training had no finite loss, or lost it before its last epoch."""
    return result.best_epoch == 0 or (config["patience"] is None and result.best_epoch < config["max_epochs"])


def _evaluate(config: dict[str, Any], model: nn.Module, result: Result, data: NodeData | GraphData) -> dict[str, Any]:
    """Evaluate a trained model with attention and with constant attention, where it has attention."""
    entries: dict[str, Any] = {"best_epoch": result.best_epoch, "curve": _curve(result)}
    logits = _part_logits(model, data, constant_attention=False)
    constant_logits = _part_logits(model, data, constant_attention=True)
    if _is_diverged(config, result) or not all(values.isfinite().all() for values in logits.values()):
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
