"""Data sets: bytes to graphs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from rgat.checks import check_word
from rgat.data.builtin import institute, molecules
from rgat.data.planted import KINDS, planted
from rgat.data.records import MISSING, GraphData, GraphStore, NodeData

REGISTRY: dict[str, Callable[[], NodeData | GraphData]] = {
    "institute": institute,
    "molecules": molecules,
    **{f"planted-{kind}": partial(planted, kind) for kind in KINDS},
}


def load(name: str) -> NodeData | GraphData:
    """Return a data set by name."""
    check_word("name", name, tuple(REGISTRY))
    return REGISTRY[name]()


__all__ = ["MISSING", "REGISTRY", "GraphData", "GraphStore", "NodeData", "load"]
