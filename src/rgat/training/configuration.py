"""Which model to train, and how: the paper's variants and priors, the defaults of `rgat.fit` and `rgat train`, options.

A configuration is a flat dict: ``model`` (a name from the paper's tables), options of the model and settings of
training; L2 coefficients are given per layer, as ``kernel_l2_1``, ``kernel_l2_2``, ``attention_l2_1``,
``attention_l2_2``. The scope of the softmax follows from the model, except for ``scope = "mixed"``.
"""

from __future__ import annotations

import inspect
import math
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from os import PathLike
from typing import Any, NamedTuple

import numpy as np
import torch

from rgat.checks import check_count, check_word
from rgat.data import GraphData, NodeData
from rgat.data.files import read_whole
from rgat.models import GraphClassifier, Model, NodeClassifier
from rgat.nn import RGATConv
from rgat.nn.families import RGCN_OPTIONS
from rgat.training.distributed import processes
from rgat.training.embeddings import ShardedEmbedding
from rgat.training.fanouts import Fanout, check_fanouts, read_fanouts

Config = dict[str, Any]

LARGEST_FILE = 1 << 20  # bytes of a TOML file

# In the order of the paper's tables.
VARIANTS: dict[str, dict[str, Any]] = {
    "RGCN": {"layer": "rgcn"},
    "additive WIRGAT": {"scope": "within", "score": "additive"},
    "additive ARGAT": {"scope": "across", "score": "additive"},
    "multiplicative WIRGAT": {"scope": "within", "score": "multiplicative"},
    "multiplicative ARGAT": {"scope": "across", "score": "multiplicative"},
}

# Chosen on validation data: by cross-validation inside AIFB's training part, and on validation parts of Tox21 and of
# tables with numbers (docs/molecules.md).
DEFAULTS: dict[str, Config] = {
    "node": {
        "model": "additive WIRGAT",
        "hidden_channels": 16,
        "feature_dropout": 0.3,
        "learning_rate": 0.01,
        "kernel_l2_1": 5e-4,
        "kernel_l2_2": 5e-4,
        "max_epochs": 150,
        "patience": 30,
    },
    "graph": {
        "model": "multiplicative WIRGAT",
        "hidden_channels": 64,
        "dense_channels": 64,
        "heads": 4,
        "gather_sum": True,
        "residual": True,
        "learning_rate": 0.003,
        "max_epochs": 60,
        "patience": 8,
    },
}
# What the paper's graph classifier has instead of the defaults, and models of versions that had no such options.
PLAIN_GRAPHS: Config = {"gather_sum": False, "residual": False}
PER_LAYER = ("kernel_l2", "attention_l2")
MAX_LAYERS = 4  # with L2 coefficients
CLASS_WEIGHTS = ("balanced", "none")
SEEDS_PER_STEP = 1024  # of sampled training, unless a batch size is given
_FROM_DATA = (
    *("self", "in_channels", "out_channels", "num_classes", "num_tasks", "num_relations", "num_nodes"),
    *("graph", "options", "make_embedding", "descriptor_channels"),
)
_FROM_VARIANT = ("layer", "scope", "score", "head_merge")
_FLAGS = (
    *("autocast", "shard_embeddings", "weight_averaging"),
    *("identity", "residual", "layer_norm", "jumping_knowledge", "wide", "gather_sum"),
)
_TYPES = {bool: "true or false", int: "an integer", float: "a finite number", str: "a word"}


@dataclass(frozen=True)
class OneOf:
    """One of several values with equal probability."""

    values: tuple[Any, ...]

    def draw(self, generator: np.random.Generator) -> Any:
        return self.values[int(generator.integers(len(self.values)))]

    def __str__(self) -> str:
        words = {None: "Full", True: "Yes", False: "No"}
        shown = [words[value] if value is None or isinstance(value, bool) else str(value) for value in self.values]
        return f"OneOf({', '.join(shown)})"


@dataclass(frozen=True)
class Uniform:
    """A number between ``low`` and ``high``."""

    low: float
    high: float

    def draw(self, generator: np.random.Generator) -> float:
        return float(generator.uniform(self.low, self.high))

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

    def draw(self, generator: np.random.Generator) -> int:
        return self.low + self.step * int(generator.integers((self.high - self.low) // self.step + 1))

    def __str__(self) -> str:
        word = {4: "Four", 8: "Eight"}[self.step]
        return f"MultiplesOf{word}({self.low}, {self.high})"


Prior = OneOf | Uniform | MultiplesOf


class Row(NamedTuple):
    """A row of a table: the paper's name, the prior, and whether only models with attention have the option."""

    words: str
    prior: Prior
    of_attention: bool = False


# The two tables of the paper's appendix B.
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


@dataclass(frozen=True)
class Settings:
    """How to train; by default as nodes are trained, but without L2 penalties. Graphs need a smaller learning rate.

    Training stops after ``patience`` epochs without an improvement on the validation part, at an epoch that ends with a
    validation: each ``validate_every``-th, and the last. With None it takes exactly ``max_epochs`` epochs, ignores the
    validation part (which may be empty) and keeps the last epoch.

    Examples:
        >>> from rgat.training import Settings
        >>> settings = Settings(learning_rate=0.005, kernel_l2=(5e-4, 0.0), fanouts=(10, 5))
        >>> settings.patience
        30
    """

    learning_rate: float = DEFAULTS["node"]["learning_rate"]  # of Adam
    max_epochs: int = DEFAULTS["node"]["max_epochs"]
    patience: int | None = DEFAULTS["node"]["patience"]
    batch_size: int = 64  # graphs per step, or training nodes with `fanouts`; without, all training nodes at once
    kernel_l2: tuple[float, ...] = (0.0, 0.0)  # coefficient of the squared kernels ``W`` of each relational layer
    attention_l2: tuple[float, ...] = (0.0, 0.0)  # coefficient of the squared attention kernels of each layer
    wide_l1: float = 0.0  # coefficient of the absolute weights of a wide model's map of the features
    autocast: bool = False  # run the model in bfloat16 where that is safe
    # Edges of each (target, relation) to sample, per layer, or a mapping of relations to these; None: all nodes.
    fanouts: tuple[Fanout, ...] | None = None
    validate_every: int = 1  # epochs from one validation to the next
    shard_embeddings: bool = False  # divide node embeddings among the processes of `torchrun`
    # "balanced": all classes count equally in losses; "none": all examples do. None is "none" for nodes, and "balanced"
    # for 0/1 tasks and labels of graphs.
    class_weights: str | None = None
    label_smoothing: float = 0.0  # share of each label that is spread evenly over all classes, in losses to learn from
    weight_averaging: bool = False  # validate and keep the mean of the parameters over epochs (`averaging.py`)

    def __post_init__(self) -> None:
        for name in ("learning_rate", "max_epochs", "patience", "batch_size", "validate_every"):
            if getattr(self, name) is not None and not getattr(self, name) > 0:
                raise ValueError(f"`{name}` must be above 0, got {getattr(self, name)}")
        if self.class_weights is not None:
            check_word("class_weights", self.class_weights, CLASS_WEIGHTS)
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(f"`label_smoothing` must be at least 0 and below 1, got {self.label_smoothing}")
        if not self.wide_l1 >= 0:
            raise ValueError(f"`wide_l1` must be at least 0, got {self.wide_l1}")
        for name in PER_LAYER:
            values = getattr(self, name)
            if not all(value >= 0 for value in values):
                raise ValueError(f"`{name}` must be numbers of at least 0, one per relational layer, got {values}")


def task_of(data: NodeData | GraphData) -> str:
    """Return "node" or "graph": what the labels of a data set belong to."""
    return "node" if isinstance(data, NodeData) else "graph"


def build_model(data: NodeData | GraphData, seed: int = 0, shard_embeddings: bool = False, **options: Any) -> Model:
    """Build a model that fits the data, its parameters drawn from ``seed``.

    With ``shard_embeddings``, each of several processes draws its own rows of the embeddings, and holds no others.

    Examples:
        >>> import rgat
        >>> data = rgat.data.load("institute")
        >>> model = rgat.training.build_model(data, seed=3, layer="rgcn", hidden_channels=32)
        >>> model.conv2
        RGCNConv(
          32, 4, num_relations=43
          (kernel): FullKernel()
        )
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if isinstance(data, GraphData):
            if (described := data.graphs.graph_attr) is not None:
                options = options | {"descriptor_channels": described.shape[1]}
            sizes = (data.in_channels, len(data.tasks), data.graphs.num_relations, 2 if data.values is None else 1)
            return GraphClassifier(*sizes, **options)
        if data.x is None:  # then identity is the input itself
            options = options | {"identity": False, "wide": False}
        if options.get("identity") or (data.x is None and options.get("embedding_channels") is None):
            options = options | {"graph": data.graph}
        if shard_embeddings and processes().number > 1:
            options = options | {"make_embedding": ShardedEmbedding.draw}
        return NodeClassifier(data.in_channels, len(data.classes), data.graph.num_relations, **options)


def configure(task: str, given: Mapping[str, Any]) -> Config:
    """Return a complete configuration for "node" or "graph" tasks: the checked options, and defaults for the rest."""
    check_options(given, task)
    config = DEFAULTS[task] | dict(given)
    if config["model"] == "RGCN":
        config = {name: value for name, value in config.items() if name not in ("heads", "num_attention_bases")}
    return config


def priors_of(task: str, model: str) -> dict[str, Prior]:
    """Return the priors of a model's options for "node" or "graph" tasks."""
    has_attention = model not in ("RGCN", "GGNN")
    return {name: row.prior for name, row in PRIORS[task].items() if has_attention or not row.of_attention}


def check_kinds(priors: Mapping[str, Prior], given: Mapping[str, Any]) -> None:
    """Raise unless each given option that has a prior has the type of its draws."""
    for name in (name for name in given if name in priors):
        prior, value = priors[name], given[name]
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
        if isinstance(prior, OneOf):
            types = list(dict.fromkeys(type(allowed) for allowed in prior.values if allowed is not None))
            fits = type(value) in map(type, prior.values)
        elif isinstance(prior, MultiplesOf):
            types, fits = [int], is_number and isinstance(value, int)
        else:
            types, fits = [float], is_number
        if not fits:
            raise ValueError(f"`{name}` must be {' or '.join(_TYPES[kind] for kind in types)}, got {value!r}")


def check_options(given: Mapping[str, Any], task: str | None = None) -> None:
    """Raise unless every option exists for the task (None: for either), has the right type and suits the model."""
    known = list(
        dict.fromkeys(name for each in ("node", "graph") if task in (None, each) for name in known_options(each))
    )
    check_kinds(priors_of("node", "additive WIRGAT") | priors_of("graph", "additive WIRGAT"), given)
    for name, value in given.items():
        check_word("option", name, known)
        if name in ("max_epochs", "patience", "batch_size", "validate_every", "num_layers") and value is not None:
            check_count(name, value)
        if name == "fanouts":
            check_fanouts(value, given.get("num_layers", 2))
        if name in _FLAGS and not isinstance(value, bool):
            raise ValueError(f"`{name}` must be true or false, got {value!r}")
        if name == "class_weights" and value is not None:
            check_word(name, value, (*CLASS_WEIGHTS, "auto"))
        if name == "scope":
            check_word(name, value, ("mixed",))
        if name in ("label_smoothing", "wide_l1") and (isinstance(value, bool) or not isinstance(value, int | float)):
            bound = " and below 1" if name == "label_smoothing" else ""
            raise ValueError(f"`{name}` must be a number of at least 0{bound}, got {value!r}")
    if "model" in given:
        check_word("model", given["model"], tuple(VARIANTS))
    of_attention = [name for name in given if name in ("heads", "scope") or name.startswith("attention_l2")]
    if given.get("model") == "RGCN" and of_attention:
        raise ValueError(f"`{of_attention[0]}` must not be given for RGCN, which has no attention; leave it out")


def known_options(task: str) -> tuple[str, ...]:
    """Return the names that a configuration may hold."""
    model = NodeClassifier if task == "node" else GraphClassifier
    options = [*inspect.signature(model).parameters, *inspect.signature(RGATConv).parameters, *RGCN_OPTIONS]
    settings = [field.name for field in fields(Settings) if field.name not in PER_LAYER]
    if task == "graph":
        settings = [name for name in settings if name not in ("fanouts", "shard_embeddings", "wide_l1")]
    per_layer = [f"{name}_{layer}" for name in PER_LAYER for layer in range(1, MAX_LAYERS + 1)]
    chosen = (name for name in options if name not in (*_FROM_DATA, *_FROM_VARIANT))
    return tuple(dict.fromkeys(["model", "scope", *chosen, *settings, *per_layer]))


def split_config(config: Mapping[str, Any]) -> tuple[dict[str, Any], Settings]:
    """Split a configuration into options of the model, with its variant spelt out, and settings of training."""
    options = dict(config)
    if "model" in options:
        options = VARIANTS[options.pop("model")] | options
    settings = {field.name: options.pop(field.name) for field in fields(Settings) if field.name in options}
    for name in PER_LAYER:
        layers = range(1, options.get("num_layers", 2) + 1)
        settings[name] = tuple(options.pop(f"{name}_{layer}", 0.0) for layer in layers)
        for layer in range(len(layers) + 1, MAX_LAYERS + 1):
            options.pop(f"{name}_{layer}", None)
    if settings.get("fanouts") is not None:
        settings["fanouts"] = read_fanouts(settings["fanouts"])
        settings.setdefault("batch_size", SEEDS_PER_STEP)
    return options, Settings(**settings)


def read_toml(path: str | PathLike[str]) -> dict[str, Any]:
    """Read a TOML file."""
    try:
        return tomllib.loads(read_whole(path, LARGEST_FILE).decode())
    except OSError as error:
        raise ValueError(f"{path} must be a TOML file that can be read ({error.strerror}); check the path") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} must be TOML ({error})") from error


def read_config(path: str | PathLike[str]) -> Config:
    """Read a configuration from a TOML file: flat, or the table [config] of a file that `rgat reproduce` wrote."""
    content = read_toml(path)
    if "config" not in content:
        return content
    if not isinstance(content["config"], dict):
        raise ValueError(f"{path}: `config` must be a table, got {content['config']!r}")
    config = {name: value for name, value in content["config"].items() if name not in ("layer", "scope", "score")}
    if content["config"].get("scope") == "mixed":
        config["scope"] = "mixed"
    if "dense_channels" in config:  # a graph classifier of the paper's
        config = PLAIN_GRAPHS | config
    return ({"model": content["model"]} if "model" in content else {}) | config


def read_option(text: str) -> tuple[str, Any]:
    """Read NAME=VALUE; the value is written as in TOML, or is a bare word."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ValueError(f'an option must be NAME=VALUE, got "{text}"')
    try:
        return name, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return name, value
