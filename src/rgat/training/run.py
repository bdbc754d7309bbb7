"""The learning curve, state, result and progress of one training run."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field
from typing import Any

from rgat.data import GraphData, NodeData
from rgat.progress import Show, Step
from rgat.training.configuration import Settings


@dataclass(frozen=True)
class Epoch:
    """One point of the learning curve.

    Examples:
        >>> import rgat
        >>> data = rgat.data.load("institute")
        >>> settings = rgat.training.Settings(max_epochs=2)
        >>> curve = rgat.training.fit(rgat.training.build_model(data), data, settings).curve
        >>> [point.epoch for point in curve]
        [1, 2]
    """

    epoch: int
    train_loss: float  # mean over the steps, penalty included
    valid_loss: float  # NaN without validation
    valid_metric: float


def curve_to_json(curve: Sequence[Epoch]) -> list[list[float | str]]:
    """Return the points of a learning curve as lists; JSON has no infinity and no NaN, so these become strings."""
    return [[value if math.isfinite(value) else str(value) for value in astuple(epoch)] for epoch in curve]


def curve_from_json(rows: Sequence[Sequence[Any]]) -> list[Epoch]:
    """Return the learning curve that `curve_to_json` wrote."""
    return [Epoch(number, *map(float, values)) for number, *values in rows]


@dataclass(frozen=True)
class Result:
    """The result of a training run, at the best epoch by validation.

    ``scores`` and ``constant_scores`` hold the metric of each part, with attention and with constant attention, over
    its labelled examples; NaN where there are none. A best epoch of 0 means that training diverged at once, and the
    model is unchanged. ``how`` says whether the model was trained in a stack and whether its steps were captured in a
    CUDA graph, and why.

    Examples:
        >>> import rgat
        >>> data = rgat.data.load("institute")
        >>> settings = rgat.training.Settings(max_epochs=2)
        >>> result = rgat.training.fit(rgat.training.build_model(data), data, settings)
        >>> result.metric, result.best_epoch <= 2, sorted(result.constant_scores)
        ('accuracy', True, ['test', 'train', 'valid'])
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
    """The state of one model's training."""

    settings: Settings
    best_value: tuple[float, float] = (math.inf, math.inf)
    best_epoch: int = 0
    curve: list[Epoch] = field(default_factory=list)

    def record(self, epoch: Epoch, watched: tuple[float, float]) -> bool:
        """Add a point to the curve; return whether it is the best so far by what early stopping watches."""
        self.curve.append(epoch)
        if self.settings.patience is None:
            watched = (-float(epoch.epoch), 0.0)  # without validation, the last epoch is the best
        improved = math.isfinite(epoch.train_loss) and watched < self.best_value  # a diverged epoch is never the best
        if improved:
            self.best_value, self.best_epoch = watched, epoch.epoch
        return improved

    @property
    def is_finished(self) -> bool:
        """Whether the training has reached its last epoch."""
        patience, epoch = self.settings.patience, len(self.curve)
        if epoch >= self.settings.max_epochs or patience is None:
            return epoch >= self.settings.max_epochs
        was_validated = epoch % self.settings.validate_every == 0
        return was_validated and epoch - self.best_epoch >= patience


@dataclass
class Meter:
    """Tells where the training of a model or a stack stands, after each of its steps and epochs."""

    show: Show
    settings: Settings
    size: int  # training examples
    unit: str  # what batches hold; none where each step uses all examples
    metric: str
    score: str = ""

    @classmethod
    def of(cls, settings: Sequence[Settings], data: NodeData | GraphData, metric: str, show: Show) -> Meter:
        """Return the meter of a training with these settings of each member."""
        longest = max(settings, key=lambda each: each.max_epochs)
        unit = "graphs" if isinstance(data, GraphData) else "" if longest.fanouts is None else "seed nodes"
        return cls(show, longest, len(data.train), unit, metric)

    def on_step(self, epochs: float) -> None:
        """Tell the number of epochs so far, the share of the current one included."""
        settings, current = self.settings, math.ceil(epochs)
        batches = math.ceil(self.size / settings.batch_size) if self.unit else 1
        batch = f"batch {round((epochs - current + 1) * batches)} of {batches}" if batches > 1 else ""
        text = ", ".join(filter(None, (f"epoch {current} of {settings.max_epochs}", batch, self.score)))
        self.show(Step("training", epochs / settings.max_epochs, text, epochs * self.size, self.unit))

    def on_epoch(self, points: Sequence[Epoch]) -> None:
        """Tell the mean score of those members of a stack that are still in training."""
        scores = [point.valid_metric for point in points if not math.isnan(point.valid_metric)]
        if scores:
            self.score = f"validation {self.metric} {statistics.mean(scores):.3f}"
        elif self.settings.patience is None and points:
            self.score = f"training loss {statistics.mean(point.train_loss for point in points):.3f}"
        if points:
            self.on_step(points[0].epoch)
