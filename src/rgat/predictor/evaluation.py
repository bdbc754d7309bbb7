"""Score a predictor on its training and test parts, with a 95 % interval of the test score."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rgat.data import MISSING, GraphData, NodeData
from rgat.predictor.predictor import NodePredictor, Predictor
from rgat.training import accuracy, mean_pr_auc, mean_roc_auc, roc_auc_per_task

REPLICATES = 200  # of the bootstrap
QUANTILE = 1.959964  # of the normal distribution, for 95 %


def evaluate(predictor: Predictor, data: NodeData | GraphData) -> dict[str, Any]:
    """Return the scores of the training and test parts and the test interval; empty parts are left out."""
    if isinstance(data, NodeData):
        assert isinstance(predictor, NodePredictor)
        return _evaluate_nodes(predictor.logits.mean(0), data)
    report: dict[str, Any] = {"metric": "mean ROC-AUC", "scores": {}}
    for part in ("train", "test"):
        ids = getattr(data, part)
        if not len(ids):
            continue
        batches = (data.graphs.batch(batch) for batch in data.graphs.split(ids))
        logits = torch.cat([predictor.member_logits(*batch).mean(0) for batch in batches])
        labels = data.labels[ids]
        report["scores"][part] = mean_roc_auc(logits, labels)
        if part == "test":
            report |= _evaluate_test_graphs(logits, labels, data.tasks)
    return report


def _evaluate_nodes(logits: Tensor, data: NodeData) -> dict[str, Any]:
    parts = {part: getattr(data, part) for part in ("train", "test")}
    labelled = {part: ids[data.labels[ids] != MISSING] for part, ids in parts.items()}
    scores = {part: accuracy(logits[ids], data.labels[ids]) for part, ids in labelled.items() if len(ids)}
    report: dict[str, Any] = {"metric": "accuracy", "scores": scores}
    if "test" in scores:
        count = len(labelled["test"])
        report |= {"tested": count, "right": round(scores["test"] * count), "interval": wilson(scores["test"], count)}
    return report


def _evaluate_test_graphs(logits: Tensor, labels: Tensor, tasks: tuple[str, ...]) -> dict[str, Any]:
    per_task = dict(zip(tasks, roc_auc_per_task(logits, labels), strict=True))
    return {
        "tested": len(labels),
        "interval": bootstrap(lambda rows: mean_roc_auc(logits[rows], labels[rows]), len(labels)),
        "pr_auc": mean_pr_auc(logits, labels),
        "positives": float((labels == 1).sum() / (labels != MISSING).sum().clamp(min=1)),
        "tasks": {task: None if math.isnan(value) else value for task, value in per_task.items()},
    }


def wilson(share: float, count: int) -> list[float]:
    """Return Wilson's 95 % interval of a share of ``count`` examples; holds for few examples and shares near 0 or 1."""
    z = QUANTILE**2
    centre = (share + z / (2 * count)) / (1 + z / count)
    half = QUANTILE / (1 + z / count) * math.sqrt(share * (1 - share) / count + z / (4 * count**2))
    return [max(centre - half, 0.0), min(centre + half, 1.0)]


def bootstrap(statistic: Callable[[Tensor], float], count: int, seed: int = 0) -> list[float]:
    """Return the 95 % percentile interval of a statistic over bootstrap samples of the examples."""
    generator = torch.Generator().manual_seed(seed)
    values = [statistic(torch.randint(count, (count,), generator=generator)) for _ in range(REPLICATES)]
    finite = [value for value in values if not math.isnan(value)]
    return [float(bound) for bound in np.quantile(finite, [0.025, 0.975])] if finite else [0.0, 1.0]
