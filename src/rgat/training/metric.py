"""Metrics of the paper's tables, accuracy and the mean ROC-AUC over tasks, of each class, and of other targets."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rgat.data.dataset import MISSING
from rgat.data.targets import Target, places

Array = NDArray[np.float64]
METRICS = {"binary": "ROC-AUC", "multi-label": "mean ROC-AUC", "multi-class": "accuracy", "regression": "R2"}


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


def metric_name(targets: Sequence[Target]) -> str:
    """Return the name of the score of `score_targets`."""
    names = {METRICS[target.kind] for target in targets}
    if len(names) > 1:
        return "mean score"
    (name,) = names
    return name if len(targets) == 1 or name.startswith("mean") else f"mean {name}"


def score_targets(
    predictions: Tensor, values: Tensor, targets: Sequence[Target], bounds: Tensor | None = None
) -> float:
    """Return the mean score of the targets, the higher the better; NaN where none has one.

    That is the ROC-AUC of binary targets and of labels, the accuracy of classes, and the R2 of numbers: the share of
    the squared deviation from the training part's mean that predictions explain. All are ``[n, outputs]``.
    """
    if predictions.isnan().any():
        return float("nan")
    scores = []
    for target, place in places(targets):
        known, true, _ = known_rows(predictions, values, place, bounds)
        scores.append(_score(target, known, true))
    return _mean(scores)


def known_rows(
    predictions: Tensor, values: Tensor, place: slice, bounds: Tensor | None
) -> tuple[Array, Array, NDArray[np.bool_]]:
    """Return predictions and values of the rows whose value is known exactly, and which these are."""
    true = values[:, place].double().cpu().numpy()
    known = ~np.isnan(true).any(1)
    if bounds is not None:
        known &= (bounds[:, place] == 0).all(1).cpu().numpy()
    return predictions[:, place].double().cpu().numpy()[known], true[known], known


def _score(target: Target, predicted: Array, true: Array) -> float:
    if not len(true):
        return float("nan")
    if target.kind == "regression":
        total = np.square(true - target.mean).sum()
        return float(1 - np.square(true - predicted).sum() / total) if total > 0 else float("nan")
    if target.kind == "multi-class":
        return float((predicted.argmax(1) == true.argmax(1)).mean())
    return _mean([roc_auc(scores, each == 1) for scores, each in zip(predicted.T, true.T, strict=True)])


def measure_target(target: Target, predicted: Array, true: Array) -> dict[str, Any]:
    """Return all scores of a target on some examples as plain values; None where one is undefined.

    Args:
        target: what was predicted.
        predicted: probabilities, or numbers in their unit, ``[n, outputs]``.
        true: 0 or 1, or numbers, ``[n, outputs]``, none missing.
    """
    scores: dict[str, float] = {"score": _score(target, predicted, true)}
    if target.kind == "regression":
        error = (predicted - true)[:, 0]
        scores |= {"rmse": float(np.sqrt(np.square(error).mean())), "mae": float(np.abs(error).mean())}
        scores["rank_correlation"] = spearman(predicted[:, 0], true[:, 0])
    elif target.kind == "multi-class":
        labels, found = torch.from_numpy(true.argmax(1)), torch.from_numpy(predicted.argmax(1))
        by_class = score_classes(confusion_matrix(labels, found, target.width))
        scores |= {name: by_class[name] for name in ("macro_f1", "balanced_accuracy")}
        scores["average_precision"] = mean_average_precision(predicted, true)
    else:
        scores |= binary_scores(predicted, true)
        scores["average_precision"] = mean_average_precision(predicted, true)
        scores["positives"] = float(true.mean())
    plain = {name: None if math.isnan(value) else value for name, value in scores.items()}
    return {"kind": target.kind, "examples": len(true), **plain}


def binary_scores(probabilities: Array, true: Array) -> dict[str, float]:
    """Return macro-F1 and balanced accuracy at a probability of one half, means over the columns that have both."""
    found = []
    for scores, each in zip(probabilities.T, true.T, strict=True):
        known = ~np.isnan(each)
        if len(np.unique(each[known])) == 2:
            labels, predicted = (torch.from_numpy(a[known].astype(np.int64)) for a in (each, scores >= 0.5))
            found.append(score_classes(confusion_matrix(labels, predicted, 2)))
    return {name: _mean([each[name] for each in found]) for name in ("macro_f1", "balanced_accuracy")}


def mean_average_precision(scores: Array, true: Array) -> float:
    """Return the mean average precision of the columns, each against the rest; NaN if none has both."""
    return _mean([pr_auc(column, each == 1) for column, each in zip(scores.T, true.T, strict=True)])


def spearman(first: Array, second: Array) -> float:
    """Return the rank correlation, tied values sharing their mean rank; NaN if undefined."""
    ranks = []
    for values in (first, second):
        _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
        ranks.append((np.cumsum(counts) - (counts - 1) / 2)[inverse])
    if min(len(np.unique(rank)) for rank in ranks) < 2:
        return float("nan")
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])
