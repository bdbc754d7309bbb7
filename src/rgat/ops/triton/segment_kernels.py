"""Sums over segments as Triton kernels: consecutive positions of an order of the edges, without atomics.

One program takes several segments in step. A segment longer than a chunk is left to others: chunks cut the positions at
fixed places, each sums the part of a long segment that holds its first position and the part that holds only its last,
and a second launch joins the parts in order. Thus the result is the same bit by bit every time.

Dropout masks are recomputed wherever they are used. Sums and temporaries are float32, or float64 for float64; sizes
that shape a program are compile-time constants.
"""

# ruff: noqa: N803
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import functools
import struct
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from rgat.ops.dropout import EDGES, FEATURES, drop_below
from rgat.ops.triton.launch import LARGE, accumulate, blocks, launch, once, power

FEATURE_MASK, EDGE_MASK = tl.constexpr(FEATURES), tl.constexpr(EDGES)
MASK_NUMBERS = ("feature_threshold", "feature_scale", "edge_threshold", "edge_scale")


class Segments(NamedTuple):
    """An order of the edges in which those that are summed together are neighbours."""

    ptr: Tensor  # [S + 1], positions
    of: Tensor  # [E], the segment of each edge
    by: Tensor | None = None  # [E], the edge at each position; None: the position itself


class Dropout(NamedTuple):
    """What the kernels need to recompute a mask; ``state`` is None where no mask is wanted."""

    state: Tensor | None
    threshold: int
    scale: int  # the bits of a float64: Triton would round a float argument to float32
    members: int = 1  # of a stack, whose state holds thresholds and scales too

    @staticmethod
    def of(state: Tensor | None, rate: float) -> Dropout:
        if state is None or rate == 0:
            return NO_DROPOUT
        if state.dim() == 2:
            return Dropout(state.contiguous(), 0, 0, state.shape[0])
        return Dropout(state, drop_below(rate), struct.unpack("<q", struct.pack("<d", 1 / (1 - rate)))[0])


NO_DROPOUT = Dropout(None, 0, 0)


@triton.jit
def _mix64(value):
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB
    return value ^ (value >> 31)


@triton.jit
def mask(
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
def long_part(number, places, ptr, of, by, size, SIZE: tl.constexpr):
    """The place of a part, its segment, that one's ends and its own; and whether there is such a part.

    Places are numbered by chunk: even ones hold the first position of the chunk, odd ones only its last.
    """
    place = number
    if places is not None:
        place = tl.load(places + number).to(tl.int64)
    begin = place // 2 * SIZE
    end = tl.minimum(begin + SIZE, size)
    even = place % 2 == 0
    segment, first, last = _segment_at(tl.where(even, begin, end - 1), begin < size, ptr, of, by)
    is_long = (last - first > SIZE) & (even | (first > begin))
    return place, segment, first, last, tl.maximum(first, begin), tl.minimum(last, end), is_long


@triton.jit
def short_segments(number, ptr, num_segments, SIZE: tl.constexpr, T: tl.constexpr):
    """``T`` segments and their ends; the long ones, and those behind the last, are empty and not to be written."""
    segment = number * T + tl.arange(0, T)
    live = segment < num_segments
    first = tl.load(ptr + segment, live, 0)
    last = tl.load(ptr + segment + 1, live, 0)
    live = live & (last - first <= SIZE)
    return segment, first, tl.where(live, last, first), live


@triton.jit
def columns(block, first, HP: tl.constexpr, DP: tl.constexpr, H: tl.constexpr, D: tl.constexpr):
    """The heads of a block, and their columns of a row, from channel ``first`` on, with a mask of those that exist.

    Tiles are ``[heads, rows, channels]``: neighbouring threads then share a row.
    """
    head = block * HP + tl.arange(0, HP)
    channel = first + tl.arange(0, DP)
    column = head[:, None] * D + channel[None, :]
    inside = (head < H)[:, None] & (channel < D)[None, :]
    return head, column[:, None, :], inside[:, None, :]


@triton.jit
def times_mask(
    total, state, row_id, row, live, head, column, threshold, scale, H: tl.constexpr, D: tl.constexpr,
    MEMBERS: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """``total`` ``[heads, rows, channels]`` times the feature mask of its rows."""
    if state is not None:
        ids = tl.load(row_id + row, live, 0)[None, :, None]
        total *= mask(state, FEATURE_MASK, ids, head[:, None, None], column, threshold, scale, D, H, MEMBERS, ACC)
    return total


@triton.jit
def _add_messages(
    total, also_total, position, live, head, column, inside, values, weight, also, index, by, row_id,
    feature_state, feature_threshold, feature_scale, edge_state, edge_threshold, edge_scale, H: tl.constexpr,
    D: tl.constexpr, MEMBERS: tl.constexpr, BY_POSITION: tl.constexpr, PER_CHANNEL: tl.constexpr,
    SIGNED: tl.constexpr, ACC: tl.constexpr,
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
    result = times_mask(result, feature_state, row_id, row, live, head, column, feature_threshold, feature_scale,
                        H, D, MEMBERS, ACC)  # fmt: skip
    at = (edge.to(tl.int64) * H)[None, :] + head[:, None]
    there = live[None, :] & (head < H)[:, None]
    if PER_CHANNEL:
        to_factor = weight + (edge.to(tl.int64) * (H * D))[None, :, None] + column
        each = tl.load(to_factor, live[None, :, None] & inside, 0.0)
        result *= tl.abs(each) if SIGNED else each
    elif weight is not None:
        factor = tl.load(weight + at, there, 0.0)
        if SIGNED:
            factor = tl.abs(factor)
        if edge_state is not None:
            factor *= mask(edge_state, EDGE_MASK, edge[None, :], head[:, None], head[:, None], edge_threshold,
                           edge_scale, 1, H, MEMBERS, ACC)  # fmt: skip
        result *= factor[:, :, None]
    if also is not None:
        also_total += tl.load(also + at, there, 0.0)
    return total + result, also_total


@triton.jit(do_not_specialize=["size", "num_segments", "num_parts", *MASK_NUMBERS])
def _segment_sum_kernel(
    out, also_out, part, values, weight, also, bias, index, ptr, of, by, out_row, row_id, feature_state, row_state,
    edge_state, places, size, num_segments, num_parts, feature_threshold, feature_scale, edge_threshold, edge_scale,
    JOIN: tl.constexpr, BY_POSITION: tl.constexpr, PER_CHANNEL: tl.constexpr, SIGNED: tl.constexpr, H: tl.constexpr,
    D: tl.constexpr, MEMBERS: tl.constexpr, T: tl.constexpr, K: tl.constexpr, SIZE: tl.constexpr, BE: tl.constexpr,
    HP: tl.constexpr, DP: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Sums of the short segments and of parts of the long ones; with ``JOIN``, in a second launch, of these parts."""
    number = tl.program_id(0).to(tl.int64)
    wide: tl.constexpr = (D + DP - 1) // DP
    head, column, inside = columns(tl.program_id(1) // wide, tl.program_id(1) % wide * DP, HP, DP, H, D)
    if number < num_parts:
        place, whole, its_first, its_last, begin, end, is_long = long_part(number, places, ptr, of, by, size, SIZE)
        if JOIN:  # where the segment begins
            is_long = is_long & (its_first >= place // 2 * SIZE)
            begin = place // 2
            end = (its_last.to(tl.int64) - 1) // SIZE + 1
        if is_long:
            total = tl.zeros([HP, BE, DP], ACC)
            also_total = tl.zeros([HP, BE], ACC)
            for start in range(begin, end, BE):
                position = start + tl.arange(0, BE)
                if JOIN:
                    at = (position * 2 + (position * SIZE < its_first).to(tl.int64)) * (H * (D + 1))
                    live = position < end
                    total += tl.load(part + at[None, :, None] + column, live[None, :, None] & inside, 0.0)
                    also_total += tl.load(part + at[None, :] + (H * D + head)[:, None],
                                          live[None, :] & (head < H)[:, None], 0.0)  # fmt: skip
                else:
                    total, also_total = _add_messages(
                        total, also_total, position, position < end, head, column, inside, values, weight,
                        also, index, by, row_id, feature_state, feature_threshold, feature_scale, edge_state,
                        edge_threshold, edge_scale, H, D, MEMBERS, BY_POSITION, PER_CHANNEL, SIGNED, ACC,
                    )  # fmt: skip
            joined = tl.sum(total, 1)[:, None, :]
            also_joined = tl.sum(also_total, 1)
            if JOIN:
                row = whole + tl.arange(0, 1)
                joined = times_mask(joined, row_state, row_id, row, row >= 0, head, column, feature_threshold,
                                    feature_scale, H, D, MEMBERS, ACC)  # fmt: skip
                if also is not None:
                    tl.store(also_out + whole.to(tl.int64) * H + head, also_joined, head < H)
                if out_row is not None:
                    row = tl.load(out_row + row)
                if bias is not None:
                    joined += tl.load(bias + column, inside, 0.0).to(ACC)
                tl.store(out + (row.to(tl.int64) * (H * D))[None, :, None] + column, joined, inside)
            else:
                tl.store(part + place * (H * (D + 1)) + column, joined, inside)
                tl.store(part + place * (H * (D + 1)) + H * D + head, also_joined, head < H)
    elif not JOIN:
        segment, first, last, live = short_segments(number - num_parts, ptr, num_segments, SIZE, T)
        total = tl.zeros([HP, T, DP], ACC)
        also_total = tl.zeros([HP, T], ACC)
        for step in range(0, tl.max(last - first), K):
            for ahead in tl.static_range(K):
                position = first + (step + ahead)
                total, also_total = _add_messages(
                    total, also_total, position, position < last, head, column, inside, values, weight, also, index,
                    by, row_id, feature_state, feature_threshold, feature_scale, edge_state, edge_threshold,
                    edge_scale, H, D, MEMBERS, BY_POSITION, PER_CHANNEL, SIGNED, ACC,
                )  # fmt: skip
        total = times_mask(total, row_state, row_id, segment, live, head, column, feature_threshold, feature_scale,
                           H, D, MEMBERS, ACC)  # fmt: skip
        if also is not None:
            at = (segment.to(tl.int64) * H)[None, :] + head[:, None]
            tl.store(also_out + at, also_total, live[None, :] & (head < H)[:, None])
        row = segment
        if out_row is not None:
            row = tl.load(out_row + segment, live, 0)
        at = (row.to(tl.int64) * (H * D))[None, :, None] + column
        if bias is not None:
            total += tl.load(bias + column, inside, 0.0).to(ACC)
        tl.store(out + at, total, live[None, :, None] & inside, eviction_policy="evict_first")


class Long(NamedTuple):
    """Where segments that are longer than a chunk have their parts; without ``places`` every place is looked at."""

    places: Tensor | None  # those where a long segment begins, then the others
    num_parts: int
    num_begins: int
    num_places: int  # including those without a part; 0 if there is none
    chunk: int


def find_long(segments: Segments) -> Long:
    """The parts of the long segments."""
    num_edges = segments.of.shape[0]
    chunk = 64 if num_edges <= 2 * LARGE else 128
    if num_edges <= chunk:
        return Long(None, 0, 0, 0, chunk)

    def make() -> tuple[Tensor, int]:
        first, last = segments.ptr[:-1].long(), segments.ptr[1:].long()
        is_long = last - first > chunk
        first, last = first[is_long], last[is_long]
        begins = first // chunk * 2 + (first % chunk != 0)
        more = (last - 1) // chunk - first // chunk  # chunks that a segment goes on in
        start = first // chunk - (more.cumsum(0) - more)
        others = (torch.arange(int(more.sum()), device=first.device) + 1 + start.repeat_interleave(more)) * 2
        return torch.cat([begins, others]).int(), len(begins)

    num_places = 2 * blocks(num_edges, chunk)
    places, num_begins = once(segments.ptr, ("long", chunk), make) or (None, num_places)
    num_parts = num_places if places is None else places.shape[0]
    return Long(places, num_parts, num_begins, num_places if num_parts else 0, chunk)


@functools.lru_cache(4096)
def tile_heads(num_heads: int, channels: int) -> tuple[int, int, int]:
    """Heads and channels of a tile, and how many rows make it full; wider rows take several tiles."""
    padded = power(channels, 1, 2048)
    heads = power(num_heads, 1, max(1, 2048 // padded))
    return heads, padded, max(1, 2048 // (heads * padded))


@functools.lru_cache(4096)
def _in_step(num_edges: int, num_segments: int, width: int) -> tuple[int, int, int]:
    """How many segments of rows of some width a program takes in step, how many of their edges at a time, its warps."""
    if num_edges < 3 * num_segments:
        together = min(max(1, 1024 // width), 64)
        return together, 2, 4 if together * width >= 1024 else 2
    if num_edges > 2 * LARGE:
        together = min(max(1, 1024 // width), 16)
        return together, 4, 4 if together * width >= 1024 else 2
    return min(max(1, 512 // width), 8), 8, 4 if width >= 1024 else 2


def segment_sum(
    out: Tensor, values: Tensor, segments: Segments, *, index: Tensor | None, by_position: bool = False,
    weight: Tensor | None = None, signed: bool = False, also: Tensor | None = None, also_out: Tensor | None = None,
    bias: Tensor | None = None, out_row: Tensor | None = None, row_id: Tensor | None = None,
    on_values: Dropout = NO_DROPOUT, on_rows: Dropout = NO_DROPOUT, on_edges: Dropout = NO_DROPOUT,
) -> None:  # fmt: skip
    """``out[s] = m_row[s] * sum over edges e of segment s: m_edge[e] * weight[e] * m_value * values[index[e]] + bias``.

    And ``also_out[s]``, the sum of ``also[e]``. ``by_position``: ``index`` is in the order of the segments. ``signed``:
    weights are taken by their absolute values.
    """
    num_segments, num_heads, channels = out.shape
    flat = channels == 1 and also is None and on_edges.state is on_values.state is on_rows.state is None
    if flat:  # neighbouring threads then share a row
        num_heads, channels = 1, num_heads
    num_edges = segments.of.shape[0]
    dtype, acc = accumulate(out.dtype)
    heads, padded, rows = tile_heads(num_heads, channels)
    found = find_long(segments)
    together, ahead, warps = _in_step(num_edges, num_segments, heads * padded)
    part = out.new_empty(found.num_places, num_heads * (channels + 1), dtype=dtype)
    features = on_values if on_rows.state is None else on_rows
    tensors = (
        out, also_out, part, values, weight, also, bias, index, *segments, out_row, row_id, on_values.state,
        on_rows.state, on_edges.state, found.places,
    )  # fmt: skip
    for join, num_parts in enumerate((found.num_parts, found.num_begins)):
        grid = num_parts + (0 if join else blocks(num_segments, together))
        if grid > 0:
            launch(
                _segment_sum_kernel, (grid, blocks(num_heads, heads) * blocks(channels, padded), 1), tensors,
                (num_edges, num_segments, num_parts, *features[1:3], *on_edges[1:3]),
                warps, JOIN=join, BY_POSITION=by_position,
                PER_CHANNEL=flat and weight is not None, SIGNED=signed, H=num_heads, D=channels,
                MEMBERS=max(features.members, on_edges.members), T=together, K=ahead, SIZE=found.chunk,
                BE=min(rows, 64), HP=heads, DP=padded, ACC=acc,
            )  # fmt: skip
