"""From logits to probabilities that mean what they say: a slope and intercepts, found on held-out examples.

Class weights shift the logits of a rare class, and training for long stretches them. A slope alone (a temperature)
could undo only the second.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from rgat.data import MISSING

Loss = Callable[[Tensor, Tensor], Tensor]  # of log slopes and intercepts

# Beliefs before any held-out example: log slopes of about 0 and intercepts near the shift that class weights make.
SLOPE_SPREAD, INTERCEPT_SPREAD = 1.0, 3.0


@dataclass(frozen=True)
class Calibration:
    """How logits become probabilities.

    Nodes have one slope and an intercept per class; graphs have a slope and an intercept per task.
    """

    slope: Tensor
    intercept: Tensor

    def probabilities(self, logits: Tensor) -> Tensor:
        """Of nodes ``[..., classes]`` from such logits; of graphs ``[..., tasks]`` from ``[..., tasks, 2]``."""
        if self.slope.dim() == 0:
            return torch.softmax(self.slope.to(logits) * logits + self.intercept.to(logits), dim=-1)
        shifted = self.slope.to(logits) * (logits[..., 1] - logits[..., 0]) + self.intercept.to(logits)
        return torch.sigmoid(shifted)


def calibrate_nodes(logits: Tensor, labels: Tensor) -> Calibration:
    """One slope, for there are no class weights to undo, and too few held-out nodes to learn more from.

    Args:
        logits: ``[n, classes]`` of nodes that the model did not learn from.
        labels: ``[n]``, their classes.
    """
    logits = logits.double().cpu()
    zero = torch.zeros(logits.shape[1], dtype=torch.float64)

    def loss(log_slope: Tensor, _: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(log_slope.exp() * logits, labels.cpu(), reduction="sum")

    slope, _ = _maximise(loss, torch.zeros((), dtype=torch.float64), zero)
    return Calibration(slope.float(), zero.float())


def calibrate_graphs(logits: Tensor, labels: Tensor, class_weights: Tensor) -> Calibration:
    """A slope and an intercept for each task.

    Args:
        logits: ``[n, tasks, 2]`` of graphs that the model did not learn from.
        labels: ``[n, tasks]``, -1 where missing.
        class_weights: ``[tasks, 2]``, those of the training loss.
    """
    margin = (logits[..., 1] - logits[..., 0]).double().cpu()
    labels = labels.cpu()
    expected = -(class_weights[:, 1] / class_weights[:, 0]).log().double().cpu()
    known = labels != MISSING

    def loss(log_slope: Tensor, intercept: Tensor) -> Tensor:
        shifted = log_slope.exp() * margin + intercept
        nll = torch.nn.functional.binary_cross_entropy_with_logits(shifted, labels.double(), reduction="none")
        return torch.where(known, nll, 0).sum()

    slope, intercept = _maximise(loss, torch.zeros_like(expected), expected)
    return Calibration(slope.float(), intercept.float())


def _maximise(loss: Loss, log_slope: Tensor, expected: Tensor) -> tuple[Tensor, Tensor]:
    """The most likely slope and intercept, by beliefs and held-out examples together."""
    parameters = [log_slope.clone().requires_grad_(), expected.clone().requires_grad_()]
    optimizer = torch.optim.LBFGS(parameters, max_iter=200, line_search_fn="strong_wolfe")

    def evaluate() -> Tensor:
        optimizer.zero_grad()
        slope, intercept = parameters
        belief = (slope / SLOPE_SPREAD).square().sum() + ((intercept - expected) / INTERCEPT_SPREAD).square().sum()
        value: Tensor = loss(slope, intercept) + belief / 2
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimizer.step(evaluate)  # type: ignore[no-untyped-call]
    return parameters[0].detach().exp(), parameters[1].detach()
