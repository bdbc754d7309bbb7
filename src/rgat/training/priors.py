"""The priors of the hyper-parameter search: the two tables of the paper's appendix B."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

TYPES = {bool: "true or false", int: "an integer", float: "a finite number", str: "a word"}


@dataclass(frozen=True)
class OneOf:
    """One of several values with equal probability."""

    values: tuple[Any, ...]

    @property
    def kind(self) -> str:
        """The type of the values, in words."""
        return " or ".join(dict.fromkeys(TYPES[type(value)] for value in self.values if value is not None))

    def draw(self, generator: np.random.Generator) -> Any:
        """Draw one value."""
        return self.values[int(generator.integers(len(self.values)))]

    def distribution(self) -> Any:
        """Return the same distribution as an Optuna object."""
        from optuna.distributions import CategoricalDistribution

        return CategoricalDistribution(self.values)

    def is_like(self, value: object) -> bool:
        """Return whether a value has the type of those drawn here."""
        return any(type(value) is type(other) for other in self.values)

    def __str__(self) -> str:
        words = {None: "Full", True: "Yes", False: "No"}
        shown = [words[value] if value is None or isinstance(value, bool) else str(value) for value in self.values]
        return f"OneOf({', '.join(shown)})"


@dataclass(frozen=True)
class Uniform:
    """A number between ``low`` and ``high``."""

    low: float
    high: float
    kind = TYPES[float]

    def draw(self, generator: np.random.Generator) -> float:
        return float(generator.uniform(self.low, self.high))

    def distribution(self) -> Any:
        from optuna.distributions import FloatDistribution

        return FloatDistribution(self.low, self.high, log=isinstance(self, LogUniform))

    def is_like(self, value: object) -> bool:
        return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max

    def __str__(self) -> str:
        return f"Uniform({self.low}, {self.high})"


@dataclass(frozen=True)
class LogUniform(Uniform):
    """A number whose logarithm is uniform."""

    def draw(self, generator: np.random.Generator) -> float:
        return min(math.exp(generator.uniform(math.log(self.low), math.log(self.high))), self.high)

    def __str__(self) -> str:
        return f"LogUniform({self.low:.0e}, {self.high:.0e})".replace("e-0", "e-")


@dataclass(frozen=True)
class MultiplesOf:
    """A multiple of ``step`` from ``low`` to ``high``, both included."""

    step: int
    low: int
    high: int
    kind = TYPES[int]

    def draw(self, generator: np.random.Generator) -> int:
        return self.low + self.step * int(generator.integers((self.high - self.low) // self.step + 1))

    def distribution(self) -> Any:
        from optuna.distributions import IntDistribution

        return IntDistribution(self.low, self.high, step=self.step)

    def is_like(self, value: object) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= sys.float_info.max

    def __str__(self) -> str:
        word = {4: "Four", 8: "Eight"}[self.step]
        return f"MultiplesOf{word}({self.low}, {self.high})"


Prior = OneOf | Uniform | MultiplesOf  # classes with the same methods, documented in the first


class Row(NamedTuple):
    """A row of a table: the paper's name, the prior, and whether only models with attention have the option."""

    words: str
    prior: Prior
    of_attention: bool = False


# Multiples of 4 are divisible by 1, 2 and 4 heads, multiples of 8 by 8 heads too, so every draw is a valid model.
PRIORS: dict[str, dict[str, Row]] = {
    "node": {
        "hidden_channels": Row("Graph kernel units", MultiplesOf(4, 4, 20)),
        "heads": Row("Heads", OneOf((1, 2, 4)), of_attention=True),
        "feature_dropout": Row("Feature dropout rate", Uniform(0.0, 0.8)),
        "edge_dropout": Row("Edge dropout", Uniform(0.0, 0.8)),
        "num_bases": Row("W basis size", OneOf((None, 5, 10, 20, 30))),
        "kernel_l2_1": Row("Graph layer 1 W L2 coef", LogUniform(1e-6, 1e-1)),
        "kernel_l2_2": Row("Graph layer 2 W L2 coef", LogUniform(1e-6, 1e-1)),
        "num_attention_bases": Row("A basis size", OneOf((None, 5, 10, 20, 30)), of_attention=True),
        "attention_l2_1": Row("Graph layer 1 A L2 coef", LogUniform(1e-6, 1e-1), of_attention=True),
        "attention_l2_2": Row("Graph layer 2 A L2 coef", LogUniform(1e-6, 1e-1), of_attention=True),
        "learning_rate": Row("Learning rate", LogUniform(1e-5, 1e-1)),
        "bias": Row("Use bias", OneOf((True, False))),
        "batch_norm": Row("Use batch normalisation", OneOf((True, False))),
    },
    "graph": {
        "hidden_channels": Row("Graph kernel units", MultiplesOf(8, 32, 128)),
        "dense_channels": Row("Dense units", MultiplesOf(8, 32, 128)),
        "heads": Row("Heads", OneOf((1, 2, 4, 8)), of_attention=True),
        "feature_dropout": Row("Feature dropout", Uniform(0.0, 0.8)),
        "edge_dropout": Row("Edge dropout", Uniform(0.0, 0.8)),
        "kernel_l2_1": Row("W L2 coef (1)", LogUniform(1e-6, 1e-1)),
        "kernel_l2_2": Row("W L2 coef (2)", LogUniform(1e-6, 1e-1)),
        "attention_l2_1": Row("a L2 coef (1)", LogUniform(1e-6, 1e-1), of_attention=True),
        "attention_l2_2": Row("a L2 coef (2)", LogUniform(1e-6, 1e-1), of_attention=True),
        "learning_rate": Row("Learning rate", LogUniform(1e-5, 1e-1)),
        "bias": Row("Use bias", OneOf((True, False))),
        "batch_norm": Row("Use batch normalisation", OneOf((True, False))),
    },
}


WITHOUT_ATTENTION = ("RGCN", "GGNN")


def check_kinds(priors: Mapping[str, Prior], given: Mapping[str, Any]) -> None:
    """Raise unless each given option that has a prior has the type of its draws."""
    for name, value in given.items():
        if name in priors and not priors[name].is_like(value):
            raise ValueError(f"`{name}` must be {priors[name].kind}, got {value!r}")


def priors_of(task: str, model: str) -> dict[str, Prior]:
    """Return the priors of a model's options for "node" or "graph" tasks."""
    rows = PRIORS[task].items()
    return {name: row.prior for name, row in rows if not (row.of_attention and model in WITHOUT_ATTENTION)}


def draw_options(priors: dict[str, Prior], search_seed: int, trial: int) -> dict[str, Any]:
    """Draw one value from each prior.

    Each option has its own random generator, so trial 7 of two models has the same values of the options they share.
    """
    return {
        name: prior.draw(np.random.default_rng([search_seed, trial, *name.encode()])) for name, prior in priors.items()
    }
