"""The models of the paper's tables, by their names there."""

from __future__ import annotations

from typing import Any

import torch

from rgat.baselines.ggnn import GGNNGraphClassifier, GGNNNodeClassifier
from rgat.data import GraphData, NodeData
from rgat.models import GraphClassifier, NodeClassifier

# In the order of the paper's tables.
VARIANTS: dict[str, dict[str, Any]] = {
    "RGCN": {"layer": "rgcn"},
    "additive WIRGAT": {"scope": "within", "score": "additive"},
    "additive ARGAT": {"scope": "across", "score": "additive"},
    "multiplicative WIRGAT": {"scope": "within", "score": "multiplicative"},
    "multiplicative ARGAT": {"scope": "across", "score": "multiplicative"},
}
# Not in the paper's tables: what it names as a comparison still missing, and a later score.
FURTHER_VARIANTS: dict[str, dict[str, Any]] = {
    "GGNN": {"layer": "ggnn"},
    "dynamic WIRGAT": {"scope": "within", "score": "dynamic"},
    "dynamic ARGAT": {"scope": "across", "score": "dynamic"},
}
ALL_VARIANTS = VARIANTS | FURTHER_VARIANTS

Model = NodeClassifier | GraphClassifier | GGNNNodeClassifier | GGNNGraphClassifier


def build_model(data: NodeData | GraphData, seed: int = 0, **options: Any) -> Model:
    """A model that fits the data, its parameters drawn from ``seed``; ``layer`` is "rgat", "rgcn" or "ggnn"."""
    gated = options.get("layer") == "ggnn"
    if gated:
        options = {name: value for name, value in options.items() if name != "layer"}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if isinstance(data, GraphData):
            graphs = GGNNGraphClassifier if gated else GraphClassifier
            return graphs(data.in_channels, len(data.tasks), data.graphs.num_relations, **options)
        if data.x is None and not gated:  # a gated network has a vector per node, and no rows to leave out
            options = options | {"graph": data.graph}
        nodes = GGNNNodeClassifier if gated else NodeClassifier
        return nodes(data.in_channels, len(data.classes), data.graph.num_relations, **options)
