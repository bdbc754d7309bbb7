"""Attend in Triton: logits by edge, softmax by group, weighted sum by target; launchers on CUDA tensors, no autograd.

With ``a`` the attention and ``m`` the scaled dropout masks, backward is per edge and head::

    da      = m_edge * (dout[target] . (m_feature * value[source row])) + dattention             by edge
    dlogit  = a * (da - sum of a * da over the softmax group) (times LeakyReLU')                 by softmax group
    dvalue  = m_feature * sum over the row's edges: a * m_edge * dout[target]                    by source row
    additive: dquery = sum over the group: dlogit, dkey = sum over the row: dlogit               by group, by source row
    multiplicative: dquery = sum ...: dlogit * key[source row], dkey = sum ...: dlogit * query[target row]
"""

# ruff: noqa: N803
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor

from rgat.ops.backend import Call
from rgat.ops.cache import cached
from rgat.ops.triton.dropout_kernels import MASK_INTEGERS, Dropout, drop_edges, drop_features
from rgat.ops.triton.launch import LARGE, launch, num_blocks, sum_dtype
from rgat.ops.triton.segment_kernels import Segments, head_columns, segment_sum, tile_heads
from rgat.ops.triton.softmax_kernels import constant_attention, softmax
from rgat.structure import Structure

_MAX_FUSED_EDGES = 2 * LARGE  # up to so many edges one launch sums values and keys by source row


def _by_group(s: Structure) -> Segments:
    """Return the edges of each (target, relation)."""
    return Segments(s.group_ptr, s.group)


def _by_target(s: Structure) -> Segments:
    """Return the edges of each target."""
    return Segments(s.target_ptr, s.target)


def _row_ids(call: Call) -> Tensor:
    """Return ``relation * N + node`` of the source rows, which the masks of feature dropout depend on."""
    s = call.structure
    if not call.attention.feature_dropout:
        return s.source_ptr  # kernels take some tensor, and do not read it
    row_ids: Tensor | None = s.row_id
    if row_ids is None:
        row_ids = cached(s.sources.node, ("keys", s.num_nodes), s.source_ids)
    return s.source_ids() if row_ids is None else row_ids


@triton.jit(do_not_specialize=["size"])
def _logits_kernel(
    out, queries, keys, edge_logits, group, group_row, source_row, size, SLOPE: tl.constexpr, H: tl.constexpr,
    A: tl.constexpr, BE: tl.constexpr, HP: tl.constexpr, AP: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Write the logits, after LeakyReLU where ``SLOPE`` is given; ``AP`` attention channels at a time."""
    edge = tl.program_id(0).to(tl.int64) * BE + tl.arange(0, BE)
    live = edge < size
    head = tl.program_id(1) * HP + tl.arange(0, HP)
    exists = live[:, None] & (head < H)[None, :]
    at = (edge * H)[:, None] + head[None, :]
    query_row = tl.load(group_row + tl.load(group + edge, live, 0), live, 0).to(tl.int64)
    key_row = tl.load(source_row + edge, live, 0).to(tl.int64)
    if A == 1:
        query = tl.load(queries + (query_row * H)[:, None] + head[None, :], exists, 0.0).to(ACC)
        key = tl.load(keys + (key_row * H)[:, None] + head[None, :], exists, 0.0).to(ACC)
        result = query * key if SLOPE is None else query + key
    else:
        result = tl.zeros([BE, HP], ACC)
        for first in tl.static_range(0, A, AP):
            a = first + tl.arange(0, AP)
            column = head[None, :, None] * A + a[None, None, :]
            inside = exists[:, :, None] & (a < A)[None, None, :]
            query = tl.load(queries + (query_row * (H * A))[:, None, None] + column, inside, 0.0).to(ACC)
            key = tl.load(keys + (key_row * (H * A))[:, None, None] + column, inside, 0.0).to(ACC)
            result += tl.sum(query * key, 2)
    if edge_logits is not None:
        result += tl.load(edge_logits + at, exists, 0.0).to(ACC)
    if SLOPE is not None:
        result = tl.where(result > 0, result, result * SLOPE)
    tl.store(out + at, result, exists)


@triton.jit(do_not_specialize=["size", *MASK_INTEGERS])
def _attention_grad_kernel(
    out, grad, values, attention, grad_attention, target, source_row, row_id, edge_id, feature_state, edge_state, size,
    feature_threshold, feature_scale, edge_threshold, edge_scale,
    H: tl.constexpr, D: tl.constexpr, MEMBERS: tl.constexpr, BE: tl.constexpr, HP: tl.constexpr, DP: tl.constexpr,
    ACC: tl.constexpr,
):  # fmt: skip
    """Write the gradient of the attention."""
    edge = tl.program_id(0).to(tl.int64) * BE + tl.arange(0, BE)
    live = edge < size
    row = tl.load(source_row + edge, live, 0)
    i = tl.load(target + edge, live, 0)
    result = tl.zeros([HP, BE], ACC)
    for first in tl.static_range(0, D, DP):
        head, column, inside = head_columns(tl.program_id(1), first, HP, DP, H, D)
        inside = inside & live[None, :, None]
        value = tl.load(values + (row.to(tl.int64) * (H * D))[None, :, None] + column, inside, 0.0).to(ACC)
        received = tl.load(grad + (i.to(tl.int64) * (H * D))[None, :, None] + column, inside, 0.0).to(ACC)
        value = drop_features(value, feature_state, row_id, row, live, head, column, feature_threshold, feature_scale,
                              H, D, MEMBERS, ACC)  # fmt: skip
        result += tl.sum(received * value, 2)
    result = drop_edges(result, edge_state, edge_id, edge, live, head, edge_threshold, edge_scale, H, MEMBERS, ACC)
    at = (edge * H)[None, :] + head[:, None]
    exists = live[None, :] & (head < H)[:, None]
    if grad_attention is not None:
        upstream = tl.load(grad_attention + at, exists, 0.0)
        result += tl.where(tl.load(attention + at, exists, 0.0) < 0, -upstream, upstream)
    tl.store(out + at, result, exists)


def _attention(
    queries: Tensor | None, keys: Tensor | None, edge_logits: Tensor | None, call: Call, dtype: torch.dtype
) -> Tensor:
    """Return the attention of the sorted edges ``[E, H]``."""
    s, (across, slope, *_) = call.structure, call.attention
    if queries is None or keys is None:
        return constant_attention(_by_group(s), _by_target(s), across, dtype)
    num_edges, num_heads = s.target.shape[0], len(across)
    attention = s.target.new_empty(num_edges, num_heads, dtype=dtype)
    heads, padded, rows = tile_heads(num_heads, queries.shape[2])
    rows = min(rows, 128)
    launch(
        _logits_kernel, (num_blocks(num_edges, rows), num_blocks(num_heads, heads), 1),
        (attention, queries, keys, edge_logits, s.group, s.targets.by_node, s.source_row), (num_edges,),
        SLOPE=slope, H=num_heads, A=queries.shape[2], BE=rows, HP=heads, AP=padded, ACC=sum_dtype(dtype)[1],
    )  # fmt: skip
    softmax(attention, None, _by_group(s), _by_target(s), across, slope)
    return attention


def attend(
    values: Tensor,
    queries: Tensor | None,
    keys: Tensor | None,
    edge_logits: Tensor | None,
    call: Call,
    bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the output ``[N, H, D]`` and, before dropout, the attention of the sorted edges ``[E, H]``.

    With the additive score the attention has the sign of the logit, which backward needs for LeakyReLU's derivative
    and no cast loses. Take the absolute value before returning it to a user.
    """
    s, settings = call.structure, call.attention
    num_edges, num_nodes, (_, num_heads, channels) = s.target.shape[0], s.target_ptr.shape[0] - 1, values.shape
    dtype, _ = sum_dtype(values.dtype)
    out = values.new_empty(num_nodes, num_heads, channels)
    if out.numel() == 0 or num_edges == 0:
        out = out.zero_() if bias is None else out.copy_(bias.view(num_heads, channels))
        return out, values.new_zeros(num_edges, num_heads, dtype=dtype)
    attention = _attention(queries, keys, edge_logits, call, dtype)
    segment_sum(
        out, values, _by_target(s), index=s.source_row, weight=attention, absolute=True, bias=bias,
        row_id=_row_ids(call), edge_id=s.edge_id, on_values=Dropout.of(call.state, settings.feature_dropout),
        on_edges=Dropout.of(call.state, settings.edge_dropout),
    )  # fmt: skip
    return out, attention


def _by_source(like: Tensor, make: Callable[[], Tensor], s: Structure) -> tuple[Tensor, bool]:
    """Return the per-edge tensor ``make()`` in the order of ``by_source``, and True; not cached yet: as it is, False.

    The order of ``by_source`` saves backward a gather per edge. ``like`` is the tensor whose memory keeps the cache.
    """
    ordered = cached(like, ("by source",), lambda: make().index_select(0, s.by_source))
    return (make(), False) if ordered is None else (ordered, True)


def attend_backward(
    grad: Tensor,
    grad_attention: Tensor | None,
    attention: Tensor,
    values: Tensor,
    queries: Tensor | None,
    keys: Tensor | None,
    edge_logits: Tensor | None,
    call: Call,
) -> tuple[Tensor | None, ...]:
    """Return the gradients of values, queries, keys and edge logits; None where there is no such input."""
    s, (across, negative_slope, feature_dropout, edge_dropout, _) = call.structure, call.attention
    on_features, on_edges = Dropout.of(call.state, feature_dropout), Dropout.of(call.state, edge_dropout)
    row_id = _row_ids(call)
    by_source = Segments(s.source_ptr, s.source_row, s.by_source)
    dvalues = torch.empty_like(values)
    if s.target.shape[0] == 0 or dvalues.numel() == 0 or grad.numel() == 0:
        zeros = [None if queries is None or t is None else torch.zeros_like(t) for t in (queries, keys, edge_logits)]
        return dvalues.zero_(), zeros[0], zeros[1], zeros[2]
    target, sorted_target = _by_source(s.target, lambda: s.target, s)

    def sum_by_source(edge_values: Tensor | None, edge_out: Tensor | None) -> None:
        segment_sum(
            dvalues, grad, by_source, index=target, by_position=sorted_target, weight=attention, absolute=True,
            edge_values=edge_values, edge_out=edge_out, row_id=row_id, edge_id=s.edge_id, on_rows=on_features,
            on_edges=on_edges,
        )  # fmt: skip

    if queries is None or keys is None:
        sum_by_source(None, None)
        return dvalues, None, None, None

    (num_edges, num_heads), channels = attention.shape, values.shape[2]
    heads, padded, rows = tile_heads(num_heads, channels)
    rows = min(rows, 64)
    dlogits = torch.empty_like(attention)
    launch(
        _attention_grad_kernel, (num_blocks(num_edges, rows), num_blocks(num_heads, heads), 1),
        (dlogits, grad, values, None if grad_attention is None else attention, grad_attention, s.target,
         s.source_row, row_id, s.edge_id, on_features.state, on_edges.state),
        (num_edges, *on_features[1:3], *on_edges[1:3]), H=num_heads, D=channels,
        MEMBERS=max(on_features.members, on_edges.members), BE=rows, HP=heads, DP=padded,
        ACC=sum_dtype(dlogits.dtype)[1],
    )  # fmt: skip
    softmax(dlogits, attention, _by_group(s), _by_target(s), across, negative_slope)

    dqueries, dkeys = torch.empty_like(queries), torch.empty_like(keys)
    fused = negative_slope is not None and num_edges <= _MAX_FUSED_EDGES  # fewer launches, but fewer programs
    sum_by_source(*((dlogits, dkeys) if fused else (None, None)))
    if negative_slope is None:
        row, sorted_row = _by_source(s.group, lambda: s.targets.by_node.index_select(0, s.group), s)
        segment_sum(dqueries, keys, _by_group(s), index=s.source_row, weight=dlogits, out_row=s.targets.by_node)
        segment_sum(dkeys, queries, by_source, index=row, by_position=sorted_row, weight=dlogits)
    else:
        segment_sum(dqueries, dlogits.unsqueeze(-1), _by_group(s), index=None, out_row=s.targets.by_node)
        if not fused:
            segment_sum(dkeys, dlogits.unsqueeze(-1), by_source, index=None)
    return dvalues, dqueries, dkeys, None if edge_logits is None else dlogits.to(edge_logits.dtype)
