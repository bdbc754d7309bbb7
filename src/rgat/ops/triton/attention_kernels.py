"""Attention as Triton kernels: launchers on CUDA tensors, without autograd.

``attend``: logits by edge, softmax by group, weighted sum by target. With ``a`` the attention, ``m`` the scaled dropout
masks, backward is per edge and head::

    da      = m_edge * (dout[target] . (m_feature * value[source row])) + dattention             by edge
    dlogit  = a * (da - sum of a * da over the softmax group) (times LeakyReLU')                 by softmax group
    dvalue  = m_feature * sum over the row's edges: a * m_edge * dout[target]                    by source row
    additive: dquery = sum over the group: dlogit, dkey = sum over the row: dlogit               by group, by source row
    multiplicative: dquery = sum ...: dlogit * key[source row], dkey = sum ...: dlogit * query[target row]
"""

# ruff: noqa: N803
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from rgat.ops.triton.launch import LARGE, accumulate, blocks, launch, once, power
from rgat.ops.triton.segment_kernels import (
    EDGE_MASK,
    MASK_NUMBERS,
    Dropout,
    Segments,
    columns,
    find_long,
    long_part,
    mask,
    segment_sum,
    short_segments,
    tile_heads,
    times_mask,
)  # fmt: skip

_FUSED = 2 * LARGE  # up to so many edges one launch sums values and keys by source row


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


@triton.jit(do_not_specialize=["size"])
def _logits_kernel(
    out, queries, keys, edge_logits, group, group_row, source_row, size, SLOPE: tl.constexpr, H: tl.constexpr,
    A: tl.constexpr, BE: tl.constexpr, HP: tl.constexpr, AP: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    edge = tl.program_id(0).to(tl.int64) * BE + tl.arange(0, BE)
    live = edge < size
    head = tl.program_id(1) * HP + tl.arange(0, HP)
    there = live[:, None] & (head < H)[None, :]
    at = (edge * H)[:, None] + head[None, :]
    query_row = tl.load(group_row + tl.load(group + edge, live, 0), live, 0).to(tl.int64)
    key_row = tl.load(source_row + edge, live, 0).to(tl.int64)
    if A == 1:
        query = tl.load(queries + (query_row * H)[:, None] + head[None, :], there, 0.0).to(ACC)
        key = tl.load(keys + (key_row * H)[:, None] + head[None, :], there, 0.0).to(ACC)
        result = query * key if SLOPE is None else query + key
    else:
        result = tl.zeros([BE, HP], ACC)
        for first in tl.static_range(0, A, AP):
            a = first + tl.arange(0, AP)
            column = head[None, :, None] * A + a[None, None, :]
            inside = there[:, :, None] & (a < A)[None, None, :]
            query = tl.load(queries + (query_row * (H * A))[:, None, None] + column, inside, 0.0).to(ACC)
            key = tl.load(keys + (key_row * (H * A))[:, None, None] + column, inside, 0.0).to(ACC)
            result += tl.sum(query * key, 2)
    if edge_logits is not None:
        result += tl.load(edge_logits + at, there, 0.0).to(ACC)
    if SLOPE is not None:
        result = tl.where(result > 0, result, result * SLOPE)
    tl.store(out + at, result, there)


@triton.jit(do_not_specialize=["size"])
def _constant_kernel(
    out, across, target, target_ptr, group, group_ptr, size, H: tl.constexpr, BE: tl.constexpr, HP: tl.constexpr
):
    """The constant attention: one over the number of edges of the softmax group."""
    edge = tl.program_id(0).to(tl.int64) * BE + tl.arange(0, BE)
    live = edge < size
    head = tl.arange(0, HP)
    wide = tl.load(across + head, head < H, 0) != 0
    i = tl.load(target + edge, live, 0)
    v = tl.load(group + edge, live, 0)
    of_target = tl.load(target_ptr + i + 1, live, 1) - tl.load(target_ptr + i, live, 0)
    of_group = tl.load(group_ptr + v + 1, live, 1) - tl.load(group_ptr + v, live, 0)
    count = tl.where(wide[None, :], of_target[:, None], of_group[:, None])
    result = tl.full([], 1.0, out.dtype.element_ty) / count.to(out.dtype.element_ty)
    tl.store(out + (edge * H)[:, None] + head[None, :], result, live[:, None] & (head < H)[None, :])


@triton.jit(do_not_specialize=["size", *MASK_NUMBERS])
def _attention_grad_kernel(
    out, grad, values, attention, grad_attention, target, source_row, row_id, feature_state, edge_state, size,
    feature_threshold, feature_scale, edge_threshold, edge_scale,
    H: tl.constexpr, D: tl.constexpr, MEMBERS: tl.constexpr, BE: tl.constexpr, HP: tl.constexpr, DP: tl.constexpr,
    ACC: tl.constexpr,
):  # fmt: skip
    edge = tl.program_id(0).to(tl.int64) * BE + tl.arange(0, BE)
    live = edge < size
    row = tl.load(source_row + edge, live, 0)
    i = tl.load(target + edge, live, 0)
    result = tl.zeros([HP, BE], ACC)
    for first in tl.static_range(0, D, DP):
        head, column, inside = columns(tl.program_id(1), first, HP, DP, H, D)
        inside = inside & live[None, :, None]
        value = tl.load(values + (row.to(tl.int64) * (H * D))[None, :, None] + column, inside, 0.0).to(ACC)
        received = tl.load(grad + (i.to(tl.int64) * (H * D))[None, :, None] + column, inside, 0.0).to(ACC)
        value = times_mask(value, feature_state, row_id, row, live, head, column, feature_threshold, feature_scale,
                           H, D, MEMBERS, ACC)  # fmt: skip
        result += tl.sum(received * value, 2)
    if edge_state is not None:
        result *= mask(edge_state, EDGE_MASK, edge[None, :], head[:, None], head[:, None], edge_threshold, edge_scale,
                       1, H, MEMBERS, ACC)  # fmt: skip
    at = (edge * H)[None, :] + head[:, None]
    there = live[None, :] & (head < H)[:, None]
    if grad_attention is not None:
        given = tl.load(grad_attention + at, there, 0.0)
        result += tl.where(tl.load(attention + at, there, 0.0) < 0, -given, given)
    tl.store(out + at, result, there)


@triton.jit
def _terms(edge, live, head, wanted, buffer, attention, H: tl.constexpr):
    """Forward: the logits, -inf where there is none. Backward: attention times its gradient."""
    at = (edge.to(tl.int64) * H)[:, None] + head[None, :]
    there = live[:, None] & wanted[None, :]
    if attention is None:
        terms = tl.load(buffer + at, there, float("-inf"))
    else:
        terms = tl.load(buffer + at, there, 0.0) * tl.abs(tl.load(attention + at, there, 0.0))
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
    """Forward: the attention, with the score's sign. Backward: the gradient of the scores, through LeakyReLU."""
    at = (edge.to(tl.int64) * H)[:, None] + head[None, :]
    there = live[:, None] & wanted[None, :]
    term = tl.load(buffer + at, there, 0.0)
    if attention is None:
        result = tl.exp(term - top) / total
        if SLOPE is not None:
            result = tl.where(term > 0, result, -result)
    else:
        signed = tl.load(attention + at, there, 0.0)
        result = tl.abs(signed) * (term - total)
        if SLOPE is not None:
            result = tl.where(signed.to(BITS, bitcast=True) < 0, result * SLOPE, result)
    tl.store(buffer + at, result, there)


@triton.jit
def _heads(across, WANT: tl.constexpr, H: tl.constexpr, HP: tl.constexpr):
    """The heads, and which of them have the scope that is at work."""
    head = tl.arange(0, HP)
    wanted = head < H
    if across is not None:
        wanted = wanted & (tl.load(across + head, head < H, 0) == WANT)
    return head, wanted


@triton.jit(do_not_specialize=["size", "num_segments", "num_parts"])
def _softmax_kernel(
    buffer, attention, across, part, ptr, of, places, size, num_segments, num_parts, JOIN: tl.constexpr,
    SLOPE: tl.constexpr, WANT: tl.constexpr, H: tl.constexpr, T: tl.constexpr, K: tl.constexpr, SIZE: tl.constexpr,
    BE: tl.constexpr, HP: tl.constexpr, ACC: tl.constexpr, BITS: tl.constexpr,
):  # fmt: skip
    """Softmax of each segment, or with ``attention`` its backward, in place in ``buffer`` ``[E, H]``.

    Of the long segments only the maximum and the sum of parts; ``JOIN``, in a second launch, does the rest.
    """
    number = tl.program_id(0).to(tl.int64)
    head, wanted = _heads(across, WANT, H, HP)
    backward: tl.constexpr = attention is not None
    if number < num_parts:
        place, _whole, its_first, its_last, begin, end, is_long = long_part(number, places, ptr, of, None, size, SIZE)
        if is_long:
            top = tl.full([BE, HP], float("-inf"), ACC)
            total = tl.zeros([BE, HP], ACC)
            if JOIN:
                stop = (its_last.to(tl.int64) - 1) // SIZE + 1
                for start in range(its_first.to(tl.int64) // SIZE, stop, BE):
                    chunk = start + tl.arange(0, BE)
                    from_part = chunk * 2 + (chunk * SIZE < its_first).to(tl.int64)
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
        _segment, first, last, _live = short_segments(number - num_parts, ptr, num_segments, SIZE, T)
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


@functools.cache  # for good: a captured graph may hold the tensor
def _flags(across: tuple[bool, ...], device: torch.device) -> Tensor:
    return torch.tensor(across, dtype=torch.int8, device=device)


def _groups_in_step(heads: int, num_edges: int, across: bool) -> tuple[int, int, int]:
    """How many softmax groups a program takes in step, how many of their edges at a time, and its warps."""
    if num_edges <= 2 * LARGE:
        return max(1, 64 // heads), 4, 2
    return min(max(1, 256 // heads), 64), 4 if across else 2, 2


def _softmax(
    buffer: Tensor, attention: Tensor | None, edges: Edges, across: Sequence[bool], slope: float | None
) -> None:
    """Replace logits by attention, or with ``attention`` its gradient by that of the scores, in ``buffer``."""
    num_edges, num_heads = buffer.shape
    heads = power(num_heads)
    flags = _flags(tuple(across), buffer.device) if len(set(across)) > 1 else None
    bits = tl.int64 if buffer.dtype == torch.float64 else tl.int32
    for scope in sorted(set(across)):
        ptr, of = (edges.target_ptr, edges.target) if scope else (edges.group_ptr, edges.group)
        num_segments = ptr.shape[0] - 1
        together, ahead, warps = _groups_in_step(heads, num_edges, scope)
        found = find_long(Segments(ptr, of))
        part = buffer.new_empty(found.num_places, 2, num_heads)
        for join, grid in enumerate((found.num_parts + blocks(num_segments, together), found.num_parts)):
            if grid > 0:
                launch(
                    _softmax_kernel, (grid, 1, 1), (buffer, attention, flags, part, ptr, of, found.places),
                    (num_edges, num_segments, found.num_parts), warps, JOIN=join, SLOPE=slope, WANT=int(scope),
                    H=num_heads, T=together, K=ahead, SIZE=found.chunk, BE=max(1, 512 // heads), HP=heads,
                    ACC=accumulate(buffer.dtype)[1], BITS=bits,
                )  # fmt: skip


def _attention(
    queries: Tensor | None, keys: Tensor | None, edge_logits: Tensor | None, edges: Edges, across: Sequence[bool],
    slope: float | None, dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    """The attention of the sorted edges ``[E, H]``."""
    num_edges, num_heads = edges.target.shape[0], len(across)
    attention = edges.target.new_empty(num_edges, num_heads, dtype=dtype)
    if queries is None or keys is None:
        heads = power(num_heads)
        rows = max(1, 1024 // heads)
        launch(
            _constant_kernel, (blocks(num_edges, rows), 1, 1),
            (attention, _flags(tuple(across), attention.device), edges.target, edges.target_ptr, edges.group,
             edges.group_ptr), (num_edges,), H=num_heads, BE=rows, HP=heads,
        )  # fmt: skip
        return attention
    heads, padded, rows = tile_heads(num_heads, queries.shape[2])
    rows = min(rows, 128)
    launch(
        _logits_kernel, (blocks(num_edges, rows), blocks(num_heads, heads), 1),
        (attention, queries, keys, edge_logits, edges.group, edges.group_row, edges.source_row), (num_edges,),
        SLOPE=slope, H=num_heads, A=queries.shape[2], BE=rows, HP=heads, AP=padded, ACC=accumulate(dtype)[1],
    )  # fmt: skip
    _softmax(attention, None, edges, across, slope)
    return attention


def attend(
    values: Tensor, queries: Tensor | None, keys: Tensor | None, edge_logits: Tensor | None, edges: Edges,
    state: Tensor | None, across: Sequence[bool], negative_slope: float | None, feature_dropout: float,
    edge_dropout: float, bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the output ``[N, H, D]`` and, before dropout, the attention of the sorted edges ``[E, H]``.

    With the additive score the attention has the sign of the score, for LeakyReLU's derivative: no cast of what is
    saved for backward loses it. Whoever returns it to a caller takes the absolute value.
    """
    num_edges, num_nodes, (_, num_heads, channels) = edges.target.shape[0], edges.target_ptr.shape[0] - 1, values.shape
    dtype, _ = accumulate(values.dtype)
    out = values.new_empty(num_nodes, num_heads, channels)
    if out.numel() == 0 or num_edges == 0:
        out = out.zero_() if bias is None else out.copy_(bias.view(num_heads, channels))
        return out, values.new_zeros(num_edges, num_heads, dtype=dtype)
    attention = _attention(queries, keys, edge_logits, edges, across, negative_slope, dtype)
    segment_sum(
        out, values, Segments(edges.target_ptr, edges.target), index=edges.source_row, weight=attention, signed=True,
        bias=bias, row_id=edges.row_id, on_values=Dropout.of(state, feature_dropout),
        on_edges=Dropout.of(state, edge_dropout),
    )  # fmt: skip
    return out, attention


def _by_source(like: Tensor, make: Callable[[], Tensor], edges: Edges) -> tuple[Tensor, bool]:
    """Something of each edge in the order of ``by_source``, which saves backward a gather per edge, and True.

    Made once for the memory of ``like``; where it cannot be kept, in the order of the edges, and False.
    """
    made = once(like, ("by source",), lambda: make().index_select(0, edges.by_source))
    return (make(), False) if made is None else (made, True)


def attend_backward(
    grad: Tensor, grad_attention: Tensor | None, attention: Tensor, values: Tensor, queries: Tensor | None,
    keys: Tensor | None, edge_logits: Tensor | None, edges: Edges, state: Tensor | None, across: Sequence[bool],
    negative_slope: float | None, feature_dropout: float, edge_dropout: float,
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    """Return the gradients of values, queries, keys and edge logits; None where there is no such input."""
    on_features, on_edges = Dropout.of(state, feature_dropout), Dropout.of(state, edge_dropout)
    by_source = Segments(edges.source_ptr, edges.source_row, edges.by_source)
    dvalues = torch.empty_like(values)
    if edges.target.shape[0] == 0 or dvalues.numel() == 0 or grad.numel() == 0:
        zeros = [None if queries is None or t is None else torch.zeros_like(t) for t in (queries, keys, edge_logits)]
        return dvalues.zero_(), zeros[0], zeros[1], zeros[2]
    target, sorted_target = _by_source(edges.target, lambda: edges.target, edges)

    def to_sources(also: Tensor | None, also_out: Tensor | None) -> None:
        segment_sum(
            dvalues, grad, by_source, index=target, by_position=sorted_target, weight=attention, signed=True, also=also,
            also_out=also_out, row_id=edges.row_id, on_rows=on_features, on_edges=on_edges,
        )  # fmt: skip

    if queries is None or keys is None:
        to_sources(None, None)
        return dvalues, None, None, None

    (num_edges, num_heads), channels = attention.shape, values.shape[2]
    heads, padded, rows = tile_heads(num_heads, channels)
    rows = min(rows, 64)
    scores = torch.empty_like(attention)
    launch(
        _attention_grad_kernel, (blocks(num_edges, rows), blocks(num_heads, heads), 1),
        (scores, grad, values, None if grad_attention is None else attention, grad_attention, edges.target,
         edges.source_row, edges.row_id, on_features.state, on_edges.state),
        (num_edges, *on_features[1:3], *on_edges[1:3]), H=num_heads, D=channels,
        MEMBERS=max(on_features.members, on_edges.members), BE=rows, HP=heads, DP=padded,
        ACC=accumulate(scores.dtype)[1],
    )  # fmt: skip
    _softmax(scores, attention, edges, across, negative_slope)

    groups = Segments(edges.group_ptr, edges.group)
    dqueries, dkeys = torch.empty_like(queries), torch.empty_like(keys)
    fused = negative_slope is not None and num_edges <= _FUSED  # saves launches, but has fewer programs at work
    to_sources(*((scores, dkeys) if fused else (None, None)))
    if negative_slope is None:
        row, sorted_row = _by_source(edges.group, lambda: edges.group_row.index_select(0, edges.group), edges)
        segment_sum(dqueries, keys, groups, index=edges.source_row, weight=scores, out_row=edges.group_row)
        segment_sum(dkeys, queries, by_source, index=row, by_position=sorted_row, weight=scores)
    else:
        segment_sum(dqueries, scores.unsqueeze(-1), groups, index=None, out_row=edges.group_row)
        if not fused:
            segment_sum(dkeys, scores.unsqueeze(-1), by_source, index=None)
    return dvalues, dqueries, dkeys, None if edge_logits is None else scores.to(edge_logits.dtype)
