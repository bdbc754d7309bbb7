"""Compute the gradients of logits and queries in compiled loops on the CPU (Numba).

Threads take ranges of target nodes, as in the forward pass. Per edge ``e`` of target ``i``, with source row ``u``::

    da           = dout[i, h] . value[u, h]   or   (dout[i, h] W[r, h]') . x[source node]
    dlogit[e, h] = a * (da - sum of a * da over the softmax group)        dquery[i's group] += dlogit

``source_grad_loops`` then computes the gradients of values and keys.
"""

from __future__ import annotations

import numpy as np

from rgat.ops.numba.attention_forward_loops import TARGETS_PER_BLOCK
from rgat.ops.numba.compile import compiled
from rgat.ops.numba.dropout_loops import is_kept
from rgat.ops.numba.row_loops import AHEAD, LONG, add_double, is_aggregated, move_to_double, prefetch_row
from rgat.ops.numba.softmax_loops import list_groups, subtract_share_of_sum


@compiled
def _dot_values(
    groups, owner, group_ptr, group_row, group_relation, source_row, aggregated, values, share, width, grad, dots
):
    """Fill ``dots[e, h]`` with ``grad[target, h] . values[source row, h]`` for the edges of some groups.

    ``owner`` is the target of each group. Skip relations that are aggregated first.
    """
    num_heads = dots.shape[1]
    channels, batch = grad.shape[1] // num_heads, num_heads // share
    zero = grad.dtype.type(0)
    base, row_bytes = np.uint64(values.ctypes.data), np.uint64(values.shape[1] * values.itemsize)
    final = group_ptr[groups[-1] + 1] - 1 if len(groups) else 0
    for n in range(groups.shape[0]):
        v, i = groups[n], owner[n]
        if is_aggregated(aggregated, group_relation[group_row[v]]):
            continue
        for e in range(group_ptr[v], group_ptr[v + 1]):
            u = source_row[e]
            prefetch_row(base, row_bytes, source_row[min(e + AHEAD, final)])
            if batch == 1:
                for h in range(np.uint64(num_heads)):
                    dot = zero
                    for c in range(h * np.uint64(channels), (h + np.uint64(1)) * np.uint64(channels)):
                        dot += grad[np.uint64(i), c] * values[np.uint64(u), c]
                    dots[e, h] = dot
                continue
            for p in range(batch):
                for q in range(share):
                    dot, at = zero, np.uint64(p * width + q * channels)
                    to = np.uint64((p * share + q) * channels)
                    for d in range(channels):
                        dot += grad[i, to + np.uint64(d)] * values[u, at + np.uint64(d)]
                    dots[e, p * share + q] = dot


@compiled
def _dot_inputs(groups, group_ptr, group_row, group_relation, source_row, source_node, aggregated, x, grad_sums, dots):
    """Fill ``dots[e, h]`` with ``grad_sums[target row, h] . x[source node]`` for relations aggregated first."""
    num_heads, inputs = grad_sums.shape[1], grad_sums.shape[2]
    zero = x.dtype.type(0)
    for v in groups:
        row = group_row[v]
        if not is_aggregated(aggregated, group_relation[row]):
            continue
        for e in range(group_ptr[v], group_ptr[v + 1]):
            j = source_node[source_row[e]]
            for h in range(num_heads):
                dot = zero
                for f in range(inputs):
                    dot += grad_sums[row, h, f] * x[j, f]
                dots[e, h] = dot


@compiled
def _additive_query_grads(groups, group_ptr, group_row, slope, signed, dlogits, dqueries):
    """Multiply ``dlogits`` by LeakyReLU's derivative, and add the sum over each group to ``dqueries``."""
    one = dlogits.dtype.type(1)
    num_heads = dlogits.shape[1]
    total = np.zeros(num_heads)
    for v in groups:
        row = group_row[v]
        for first in range(group_ptr[v], group_ptr[v + 1], LONG):
            for e in range(first, min(first + LONG, group_ptr[v + 1])):
                for h in range(num_heads):
                    gradient = dlogits[e, h] * (one if signed[e, h] > 0 else slope)
                    dlogits[e, h] = gradient
                    dqueries[row, h, 0] += gradient
            if group_ptr[v + 1] - group_ptr[v] > LONG:
                move_to_double(total, dqueries, row)
        if group_ptr[v + 1] - group_ptr[v] > LONG:
            add_double(total, dqueries, row)


@compiled
def _query_grads(groups, group_ptr, group_row, source_row, keys, dlogits, dqueries):
    """Add the sum of ``dlogits * key`` over each group to ``dqueries`` (multiplicative score)."""
    num_heads, channels = dlogits.shape[1], keys.shape[2]
    total = np.zeros(num_heads * channels)
    for v in groups:
        row = group_row[v]
        for first in range(group_ptr[v], group_ptr[v + 1], LONG):
            for e in range(first, min(first + LONG, group_ptr[v + 1])):
                u = source_row[e]
                if channels == 1:
                    for h in range(num_heads):
                        dqueries[row, h, 0] += dlogits[e, h] * keys[u, h, 0]
                else:
                    for h in range(num_heads):
                        gradient = dlogits[e, h]
                        for a in range(channels):
                            dqueries[row, h, a] += gradient * keys[u, h, a]
            if group_ptr[v + 1] - group_ptr[v] > LONG:
                move_to_double(total, dqueries, row)
        if group_ptr[v + 1] - group_ptr[v] > LONG:
            add_double(total, dqueries, row)


@compiled
def _times_attention(start, end, stream, below, scale, attention, grad_attention, dlogits):
    """Turn dot products into ``a * da`` for the edges ``start:end``."""
    if below.shape[0] == 0 and grad_attention.shape[0] == 0:
        flat, weights = dlogits[start:end].reshape(-1), attention[start:end].reshape(-1)
        for n in range(flat.shape[0]):
            flat[n] *= weights[n]
        return
    members = max(stream.shape[0], 1)
    zero, per_member = dlogits.dtype.type(0), dlogits.shape[1] // members
    for e in range(start, end):
        for m in range(members):
            for q in range(per_member):
                h = m * per_member + q
                dot = dlogits[e, h]
                if below.shape[0]:
                    dot *= scale[m] if is_kept(stream[m], e, q, below[m]) else zero
                if grad_attention.shape[0]:
                    dot += grad_attention[e, h]
                dlogits[e, h] = attention[e, h] * dot


@compiled
def backward_by_target(
    lo, hi, target_ptr, group_ptr, node_ptr, group_row, group_relation, source_row, source_node, value_row,
    queries, keys, additive, slope, within, across,
    stream, below, scale, aggregated, values, share, width, x,
    attention, signed, grad, grad_sums, grad_attention, dlogits, dqueries,
):  # fmt: skip
    """Fill the gradients of the logits of the targets ``lo:hi``, and add those of their queries to zeros."""
    # The only edge of its group has no gradient, unless the softmax is across relations or attention has one itself.
    singles = across.shape[0] > 0 or grad_attention.shape[0] > 0
    group, owner = np.empty(0, np.int64), np.empty(0, np.int64)
    for start in range(lo, hi, TARGETS_PER_BLOCK):
        end = min(start + TARGETS_PER_BLOCK, hi)
        most = node_ptr[end] - node_ptr[start]
        if group.shape[0] < most:
            group, owner = np.empty(2 * most, np.int64), np.empty(2 * most, np.int64)
        groups = group[: list_groups(start, end, group_ptr, node_ptr, singles, group, owner)]
        targets = np.arange(start, end)
        flat = dlogits[target_ptr[start] : target_ptr[end]].reshape(-1)
        for n in range(flat.shape[0]):
            flat[n] = 0
        _dot_values(
            groups, owner, group_ptr, group_row, group_relation, value_row, aggregated,
            values, share, width, grad, dlogits,
        )  # fmt: skip
        if aggregated.shape[0]:
            _dot_inputs(
                groups, group_ptr, group_row, group_relation, source_row, source_node, aggregated,
                x, grad_sums, dlogits,
            )  # fmt: skip
        first, last = target_ptr[start], target_ptr[end]
        _times_attention(first, last, stream, below, scale, attention, grad_attention, dlogits)
        subtract_share_of_sum(groups, group_ptr, within, attention, dlogits)
        subtract_share_of_sum(targets, target_ptr, across, attention, dlogits)
        if additive:
            _additive_query_grads(groups, group_ptr, group_row, slope, signed, dlogits, dqueries)
        else:
            _query_grads(groups, group_ptr, group_row, source_row, keys, dlogits, dqueries)
