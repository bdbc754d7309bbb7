"""The training loop: Adam, early stopping on validation data, the best epoch kept."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import nn

from rgat.data import GraphData, NodeData
from rgat.data.records import PARTS
from rgat.training.loss import l2_penalty
from rgat.training.progress import epoch_bar
from rgat.training.task import GraphTask, NodeTask, Task


@dataclass(frozen=True)
class Settings:
    """How to train.

    Attributes:
        learning_rate: of Adam.
        max_epochs: stop after so many epochs at the latest.
        patience: stop when validation has not improved for so many epochs; None trains for ``max_epochs`` epochs, looks
            at no validation data (there may be none), and keeps the last.
        batch_size: graphs per step; nodes of one graph are always learned from together.
        kernel_l2: coefficient of the squared kernels ``W``, one per relational layer.
        attention_l2: coefficient of the squared attention kernels, one per relational layer.
        autocast: run the model in bfloat16 where that is safe.
    """

    learning_rate: float = 0.01
    max_epochs: int = 200
    patience: int | None = 30
    batch_size: int = 64
    kernel_l2: tuple[float, float] = (0.0, 0.0)
    attention_l2: tuple[float, float] = (0.0, 0.0)
    autocast: bool = False

    def __post_init__(self) -> None:
        for name in ("learning_rate", "max_epochs", "patience", "batch_size"):
            if getattr(self, name) is not None and not getattr(self, name) > 0:
                raise ValueError(f"`{name}` must be above 0, got {getattr(self, name)}")
        for name in ("kernel_l2", "attention_l2"):
            values = getattr(self, name)
            if len(values) != 2 or not all(value >= 0 for value in values):
                raise ValueError(f"`{name}` must be two numbers of at least 0, one per relational layer, got {values}")


@dataclass(frozen=True)
class Epoch:
    """One point of the learning curve."""

    epoch: int
    train_loss: float  # mean over the steps, penalty included
    valid_loss: float
    valid_metric: float


@dataclass(frozen=True)
class Result:
    """What a training run found. Scores are those of the best epoch by validation; selection never sees the others.

    ``scores`` and ``constant_scores`` hold the metric of each part, with attention and with constant attention. A best
    epoch of 0 says that training diverged at once; the model is then as it was before.
    """

    metric: str
    best_epoch: int
    scores: dict[str, float]
    constant_scores: dict[str, float]
    curve: list[Epoch] = field(repr=False)
    seconds: float


def fit(
    model: nn.Module,
    data: NodeData | GraphData,
    settings: Settings | None = None,
    seed: int = 0,
    on_epoch: Callable[[Epoch], None] | None = None,
    progress: bool = False,
) -> Result:
    """Train ``model`` on ``data`` in place and leave it at its best epoch by validation.

    Args:
        model: a ``NodeClassifier`` or ``GraphClassifier`` that fits the data; its parameters and the seed of its
            dropout were drawn when it was built.
        data: what to learn from.
        settings: how.
        seed: of the order of the batches.
        on_epoch: called after every epoch.
        progress: show a progress bar.
    """
    settings = settings or Settings()
    selects = settings.patience is not None
    task: Task = (
        NodeTask(data, selects) if isinstance(data, NodeData) else GraphTask(data, settings.batch_size, selects)
    )
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=settings.learning_rate)
    autocast = torch.autocast(next(model.parameters()).device.type, dtype=torch.bfloat16, enabled=settings.autocast)
    started = time.perf_counter()
    curve: list[Epoch] = []
    best_value, best_epoch, best_state = (math.inf, math.inf), 0, copy.deepcopy(model.state_dict())
    with epoch_bar(settings.max_epochs, progress) as advance:
        for epoch in range(1, settings.max_epochs + 1):
            model.train()
            losses = []
            for ids in task.batches(generator):
                with autocast:
                    loss = task.loss(model, ids)
                loss = loss + l2_penalty(model, settings.kernel_l2, settings.attention_l2)
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                losses.append(loss.detach())
            model.eval()
            train_loss = float(torch.stack(losses).mean())
            valid_loss = valid_metric = math.nan
            value = (float(-epoch), 0.0)  # without validation each epoch is better than the one before
            if selects:
                with torch.no_grad(), autocast:
                    valid_loss, valid_metric = task.evaluate(model, "valid")
                value = task.watched(valid_loss, valid_metric)
            curve.append(Epoch(epoch, train_loss, valid_loss, valid_metric))
            if math.isfinite(train_loss) and value < best_value:  # a diverged epoch is never the best
                best_value, best_epoch, best_state = value, epoch, copy.deepcopy(model.state_dict())
            advance(f"validation {task.metric} {valid_metric:.3f}, best epoch {best_epoch}")
            if on_epoch is not None:
                on_epoch(curve[-1])
            if settings.patience is not None and epoch - best_epoch >= settings.patience:
                break
    model.load_state_dict(best_state)
    model.eval()
    with torch.no_grad(), autocast:
        scores, constant = ({p: task.evaluate(model, p, flag)[1] for p in PARTS} for flag in (False, True))
    return Result(task.metric, best_epoch, scores, constant, curve, time.perf_counter() - started)
