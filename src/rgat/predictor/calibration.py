"""Calibrate probabilities: fit a slope and intercepts of the logits to held-out examples.

Class weights shift the logits of a rare class, and long training scales them up. A slope alone (a temperature) would
correct only the scale.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from rgat.data import MISSING

Loss = Callable[[Tensor, Tensor], Tensor]  # of log slopes and intercepts

# Standard deviations of the normal priors: log slopes around 0, intercepts around the shift that undoes class weights.
SLOPE_DEVIATION, INTERCEPT_DEVIATION = 1.0, 3.0


@dataclass(frozen=True)
class Calibration:
    """A map from logits to probabilities.

    Nodes have one slope and an intercept per class; graphs have a slope and an intercept per task.
    """

    slope: Tensor
    intercept: Tensor

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return probabilities: for nodes ``[..., classes]``, for graphs ``[..., tasks]`` from ``[..., tasks, 2]``."""
        if self.slope.dim() == 0:
            return torch.softmax(self.slope.to(logits) * logits + self.intercept.to(logits), dim=-1)
        shifted = self.slope.to(logits) * (logits[..., 1] - logits[..., 0]) + self.intercept.to(logits)
        return torch.sigmoid(shifted)


def calibrate_nodes(logits: Tensor, labels: Tensor) -> Calibration:
    """Fit one slope: node losses have no class weights, and held-out nodes are too few for more parameters.

    Args:
        logits: ``[n, classes]`` of held-out nodes.
        labels: ``[n]``, their classes.
    """
    logits = logits.double().cpu()
    zero = torch.zeros(logits.shape[1], dtype=torch.float64)

    def loss(log_slope: Tensor, _: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(log_slope.exp() * logits, labels.cpu(), reduction="sum")

    slope, _ = _maximise_posterior(loss, torch.zeros((), dtype=torch.float64), zero)
    return Calibration(slope.float(), zero.float())


def calibrate_graphs(logits: Tensor, labels: Tensor, class_weights: Tensor) -> Calibration:
    """Fit a slope and an intercept for each task.

    Args:
        logits: ``[n, tasks, 2]`` of held-out graphs.
        labels: ``[n, tasks]``, -1 where missing.
        class_weights: ``[tasks, 2]`` of the training loss.
    """
    margin = (logits[..., 1] - logits[..., 0]).double().cpu()
    labels = labels.cpu()
    expected = -(class_weights[:, 1] / class_weights[:, 0]).log().double().cpu()
    known = labels != MISSING

    def loss(log_slope: Tensor, intercept: Tensor) -> Tensor:
        shifted = log_slope.exp() * margin + intercept
        nll = torch.nn.functional.binary_cross_entropy_with_logits(shifted, labels.double(), reduction="none")
        return torch.where(known, nll, 0).sum()

    slope, intercept = _maximise_posterior(loss, torch.zeros_like(expected), expected)
    return Calibration(slope.float(), intercept.float())


def _maximise_posterior(loss: Loss, log_slope: Tensor, expected: Tensor) -> tuple[Tensor, Tensor]:
    """Return the slopes and intercepts with the highest posterior, given the intercepts that the prior expects."""
    parameters = [log_slope.clone().requires_grad_(), expected.clone().requires_grad_()]
    optimizer = torch.optim.LBFGS(parameters, max_iter=200, line_search_fn="strong_wolfe")

    def evaluate() -> Tensor:
        optimizer.zero_grad()
        slope, intercept = parameters
        prior = (slope / SLOPE_DEVIATION).square().sum()
        prior = prior + ((intercept - expected) / INTERCEPT_DEVIATION).square().sum()
        value: Tensor = loss(slope, intercept) + prior / 2
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimizer.step(evaluate)  # type: ignore[no-untyped-call]
    return parameters[0].detach().exp(), parameters[1].detach()
