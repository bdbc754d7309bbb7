"""The loops over edges of one call: softmax and weighted sums by target, gradients by target and by source row."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rgat.ops.backend import Call
from rgat.ops.dropout import EDGES, FEATURES, drop_below, mask_stream
from rgat.ops.numba import attention_loops, convolution_loops, dropout_loops, source_grad_loops
from rgat.ops.numba.arrays import (
    NO_INDEX,
    NO_MARKS,
    NUMBERS,
    Array,
    as_array,
    as_matrix,
    gemm_address,
    indices,
    nothing,
    optional_indices,
)
from rgat.ops.numba.node_sums import NodeSums
from rgat.ops.numba.projection import add_shared, shared_grads
from rgat.ops.numba.threads import cut, even, run


class EdgeLoops:
    """The arrays that the loops of one call read, and the loops over edges."""

    def __init__(self, call: Call, queries: Tensor | None, edge_logits: Tensor | None, like: Tensor) -> None:
        number, s, settings = NUMBERS[like.dtype], call.structure, call.attention
        self.s = s
        self.heads = len(settings.across)
        self.attends = queries is not None
        self.queries = nothing(like.dtype, 0, 0, 0) if queries is None else as_array(queries)
        self.edge_logits = nothing(like.dtype, 0, 0) if edge_logits is None else as_array(edge_logits)
        self.score = (self.edge_logits, settings.negative_slope is not None, number(settings.negative_slope or 0))
        self.scopes = _heads_by_scope(tuple(settings.across))
        self.aggregated = np.array(call.aggregated, dtype=np.bool_) if any(call.aggregated) else NO_MARKS
        self.edge_mask = _mask(call.state, EDGES, settings.edge_dropout, number)
        self.feature_mask = _mask(call.state, FEATURES, settings.feature_dropout, number)
        self.target_ptr, self.source_ptr, self.group_row, self.value_row = (
            indices(t) for t in (s.target_ptr, s.source_ptr, s.targets.by_node, s.source_row)
        )
        self.edges = (
            self.target_ptr, indices(s.group_ptr), indices(s.targets.node_ptr), self.group_row,
            indices(s.targets.relation), self.value_row, indices(s.sources.node),
        )  # fmt: skip
        self.by_source = (indices(s.by_source), self.source_ptr)
        self.row_id = as_array(s.source_ids()) if len(self.feature_mask[1]) else NO_INDEX

    def read(self, values: Tensor, keys: Tensor | None) -> None:
        """Read the values and keys of the source rows from here.

        ``values`` are ``[U, P, M]``: each entry of the batch axis has a share of the heads, columns behind their values
        are skipped. ``keys`` are packed, ``[U, ...]``, for they are read much more often.
        """
        batch, self.width = values.shape[1:]
        self.share = self.heads // batch
        self.values = as_matrix(values)
        self.keys = nothing(values.dtype, 0, 0, 0)
        if keys is not None:
            self.keys = as_array(keys).reshape(len(keys), self.heads, self.queries.shape[2])

    def mask_features(self, rows: Tensor, channels: int, place: Tensor | None = None) -> None:
        """Apply feature dropout in place to the source rows, or to those of a table where they stand."""
        if len(self.feature_mask[1]):
            bounds = even(0, len(self.s.sources.node), 4 * rows.shape[1])
            where = (
                0,
                optional_indices(place),
                as_array(rows),
                self.heads,
                self.share,
                self.width,
                channels,
                self.row_id,
            )
            run(dropout_loops.mask_rows, bounds, *where, *self.feature_mask)

    def _scores_singles(self) -> bool:
        """Whether to score edges that are alone in their group: for a softmax across, and where a score may be NaN."""
        if not self.attends or len(self.scopes[1]):
            return self.attends
        parts = (self.queries, self.keys, self.edge_logits)
        query, key, edge = (float(attention_loops.largest(part.reshape(-1))) for part in parts)
        score = query + key if self.score[1] else self.queries.shape[2] * query * key
        return not score + edge < float(np.finfo(self.queries.dtype).max)

    def forward(self, x: Tensor, channels: int, sums: Tensor) -> tuple[Tensor, Tensor]:
        """Return the outputs ``[N, H, D]`` and the attention; fill the sums of aggregated relations."""
        attention = x.new_empty(len(self.value_row), self.heads)
        out = x.new_empty(len(self.target_ptr) - 1, self.heads, channels)
        weights = torch.empty_like(attention) if len(self.edge_mask[1]) else attention
        run(
            attention_loops.forward, cut(self.target_ptr, 0, len(out), self.heads * channels), *self.edges,
            self.value_row, self.queries, self.keys, *self.score, self._scores_singles(), *self.scopes,
            *self.edge_mask, self.aggregated, self.values, self.share, self.width, as_array(x),
            as_array(attention), as_array(weights), as_matrix(out), as_array(sums),
        )  # fmt: skip
        return out, attention

    def split_sign(self, attention: Tensor, grad_attention: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Keep the signs of additive scores; return the attention without them, and its gradient."""
        self.signed = attention
        if not self.attends or not self.score[1]:
            return attention, grad_attention
        return attention.abs(), None if grad_attention is None else grad_attention * attention.sign()

    def backward_by_target(
        self, x: Tensor, attention: Tensor, grad: Tensor, grad_sums: Tensor, grad_attention: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return the gradients of the logits and of the queries; empty under constant attention."""
        dqueries = grad.new_zeros(self.queries.shape)
        if not self.attends:
            return grad.new_empty(0, 0), dqueries
        if grad_attention is None:
            grad_attention = grad.new_empty(0, 0)
        dlogits = torch.empty_like(attention)
        run(
            attention_loops.backward_by_target,
            cut(self.target_ptr, 0, len(grad), grad.shape[1] * grad.shape[2]), *self.edges,
            self.value_row, self.queries, self.keys, *self.score[1:], *self.scopes, *self.edge_mask, self.aggregated,
            self.values, self.share, self.width, as_array(x), as_array(attention), as_array(self.signed),
            as_matrix(grad), *(as_array(t) for t in (grad_sums, grad_attention, dlogits, dqueries)),
        )  # fmt: skip
        return dlogits, dqueries

    def dropped(self, attention: Tensor) -> Tensor:
        """Return the attention after edge dropout."""
        if len(self.edge_mask[1]) == 0:
            return attention
        weights = torch.empty_like(attention)
        bounds = even(0, len(attention), 8 * self.heads)
        run(dropout_loops.drop_edges, bounds, *self.edge_mask, as_array(attention), as_array(weights))
        return weights

    def backward_by_edge(
        self,
        attention: Tensor,
        grad: Tensor,
        grad_attention: Tensor | None,
        dvalues: Tensor,
        dkeys: Tensor,
        place: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Fill the gradients of values and keys; return those of the logits and of the queries."""
        attention, grad_attention = self.split_sign(attention, grad_attention)
        no_sums = grad.new_empty(0, self.heads, 0)
        dlogits, dqueries = self.backward_by_target(no_sums[:, 0], attention, grad, no_sums, grad_attention)
        self.by_source_rows(self.dropped(attention), grad, dlogits, dvalues, dkeys, place)
        return dlogits, dqueries

    def by_source_rows(
        self, weights: Tensor, grad: Tensor, dlogits: Tensor, dvalues: Tensor, dkeys: Tensor, place: Tensor | None
    ) -> None:
        """Fill the gradients of the values and keys of all source rows; with ``place``, values into rows of a table."""
        additive, rows = self.score[1], len(self.source_ptr) - 1
        bounds = cut(self.source_ptr, 0, rows, grad.shape[1] * grad.shape[2])
        together = dlogits if self.attends and additive else dlogits.new_empty(0, 0)
        arrays = (indices(self.s.target), as_array(weights), as_matrix(grad), as_array(together), as_array(dvalues))
        where = (0, optional_indices(place), *self.by_source)
        keys = as_matrix(dkeys)
        run(source_grad_loops.values_by_source, bounds, *where, *arrays, self.share, self.width, keys, self.share, 0)
        self.mask_features(dvalues, grad.shape[2], place)
        if not additive:
            self.keys_by_source(dlogits, dkeys)

    def keys_by_source(self, dlogits: Tensor, dkeys: Tensor) -> None:
        """Fill the gradients of the keys of all source rows."""
        if self.attends:
            bounds = cut(self.source_ptr, 0, len(dkeys), self.heads * self.queries.shape[2])
            arrays = (
                indices(self.s.group),
                self.group_row,
                self.queries,
                self.score[1],
                as_array(dlogits),
                as_matrix(dkeys),
            )
            run(
                source_grad_loops.keys_by_source,
                bounds,
                0,
                *self.by_source,
                *arrays,
                self.heads,
                self.heads * self.queries.shape[2],
                0,
            )

    def table_backward(
        self, x: Tensor, weight: Tensor, attention: Tensor, grad: Tensor, dlogits: Tensor, dsums: Tensor, with_x: bool
    ) -> tuple[NodeSums, Tensor]:
        """Return the gradients of the inputs, to which more can be added, and of the kernels of source rows."""
        _, batch, inputs, columns = weight.shape
        dweight, rows, weights = weight.new_zeros(weight.shape), self.s.sources, self.dropped(attention)

        def divide(lo: int, hi: int) -> list[int]:
            return cut(self.source_ptr, lo, hi, inputs * columns)

        def make(bounds: list[int], into: Array, out: Tensor) -> None:
            shared = shared_grads(dweight, bounds)
            run(
                convolution_loops.table_backward, bounds, np.array(bounds), gemm_address(x), indices(rows.node), into,
                indices(rows.relation_ptr), *self.by_source, indices(self.s.target), indices(self.s.group),
                self.group_row, as_array(weights), as_matrix(grad), as_array(dlogits), self.queries, self.score[1],
                self.share, grad.shape[2], self.aggregated, as_array(dsums), self.row_id, *self.feature_mask,
                as_matrix(x), *(as_array(t) for t in (weight, out, dweight, shared)),
            )  # fmt: skip
            add_shared(dweight, shared, bounds, rows)

        ranges = len(divide(0, len(rows.node))) - 1
        dx = NodeSums(x, len(x), batch * inputs, ranges if with_x else 0)
        dx.add(indices(rows.node), divide, make)
        return dx, dweight


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
