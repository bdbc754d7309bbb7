"""Sum over segments of edges in Triton, without atomics; edges and features are dropped on the way.

A segment is a range of consecutive positions in some order of the edges, such as all edges of a target. One program
sums several short segments side by side. Segments longer than a chunk are summed in parts: the positions are cut into
chunks of fixed size, one program sums the part of a long segment within a chunk, and a second launch (``JOIN``) adds
the parts in order. So results are bit-identical in every run.

Sums and temporaries are float32, or float64 for float64. Compile-time constants: ``H`` heads, ``D`` channels, ``HP``
and ``DP`` heads and channels of a tile, ``BE`` edges of a tile, ``T`` short segments of a program, ``K`` of whose edges
are loaded before they are added.
"""

# ruff: noqa: N803
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from rgat.ops.cache import cached
from rgat.ops.triton.dropout_kernels import MASK_INTEGERS, NO_DROPOUT, Dropout, drop_edges, drop_features
from rgat.ops.triton.launch import LARGE, launch, num_blocks, power_of_two, sum_dtype


class Segments(NamedTuple):
    """An order of the edges in which the edges of a segment are consecutive."""

    ptr: Tensor  # [S + 1], positions
    segment: Tensor  # [E], of each edge
    edge_at: Tensor | None = None  # [E], the edge at each position; None: edges are in this order


@triton.jit
def long_part(number, slots, ptr, segment, edge_at, size, CHUNK: tl.constexpr):
    """Return a part's slot, its segment, the segment's range, its own range, and whether the part exists.

    Each chunk has two slots: the even one for the segment at its first position, the odd one for the segment at its
    last position.
    """
    slot = number
    if slots is not None:
        slot = tl.load(slots + number).to(tl.int64)
    begin = slot // 2 * CHUNK
    end = tl.minimum(begin + CHUNK, size)
    is_even = slot % 2 == 0
    edge = tl.where(is_even, begin, end - 1)
    if edge_at is not None:
        edge = tl.load(edge_at + edge, begin < size, 0)
    whole = tl.load(segment + edge, begin < size, 0)
    first = tl.load(ptr + whole, begin < size, 0)
    last = tl.load(ptr + whole + 1, begin < size, 0)
    exists = (last - first > CHUNK) & (is_even | (first > begin))
    return slot, whole, first, last, tl.maximum(first, begin), tl.minimum(last, end), exists


@triton.jit
def short_segments(number, ptr, num_segments, CHUNK: tl.constexpr, T: tl.constexpr):
    """Return ``T`` segments, their ranges, and which of them are short; the other ranges are empty."""
    segment = number * T + tl.arange(0, T)
    live = segment < num_segments
    first = tl.load(ptr + segment, live, 0)
    last = tl.load(ptr + segment + 1, live, 0)
    live = live & (last - first <= CHUNK)
    return segment, first, tl.where(live, last, first), live


@triton.jit
def head_columns(block, first, HP: tl.constexpr, DP: tl.constexpr, H: tl.constexpr, D: tl.constexpr):
    """Return the heads of a block, their columns of a row from channel ``first`` on, and which columns exist.

    Tiles are ``[heads, rows, channels]``, so that neighbouring threads read the same row.
    """
    head = block * HP + tl.arange(0, HP)
    channel = first + tl.arange(0, DP)
    column = head[:, None] * D + channel[None, :]
    inside = (head < H)[:, None] & (channel < D)[None, :]
    return head, column[:, None, :], inside[:, None, :]


@triton.jit
def _add_edges(
    total, edge_total, position, live, head, column, inside, values, weight, edge_values, index, edge_at, row_id,
    edge_id, feature_state, feature_threshold, feature_scale, edge_state, edge_threshold, edge_scale, H: tl.constexpr,
    D: tl.constexpr, MEMBERS: tl.constexpr, BY_POSITION: tl.constexpr, PER_CHANNEL: tl.constexpr,
    ABSOLUTE: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Add one edge to each sum ``[heads, positions, channels]`` and ``[heads, positions]``."""
    edge = position
    if edge_at is not None:
        edge = tl.load(edge_at + position, live, 0)
    row = edge
    if index is not None:
        row = tl.load(index + (position if BY_POSITION else edge), live, 0)
    at = (row.to(tl.int64) * (H * D))[None, :, None] + column
    message = tl.load(values + at, live[None, :, None] & inside, 0.0).to(ACC)
    message = drop_features(message, feature_state, row_id, row, live, head, column, feature_threshold, feature_scale,
                            H, D, MEMBERS, ACC)  # fmt: skip
    at = (edge.to(tl.int64) * H)[None, :] + head[:, None]
    exists = live[None, :] & (head < H)[:, None]
    if PER_CHANNEL:
        at_weight = weight + (edge.to(tl.int64) * (H * D))[None, :, None] + column
        factors = tl.load(at_weight, live[None, :, None] & inside, 0.0)
        message *= tl.abs(factors) if ABSOLUTE else factors
    elif weight is not None:
        factor = tl.load(weight + at, exists, 0.0)
        if ABSOLUTE:
            factor = tl.abs(factor)
        factor = drop_edges(factor, edge_state, edge_id, edge, live, head, edge_threshold, edge_scale, H, MEMBERS, ACC)
        message *= factor[:, :, None]
    if edge_values is not None:
        edge_total += tl.load(edge_values + at, exists, 0.0)
    return total + message, edge_total


@triton.jit
def _add_parts(
    total, edge_total, chunk, end, its_first, head, column, inside, part, H: tl.constexpr, D: tl.constexpr,
    CHUNK: tl.constexpr,
):  # fmt: skip
    """Add the parts of a long segment in some chunks."""
    at = (chunk * 2 + (chunk * CHUNK < its_first).to(tl.int64)) * (H * (D + 1))
    live = chunk < end
    total += tl.load(part + at[None, :, None] + column, live[None, :, None] & inside, 0.0)
    exists = live[None, :] & (head < H)[:, None]
    edge_total += tl.load(part + at[None, :] + (H * D + head)[:, None], exists, 0.0)
    return total, edge_total


@triton.jit
def _write_sums(
    total, edge_total, segment, live, head, column, inside, out, edge_out, edge_values, bias, out_row, row_id,
    row_state, threshold, scale, H: tl.constexpr, D: tl.constexpr, MEMBERS: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Write the sums of some segments, after dropout and with the bias."""
    total = drop_features(total, row_state, row_id, segment, live, head, column, threshold, scale, H, D, MEMBERS, ACC)
    if edge_values is not None:
        at = (segment.to(tl.int64) * H)[None, :] + head[:, None]
        tl.store(edge_out + at, edge_total, live[None, :] & (head < H)[:, None])
    row = segment
    if out_row is not None:
        row = tl.load(out_row + segment, live, 0)
    at = (row.to(tl.int64) * (H * D))[None, :, None] + column
    if bias is not None:
        total += tl.load(bias + column, inside, 0.0).to(ACC)
    tl.store(out + at, total, live[None, :, None] & inside, eviction_policy="evict_first")


@triton.jit(do_not_specialize=["size", "num_segments", "num_parts", *MASK_INTEGERS])
def _segment_sum_kernel(
    out, edge_out, part, values, weight, edge_values, bias, index, ptr, segment_of, edge_at, out_row, row_id,
    edge_id, feature_state, row_state, edge_state, slots, size, num_segments, num_parts, feature_threshold,
    feature_scale, edge_threshold, edge_scale, JOIN: tl.constexpr, BY_POSITION: tl.constexpr, PER_CHANNEL: tl.constexpr,
    ABSOLUTE: tl.constexpr, H: tl.constexpr, D: tl.constexpr, MEMBERS: tl.constexpr, T: tl.constexpr, K: tl.constexpr,
    CHUNK: tl.constexpr, BE: tl.constexpr, HP: tl.constexpr, DP: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Sum the short segments and the parts of the long ones; with ``JOIN``, in a second launch, sum these parts."""
    number = tl.program_id(0).to(tl.int64)
    wide: tl.constexpr = (D + DP - 1) // DP
    head, column, inside = head_columns(tl.program_id(1) // wide, tl.program_id(1) % wide * DP, HP, DP, H, D)
    if number < num_parts:
        slot, whole, its_first, its_last, begin, end, exists = long_part(
            number, slots, ptr, segment_of, edge_at, size, CHUNK
        )
        if JOIN:  # where the segment begins
            exists = exists & (its_first >= slot // 2 * CHUNK)
            begin = slot // 2
            end = (its_last.to(tl.int64) - 1) // CHUNK + 1
        if exists:
            total = tl.zeros([HP, BE, DP], ACC)
            edge_total = tl.zeros([HP, BE], ACC)
            for start in range(begin, end, BE):
                position = start + tl.arange(0, BE)
                if JOIN:
                    total, edge_total = _add_parts(
                        total, edge_total, position, end, its_first, head, column, inside, part, H, D, CHUNK
                    )
                else:
                    total, edge_total = _add_edges(
                        total, edge_total, position, position < end, head, column, inside, values, weight, edge_values,
                        index, edge_at, row_id, edge_id, feature_state, feature_threshold, feature_scale, edge_state,
                        edge_threshold, edge_scale, H, D, MEMBERS, BY_POSITION, PER_CHANNEL, ABSOLUTE, ACC,
                    )  # fmt: skip
            total = tl.sum(total, 1)[:, None, :]
            edge_total = tl.sum(edge_total, 1)[:, None]
            if JOIN:
                row = whole + tl.arange(0, 1)
                _write_sums(total, edge_total, row, row >= 0, head, column, inside, out, edge_out, edge_values, bias,
                            out_row, row_id, row_state, feature_threshold, feature_scale, H, D, MEMBERS,
                            ACC)  # fmt: skip
            else:
                tl.store(part + slot * (H * (D + 1)) + column, total, inside)
                tl.store(part + slot * (H * (D + 1)) + H * D + head[:, None], edge_total, (head < H)[:, None])
    elif not JOIN:
        segment, first, last, live = short_segments(number - num_parts, ptr, num_segments, CHUNK, T)
        total = tl.zeros([HP, T, DP], ACC)
        edge_total = tl.zeros([HP, T], ACC)
        for step in range(0, tl.max(last - first), K):
            for ahead in tl.static_range(K):
                position = first + (step + ahead)
                total, edge_total = _add_edges(
                    total, edge_total, position, position < last, head, column, inside, values, weight, edge_values,
                    index, edge_at, row_id, edge_id, feature_state, feature_threshold, feature_scale, edge_state,
                    edge_threshold, edge_scale, H, D, MEMBERS, BY_POSITION, PER_CHANNEL, ABSOLUTE, ACC,
                )  # fmt: skip
        _write_sums(total, edge_total, segment, live, head, column, inside, out, edge_out, edge_values, bias, out_row,
                    row_id, row_state, feature_threshold, feature_scale, H, D, MEMBERS, ACC)  # fmt: skip


class LongSegments(NamedTuple):
    """Where the parts of segments longer than a chunk are; without ``slots`` each slot is checked for a part."""

    slots: Tensor | None  # those where a long segment begins, then the others
    num_parts: int
    num_begins: int
    num_slots: int  # including those without a part; 0 if there is no part
    chunk: int


def find_long(segments: Segments) -> LongSegments:
    """Return the parts of the long segments."""
    num_edges = segments.segment.shape[0]
    chunk = 64 if num_edges <= 2 * LARGE else 128
    if num_edges <= chunk:
        return LongSegments(None, 0, 0, 0, chunk)

    def list_slots() -> tuple[Tensor, int]:
        first, last = segments.ptr[:-1].long(), segments.ptr[1:].long()
        is_long = last - first > chunk
        first, last = first[is_long], last[is_long]
        begins = first // chunk * 2 + (first % chunk != 0)
        further = (last - 1) // chunk - first // chunk  # chunks that a segment continues in
        start = first // chunk - (further.cumsum(0) - further)
        others = (torch.arange(int(further.sum()), device=first.device) + 1 + start.repeat_interleave(further)) * 2
        return torch.cat([begins, others]).int(), len(begins)

    num_slots = 2 * num_blocks(num_edges, chunk)
    slots, num_begins = cached(segments.ptr, ("long", chunk), list_slots) or (None, num_slots)
    num_parts = num_slots if slots is None else slots.shape[0]
    return LongSegments(slots, num_parts, num_begins, num_slots if num_parts else 0, chunk)


@functools.lru_cache(4096)
def tile_heads(num_heads: int, channels: int) -> tuple[int, int, int]:
    """Return the heads and channels of a tile, and how many rows fill it; wider rows take several tiles."""
    padded = power_of_two(channels, 1, 2048)
    heads = power_of_two(num_heads, 1, max(1, 2048 // padded))
    return heads, padded, max(1, 2048 // (heads * padded))


@functools.lru_cache(4096)
def _segments_per_program(num_edges: int, num_segments: int, width: int) -> tuple[int, int, int]:
    """Return how many short segments a program sums, how many of their edges it loads at a time, and its warps."""
    if num_edges < 3 * num_segments:
        together = min(max(1, 1024 // width), 64)
        return together, 2, 4 if together * width >= 1024 else 2
    if num_edges > 2 * LARGE:
        together = min(max(1, 1024 // width), 16)
        return together, 4, 4 if together * width >= 1024 else 2
    return min(max(1, 512 // width), 8), 8, 4 if width >= 1024 else 2


def segment_sum(
    out: Tensor, values: Tensor, segments: Segments, *, index: Tensor | None, by_position: bool = False,
    weight: Tensor | None = None, absolute: bool = False, edge_values: Tensor | None = None,
    edge_out: Tensor | None = None, bias: Tensor | None = None, out_row: Tensor | None = None,
    row_id: Tensor | None = None, edge_id: Tensor | None = None, on_values: Dropout = NO_DROPOUT,
    on_rows: Dropout = NO_DROPOUT, on_edges: Dropout = NO_DROPOUT,
) -> None:  # fmt: skip
    """Fill ``out[s]`` with ``m_row[s] * sum over edges e of s: m_edge[e] * weight[e] * m_value * values[index[e]]``.

    Adds ``bias``, writes to row ``out_row[s]`` where that is given, and fills ``edge_out[s]`` with the sum of
    ``edge_values[e]``. ``by_position``: ``index`` is in the order of the segments. ``absolute``: use absolute weights.
    """
    num_segments, num_heads, channels = out.shape
    flat = channels == 1 and edge_values is None and on_edges.state is on_values.state is on_rows.state is None
    if flat:  # neighbouring threads then read the same row
        num_heads, channels = 1, num_heads
    num_edges = segments.segment.shape[0]
    dtype, acc = sum_dtype(out.dtype)
    heads, padded, rows = tile_heads(num_heads, channels)
    long = find_long(segments)
    together, ahead, warps = _segments_per_program(num_edges, num_segments, heads * padded)
    part = out.new_empty(long.num_slots, num_heads * (channels + 1), dtype=dtype)
    features = on_values if on_rows.state is None else on_rows
    tensors = (
        out, edge_out, part, values, weight, edge_values, bias, index, *segments, out_row, row_id, edge_id,
        on_values.state, on_rows.state, on_edges.state, long.slots,
    )  # fmt: skip
    for join, num_parts in enumerate((long.num_parts, long.num_begins)):
        grid = num_parts + (0 if join else num_blocks(num_segments, together))
        if grid > 0:
            launch(
                _segment_sum_kernel, (grid, num_blocks(num_heads, heads) * num_blocks(channels, padded), 1), tensors,
                (num_edges, num_segments, num_parts, *features[1:3], *on_edges[1:3]), warps, JOIN=join,
                BY_POSITION=by_position, PER_CHANNEL=flat and weight is not None, ABSOLUTE=absolute, H=num_heads,
                D=channels, MEMBERS=max(features.members, on_edges.members), T=together, K=ahead, CHUNK=long.chunk,
                BE=min(rows, 64), HP=heads, DP=padded, ACC=acc,
            )  # fmt: skip
