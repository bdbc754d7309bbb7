"""An ensemble of trained models, the calibration of its mean logits, and the vocabulary of a molecule data set.

Calibration fits a slope and intercepts of the logits to held-out examples. Class weights shift the logits of a rare
class, and long training scales them up. A slope alone (a temperature) would correct only the scale.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from rgat.checks import check_word
from rgat.data import MISSING, GraphData, NodeData, Target
from rgat.data.molecules.descriptors import Descriptors
from rgat.data.targets import places
from rgat.graph import RelationalGraph
from rgat.models import GraphClassifier, Model
from rgat.training.configuration import Config
from rgat.training.loss import target_losses
from rgat.training.targets import units

Columns = tuple[str, tuple[str, ...]]  # kind of descriptors and names of properties, for `describe`
# Standard deviations of the normal priors: log slopes around 0, intercepts around the shift that undoes class weights.
SLOPE_DEVIATION, INTERCEPT_DEVIATION = 1.0, 3.0


@dataclasses.dataclass(frozen=True)
class Calibration:
    """A map from logits to probabilities and, of numbers, from outputs to values in their unit."""

    slope: Tensor  # [] for classes of nodes, [tasks] for graphs, [outputs] of targets
    intercept: Tensor  # [classes] for nodes, [tasks] for graphs, [outputs] of targets
    targets: tuple[Target, ...] = ()  # none for one class per node and for 0/1 tasks of graphs

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return probabilities: for nodes ``[..., classes]``, for graphs ``[..., tasks]`` from ``[..., tasks, 2]``.

        Of targets they are ``[..., outputs]``, with numbers in their unit.
        """
        if self.targets:
            return self._predictions(self.slope.to(logits) * logits + self.intercept.to(logits))
        if self.slope.dim() == 0:
            return torch.softmax(self.slope.to(logits) * logits + self.intercept.to(logits), dim=-1)
        shifted = self.slope.to(logits) * (logits[..., 1] - logits[..., 0]) + self.intercept.to(logits)
        return torch.sigmoid(shifted)

    def _predictions(self, outputs: Tensor) -> Tensor:
        means, scales = (each.to(outputs) for each in units(self.targets))
        parts = []
        for target, place in places(self.targets):
            out = outputs[..., place]
            if target.kind == "regression":
                parts.append(out * scales[place] + means[place])
            else:
                parts.append(torch.softmax(out, dim=-1) if target.kind == "multi-class" else torch.sigmoid(out))
        return torch.cat(parts, dim=-1)


def calibrate(outputs: Tensor, data: NodeData | GraphData, ids: Tensor, class_weights: Tensor) -> Calibration:
    """Fit the calibration of whatever the data are to learn to the outputs of held-out examples.

    ``class_weights`` are those of the 0/1 tasks of graphs in the training loss, ``[tasks, 2]``.
    """
    if data.values is not None:
        return calibrate_targets(outputs, data.values[ids], data.targets, class_weights)
    if isinstance(data, GraphData):
        return calibrate_graphs(outputs, data.labels[ids], class_weights)
    return calibrate_nodes(outputs, data.labels[ids])


def calibrate_targets(
    outputs: Tensor, values: Tensor, targets: Sequence[Target], class_weights: Tensor | None = None
) -> Calibration:
    """Fit a slope of each target's logits, of each label one of its own, and intercepts of labels; keep numbers.

    Outputs and values are ``[n, outputs]``, and class weights, those of the training loss, ``[outputs, 2]``.
    """
    outputs, count = outputs.double().cpu(), outputs.shape[1]
    group, is_number, has_intercept = torch.arange(count), torch.zeros(count).bool(), torch.ones(count).bool()
    for target, place in places(targets):
        is_number[place] = target.kind == "regression"
        has_intercept[place] = target.kind in ("binary", "multi-label")
        if target.kind == "multi-class":
            group[place] = place.start
    expected = torch.zeros(count, dtype=torch.float64)
    if class_weights is not None:
        expected = -(class_weights[:, 1] / class_weights[:, 0]).log().double().cpu() * has_intercept
    known, goals = ~values.isnan() & ~is_number, values.nan_to_num()

    def loss(log_slope: Tensor, intercept: Tensor) -> Tensor:
        shifted = log_slope.exp()[group] * outputs + intercept * has_intercept
        return torch.where(known, target_losses(shifted, goals, None, targets), 0).sum()

    slope, intercept = _maximise_posterior(loss, torch.zeros(count, dtype=torch.float64), expected)
    slope, intercept = torch.where(is_number, 1.0, slope[group]), intercept * has_intercept
    return Calibration(slope.float(), intercept.float(), tuple(targets))


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
    return Calibration(slope.float(), zero.float())


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
    return Calibration(slope.float(), intercept.float())


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


def log_odds(probability: Tensor) -> Tensor:
    """Return the log-odds of probabilities, finite at 0 and 1."""
    return torch.logit(probability.clamp(1e-12, 1 - 1e-12))


@dataclasses.dataclass(frozen=True)
class Ensemble:
    """Trained models that predict together."""

    members: list[Model]  # one per random seed
    config: Config  # model options and training settings, flat
    calibration: Calibration
    report: dict[str, Any]  # held-out performance and the comparison with simpler systems, as plain values

    @property
    def device(self) -> torch.device:
        return next(self.members[0].parameters()).device

    @property
    def targets(self) -> tuple[Target, ...]:
        """The targets of the outputs; none for one class per node and for 0/1 tasks of graphs."""
        return self.calibration.targets

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
            logits = torch.stack([member(x, graph).float().cpu() for member in self.members])
        return logits.squeeze(-1) if self.targets and isinstance(self.members[0], GraphClassifier) else logits

    def probabilities(self, member_logits: Tensor) -> Tensor:
        """Return the calibrated probabilities of the mean logits."""
        return self.calibration.probabilities(member_logits.double().mean(0))

    def output_of(self, predictions: Tensor, names: Sequence[str], wanted: str | None) -> int:
        """Return the output to explain, given the predictions ``[outputs]`` and names of all.

        That is the one of the wanted name or, for the name of a target and by default for the first target, its number
        or its most probable class or label. Without targets, it is the most probable output.
        """
        if wanted is not None and wanted in names:
            return list(names).index(wanted)
        if not self.targets and wanted is None:
            return int(predictions.argmax())
        known = {target.name: place for target, place in places(self.targets)}
        if wanted is not None:
            check_word("task", wanted, list(dict.fromkeys([*known, *names])))
        place = next(iter(known.values())) if wanted is None else known[wanted]
        return int(place.start) + int(predictions[place].argmax())

    def target_of(self, output: int) -> Target | None:
        """Return the target that an output belongs to; None without targets."""
        return next((target for target, place in places(self.targets) if place.start <= output < place.stop), None)

    def competitors(self, output: int, count: int) -> slice:
        """Return the outputs of one softmax with an output; those of a number or a label are itself."""
        for target, place in places(self.targets):
            if place.start <= output < place.stop:
                return place if target.kind == "multi-class" else slice(output, output + 1)
        return slice(0, count)

    def change(self, after: Tensor, before: Tensor, output: int) -> Tensor:
        """Return the change of an output on a scale that does not saturate: in log-odds, or in a number's deviation."""
        target = self.target_of(output)
        if target is not None and target.kind == "regression":
            return (after[..., output] - before[..., output]) / target.scale
        return log_odds(after[..., output]) - log_odds(before[..., output])

    def spread(self, member_logits: Tensor) -> Tensor:
        """Return the standard deviation of the members' own calibrated probabilities."""
        probabilities = self.calibration.probabilities(member_logits.double())
        return (probabilities - probabilities.mean(0)).square().mean(0).sqrt()


@dataclasses.dataclass(frozen=True)
class MoleculeVocabulary:
    """What a predictor keeps of its molecule data set."""

    tasks: tuple[str, ...]
    relation_names: tuple[str, ...]  # bond types, then "self" where atoms have self-loops
    in_channels: int  # number of atom features
    provenance: dict[str, Any]  # origin of the training data
    targets: tuple[Target, ...] = ()  # of the tasks, if they are not all columns of 0 and 1
    descriptors: Descriptors | None = None  # beside the graph

    @property
    def self_loops(self) -> bool:
        return "self" in self.relation_names

    @property
    def keeps_largest(self) -> bool:
        """Whether only the largest fragment of a salt or mixture is read."""
        return bool(self.provenance.get("fragments") == "largest")

    @property
    def columns(self) -> Columns | None:
        """The descriptors to compute; None for the graph alone."""
        return None if self.descriptors is None else (self.descriptors.kind, self.descriptors.properties)

    @property
    def reading(self) -> tuple[bool, Columns | None, bool]:
        """How molecules are read: with self-loops, which descriptors, and only the largest fragment."""
        return self.self_loops, self.columns, self.keeps_largest
