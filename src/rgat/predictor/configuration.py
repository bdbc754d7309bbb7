"""Which model and how it is trained: defaults that work without any flag, a TOML file, options by name."""

from __future__ import annotations

import dataclasses
import inspect
import tomllib
from collections.abc import Mapping
from os import PathLike
from typing import Any

from rgat.checks import check_count, check_word
from rgat.data import GraphData, NodeData
from rgat.data.files import read_whole
from rgat.experiments.priors import check_kinds, priors_of
from rgat.experiments.units import PER_LAYER, read_config
from rgat.experiments.variants import VARIANTS
from rgat.models import RGCN_OPTIONS, GraphClassifier, NodeClassifier
from rgat.nn import RGATConv
from rgat.training import Settings

LARGEST_CONFIG = 1 << 20  # bytes of a TOML file

Config = dict[str, Any]

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
# What the layers of a fitted model are given by the data, not by a person.
_OF_THE_DATA = ("self", "in_channels", "out_channels", "num_classes", "num_tasks", "num_relations", "graph", "options")


def task_of(data: NodeData | GraphData) -> str:
    """What is to be classified: "node" or "graph"."""
    return "node" if isinstance(data, NodeData) else "graph"


def configure(task: str, given: Mapping[str, Any]) -> Config:
    """A whole configuration: what was given, its words checked, and the defaults for the rest.

    Args:
        task: "node" or "graph".
        given: ``model`` (its name in the paper's tables), options of the model, and settings of training, flat; L2
            coefficients are ``kernel_l2_1`` and so on, one per layer.
    """
    check_options(given, known_options(task))
    config = DEFAULTS[task] | dict(given)
    check_model(config["model"], given)
    if config["model"] == "RGCN":
        config = {name: value for name, value in config.items() if name not in ("heads", "num_attention_bases")}
    return config


def check_model(model: str, given: Mapping[str, Any]) -> None:
    """Raise unless there is such a model, and the options are none that it cannot have."""
    check_word("model", model, tuple(VARIANTS))
    unknown = [name for name in ("heads", "attention_l2_1", "attention_l2_2") if name in given]
    if model == "RGCN" and unknown:
        raise ValueError(f"`{unknown[0]}` must not be given for RGCN, which has no attention; leave it out")


def check_options(given: Mapping[str, Any], known: tuple[str, ...]) -> None:
    """Raise unless all options are known, and their values of the right kind."""
    check_kinds(priors_of("node", "additive WIRGAT") | priors_of("graph", "additive WIRGAT"), given)
    for name, value in given.items():
        check_word("option", name, known)
        if name in ("max_epochs", "patience", "batch_size") and value is not None:
            check_count(name, value)
        if name == "autocast" and not isinstance(value, bool):
            raise ValueError(f"`autocast` must be true or false, got {value!r}")


def known_options(task: str) -> tuple[str, ...]:
    """Every word that a configuration may hold."""
    model = NodeClassifier if task == "node" else GraphClassifier
    options = [*inspect.signature(model).parameters, *inspect.signature(RGATConv).parameters, *RGCN_OPTIONS]
    settings = [field.name for field in dataclasses.fields(Settings) if field.name not in PER_LAYER]
    layers = [f"{name}_{layer}" for name in PER_LAYER for layer in (1, 2)]
    dropped = (*_OF_THE_DATA, "layer", "scope", "score", "head_merge")
    return tuple(dict.fromkeys(["model", *(o for o in options if o not in dropped), *settings, *layers]))


def flat_config(model: str, options: Mapping[str, Any], settings: Settings) -> Config:
    """A configuration from options of a model and settings of training, the inverse of :func:`split_config`."""
    values = dataclasses.asdict(settings)
    layers = {f"{name}_{layer + 1}": value for name in PER_LAYER for layer, value in enumerate(values.pop(name))}
    own = {name: value for name, value in options.items() if name not in VARIANTS[model]}
    return {"model": model, **own, **values, **layers}


def split_config(config: Config) -> tuple[dict[str, Any], Settings]:
    """Options of the model, its variant spelt out, and settings of training."""
    rest = {name: value for name, value in config.items() if name != "model"}
    return read_config({**VARIANTS[config["model"]], **rest})


def searchable(task: str, config: Config, given: Mapping[str, Any]) -> dict[str, Any]:
    """The priors of the options that a person left open."""
    return {name: prior for name, prior in priors_of(task, config["model"]).items() if name not in given}


def read_toml(path: str | PathLike[str]) -> Config:
    """The configuration in a TOML file: flat, or the table [config] of one that `rgat reproduce` wrote."""
    try:
        content = tomllib.loads(read_whole(path, LARGEST_CONFIG).decode())
    except OSError as error:
        raise ValueError(f"{path} must be a TOML file that can be read ({error.strerror}); check the path") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} must be TOML ({error})") from error
    if "config" not in content:
        return content
    if not isinstance(content["config"], dict):
        raise ValueError(f"{path}: `config` must be a table, got {content['config']!r}")
    config = {name: value for name, value in content["config"].items() if name not in ("layer", "scope", "score")}
    return ({"model": content["model"]} if "model" in content else {}) | config


def read_option(text: str) -> tuple[str, Any]:
    """A pair NAME=VALUE; the value is read as in TOML, and a bare word is itself."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ValueError(f'an option must be NAME=VALUE, got "{text}"')
    try:
        return name, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return name, value
