"""Compute queries, under a softmax within relations only those that have an effect."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rgat.ops import cache
from rgat.ops.backend import Call, Operands
from rgat.ops.numba import attention_loops
from rgat.ops.numba.launch import Array, as_array, indices
from rgat.ops.numba.projection import project
from rgat.structure import Rows, Structure

_LIMIT = torch.finfo(torch.float32).max  # also of double precision, where larger scores are only slower


class ScoredRows(NamedTuple):
    """The target rows of softmax groups of several edges; on knowledge graphs one in five."""

    number: Tensor  # [V'] int32; which target rows
    rows: Rows  # these, without their order by node
    query_row: Array  # [V] int32; the place of each group's row among them, -1: it has one edge
    query_by_source: Array  # [E] int32; that of each edge's group, in the order of source rows
    keyless: Array  # [R]; which relations have none of them, so that keys have no effect either


def scored_rows(s: Structure) -> ScoredRows:
    """Return the target rows whose queries have an effect; found once for a graph."""
    kept = cache.derived(s.targets.node)  # of which a graph read at other positions has its own
    found: ScoredRows | None = kept.get("scored rows")
    if found is None:
        by_node, relation_ptr = indices(s.targets.by_node), indices(s.targets.relation_ptr)
        is_scored = np.empty(len(by_node), np.bool_)
        is_scored[by_node] = np.diff(indices(s.group_ptr)) > 1
        number = np.flatnonzero(is_scored).astype(np.int32)
        place = np.full(len(by_node), -1, np.int32)
        place[number] = np.arange(len(number), dtype=np.int32)
        node, relation = (torch.from_numpy(indices(t)[number]) for t in (s.targets.node, s.targets.relation))
        ends = np.searchsorted(number, relation_ptr).astype(np.int32)
        rows = Rows(node, relation, torch.from_numpy(ends), node[:0], node[:0])
        keyless = np.diff(ends) == 0
        query_row = place[by_node]
        query_by_source = query_row[indices(s.group)[indices(s.by_source)]]
        found = ScoredRows(torch.from_numpy(number), rows, query_row, query_by_source, keyless)
        kept["scored rows"] = found
    return found


def largest(tensor: Tensor) -> float:
    """Return the largest absolute value, or NaN where there is one."""
    array = as_array(tensor).reshape(-1)
    kind = np.uint32 if array.itemsize == 4 else np.uint64
    top = attention_loops.largest(array.view(kind), kind(np.iinfo(kind).max >> 1))
    return float(np.array(top, kind).view(array.dtype))


def may_overflow(query: float, key: float, edge_logits: Tensor | None, channels: int, call: Call) -> bool:
    """Tell whether a score may be infinite or NaN, from the largest absolute values of queries and keys."""
    score = channels * query * key if call.attention.negative_slope is None else query + key
    return not score + (0 if edge_logits is None else largest(edge_logits)) < _LIMIT


class Queries(NamedTuple):
    """The queries of a convolution."""

    rows: Tensor  # [V, H, A]
    scored: ScoredRows | None  # of which these are the queries; None: of all target rows
    kept: Tensor  # [V, H, A]; for the backward pass, where those of a softmax within relations are of scored rows


def project_queries(operands: Operands, call: Call) -> Queries:
    """Compute the queries, under a softmax within relations only of groups of several edges.

    A group of one edge needs none, unless its score may be infinite or NaN.
    """
    (x, weight, query_weight, edge_logits), s, heads = operands, call.structure, len(call.attention.across)
    assert query_weight is not None
    size = (len(s.targets.node), heads, query_weight.shape[1] * query_weight.shape[3] // heads)
    if any(call.attention.across):
        queries = project(x, query_weight, s.targets, s.targets.node).view(size)
        return Queries(queries, None, queries)
    scored, factor = scored_rows(s), x.shape[2] * largest(x)
    bounds = (factor * largest(query_weight), factor * largest(weight))
    if not may_overflow(*bounds, edge_logits, size[2], call):
        queries = project(x, query_weight, scored.rows, scored.rows.node, size[0]).view(size)
        return Queries(queries, scored, queries)
    queries = project(x, query_weight, s.targets, s.targets.node).view(size)
    kept = torch.zeros_like(queries)
    kept[: len(scored.number)] = queries.index_select(0, scored.number)
    return Queries(queries, None, kept)
