"""What one step of training is, for nodes of one graph and for many graphs: batches, loss, scores."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor, nn

from rgat.data import GraphData, NodeData
from rgat.data.records import PARTS
from rgat.training.loss import balanced_class_weights, multi_task_cross_entropy, node_cross_entropy
from rgat.training.metric import accuracy, mean_roc_auc


class Task(Protocol):
    """A data set as the training loop sees it."""

    metric: str

    def batches(self, generator: torch.Generator) -> Iterator[Tensor]:
        """Ids of the training examples of each step of an epoch."""

    def loss(self, model: nn.Module, ids: Tensor) -> Tensor:
        """The loss of one step."""

    def evaluate(self, model: nn.Module, part: str, constant_attention: bool = False) -> tuple[float, float]:
        """Loss and metric of the train, valid or test part; NaN without examples."""

    def watched(self, loss: float, metric: float) -> tuple[float, float]:
        """What early stopping makes small; the second number decides ties."""


def _check_parts(data: NodeData | GraphData, selects: bool) -> None:
    for part in ("train", "valid") if selects else ("train",):
        if not len(getattr(data, part)):
            raise ValueError(f"{data.name} must have examples to learn from and to select on, got an empty {part} part")


class NodeTask:
    """Full-batch node classification; early stopping watches the validation loss."""

    metric = "accuracy"

    def __init__(self, data: NodeData, selects: bool = True) -> None:
        _check_parts(data, selects)
        if data.x is not None and data.x.isnan().any():
            raise ValueError(f"node features of {data.name} must not contain NaN; clean them first")
        self.data = data
        self.graph = copy.copy(data.graph.prepare())
        self.graph.validate = False  # checked when it was made; a diverged model must end its run, not the program

    def batches(self, generator: torch.Generator) -> Iterator[Tensor]:
        yield self.data.train

    def loss(self, model: nn.Module, ids: Tensor) -> Tensor:
        return node_cross_entropy(model(self.data.x, self.graph), self.data.labels, ids)

    def evaluate(self, model: nn.Module, part: str, constant_attention: bool = False) -> tuple[float, float]:
        ids = getattr(self.data, part)
        if not len(ids):
            return math.nan, math.nan
        logits = model(self.data.x, self.graph, constant_attention=constant_attention).float()
        loss = float(node_cross_entropy(logits, self.data.labels, ids))
        return loss, accuracy(logits[ids], self.data.labels[ids])

    def watched(self, loss: float, metric: float) -> tuple[float, float]:
        return loss, -metric


class GraphTask:
    """Mini-batch multi-task graph classification; early stopping watches the mean ROC-AUC.

    Class weights come from the training part alone.
    """

    metric = "mean ROC-AUC"

    def __init__(self, data: GraphData, batch_size: int, selects: bool = True) -> None:
        _check_parts(data, selects)
        labels = data.labels[data.valid]
        if selects and not ((labels == 0).any(0) & (labels == 1).any(0)).any():
            raise ValueError(f"some task of {data.name} must have both classes among its validation graphs, got none")
        self.data = data
        self.batch_size = batch_size
        self.class_weights = balanced_class_weights(data.labels[data.train])
        self.parts = {part: data.graphs.batch(getattr(data, part)) for part in PARTS}

    def batches(self, generator: torch.Generator) -> Iterator[Tensor]:
        order = torch.randperm(len(self.data.train), generator=generator)
        yield from torch.split(self.data.train[order], self.batch_size)

    def loss(self, model: nn.Module, ids: Tensor) -> Tensor:
        logits = model(*self.data.graphs.batch(ids))
        return multi_task_cross_entropy(logits, self.data.labels[ids], self.class_weights)

    def evaluate(self, model: nn.Module, part: str, constant_attention: bool = False) -> tuple[float, float]:
        labels = self.data.labels[getattr(self.data, part)]
        if not len(labels):
            return math.nan, math.nan
        logits = model(*self.parts[part], constant_attention=constant_attention).float()
        return float(multi_task_cross_entropy(logits, labels, self.class_weights)), mean_roc_auc(logits, labels)

    def watched(self, loss: float, metric: float) -> tuple[float, float]:
        return -metric, loss
