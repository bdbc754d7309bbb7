"""What a training run is asked for, what it goes through, and what it finds."""

from __future__ import annotations

import math
from dataclasses import dataclass, field


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
    valid_loss: float  # NaN where validation data are not looked at
    valid_metric: float


@dataclass(frozen=True)
class Result:
    """What a training run found. Scores are those of the best epoch by validation; selection never sees the others.

    ``scores`` and ``constant_scores`` hold the metric of each part, with attention and with constant attention, over
    its labelled examples; NaN where there are none. A best epoch of 0 says that training diverged at once; the model is
    then as it was before. ``how`` says how it was trained: alone or in a stack, and why; its steps captured in a CUDA
    graph or not, and why.
    """

    metric: str
    best_epoch: int
    scores: dict[str, float]
    constant_scores: dict[str, float]
    curve: list[Epoch] = field(repr=False)
    seconds: float
    how: str = ""


@dataclass
class Run:
    """Where the training of one model stands."""

    settings: Settings
    best_value: tuple[float, float] = (math.inf, math.inf)
    best_epoch: int = 0
    curve: list[Epoch] = field(default_factory=list)

    def record(self, epoch: Epoch, watched: tuple[float, float]) -> bool:
        """Add a point to the curve; whether it is the best so far by what early stopping watches."""
        self.curve.append(epoch)
        if self.settings.patience is None:
            watched = (-float(epoch.epoch), 0.0)  # without validation each epoch is better than the one before
        improved = math.isfinite(epoch.train_loss) and watched < self.best_value  # a diverged epoch is never the best
        if improved:
            self.best_value, self.best_epoch = watched, epoch.epoch
        return improved

    @property
    def is_finished(self) -> bool:
        patience, epoch = self.settings.patience, len(self.curve)
        return epoch >= self.settings.max_epochs or (patience is not None and epoch - self.best_epoch >= patience)
