"""The operations of a relational layer on the CPU: loops of ``numba_kernels`` and BLAS, on threads of our own.

Gradients of values live only in a buffer of a few thousand rows: the loop over source rows fills it, and the gradients
of inputs and kernels are taken from it at once, while it is in the cache. Attention ``[E, H]`` is the only thing kept
per edge between forward and backward.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import grouped_mm

from rgat.graph import Rows, Structure, pointers
from rgat.ops import numba_kernels as loops
from rgat.ops import numba_products as products
from rgat.ops.attention import Attention
from rgat.ops.dropout import EDGES, FEATURES, drop_below, mask_stream
from rgat.ops.planner import SMALL
from rgat.ops.threads import ALONE, cut, even, run, share

Array = NDArray[Any]

_NO_INDEX = np.empty(0, np.int32)

_BUFFER = 1 << 17  # numbers in a buffer between a loop and a matrix product: fits the second-level cache


def _array(tensor: Tensor) -> Array:
    array: Array = tensor.detach().numpy()
    return array


def _chunks(start: int, end: int, width: int) -> Iterator[tuple[int, int]]:
    step = max(_BUFFER // max(width, 1), 64)
    for first in range(start, end, step):
        yield first, min(first + step, end)


def _relations(ptr: list[int], start: int, end: int) -> list[tuple[int, int, int]]:
    """The relations that have rows among ``start:end``, and which."""
    found = []
    r = bisect_right(ptr, start) - 1
    while start < end:
        stop = min(ptr[r + 1], end)
        if start < stop:
            found.append((r, start, stop))
        start, r = stop, r + 1
    return found


class _Buffers(dict[Any, Tensor]):
    """Memory that is used again and again during one call."""

    def rows(self, name: str, count: int, shape: tuple[int, ...], like: Tensor) -> Tensor:
        key = (name, shape)
        if key not in self or len(self[key]) < count:
            self[key] = like.new_empty(count, *shape)
        return self[key][:count]


def _multiply(
    left: Tensor, weight: Tensor, out: Tensor | None, ranges: Sequence[tuple[int, int, int]], start: int = 0
) -> Tensor:
    """``[n, P, F] x [P, F, M] -> [n, P, M]`` for each (relation, first row, last row), counted from ``start``.

    Without ``out`` the result may be new; rows that are in no range are then undefined.
    """
    size = (len(left), left.shape[1], weight.shape[3])
    if out is None and _can_group(left, weight, ranges):
        first, last = ranges[0][0], ranges[-1][0] + 1
        made = grouped_mm(left[:, 0], weight[first:last, 0], offs=_ends(ranges, first, start))
        return made.unsqueeze(1)
    out = left.new_empty(size) if out is None else out
    relations, sizes = _sizes(ranges, start, len(left))
    for p in range(left.shape[1]):
        parts = zip(relations, left[:, p].split_with_sizes(sizes), out[:, p].split_with_sizes(sizes), strict=True)
        for r, left_part, out_part in parts:
            if r >= 0:
                torch.mm(left_part, weight[r, p], out=out_part)
    return out


def _add_outer(
    left: Tensor, right: Tensor, weight: Tensor, ranges: Sequence[tuple[int, int, int]], start: int = 0
) -> None:
    """``[n, P, F], [n, P, M]``: add the sum of the rows' outer products to the ``[P, F, M]`` of each relation."""
    if _can_group(left, right, ranges):
        first, last = ranges[0][0], ranges[-1][0] + 1
        weight[first:last, 0] += grouped_mm(left[:, 0].t(), right[:, 0], offs=_ends(ranges, first, start))
        return
    relations, sizes = _sizes(ranges, start, len(left))
    for p in range(left.shape[1]):
        left_parts, right_parts = left[:, p].t().split_with_sizes(sizes, 1), right[:, p].split_with_sizes(sizes)
        for r, left_part, right_part in zip(relations, left_parts, right_parts, strict=True):
            if r >= 0:
                weight[r, p].addmm_(left_part, right_part)


def _can_group(left: Tensor, right: Tensor, ranges: Sequence[tuple[int, int, int]]) -> bool:
    """Whether one call serves all relations: it wants single precision, rows of 16 bytes, and no gaps."""
    fits = _fits_groups(left.shape[1], left.shape[2], right.shape[-1], left.dtype)
    return fits and len(ranges) > 1 and sum(b - a for _, a, b in ranges) == len(left)


def _fits_groups(batch: int, inputs: int, columns: int, dtype: torch.dtype) -> bool:
    return batch == 1 and inputs % 4 == columns % 4 == 0 and dtype == torch.float32


def _ends(ranges: Sequence[tuple[int, int, int]], first: int, start: int) -> Tensor:
    """Where the rows of each relation from ``first`` on end, also of those without any."""
    ends: list[int] = []
    place = 0
    for r, _, b in ranges:
        ends += [place] * (r - first - len(ends))
        place = b - start
        ends.append(place)
    return torch.tensor(ends, dtype=torch.int32)


def _sizes(ranges: Iterable[tuple[int, int, int]], start: int, size: int) -> tuple[list[int], list[int]]:
    """The relations (-1: none) and sizes of the parts that a chunk of ``size`` rows is to be split into."""
    relations, sizes, place = [], [], start
    for r, a, b in ranges:
        if a > place:
            relations.append(-1)
            sizes.append(a - place)
        relations.append(r)
        sizes.append(b - a)
        place = b
    if place < start + size:
        relations.append(-1)
        sizes.append(start + size - place)
    return relations, sizes


def project(x: Tensor, weight: Tensor, rows: Rows, node: Tensor | None, left_out: Sequence[bool] = ()) -> Tensor:
    """Multiply the rows ``x[node]`` (or ``x`` itself) by the kernels of their relations; see ``operators.project``.

    Rows of relations that are ``left_out`` stay undefined.
    """
    _, batch, inputs, columns = weight.shape
    ranges = _relations(rows.relation_ptr.tolist(), 0, len(rows.relation))
    alone = len(even(0, len(rows.relation), inputs * columns)) == 2 and not any(left_out)
    if alone and inputs * columns > SMALL and _fits_groups(batch, inputs, columns, x.dtype):
        return _multiply(_take(x, node, 0, len(rows.relation), _Buffers()), weight, None, ranges)  # all at once
    out = x.new_empty(len(rows.relation), batch, columns)
    _project_into(out, x, weight, rows, node, left_out)
    return out


def _project_into(
    out: Tensor, x: Tensor, weight: Tensor, rows: Rows, node: Tensor | None, left_out: Sequence[bool] = ()
) -> None:
    """``project``, without the rows of relations that are left out."""
    _, batch, inputs, columns = weight.shape
    ptr = rows.relation_ptr.tolist()
    if inputs * columns <= SMALL:
        flipped = weight.transpose(2, 3).contiguous()
        arrays = [_array(t) for t in (rows.relation, x, weight, flipped, out)]
        index = _NO_INDEX if node is None else _array(node)
        for start, end in _wanted_ranges(ptr, left_out):
            run(products.project, even(start, end, batch * inputs * columns), index, *arrays)
        return

    def part(lo: int, hi: int) -> None:
        buffers = _Buffers()
        for first, last in _wanted_ranges(ptr, left_out, lo, hi):
            for start, end in _chunks(first, last, batch * inputs):
                left = _take(x, node, start, end, buffers)
                _multiply(left, weight, out[start:end], _relations(ptr, start, end), start)

    share(part, even(0, len(out), batch * inputs * columns))


def _wanted_ranges(
    ptr: list[int], left_out: Sequence[bool], start: int = 0, end: int | None = None
) -> Iterator[tuple[int, int]]:
    """The longest ranges of rows among ``start:end`` without a relation that is left out."""
    end = ptr[-1] if end is None else end
    for r, flag in enumerate(left_out):
        if flag:
            if start < min(ptr[r], end):
                yield start, min(ptr[r], end)
            start = max(start, ptr[r + 1])
    if start < end:
        yield start, end


def _take(x: Tensor, node: Tensor | None, start: int, end: int, buffers: _Buffers) -> Tensor:
    """The rows ``x[node[start:end]]``."""
    if node is None:
        return x[start:end]
    taken = buffers.rows("taken", end - start, tuple(x.shape[1:]), x)
    width = taken[0].numel()
    arrays = _array(node), _array(x).reshape(len(x), width), _array(taken).reshape(end - start, width)
    run(products.gather, even(start, end, width), start, *arrays)
    return taken


def _put(rows: Tensor, node: Tensor | None, start: int, end: int, out: Tensor) -> None:
    """Add rows that belong to ``start:end`` to the rows of ``out`` they came from."""
    if node is None:
        out[start:end] = rows
        return
    width = rows[0].numel()
    arrays = _array(node), _array(rows).reshape(end - start, width), _array(out).reshape(len(out), width)
    bounds = even(0, len(out), width) if (end - start) * width >= ALONE else [0, len(out)]
    run(products.scatter_add, bounds, start, end, *arrays)


def project_input_grad(grad: Tensor, weight: Tensor, rows: Rows, node: Tensor | None, num_nodes: int) -> Tensor:
    """The gradient of ``x``."""
    _, batch, inputs, columns = weight.shape
    if node is None:
        return project(grad, weight.transpose(2, 3).contiguous(), rows, None)
    if inputs * columns <= SMALL and node is rows.node:
        out = grad.new_empty(num_nodes, batch, inputs)
        flipped = weight.transpose(2, 3).contiguous()
        arrays = [_array(t) for t in (rows.by_node, rows.node_ptr, rows.relation, grad, flipped, out)]
        run(products.project_input_grad, cut(arrays[1], 0, num_nodes, batch * inputs * columns), *arrays)
        return out
    ptr, flipped = rows.relation_ptr.tolist(), weight.transpose(2, 3).contiguous()

    def part(lo: int, hi: int) -> Tensor:
        out = grad.new_zeros(num_nodes, batch, inputs)
        for start, end in _chunks(lo, hi, batch * inputs):
            chunk = _multiply(grad[start:end], flipped, None, _relations(ptr, start, end), start)
            _put(chunk, node, start, end, out)
        return out

    return _total(share(part, even(0, len(grad), batch * inputs * columns)))


def _total(parts: Sequence[Tensor]) -> Tensor:
    """The sum of what the threads found, in their order."""
    for part in parts[1:]:
        parts[0].add_(part)
    return parts[0]


def project_weight_grad(grad: Tensor, x: Tensor, rows: Rows, node: Tensor | None) -> Tensor:
    """The gradient of ``weight``."""
    num_relations, batch, inputs, columns = len(rows.relation_ptr) - 1, x.shape[1], x.shape[2], grad.shape[2]
    if inputs * columns <= SMALL:
        flipped = grad.new_empty(num_relations, batch, columns, inputs)
        arrays = [_array(t) for t in (rows.relation_ptr, grad, x, flipped)]
        bounds = cut(arrays[0], 0, num_relations, batch * inputs * columns)
        run(products.project_weight_grad, bounds, _NO_INDEX if node is None else _array(node), *arrays)
        return flipped.transpose(2, 3)
    ptr = rows.relation_ptr.tolist()

    def part(lo: int, hi: int) -> Tensor:
        out, buffers = grad.new_zeros(num_relations, batch, inputs, columns), _Buffers()
        for start, end in _chunks(lo, hi, batch * inputs):
            left = _take(x, node, start, end, buffers)
            _add_outer(left, grad[start:end], out, _relations(ptr, start, end), start)
        return out

    return _total(share(part, even(0, len(grad), batch * inputs * columns)))


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
        number = _array(like).dtype.type
        self.s = s
        self.heads = len(how.across)
        self.attends = queries is not None
        self.queries = _array(like.new_empty(0, 0, 0) if queries is None else queries)
        self.edge_logits = _array(like.new_empty(0, 0) if edge_logits is None else edge_logits)
        self.score = (self.edge_logits, how.negative_slope is not None, number(how.negative_slope or 0))
        self.scopes = tuple(np.flatnonzero(np.array(how.across, dtype=np.bool_) == wide) for wide in (False, True))
        self.aggregated = np.array(aggregated, dtype=np.bool_)
        self.edge_mask = _mask(state, EDGES, how.edge_dropout, number)
        self.feature_mask = _mask(state, FEATURES, how.feature_dropout, number)
        self.target_ptr, self.source_ptr, self.group_row = (
            _array(t) for t in (s.target_ptr, s.source_ptr, s.targets.by_node)
        )
        self.edges = (
            self.target_ptr, *(_array(t) for t in (s.group_ptr, s.targets.node_ptr)), self.group_row,
            *(_array(t) for t in (s.targets.relation, s.source_row, s.sources.node)),
        )  # fmt: skip
        self.by_source = (_array(s.by_source), self.source_ptr)
        self.row_id = _array(s.sources.keys(len(s.target_ptr) - 1)) if len(self.feature_mask[1]) else _NO_INDEX

    def place(self, values: Tensor, keys: Tensor | None) -> None:
        """Say where the values ``[U, H * D]`` and keys ``[U, H, A]`` of the source rows are."""
        self.values, self.keys = _array(values), _array(values.new_empty(0, 0, 0) if keys is None else keys)
        self.share, self.width = self.heads, values.shape[1]
        self.key_layout = (self.heads, self.heads * self.keys.shape[2], 0)

    def place_table(self, table: Tensor, first_key: int) -> None:
        """Say that values and keys are in one table ``[U, P, M]``.

        Each entry of the batch axis has a share of the heads: first their values, then, from column ``first_key``,
        their keys. Keys are read much more often than values, and packed for that.
        """
        batch, self.width = table.shape[1:]
        self.share = self.heads // batch
        keys = table[:, :, first_key:].reshape(len(table), self.heads, self.queries.shape[2])
        self.values, self.keys = _array(table.flatten(1)), _array(keys)
        self.key_layout = (self.share, self.width, first_key)

    def mask_features(self, rows: Tensor, first: int, channels: int) -> None:
        """Apply feature dropout in place to rows that begin with row ``first``."""
        if len(self.feature_mask[1]):
            bounds = even(first, first + len(rows), 4 * rows.shape[1])
            where = (first, _array(rows), self.heads, self.share, self.width, channels, self.row_id)
            run(loops.mask_rows, bounds, *where, *self.feature_mask)

    def forward(self, x: Tensor, channels: int, sums: Tensor) -> tuple[Tensor, Tensor]:
        """Return the outputs ``[N, H, D]`` and the attention; fill the sums of aggregated relations."""
        attention = x.new_empty(len(self.s.target), self.heads)
        out = x.new_empty(len(self.s.target_ptr) - 1, self.heads, channels)
        weights = torch.empty_like(attention) if len(self.edge_mask[1]) else attention
        run(
            loops.forward, cut(self.target_ptr, 0, len(out), self.heads * channels), *self.edges,
            self.queries, self.keys, *self.score, *self.scopes, *self.edge_mask, self.aggregated,
            self.values, self.share, self.width, *(_array(t) for t in (x, attention, weights, out.flatten(1), sums)),
        )  # fmt: skip
        return out, attention

    def backward_by_target(
        self, x: Tensor, attention: Tensor, grad: Tensor, grad_sums: Tensor, grad_attention: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return the gradients of the logits and of the queries; empty under constant attention."""
        dqueries = grad.new_empty(self.queries.shape)
        if not self.attends:
            return grad.new_empty(0, 0), dqueries
        if grad_attention is None:
            grad_attention = grad.new_empty(0, 0)
        dlogits = torch.empty_like(attention)
        run(
            loops.backward_by_target, cut(self.target_ptr, 0, len(grad), grad.shape[1] * grad.shape[2]), *self.edges,
            self.queries, self.keys, *self.score, *self.scopes, *self.edge_mask, self.aggregated,
            self.values, self.share, self.width,
            *(_array(t) for t in (x, attention, grad.flatten(1), grad_sums, grad_attention, dlogits, dqueries)),
        )  # fmt: skip
        return dlogits, dqueries

    def dropped(self, attention: Tensor) -> Tensor:
        """The attention after edge dropout."""
        if len(self.edge_mask[1]) == 0:
            return attention
        weights = torch.empty_like(attention)
        bounds = even(0, len(attention), 8 * self.heads)
        run(loops.drop_edges, bounds, *self.edge_mask, _array(attention), _array(weights))
        return weights

    def values_by_source(
        self, start: int, end: int, weights: Tensor, grad: Tensor, dlogits: Tensor, dvalues: Tensor
    ) -> None:
        """Fill the gradients of the values of the rows ``start:end``; with ``dlogits`` also those of additive keys."""
        bounds = cut(self.source_ptr, start, end, grad.shape[1] * grad.shape[2])
        arrays = (_array(t) for t in (self.s.target, weights, grad.flatten(1), dlogits, dvalues))
        run(loops.values_by_source, bounds, start, *self.by_source, *arrays, self.share, self.width)
        self.mask_features(dvalues, start, grad.shape[2])

    def table_by_source(
        self, start: int, end: int, weights: Tensor, grad: Tensor, dlogits: Tensor, dtable: Tensor
    ) -> None:
        """Fill the gradients of values and keys in the rows ``start:end`` of a table."""
        together = self.attends and self.score[1]
        self.values_by_source(start, end, weights, grad, dlogits if together else dlogits[:0, :0], dtable.flatten(1))
        if not together:
            self.keys_by_source(start, end, dlogits, dtable.flatten(1))

    def keys_by_source(self, start: int, end: int, dlogits: Tensor, dkeys: Tensor) -> None:
        """Fill the gradients of the keys of the rows ``start:end``."""
        if self.attends:
            bounds = cut(self.source_ptr, start, end, self.heads * self.queries.shape[2])
            arrays = (_array(self.s.group), self.group_row, self.queries, self.score[1], _array(dlogits), _array(dkeys))
            run(loops.keys_by_source, bounds, start, *self.by_source, *arrays, *self.key_layout)

    def inputs_by_source(self, start: int, end: int, weights: Tensor, dsums: Tensor, dinputs: Tensor) -> None:
        """Fill the gradients of the inputs of rows ``start:end`` of relations that are aggregated."""
        bounds = cut(self.source_ptr, start, end, dsums.shape[1] * dsums.shape[2])
        arrays = (_array(self.s.group), self.group_row, *(_array(t) for t in (weights, dsums, dinputs)))
        run(loops.inputs_by_source, bounds, start, *self.by_source, *arrays)


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
        call.mask_features(flat, 0, values.shape[2])
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
    dvalues, dkeys = torch.empty_like(values), values.new_empty(() if keys is None else keys.shape)
    no_sums = values.new_empty(0, values.shape[1], 0)
    dlogits, dqueries = call.backward_by_target(no_sums[:, 0], attention, grad, no_sums, grad_attention)
    alone = values.new_empty(0, 0)
    call.values_by_source(0, len(values), call.dropped(attention), grad, alone, dvalues.flatten(1))
    if keys is not None:
        call.keys_by_source(0, len(values), dlogits, dkeys.flatten(1))
    return dvalues, dqueries, dkeys, dlogits


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
    table = project(x, weight, s.sources, s.sources.node, aggregated)
    sums = x.new_empty(len(s.targets.node) if any(aggregated) else 0, heads, x.shape[2])
    if any(aggregated):
        _aggregated_keys(table, x, weight, aggregated, heads * channels, s)
    call.place_table(table, heads // batch * channels)
    call.mask_features(table.flatten(1), 0, channels)
    out, attention = call.forward(x.flatten(1), channels, sums)
    if any(aggregated):
        ptr, buffers = s.targets.relation_ptr.tolist(), _Buffers()
        for r in (r for r, flag in enumerate(aggregated) if flag):
            kernel = _per_head(weight[r], heads, channels)
            for start, end in _chunks(ptr[r], ptr[r + 1], heads * channels):
                part = buffers.rows("part", end - start, (heads, channels), x)
                _multiply(sums[start:end], kernel.unsqueeze(0), part, [(0, 0, end - start)])
                _put(part, s.targets.node, start, end, out)
    return out, attention, x.new_empty(0, heads, 0) if queries is None else queries, table, sums


def _per_head(weight: Tensor, heads: int, channels: int) -> Tensor:
    """The kernels ``[H, F, D]`` of the values in ``[1, F, H * (D + A)]``."""
    return weight[0, :, : heads * channels].reshape(-1, heads, channels).transpose(0, 1)


def _aggregated_keys(
    table: Tensor, x: Tensor, weight: Tensor, aggregated: list[bool], first: int, s: Structure
) -> None:
    """Fill the columns of the keys, which begin with ``first``, of relations whose values are not projected."""
    if first == weight.shape[3]:
        return
    ptr, buffers = s.sources.relation_ptr.tolist(), _Buffers()
    for r in (r for r, flag in enumerate(aggregated) if flag):
        for start, end in _chunks(ptr[r], ptr[r + 1], x.shape[2]):
            left = _take(x, s.sources.node, start, end, buffers)
            torch.mm(left[:, 0], weight[r, 0, :, first:], out=table[start:end, 0, first:])


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
) -> tuple[Tensor, ...]:
    """Gradients of inputs, kernels, queries and logits."""
    call = _Call(s, None if query_weight is None else queries, edge_logits, how, state, x, aggregated)
    (_, batch, inputs, columns), heads, channels = weight.shape, call.heads, grad.shape[2]
    first_key = heads // batch * channels
    call.place_table(table, first_key)
    node, dsums, dweight = s.sources.node, torch.empty_like(sums), None
    if any(aggregated):
        dweight = torch.zeros_like(weight)
        _sums_grad(dsums, grad, sums, weight, dweight, aggregated, s)
    dlogits, dqueries = call.backward_by_target(x.flatten(1), attention, grad, dsums, grad_attention)
    weights = call.dropped(attention)
    if inputs * columns <= SMALL and not any(aggregated):
        dtable = torch.empty_like(table)
        call.table_by_source(0, len(table), weights, grad, dlogits, dtable)
        dx = project_input_grad(dtable, weight, s.sources, node, len(x))
        dquery_weight = _query_grads(dx, dqueries, query_weight, x, s)
        return dx, project_weight_grad(dtable, x, s.sources, node), dquery_weight, dlogits
    ptr, flipped = s.sources.relation_ptr.tolist(), weight.transpose(2, 3).contiguous()

    def part(lo: int, hi: int) -> tuple[Tensor, Tensor]:
        dx, dweight, buffers = torch.zeros_like(x), torch.zeros_like(weight), _Buffers()
        for start, end in _chunks(lo, hi, batch * max(inputs, columns)):
            dtable = buffers.rows("dtable", end - start, (batch, columns), x)
            left = _take(x, node, start, end, buffers)
            ranges = _relations(ptr, start, end)
            projected = [entry for entry in ranges if not (aggregated and aggregated[entry[0]])]
            if len(projected) == len(ranges):
                call.table_by_source(start, end, weights, grad, dlogits, dtable)
            else:
                for a, b in _wanted_ranges(ptr, aggregated, start, end):
                    own = dtable[a - start : b - start].flatten(1)
                    call.values_by_source(a, b, weights, grad, dlogits[:0, :0], own)
                call.keys_by_source(start, end, dlogits, dtable.flatten(1))
            dinputs = _multiply(dtable, flipped, None, projected, start)
            _add_outer(left, dtable, dweight, projected, start)
            for r, a, b in ranges if aggregated else ():
                if aggregated[r]:
                    rows = slice(a - start, b - start)
                    call.inputs_by_source(a, b, weights, dsums, dinputs[rows].flatten(1))
                    if first_key < columns:
                        dkeys = dtable[rows, 0, first_key:]
                        dinputs[rows, 0].addmm_(dkeys, flipped[r, 0, first_key:])
                        dweight[r, 0, :, first_key:].addmm_(left[rows, 0].t(), dkeys)
            _put(dinputs, node, start, end, dx)
        return dx, dweight

    dxs, dweights = zip(*share(part, cut(call.source_ptr, 0, len(table), inputs * columns)), strict=True)
    dx = _total(dxs)
    return (
        dx,
        _total(dweights if dweight is None else [*dweights, dweight]),
        _query_grads(dx, dqueries, query_weight, x, s),
        dlogits,
    )


def _query_grads(dx: Tensor, dqueries: Tensor, query_weight: Tensor | None, x: Tensor, s: Structure) -> Tensor:
    """The gradient of the kernels of the queries; adds that of the inputs to ``dx``."""
    if query_weight is None:
        return dqueries
    rows = dqueries.view(len(dqueries), query_weight.shape[1], query_weight.shape[3])
    dx += project_input_grad(rows, query_weight, s.targets, s.targets.node, len(x))
    return project_weight_grad(rows, x, s.targets, s.targets.node)


def _sums_grad(
    dsums: Tensor, grad: Tensor, sums: Tensor, weight: Tensor, dweight: Tensor, aggregated: list[bool], s: Structure
) -> None:
    """Fill the gradient of the sums of inputs; add that of their kernels to ``dweight``."""
    buffers, (heads, channels) = _Buffers(), grad.shape[1:]
    ptr = s.targets.relation_ptr.tolist()
    for r in (r for r, flag in enumerate(aggregated) if flag):
        kernel = _per_head(weight[r], heads, channels).transpose(1, 2)
        dkernel = _per_head(dweight[r], heads, channels)
        for start, end in _chunks(ptr[r], ptr[r + 1], heads * channels):
            received = _take(grad, s.targets.node, start, end, buffers)
            _multiply(received, kernel.unsqueeze(0), dsums[start:end], [(0, 0, end - start)])
            _add_outer(sums[start:end], received, dkernel.unsqueeze(0), [(0, 0, end - start)])


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
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of inputs, queries, keys and logits."""
    call = _sum_call(x, queries, keys, edge_logits, s, how, state)
    nothing = x.new_empty(len(x), call.heads, 0)
    dlogits, dqueries = call.backward_by_target(x, attention, nothing, grad, grad_attention)
    dx, weights, buffers = torch.zeros_like(x), call.dropped(attention), _Buffers()
    for start, end in _chunks(0, len(s.sources.node), x.shape[1]):
        dinputs = buffers.rows("dinputs", end - start, (x.shape[1],), x)
        call.inputs_by_source(start, end, weights, grad, dinputs)
        _put(dinputs, s.sources.node, start, end, dx)
    dkeys = x.new_empty(() if keys is None else keys.shape)
    if keys is not None:
        call.keys_by_source(0, len(keys), dlogits, dkeys.flatten(1))
    return dx, dqueries, dkeys, dlogits


def spread(table: Tensor, coefficients: Tensor, rows: Rows, node: Tensor) -> Tensor:
    """Combine the bases ``table`` ``[N, G, B, D]`` for each row; see ``bases.spread``."""
    (_, _, bases, channels), heads = table.shape, coefficients.shape[1]
    out = table.new_empty(len(rows.relation), heads, channels)
    arrays = (_array(t) for t in (node, rows.relation, table, coefficients, out))
    run(products.spread, even(0, len(out), heads * bases * channels), *arrays)
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
    run(products.collect, cut(_array(node_ptr), 0, num_nodes, heads * bases * channels), *arrays)
    return out


def pair(table: Tensor, values: Tensor, rows: Rows, node: Tensor) -> Tensor:
    """The gradient of the coefficients of ``spread`` and ``collect``, ``[R, H, B]``."""
    (_, _, bases, channels), heads = table.shape, values.shape[1]
    out = values.new_empty(len(rows.relation_ptr) - 1, heads, bases)
    arrays = (_array(t) for t in (node, rows.relation_ptr, table, values, out))
    run(products.pair, cut(_array(rows.relation_ptr), 0, len(out), heads * bases * channels), *arrays)
    return out


def fold(kernels: Tensor, attention: Tensor) -> tuple[Tensor, Tensor]:
    """The matrices of source and target rows; see ``folding``."""
    (relations, heads, inputs, channels), width = kernels.shape, attention.shape[2] // 2
    weight = kernels.new_empty(relations, 1, inputs, heads * (channels + width))
    query = kernels.new_empty(relations, 1, inputs, heads * width)
    arrays = (_array(t) for t in (kernels, attention, weight[:, 0], query[:, 0]))
    run(products.fold, even(0, relations, heads * inputs * channels), *arrays)
    return weight, query


def fold_backward(dweight: Tensor, dquery: Tensor, kernels: Tensor, attention: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of kernels and attention kernels."""
    dkernels, dattention = torch.empty_like(kernels), torch.empty_like(attention)
    arrays = (_array(t) for t in (dweight[:, 0], dquery[:, 0], kernels, attention, dkernels, dattention))
    run(products.fold_backward, even(0, len(kernels), kernels[0].numel() if len(kernels) else 0), *arrays)
    return dkernels, dattention


def gather_back(grads: list[Tensor], backs: list[Tensor]) -> Tensor:
    """The gradient of the table of ``rows.look_up``."""
    out = grads[0].new_empty(len(backs[0]), *grads[0].shape[1:])
    flat = [_array(t).reshape(len(t), out[0].numel() if len(out) else 0) for t in (out, grads[0], grads[-1])]
    bounds = even(0, len(out), 3 * flat[0].shape[1])
    run(loops.gather_back, bounds, *flat, *(_array(t) for t in (backs[0], backs[-1])), len(grads) == 2)
    return out
