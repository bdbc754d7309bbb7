"""Compute what the gradients of values and keys are needed for in Triton, without writing them to memory.

A source row ``u`` of relation ``r`` sums over its edges what the attention sends back, and two products use the sums::

    g[u]      = m_feature * sum over the row's edges: m_edge * attention * dout[target]       values
    k[u]      = sum over the row's edges: dlogit, or dlogit * query[target row]               keys
    dx[u]     = [g[u] k[u]] @ weight[r].T              which ``node_sum_kernels`` sums by node
    dweight[r] = sum over rows u of r: x[node[u]].T @ [g[u] k[u]]

In large graphs most rows have a single edge: then there is nothing to sum. One program takes the rows of a tile in
blocks, reads what their edges send back and multiplies it at once, so it is never written. Rows of several edges would
keep the others waiting, so ``segment_kernels`` sums these first. Wide queries of target rows are treated like values.
"""

# ruff: noqa: N803
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from rgat.ops.backend import Call, Operands
from rgat.ops.triton.attention_kernels import by_group, by_source, query_rows_of_edges, row_ids, targets_of_edges
from rgat.ops.triton.dropout_kernels import EDGE_MASK, FEATURE_MASK, MASK_INTEGERS, NO_DROPOUT, Dropout, mask
from rgat.ops.triton.launch import LARGE, launch, power_of_two, sum_dtype
from rgat.ops.triton.row_edges import RowEdges, edges_of_sources, edges_of_targets, query_rows_of_sources
from rgat.ops.triton.row_tiles import (
    dot_halves,
    halves,
    load_rows,
    precision,
    rows_per_tile,
    rows_to_read,
    split,
    tile,
    tiles_by_node,
)
from rgat.ops.triton.segment_kernels import segment_sum
from rgat.ops.triton.weight_grad_kernels import add_tiles
from rgat.structure import Rows

_MIN_EDGES = 2 * LARGE  # smaller graphs are launch-bound, and these launches are more


@triton.jit
def _columns(SHARE: tl.constexpr, C: tl.constexpr, HP: tl.constexpr, CP: tl.constexpr):
    """Return the head of each column of a tile of padded heads, its column without padding, and whether it exists."""
    number = tl.arange(0, HP * CP)
    head, channel = number // CP, number % CP
    return head, number if C == CP else head * C + channel, (head < SHARE) & (channel < C)


@triton.jit
def _indices(row, end, node, edges, targets, query_rows):
    """Return the nodes of some rows, their edges and what these read: a target and, with queries, a target row."""
    source = rows_to_read(node, row, end)
    edge = tl.load(edges + row, row < end, 0)
    read = tl.load(targets + row, row < end, 0)
    return source, edge, read, read if query_rows is None else tl.load(query_rows + row, row < end, 0)


@triton.jit
def _value_message(
    edge, target, live, p, grad, attention, edge_id, edge_state, edge_threshold, edge_scale, ABSOLUTE: tl.constexpr,
    H: tl.constexpr, SHARE: tl.constexpr, D: tl.constexpr, MEMBERS: tl.constexpr, HP: tl.constexpr, DP: tl.constexpr,
    ACC: tl.constexpr,
):  # fmt: skip
    """Return what one edge of each row sends back to its value, ``[rows, columns]``.

    Attention is read head by head: loads of another shape would have the rows move between threads.
    """
    head, column, inside = _columns(SHARE, D, HP, DP)
    at = (target.to(tl.int64) * (H * D) + p * (SHARE * D))[:, None] + column[None, :]
    message = tl.load(grad + at, live[:, None] & inside[None, :], 0.0).to(ACC)
    factor = tl.zeros([edge.shape[0], HP * DP], ACC)
    for h in tl.static_range(SHARE):
        number = p * SHARE + h
        one = tl.load(attention + edge.to(tl.int64) * H + number, live, 0.0)
        if ABSOLUTE:
            one = tl.abs(one)
        if edge_state is not None:
            ids = edge if edge_id is None else tl.load(edge_id + edge, live, 0)
            one *= mask(edge_state, EDGE_MASK, ids, number, number, edge_threshold, edge_scale, 1, H, MEMBERS, ACC)
        factor = tl.where((head == h)[None, :], one[:, None], factor)
    return message * factor


@triton.jit
def _key_message(
    edge, row, live, p, dlogits, queries, H: tl.constexpr, SHARE: tl.constexpr, A: tl.constexpr, HK: tl.constexpr,
    AP: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Return what one edge of each row sends back to its key, ``[rows, columns]``."""
    head, column, inside = _columns(SHARE, A, HK, AP)
    exists = live[:, None] & inside[None, :]
    at = (edge.to(tl.int64) * H + p * SHARE)[:, None] + head[None, :]
    message = tl.load(dlogits + at, exists, 0.0).to(ACC)
    if queries is not None:
        at = (row.to(tl.int64) * (H * A) + p * (SHARE * A))[:, None] + column[None, :]
        message *= tl.load(queries + at, exists, 0.0).to(ACC)
    return message


@triton.jit
def _summed_first(row, is_long, p, sums, H: tl.constexpr, SHARE: tl.constexpr, C: tl.constexpr, HP: tl.constexpr,
                  CP: tl.constexpr, ACC: tl.constexpr):  # fmt: skip
    """Return the sums of rows of several edges, which a launch before this one made; zero for the others."""
    _head, column, inside = _columns(SHARE, C, HP, CP)
    at = (row.to(tl.int64) * (H * C) + p * (SHARE * C))[:, None] + column[None, :]
    return tl.load(sums + at, is_long[:, None] & inside[None, :], 0.0).to(ACC)


@triton.jit
def _row_grads(
    row, live, edge, read, query_read, p, grad, attention, dlogits, queries, long_values, long_keys, row_id, edge_id,
    feature_state, edge_state, feature_threshold, feature_scale, edge_threshold, edge_scale, ABSOLUTE: tl.constexpr,
    H: tl.constexpr, SHARE: tl.constexpr, D: tl.constexpr, A: tl.constexpr, MEMBERS: tl.constexpr, HP: tl.constexpr,
    DP: tl.constexpr, HK: tl.constexpr, AP: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Return the gradients of values and keys of some rows; without keys the second is the first."""
    is_long = live & (edge < 0)
    is_single = live & (edge >= 0)
    values = _value_message(
        edge, read, is_single, p, grad, attention, edge_id, edge_state, edge_threshold, edge_scale, ABSOLUTE, H, SHARE,
        D, MEMBERS, HP, DP, ACC,
    )  # fmt: skip
    values += _summed_first(-1 - edge, is_long, p, long_values, H, SHARE, D, HP, DP, ACC)
    keys = values
    if dlogits is not None:
        keys = _key_message(edge, query_read, is_single, p, dlogits, queries, H, SHARE, A, HK, AP, ACC)
        keys += _summed_first(-1 - edge, is_long, p, long_keys, H, SHARE, A, HK, AP, ACC)
    if feature_state is not None:
        head, column, _inside = _columns(SHARE, D, HP, DP)
        heads, ids = (p * SHARE + head)[None, :], tl.load(row_id + row, live, 0)[:, None]
        columns = (p * (SHARE * D) + column)[None, :]
        values *= mask(feature_state, FEATURE_MASK, ids, heads, columns, feature_threshold, feature_scale, D, H,
                       MEMBERS, ACC)  # fmt: skip
    return values, keys


@triton.jit
def _load_split(weight, first, f, SHARE: tl.constexpr, C: tl.constexpr, W: tl.constexpr, F: tl.constexpr,
                HP: tl.constexpr, CP: tl.constexpr, PASSES: tl.constexpr):  # fmt: skip
    """Return some columns of a kernel ``[F, W]``, transposed, in the order of padded heads, as ``split`` does."""
    _head, column, exists = _columns(SHARE, C, HP, CP)
    w = tl.load(weight + first + column[:, None] + f[None, :] * W, exists[:, None] & (f < F)[None, :], 0.0)
    return split(w, False, PASSES > 0)


@triton.jit
def _times(rows, w, w_low, w_undo, zeros, PASSES: tl.constexpr):
    """Return ``rows @ w``; each row has its own scale."""
    rows, rows_low, undo = split(rows, True, True)
    return dot_halves(rows, rows_low, w, w_low, zeros, PASSES) * undo * w_undo


@triton.jit
def _times_block(left, left_low, left_undo, right, zeros, PASSES: tl.constexpr):
    """Return ``left @ right``; ``right`` has one scale."""
    right, right_low, undo = split(right, False, True)
    return (dot_halves(left, left_low, right, right_low, zeros, PASSES) * left_undo) * undo  # may be out of range


@triton.jit
def _multiply(
    values, keys, left, w, w_low, w_undo, key_w, key_w_low, key_w_undo, sum_w, sum_key_w, WITH_X: tl.constexpr,
    WITH_KEYS: tl.constexpr, PASSES: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Return the products of the gradients of some rows with the transposed kernels, and the sums ``left.T @ .``."""
    result = tl.zeros([left.shape[0], left.shape[1]], ACC)
    if PASSES == 0:
        values = values.to(left.dtype)
        keys = keys.to(left.dtype)
        if WITH_X:
            result = tl.dot(values, w, result)
            if WITH_KEYS:
                result = tl.dot(keys, key_w, result)
        left = tl.trans(left)
        sum_w = tl.dot(left, values, sum_w)
        if WITH_KEYS:
            sum_key_w = tl.dot(left, keys, sum_key_w)
    else:
        left, left_low, undo = halves(left, tl.max(tl.abs(left), 0)[None, :])
        left, left_low, undo = tl.trans(left), tl.trans(left_low), tl.trans(undo)
        sum_w += _times_block(left, left_low, undo, values, tl.zeros_like(sum_w), PASSES)
        if WITH_KEYS:
            sum_key_w += _times_block(left, left_low, undo, keys, tl.zeros_like(sum_key_w), PASSES)
        if WITH_X:
            result = _times(values, w, w_low, w_undo, result, PASSES)
            if WITH_KEYS:
                result += _times(keys, key_w, key_w_low, key_w_undo, tl.zeros_like(result), PASSES)
    return result, sum_w, sum_key_w


@triton.jit(do_not_specialize=["num_relations", *MASK_INTEGERS])
def _source_grad_kernel(
    part, out, grad, attention, dlogits, queries, long_values, long_keys, x, weight, node, relation_ptr, order, edges,
    targets, query_rows, row_id, edge_id, feature_state, edge_state, num_relations, feature_threshold, feature_scale,
    edge_threshold, edge_scale, ABSOLUTE: tl.constexpr, P: tl.constexpr, F: tl.constexpr, H: tl.constexpr,
    D: tl.constexpr, A: tl.constexpr, MEMBERS: tl.constexpr, ROWS: tl.constexpr, RP: tl.constexpr, BR: tl.constexpr,
    BF: tl.constexpr, HP: tl.constexpr, DP: tl.constexpr, HK: tl.constexpr, AP: tl.constexpr, PASSES: tl.constexpr,
    ACC: tl.constexpr,
):  # fmt: skip
    """Write the gradients of the inputs of a tile's rows, and what the tile adds to the gradient of its kernel.

    ``PASSES`` of products of float32 numbers split into halves: 3, or 1 where TF32 suffices; 0: no split.
    """
    number, relation, begin, end = tile(tl.program_id(0), order, relation_ptr, num_relations, ROWS, RP)
    p = tl.program_id(1)
    share: tl.constexpr = H // P
    width: tl.constexpr = share * (D + A)
    with_x: tl.constexpr = out is not None
    with_keys: tl.constexpr = dlogits is not None
    f = tl.arange(0, BF)
    weight += (relation * P + p) * (F * width)
    w, w_low, w_undo = _load_split(weight, 0, f, share, D, width, F, HP, DP, PASSES)
    key_w, key_w_low, key_w_undo = w, w_low, w_undo
    sum_w = tl.zeros([BF, HP * DP], ACC)
    sum_key_w = sum_w
    if with_keys:
        key_w, key_w_low, key_w_undo = _load_split(weight, share * D, f, share, A, width, F, HK, AP, PASSES)
        sum_key_w = tl.zeros([BF, HK * AP], ACC)
    row = begin + tl.arange(0, BR)
    source, edge, read, query_read = _indices(row, end, node, edges, targets, query_rows)
    for _ in range(begin, end, BR):
        live = row < end
        left = load_rows(x, source, live, p, f, P, F)
        values, keys = _row_grads(
            row, live, edge, read, query_read, p, grad, attention, dlogits, queries, long_values, long_keys, row_id,
            edge_id, feature_state, edge_state, feature_threshold, feature_scale, edge_threshold, edge_scale, ABSOLUTE,
            H, share, D, A, MEMBERS, HP, DP, HK, AP, ACC,
        )  # fmt: skip
        source, edge, read, query_read = _indices(row + BR, end, node, edges, targets, query_rows)  # the next block's
        result, sum_w, sum_key_w = _multiply(values, keys, left, w, w_low, w_undo, key_w, key_w_low, key_w_undo, sum_w,
                                             sum_key_w, with_x, with_keys, PASSES, ACC)  # fmt: skip
        if with_x:
            at = ((row.to(tl.int64) * P + p) * F)[:, None] + f[None, :]
            tl.store(out + at, result, live[:, None] & (f < F)[None, :], eviction_policy="evict_first")
        row += BR
    if begin < end:
        to = part + (number * P + p) * (F * width) + f[:, None] * width
        _head, column, inside = _columns(share, D, HP, DP)
        tl.store(to + column[None, :], sum_w, (f < F)[:, None] & inside[None, :])
        if with_keys:
            _head, column, inside = _columns(share, A, HK, AP)
            tl.store(to + share * D + column[None, :], sum_key_w, (f < F)[:, None] & inside[None, :])


_BYTES_OF_ENTRY = 12  # of a tile's kernel, in shared memory; 8.5 to 11 in compiled code


class _Blocks(NamedTuple):
    rows: int  # of a block
    rows_of_tile: int
    warps: int
    stages: int
    registers: int | None  # of a thread, at most


def _block_sizes(num_rows: int, features: int, columns: int) -> _Blocks:
    """Return the sizes of blocks for padded numbers of features and columns."""
    rows = rows_per_tile(num_rows, 2048)
    if features * columns <= 64 * 80:  # so few registers that three programs share a processor
        return _Blocks(64, rows, 4, 1, 168)
    return _Blocks(64, rows, 8, 1, 128 if features * columns <= 64 * 128 else None)


class _Padded(NamedTuple):
    """The sizes of a tile: features, heads and channels of values, heads and channels of keys (0: none)."""

    features: int
    heads: int
    channels: int
    key_heads: int
    key_channels: int

    @staticmethod
    def of(weight: Tensor, heads: int, key_channels: int) -> _Padded:
        _, batch, features, width = weight.shape
        share = heads // batch
        channels = power_of_two(width // share - key_channels)
        padded = power_of_two(max(key_channels, 1))
        return _Padded(
            power_of_two(features, 16), power_of_two(share, max(1, 16 // channels)), channels,
            power_of_two(share, max(1, 16 // padded)) if key_channels else 1, padded,
        )  # fmt: skip

    @property
    def columns(self) -> tuple[int, int]:
        return self.heads * self.channels, self.key_heads * self.key_channels


@functools.lru_cache(16)
def _shared_memory(device: torch.device) -> float:
    """Return the bytes of shared memory that a program on this device may use."""
    if device.type != "cuda":
        return math.inf
    properties: Any = torch.cuda.get_device_properties(device)
    return float(properties.shared_memory_per_block_optin)


def fits(weight: Tensor, heads: int, key_channels: int, num_edges: int) -> bool:
    """Tell whether these functions take kernels ``[R, P, F, M]``: a tile holds one, and the graph is large."""
    if weight.dtype == torch.float64 or weight.numel() == 0 or num_edges <= _MIN_EDGES:
        return False
    padded = _Padded.of(weight, heads, key_channels)
    most = max(padded.features, *padded.columns) <= 128
    return most and _BYTES_OF_ENTRY * padded.features * sum(padded.columns) <= _shared_memory(weight.device)


def source_grads(
    grad: Tensor, attention: Tensor, dlogits: Tensor | None, queries: Tensor | None, operands: Operands, call: Call,
    with_x: bool,
) -> tuple[Tensor | None, Tensor]:  # fmt: skip
    """Return the gradients of the inputs of each source row, ``[U, P, F]``, and of the kernels of values and keys.

    ``dlogits`` are the gradients of the scores, ``queries`` those of the multiplicative score.
    """
    (x, weight, *_), s, (_, heads, channels) = operands, call.structure, grad.shape
    key_channels = weight.shape[3] * weight.shape[1] // heads - channels
    on_features = Dropout.of(call.state, call.attention.feature_dropout)
    on_edges = Dropout.of(call.state, call.attention.edge_dropout)
    edges = edges_of_sources(s)
    sums, key_sums = (x.new_empty(edges.num_sums, heads, size) for size in (channels, key_channels))
    in_one = dlogits if queries is None else None
    index, by_position = targets_of_edges(s)
    segment_sum(
        sums, grad, by_source(s), index=index, by_position=by_position, weight=attention, absolute=True,
        edge_values=in_one, edge_out=None if in_one is None else key_sums, edge_id=s.edge_id, on_edges=on_edges,
        only=edges.several,
    )  # fmt: skip
    if queries is not None:
        index, by_position = query_rows_of_edges(s)
        segment_sum(key_sums, queries, by_source(s), index=index, by_position=by_position, weight=dlogits,
                    only=edges.several)  # fmt: skip
    factors = _Factors(grad, attention, True, sums, row_ids(call), s.edge_id, on_features, on_edges)
    keys = _Keys(dlogits, queries, key_sums, None if queries is None else query_rows_of_sources(s))
    return _multiply_rows(factors, keys, edges, s.sources, x, weight, with_x)


def target_grads(
    dlogits: Tensor, keys: Tensor, x: Tensor, query_weight: Tensor, call: Call, with_x: bool
) -> tuple[Tensor | None, Tensor]:
    """Return the gradients of the inputs of each target row, ``[V, P, F]``, and of the kernels of queries.

    The gradients of queries of the multiplicative score are like those of values: sums of ``dlogits * keys``.
    """
    s, (_, heads, channels) = call.structure, keys.shape
    edges = edges_of_targets(s)
    sums = x.new_empty(edges.num_sums, heads, channels)
    segment_sum(sums, keys, by_group(s), index=s.source_row, weight=dlogits, only=edges.several)
    factors = _Factors(keys, dlogits, False, sums, s.source_ptr, None, NO_DROPOUT, NO_DROPOUT)
    return _multiply_rows(factors, _Keys(None, None, sums, None), edges, s.targets, x, query_weight, with_x)


class _Factors(NamedTuple):
    """What the gradients of values are made of; see `_value_message`."""

    grad: Tensor
    attention: Tensor
    absolute: bool
    sums: Tensor  # of rows with several edges
    row_id: Tensor
    edge_id: Tensor | None
    on_features: Dropout
    on_edges: Dropout


class _Keys(NamedTuple):
    """What the gradients of keys are made of; see `_key_message`."""

    dlogits: Tensor | None
    queries: Tensor | None
    sums: Tensor
    query_rows: Tensor | None


def _multiply_rows(
    values: _Factors, keys: _Keys, edges: RowEdges, rows: Rows, x: Tensor, weight: Tensor, with_x: bool
) -> tuple[Tensor | None, Tensor]:
    """Return the gradients of the inputs of each row and of the kernels."""
    (num_relations, batch, features, width), num_rows = weight.shape, rows.node.shape[0]
    _, heads, channels = values.grad.shape
    key_channels = width * batch // heads - channels
    padded = _Padded.of(weight, heads, key_channels)
    block = _block_sizes(num_rows, padded.features, sum(padded.columns))
    num_tiles = num_rows // block.rows_of_tile + num_relations
    dtype, acc = sum_dtype(x.dtype)
    per_row = x.new_empty(num_rows, batch, features, dtype=dtype) if with_x else None
    part = x.new_empty(num_tiles, batch, features, width, dtype=dtype)
    order = tiles_by_node(rows.node, rows.relation_ptr, num_tiles, block.rows_of_tile)
    passes = 0 if x.dtype != torch.float32 else 3 if precision(x.dtype) == "tf32x3" else 1
    on_features, on_edges = values.on_features, values.on_edges
    launch(
        _source_grad_kernel, (num_tiles, batch, 1),
        (part, per_row, values.grad, values.attention, keys.dlogits, keys.queries, values.sums, keys.sums, x, weight,
         rows.node, rows.relation_ptr, order, edges.edge, edges.read, keys.query_rows, values.row_id, values.edge_id,
         on_features.state, on_edges.state),
        (num_relations, *on_features[1:3], *on_edges[1:3]), block.warps, block.stages, block.registers,
        ABSOLUTE=values.absolute, P=batch, F=features, H=heads, D=channels, A=key_channels,
        MEMBERS=max(on_features.members, on_edges.members), ROWS=block.rows_of_tile,
        RP=power_of_two(num_relations, 1, 1024), BR=block.rows, BF=padded.features, HP=padded.heads,
        DP=padded.channels, HK=padded.key_heads, AP=padded.key_channels, PASSES=passes, ACC=acc,
    )  # fmt: skip
    dweight = torch.empty_like(weight)
    add_tiles(dweight, 0, part, rows.relation_ptr, block.rows_of_tile)
    return per_row, dweight
