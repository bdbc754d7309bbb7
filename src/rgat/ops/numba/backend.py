"""The operations of a relational layer on the CPU: compiled loops with BLAS inside, on threads of our own.

Gradients of values live only in a buffer of a few thousand rows: the loop over source rows fills it, and the gradients
of inputs and kernels are taken from it at once, while it is in the cache. Attention ``[E, H]`` is the only thing kept
per edge between forward and backward.
"""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rgat.graph import Rows, Structure, pointers
from rgat.ops.attention import Attention
from rgat.ops.dropout import EDGES, FEATURES, drop_below, mask_stream
from rgat.ops.numba import (
    attention_backward_loops,
    attention_forward_loops,
    basis_loops,
    blas,
    convolution_loops,
    dropout_loops,
    folding_loops,
    projection_loops,
    row_loops,
    softmax_loops,
    source_grad_loops,
)
from rgat.ops.numba.node_sums import NodeSums
from rgat.ops.numba.threads import cut, even, run

Array = NDArray[Any]

_NO_INDEX = np.empty(0, np.int32)
_NO_MARKS = np.empty(0, np.bool_)
_NUMBERS = {torch.float32: np.float32, torch.float64: np.float64}

_indices: dict[int, tuple[Array, int, weakref.ref[Tensor]]] = {}  # of tensors that live


def _array(tensor: Tensor) -> Array:
    array: Array = (tensor.detach() if tensor.requires_grad else tensor).numpy()
    return array


def _flat(tensor: Tensor) -> Array:
    """As a matrix, all axes behind the first as one."""
    array = _array(tensor)
    return array.reshape(array.shape[0], math.prod(array.shape[1:]))


def _fixed(tensor: Tensor) -> Array:
    """Indices of a graph, which every call reads, as an array that is made once."""
    number = id(tensor)
    found = _indices.get(number)
    if found is None or found[1] != tensor.data_ptr():  # memory moves when it is shared with other processes
        # The array of a tensor keeps it alive, that of its alias does not.
        ref = weakref.ref(tensor, lambda _: _indices.pop(number, None))
        found = _indices[number] = (tensor.detach().numpy(), tensor.data_ptr(), ref)
    return found[0]


@functools.cache
def _nothing(dtype: torch.dtype, *shape: int) -> Array:
    return np.empty(shape, _NUMBERS[dtype])


@functools.lru_cache(1024)
def _heads_by_scope(across: tuple[bool, ...]) -> tuple[Array, Array]:
    """The heads whose groups are those within relations, and those whose groups go across."""
    wide = np.array(across, dtype=np.bool_)
    return np.flatnonzero(~wide), np.flatnonzero(wide)


def _index(node: Tensor | None) -> Array:
    return _NO_INDEX if node is None else _fixed(node)


def _routine(like: Tensor) -> Any:
    return np.uint64(blas.address(like.dtype))


def project(
    x: Tensor, weight: Tensor, rows: Rows, node: Tensor | None, partly: Sequence[bool] = (), first: int = 0
) -> Tensor:
    """Multiply the rows ``x[node]`` (or ``x`` itself) by the kernels of their relations; see ``operators.project``.

    Of the relations that are marked in ``partly`` only the columns from ``first`` on; the others stay undefined.
    """
    out = x.new_empty(rows.relation.shape[0], weight.shape[1], weight.shape[3])
    arrays = (_flat(x), _array(weight), _array(out))
    marks = np.array(partly, dtype=np.bool_) if partly else _NO_MARKS
    run(
        projection_loops.project,
        _row_bounds(rows, weight.shape[1:]),
        _routine(x),
        _index(node),
        _fixed(rows.relation_ptr),
        marks,
        first,
        *arrays,
    )
    return out


def project_input_grad(grad: Tensor, weight: Tensor, rows: Rows, node: Tensor | None, num_nodes: int) -> Tensor:
    """The gradient of ``x``."""
    ranges = 1 if node is None else len(_row_bounds(rows, weight.shape[1:])) - 1
    dx = NodeSums(grad, num_nodes, weight.shape[1] * weight.shape[2], ranges)
    _project_backward(grad, None, weight, rows, node, dx)
    return dx.total().view(num_nodes, *weight.shape[1:3])


def project_weight_grad(grad: Tensor, x: Tensor, rows: Rows, node: Tensor | None) -> Tensor:
    """The gradient of ``weight``."""
    return _project_backward(grad, x, None, rows, node, NodeSums(x, 0, 0, 0))


def _project_backward(
    grad: Tensor, x: Tensor | None, weight: Tensor | None, rows: Rows, node: Tensor | None, dx: NodeSums
) -> Tensor:
    """Where ``weight`` is given, add the gradient of ``x`` to ``dx``; where ``x`` is, return that of ``weight``."""
    (_, batch, columns), inputs = grad.shape, (weight if x is None else x).shape[2]  # type: ignore[union-attr]
    relations = 0 if x is None else rows.relation_ptr.shape[0] - 1
    dweight = grad.new_zeros(relations, batch, inputs, columns)
    given = grad.new_empty(0, batch, inputs) if x is None else x
    kernels = grad.new_empty(0, batch, inputs, columns) if weight is None else weight

    def divide(lo: int, hi: int) -> list[int]:
        return even(lo, hi, batch * inputs * columns)

    def make(bounds: list[int], into: Array, out: Tensor) -> None:
        shared = _shared_grads(dweight, bounds)
        arrays = (_flat(grad), _flat(given), *(_array(t) for t in (kernels, out, dweight, shared)))
        where = (_routine(grad), _index(node), into, _fixed(rows.relation_ptr))
        run(projection_loops.project_backward, bounds, np.array(bounds), *where, *arrays)
        _add_shared(dweight, shared, bounds, rows)

    if node is None:  # each row of `x` is read by one row
        make(divide(0, len(grad)), _NO_INDEX, dx.copies)
    else:
        dx.add(_fixed(node), divide, make)
    return dweight


def _row_bounds(rows: Rows, shape: Sequence[int]) -> list[int]:
    """The rows that each thread multiplies by kernels of some shape."""
    return even(0, rows.relation.shape[0], math.prod(shape))


def _shared_grads(dweight: Tensor, bounds: list[int]) -> Tensor:
    """For each range one more gradient of a kernel, of the relation that it begins in the midst of."""
    ranges = len(bounds) - 1
    return dweight.new_zeros(0 if ranges == 1 and bounds[0] == 0 else ranges, *dweight.shape[1:])


def _add_shared(dweight: Tensor, shared: Tensor, bounds: list[int], rows: Rows) -> None:
    if not len(dweight) or not len(shared):
        return
    starts = torch.tensor(bounds[:-1])
    for part, r in enumerate((torch.searchsorted(rows.relation_ptr, starts, right=True) - 1).tolist()[: len(shared)]):
        if r < len(dweight):
            dweight[r] += shared[part]


class _Call:
    """What the loops of one call read, as arrays."""

    def __init__(
        self,
        s: Structure,
        queries: Tensor | None,
        edge_logits: Tensor | None,
        how: Attention,
        state: Tensor | None,
        like: Tensor,
        aggregated: Sequence[bool] = (),
    ) -> None:
        number = _NUMBERS[like.dtype]
        self.s = s
        self.heads = len(how.across)
        self.attends = queries is not None
        self.queries = _nothing(like.dtype, 0, 0, 0) if queries is None else _array(queries)
        self.edge_logits = _nothing(like.dtype, 0, 0) if edge_logits is None else _array(edge_logits)
        self.score = (self.edge_logits, how.negative_slope is not None, number(how.negative_slope or 0))
        self.scopes = _heads_by_scope(tuple(how.across))
        self.aggregated = np.array(aggregated, dtype=np.bool_) if aggregated else _NO_MARKS
        self.edge_mask = _mask(state, EDGES, how.edge_dropout, number)
        self.feature_mask = _mask(state, FEATURES, how.feature_dropout, number)
        self.target_ptr, self.source_ptr, self.group_row, self.value_row = (
            _fixed(t) for t in (s.target_ptr, s.source_ptr, s.targets.by_node, s.source_row)
        )
        self.edges = (
            self.target_ptr, _fixed(s.group_ptr), _fixed(s.targets.node_ptr), self.group_row,
            _fixed(s.targets.relation), self.value_row, _fixed(s.sources.node),
        )  # fmt: skip
        self.by_source = (_fixed(s.by_source), self.source_ptr)
        self.row_id = _array(s.sources.keys(len(self.target_ptr) - 1)) if len(self.feature_mask[1]) else _NO_INDEX

    def place(self, values: Tensor, keys: Tensor | None) -> None:
        """Say where the values ``[U, H * D]`` and keys ``[U, H, A]`` of the source rows are."""
        self.values = _array(values)
        self.keys = _nothing(values.dtype, 0, 0, 0) if keys is None else _array(keys)
        self.share, self.width = self.heads, values.shape[1]
        self.key_layout = (self.heads, self.heads * self.keys.shape[2], 0)

    def place_table(self, table: Tensor, first_key: int) -> None:
        """Say that values and keys are in one table ``[U, P, M]``.

        Each entry of the batch axis has a share of the heads: first their values, then, from column ``first_key``,
        their keys. Keys are read much more often than values, and packed for that.
        """
        batch, self.width = table.shape[1:]
        self.share = self.heads // batch
        keys = table[:, :, first_key:].contiguous().view(len(table), self.heads, self.queries.shape[2])
        self.values, self.keys = _flat(table), _array(keys)
        self.key_layout = (self.share, self.width, first_key)

    def mask_features(self, rows: Tensor, channels: int, place: Tensor | None = None) -> None:
        """Apply feature dropout in place to the source rows, or to those of a table where they stand."""
        if len(self.feature_mask[1]):
            bounds = even(0, len(self.s.sources.node), 4 * rows.shape[1])
            where = (0, _index(place), _array(rows), self.heads, self.share, self.width, channels, self.row_id)
            run(dropout_loops.mask_rows, bounds, *where, *self.feature_mask)

    def _scores_singles(self) -> bool:
        """Whether to score edges that are alone in their group: for a softmax across, and where a score may be NaN."""
        if not self.attends or len(self.scopes[1]):
            return self.attends
        parts = (self.queries, self.keys, self.edge_logits)
        query, key, edge = (float(softmax_loops.largest(part.reshape(-1))) for part in parts)
        score = query + key if self.score[1] else self.queries.shape[2] * query * key
        return not score + edge < float(np.finfo(self.queries.dtype).max)

    def forward(self, x: Tensor, channels: int, sums: Tensor) -> tuple[Tensor, Tensor]:
        """Return the outputs ``[N, H, D]`` and the attention; fill the sums of aggregated relations."""
        attention = x.new_empty(len(self.value_row), self.heads)
        out = x.new_empty(len(self.target_ptr) - 1, self.heads, channels)
        weights = torch.empty_like(attention) if len(self.edge_mask[1]) else attention
        run(
            attention_forward_loops.forward, cut(self.target_ptr, 0, len(out), self.heads * channels), *self.edges,
            self.value_row, self.queries, self.keys, *self.score, self._scores_singles(), *self.scopes,
            *self.edge_mask, self.aggregated, self.values, self.share, self.width, _array(x),
            _array(attention), _array(weights), _flat(out), _array(sums),
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
            attention_backward_loops.backward_by_target,
            cut(self.target_ptr, 0, len(grad), grad.shape[1] * grad.shape[2]), *self.edges,
            self.value_row, self.queries, self.keys, *self.score[1:], *self.scopes, *self.edge_mask, self.aggregated,
            self.values, self.share, self.width, _array(x), _array(attention), _array(self.signed), _flat(grad),
            *(_array(t) for t in (grad_sums, grad_attention, dlogits, dqueries)),
        )  # fmt: skip
        return dlogits, dqueries

    def dropped(self, attention: Tensor) -> Tensor:
        """The attention after edge dropout."""
        if len(self.edge_mask[1]) == 0:
            return attention
        weights = torch.empty_like(attention)
        bounds = even(0, len(attention), 8 * self.heads)
        run(dropout_loops.drop_edges, bounds, *self.edge_mask, _array(attention), _array(weights))
        return weights

    def by_source_rows(
        self, weights: Tensor, grad: Tensor, dlogits: Tensor, dvalues: Tensor, dkeys: Tensor, place: Tensor | None
    ) -> None:
        """Fill the gradients of the values and keys of all source rows; with ``place``, values into rows of a table."""
        additive, rows = self.score[1], len(self.source_ptr) - 1
        bounds = cut(self.source_ptr, 0, rows, grad.shape[1] * grad.shape[2])
        together = dlogits if self.attends and additive else dlogits.new_empty(0, 0)
        arrays = (_fixed(self.s.target), _array(weights), _flat(grad), _array(together), _array(dvalues))
        where = (0, _index(place), *self.by_source)
        keys = _flat(dkeys)
        run(source_grad_loops.values_by_source, bounds, *where, *arrays, self.share, self.width, keys, self.share, 0)
        self.mask_features(dvalues, grad.shape[2], place)
        if not additive:
            self.keys_by_source(dlogits, dkeys)

    def keys_by_source(self, dlogits: Tensor, dkeys: Tensor) -> None:
        """Fill the gradients of the keys of all source rows."""
        if self.attends:
            bounds = cut(self.source_ptr, 0, len(dkeys), self.heads * self.queries.shape[2])
            keys = _flat(dkeys)
            arrays = (_fixed(self.s.group), self.group_row, self.queries, self.score[1], _array(dlogits), keys)
            run(source_grad_loops.keys_by_source, bounds, 0, *self.by_source, *arrays, *self.key_layout)

    def table_backward(
        self, x: Tensor, weight: Tensor, attention: Tensor, grad: Tensor, dlogits: Tensor, dsums: Tensor, with_x: bool
    ) -> tuple[NodeSums, Tensor]:
        """The gradients of the inputs, to which more can be added, and of the kernels of source rows."""
        _, batch, inputs, columns = weight.shape
        dweight, rows, weights = weight.new_zeros(weight.shape), self.s.sources, self.dropped(attention)
        queries = self.queries if columns else self.queries[:0]  # no columns: the keys are not a product

        def divide(lo: int, hi: int) -> list[int]:
            return cut(self.source_ptr, lo, hi, inputs * max(columns, 1))

        def make(bounds: list[int], into: Array, out: Tensor) -> None:
            shared = _shared_grads(dweight, bounds)
            run(
                convolution_loops.table_backward, bounds, np.array(bounds), _routine(x), _fixed(rows.node), into,
                _fixed(rows.relation_ptr), *self.by_source, _fixed(self.s.target), _fixed(self.s.group), self.group_row,
                _array(weights), _flat(grad), _array(dlogits), queries, self.score[1],
                self.share, grad.shape[2], self.aggregated, _array(dsums), self.row_id, *self.feature_mask,
                _flat(x), *(_array(t) for t in (weight, out, dweight, shared)),
            )  # fmt: skip
            _add_shared(dweight, shared, bounds, rows)

        ranges = len(divide(0, len(rows.node))) - 1
        dx = NodeSums(x, len(x), batch * inputs, ranges if with_x else 0)
        dx.add(_fixed(rows.node), divide, make)
        return dx, dweight


def _mask(state: Tensor | None, kind: int, rate: float, number: Any) -> tuple[Array, Array, Array]:
    """Of each member the stream of its mask, the number below which an element is dropped, the scale; none: empty."""
    if state is None or rate == 0:
        return np.empty(0, np.uint64), np.empty(0, np.uint32), np.empty(0, number)
    stream = _array(mask_stream(state, kind)).reshape(-1).view(np.uint64)
    if state.dim() == 1:
        return stream, np.array([drop_below(rate)], np.uint32), np.array([1 / (1 - rate)], number)
    below, bits = _array(state)[:, 2 + 2 * kind :][:, :2].T
    return stream, below.astype(np.uint32), bits.copy().view(np.float64).astype(number)


def attend(
    values: Tensor,
    queries: Tensor | None,
    keys: Tensor | None,
    edge_logits: Tensor | None,
    s: Structure,
    how: Attention,
    state: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Return outputs ``[N, H, D]`` and attention ``[E, H]``; see ``operators.attend``."""
    call = _attend_call(values, queries, keys, edge_logits, s, how, state)
    return call.forward(values.new_empty(0, 0), values.shape[2], values.new_empty(0, values.shape[1], 0))


def _attend_call(
    values: Tensor,
    queries: Tensor | None,
    keys: Tensor | None,
    edge_logits: Tensor | None,
    s: Structure,
    how: Attention,
    state: Tensor | None,
) -> _Call:
    call = _Call(s, queries, edge_logits, how, state, values)
    flat = values.flatten(1)
    call.place(flat, keys)
    if len(call.feature_mask[1]):
        flat = flat.clone()
        call.mask_features(flat, values.shape[2])
        call.place(flat, keys)
    return call


def attend_backward(
    grad: Tensor,
    grad_attention: Tensor | None,
    attention: Tensor,
    values: Tensor,
    queries: Tensor | None,
    keys: Tensor | None,
    edge_logits: Tensor | None,
    s: Structure,
    how: Attention,
    state: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of values, queries, keys and logits."""
    call = _attend_call(values, queries, keys, edge_logits, s, how, state)
    attention, grad_attention = call.split_sign(attention, grad_attention)
    dvalues, dkeys = torch.empty_like(values), values.new_empty((0, 0, 0) if keys is None else keys.shape)
    no_sums = values.new_empty(0, values.shape[1], 0)
    dlogits, dqueries = call.backward_by_target(no_sums[:, 0], attention, grad, no_sums, grad_attention)
    call.by_source_rows(call.dropped(attention), grad, dlogits, dvalues.flatten(1), dkeys, None)
    return dvalues, dqueries, dkeys, dlogits


def attend_rows(
    table: Tensor,
    query_kernel: Tensor | None,
    key_kernel: Tensor | None,
    edge_logits: Tensor | None,
    places: list[Tensor],
    s: Structure,
    how: Attention,
    state: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return outputs, attention, queries and keys; see ``rows.attend_rows``."""
    source, _, target, _, _ = places
    queries = keys = None
    if query_kernel is not None and key_kernel is not None:
        queries = project(table, query_kernel, s.targets, target)
        keys = project(table, key_kernel, s.sources, source)
    call = _rows_call(table, queries, keys, edge_logits, places, s, how, state)
    out, attention = call.forward(table.new_empty(0, 0), table.shape[2], table.new_empty(0, table.shape[1], 0))
    none = table.new_empty(0, 0, 0)
    return out, attention, none if queries is None else queries, none if keys is None else keys


def _rows_call(
    table: Tensor,
    queries: Tensor | None,
    keys: Tensor | None,
    edge_logits: Tensor | None,
    places: list[Tensor],
    s: Structure,
    how: Attention,
    state: Tensor | None,
) -> _Call:
    call = _Call(s, queries, edge_logits, how, state, table)
    if len(call.feature_mask[1]):
        values = table.index_select(0, places[0]).flatten(1)
        call.place(values, keys)
        call.mask_features(values, table.shape[2])
    else:
        call.place(table.flatten(1), keys)
        call.value_row = _fixed(places[4])
    return call


def attend_rows_backward(
    grad: Tensor,
    grad_attention: Tensor | None,
    attention: Tensor,
    queries: Tensor,
    keys: Tensor,
    table: Tensor,
    query_kernel: Tensor | None,
    key_kernel: Tensor | None,
    edge_logits: Tensor | None,
    places: list[Tensor],
    s: Structure,
    how: Attention,
    state: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of the table, of both kernels and of the logits."""
    attends = query_kernel is not None
    scores = (queries if attends else None, keys if attends else None)
    call = _rows_call(table, *scores, edge_logits, places, s, how, state)
    attention, grad_attention = call.split_sign(attention, grad_attention)
    source, source_back, target, _, _ = places
    no_sums = table.new_empty(0, table.shape[1], 0)
    dlogits, dqueries = call.backward_by_target(no_sums[:, 0], attention, grad, no_sums, grad_attention)
    dtable, dkeys = torch.empty_like(table), torch.empty_like(keys)
    flat = dtable.flatten(1)
    run(row_loops.clear_rows, even(0, len(flat), flat.shape[1]), _fixed(source_back), _array(flat))
    call.by_source_rows(call.dropped(attention), grad, dlogits, flat, dkeys, source)
    dquery_kernel = dkey_kernel = table.new_empty(0)
    if query_kernel is not None and key_kernel is not None:
        dquery_kernel = _scores_backward(table, query_kernel, dqueries, s.targets, target, flat)
        dkey_kernel = _scores_backward(table, key_kernel, dkeys, s.sources, source, flat)
    return dtable, dquery_kernel, dkey_kernel, dlogits


def _scores_backward(x: Tensor, weight: Tensor, dscores: Tensor, rows: Rows, place: Tensor, dx: Tensor) -> Tensor:
    """Add the gradient of the rows of ``x`` that scores were made of to ``dx``; return that of the kernels."""
    bounds, dweight = _row_bounds(rows, weight.shape[1:]), weight.new_zeros(weight.shape)
    shared = _shared_grads(dweight, bounds)
    arrays = (_array(dscores), _flat(x), *(_array(t) for t in (weight, dx, dweight, shared)))
    run(projection_loops.scores_backward, bounds, np.array(bounds), _fixed(place), _fixed(rows.relation_ptr), *arrays)
    _add_shared(dweight, shared, bounds, rows)
    return dweight


def convolve(
    x: Tensor,
    weight: Tensor,
    query_weight: Tensor | None,
    edge_logits: Tensor | None,
    aggregated: list[bool],
    s: Structure,
    how: Attention,
    state: Tensor | None,
) -> tuple[Tensor, ...]:
    """Return outputs, attention, and for backward the table (dropped out) and the sums; see ``operators.convolve``."""
    queries = None
    if query_weight is not None:
        queries = project(x, query_weight, s.targets, s.targets.node)
        queries = queries.view(len(queries), len(how.across), queries.shape[1] * queries.shape[2] // len(how.across))
    call = _Call(s, queries, edge_logits, how, state, x, aggregated)
    heads, (_, batch, _, columns) = call.heads, weight.shape
    channels = batch * columns // heads - call.queries.shape[2]
    first_key = heads // batch * channels
    table = project(x, weight, s.sources, s.sources.node, aggregated, first_key)
    sums = x.new_empty(len(s.targets.node) if any(aggregated) else 0, heads, x.shape[2])
    call.place_table(table, first_key)
    call.mask_features(table.flatten(1), channels)
    out, attention = call.forward(x.flatten(1), channels, sums)
    if any(aggregated):
        out += _project_sums(sums, weight, call, s, channels).view(out.shape)
    return out, attention, x.new_empty(0, heads, 0) if queries is None else queries, table, sums


def _project_sums(sums: Tensor, weight: Tensor, call: _Call, s: Structure, channels: int) -> Tensor:
    """The sums of inputs times the kernels of values, summed by target."""

    def divide(lo: int, hi: int) -> list[int]:
        return even(lo, hi, sums.shape[2] * call.heads * channels)

    def make(bounds: list[int], into: Array, out: Tensor) -> None:
        arrays = (call.aggregated, *(_array(t) for t in (sums, weight, out)))
        where = (_routine(sums), into, _fixed(s.targets.relation_ptr))
        run(convolution_loops.project_sums, bounds, np.array(bounds), *where, *arrays)

    ranges = len(divide(0, len(sums))) - 1
    out = NodeSums(sums, len(s.target_ptr) - 1, call.heads * channels, ranges)
    out.add(_fixed(s.targets.node), divide, make)
    return out.total()


def convolve_backward(
    grad: Tensor,
    grad_attention: Tensor | None,
    attention: Tensor,
    queries: Tensor,
    table: Tensor,
    sums: Tensor,
    x: Tensor,
    weight: Tensor,
    query_weight: Tensor | None,
    edge_logits: Tensor | None,
    aggregated: list[bool],
    s: Structure,
    how: Attention,
    state: Tensor | None,
    with_x: bool,
) -> tuple[Tensor | None, ...]:
    """Gradients of inputs (None if they need none), kernels, queries and logits."""
    call = _Call(s, None if query_weight is None else queries, edge_logits, how, state, x, aggregated)
    call.place_table(table, call.heads // weight.shape[1] * grad.shape[2])
    attention, grad_attention = call.split_sign(attention, grad_attention)
    dsums = torch.empty_like(sums)
    dsums_weight = _sums_grad(dsums, grad, sums, weight, call, s) if any(aggregated) else None
    dlogits, dqueries = call.backward_by_target(x.flatten(1), attention, grad, dsums, grad_attention)
    dx, dweight = call.table_backward(x, weight, attention, grad, dlogits, dsums, with_x)
    if dsums_weight is not None:
        dweight += dsums_weight
    if query_weight is not None:
        rows = dqueries.view(len(dqueries), query_weight.shape[1], query_weight.shape[3])
        dqueries = _project_backward(rows, x, query_weight, s.targets, s.targets.node, dx)
    return dx.total() if with_x else None, dweight, dqueries, dlogits


def _sums_grad(dsums: Tensor, grad: Tensor, sums: Tensor, weight: Tensor, call: _Call, s: Structure) -> Tensor:
    """Fill the gradient of the sums of inputs; return that of their kernels."""
    bounds = even(0, len(sums), sums.shape[2] * grad.shape[1] * grad.shape[2])
    dweight = weight.new_zeros(weight.shape)
    shared = _shared_grads(dweight, bounds)
    arrays = (_flat(grad), *(_array(t) for t in (sums, weight, dsums, dweight, shared)))
    where = (_routine(grad), _fixed(s.targets.node), _fixed(s.targets.relation_ptr), call.aggregated)
    run(convolution_loops.project_sums_backward, bounds, np.array(bounds), *where, *arrays)
    _add_shared(dweight, shared, bounds, s.targets)
    return dweight


def sum_inputs(
    x: Tensor,
    queries: Tensor | None,
    keys: Tensor | None,
    edge_logits: Tensor | None,
    s: Structure,
    how: Attention,
    state: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Return the weighted sums of inputs ``[V, H, F]`` per target row, and the attention; see ``operators``."""
    call = _sum_call(x, queries, keys, edge_logits, s, how, state)
    sums = x.new_empty(len(s.targets.node), call.heads, x.shape[1])
    _, attention = call.forward(x, 0, sums)
    return sums, attention


def _sum_call(
    x: Tensor,
    queries: Tensor | None,
    keys: Tensor | None,
    edge_logits: Tensor | None,
    s: Structure,
    how: Attention,
    state: Tensor | None,
) -> _Call:
    call = _Call(s, queries, edge_logits, how, state, x, [True] * (len(s.sources.relation_ptr) - 1))
    call.place(x.new_empty(0, 0), keys)
    return call


def sum_inputs_backward(
    grad: Tensor,
    grad_attention: Tensor | None,
    attention: Tensor,
    x: Tensor,
    queries: Tensor | None,
    keys: Tensor | None,
    edge_logits: Tensor | None,
    s: Structure,
    how: Attention,
    state: Tensor | None,
    with_x: bool,
) -> tuple[Tensor | None, Tensor, Tensor, Tensor]:
    """Gradients of inputs (None if they need none), queries, keys and logits."""
    call = _sum_call(x, queries, keys, edge_logits, s, how, state)
    attention, grad_attention = call.split_sign(attention, grad_attention)
    nothing, dx = x.new_empty(len(x), call.heads, 0), None
    dlogits, dqueries = call.backward_by_target(x, attention, nothing, grad, grad_attention)
    if with_x:
        no_kernels = x.new_empty(len(s.sources.relation_ptr) - 1, 1, x.shape[1], 0)
        dx = call.table_backward(x, no_kernels, attention, nothing, dlogits, grad, with_x)[0].total()
    dkeys = x.new_empty(() if keys is None else keys.shape)
    if keys is not None:
        call.keys_by_source(dlogits, dkeys)
    return dx, dqueries, dkeys, dlogits


def spread(table: Tensor, coefficients: Tensor, rows: Rows, node: Tensor) -> Tensor:
    """Combine the bases ``table`` ``[N, G, B, D]`` for each row; see ``bases.spread``."""
    (_, _, bases, channels), heads = table.shape, coefficients.shape[1]
    out = table.new_empty(len(rows.relation), heads, channels)
    arrays = (_array(t) for t in (node, rows.relation, table, coefficients, out))
    run(basis_loops.spread, even(0, len(out), heads * bases * channels), *arrays)
    return out


def collect(values: Tensor, coefficients: Tensor, rows: Rows, node: Tensor, num_nodes: int, groups: int) -> Tensor:
    """The transpose of ``spread``: from rows ``[U, H, D]`` to nodes and bases ``[N, G, B, D]``."""
    (_, heads, channels), bases = values.shape, coefficients.shape[2]
    if node is rows.node:
        by_node, node_ptr = rows.by_node, rows.node_ptr
    else:
        by_node, node_ptr = node.argsort(stable=True).int(), pointers(node.bincount(minlength=num_nodes))
    out = values.new_empty(num_nodes, groups, bases, channels)
    arrays = (_array(t) for t in (by_node, node_ptr, rows.relation, values, coefficients, out))
    run(basis_loops.collect, cut(_fixed(node_ptr), 0, num_nodes, heads * bases * channels), *arrays)
    return out


def pair(table: Tensor, values: Tensor, rows: Rows, node: Tensor) -> Tensor:
    """The gradient of the coefficients of ``spread`` and ``collect``, ``[R, H, B]``."""
    (_, _, bases, channels), heads = table.shape, values.shape[1]
    out = values.new_empty(len(rows.relation_ptr) - 1, heads, bases)
    arrays = (_array(t) for t in (node, rows.relation_ptr, table, values, out))
    run(basis_loops.pair, cut(_fixed(rows.relation_ptr), 0, len(out), heads * bases * channels), *arrays)
    return out


def fold(kernels: Tensor, attention: Tensor) -> tuple[Tensor, Tensor]:
    """The matrices of source and target rows; see ``folding``."""
    (relations, heads, inputs, channels), width = kernels.shape, attention.shape[2] // 2
    weight = kernels.new_empty(relations, 1, inputs, heads * (channels + width))
    query = kernels.new_empty(relations, 1, inputs, heads * width)
    arrays = (_array(t) for t in (kernels, attention, weight[:, 0], query[:, 0]))
    run(folding_loops.fold, even(0, relations, heads * inputs * channels), *arrays)
    return weight, query


def fold_backward(dweight: Tensor, dquery: Tensor, kernels: Tensor, attention: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of kernels and attention kernels."""
    dkernels, dattention = torch.empty_like(kernels), torch.empty_like(attention)
    arrays = (_array(t) for t in (dweight[:, 0], dquery[:, 0], kernels, attention, dkernels, dattention))
    run(folding_loops.fold_backward, even(0, len(kernels), kernels[0].numel() if len(kernels) else 0), *arrays)
    return dkernels, dattention


def gather_back(grads: list[Tensor], backs: list[Tensor]) -> Tensor:
    """The gradient of the table of ``rows.look_up``."""
    out = grads[0].new_empty(len(backs[0]), *grads[0].shape[1:])
    flat = [_array(t).reshape(len(t), out[0].numel() if len(out) else 0) for t in (out, grads[0], grads[-1])]
    bounds = even(0, len(out), 3 * flat[0].shape[1])
    run(row_loops.gather_back, bounds, *flat, *(_array(t) for t in (backs[0], backs[-1])), len(grads) == 2)
    return out
