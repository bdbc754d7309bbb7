"""Metrics of the paper's tables, accuracy and the mean ROC-AUC over tasks, and scores of each class."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rgat.data.dataset import MISSING


def accuracy(logits: Tensor, labels: Tensor) -> float:
    """Return the share of labelled rows whose largest logit is that of their class; NaN without labels.

    Examples:
        >>> import torch
        >>> from rgat.training import accuracy
        >>> accuracy(torch.tensor([[2.0, 1.0], [0.0, 1.0], [3.0, 0.0]]), torch.tensor([0, 0, -1]))
        0.5
    """
    return float((logits.argmax(-1) == labels)[labels != MISSING].double().mean())


def confusion_matrix(labels: Tensor, predicted: Tensor, num_classes: int) -> Tensor:
    """Return how many examples of each class (row) were predicted as each class (column)."""
    return torch.bincount(labels * num_classes + predicted, minlength=num_classes**2).view(num_classes, num_classes)


def score_classes(confusion: Tensor) -> dict[str, Any]:
    """Return the scores of each class and their means, as plain values.

    ``recall`` is None for a class without examples and ``precision`` for one that is never predicted. Means are over
    the classes that have a value: ``balanced_accuracy`` of recall, ``macro_f1`` of F1.
    """
    right, of_class, as_class = confusion.diagonal().double(), confusion.sum(1), confusion.sum(0)
    shares = {"recall": right / of_class, "precision": right / as_class, "f1": 2 * right / (of_class + as_class)}
    lists = {name: [None if math.isnan(x) else x for x in values.tolist()] for name, values in shares.items()}
    return {
        "balanced_accuracy": float(shares["recall"].nanmean()),
        "macro_f1": float(shares["f1"].nanmean()),
        "classes": lists,
        "confusion": confusion.tolist(),
    }


def roc_auc(scores: NDArray[np.floating], positive: NDArray[np.bool_]) -> float:
    """Return the probability that a positive row scores above a negative one, ties counting half; NaN if undefined.

    Examples:
        >>> import numpy as np
        >>> from rgat.training import roc_auc
        >>> roc_auc(np.array([0.1, 0.4, 0.35, 0.8]), np.array([False, False, True, True]))
        0.75
    """
    num_positive = int(positive.sum())
    num_negative = len(positive) - num_positive
    if num_positive == 0 or num_negative == 0 or np.isnan(scores).any():
        return float("nan")
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    rank = np.cumsum(counts) - (counts - 1) / 2  # tied scores share their mean rank
    above = rank[inverse][positive].sum() - num_positive * (num_positive + 1) / 2
    return float(above / (num_positive * num_negative))


def roc_auc_per_task(logits: Tensor, labels: Tensor) -> list[float]:
    """Return the ROC-AUC of each task over its labels, from logits ``[G, tasks, 2]`` and labels ``[G, tasks]``.

    Examples:
        >>> import torch
        >>> from rgat.training import roc_auc_per_task
        >>> logits = torch.tensor([[[0.0, 1.0]], [[0.0, -1.0]], [[0.0, 2.0]]])  # three graphs, one task
        >>> labels = torch.tensor([[1], [0], [0]])
        >>> roc_auc_per_task(logits, labels)
        [0.5]
    """
    return _per_task(roc_auc, logits, labels)


def _per_task(metric: Callable[..., float], logits: Tensor, labels: Tensor) -> list[float]:
    scores = (logits[..., 1] - logits[..., 0]).double().cpu().numpy()
    classes = labels.cpu().numpy()
    known = classes != MISSING
    return [metric(s[k], c[k] == 1) for s, c, k in zip(scores.T, classes.T, known.T, strict=True)]


def _mean(values: list[float]) -> float:
    finite = [value for value in values if not np.isnan(value)]
    return float(np.mean(finite)) if finite else float("nan")


def mean_roc_auc(logits: Tensor, labels: Tensor) -> float:
    """Return the mean ROC-AUC over the tasks that have both classes; NaN if none has, or if a logit is NaN.

    Examples:
        >>> import torch
        >>> from rgat.training import mean_roc_auc
        >>> logits = torch.tensor([[[0.0, 1.0]], [[0.0, -1.0]], [[0.0, 2.0]]])  # three graphs, one task
        >>> labels = torch.tensor([[1], [0], [0]])
        >>> mean_roc_auc(logits, labels)
        0.5
    """
    if logits.isnan().any():
        return float("nan")
    return _mean(roc_auc_per_task(logits, labels))


def pr_auc(scores: NDArray[np.floating], positive: NDArray[np.bool_]) -> float:
    """Return the average precision, the area under the stepwise precision-recall curve; NaN if undefined."""
    if not positive.any() or positive.all() or np.isnan(scores).any():
        return float("nan")
    order = np.argsort(-scores, kind="stable")
    hits = np.cumsum(positive[order])
    last = np.append(np.diff(scores[order]) != 0, True)  # tied scores are one step
    hits, ranks = hits[last], (np.arange(len(scores)) + 1)[last]
    return float((np.diff(hits, prepend=0) * hits / ranks).sum() / hits[-1])


def mean_pr_auc(logits: Tensor, labels: Tensor) -> float:
    """Return the mean average precision over the tasks that have both classes; NaN if none has.

    Examples:
        >>> import torch
        >>> from rgat.training import mean_pr_auc
        >>> logits = torch.tensor([[[0.0, 1.0]], [[0.0, -1.0]], [[0.0, 2.0]]])  # three graphs, one task
        >>> labels = torch.tensor([[1], [0], [0]])
        >>> mean_pr_auc(logits, labels)
        0.5
    """
    return _mean(_per_task(pr_auc, logits, labels))
