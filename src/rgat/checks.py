"""Check options and tensors, and raise a ValueError or TypeError that says what is allowed and what was given."""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

INT32_LIMIT = 2**31  # derived index arrays are int32: half the memory traffic of int64


def check_word(name: str, value: object, allowed: Sequence[str]) -> None:
    """Raise unless ``value`` is one of the ``allowed`` words; suggest the nearest of them."""
    if value in allowed:
        return
    quoted = [f'"{word}"' for word in allowed]
    choices = quoted[0] if len(quoted) == 1 else ", ".join(quoted[:-1]) + " or " + quoted[-1]
    shown = f'"{value}"' if isinstance(value, str) else repr(value)
    completions = [word for word in allowed if isinstance(value, str) and value and word.startswith(value)]
    nearest = completions or difflib.get_close_matches(str(value), allowed, n=1)
    hint = f'; did you mean "{nearest[0]}"?' if nearest else ""
    raise ValueError(f"`{name}` must be {choices}, got {shown}{hint}")


def check_count(name: str, value: object, least: int = 1) -> None:
    """Raise unless ``value`` is an integer of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ValueError(f"`{name}` must be an integer of at least {least}, got {value!r}")


def check_number(name: str, value: object) -> None:
    """Raise unless ``value`` is a finite number."""
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise ValueError(f"`{name}` must be a finite number, got {value!r}")


def check_seed(seed: int) -> None:
    """Raise unless ``seed`` is a random seed that NumPy accepts: an unsigned 32-bit integer."""
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**32:
        raise ValueError(f"`seed` (--seed) must be a whole number from 0 to 2^32 - 1, got {seed!r}")


def check_ids(name: str, ids: Tensor, size: int, size_name: str) -> None:
    """Raise unless all ``ids`` lie between 0 and ``size - 1``."""
    if ids.numel() == 0:
        return
    low, high = (int(value) for value in ids.aminmax())
    if low < 0 or high >= size:
        worst = low if low < 0 else high
        raise ValueError(f"`{name}` must lie between 0 and {size_name} - 1 = {size - 1}, got {worst}")


def check_graph_shapes(
    edge_index: Tensor,
    edge_type: Tensor,
    num_nodes: int,
    num_relations: int,
    edge_attr: Tensor | None,
    batch: Tensor | None,
    num_graphs: int | None,
    num_targets: int,
) -> None:
    """Raise unless the tensors and sizes of a graph fit together."""
    check_count("num_nodes", num_nodes, least=0)
    check_count("num_relations", num_relations, least=0)
    check_count("num_graphs", 1 if num_graphs is None else num_graphs, least=0)
    check_count("num_targets", num_targets, least=0)
    if num_targets > num_nodes:
        raise ValueError(f"`num_targets` must lie between 0 and `num_nodes` = {num_nodes}, got {num_targets}")
    for name, tensor in (("edge_index", edge_index), ("edge_type", edge_type), ("batch", batch)):
        if tensor is None:
            continue
        if not isinstance(tensor, Tensor):
            raise TypeError(f"`{name}` must be a tensor, got {type(tensor).__name__}; wrap it in `torch.as_tensor`")
        if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
            raise TypeError(f"`{name}` must hold integers, got {tensor.dtype}; convert it with `.long()`")
    if edge_attr is not None and not isinstance(edge_attr, Tensor):
        raise TypeError(f"`edge_attr` must be a tensor, got {type(edge_attr).__name__}; wrap it in `torch.as_tensor`")
    if edge_index.dim() != 2 or edge_index.shape[0] != 2:
        raise ValueError(f"`edge_index` must have shape [2, E], got {list(edge_index.shape)}")
    num_edges = edge_index.shape[1]
    if edge_type.dim() != 1 or edge_type.shape[0] != num_edges:
        raise ValueError(f"`edge_type` must have one entry per edge, shape [{num_edges}], got {list(edge_type.shape)}")
    if edge_attr is not None and (edge_attr.dim() != 2 or edge_attr.shape[0] != num_edges):
        raise ValueError(f"`edge_attr` must have shape [{num_edges}, edge_dim], got {list(edge_attr.shape)}")
    if edge_attr is not None and not edge_attr.is_floating_point():
        raise TypeError(f"`edge_attr` must be floating point, got {edge_attr.dtype}; convert it with `.float()`")
    if batch is not None and (batch.dim() != 1 or batch.shape[0] != num_nodes):
        raise ValueError(f"`batch` must have one entry per node, shape [{num_nodes}], got {list(batch.shape)}")
    if max(num_edges, num_nodes, num_relations) >= INT32_LIMIT:
        raise ValueError("a graph must have fewer than 2^31 nodes, edges and relations; split it into parts")
    if num_nodes * num_relations >= 2**63:
        raise ValueError(f"`num_nodes * num_relations` must be below 2^63, got {num_nodes} * {num_relations}")


def check_stored(tensor: Any, name: str, size: int, dims: int = 1) -> Tensor | None:
    """Return a tensor of a stored graph, or raise unless it has one entry for each of ``size`` things."""
    if tensor is not None and (not isinstance(tensor, Tensor) or tensor.dim() != dims or len(tensor) != size):
        raise ValueError(
            f"`{name}` of a stored graph must have shape [{size}{', D' * (dims > 1)}]; build the graph again"
        )
    return tensor
