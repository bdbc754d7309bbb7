"""Choose whether classes count equally in the loss, on held-out examples of the training data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from rgat.data import MISSING, GraphData, NodeData
from rgat.data.targets import places
from rgat.progress import Show
from rgat.training.configuration import CLASS_WEIGHTS, Config
from rgat.training.metric import known_rows, mean_average_precision, mean_pr_auc
from rgat.training.task import graph_weights


def take_auto(data: NodeData | GraphData, options: Mapping[str, Any]) -> tuple[bool, dict[str, Any]]:
    """Return whether ``class_weights`` is "auto", and the other options; raise if there are no classes to weigh."""
    if options.get("class_weights") != "auto":
        return False, dict(options)
    if all(target.kind == "regression" for target in data.targets):
        raise ValueError("`class_weights` must be left out for numbers, which have no classes")
    return True, {name: value for name, value in options.items() if name != "class_weights"}


def choose_weights(
    data: NodeData | GraphData, config: Config, held_out: Callable[[Config, Show], tuple[Tensor, Tensor]], show: Show
) -> tuple[Config, dict[str, Any]]:
    """Return the configuration with the class weights of the higher average precision, and the scores of both.

    The average precision of a class, against the rest, counts rare classes as much as others and needs no threshold.
    ``held_out`` trains a configuration and returns ids of held-out examples and their logits.
    """
    scores: dict[str, float] = {}
    for word in CLASS_WEIGHTS:
        ids, logits = held_out(config | {"class_weights": word}, show)
        scores[word] = average_precision(data, ids, logits)
    chosen = max(reversed(CLASS_WEIGHTS), key=lambda word: scores[word])  # "none" if they are equal
    return config | {"class_weights": chosen}, {"chosen": chosen, "average_precision": scores}


def average_precision(data: NodeData | GraphData, ids: Tensor, logits: Tensor) -> float:
    """Return the mean average precision of all classes and labels; numbers are left out. 0 where it is undefined."""
    if data.values is not None:
        scores = []
        for target, place in places(data.targets):
            if target.kind != "regression":
                out = torch.softmax(logits[:, place], 1) if target.kind == "multi-class" else logits[:, place]
                found, true, _ = known_rows(out, data.values[ids, place], slice(None), None)
                scores.append(mean_average_precision(found, true))
        score = float(torch.tensor(scores).nanmean())
    elif isinstance(data, GraphData):
        score = mean_pr_auc(logits, data.labels[ids])
    else:
        known = data.labels[ids] != MISSING
        one_hot = torch.nn.functional.one_hot(data.labels[ids][known], len(data.classes)).double()
        score = mean_average_precision(torch.softmax(logits[known].double(), 1).numpy(), one_hot.numpy())
    return 0.0 if score != score else score


def loss_weights(data: NodeData | GraphData, config: Config) -> Tensor:
    """Return the weights of the 0/1 tasks of graphs in losses, or 1 for each output."""
    if isinstance(data, GraphData):
        return graph_weights(data, config.get("class_weights"))
    return torch.ones(len(data.classes), 2)
