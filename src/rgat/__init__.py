"""Learning from relational graphs: relational graph attention networks and relational graph convolutions."""

from __future__ import annotations

import importlib
from typing import Any

from rgat import models, nn, ops
from rgat.graph import RelationalGraph
from rgat.version import __version__

__all__ = ["RelationalGraph", "__version__", "data", "fit", "load", "models", "nn", "ops", "sampling", "training"]


def __getattr__(name: str) -> Any:
    """Import data sets, sampling, training and fitting when they are first asked for."""
    if name in ("data", "sampling", "training"):
        return importlib.import_module(f"rgat.{name}")
    if name in ("fit", "load"):
        return getattr(importlib.import_module("rgat.predictor"), name)
    raise AttributeError(f"module 'rgat' has no attribute {name!r}")
