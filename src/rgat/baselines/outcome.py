"""The result of training one of the paper's other systems once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from rgat.data import GraphData, NodeData
from rgat.training import accuracy, mean_roc_auc


@dataclass(frozen=True)
class Outcome:
    """Outputs of a system on each part, and how it was trained; only some systems have epochs.

    Examples:
        >>> import rgat
        >>> from rgat.baselines import NODE_BASELINES
        >>> outcome = NODE_BASELINES["FEAT"](rgat.data.load("institute"), seed=0)
        >>> sorted(outcome.logits)
        ['test', 'train', 'valid']
    """

    config: dict[str, Any]  # all settings, selected or given
    selected_on: str  # a sentence that says what the settings were selected on
    logits: dict[str, Tensor] = field(repr=False)  # by part, [n, classes] or [n, tasks, 2]
    best_epoch: int | None = None  # whose parameters were evaluated
    train_loss: list[float] = field(default_factory=list, repr=False)  # mean over each epoch

    def scores(self, data: NodeData | GraphData) -> dict[str, float]:
        """Return the metric of each part: accuracy, or the mean ROC-AUC over the tasks."""
        metric = accuracy if isinstance(data, NodeData) else mean_roc_auc
        return {part: metric(logits, data.labels[getattr(data, part)]) for part, logits in self.logits.items()}
