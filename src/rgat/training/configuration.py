"""Which model to train, and how: the paper's variants, the defaults of `rgat.fit` and `rgat train`, and options.

A configuration is a flat dict: ``model`` (a name from the paper's tables), options of the model and settings of
training; L2 coefficients are given per layer, as ``kernel_l2_1``, ``kernel_l2_2``, ``attention_l2_1``,
``attention_l2_2``.
"""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from os import PathLike
from typing import Any

import torch

from rgat.checks import check_count, check_word
from rgat.data import GraphData, NodeData
from rgat.data.files import read_whole
from rgat.models import RGCN_OPTIONS, GraphClassifier, Model, NodeClassifier
from rgat.nn import RGATConv
from rgat.training.priors import check_kinds, priors_of

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

# Chosen on validation data: by cross-validation inside AIFB's training part, and on the validation part of Tox21.
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
        "learning_rate": 0.001,
        "max_epochs": 40,
        "patience": 8,
    },
}
PER_LAYER = ("kernel_l2", "attention_l2")
_FROM_DATA = ("self", "in_channels", "out_channels", "num_classes", "num_tasks", "num_relations", "graph", "options")
_FROM_VARIANT = ("layer", "scope", "score", "head_merge")


@dataclass(frozen=True)
class Settings:
    """How to train; by default as nodes are trained, but without L2 penalties. Graphs need a smaller learning rate.

    Attributes:
        learning_rate: of Adam.
        max_epochs: the largest number of epochs.
        patience: stop after this many epochs without an improvement on the validation part; None trains for exactly
            ``max_epochs`` epochs, ignores the validation part (which may be empty) and keeps the last epoch.
        batch_size: graphs per step; node classification always takes all training nodes at once.
        kernel_l2: coefficient of the squared kernels ``W``, one per relational layer.
        attention_l2: coefficient of the squared attention kernels, one per relational layer.
        autocast: run the model in bfloat16 where that is safe.
    """

    learning_rate: float = DEFAULTS["node"]["learning_rate"]
    max_epochs: int = DEFAULTS["node"]["max_epochs"]
    patience: int | None = DEFAULTS["node"]["patience"]
    batch_size: int = 64
    kernel_l2: tuple[float, float] = (0.0, 0.0)
    attention_l2: tuple[float, float] = (0.0, 0.0)
    autocast: bool = False

    def __post_init__(self) -> None:
        for name in ("learning_rate", "max_epochs", "patience", "batch_size"):
            if getattr(self, name) is not None and not getattr(self, name) > 0:
                raise ValueError(f"`{name}` must be above 0, got {getattr(self, name)}")
        for name in PER_LAYER:
            values = getattr(self, name)
            if len(values) != 2 or not all(value >= 0 for value in values):
                raise ValueError(f"`{name}` must be two numbers of at least 0, one per relational layer, got {values}")


def task_of(data: NodeData | GraphData) -> str:
    """Return "node" or "graph": what the labels of a data set belong to."""
    return "node" if isinstance(data, NodeData) else "graph"


def build_model(data: NodeData | GraphData, seed: int = 0, **options: Any) -> Model:
    """Build a model that fits the data, its parameters drawn from ``seed``."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if isinstance(data, GraphData):
            return GraphClassifier(data.in_channels, len(data.tasks), data.graphs.num_relations, **options)
        if data.x is None:
            options = options | {"graph": data.graph}
        return NodeClassifier(data.in_channels, len(data.classes), data.graph.num_relations, **options)


def configure(task: str, given: Mapping[str, Any]) -> Config:
    """Return a complete configuration for "node" or "graph" tasks: the checked options, and defaults for the rest."""
    check_options(given, task)
    config = DEFAULTS[task] | dict(given)
    if config["model"] == "RGCN":
        config = {name: value for name, value in config.items() if name not in ("heads", "num_attention_bases")}
    return config


def check_options(given: Mapping[str, Any], task: str | None = None) -> None:
    """Raise unless every option exists for the task (None: for either), has the right type and suits the model."""
    known = list(
        dict.fromkeys(name for each in ("node", "graph") if task in (None, each) for name in known_options(each))
    )
    check_kinds(priors_of("node", "additive WIRGAT") | priors_of("graph", "additive WIRGAT"), given)
    for name, value in given.items():
        check_word("option", name, known)
        if name in ("max_epochs", "patience", "batch_size") and value is not None:
            check_count(name, value)
        if name == "autocast" and not isinstance(value, bool):
            raise ValueError(f"`autocast` must be true or false, got {value!r}")
    if "model" in given:
        check_word("model", given["model"], tuple(VARIANTS))
    of_attention = [name for name in ("heads", "attention_l2_1", "attention_l2_2") if name in given]
    if given.get("model") == "RGCN" and of_attention:
        raise ValueError(f"`{of_attention[0]}` must not be given for RGCN, which has no attention; leave it out")


def known_options(task: str) -> tuple[str, ...]:
    """Return the names that a configuration may hold."""
    model = NodeClassifier if task == "node" else GraphClassifier
    options = [*inspect.signature(model).parameters, *inspect.signature(RGATConv).parameters, *RGCN_OPTIONS]
    settings = [field.name for field in fields(Settings) if field.name not in PER_LAYER]
    per_layer = [f"{name}_{layer}" for name in PER_LAYER for layer in (1, 2)]
    chosen = (name for name in options if name not in (*_FROM_DATA, *_FROM_VARIANT))
    return tuple(dict.fromkeys(["model", *chosen, *settings, *per_layer]))


def split_config(config: Mapping[str, Any]) -> tuple[dict[str, Any], Settings]:
    """Split a configuration into options of the model, with its variant spelt out, and settings of training."""
    options = dict(config)
    if "model" in options:
        options = VARIANTS[options.pop("model")] | options
    settings = {field.name: options.pop(field.name) for field in fields(Settings) if field.name in options}
    for name in PER_LAYER:
        settings[name] = tuple(options.pop(f"{name}_{layer}", 0.0) for layer in (1, 2))
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
