"""An ensemble of trained models, the calibration of its mean logits, and the vocabulary of a molecule data set.

Calibration fits a slope and intercepts of the logits to held-out examples. Class weights shift the logits of a rare
class, and long training scales them up. A slope alone (a temperature) would correct only the scale.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from rgat.data import MISSING
from rgat.graph import RelationalGraph
from rgat.models import Model
from rgat.predictor.conformal import COVERAGE, HeldOut, Question, hold_out, regions
from rgat.predictor.familiarity import Familiarity
from rgat.predictor.predictions import Predictions
from rgat.training.configuration import Config

# Standard deviations of the normal priors: log slopes around 0, intercepts around the shift that undoes class weights.
SLOPE_DEVIATION, INTERCEPT_DEVIATION = 1.0, 3.0


@dataclasses.dataclass(frozen=True)
class Calibration:
    """A map from logits to probabilities, and the scores of the held-out examples that it was fitted to."""

    slope: Tensor  # [] for nodes, [tasks] for graphs
    intercept: Tensor  # [classes] for nodes, [tasks] for graphs
    held_out: HeldOut | None = None  # None in folders of earlier versions

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return probabilities: for nodes ``[..., classes]``, for graphs ``[..., tasks]`` from ``[..., tasks, 2]``."""
        if self.slope.dim() == 0:
            return torch.softmax(self.slope.to(logits) * logits + self.intercept.to(logits), dim=-1)
        shifted = self.slope.to(logits) * (logits[..., 1] - logits[..., 0]) + self.intercept.to(logits)
        return torch.sigmoid(shifted)

    def with_held_out(self, logits: Tensor, labels: Tensor) -> Calibration:
        """Return the calibration with the scores of held-out examples: nodes ``[n]``, or graphs ``[n, tasks]``."""
        predictions = self.probabilities(logits.double().cpu()).numpy()
        truth = torch.where(labels == MISSING, torch.nan, labels.double()).cpu().numpy().reshape(len(labels), -1)
        questions = self.questions([str(column) for column in range(predictions.shape[1])])
        return dataclasses.replace(self, held_out=hold_out(questions, predictions, truth))

    def questions(self, columns: Sequence[str]) -> list[Question]:
        """Return what is predicted, given the names of the columns: one class of all, or 0 or 1 in each."""
        if self.slope.dim() == 0:
            return [Question("class", slice(0, len(columns)), tuple(columns))]
        return [Question(name, slice(k, k + 1), ("0", "1")) for k, name in enumerate(columns)]


def calibrate_nodes(logits: Tensor, labels: Tensor) -> Calibration:
    """Fit one slope to the logits ``[n, classes]`` and labels ``[n]`` of held-out nodes.

    Intercepts stay 0: held-out nodes are too few for more parameters. With balanced class weights, probabilities are
    thus those of a population in which all classes are equally frequent.
    """
    logits = logits.double().cpu()
    zero = torch.zeros(logits.shape[1], dtype=torch.float64)

    def loss(log_slope: Tensor, _: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(log_slope.exp() * logits, labels.cpu(), reduction="sum")

    slope, _ = _maximise_posterior(loss, torch.zeros((), dtype=torch.float64), zero)
    return Calibration(slope.float(), zero.float()).with_held_out(logits, labels)


def calibrate_graphs(logits: Tensor, labels: Tensor, class_weights: Tensor) -> Calibration:
    """Fit a slope and an intercept for each task to held-out graphs.

    Logits are ``[n, tasks, 2]``, labels ``[n, tasks]`` with -1 where missing, and class weights, those of the training
    loss, ``[tasks, 2]``.
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
    return Calibration(slope.float(), intercept.float()).with_held_out(logits, labels)


def _maximise_posterior(
    loss: Callable[[Tensor, Tensor], Tensor], log_slope: Tensor, expected: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the slopes and intercepts with the highest posterior, given the intercepts that the prior expects.

    ``loss`` takes log slopes and intercepts.
    """
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


@dataclasses.dataclass(frozen=True)
class Ensemble:
    """Trained models that predict together."""

    members: list[Model]  # one per random seed
    config: Config  # model options and training settings, flat
    calibration: Calibration
    report: dict[str, Any]  # held-out performance and the comparison with simpler systems, as plain values
    # Of the first member; None in folders of earlier versions.
    familiarity: Familiarity | None = dataclasses.field(default=None, kw_only=True)

    @property
    def device(self) -> torch.device:
        return next(self.members[0].parameters()).device

    @property
    def num_layers(self) -> int:
        """Number of relational layers of each member."""
        return len(self.members[0].convs)

    def to(self, device: torch.device | str) -> None:
        """Move the members to a device, in place."""
        for member in self.members:
            member.to(device)

    def on_device(self, x: Tensor | None, graph: RelationalGraph) -> tuple[Tensor | None, RelationalGraph]:
        """Return the input on the device of the members."""
        if graph.device != self.device:  # a copy would lose what was prepared
            graph = graph.to(self.device)
        return None if x is None else x.to(self.device), graph

    def member_logits(self, x: Tensor | None, graph: RelationalGraph) -> Tensor:
        """Return the logits of each member, ``[S, ...]``, on the CPU."""
        x, graph = self.on_device(x, graph)
        with torch.no_grad():
            return torch.stack([member(x, graph).float().cpu() for member in self.members])

    def probabilities(self, member_logits: Tensor) -> Tensor:
        """Return the calibrated probabilities of the mean logits."""
        return self.calibration.probabilities(member_logits.double().mean(0))

    def spread(self, member_logits: Tensor) -> Tensor:
        """Return the standard deviation of the members' own calibrated probabilities."""
        probabilities = self.calibration.probabilities(member_logits.double())
        return (probabilities - probabilities.mean(0)).square().mean(0).sqrt()

    def with_uncertainty(
        self, predictions: Predictions, coverage: float | None, hidden: Tensor | None, unlike: Sequence[str] | None
    ) -> Predictions:
        """Return the predictions with sets and distances to the training data, as far as the model has what they need.

        Args:
            predictions: of the ensemble.
            coverage: of the sets; None takes the default, where there are sets at all.
            hidden: last hidden layer of each example, NaN where it is not known.
            unlike: what each example has that no training example has, in words.
        """
        found: dict[str, Any] = {}
        held_out = self.calibration.held_out
        if held_out is not None:
            found["coverage"] = COVERAGE if coverage is None else coverage
            questions = self.calibration.questions(predictions.columns)
            found["regions"] = regions(questions, predictions.probabilities, held_out, found["coverage"])
        elif coverage is not None:
            raise ValueError(
                "sets of a coverage must come from a model that has held-out scores, but this one was "
                "written by an earlier version; train it again, or leave `coverage` (--coverage) out"
            )
        if self.familiarity is not None:
            known = (
                torch.full((len(predictions), self.familiarity.rows.shape[1]), math.nan) if hidden is None else hidden
            )
            found |= {"distance": self.familiarity.distances(known), "unlike": tuple(unlike or ())}
        return dataclasses.replace(predictions, **found)


@dataclasses.dataclass(frozen=True)
class MoleculeVocabulary:
    """What a predictor keeps of its molecule data set."""

    tasks: tuple[str, ...]
    relation_names: tuple[str, ...]  # bond types, then "self" where atoms have self-loops
    in_channels: int  # number of atom features
    provenance: dict[str, Any]  # origin of the training data

    @property
    def self_loops(self) -> bool:
        return "self" in self.relation_names
