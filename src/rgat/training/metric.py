"""Metrics of the paper's tables: accuracy, and the mean ROC-AUC over tasks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from rgat.data.dataset import MISSING


def accuracy(logits: Tensor, labels: Tensor) -> float:
    """Share of labelled rows whose largest logit is that of their class; NaN without any."""
    return float((logits.argmax(-1) == labels)[labels != MISSING].double().mean())


def roc_auc(scores: NDArray[np.floating], positive: NDArray[np.bool_]) -> float:
    """Probability that a positive row scores above a negative one, ties counting half; NaN if undefined."""
    num_positive = int(positive.sum())
    num_negative = len(positive) - num_positive
    if num_positive == 0 or num_negative == 0 or np.isnan(scores).any():
        return float("nan")
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    rank = np.cumsum(counts) - (counts - 1) / 2  # tied scores share their mean rank
    above = rank[inverse][positive].sum() - num_positive * (num_positive + 1) / 2
    return float(above / (num_positive * num_negative))


def roc_auc_per_task(logits: Tensor, labels: Tensor) -> list[float]:
    """ROC-AUC of each task over its known labels, from logits ``[G, tasks, 2]`` and labels ``[G, tasks]``."""
    scores = (logits[..., 1] - logits[..., 0]).double().cpu().numpy()
    classes = labels.cpu().numpy()
    values = []
    for task in range(labels.shape[1]):
        known = classes[:, task] != MISSING
        values.append(roc_auc(scores[known, task], classes[known, task] == 1))
    return values


def mean_roc_auc(logits: Tensor, labels: Tensor) -> float:
    """Mean over the tasks that have both classes; NaN if none has, or if a logit is NaN."""
    if logits.isnan().any():
        return float("nan")
    values = [value for value in roc_auc_per_task(logits, labels) if not np.isnan(value)]
    return float(np.mean(values)) if values else float("nan")


def pr_auc(scores: NDArray[np.floating], positive: NDArray[np.bool_]) -> float:
    """Average precision: the area under the steps of the precision-recall curve; NaN if undefined."""
    if not positive.any() or positive.all() or np.isnan(scores).any():
        return float("nan")
    order = np.argsort(-scores, kind="stable")
    hits = np.cumsum(positive[order])
    last = np.append(np.diff(scores[order]) != 0, True)  # tied scores are one step
    hits, ranks = hits[last], (np.arange(len(scores)) + 1)[last]
    return float((np.diff(hits, prepend=0) * hits / ranks).sum() / hits[-1])


def mean_pr_auc(logits: Tensor, labels: Tensor) -> float:
    """Mean of the average precision over the tasks that have both classes; NaN if none has."""
    scores, classes = (logits[..., 1] - logits[..., 0]).double().cpu().numpy(), labels.cpu().numpy()
    known = classes != MISSING
    values = [pr_auc(s[k], c[k] == 1) for s, c, k in zip(scores.T, classes.T, known.T, strict=True)]
    finite = [value for value in values if not np.isnan(value)]
    return float(np.mean(finite)) if finite else float("nan")
