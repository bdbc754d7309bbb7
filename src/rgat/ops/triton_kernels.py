"""The two operations of a relational layer as Triton kernels: plain launchers on CUDA tensors, without autograd.

``project``: tiles of consecutive rows of one relation are gathered and multiplied by its kernel, all relations in one
launch. Where the tiles of relation ``r`` begin is known without a table: at ``relation_ptr[r] // tile + r``. Backward::

    dx[j]      = sum over rows u of node j: dout[u] @ weight[relation(u)].T
    dweight[r] = sum over tiles of r: x[rows of the tile].T @ dout[rows of the tile]

``attend``: logits by edge, softmax by group, weighted sum by target. With ``a`` the attention, ``m`` the scaled dropout
masks (recomputed wherever they are used), backward is per edge and head::

    da      = m_edge * (dout[target] . (m_feature * value[source row])) + dattention             by edge
    dlogit  = a * (da - sum of a * da over the softmax group) (times LeakyReLU')                 by softmax group
    dvalue  = m_feature * sum over the row's edges: a * m_edge * dout[target]                    by source row
    additive: dquery = sum over the group: dlogit, dkey = sum over the row: dlogit               by group, by source row
    multiplicative: dquery = sum ...: dlogit * key[source row], dkey = sum ...: dlogit * query[target row]

Every sum runs over a segment: consecutive positions of an order of the edges. One program takes several segments in
step. A segment longer than a chunk is left to others: chunks cut the positions at fixed places, each sums the part of a
long segment that holds its first position and the part that holds only its last, and a second launch joins the parts in
order. Thus there are no atomics, no table is prepared, and the result is the same bit by bit every time.

Sums and temporaries are float32, or float64 for float64; sizes that shape a program are compile-time constants.
"""

# ruff: noqa: N803
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from rgat.ops.dropout import EDGES, FEATURES, drop_below

_FEATURES, _EDGES = tl.constexpr(FEATURES), tl.constexpr(EDGES)
_LARGE = 1 << 17  # rows or edges; smaller graphs stay in the cache and are bound by launches and waiting


class Edges(NamedTuple):
    """The derived structure as far as ``attend`` reads it, sorted by (target, relation, source)."""

    target: Tensor  # [E]
    group: Tensor  # [E], the (target, relation) group of each edge
    source_row: Tensor  # [E]
    target_ptr: Tensor  # [N + 1]
    group_ptr: Tensor  # [V + 1]
    group_row: Tensor  # [V], the group's place among the target rows
    by_source: Tensor  # [E], the edges in the order of their source row
    source_ptr: Tensor  # [U + 1]
    row_id: Tensor  # [U] int64, relation * N + node
    target_by_source: Tensor | None = None  # [E], `target[by_source]`: saves backward a gather per edge


class _Segments(NamedTuple):
    """An order of the edges in which those that are summed together are neighbours."""

    ptr: Tensor  # [S + 1], positions
    of: Tensor  # [E], the segment of each edge
    by: Tensor | None = None  # [E], the edge at each position; None: the position itself


class _Dropout(NamedTuple):
    """What the kernels need to recompute a mask; ``state`` is None where no mask is wanted."""

    state: Tensor | None
    threshold: int
    scale: int  # the bits of a float64: Triton would round a float argument to float32
    members: int = 1  # of a stack, whose state holds thresholds and scales too

    @staticmethod
    def of(state: Tensor | None, rate: float) -> _Dropout:
        if state is None or rate == 0:
            return _Dropout(None, 0, 0)
        if state.dim() == 2:
            return _Dropout(state.contiguous(), 0, 0, state.shape[0])
        return _Dropout(state, drop_below(rate), struct.unpack("<q", struct.pack("<d", 1 / (1 - rate)))[0])


_NO_DROPOUT = _Dropout(None, 0, 0)


@triton.jit
def _mix64(value):
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB
    return value ^ (value >> 31)


@triton.jit
def _mask(
    state, kind: tl.constexpr, ids, head, column, threshold, scale, WIDTH: tl.constexpr, H: tl.constexpr,
    MEMBERS: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """``1 / (1 - rate)`` where an element is kept, else 0, as ``scaled_mask`` draws it; ``WIDTH`` columns per head."""
    golden = tl.full([], 0x9E3779B97F4A7C15, tl.uint64)
    if MEMBERS > 1:
        member = tl.minimum(head // (H // MEMBERS), MEMBERS - 1)
        column -= member * (H // MEMBERS * WIDTH)
        state += member * 6
        threshold = tl.load(state + (2 + 2 * kind))
        scale = tl.load(state + (3 + 2 * kind))
    seed = tl.load(state).to(tl.uint64) + golden * kind
    stream = _mix64(_mix64(seed) + tl.load(state + 1).to(tl.uint64) * golden)
    key = _mix64(stream ^ (ids.to(tl.uint64) * golden))
    bits = (key.to(tl.uint32) + column.to(tl.uint32) * 0x9E3779B9) ^ (key >> 32).to(tl.uint32)
    bits = (bits ^ (bits >> 16)) * 0x85EBCA6B
    bits = (bits ^ (bits >> 13)) * 0xC2B2AE35
    bits = bits ^ (bits >> 16)
    factor = scale.to(tl.int64).to(tl.float64, bitcast=True).to(ACC)
    return tl.where(bits.to(tl.int64) >= threshold, factor, 0.0)


@triton.jit
def _segment_at(position, live, ptr, of, by):
    """The segment of some positions, its first position and the one behind its last."""
    edge = position
    if by is not None:
        edge = tl.load(by + position, live, 0)
    segment = tl.load(of + edge, live, 0)
    return segment, tl.load(ptr + segment, live, 0), tl.load(ptr + segment + 1, live, 0)


@triton.jit
def _any_long(number, ptr, of, by, size, chunk_size, CHUNKS: tl.constexpr):
    """Whether one of ``CHUNKS`` chunks holds a part of a long segment."""
    lane = tl.arange(0, 2 * CHUNKS)
    begin = (number * CHUNKS + lane // 2) * chunk_size
    position = tl.where(lane % 2 == 0, begin, tl.minimum(begin + chunk_size, size) - 1)
    _segment, first, last = _segment_at(position, begin < size, ptr, of, by)
    return tl.max(last - first) > chunk_size


@triton.jit
def _long_part(number, ptr, of, by, size, chunk_size):
    """The part of a long segment that holds the first (even number) or only the last position of a chunk."""
    begin = number // 2 * chunk_size
    end = tl.minimum(begin + chunk_size, size)
    even = number % 2 == 0
    segment, first, last = _segment_at(tl.where(even, begin, end - 1), begin < size, ptr, of, by)
    is_long = (last - first > chunk_size) & (even | (first > begin))
    return segment, first, last, tl.maximum(first, begin), tl.minimum(last, end), is_long


@triton.jit
def _short_segments(number, ptr, num_segments, chunk_size, T: tl.constexpr):
    """``T`` segments and their ends; the long ones, and those behind the last, are empty and not to be written."""
    segment = number * T + tl.arange(0, T)
    live = segment < num_segments
    first = tl.load(ptr + segment, live, 0)
    last = tl.load(ptr + segment + 1, live, 0)
    live = live & (last - first <= chunk_size)
    return segment, first, tl.where(live, last, first), live


@triton.jit
def _columns(HP: tl.constexpr, DP: tl.constexpr, H: tl.constexpr, D: tl.constexpr):
    """The heads of this program, and its columns of a row with a mask of those that exist, ``[heads, 1, channels]``.

    Tiles are ``[heads, rows, channels]``: neighbouring threads then share a row.
    """
    head = tl.program_id(1) * HP + tl.arange(0, HP)
    channel = tl.arange(0, DP)
    column = head[:, None] * D + channel[None, :]
    inside = (head < H)[:, None] & (channel < D)[None, :]
    return head, column[:, None, :], inside[:, None, :]


@triton.jit
def _times_mask(
    total, state, row_id, row, live, head, column, threshold, scale, H: tl.constexpr, D: tl.constexpr,
    MEMBERS: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """``total`` ``[heads, rows, channels]`` times the feature mask of its rows."""
    if state is not None:
        ids = tl.load(row_id + row, live, 0)[None, :, None]
        total *= _mask(state, _FEATURES, ids, head[:, None, None], column, threshold, scale, D, H, MEMBERS, ACC)
    return total


@triton.jit
def _add_messages(
    total, also_total, position, live, head, column, inside, values, weight, also, index, by, row_id,
    feature_state, feature_threshold, feature_scale, edge_state, edge_threshold, edge_scale, H: tl.constexpr,
    D: tl.constexpr, MEMBERS: tl.constexpr, BY_POSITION: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Add what some positions bring to their sums ``[heads, positions, channels]`` and ``[heads, positions]``."""
    edge = position
    if by is not None:
        edge = tl.load(by + position, live, 0)
    row = edge
    if index is not None:
        row = tl.load(index + (position if BY_POSITION else edge), live, 0)
    at = (row.to(tl.int64) * (H * D))[None, :, None] + column
    result = tl.load(values + at, live[None, :, None] & inside, 0.0).to(ACC)
    result = _times_mask(result, feature_state, row_id, row, live, head, column, feature_threshold, feature_scale,
                         H, D, MEMBERS, ACC)  # fmt: skip
    at = (edge.to(tl.int64) * H)[None, :] + head[:, None]
    there = live[None, :] & (head < H)[:, None]
    if weight is not None:
        factor = tl.load(weight + at, there, 0.0)
        if edge_state is not None:
            factor *= _mask(edge_state, _EDGES, edge[None, :], head[:, None], head[:, None], edge_threshold,
                            edge_scale, 1, H, MEMBERS, ACC)  # fmt: skip
        result *= factor[:, :, None]
    if also is not None:
        also_total += tl.load(also + at, there, 0.0)
    return total + result, also_total


@triton.jit(do_not_specialize=["size", "num_segments", "num_checks"])
def _segment_sum_kernel(
    out, also_out, part, values, weight, also, index, ptr, of, by, out_row, row_id, size, num_segments, num_checks,
    chunk_size, feature_state, row_state, feature_threshold, feature_scale, edge_state, edge_threshold, edge_scale,
    JOIN: tl.constexpr, ADD: tl.constexpr, BY_POSITION: tl.constexpr, H: tl.constexpr, D: tl.constexpr,
    MEMBERS: tl.constexpr, T: tl.constexpr, K: tl.constexpr, CHUNKS: tl.constexpr, BE: tl.constexpr,
    HP: tl.constexpr, DP: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Sums of the short segments and of parts of the long ones; with ``JOIN``, in a second launch, of these parts."""
    number = tl.program_id(0).to(tl.int64)
    head, column, inside = _columns(HP, DP, H, D)
    if number < num_checks:
        if _any_long(number, ptr, of, by, size, chunk_size, CHUNKS):
            for place in range(number * (2 * CHUNKS), (number + 1) * (2 * CHUNKS)):
                segment, first, last, begin, end, is_long = _long_part(place, ptr, of, by, size, chunk_size)
                if JOIN:  # where the segment begins
                    is_long = is_long & (first >= place // 2 * chunk_size)
                    begin = place // 2
                    end = (last.to(tl.int64) - 1) // chunk_size + 1
                if is_long:
                    total = tl.zeros([HP, BE, DP], ACC)
                    also_total = tl.zeros([HP, BE], ACC)
                    for start in range(begin, end, BE):
                        position = start + tl.arange(0, BE)
                        if JOIN:
                            at = (position * 2 + (position * chunk_size < first).to(tl.int64)) * (H * (D + 1))
                            live = position < end
                            total += tl.load(part + at[None, :, None] + column, live[None, :, None] & inside, 0.0)
                            also_total += tl.load(part + at[None, :] + (H * D + head)[:, None],
                                                  live[None, :] & (head < H)[:, None], 0.0)  # fmt: skip
                        else:
                            total, also_total = _add_messages(
                                total, also_total, position, position < end, head, column, inside, values, weight,
                                also, index, by, row_id, feature_state, feature_threshold, feature_scale, edge_state,
                                edge_threshold, edge_scale, H, D, MEMBERS, BY_POSITION, ACC,
                            )  # fmt: skip
                    joined = tl.sum(total, 1)[:, None, :]
                    also_joined = tl.sum(also_total, 1)
                    if JOIN:
                        row = segment + tl.arange(0, 1)
                        joined = _times_mask(joined, row_state, row_id, row, row >= 0, head, column, feature_threshold,
                                             feature_scale, H, D, MEMBERS, ACC)  # fmt: skip
                        if also is not None:
                            tl.store(also_out + segment.to(tl.int64) * H + head, also_joined, head < H)
                        if out_row is not None:
                            row = tl.load(out_row + row)
                        tl.store(out + (row.to(tl.int64) * (H * D))[None, :, None] + column, joined, inside)
                    else:
                        tl.store(part + place * (H * (D + 1)) + column, joined, inside)
                        tl.store(part + place * (H * (D + 1)) + H * D + head, also_joined, head < H)
    elif not JOIN:
        segment, first, last, live = _short_segments(number - num_checks, ptr, num_segments, chunk_size, T)
        total = tl.zeros([HP, T, DP], ACC)
        also_total = tl.zeros([HP, T], ACC)
        for step in range(0, tl.max(last - first), K):
            for ahead in tl.static_range(K):
                position = first + (step + ahead)
                total, also_total = _add_messages(
                    total, also_total, position, position < last, head, column, inside, values, weight, also, index,
                    by, row_id, feature_state, feature_threshold, feature_scale, edge_state, edge_threshold,
                    edge_scale, H, D, MEMBERS, BY_POSITION, ACC,
                )  # fmt: skip
        total = _times_mask(total, row_state, row_id, segment, live, head, column, feature_threshold, feature_scale,
                            H, D, MEMBERS, ACC)  # fmt: skip
        if also is not None:
            at = (segment.to(tl.int64) * H)[None, :] + head[:, None]
            tl.store(also_out + at, also_total, live[None, :] & (head < H)[:, None])
        row = segment
        if out_row is not None:
            row = tl.load(out_row + segment, live, 0)
        at = (row.to(tl.int64) * (H * D))[None, :, None] + column
        if ADD:
            total += tl.load(out + at, live[None, :, None] & inside, 0.0).to(ACC)
        tl.store(out + at, total, live[None, :, None] & inside, eviction_policy="evict_first")


@triton.jit(do_not_specialize=["size"])
def _logits_kernel(
    out, queries, keys, edge_logits, group, group_row, source_row, size, SLOPE: tl.constexpr, H: tl.constexpr,
    A: tl.constexpr, BE: tl.constexpr, HP: tl.constexpr, AP: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    edge = tl.program_id(0).to(tl.int64) * BE + tl.arange(0, BE)
    live = edge < size
    head, column, inside = _columns(HP, AP, H, A)
    there = live[None, :] & (head < H)[:, None]
    at = (edge * H)[None, :] + head[:, None]
    inside = inside & live[None, :, None]
    row = tl.load(group_row + tl.load(group + edge, live, 0), live, 0)
    query = tl.load(queries + (row.to(tl.int64) * (H * A))[None, :, None] + column, inside, 0.0).to(ACC)
    row = tl.load(source_row + edge, live, 0)
    key = tl.load(keys + (row.to(tl.int64) * (H * A))[None, :, None] + column, inside, 0.0).to(ACC)
    result = tl.sum(query * key if SLOPE is None else query + key, 2)
    if edge_logits is not None:
        result += tl.load(edge_logits + at, there, 0.0).to(ACC)
    if SLOPE is not None:
        result = tl.where(result > 0, result, result * SLOPE)
    tl.store(out + at, result, there)


@triton.jit(do_not_specialize=["size"])
def _attention_grad_kernel(
    out, grad, values, grad_attention, target, source_row, row_id, size,
    feature_state, feature_threshold, feature_scale, edge_state, edge_threshold, edge_scale,
    H: tl.constexpr, D: tl.constexpr, MEMBERS: tl.constexpr, BE: tl.constexpr, HP: tl.constexpr, DP: tl.constexpr,
    ACC: tl.constexpr,
):  # fmt: skip
    edge = tl.program_id(0).to(tl.int64) * BE + tl.arange(0, BE)
    live = edge < size
    head, column, inside = _columns(HP, DP, H, D)
    inside = inside & live[None, :, None]
    row = tl.load(source_row + edge, live, 0)
    value = tl.load(values + (row.to(tl.int64) * (H * D))[None, :, None] + column, inside, 0.0).to(ACC)
    i = tl.load(target + edge, live, 0)
    received = tl.load(grad + (i.to(tl.int64) * (H * D))[None, :, None] + column, inside, 0.0).to(ACC)
    value = _times_mask(value, feature_state, row_id, row, live, head, column, feature_threshold, feature_scale,
                        H, D, MEMBERS, ACC)  # fmt: skip
    result = tl.sum(received * value, 2)
    if edge_state is not None:
        result *= _mask(edge_state, _EDGES, edge[None, :], head[:, None], head[:, None], edge_threshold, edge_scale,
                        1, H, MEMBERS, ACC)  # fmt: skip
    at = (edge * H)[None, :] + head[:, None]
    there = live[None, :] & (head < H)[:, None]
    if grad_attention is not None:
        result += tl.load(grad_attention + at, there, 0.0)
    tl.store(out + at, result, there)


@triton.jit
def _terms(edge, live, head, wanted, buffer, attention, H: tl.constexpr):
    """Forward: the logits, -inf where there is none. Backward: attention times its gradient."""
    at = (edge.to(tl.int64) * H)[:, None] + head[None, :]
    there = live[:, None] & wanted[None, :]
    if attention is None:
        terms = tl.load(buffer + at, there, float("-inf"))
    else:
        terms = tl.load(buffer + at, there, 0.0) * tl.load(attention + at, there, 0.0)
    return terms


@triton.jit
def _add_terms(top, total, other, factor, BACKWARD: tl.constexpr):
    """Add to running sums: plain ones of ``other``, or of ``factor * exp(other)`` relative to the running maximum."""
    if BACKWARD:
        total += other
    else:
        new = tl.maximum(top, other)
        shift = tl.where(new == float("-inf"), 0.0, new)
        total = total * tl.exp(top - shift) + factor * tl.exp(other - shift)
        top = new
    return top, total


@triton.jit
def _join_lanes(top, total, BACKWARD: tl.constexpr):
    """Join the running sums of all lanes, axis 0; the result keeps that axis."""
    new = tl.max(top, 0)[None, :]
    if not BACKWARD:
        total *= tl.exp(top - tl.where(new == float("-inf"), 0.0, new))
    return new, tl.sum(total, 0)[None, :]


@triton.jit
def _write_terms(
    edge, live, head, wanted, top, total, buffer, attention, SLOPE: tl.constexpr, H: tl.constexpr, BITS: tl.constexpr
):
    """Forward: the attention. Backward: the gradient of the scores.

    For LeakyReLU's derivative the last bit of an attention, never rounded up, tells whether its score is positive.
    """
    at = (edge.to(tl.int64) * H)[:, None] + head[None, :]
    there = live[:, None] & wanted[None, :]
    term = tl.load(buffer + at, there, 0.0)
    if attention is None:
        result = tl.exp(term - top) / total
        if SLOPE is not None:
            bits = result.to(BITS, bitcast=True)
            bits = tl.where((bits & 1) == (term > 0).to(BITS), bits, tl.where(bits == 0, 1, bits - 1))
            result = bits.to(total.dtype, bitcast=True)
    else:
        a = tl.load(attention + at, there, 0.0)
        result = a * (term - total)
        if SLOPE is not None:
            result = tl.where((a.to(BITS, bitcast=True) & 1) != 0, result, result * SLOPE)
    tl.store(buffer + at, result, there)


@triton.jit
def _heads(across, WANT: tl.constexpr, H: tl.constexpr, HP: tl.constexpr):
    """The heads, and which of them have the scope that is at work."""
    head = tl.arange(0, HP)
    wanted = head < H
    if across is not None:
        wanted = wanted & (tl.load(across + head, head < H, 0) == WANT)
    return head, wanted


@triton.jit(do_not_specialize=["size", "num_segments", "num_checks"])
def _softmax_kernel(
    buffer, attention, across, part, ptr, of, size, num_segments, num_checks, chunk_size, JOIN: tl.constexpr,
    SLOPE: tl.constexpr, WANT: tl.constexpr, H: tl.constexpr, T: tl.constexpr, K: tl.constexpr, CHUNKS: tl.constexpr,
    BE: tl.constexpr, HP: tl.constexpr, ACC: tl.constexpr, BITS: tl.constexpr,
):  # fmt: skip
    """Softmax of each segment, or with ``attention`` its backward, in place in ``buffer`` ``[E, H]``.

    Of the long segments only the maximum and the sum of parts; ``JOIN``, in a second launch, does the rest.
    """
    number = tl.program_id(0).to(tl.int64)
    head, wanted = _heads(across, WANT, H, HP)
    backward: tl.constexpr = attention is not None
    if number < num_checks:
        if _any_long(number, ptr, of, None, size, chunk_size, CHUNKS):
            for place in range(number * (2 * CHUNKS), (number + 1) * (2 * CHUNKS)):
                _segment, first, last, begin, end, is_long = _long_part(place, ptr, of, None, size, chunk_size)
                if is_long:
                    top = tl.full([BE, HP], float("-inf"), ACC)
                    total = tl.zeros([BE, HP], ACC)
                    if JOIN:
                        stop = (last.to(tl.int64) - 1) // chunk_size + 1
                        for start in range(first.to(tl.int64) // chunk_size, stop, BE):
                            chunk = start + tl.arange(0, BE)
                            from_part = chunk * 2 + (chunk * chunk_size < first).to(tl.int64)
                            at = (from_part * (2 * H))[:, None] + head[None, :]
                            there = (chunk < stop)[:, None] & wanted[None, :]
                            factor = tl.load(part + at + H, there, 0.0)
                            other = tl.load(part + at, there, float("-inf"))
                            top, total = _add_terms(top, total, factor if backward else other, factor, backward)
                        top, total = _join_lanes(top, total, backward)
                        for start in range(begin, end, BE):
                            edge = start + tl.arange(0, BE)
                            _write_terms(edge, edge < end, head, wanted, top, total, buffer, attention, SLOPE, H, BITS)
                    else:
                        for start in range(begin, end, BE):
                            edge = start + tl.arange(0, BE)
                            terms = _terms(edge, edge < end, head, wanted, buffer, attention, H)
                            top, total = _add_terms(top, total, terms, 1.0, backward)
                        top, total = _join_lanes(top, total, backward)
                        at = place * (2 * H) + head[None, :]
                        tl.store(part + at, top, wanted[None, :])
                        tl.store(part + at + H, total, wanted[None, :])
    elif not JOIN:
        _segment, first, last, _live = _short_segments(number - num_checks, ptr, num_segments, chunk_size, T)
        top = tl.full([T, HP], float("-inf"), ACC)
        total = tl.zeros([T, HP], ACC)
        longest = tl.max(last - first)
        for step in range(0, longest, K):
            for ahead in tl.static_range(K):
                edge = first + (step + ahead)
                terms = _terms(edge, edge < last, head, wanted, buffer, attention, H)
                top, total = _add_terms(top, total, terms, 1.0, backward)
        tl.debug_barrier()  # all have read before the first writes
        for step in range(0, longest, K):
            for ahead in tl.static_range(K):
                edge = first + (step + ahead)
                _write_terms(edge, edge < last, head, wanted, top, total, buffer, attention, SLOPE, H, BITS)


@triton.jit
def _tile(order, relation_ptr, num_relations, ROWS: tl.constexpr, RP: tl.constexpr):
    """The tile of this program, its relation and its rows; there may be none."""
    number = tl.program_id(0)
    if order is not None:
        number = tl.load(order + number)
    count = number * 0  # of the relations whose tiles begin at or before this one
    for start in range(0, num_relations, RP):
        lane = start + tl.arange(0, RP)
        begins = tl.load(relation_ptr + lane, lane < num_relations, 0) // ROWS + lane
        count += tl.sum(((begins <= number) & (lane < num_relations)).to(tl.int32))
    relation = count - 1
    begin = tl.load(relation_ptr + relation)
    begin += (number - begin // ROWS - relation) * ROWS
    end = tl.minimum(begin + ROWS, tl.load(relation_ptr + relation + 1))
    return number.to(tl.int64), relation.to(tl.int64), begin, end


@triton.jit
def _rows(x, row, live, p, column, P: tl.constexpr, C: tl.constexpr):
    """Entry ``p`` of some rows of ``x`` ``[rows, P, C]``."""
    at = ((row.to(tl.int64) * P + p) * C)[:, None] + column[None, :]
    return tl.load(x + at, live[:, None] & (column < C)[None, :], 0.0)


@triton.jit
def _dot(a, b, total, PRECISION: tl.constexpr):
    """``total + a @ b``; float64 without matrix units."""
    if PRECISION is None:
        total += tl.sum(a[:, :, None] * b[None, :, :], 1)
    else:
        total = tl.dot(a, b, total, input_precision=PRECISION)
    return total


@triton.jit
def _halves(x, top):
    """Two float16 numbers whose sum is ``x`` times a power of two, and what undoes it; ``top`` is the largest ``|x|``.

    Together they have the 22 bits of two tf32 numbers, but multiply at twice the speed and can be transposed.
    """
    bits = tl.minimum(tl.maximum(267 - (top.to(tl.int32, bitcast=True) >> 23), 1), 253)
    x = x * (bits << 23).to(tl.float32, bitcast=True)
    high = x.to(tl.float16)
    return high, (x - high.to(tl.float32)).to(tl.float16), ((254 - bits) << 23).to(tl.float32, bitcast=True)


@triton.jit
def _dot_halves(a, a_low, b, b_low, total):
    total = tl.dot(a_low, b, total)
    total = tl.dot(a, b_low, total)
    return tl.dot(a, b, total)


@triton.jit
def _outer(a, b, total, PRECISION: tl.constexpr):
    """``total + a.T @ b``."""
    if PRECISION is None:
        total += tl.sum(a[:, :, None] * b[:, None, :], 0)
    elif PRECISION == "tf32x3" and a.shape[1] >= 64:  # smaller ones use other matrix units, which transpose tf32
        high, low, undo = _halves(a, tl.max(tl.abs(a)))
        right, right_low, right_undo = _halves(b, tl.max(tl.abs(b)))
        part = _dot_halves(tl.trans(high), tl.trans(low), right, right_low, tl.zeros_like(total))
        total += part * undo * right_undo
    else:
        total = tl.dot(tl.trans(a), b, total, input_precision=PRECISION)
    return total


@triton.jit
def _project_kernel(
    out, x, weight, also_out, also_x, also_weight, node, out_row, relation_ptr, order, num_relations,
    P: tl.constexpr, K: tl.constexpr, M: tl.constexpr, N: tl.constexpr, TRANSPOSED: tl.constexpr, ROWS: tl.constexpr,
    RP: tl.constexpr, BR: tl.constexpr, BK: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    PRECISION: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """``out = x @ weight``, ``[., P, K]`` times ``[P, K, M]``, with the kernel of each row's relation.

    A second, narrow kernel of ``N`` columns may make a second output of the same ``x``, or transposed add to the first
    what it makes of a second ``x``.
    """
    _number, relation, begin, end = _tile(order, relation_ptr, num_relations, ROWS, RP)
    p = tl.program_id(1)
    m = tl.program_id(2) * BM + tl.arange(0, BM)
    k = tl.arange(0, BK)
    n = tl.arange(0, BN)
    stride_k: tl.constexpr = 1 if TRANSPOSED else M
    stride_m: tl.constexpr = K if TRANSPOSED else 1
    kernel = weight + (relation * P + p) * (K * M) + k[:, None] * stride_k + m[None, :] * stride_m
    single: tl.constexpr = K <= BK
    halves: tl.constexpr = PRECISION == "tf32x3" and single
    if single:
        w = tl.load(kernel, (k < K)[:, None] & (m < M)[None, :], 0.0)
        if halves:
            w, w_low, w_undo = _halves(w, tl.max(tl.abs(w)))
    if also_out is not None:
        also_w = tl.load(also_weight + relation * (K * N) + k[:, None] * N + n[None, :],
                         (k < K)[:, None] & (n < N)[None, :], 0.0)  # fmt: skip
        if halves:
            also_w, also_low, also_undo = _halves(also_w, tl.max(tl.abs(also_w)))
    row = begin + tl.arange(0, BR)
    source = row if node is None else tl.load(node + row, row < end, 0)
    for _ in range(begin, end, BR):
        live = row < end
        total = tl.zeros([BR, BM], ACC)
        if single:
            left = _rows(x, source, live, p, k, P, K)
            source = row + BR if node is None else tl.load(node + row + BR, row + BR < end, 0)
            if halves:
                left, left_low, undo = _halves(left, tl.max(tl.abs(left), 1)[:, None])
                total = _dot_halves(left, left_low, w, w_low, total) * undo * w_undo
            else:
                total = _dot(left, w, total, PRECISION)
        else:
            for first in range(0, K, BK):
                some = tl.load(kernel + first * stride_k, (first + k < K)[:, None] & (m < M)[None, :], 0.0)
                total = _dot(_rows(x, source, live, p, first + k, P, K), some, total, PRECISION)
            source = row + BR if node is None else tl.load(node + row + BR, row + BR < end, 0)
        if also_out is not None:
            also = tl.zeros([BR, BN], ACC)
            if halves:
                also = _dot_halves(left, left_low, also_w, also_low, also) * undo * also_undo
            else:
                also = _dot(left, also_w, also, PRECISION)
            tl.store(also_out + (row.to(tl.int64) * N)[:, None] + n[None, :], also, live[:, None] & (n < N)[None, :])
        elif also_x is not None:
            for i in tl.static_range(N):
                factor = tl.load(also_x + row.to(tl.int64) * N + i, live, 0.0).to(ACC)
                some = tl.load(also_weight + relation * (M * N) + m * N + i, m < M, 0.0).to(ACC)
                total += factor[:, None] * some[None, :]
        to = row if out_row is None else tl.load(out_row + row, live, 0)
        at = ((to.to(tl.int64) * P + p) * M)[:, None] + m[None, :]
        tl.store(out + at, total, live[:, None] & (m < M)[None, :], eviction_policy="evict_first")
        row += BR


@triton.jit
def _weight_part_kernel(
    part, also_part, grad, also_grad, x, node, relation_ptr, order, num_relations, P: tl.constexpr, F: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, ROWS: tl.constexpr, RP: tl.constexpr, BR: tl.constexpr, BF: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BLOCKS: tl.constexpr, PRECISION: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """What one tile adds to the gradient of its kernel, and to that of a second, narrow one of ``N`` columns."""
    number, _relation, begin, end = _tile(order, relation_ptr, num_relations, ROWS, RP)
    p = tl.program_id(1)
    f = (tl.program_id(2) // BLOCKS) * BF + tl.arange(0, BF)
    m = (tl.program_id(2) % BLOCKS) * BM + tl.arange(0, BM)
    n = tl.arange(0, BN)
    total = tl.zeros([BF, BM], ACC)
    also_total = tl.zeros([BF, BN], ACC)
    row = begin + tl.arange(0, BR)
    source = row if node is None else tl.load(node + row, row < end, 0)
    for _ in range(begin, end, BR):
        live = row < end
        left = _rows(x, source, live, p, f, P, F)
        right = _rows(grad, row, live, p, m, P, M)
        source = row + BR if node is None else tl.load(node + row + BR, row + BR < end, 0)
        if also_grad is not None:
            also_total = _outer(left, _rows(also_grad, row, live, 0, n, 1, N), also_total, PRECISION)
        total = _outer(left, right, total, PRECISION)
        row += BR
    if begin < end:
        at = (number * P + p) * (F * M) + f[:, None] * M + m[None, :]
        tl.store(part + at, total, (f < F)[:, None] & (m < M)[None, :])
        if also_grad is not None:
            at = number * (F * N) + f[:, None] * N + n[None, :]
            tl.store(also_part + at, also_total, (f < F)[:, None] & (n < N)[None, :])


@triton.jit
def _weight_join_kernel(
    out, part, relation_ptr, size: tl.constexpr, ROWS: tl.constexpr, BE: tl.constexpr, BC: tl.constexpr,
    ACC: tl.constexpr,
):  # fmt: skip
    relation = tl.program_id(0)
    column = tl.program_id(1) * BC + tl.arange(0, BC)
    begin = tl.load(relation_ptr + relation)
    count = tl.cdiv(tl.load(relation_ptr + relation + 1) - begin, ROWS)
    first = begin // ROWS + relation
    total = tl.zeros([BE, BC], ACC)
    for start in range(0, count, BE):
        number = start + tl.arange(0, BE)
        at = ((first + number).to(tl.int64) * size)[:, None] + column[None, :]
        total += tl.load(part + at, (number < count)[:, None] & (column < size)[None, :], 0.0)
    tl.store(out + relation.to(tl.int64) * size + column, tl.sum(total, 0), column < size)


def _accumulate(dtype: torch.dtype) -> tuple[torch.dtype, Any]:
    """The dtype of sums and temporaries, for PyTorch and for Triton."""
    return (torch.float64, tl.float64) if dtype == torch.float64 else (torch.float32, tl.float32)


def _precision(dtype: torch.dtype) -> str | None:
    if dtype == torch.float64:
        return None
    return "tf32x3" if dtype == torch.float32 and not torch.backends.cuda.matmul.allow_tf32 else "tf32"


def _power(size: int, low: int, high: int) -> int:
    return min(max(int(triton.next_power_of_2(size)), low), high)


_orders: dict[tuple[Any, ...], tuple[StorageWeakRef, Tensor]] = {}


def _tiles_by_node(node: Tensor | None, relation_ptr: Tensor, num_tiles: int, rows: int) -> Tensor | None:
    """Tiles of neighbouring nodes side by side, whatever their relations, so that the cache holds their inputs.

    Made once, for as long as the memory of ``node`` lives. Any order is right, so an index array that was changed in
    place costs speed at most. Within a capture nothing runs, so nothing is made there.
    """
    if node is None or node.shape[0] <= _LARGE:
        return None
    memory = StorageWeakRef(node.untyped_storage())
    key = (memory.cdata, node.storage_offset(), node.shape[0], num_tiles, rows)
    if key in _orders:
        return _orders[key][1]
    if torch.cuda.is_current_stream_capturing():
        return None
    for old in [old for old, (ref, _) in list(_orders.items()) if ref.expired()]:
        _orders.pop(old, None)
    begins = relation_ptr[:-1] // rows + torch.arange(relation_ptr.shape[0] - 1, device=node.device)
    tile = torch.arange(num_tiles, device=node.device)
    relation = torch.searchsorted(begins, tile, right=True) - 1
    first = relation_ptr[relation] + (tile - begins[relation]) * rows
    order = node[first.clamp(max=node.shape[0] - 1)].sort(stable=True).indices.int()
    torch.cuda.current_stream(node.device).synchronize()  # other streams may use it next
    _orders[key] = memory, order
    return order


@functools.cache  # for good: a captured graph may hold the tensor
def _flags(across: tuple[bool, ...], device: torch.device) -> Tensor:
    return torch.tensor(across, dtype=torch.int8, device=device)


def _tile_rows(num_rows: int, most: int) -> int:
    """A power of two that gives the programs of a small graph about one tile each."""
    return min(max(1 << (num_rows // 400).bit_length() >> 1, 64), most)


def _can_join(weights: Sequence[Tensor]) -> bool:
    """Whether one launch serves two kernels: the second is narrow, and both fit into one tile."""
    wide, narrow = weights[0], weights[-1]
    fits = wide.shape[1] == narrow.shape[1] == 1 and max(wide.shape[2:]) <= 64 and narrow.shape[3] <= 16
    return len(weights) == 2 and fits and wide.dtype == narrow.dtype != torch.float64


def _multiply_rows(
    out: Tensor, x: Tensor, weight: Tensor, node: Tensor | None, out_row: Tensor | None, ptr: Tensor, transposed: bool,
    also: tuple[Tensor | None, Tensor | None, Tensor | None] = (None, None, None),
) -> None:  # fmt: skip
    """``out[out_row[u], p] = x[node[u], p] @ weight[r(u), p]``, or by the transposed kernel; see the kernel."""
    num_rows = x.shape[0] if node is None else node.shape[0]
    num_relations, batch, k, m = weight.shape
    if transposed:
        k, m = m, k
    wide = x.dtype == torch.float64
    block_k, block_m = (16, 16) if wide else (_power(k, 16, 128) if k <= 128 else 64, _power(m, 16, 64))
    block_rows = 16 if wide else max(64, min(4096 // max(block_k, block_m), 128))
    rows = max(_tile_rows(num_rows, 512), block_rows)
    num_tiles = num_rows // rows + num_relations
    _project_kernel[(num_tiles, batch, triton.cdiv(m, block_m))](
        out, x, weight, *also, node, out_row, ptr, _tiles_by_node(node, ptr, num_tiles, rows), num_relations,
        P=batch, K=k, M=m, N=1 if also[2] is None else also[2].shape[3], TRANSPOSED=transposed, ROWS=rows,
        RP=_power(num_relations, 1, 1024), BR=block_rows, BK=block_k, BM=block_m, BN=16,
        PRECISION=_precision(x.dtype), ACC=_accumulate(x.dtype)[1], num_stages=1,
    )  # fmt: skip


def project_many(x: Tensor, weights: Sequence[Tensor], node: Tensor | None, relation_ptr: Tensor) -> list[Tensor]:
    """``project`` by several kernels; a wide one and then a narrow one share a launch and the reading of ``x``."""
    num_rows = (x if node is None else node).shape[0]
    outs = [x.new_empty(num_rows, weight.shape[1], weight.shape[3]) for weight in weights]
    if x.numel() == 0 or num_rows == 0:
        return [out.zero_() for out in outs]
    x, weights = x.contiguous(), [weight.contiguous() for weight in weights]
    if _can_join(weights):
        also = (outs[1], None, weights[1])
        _multiply_rows(outs[0], x, weights[0], node, None, relation_ptr, False, also)
        return outs
    for out, weight in zip(outs, weights, strict=True):
        if out.numel() > 0:
            _multiply_rows(out, x, weight, node, None, relation_ptr, False)
    return outs


def project(x: Tensor, weight: Tensor, node: Tensor | None, relation_ptr: Tensor) -> Tensor:
    """``out[u, p] = x[node[u], p] @ weight[r(u), p]``, ``[U, P, M]``; without ``node``, ``x`` has the rows itself."""
    return project_many(x, [weight], node, relation_ptr)[0]


def project_many_input_grad(
    grads: Sequence[Tensor], weights: Sequence[Tensor], node: Tensor | None, relation_ptr: Tensor, num_nodes: int,
    by_node: Tensor | None, node_ptr: Tensor | None, into: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The gradient of the ``x`` of ``project_many``, added to ``into`` if that is given (with ``by_node`` only)."""
    if len(weights) > 1 and not _can_join(weights):
        for grad, weight in zip(grads, weights, strict=True):
            part = project_input_grad(grad, weight, node, relation_ptr, num_nodes, by_node, node_ptr)
            into = part if into is None else into.add_(part)
        return into if into is not None else grads[0].new_zeros(num_nodes, *weights[0].shape[1:3])
    grad, weight = grads[0].contiguous(), weights[0].contiguous()
    _, batch, channels, _ = weight.shape
    out = grad.new_empty(num_nodes, batch, channels) if into is None else into
    if out.numel() == 0 or any(grad.numel() == 0 for grad in grads):
        return out.zero_() if into is None else out
    also = (None, None, None) if len(weights) == 1 else (None, grads[1].contiguous(), weights[1].contiguous())
    if node is None or by_node is None or node_ptr is None:
        out = out if node is None else out.zero_()
        _multiply_rows(out, grad, weight, None, node, relation_ptr, True, also)
        return out
    rows = grad.new_empty(grad.shape[0], batch, channels, dtype=_accumulate(grad.dtype)[0])
    _multiply_rows(rows, grad, weight, None, None, relation_ptr, True, also)
    _segment_sum(out, rows, _Segments(node_ptr, node, by_node), index=None, long=False, add=into is not None)
    return out


def project_input_grad(
    grad: Tensor, weight: Tensor, node: Tensor | None, relation_ptr: Tensor, num_nodes: int, by_node: Tensor | None,
    node_ptr: Tensor | None,
) -> Tensor:  # fmt: skip
    """The gradient of ``x`` ``[N, P, F]``; ``by_node`` lists the rows by node, without it the nodes are distinct."""
    return project_many_input_grad([grad], [weight], node, relation_ptr, num_nodes, by_node, node_ptr)


def project_many_weight_grad(
    grads: Sequence[Tensor], x: Tensor, node: Tensor | None, relation_ptr: Tensor
) -> list[Tensor]:
    """The gradients of the kernels of ``project_many``."""
    num_relations, (num_rows, batch, width), channels = relation_ptr.shape[0] - 1, grads[0].shape, x.shape[2]
    outs = [grad.new_empty(num_relations, batch, channels, grad.shape[2]) for grad in grads]
    if len(grads) > 1 and not _can_join(outs):
        return [project_weight_grad(grad, x, node, relation_ptr) for grad in grads]
    if x.numel() == 0 or num_rows == 0 or outs[0].numel() == 0:
        return [out.zero_() for out in outs]
    grads, x = [grad.contiguous() for grad in grads], x.contiguous()
    dtype, acc = _accumulate(x.dtype)
    wide = x.dtype == torch.float64
    block_f, block_m = (16, 16) if wide else (_power(channels, 16, 64), _power(width, 16, 64))
    small = block_f * block_m <= 512  # a tile for one warp
    block_rows = 16 if wide else 32 if small else 64
    rows = _tile_rows(num_rows, 512 if small else 2048)
    num_tiles = num_rows // rows + num_relations
    parts = [out.new_empty(num_tiles, *out.shape[1:], dtype=dtype) for out in outs]
    blocks = triton.cdiv(width, block_m)
    also_part, also_grad = (None, None) if len(grads) == 1 else (parts[1], grads[1])
    _weight_part_kernel[(num_tiles, batch, triton.cdiv(channels, block_f) * blocks)](
        parts[0], also_part, grads[0], also_grad, x, node, relation_ptr,
        _tiles_by_node(node, relation_ptr, num_tiles, rows), num_relations, P=batch, F=channels, M=width,
        N=grads[-1].shape[2], ROWS=rows, RP=_power(num_relations, 1, 1024), BR=block_rows, BF=block_f,
        BM=block_m, BN=16, BLOCKS=blocks, PRECISION=_precision(x.dtype), ACC=acc, num_stages=1,
        num_warps=1 if small and not wide else 4,
    )  # fmt: skip
    for out, part in zip(outs, parts, strict=True):
        size = out[0].numel()
        columns = _power(size, 1, 64)
        _weight_join_kernel[(num_relations, triton.cdiv(size, columns))](
            out, part, relation_ptr, size=size, ROWS=rows, BE=64, BC=columns, ACC=acc
        )
    return outs


def project_weight_grad(grad: Tensor, x: Tensor, node: Tensor | None, relation_ptr: Tensor) -> Tensor:
    """The gradient of the kernels, ``[R, P, F, M]``."""
    return project_many_weight_grad([grad], x, node, relation_ptr)[0]


def _chunks(num_edges: int) -> tuple[int, int, int]:
    """The size of a chunk, how many a program searches for long segments, and the number of these programs."""
    size, chunks = (64, 4) if num_edges <= 2 * _LARGE else (128, 8)
    return size, chunks, triton.cdiv(num_edges, size * chunks) if num_edges > size else 0


def _tile_heads(num_heads: int, channels: int) -> tuple[int, int, int]:
    """Heads and channels of a tile, and how many rows make it full."""
    padded = triton.next_power_of_2(channels)
    heads = _power(num_heads, 1, max(1, 2048 // padded))
    return heads, padded, max(1, 2048 // (heads * padded))


def _segment_sum(
    out: Tensor, values: Tensor, segments: _Segments, *, index: Tensor | None, by_position: bool = False,
    weight: Tensor | None = None, also: Tensor | None = None, also_out: Tensor | None = None,
    out_row: Tensor | None = None, row_id: Tensor | None = None, on_values: _Dropout = _NO_DROPOUT,
    on_rows: _Dropout = _NO_DROPOUT, on_edges: _Dropout = _NO_DROPOUT, long: bool = True, add: bool = False,
) -> None:  # fmt: skip
    """``out[s] = m_row[s] * sum over edges e of segment s: m_edge[e] * weight[e] * m_value * values[index[e]]``.

    And ``also_out[s]``, the sum of ``also[e]``. ``by_position``: ``index`` is in the order of the segments.
    """
    num_segments, num_heads, channels = out.shape
    num_edges = segments.of.shape[0]
    dtype, acc = _accumulate(out.dtype)
    heads, padded, rows = _tile_heads(num_heads, channels)
    chunk_size, chunks, num_checks = _chunks(num_edges) if long else (2**31 - 1, 1, 0)
    if num_edges < 3 * num_segments:
        together, ahead = min(max(1, 1024 // (heads * padded)), 64), 2
    elif num_edges > 2 * _LARGE:
        together, ahead = min(max(1, 1024 // (heads * padded)), 16), 4
    else:
        together, ahead = min(max(1, 512 // (heads * padded)), 8), 8
    part = out.new_empty(2 * chunks * num_checks, num_heads * (channels + 1), dtype=dtype)
    features = on_values if on_rows.state is None else on_rows
    for join, grid in enumerate((num_checks + triton.cdiv(num_segments, together), num_checks)):
        if grid > 0:
            _segment_sum_kernel[(grid, triton.cdiv(num_heads, heads))](
                out, also_out, part, values, weight, also, index, segments.ptr, segments.of, segments.by, out_row,
                row_id, num_edges, num_segments, num_checks, chunk_size, on_values.state, on_rows.state,
                features.threshold, features.scale, *on_edges[:3], JOIN=join, ADD=add, BY_POSITION=by_position,
                H=num_heads, D=channels, MEMBERS=max(features.members, on_edges.members), T=together, K=ahead,
                CHUNKS=chunks, BE=min(rows, 64), HP=heads, DP=padded, ACC=acc,
                num_warps=4 if together * heads * padded >= 1024 else 2,
            )  # fmt: skip


def _softmax(
    buffer: Tensor, attention: Tensor | None, edges: Edges, across: Sequence[bool], slope: float | None
) -> None:
    """Replace logits by attention, or with ``attention`` its gradient by that of the scores, in ``buffer``."""
    num_edges, num_heads = buffer.shape
    heads = triton.next_power_of_2(num_heads)
    chunk_size, chunks, num_checks = _chunks(num_edges)
    part = buffer.new_empty(2 * chunks * num_checks, 2, num_heads)
    flags = _flags(tuple(across), buffer.device) if len(set(across)) > 1 else None
    together = min(max(1, 256 // heads), 64)
    for scope in sorted(set(across)):
        ptr, of = (edges.target_ptr, edges.target) if scope else (edges.group_ptr, edges.group)
        num_segments = ptr.shape[0] - 1
        for join, grid in enumerate((num_checks + triton.cdiv(num_segments, together), num_checks)):
            if grid > 0:
                _softmax_kernel[(grid,)](
                    buffer, attention, flags, part, ptr, of, num_edges, num_segments, num_checks, chunk_size,
                    JOIN=join, SLOPE=slope, WANT=int(scope), H=num_heads, T=together,
                    K=2 if num_edges > 2 * _LARGE and not scope else 4, CHUNKS=chunks, BE=max(1, 512 // heads),
                    HP=heads, ACC=_accumulate(buffer.dtype)[1], BITS=_bits(buffer.dtype), num_warps=2,
                )  # fmt: skip


def _bits(dtype: torch.dtype) -> Any:
    return tl.int64 if dtype == torch.float64 else tl.int32


def attend(
    values: Tensor, queries: Tensor | None, keys: Tensor | None, edge_logits: Tensor | None, edges: Edges,
    state: Tensor | None, across: Sequence[bool], negative_slope: float | None, feature_dropout: float,
    edge_dropout: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the output ``[N, H, D]`` and, before dropout, the attention of the sorted edges ``[E, H]``.

    With the additive score the attention's last bit carries a sign for backward, which must get this very tensor.
    """
    num_edges, num_nodes, (_, num_heads, channels) = edges.target.shape[0], edges.target_ptr.shape[0] - 1, values.shape
    dtype, acc = _accumulate(values.dtype)
    attention = values.new_empty(num_edges, num_heads, dtype=dtype)
    out = values.new_empty(num_nodes, num_heads, channels)
    if out.numel() == 0 or num_edges == 0:
        return out.zero_(), attention.zero_()
    if queries is None or keys is None:
        wide, narrow = (
            (ptr[1:] - ptr[:-1]).to(dtype).reciprocal().index_select(0, of).unsqueeze(1)
            for ptr, of in ((edges.target_ptr, edges.target), (edges.group_ptr, edges.group))
        )
        torch.where(_flags(tuple(across), values.device) != 0, wide, narrow, out=attention)
    else:
        heads, padded, rows = _tile_heads(num_heads, queries.shape[2])
        rows = min(rows, 128)
        _logits_kernel[(triton.cdiv(num_edges, rows), triton.cdiv(num_heads, heads))](
            attention, queries.contiguous(), keys.contiguous(),
            None if edge_logits is None else edge_logits.contiguous(), edges.group, edges.group_row,
            edges.source_row, num_edges, SLOPE=negative_slope, H=num_heads, A=queries.shape[2], BE=rows, HP=heads,
            AP=padded, ACC=acc,
        )  # fmt: skip
        _softmax(attention, None, edges, across, negative_slope)
    _segment_sum(
        out, values.contiguous(), _Segments(edges.target_ptr, edges.target), index=edges.source_row, weight=attention,
        row_id=edges.row_id, on_values=_Dropout.of(state, feature_dropout), on_edges=_Dropout.of(state, edge_dropout),
    )  # fmt: skip
    return out, attention


def attend_backward(
    grad: Tensor, grad_attention: Tensor | None, attention: Tensor, values: Tensor, queries: Tensor | None,
    keys: Tensor | None, edge_logits: Tensor | None, edges: Edges, state: Tensor | None, across: Sequence[bool],
    negative_slope: float | None, feature_dropout: float, edge_dropout: float,
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    """Return the gradients of values, queries, keys and edge logits; None where there is no such input."""
    grad, values = grad.contiguous(), values.contiguous()
    on_features, on_edges = _Dropout.of(state, feature_dropout), _Dropout.of(state, edge_dropout)
    by_source = _Segments(edges.source_ptr, edges.source_row, edges.by_source)
    dvalues = torch.empty_like(values)
    if edges.target.shape[0] == 0 or dvalues.numel() == 0 or grad.numel() == 0:
        zeros = [None if queries is None or t is None else torch.zeros_like(t) for t in (queries, keys, edge_logits)]
        return dvalues.zero_(), zeros[0], zeros[1], zeros[2]
    target_by_source = edges.target_by_source

    def to_sources(also: Tensor | None, also_out: Tensor | None) -> None:
        _segment_sum(
            dvalues, grad, by_source, index=edges.target if target_by_source is None else target_by_source,
            by_position=target_by_source is not None, weight=attention, also=also, also_out=also_out,
            row_id=edges.row_id, on_rows=on_features, on_edges=on_edges,
        )  # fmt: skip

    if queries is None or keys is None:
        to_sources(None, None)
        return dvalues, None, None, None

    queries, keys = queries.contiguous(), keys.contiguous()
    (num_edges, num_heads), channels = attention.shape, values.shape[2]
    heads, padded, rows = _tile_heads(num_heads, channels)
    rows = min(rows, 64)
    scores = torch.empty_like(attention)
    _attention_grad_kernel[(triton.cdiv(num_edges, rows), triton.cdiv(num_heads, heads))](
        scores, grad, values, None if grad_attention is None else grad_attention.contiguous(), edges.target,
        edges.source_row, edges.row_id, num_edges, *on_features[:3], *on_edges[:3], H=num_heads, D=channels,
        MEMBERS=max(on_features.members, on_edges.members), BE=rows, HP=heads, DP=padded,
        ACC=_accumulate(scores.dtype)[1],
    )  # fmt: skip
    _softmax(scores, attention, edges, across, negative_slope)

    groups = _Segments(edges.group_ptr, edges.group)
    dqueries, dkeys = torch.empty_like(queries), torch.empty_like(keys)
    fused = negative_slope is not None and num_edges <= 2 * _LARGE  # saves launches, but has fewer programs at work
    to_sources(*((scores, dkeys) if fused else (None, None)))
    if negative_slope is None:
        target_row = edges.group_row.index_select(0, edges.group)
        _segment_sum(dqueries, keys, groups, index=edges.source_row, weight=scores, out_row=edges.group_row)
        _segment_sum(dkeys, queries, by_source, index=target_row, weight=scores)
    else:
        _segment_sum(dqueries, scores.unsqueeze(-1), groups, index=None, out_row=edges.group_row)
        if not fused:
            _segment_sum(dkeys, scores.unsqueeze(-1), by_source, index=None)
    return dvalues, dqueries, dkeys, None if edge_logits is None else scores.to(edge_logits.dtype)
