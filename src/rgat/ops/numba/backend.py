"""The CPU backend: compiled loops with BLAS inside, on the threads of PyTorch.

Gradients of values live only in a buffer of a few thousand rows: the loop over source rows fills it, and the gradients
of inputs and kernels are taken from it at once, while it is in the cache. Attention ``[E, H]`` is the only thing kept
per edge between forward and backward.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rgat.ops import cache
from rgat.ops.backend import Call, Operands, Saved, TablePlaces
from rgat.ops.dropout import EDGES, FEATURES, drop_below, mask_stream
from rgat.ops.numba import attention_grad_loops, attention_loops, blas, projection_loops, row_loops
from rgat.ops.numba.launch import (
    NO_IDS,
    NO_INDEX,
    NO_MARKS,
    NUMBERS,
    SEVERAL,
    Array,
    as_array,
    as_matrix,
    cut,
    even,
    indices,
    nothing,
    optional_indices,
    run,
)
from rgat.ops.numba.projection import (
    NodeSums,
    collect,
    fold,
    fold_backward,
    gather_back,
    pair,
    project,
    project_apart,
    project_backward,
    project_input_grad,
    project_sums,
    project_weight_grad,
    run_with_kernel_grads,
    scores_backward,
    spread,
    sum_rows,
    sums_grad,
)
from rgat.ops.numba.queries import ScoredRows, largest, may_overflow, project_queries, scored_rows
from rgat.structure import Structure

__all__ = ["attend", "attend_backward", "attend_table", "attend_table_backward", "convolve", "convolve_backward"]
__all__ += ["collect", "fold", "fold_backward", "gather_back", "pair", "spread", "sum_rows", "why_not"]
__all__ += ["project", "project_input_grad", "project_weight_grad"]

TAKES_HALF = False
READS_TABLES = True

EDGES_PER_TARGET = 2  # that cost as much as a target by itself
PRODUCTS_PER_EDGE = 512  # numbers of a kernel that multiply a row and its gradient in the time of an edge


def why_not() -> str | None:
    """Say why this backend cannot be used on this machine; None if it can."""
    return None if blas.address(torch.float32) else "this build of PyTorch does not let its BLAS be called"


class EdgeLoops:
    """The loops over edges of one call, and the arrays that they read."""

    def __init__(self, call: Call, queries: Tensor | None, edge_logits: Tensor | None, like: Tensor) -> None:
        number, s, settings = NUMBERS[like.dtype], call.structure, call.attention
        self.s = s
        self.heads = len(settings.across)
        self.attends = queries is not None
        self.queries = nothing(like.dtype, 0, 0, 0) if queries is None else as_array(queries)
        self.edge_logits = nothing(like.dtype, 0, 0) if edge_logits is None else as_array(edge_logits)
        self.additive, self.slope = settings.negative_slope is not None, number(settings.negative_slope or 0)
        self.scopes = _heads_by_scope(tuple(settings.across))
        self.aggregated = np.array(call.aggregated, dtype=np.bool_) if any(call.aggregated) else NO_MARKS
        edge_mask = _mask(call.state, EDGES, settings.edge_dropout, number)
        edge_id = NO_IDS if s.edge_id is None or not len(edge_mask[1]) else as_array(s.edge_id)
        self.edge_mask = (*edge_mask, edge_id)
        self.feature_mask = _mask(call.state, FEATURES, settings.feature_dropout, number)
        self.drops_features = len(self.feature_mask[1]) > 0
        self.target_ptr, self.source_ptr, self.group_row, self.value_row = (
            indices(t) for t in (s.target_ptr, s.source_ptr, s.targets.by_node, s.source_row)
        )
        self.edges = (
            self.target_ptr, indices(s.group_ptr), indices(s.targets.node_ptr), self.group_row,
            indices(s.targets.relation), self.value_row, indices(s.sources.node),
        )  # fmt: skip
        self.query_row, self.keyless = self.group_row, NO_MARKS
        self.query_by_source = _rows_by_source(s) if self.attends and not self.additive else NO_INDEX
        self.by_source = (indices(s.by_source), self.source_ptr, _targets_by_source(s))
        self.row_id = as_array(s.source_ids()) if self.drops_features else NO_INDEX

    def score_only(self, scored: ScoredRows) -> None:
        """Read queries of these target rows only."""
        self.query_row, self.query_by_source, self.keyless = scored.query_row, scored.query_by_source, scored.keyless

    def read(self, values: Tensor, keys: Tensor | None) -> None:
        """Read the values ``[U, ...]`` and keys ``[U, ...]`` of the source rows from here."""
        self.values = as_matrix(values)
        self.keys = nothing(values.dtype, 0, 0, 0)
        if keys is not None:
            self.keys = as_array(keys).reshape(len(keys), self.heads, self.queries.shape[2])

    def mask_features(self, rows: Tensor, channels: int, place: Tensor | None = None) -> None:
        """Apply feature dropout in place to the source rows, or to those of a table where they stand."""
        if self.drops_features:
            run(
                row_loops.mask_rows, even(0, len(self.s.sources.node), 4 * rows.shape[1]), 0, optional_indices(place),
                as_array(rows), self.heads, self.heads, rows.shape[1], channels, self.row_id, *self.feature_mask,
            )  # fmt: skip

    def forward(
        self, x: Tensor, channels: int, sums: Tensor, singles: bool, bias: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the outputs ``[N, H, D]`` and the attention; fill the sums of aggregated relations.

        With ``singles`` edges that are alone in their group are scored, as for a softmax across relations.
        """
        attention = x.new_empty(len(self.value_row), self.heads)
        out = x.new_empty(len(self.target_ptr) - 1, self.heads, channels)
        weights = torch.empty_like(attention) if len(self.edge_mask[1]) else attention
        if bias is None:
            bias = x.new_zeros(self.heads * channels)
        run(
            attention_loops.forward, self._target_ranges(self.heads * channels), *self.edges,
            self.value_row, self.query_row, self.queries, self.keys, self.edge_logits, self.additive, self.slope,
            singles, *self.scopes, *self.edge_mask, self.aggregated, self.values, as_array(bias),
            as_array(x), as_array(attention), as_array(weights), as_matrix(out), as_array(sums),
        )  # fmt: skip
        return out, attention

    def _target_ranges(self, width: int) -> list[int]:
        return cut(self.target_ptr, 0, len(self.target_ptr) - 1, width, EDGES_PER_TARGET, SEVERAL)

    def split_sign(self, attention: Tensor, grad_attention: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Keep the signs of additive scores; return the attention, which the backward loop fills, and its gradient."""
        self.signed = attention
        if not self.attends or not self.additive:
            return attention, grad_attention
        return torch.empty_like(attention), None if grad_attention is None else grad_attention * attention.sign()

    def backward_by_target(
        self, x: Tensor, attention: Tensor, grad: Tensor, grad_sums: Tensor, grad_attention: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return the gradients of the logits and of the queries; empty under constant attention."""
        # Under a softmax within relations, the queries of groups of one edge have no gradient: nothing fills it.
        is_filled = len(self.scopes[1]) > 0 or self.query_row is not self.group_row
        dqueries = (grad.new_empty if is_filled else grad.new_zeros)(self.queries.shape)
        if not self.attends:
            return grad.new_empty(0, 0), dqueries
        if grad_attention is None:
            grad_attention = grad.new_empty(0, 0)
        dlogits = torch.empty_like(attention)
        run(
            attention_grad_loops.backward_by_target, self._target_ranges(grad.shape[1] * grad.shape[2]), *self.edges,
            self.value_row, self.query_row, self.keys, self.additive, self.slope, *self.scopes, *self.edge_mask,
            self.aggregated, self.values, as_array(x), as_array(attention),
            as_array(self.signed), as_matrix(grad),
            *(as_array(t) for t in (grad_sums, grad_attention, dlogits, dqueries)),
        )  # fmt: skip
        return dlogits, dqueries

    def _drop_edges(self, attention: Tensor) -> Tensor:
        """Return the attention after edge dropout."""
        if len(self.edge_mask[1]) == 0:
            return attention
        weights = torch.empty_like(attention)
        bounds = even(0, len(attention), 8 * self.heads)
        run(row_loops.drop_edges, bounds, *self.edge_mask, as_array(attention), as_array(weights))
        return weights

    def backward_by_edge(
        self,
        attention: Tensor,
        grad: Tensor,
        grad_attention: Tensor | None,
        dvalues: Tensor,
        dkeys: Tensor,
        place: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the gradients of the logits and of the queries, and fill those of the values and keys of source rows.

        With ``place``, the gradients of values go into these rows of a table.
        """
        attention, grad_attention = self.split_sign(attention, grad_attention)
        no_sums = grad.new_empty(0, self.heads, 0)
        dlogits, dqueries = self.backward_by_target(no_sums[:, 0], attention, grad, no_sums, grad_attention)
        sources, channels = len(self.source_ptr) - 1, grad.shape[2]
        additive_dlogits = dlogits if self.attends and self.additive else dlogits.new_empty(0, 0)
        run(
            attention_grad_loops.values_by_source, cut(self.source_ptr, 0, sources, self.heads * channels), 0,
            optional_indices(place), *self.by_source, as_array(self._drop_edges(attention)),
            as_matrix(grad), as_array(additive_dlogits), as_array(dvalues), self.heads, dvalues.shape[1],
            as_matrix(dkeys), self.heads, 0,
        )  # fmt: skip
        self.mask_features(dvalues, channels, place)
        if self.attends and not self.additive:
            width = self.heads * self.queries.shape[2]
            run(
                attention_grad_loops.keys_by_source, cut(self.source_ptr, 0, len(dkeys), width), 0,
                *self.by_source[:2], self.query_by_source, self.queries, self.additive, as_array(dlogits),
                as_matrix(dkeys), self.heads, width, 0,
            )  # fmt: skip
        return dlogits, dqueries

    def backward_by_row(
        self, x: Tensor, weight: Tensor, attention: Tensor, grad: Tensor, dlogits: Tensor, dsums: Tensor, with_x: bool
    ) -> tuple[NodeSums, Tensor]:
        """Return the gradients of the inputs, to which more can be added, and of the kernels of source rows."""
        _, batch, inputs, columns = weight.shape
        dweight, rows, weights = weight.new_zeros(weight.shape), self.s.sources, self._drop_edges(attention)

        def divide(lo: int, hi: int) -> list[int]:
            return cut(self.source_ptr, lo, hi, inputs * columns, inputs * columns / PRODUCTS_PER_EDGE)

        def make(bounds: list[int], into: Array, out: Tensor) -> None:
            run_with_kernel_grads(
                projection_loops.source_rows_backward, bounds, dweight, rows, blas.address(x.dtype),
                indices(rows.node), into, indices(rows.relation_ptr), *self.by_source, self.query_by_source,
                indices(self.s.group), self.group_row, as_array(weights), as_matrix(grad), as_array(dlogits),
                self.queries, self.additive, self.heads // batch, grad.shape[2], self.aggregated, self.keyless,
                as_array(dsums), self.row_id,
                *self.feature_mask, as_matrix(x), as_array(weight), as_array(out),
            )  # fmt: skip

        ranges = len(divide(0, len(rows.node))) - 1
        dx = NodeSums(x, len(x), batch * inputs, ranges if with_x else 0)
        dx.add(indices(rows.node), divide, make)
        return dx, dweight


def _targets_by_source(s: Structure) -> Array:
    """Return the target of each edge, in the order of source rows; found once for a graph."""
    kept = cache.derived(s.by_source)
    targets: Array | None = kept.get("targets")
    if targets is None:
        targets = kept["targets"] = indices(s.target)[indices(s.by_source)]
    return targets


def _rows_by_source(s: Structure) -> Array:
    """Return the target row of each edge, in the order of source rows; found once for a graph."""
    kept = cache.derived(s.by_source)
    rows: Array | None = kept.get("target rows")
    if rows is None:
        rows = kept["target rows"] = indices(s.targets.by_node)[indices(s.group)[indices(s.by_source)]]
    return rows


def _mask(state: Tensor | None, kind: int, rate: float, number: Any) -> tuple[Array, Array, Array]:
    """Return each member's mask stream, drop threshold and scale; empty without dropout."""
    if state is None or rate == 0:
        return np.empty(0, np.uint64), np.empty(0, np.uint32), np.empty(0, number)
    stream = as_array(mask_stream(state, kind)).reshape(-1).view(np.uint64)
    if state.dim() == 1:
        return stream, np.array([drop_below(rate)], np.uint32), np.array([1 / (1 - rate)], number)
    below, bits = as_array(state)[:, 2 + 2 * kind :][:, :2].T
    return stream, below.astype(np.uint32), bits.copy().view(np.float64).astype(number)


@functools.lru_cache(1024)
def _heads_by_scope(across: tuple[bool, ...]) -> tuple[Array, Array]:
    """Return the heads with scope "within", and those with scope "across"."""
    wide = np.array(across, dtype=np.bool_)
    return np.flatnonzero(~wide), np.flatnonzero(wide)


def _attend_loops(
    values: Tensor,
    queries: Tensor | None,
    keys: Tensor | None,
    edge_logits: Tensor | None,
    call: Call,
    places: TablePlaces | None = None,
) -> EdgeLoops:
    """Return the loops that read the values, or with ``places`` the rows of a table where they are."""
    edge_loops = EdgeLoops(call, queries, edge_logits, values)
    rows = values.flatten(1)
    if edge_loops.drops_features:  # applied to copies
        rows = rows.clone() if places is None else rows.index_select(0, places.source)
    elif places is not None:
        edge_loops.value_row = indices(places.edge)
    edge_loops.read(rows, keys)
    edge_loops.mask_features(rows, values.shape[2])
    return edge_loops


def attend(
    values: Tensor,
    queries: Tensor | None,
    keys: Tensor | None,
    edge_logits: Tensor | None,
    call: Call,
    places: TablePlaces | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the outputs ``[N, H, D]`` and the attention ``[E, H]``."""
    edge_loops = _attend_loops(values, queries, keys, edge_logits, call, places)
    singles = queries is not None
    if queries is not None and keys is not None and not any(call.attention.across):
        singles = may_overflow(largest(queries), largest(keys), edge_logits, queries.shape[2], call)
    return edge_loops.forward(values.new_empty(0, 0), values.shape[2], values.new_empty(0, values.shape[1], 0), singles)


def attend_backward(
    grad: Tensor,
    grad_attention: Tensor | None,
    attention: Tensor,
    values: Tensor,
    queries: Tensor | None,
    keys: Tensor | None,
    edge_logits: Tensor | None,
    call: Call,
) -> tuple[Tensor | None, ...]:
    """Return the gradients of values, queries, keys and edge logits."""
    edge_loops = _attend_loops(values, queries, keys, edge_logits, call)
    dvalues, dkeys = torch.empty_like(values), values.new_empty((0, 0, 0) if keys is None else keys.shape)
    dlogits, dqueries = edge_loops.backward_by_edge(attention, grad, grad_attention, dvalues.flatten(1), dkeys)
    return dvalues, dqueries, dkeys, dlogits


def attend_table(
    table: Tensor,
    query_kernel: Tensor | None,
    key_kernel: Tensor | None,
    edge_logits: Tensor | None,
    places: TablePlaces,
    call: Call,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Attend to rows of a table where they are; return also the queries and keys that are projections of them."""
    if query_kernel is None or key_kernel is None:
        out, attention = attend(table, None, None, edge_logits, call, places)
        return out, attention, table.new_empty(0), table.new_empty(0)
    queries = project(table, query_kernel, call.structure.targets, places.target)
    keys = project(table, key_kernel, call.structure.sources, places.source)
    out, attention = attend(table, queries, keys, edge_logits, call, places)
    return out, attention, queries, keys


def attend_table_backward(
    grad: Tensor,
    grad_attention: Tensor | None,
    saved: tuple[Tensor, Tensor, Tensor],
    inputs: tuple[Tensor, Tensor | None, Tensor | None, Tensor | None],
    places: TablePlaces,
    call: Call,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of the table, both kernels and the edge logits."""
    (attention, queries, keys), (table, query_kernel, key_kernel, edge_logits) = saved, inputs
    query_rows, key_rows = (None, None) if query_kernel is None else (queries, keys)
    edge_loops, s = _attend_loops(table, query_rows, key_rows, edge_logits, call, places), call.structure
    dtable, dkeys = torch.empty_like(table), torch.empty_like(keys if query_kernel is not None else keys.view(0, 0, 0))
    flat = dtable.flatten(1)
    run(row_loops.clear_rows, even(0, len(flat), flat.shape[1]), indices(places.source_back), as_array(flat))
    dlogits, dqueries = edge_loops.backward_by_edge(attention, grad, grad_attention, flat, dkeys, places.source)
    dquery_kernel = dkey_kernel = table.new_empty(0)
    if query_kernel is not None and key_kernel is not None:
        dquery_kernel = scores_backward(table, query_kernel, dqueries, s.targets, places.target, flat)
        dkey_kernel = scores_backward(table, key_kernel, dkeys, s.sources, places.source, flat)
    return dtable, dquery_kernel, dkey_kernel, dlogits


def convolve(operands: Operands, bias: Tensor | None, call: Call) -> tuple[Tensor, Saved]:
    """Return the outputs ``[N, H, D]``, and what the backward pass needs; feature dropout is applied to the values."""
    (x, weight, query_weight, edge_logits), s = operands, call.structure
    heads, (_, batch, _, columns) = len(call.attention.across), weight.shape
    queries = None if query_weight is None else project_queries(operands, call)
    edge_loops = EdgeLoops(call, None if queries is None else queries.rows, edge_logits, x)
    if queries is not None and queries.scored is not None:
        edge_loops.score_only(queries.scored)
    channels = batch * columns // heads - edge_loops.queries.shape[2]
    first_key = heads // batch * channels
    marks = (edge_loops.aggregated, edge_loops.keyless)
    values, keys = project_apart(x, weight, s.sources, s.sources.node, first_key, *marks)
    sums = x.new_empty(len(s.targets.node) if any(call.aggregated) else 0, heads, x.shape[2])
    edge_loops.read(values, keys)
    edge_loops.mask_features(values.flatten(1), channels)
    singles = queries is not None and queries.scored is None
    out, attention = edge_loops.forward(x.flatten(1), channels, sums, singles, bias)
    if any(call.aggregated):
        out += project_sums(sums, weight, edge_loops.aggregated, s, heads, channels).view(out.shape)
    return out, Saved(attention, x.new_empty(0, heads, 0) if queries is None else queries.kept, values, keys, sums)


def convolve_backward(
    grad: Tensor, grad_attention: Tensor | None, saved: Saved, operands: Operands, call: Call, with_x: bool
) -> tuple[Tensor | None, ...]:
    """Return the gradients of the operands; None for ``x`` unless ``with_x``."""
    (x, weight, query_weight, edge_logits), s, sums = operands, call.structure, saved.sums
    rows, queries = s.targets, None if query_weight is None else saved.queries
    if queries is not None and not any(call.attention.across):
        scored = scored_rows(s)
        rows, queries = scored.rows, queries[: len(scored.number)]
    edge_loops = EdgeLoops(call, queries, edge_logits, x)
    if rows is not s.targets:
        edge_loops.score_only(scored)
    edge_loops.read(saved.values, saved.keys)
    attention, grad_attention = edge_loops.split_sign(saved.attention, grad_attention)
    dsums = torch.empty_like(sums)
    dsums_weight = sums_grad(dsums, grad, sums, weight, edge_loops.aggregated, s) if any(call.aggregated) else None
    dlogits, dqueries = edge_loops.backward_by_target(x.flatten(1), attention, grad, dsums, grad_attention)
    dx, dweight = edge_loops.backward_by_row(x, weight, attention, grad, dlogits, dsums, with_x)
    if dsums_weight is not None:
        dweight += dsums_weight
    dquery_weight = None
    if query_weight is not None:
        drows = dqueries.view(len(dqueries), query_weight.shape[1], query_weight.shape[3])
        dquery_weight = project_backward(drows, x, query_weight, rows, rows.node, dx)
    return dx.total() if with_x else None, dweight, dquery_weight, dlogits
