"""Train many models together: seeds, folds and settings of one architecture as stacks, as far as memory allows."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from rgat.data import GraphData, NodeData
from rgat.memory import free_memory
from rgat.models import difference, stack
from rgat.progress import Progress, Show, shown
from rgat.training.capture import training_on
from rgat.training.configuration import Settings
from rgat.training.distributed import processes
from rgat.training.loop import Data, Training, fit, make_task
from rgat.training.loss import relational_layers
from rgat.training.run import Epoch, Meter, Result, Run
from rgat.training.task import device_of

MEMORY_SHARE = 0.5  # of the free memory, for one stack


class Job(NamedTuple):
    """One model to train.

    Examples:
        >>> import rgat
        >>> data = rgat.data.load("institute")
        >>> settings = rgat.training.Settings()
        >>> jobs = [rgat.training.Job(rgat.training.build_model(data, seed), data, settings, seed) for seed in range(3)]
        >>> [numbers for numbers, reason in rgat.training.plan_stacks(jobs)]
        [[0, 1, 2]]
    """

    model: nn.Module
    data: Data
    settings: Settings
    seed: int


def fit_many(
    models: Sequence[nn.Module],
    data: Data | Sequence[Data],
    settings: Settings | Sequence[Settings] | None = None,
    seeds: int | Sequence[int] = 0,
    on_epoch: Callable[[int, Epoch], None] | None = None,
    progress: Progress = False,
    stacked: bool = True,
    checkpoint: str | Path | None = None,
) -> list[Result]:
    """Train models in place, each as `fit` would alone; ``how`` of each result says whether it was stacked.

    Models of one architecture are trained as stacks on the same graph (folds are data sets that share theirs) or, for
    graph classification, on the same graphs in the same order, which the seed decides. A member whose training is over
    leaves its stack.

    Args:
        models: on one device.
        data: for all models, or one for each.
        settings: for all models, or one for each.
        seeds: of the order of the batches; for all models, or one for each.
        on_epoch: called with a model's number after each of its epochs.
        progress: show the progress, or a function to call with each `rgat.progress.Step`.
        stacked: False trains one by one. Stacks were faster in all measurements (`docs/training.md`).
        checkpoint: a folder for the checkpoints of a single model, as `fit` takes it.

    Examples:
        >>> import rgat
        >>> data = rgat.data.load("institute")
        >>> models = [rgat.training.build_model(data, seed) for seed in range(4)]
        >>> results = rgat.training.fit_many(models, data, rgat.training.Settings(max_epochs=2))
        >>> len(results), "stack" in results[0].how
        (4, True)
    """
    if checkpoint is not None and len(models) != 1:
        raise ValueError(f"`checkpoint` must be given for one model alone, got {len(models)} models")
    columns = {"data": data, "settings": settings or Settings(), "seeds": seeds}
    each = [_for_each(name, given, len(models)) for name, given in columns.items()]
    jobs = [Job(*row) for row in zip(models, *each, strict=True)]
    results: dict[int, Result] = {}
    device, rank = device_of(models[0]) if len(models) else torch.device("cpu"), processes().rank
    with training_on(device), shown(progress if rank == 0 else False, ["training"]) as stages:
        for numbers, how in plan_stacks(jobs, stacked):
            done, count = len(results), len(jobs)
            which = f"model {numbers[0] + 1} of {count}" if len(numbers) == 1 else f"{len(numbers)} of {count} models"
            which = which if len(numbers) < count else ""
            part = stages.part("training", done / count, (done + len(numbers)) / count, which)
            if len(numbers) == 1:
                (k,) = numbers
                alone = fit(*jobs[k], None if on_epoch is None else functools.partial(on_epoch, k), part, checkpoint)
                results[k] = dataclasses.replace(alone, how=alone.how.replace("alone", how, 1))
            else:
                together = _fit_stack([jobs[k] for k in numbers], numbers, how, on_epoch, part)
                results |= dict(zip(numbers, together, strict=True))
    return [results[k] for k in range(len(jobs))]


def _for_each(name: str, given: Any, count: int) -> Sequence[Any]:
    if not isinstance(given, Sequence):
        return [given] * count
    if len(given) != count:
        raise ValueError(f"`{name}` must be one for all models or one for each of the {count}, got {len(given)}")
    return given


def plan_stacks(jobs: Sequence[Job], stacked: bool = True) -> list[tuple[list[int], str]]:
    """Return the numbers of the jobs of each stack, and the reason for it.

    Examples:
        >>> import rgat
        >>> data = rgat.data.load("institute")
        >>> settings = rgat.training.Settings()
        >>> models = [rgat.training.build_model(data, layer=layer) for layer in ("rgat", "rgcn", "rgat")]
        >>> jobs = [rgat.training.Job(model, data, settings, 0) for model in models]
        >>> [numbers for numbers, reason in rgat.training.plan_stacks(jobs)]
        [[0, 2], [1]]
    """
    if not stacked:
        return [([k], "alone, as asked for") for k in range(len(jobs))]
    if processes().number > 1:
        return [([k], "alone: several processes train it") for k in range(len(jobs))]
    groups: list[list[int]] = []
    reasons: dict[int, str] = {}
    for k, job in enumerate(jobs):
        for group in groups:
            reason = _why_not_together(jobs[group[0]], job)
            if reason is None:
                group.append(k)
                break
            for number in (group[0], k):
                reasons.setdefault(number, reason)
        else:
            groups.append([k])
    plan: list[tuple[list[int], str]] = []
    for group in groups:
        first = jobs[group[0]]
        size = max(1, members_that_fit(first)) if len(group) > 1 else 1
        bound = f" ({size} fit in memory)" if size < len(group) else ""
        for start in range(0, len(group), size):
            part = group[start : start + size]
            if len(part) > 1:
                plan.append((part, f"in a stack of {len(part)}{bound}"))
            else:
                plan.append((part, f"alone: {reasons.get(part[0], 'nothing to stack it with')}{bound}"))
    return plan


def _why_not_together(first: Job, other: Job) -> str | None:
    """Return why two jobs cannot share a stack; None if they can."""
    if isinstance(first.data, NodeData) and isinstance(other.data, NodeData):
        if first.data.graph is not other.data.graph or first.data.x is not other.data.x:
            return "others have another graph"
    elif first.data is not other.data:
        return "others have other graphs"
    elif first.seed != other.seed or first.settings.batch_size != other.settings.batch_size:
        return "others have other batches, which follow from seed and batch size"
    if first.settings.fanouts is not None or other.settings.fanouts is not None:
        return "its batches are sampled"
    if first.data.values is not other.data.values or first.data.targets != other.data.targets:
        return "others have other targets"
    if first.settings.class_weights != other.settings.class_weights:
        return "others have other class weights"
    if first.settings.label_smoothing != other.settings.label_smoothing:
        return "others have another label smoothing"
    if first.settings.weight_averaging != other.settings.weight_averaging:
        return "others average their weights, or do not"
    if first.settings.autocast != other.settings.autocast:
        return "others have another precision"
    if (first.settings.patience is None) != (other.settings.patience is None):
        return "others are selected in another way"
    every, last = zip(
        *((each.validate_every, each.max_epochs) for each in (first.settings, other.settings)), strict=True
    )
    if every[0] != every[1] or (every[0] > 1 and last[0] != last[1]):
        return "others are validated after other epochs"
    reason = difference(first.model, other.model)
    return None if reason is None else f"others have another architecture: {reason}"


def bytes_needed(job: Job) -> int:
    """Return an upper bound of the bytes that training one more model takes, besides data and graph.

    Ten times the parameters: themselves, their gradients, Adam's two moments, the best epoch, the models that a stack
    is built from and copied back to, and memory that the allocator leaves unused; twelve with the mean of the weights
    and a copy while it is validated. Eight numbers for each edge, node and
    unit of both layers: values, queries, outputs and their gradients; the dynamic score has as many for each of its
    attention channels. On knowledge graphs of 60,000 to 170,000 edges
    and 10 or 100 classes the bound was 1.1 to 5 times the measured memory (`tests/training/test_bytes_needed.py`).

    Examples:
        >>> import rgat
        >>> data = rgat.data.load("institute")
        >>> job = rgat.training.Job(rgat.training.build_model(data), data, rgat.training.Settings(), 0)
        >>> rgat.training.bytes_needed(job) > 1_000_000
        True
    """
    model: Any = job.model
    parameters = sum(p.numel() * p.element_size() for p in job.model.parameters())
    widths: list[int] = [
        layer.heads
        * (layer.out_channels + (layer.attention_channels if getattr(layer, "score", None) == "dynamic" else 0))
        for layer in relational_layers(model)
    ]
    if isinstance(job.data, GraphData):
        store = job.data.graphs
        places = job.settings.batch_size * (len(store.edge_type) + len(store.x)) // max(len(store), 1)
    else:
        places = job.data.graph.num_edges + job.data.graph.num_nodes
    copies = 12 if job.settings.weight_averaging else 10
    return copies * parameters + 8 * 4 * sum(widths) * places


def members_that_fit(job: Job) -> int:
    """Return how many models like this one can be trained together in the free memory; possibly none.

    Examples:
        >>> import rgat
        >>> data = rgat.data.load("institute")
        >>> job = rgat.training.Job(rgat.training.build_model(data), data, rgat.training.Settings(), 0)
        >>> rgat.training.members_that_fit(job) >= 0
        True
    """
    free = free_memory(device_of(job.model))
    return int(MEMORY_SHARE * free / bytes_needed(job))


def _fit_stack(
    jobs: Sequence[Job],
    numbers: Sequence[int],
    how: str,
    on_epoch: Callable[[int, Epoch], None] | None,
    show: Show,
) -> list[Result]:
    models, datas, settings, seeds = (list(column) for column in zip(*jobs, strict=True))
    device = device_of(models[0])
    together = stack(models)
    training = Training(together, make_task(datas, settings[0], device), [Run(s) for s in settings], seeds[0])
    meter = Meter.of(settings, datas[0], training.task.metric, show)
    training.on_step = meter.on_step
    for points in training.epochs():
        meter.on_epoch([epoch for _, epoch in points])
        if on_epoch is not None:
            for member, epoch in points:
                on_epoch(numbers[member], epoch)
    for member, model in enumerate(models):
        model.load_state_dict(training.finished[member])
        model.eval()
    training.task = make_task(datas, settings[0], device)  # finished members have left the first one
    return training.results(stack(models), training.runs, how)
