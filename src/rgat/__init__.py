"""Learning from relational graphs: relational graph attention networks and relational graph convolutions.

Examples:
    >>> import torch
    >>> import rgat
    >>> edges, types = torch.tensor([[0, 1, 2], [1, 2, 1]]), torch.tensor([0, 0, 1])
    >>> graph = rgat.RelationalGraph(edges, types, num_nodes=3, num_relations=2)
    >>> rgat.nn.RGATConv(8, 16, num_relations=2)(torch.randn(3, 8), graph).shape
    torch.Size([3, 16])
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from rgat.version import __version__

if TYPE_CHECKING:
    from rgat import data, models, nn, ops, sampling, training
    from rgat.graph import RelationalGraph
    from rgat.predictor import fit, load

__all__ = ["RelationalGraph", "__version__", "data", "fit", "load", "models", "nn", "ops", "sampling", "training"]


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is first asked for: PyTorch alone takes a second."""
    if name in ("fit", "load"):
        return getattr(importlib.import_module("rgat.predictor"), name)
    if name == "RelationalGraph":
        return importlib.import_module("rgat.graph").RelationalGraph
    if name in __all__:
        return importlib.import_module(f"rgat.{name}")
    raise AttributeError(f"module 'rgat' has no attribute {name!r}")
