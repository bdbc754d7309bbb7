"""Compute attention from logits in Triton: the softmax of each group of edges, and its backward, in place.

The softmax group of an edge is its (target, relation) within relations, or its target across relations. As in
``segment_kernels``, one program takes several short groups, and long groups are done in parts, in two launches: the
first finds the maximum and sum of each part, the second (``JOIN``) joins them and writes the attention.
"""

# ruff: noqa: N803
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from rgat.ops.triton.launch import LARGE, launch, num_blocks, power_of_two, sum_dtype
from rgat.ops.triton.segment_kernels import Segments, find_long, long_part, short_segments


@triton.jit(do_not_specialize=["size"])
def _constant_attention_kernel(
    out, across, target, target_ptr, group, group_ptr, size, H: tl.constexpr, BE: tl.constexpr, HP: tl.constexpr
):
    """Write one over the number of edges of the softmax group."""
    edge = tl.program_id(0).to(tl.int64) * BE + tl.arange(0, BE)
    live = edge < size
    head = tl.arange(0, HP)
    is_across = tl.load(across + head, head < H, 0) != 0
    i = tl.load(target + edge, live, 0)
    v = tl.load(group + edge, live, 0)
    target_size = tl.load(target_ptr + i + 1, live, 1) - tl.load(target_ptr + i, live, 0)
    group_size = tl.load(group_ptr + v + 1, live, 1) - tl.load(group_ptr + v, live, 0)
    count = tl.where(is_across[None, :], target_size[:, None], group_size[:, None])
    result = tl.full([], 1.0, out.dtype.element_ty) / count.to(out.dtype.element_ty)
    tl.store(out + (edge * H)[:, None] + head[None, :], result, live[:, None] & (head < H)[None, :])


@triton.jit
def _load_terms(edge, live, head, wanted, buffer, attention, H: tl.constexpr):
    """Return the logits, -inf where there is none; or, backward, attention times its gradient."""
    at = (edge.to(tl.int64) * H)[:, None] + head[None, :]
    exists = live[:, None] & wanted[None, :]
    if attention is None:
        terms = tl.load(buffer + at, exists, float("-inf"))
    else:
        terms = tl.load(buffer + at, exists, 0.0) * tl.abs(tl.load(attention + at, exists, 0.0))
    return terms


@triton.jit
def _add_terms(top, total, other, factor, BACKWARD: tl.constexpr):
    """Add ``factor * exp(other)`` to sums relative to the running maximum; or, backward, add ``other``."""
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
    """Join the running sums of all lanes, axis 0, which remains with size one."""
    new = tl.max(top, 0)[None, :]
    if not BACKWARD:
        total *= tl.exp(top - tl.where(new == float("-inf"), 0.0, new))
    return new, tl.sum(total, 0)[None, :]


@triton.jit
def _join_parts(part, first, last, head, wanted, top, total, BACKWARD: tl.constexpr, H: tl.constexpr,
                CHUNK: tl.constexpr, BE: tl.constexpr):  # fmt: skip
    """Return the maximum and sum of the long group at positions ``first:last``, from those of its parts."""
    stop = (last.to(tl.int64) - 1) // CHUNK + 1
    for start in range(first.to(tl.int64) // CHUNK, stop, BE):
        chunk = start + tl.arange(0, BE)
        slot = chunk * 2 + (chunk * CHUNK < first).to(tl.int64)
        at = (slot * (2 * H))[:, None] + head[None, :]
        exists = (chunk < stop)[:, None] & wanted[None, :]
        factor = tl.load(part + at + H, exists, 0.0)
        other = tl.load(part + at, exists, float("-inf"))
        top, total = _add_terms(top, total, factor if BACKWARD else other, factor, BACKWARD)
    return _join_lanes(top, total, BACKWARD)


@triton.jit
def _write_terms(
    edge, live, head, wanted, top, total, buffer, attention, SLOPE: tl.constexpr, H: tl.constexpr, BITS: tl.constexpr
):
    """Write the attention, with the logit's sign; or, backward, the gradient of the score before LeakyReLU."""
    at = (edge.to(tl.int64) * H)[:, None] + head[None, :]
    exists = live[:, None] & wanted[None, :]
    term = tl.load(buffer + at, exists, 0.0)
    if attention is None:
        result = tl.exp(term - top) / total
        if SLOPE is not None:
            result = tl.where(term > 0, result, -result)
    else:
        signed = tl.load(attention + at, exists, 0.0)
        result = tl.abs(signed) * (term - total)
        if SLOPE is not None:
            result = tl.where(signed.to(BITS, bitcast=True) < 0, result * SLOPE, result)
    tl.store(buffer + at, result, exists)


@triton.jit
def _heads_of_scope(across, SCOPE: tl.constexpr, H: tl.constexpr, HP: tl.constexpr):
    """Return the heads, and which of them have this scope."""
    head = tl.arange(0, HP)
    wanted = head < H
    if across is not None:
        wanted = wanted & (tl.load(across + head, head < H, 0) == SCOPE)
    return head, wanted


@triton.jit(do_not_specialize=["size", "num_segments", "num_parts"])
def _softmax_kernel(
    buffer, attention, across, part, ptr, segment, slots, size, num_segments, num_parts, JOIN: tl.constexpr,
    SLOPE: tl.constexpr, SCOPE: tl.constexpr, H: tl.constexpr, T: tl.constexpr, K: tl.constexpr, CHUNK: tl.constexpr,
    BE: tl.constexpr, HP: tl.constexpr, ACC: tl.constexpr, BITS: tl.constexpr,
):  # fmt: skip
    """Replace the logits in ``buffer`` ``[E, H]`` by attention; or, with ``attention``, its gradient by the scores'."""
    number = tl.program_id(0).to(tl.int64)
    head, wanted = _heads_of_scope(across, SCOPE, H, HP)
    backward: tl.constexpr = attention is not None
    if number < num_parts:
        slot, _whole, its_first, its_last, begin, end, exists = long_part(
            number, slots, ptr, segment, None, size, CHUNK
        )
        if exists:
            top = tl.full([BE, HP], float("-inf"), ACC)
            total = tl.zeros([BE, HP], ACC)
            if JOIN:
                top, total = _join_parts(part, its_first, its_last, head, wanted, top, total, backward, H, CHUNK, BE)
                for start in range(begin, end, BE):
                    edge = start + tl.arange(0, BE)
                    _write_terms(edge, edge < end, head, wanted, top, total, buffer, attention, SLOPE, H, BITS)
            else:
                for start in range(begin, end, BE):
                    edge = start + tl.arange(0, BE)
                    terms = _load_terms(edge, edge < end, head, wanted, buffer, attention, H)
                    top, total = _add_terms(top, total, terms, 1.0, backward)
                top, total = _join_lanes(top, total, backward)
                at = slot * (2 * H) + head[None, :]
                tl.store(part + at, top, wanted[None, :])
                tl.store(part + at + H, total, wanted[None, :])
    elif not JOIN:
        _segment, first, last, _live = short_segments(number - num_parts, ptr, num_segments, CHUNK, T)
        top = tl.full([T, HP], float("-inf"), ACC)
        total = tl.zeros([T, HP], ACC)
        longest = tl.max(last - first)
        for step in range(0, longest, K):
            for ahead in tl.static_range(K):
                edge = first + (step + ahead)
                terms = _load_terms(edge, edge < last, head, wanted, buffer, attention, H)
                top, total = _add_terms(top, total, terms, 1.0, backward)
        tl.debug_barrier()  # all threads have read before the first one writes
        for step in range(0, longest, K):
            for ahead in tl.static_range(K):
                edge = first + (step + ahead)
                _write_terms(edge, edge < last, head, wanted, top, total, buffer, attention, SLOPE, H, BITS)


@functools.cache  # never freed: a CUDA graph may hold the tensor
def _across_flags(across: tuple[bool, ...], device: torch.device) -> Tensor:
    return torch.tensor(across, dtype=torch.int8, device=device)


def _groups_per_program(heads: int, num_edges: int, across: bool) -> tuple[int, int, int]:
    """Return how many softmax groups a program takes, how many of their edges it loads at a time, and its warps."""
    if num_edges <= 2 * LARGE:
        return max(1, 64 // heads), 4, 2
    return min(max(1, 256 // heads), 64), 4 if across else 2, 2


def constant_attention(groups: Segments, targets: Segments, across: Sequence[bool], dtype: torch.dtype) -> Tensor:
    """Return the attention ``[E, H]`` of zero logits."""
    num_edges, num_heads = groups.segment.shape[0], len(across)
    attention = groups.segment.new_empty(num_edges, num_heads, dtype=dtype)
    heads = power_of_two(num_heads)
    rows = max(1, 1024 // heads)
    launch(
        _constant_attention_kernel, (num_blocks(num_edges, rows), 1, 1),
        (attention, _across_flags(tuple(across), attention.device), targets.segment, targets.ptr, groups.segment,
         groups.ptr), (num_edges,), H=num_heads, BE=rows, HP=heads,
    )  # fmt: skip
    return attention


def softmax(
    buffer: Tensor, attention: Tensor | None, groups: Segments, targets: Segments, across: Sequence[bool],
    slope: float | None,
) -> None:  # fmt: skip
    """Replace the logits in ``buffer`` ``[E, H]`` by attention; or, with ``attention``, its gradient by the scores'.

    ``groups`` are the edges of each (target, relation), ``targets`` those of each target.
    """
    num_edges, num_heads = buffer.shape
    heads = power_of_two(num_heads)
    flags = _across_flags(tuple(across), buffer.device) if len(set(across)) > 1 else None
    bits = tl.int64 if buffer.dtype == torch.float64 else tl.int32
    for scope in sorted(set(across)):
        segments = targets if scope else groups
        num_segments = segments.ptr.shape[0] - 1
        together, ahead, warps = _groups_per_program(heads, num_edges, scope)
        long = find_long(segments)
        part = buffer.new_empty(long.num_slots, 2, num_heads)
        for join, grid in enumerate((long.num_parts + num_blocks(num_segments, together), long.num_parts)):
            if grid > 0:
                launch(
                    _softmax_kernel, (grid, 1, 1), (buffer, attention, flags, part, *segments[:2], long.slots),
                    (num_edges, num_segments, long.num_parts), warps, JOIN=join, SLOPE=slope, SCOPE=int(scope),
                    H=num_heads, T=together, K=ahead, CHUNK=long.chunk, BE=max(1, 512 // heads), HP=heads,
                    ACC=sum_dtype(buffer.dtype)[1], BITS=bits,
                )  # fmt: skip
