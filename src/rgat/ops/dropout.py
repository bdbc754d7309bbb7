"""Dropout masks as a pure function of (seed, call number, ids, head, channel), the same on every backend.

A mask is recomputed wherever it is needed and never stored; threads, the order of the edges and the backend cannot
change it. Each id (a row ``relation * N + node``, or an edge's position in the sorted order) gets a 64-bit key by the
finaliser of SplitMix64. Each column (``head * D + channel``, or the head) then costs one 32-bit finaliser, which
vectorises well and needs no 64-bit product in an inner loop.

The ``state`` of a call is the int64 pair (seed, call number). The state of a stack of models is ``[S, 6]``, one row per
member: its pair, then for each kind of mask the threshold below which an element is dropped and the bits of the scale.
Heads, and with them columns, are divided evenly among members, and each member counts its own from zero.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from rgat.ops import cache
from rgat.ops.registration import has_values

FEATURES, EDGES = 0, 1  # the two kinds of mask have separate random streams

_LOW32 = 0xFFFFFFFF
_GOLDEN32 = 0x9E3779B9  # 2^32 over the golden ratio: consecutive columns land far apart


def _signed(value: int) -> int:
    """Return the int64 with the bits of an unsigned 64-bit constant; products then wrap as in C."""
    return value - 2**64 if value >= 2**63 else value


_GOLDEN64 = _signed(0x9E3779B97F4A7C15)
_MIX64 = (_signed(0xBF58476D1CE4E5B9), _signed(0x94D049BB133111EB))


def _shift_right(value: Tensor, bits: int) -> Tensor:
    return (value >> bits) & ((1 << (64 - bits)) - 1)


def _mix64(value: Tensor) -> Tensor:
    value = (value ^ _shift_right(value, 30)) * _MIX64[0]
    value = (value ^ _shift_right(value, 27)) * _MIX64[1]
    return value ^ _shift_right(value, 31)


def _mix32(value: Tensor) -> Tensor:
    value = ((value ^ (value >> 16)) * 0x85EBCA6B) & _LOW32
    value = ((value ^ (value >> 13)) * 0xC2B2AE35) & _LOW32
    return value ^ (value >> 16)


def count_call(state: Tensor, counted: Tensor | None = None) -> Tensor:
    """Return a copy of the pairs (seed, call number) ``[..., 2]`` and count one call in place, or ``counted`` calls.

    Activation checkpointing calls a layer again in the backward pass, with the state that PyTorch's random number
    generator had in the first call. So each call draws a random number, and a call in a backward pass returns the copy
    of the call that drew the same number, without counting.

    Examples:
        >>> import torch
        >>> from rgat import ops
        >>> state = torch.tensor([7, 0])
        >>> ops.count_call(state)
        tensor([7, 0])
        >>> state
        tensor([7, 1])
    """
    if has_values([state]) and not any(mode.is_infra_mode() for mode in _get_current_dispatch_mode_stack()):
        # Hide this from modes such as that of selective checkpoints: a recalled copy is not computed again.
        with torch._C._DisableTorchDispatch():
            return _count_or_recall(state, counted)
    traced: Tensor = _count_traced(state, counted)
    return traced


_CALLS_KEPT = 1024  # per layer; a backward pass after more calls raises


def _count_or_recall(state: Tensor, counted: Tensor | None) -> Tensor:
    drawn = int(torch.randint(2**62, (), device="cpu"))
    calls: dict[int, Tensor | None] = cache.kept_with(state).setdefault("calls", {})  # by random number
    if torch._C._current_graph_task_id() == -1:
        before = _count(state, counted)
        calls[drawn] = None if drawn in calls else before  # drawn twice: the generator was reset in between
        if len(calls) > _CALLS_KEPT:
            calls.pop(next(iter(calls)), None)
        return before
    recalled = calls.get(drawn)
    if recalled is None:
        raise RuntimeError(_NO_MASKS)
    return recalled


_NO_MASKS = (
    "a layer with dropout that is called again in a backward pass, as activation checkpointing does, must get the "
    "masks of its first call, and these cannot be found: keep `preserve_rng_state=True`, do not set the random seed "
    "between steps, and do not compile the checkpoint; or set the dropout rates to 0"
)


def _count(state: Tensor, counted: Tensor | None = None) -> Tensor:
    before = state.clone()
    state.select(-1, 1).add_(1 if counted is None else counted)
    return before


# An operator, so that a compiler cannot recompute the copy in backward, from the changed state.
@torch.library.custom_op("rgat::count_call", mutates_args=("state",))
def _count_traced(state: Tensor, counted: Tensor | None = None) -> Tensor:
    if torch._C._current_graph_task_id() != -1:
        raise RuntimeError(_NO_MASKS)
    return _count(state, counted)


@_count_traced.register_fake
def _(state: Tensor, counted: Tensor | None = None) -> Tensor:
    return torch.empty_like(state)


def mask_stream(state: Tensor, kind: int) -> Tensor:
    """Return the 64-bit random stream, as int64, of the masks of one kind and call; one per row of ``state``."""
    return _mix64(_mix64(state[..., 0] + _signed(kind * _GOLDEN64 % 2**64)) + state[..., 1] * _GOLDEN64)


def drop_below(rate: float) -> int:
    """Return the 32-bit threshold below which an element is dropped."""
    return min(round(rate * 2**32), _LOW32)


def keep_mask(state: Tensor, kind: int, ids: Tensor, num_columns: int, rate: float) -> Tensor:
    """Return the mask ``[len(ids), num_columns]``: True, with probability ``1 - rate``, where an element is kept.

    ``state`` is the int64 pair (seed, call number).
    """
    return _bits(state, kind, ids, num_columns) >= drop_below(rate)


def _bits(state: Tensor, kind: int, ids: Tensor, num_columns: int) -> Tensor:
    """Return 32 random bits per id and column, as int64."""
    return random_bits(id_keys(mask_stream(state, kind), ids)[:, None], torch.arange(num_columns, device=ids.device))


def id_keys(stream: Tensor | int, ids: Tensor) -> Tensor:
    """Return the 64-bit key of each id in a random stream, as int64."""
    return _mix64((ids.long() * _GOLDEN64) ^ stream)


def random_bits(keys: Tensor, columns: Tensor) -> Tensor:
    """Return 32 random bits for keys and columns, as int64."""
    return _mix32((((keys & _LOW32) + columns * _GOLDEN32) & _LOW32) ^ _shift_right(keys, 32))


def scaled_mask(state: Tensor, kind: int, ids: Tensor, num_columns: int, rate: float, dtype: torch.dtype) -> Tensor:
    """Return ``1 / (1 - rate)`` where an element is kept, else 0; in a stack, each member has its own rate."""
    if state.dim() == 1:
        return keep_mask(state, kind, ids, num_columns, rate).to(dtype) / (1 - rate)
    share = num_columns // state.shape[0]
    masks = [_bits(member, kind, ids, share) >= member[2 + 2 * kind] for member in state]
    scales = state[:, 3 + 2 * kind].contiguous().view(torch.float64).repeat_interleave(share)
    return torch.cat(masks, dim=1).to(dtype) * scales.to(dtype)


def member_rates(feature_rates: Sequence[float], edge_rates: Sequence[float]) -> Tensor:
    """Return the thresholds and scales in a stack's state, ``[S, 4]``.

    Examples:
        >>> from rgat import ops
        >>> ops.member_rates(feature_rates=[0.0, 0.5], edge_rates=[0.1, 0.1]).shape
        torch.Size([2, 4])
    """
    rows = [
        [word for rate in rates for word in (drop_below(rate), scale_bits(rate))]
        for rates in zip(feature_rates, edge_rates, strict=True)
    ]
    return torch.tensor(rows, dtype=torch.int64).view(len(rows), 4)


def scale_bits(rate: float) -> int:
    """Return the int64 with the bits of the scale ``1 / (1 - rate)``."""
    bits: int = struct.unpack("<q", struct.pack("<d", 1 / (1 - rate)))[0]
    return bits
