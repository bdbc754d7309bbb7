"""The search space `extended`: all models at once, deeper networks, and options that the paper does not have.

A trial draws ``options``; `to_config` turns them into the flat configuration of a model and its training.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any

from rgat.training.configuration import (
    MAX_LAYERS,
    Config,
    LogUniform,
    MultiplesOf,
    OneOf,
    Prior,
    Uniform,
)

Space = dict[str, Prior]

NO_FEATURES = "none"  # value of `features`: the input is the node's identity alone
BESIDE_FEATURES = ("identity", "neighbours", "wide", "wide_l1")  # options that featureless input does not have
ATTENTION = ("scope", "score", "heads", "attention_l2")  # options that an RGCN does not have
_YES_NO = OneOf((False, True))

# By task; multiples of 8 are divisible by all numbers of heads.
EXTENDED: dict[str, Space] = {
    "node": {
        "layer": OneOf(("rgat", "rgcn")),
        "scope": OneOf(("within", "across", "mixed")),
        "score": OneOf(("additive", "multiplicative", "dynamic")),
        "heads": OneOf((1, 2, 4)),
        "hidden_channels": MultiplesOf(8, 8, 64),
        "num_layers": OneOf((2, 3, 4)),
        "num_bases": OneOf((None, 5, 10, 20, 30)),
        "residual": _YES_NO,
        "jumping_knowledge": _YES_NO,
        "batch_norm": _YES_NO,
        "layer_norm": _YES_NO,
        "feature_dropout": Uniform(0.0, 0.8),
        "edge_dropout": Uniform(0.0, 0.8),
        "kernel_l2_1": LogUniform(1e-6, 1e-1),
        "kernel_l2_2": LogUniform(1e-6, 1e-1),
        "attention_l2": LogUniform(1e-6, 1e-1),
        "learning_rate": LogUniform(1e-3, 1e-1),
        "label_smoothing": OneOf((0.0, 0.1, 0.2)),
        "weight_averaging": _YES_NO,
    },
    "graph": {
        "layer": OneOf(("rgat", "rgcn")),
        "scope": OneOf(("within", "across", "mixed")),
        "score": OneOf(("additive", "multiplicative", "dynamic")),
        "heads": OneOf((1, 2, 4, 8)),
        "hidden_channels": MultiplesOf(8, 32, 256),
        "dense_channels": MultiplesOf(8, 32, 256),
        "num_layers": OneOf((2, 3, 4)),
        "residual": _YES_NO,
        "jumping_knowledge": _YES_NO,
        "gather_sum": _YES_NO,
        "batch_norm": _YES_NO,
        "layer_norm": _YES_NO,
        "feature_dropout": Uniform(0.0, 0.6),
        "edge_dropout": Uniform(0.0, 0.6),
        "kernel_l2_1": LogUniform(1e-6, 1e-2),
        "kernel_l2_2": LogUniform(1e-6, 1e-2),
        "attention_l2": LogUniform(1e-6, 1e-2),
        "learning_rate": LogUniform(1e-4, 1e-2),
        "label_smoothing": OneOf((0.0, 0.1, 0.2)),
        "weight_averaging": _YES_NO,
    },
}
WIDE: Space = {"wide": _YES_NO, "wide_l1": LogUniform(1e-3, 1e-1)}  # a linear map of the features to the logits
MAX_DEGREE = OneOf((None, 10, 100, 1000))
NUM_PRUNED = OneOf((0, 1, 2, 4))
DESCRIPTORS = OneOf(("none", "rdkit", "both"))  # of molecules, beside the graph


def input_space(groups: Sequence[str]) -> Space:
    """Return the options of the input: any of the groups of node features, and what stands beside them."""
    if not groups:
        return {}
    sizes = range(len(groups), 0, -1)
    subsets = tuple(",".join(chosen) for size in sizes for chosen in combinations(groups, size))
    return {"features": OneOf((*subsets, NO_FEATURES)), "identity": _YES_NO, "neighbours": _YES_NO} | WIDE


def applies(name: str, chosen: Mapping[str, Any]) -> bool:
    """Return whether an option exists beside those chosen before it."""
    if name in ATTENTION:
        return chosen.get("layer") != "rgcn" and chosen.get("model") != "RGCN"
    if name == "wide_l1":
        return bool(chosen.get("wide"))
    if name in BESIDE_FEATURES:
        return chosen.get("features") != NO_FEATURES
    return True


def choose(space: Space, pick: Callable[[str, Prior], Any]) -> dict[str, Any]:
    """Return a value of each option that applies, picked in the order of the space."""
    chosen: dict[str, Any] = {}
    for name, prior in space.items():
        if applies(name, chosen):
            chosen[name] = pick(name, prior)
    return chosen


def to_config(options: Mapping[str, Any]) -> Config:
    """Return the configuration of a model and its training.

    Layers after the second have the L2 coefficient of the second. Mixed scopes need two heads, and of two
    normalisations only the batch's is kept.
    """
    config = dict(options)
    if config.get("scope") == "mixed":
        config["heads"] = max(2, config["heads"])
    if config.get("batch_norm") and "layer_norm" in config:
        config["layer_norm"] = False
    layers = range(1, min(config.get("num_layers", 2), MAX_LAYERS) + 1)
    if "attention_l2" in config:
        coefficient = config.pop("attention_l2")
        config |= {f"attention_l2_{layer}": coefficient for layer in layers}
    if "kernel_l2_2" in config:
        config |= {f"kernel_l2_{layer}": config["kernel_l2_2"] for layer in layers if layer > 2}
    return config
