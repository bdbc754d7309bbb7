"""An ensemble of trained models whose mean logits are calibrated, and the vocabulary of a molecule data set."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from rgat.graph import RelationalGraph
from rgat.models import Model
from rgat.predictor.calibration import Calibration
from rgat.training.configuration import Config


@dataclasses.dataclass(frozen=True)
class Ensemble:
    """Trained models that predict together.

    Attributes:
        members: the models, one per random seed.
        config: model options and training settings, flat.
        calibration: maps logits to probabilities.
        report: held-out performance and the comparison with simpler systems, as plain values.
    """

    members: list[Model]
    config: Config
    calibration: Calibration
    report: dict[str, Any]

    @property
    def device(self) -> torch.device:
        """The device of the members."""
        return next(self.members[0].parameters()).device

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


@dataclasses.dataclass(frozen=True)
class MoleculeVocabulary:
    """What a predictor keeps of its molecule data set.

    Attributes:
        tasks: names of the tasks.
        relation_names: bond types, then "self" where atoms have self-loops.
        in_channels: number of atom features.
        provenance: origin of the training data.
    """

    tasks: tuple[str, ...]
    relation_names: tuple[str, ...]
    in_channels: int
    provenance: dict[str, Any]

    @property
    def self_loops(self) -> bool:
        """Whether atoms have self-loops."""
        return "self" in self.relation_names
