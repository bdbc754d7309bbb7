"""The models of the paper's tables, by their names there."""

from __future__ import annotations

from typing import Any

import torch

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


def build_model(data: NodeData | GraphData, seed: int = 0, **options: Any) -> NodeClassifier | GraphClassifier:
    """A model that fits the data, its parameters drawn from ``seed``."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if isinstance(data, GraphData):
            return GraphClassifier(data.in_channels, len(data.tasks), data.graphs.num_relations, **options)
        if data.x is None:
            options = options | {"graph": data.graph}
        return NodeClassifier(data.in_channels, len(data.classes), data.graph.num_relations, **options)
