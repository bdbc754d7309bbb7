"""The paper's models, and those it names as comparisons still missing: GGNN, and a later attention score."""

from __future__ import annotations

from typing import Any

import torch

from rgat.baselines.ggnn import GGNNGraphClassifier, GGNNNodeClassifier
from rgat.data import GraphData, NodeData
from rgat.models import Model
from rgat.training.configuration import VARIANTS, build_model

FURTHER_VARIANTS: dict[str, dict[str, Any]] = {
    "GGNN": {"layer": "ggnn"},
    "dynamic WIRGAT": {"scope": "within", "score": "dynamic"},
    "dynamic ARGAT": {"scope": "across", "score": "dynamic"},
}
ALL_VARIANTS = VARIANTS | FURTHER_VARIANTS


def build_variant(
    data: NodeData | GraphData, seed: int = 0, **options: Any
) -> Model | GGNNNodeClassifier | GGNNGraphClassifier:
    """Build a model that fits the data, as `build_model` does; ``layer`` may also be "ggnn"."""
    if options.get("layer") != "ggnn":
        return build_model(data, seed, **options)
    options = {name: value for name, value in options.items() if name != "layer"}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if isinstance(data, GraphData):
            return GGNNGraphClassifier(data.in_channels, len(data.tasks), data.graphs.num_relations, **options)
        return GGNNNodeClassifier(data.in_channels, len(data.classes), data.graph.num_relations, **options)
