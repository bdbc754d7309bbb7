"""Compute dropout masks in Triton; see ``ops/dropout.py`` for the layout of the state.

The feature mask is applied where values are written: ``projection_kernels``, or ``drop_rows`` for values that others
made; and where their gradients are: ``segment_kernels``. The edge mask is computed once in each pass.
"""

# ruff: noqa: N803
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from rgat.ops.dropout import EDGES, FEATURES, drop_below, scale_bits
from rgat.ops.triton.launch import launch, num_blocks, power_of_two, sum_dtype

_FEATURE_MASK, _EDGE_MASK = tl.constexpr(FEATURES), tl.constexpr(EDGES)
MASK_INTEGERS = ("feature_threshold", "feature_scale")


class Dropout(NamedTuple):
    """The arguments of kernels that recompute a mask; ``state`` is None where there is no dropout."""

    state: Tensor | None
    threshold: int
    scale: int  # the bits of a float64: Triton would round a float argument to float32
    members: int = 1  # of a stack, whose state also holds thresholds and scales

    @staticmethod
    def of(state: Tensor | None, rate: float) -> Dropout:
        """Return the arguments for a dropout rate."""
        if state is None or rate == 0:
            return NO_DROPOUT
        if state.dim() == 2 and len(state) > 1:
            return Dropout(state.contiguous(), 0, 0, len(state))
        # A stack of one has the rate of its member. Kernels read only the pair at the beginning of its state.
        return Dropout(state.contiguous(), drop_below(rate), scale_bits(rate))


NO_DROPOUT = Dropout(None, 0, 0)


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
    """Return ``1 / (1 - rate)`` where an element is kept, else 0, as ``scaled_mask``; ``WIDTH`` columns per head."""
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
def drop_features(
    values, state, row_id, row, live, head, column, threshold, scale, H: tl.constexpr, D: tl.constexpr,
    MEMBERS: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Multiply ``values`` ``[heads, rows, channels]`` by the feature mask of their rows."""
    if state is not None:
        ids = tl.load(row_id + row, live, 0)[None, :, None]
        values *= _mask(state, _FEATURE_MASK, ids, head[:, None, None], column, threshold, scale, D, H, MEMBERS, ACC)
    return values


@triton.jit
def drop_row_tile(
    values, state, row_id, row, live, column, threshold, scale, D: tl.constexpr, H: tl.constexpr,
    MEMBERS: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Multiply ``values`` ``[rows, columns]`` by the feature mask of their rows."""
    ids = tl.load(row_id + row, live, 0)[:, None]
    head = (column // D)[None, :]
    mask = _mask(state, _FEATURE_MASK, ids, head, column[None, :], threshold, scale, D, H, MEMBERS, ACC)
    return values * mask


@triton.jit(do_not_specialize=["size", "threshold", "scale"])
def _drop_rows_kernel(
    out, values, row_id, state, size, threshold, scale, C: tl.constexpr, H: tl.constexpr, MEMBERS: tl.constexpr,
    BR: tl.constexpr, BC: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Write the values ``[size, C]`` times the feature mask."""
    row = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    column = tl.program_id(1) * BC + tl.arange(0, BC)
    live = row < size
    inside = live[:, None] & (column < C)[None, :]
    at = (row * C)[:, None] + column[None, :]
    tile = tl.load(values + at, inside, 0.0).to(ACC)
    tile = drop_row_tile(tile, state, row_id, row, live, column, threshold, scale, C // H, H, MEMBERS, ACC)
    tl.store(out + at, tile, inside)


@triton.jit(do_not_specialize=["size", "threshold", "scale"])
def _edge_mask_kernel(
    out, edge_id, state, size, threshold, scale, H: tl.constexpr, MEMBERS: tl.constexpr, BE: tl.constexpr,
    HP: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Write the edge mask, which depends on ``edge_id`` or on the position."""
    edge = tl.program_id(0).to(tl.int64) * BE + tl.arange(0, BE)
    live = edge < size
    head = tl.arange(0, HP)[None, :]
    ids = edge
    if edge_id is not None:
        ids = tl.load(edge_id + edge, live, 0)
    mask = _mask(state, _EDGE_MASK, ids[:, None], head, head, threshold, scale, 1, H, MEMBERS, ACC)
    tl.store(out + (edge * H)[:, None] + head, mask, live[:, None] & (head < H))


def drop_rows(values: Tensor, row_id: Tensor, drop: Dropout) -> Tensor:
    """Return the values ``[U, H, D]`` times the mask of feature dropout."""
    if drop.state is None or values.numel() == 0:
        return values
    (size, heads, channels), out = values.shape, torch.empty_like(values)
    block = power_of_two(heads * channels, 1, 128)
    launch(
        _drop_rows_kernel, (num_blocks(size, 2048 // block), num_blocks(heads * channels, block), 1),
        (out, values, row_id, drop.state), (size, *drop[1:3]), C=heads * channels, H=heads, MEMBERS=drop.members,
        BR=2048 // block, BC=block, ACC=sum_dtype(values.dtype)[1],
    )  # fmt: skip
    return out


def edge_mask(like: Tensor, edge_id: Tensor | None, drop: Dropout) -> Tensor | None:
    """Return the mask of edge dropout in the shape of the attention ``like``, ``[E, H]``; None: no dropout.

    Kernels that read it from memory take less time than ones that compute it for each channel.
    """
    if drop.state is None:
        return None
    (num_edges, heads), mask = like.shape, torch.empty_like(like)
    padded = power_of_two(heads)
    block = max(1, 512 // padded)
    launch(
        _edge_mask_kernel, (num_blocks(num_edges, block), 1, 1), (mask, edge_id, drop.state), (num_edges, *drop[1:3]),
        H=heads, MEMBERS=drop.members, BE=block, HP=padded, ACC=sum_dtype(like.dtype)[1],
    )  # fmt: skip
    return mask
