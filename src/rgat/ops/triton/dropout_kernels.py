"""Recompute dropout masks inside Triton kernels; see ``ops/dropout.py`` for the layout of the state.

``segment_kernels`` applies them in weighted sums, ``attention_kernels`` in the gradient of the attention.
"""

# ruff: noqa: N803
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from rgat.ops.dropout import EDGES, FEATURES, drop_below, scale_bits

_FEATURE_MASK, _EDGE_MASK = tl.constexpr(FEATURES), tl.constexpr(EDGES)
MASK_INTEGERS = ("feature_threshold", "feature_scale", "edge_threshold", "edge_scale")


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
def drop_edges(
    values, state, edge_id, edge, live, head, threshold, scale, H: tl.constexpr, MEMBERS: tl.constexpr,
    ACC: tl.constexpr,
):  # fmt: skip
    """Multiply ``values`` ``[heads, edges]`` by the edge mask, which depends on ``edge_id`` or on the position."""
    if state is not None:
        heads = head[:, None]
        if edge_id is not None:
            edge = tl.load(edge_id + edge, live, 0)
        values *= _mask(state, _EDGE_MASK, edge[None, :], heads, heads, threshold, scale, 1, H, MEMBERS, ACC)
    return values
