"""Fine-tuning: a fit that starts from the relational layers of a saved model of molecules."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rgat.data import GraphData
from rgat.models import Model
from rgat.predictor.predictor import MoleculePredictor, Predictor
from rgat.training.checkpoint import digest
from rgat.training.configuration import PLAIN_GRAPHS, Config, split_config
from rgat.training.loop import Data

# Options that the taken layers do not depend on.
FREE = ("dense_channels", "gather_sum", "jumping_knowledge", "feature_dropout", "edge_dropout")
# Names of what is taken begin so; the dense layers are new: tasks and descriptors may be others.
TAKEN = ("conv", "norm", "layer_norm", "residual")
# What the relational layers have if a configuration does not say it.
UNSAID = PLAIN_GRAPHS | {"num_layers": 2, "layer_norm": False, "batch_norm": False, "bias": True, "num_bases": None}


class Start(NamedTuple):
    """The model that a fit starts from."""

    predictor: MoleculePredictor
    frozen: bool  # leave the relational layers as they are

    def take_over(self, models: Sequence[Model], config: Config) -> None:
        """Copy the relational layers of members; models of another kind, to compare with, stay as they are."""
        if config["model"] != self.predictor.config["model"]:
            return
        for model, member in zip(models, itertools.cycle(self.predictor.members), strict=False):
            for name, module in model.named_children():
                if not name.startswith(TAKEN):
                    continue
                module.load_state_dict(getattr(member, name).state_dict())
                if self.frozen:
                    module.requires_grad_(False)

    @property
    def report(self) -> dict[str, Any]:
        """What the report of the new model says of it."""
        return {"started_from": {"tasks": list(self.predictor.tasks), "frozen": self.frozen}}

    @property
    def identity(self) -> str:
        """A digest of the layers, by which a checkpoint of another start is noticed."""
        states = [member.state_dict() for member in self.predictor.members]
        taken = [{k: v for k, v in state.items() if k.startswith(TAKEN)} for state in states]
        return digest([sorted(each.items()) for each in taken] + [self.frozen])


def start_of(data: Data, predictor: Predictor | None, frozen: bool) -> Start | None:
    """Return where a fit starts from, if anywhere; raise unless its atoms and bonds are those of the data."""
    if predictor is None:
        if frozen:
            raise ValueError("`freeze` (--freeze) needs a model to start from: `start_from` (--from)")
        return None
    if not isinstance(predictor, MoleculePredictor) or not isinstance(data, GraphData):
        what = "a model" if isinstance(data, GraphData) else "data"
        raise ValueError(
            f"`start_from` (--from) is for models and tables of molecules, got {what} of nodes; leave it out"
        )
    vocabulary = predictor.vocabulary
    for words, ours, theirs in (
        ("bond types", data.relation_names, vocabulary.relation_names),
        ("atom features", data.in_channels, vocabulary.in_channels),
    ):
        if ours != theirs:
            raise ValueError(
                f"a model to start from must have the {words} of the data, {_listed(ours)}, got {_listed(theirs)}; "
                "read the table with the same options, or train a new model"
            )
    return Start(predictor, frozen)


def _listed(value: Any) -> str:
    return ", ".join(value) if isinstance(value, tuple) else str(value)


def with_architecture(options: Mapping[str, Any], start: Start | None) -> dict[str, Any]:
    """Return the options with those that fix the relational layers of the model to start from."""
    if start is None:
        return dict(options)
    config = UNSAID | start.predictor.config
    known, _ = split_config(config)
    fixed = {name: value for name, value in config.items() if name == "model" or (name in known and name not in FREE)}
    for name, value in fixed.items():
        if options.get(name, value) != value:
            raise ValueError(
                f"`{name}` must be that of the model to start from, {value!r}, got {options[name]!r}; leave it out"
            )
    return fixed | dict(options)
