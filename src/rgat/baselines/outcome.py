"""What every system returns: outputs for each part, and how it came to them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from rgat.data import GraphData, NodeData
from rgat.training import accuracy, mean_roc_auc


@dataclass(frozen=True)
class Outcome:
    """One system, trained once.

    Attributes:
        config: every setting it was trained with, chosen or given.
        selected_on: one sentence: what the chosen ones were chosen on.
        logits: of the train, valid and test part, ``[n, classes]`` or ``[n, tasks, 2]``; the largest wins.
        best_epoch: the epoch whose parameters were evaluated, where there are epochs.
        train_loss: mean loss of each epoch, where there are epochs.
    """

    config: dict[str, Any]
    selected_on: str
    logits: dict[str, Tensor] = field(repr=False)
    best_epoch: int | None = None
    train_loss: list[float] = field(default_factory=list, repr=False)

    def scores(self, data: NodeData | GraphData) -> dict[str, float]:
        """The metric of each part: accuracy, or the mean ROC-AUC over the tasks."""
        metric = accuracy if isinstance(data, NodeData) else mean_roc_auc
        return {part: metric(logits, data.labels[getattr(data, part)]) for part, logits in self.logits.items()}
