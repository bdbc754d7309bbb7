"""Attend in compiled loops on the CPU (Numba), forward.

Threads take ranges of target nodes. No two threads write to the same memory, so there are no atomics, and results do
not depend on the number of threads. Per target node ``i``::

    logit[e, h]  = score(query[i's group], key[source row of e])          for the edges e of i
    a[e, h]      = softmax of the logits over the group, or over all edges of i
    out[i, h]   += a[e, h] * value[source row of e, h]                    relations that are projected first
    sum[v, h]   += a[e, h] * x[source node of e]                          relations that are aggregated first
                                                                          (then out[i, h] += sum[v, h] W[r, h])
"""

from __future__ import annotations

import numpy as np

from rgat.ops.numba.compile import compiled
from rgat.ops.numba.dropout_loops import drop_edges
from rgat.ops.numba.row_loops import AHEAD, LONG, add_double, add_row, is_aggregated, move_to_double, prefetch_row
from rgat.ops.numba.softmax_loops import (
    constant_attention,
    divide_by_sum,
    exponentials_of,
    list_groups,
    subtract_maximum,
)

TARGETS_PER_BLOCK = 128  # whose attention and sums are computed together, while they are in the cache


@compiled
def _scores(groups, group_ptr, group_row, source_row, queries, keys, edge_logits, additive, out):
    """Fill ``out`` with the logits of the edges of some groups, before LeakyReLU."""
    num_heads, channels = out.shape[1], queries.shape[2]
    zero = out.dtype.type(0)
    for v in groups:
        row = group_row[v]
        for e in range(group_ptr[v], group_ptr[v + 1]):
            u = source_row[e]
            if additive:
                for h in range(num_heads):
                    out[e, h] = queries[row, h, 0] + keys[u, h, 0]
            elif channels == 1:
                for h in range(num_heads):
                    out[e, h] = queries[row, h, 0] * keys[u, h, 0]
            else:
                for h in range(num_heads):
                    score = zero
                    for a in range(channels):
                        score += queries[row, h, a] * keys[u, h, a]
                    out[e, h] = score
            if edge_logits.shape[0]:
                for h in range(num_heads):
                    out[e, h] += edge_logits[e, h]


@compiled
def _sum_rows(lo, hi, target_ptr, source_row, weights, values, out):
    """Fill ``out[i, h]`` with ``sum over edges e of i: weights[e, h] * values[source row of e, h]``."""
    channels = np.uint64(out.shape[1] // weights.shape[1])
    total = np.zeros(out.shape[1])
    base, row_bytes = np.uint64(values.ctypes.data), np.uint64(values.shape[1] * values.itemsize)
    final, ahead = np.uint64(max(target_ptr[hi], 1) - 1), np.uint64(AHEAD)
    for i in range(np.uint64(lo), np.uint64(hi)):
        for c in range(np.uint64(out.shape[1])):
            out[i, c] = 0
        begin, end = np.uint64(target_ptr[i]), np.uint64(target_ptr[i + np.uint64(1)])
        for start in range(begin, end, np.uint64(LONG)):
            for e in range(start, min(start + np.uint64(LONG), end)):
                prefetch_row(base, row_bytes, source_row[min(e + ahead, final)])
                add_row(out, i, weights, e, values, source_row[e], channels)
            if end - begin > LONG:
                move_to_double(total, out, i)
        if end - begin > LONG:
            add_double(total, out, i)


@compiled
def _sum_values(
    lo, hi, group_ptr, node_ptr, group_row, group_relation, source_row, aggregated, weights, values, share, width, out
):
    """Do the same where some relations are aggregated first, or heads are shared out among a batch.

    Values of ``share`` heads are ``width`` columns apart.
    """
    num_heads = weights.shape[1]
    # Divide here: a division takes longer than an edge, and no compiler moves it out of a loop that may not run.
    channels, batch = out.shape[1] // num_heads, num_heads // share
    total = np.zeros(out.shape[1])
    base, row_bytes = np.uint64(values.ctypes.data), np.uint64(values.shape[1] * values.itemsize)
    final = group_ptr[node_ptr[hi]] - 1
    for i in range(lo, hi):
        for c in range(out.shape[1]):
            out[i, c] = 0
        for v in range(node_ptr[i], node_ptr[i + 1]):
            if is_aggregated(aggregated, group_relation[group_row[v]]):
                continue
            for start in range(group_ptr[v], group_ptr[v + 1], LONG):
                for e in range(start, min(start + LONG, group_ptr[v + 1])):
                    u = source_row[e]
                    prefetch_row(base, row_bytes, source_row[min(e + AHEAD, final)])
                    for p in range(batch):
                        for q in range(share):
                            weight, at = weights[e, p * share + q], np.uint64(p * width + q * channels)
                            to = np.uint64((p * share + q) * channels)
                            for d in range(channels):
                                out[i, to + np.uint64(d)] += weight * values[u, at + np.uint64(d)]
                if group_ptr[v + 1] - group_ptr[v] > LONG:
                    move_to_double(total, out, i)
            if group_ptr[v + 1] - group_ptr[v] > LONG:
                add_double(total, out, i)


@compiled
def _sum_inputs(
    lo, hi, group_ptr, node_ptr, group_row, group_relation, source_row, source_node, aggregated, weights, x, sums
):
    """Fill ``sums[target row, h]`` with ``sum over edges e: weights[e, h] * x[source node of e]``."""
    num_heads, inputs = sums.shape[1], sums.shape[2]
    total = np.zeros(num_heads * inputs)
    for v in range(node_ptr[lo], node_ptr[hi]):
        row = group_row[v]
        if not is_aggregated(aggregated, group_relation[row]):
            continue
        for h in range(num_heads):
            for f in range(inputs):
                sums[row, h, f] = 0
        for start in range(group_ptr[v], group_ptr[v + 1], LONG):
            for e in range(start, min(start + LONG, group_ptr[v + 1])):
                j = source_node[source_row[e]]
                for h in range(num_heads):
                    weight = weights[e, h]
                    for f in range(inputs):
                        sums[row, h, f] += weight * x[j, f]
            if group_ptr[v + 1] - group_ptr[v] > LONG:
                move_to_double(total, sums, row)
        if group_ptr[v + 1] - group_ptr[v] > LONG:
            add_double(total, sums, row)


@compiled
def forward(
    lo, hi, target_ptr, group_ptr, node_ptr, group_row, group_relation, source_row, source_node, value_row,
    queries, keys, edge_logits, additive, slope, singles, within, across,
    stream, below, scale, aggregated, values, share, width, x,
    attention, weights, out, sums,
):  # fmt: skip
    """Fill the attention of the edges of the targets ``lo:hi``, their outputs, and sums of inputs per target row.

    Without ``singles`` groups of one edge are not scored; none of their scores may be NaN. With the additive score the
    attention has the sign of the logit, which backward needs and no cast loses.
    """
    is_positive = np.empty(0, np.bool_)
    group, owner = np.empty(0, np.int64), np.empty(0, np.int64)
    for start in range(lo, hi, TARGETS_PER_BLOCK):
        end = min(start + TARGETS_PER_BLOCK, hi)
        if queries.shape[0]:
            most = node_ptr[end] - node_ptr[start]
            if group.shape[0] < most:
                group, owner = np.empty(2 * most, np.int64), np.empty(2 * most, np.int64)
            groups = group[: list_groups(start, end, group_ptr, node_ptr, singles, group, owner)]
            targets = np.arange(start, end)
            flat = attention[target_ptr[start] : target_ptr[end]].reshape(-1)
            for n in range(flat.shape[0]):
                flat[n] = 0
            _scores(groups, group_ptr, group_row, source_row, queries, keys, edge_logits, additive, attention)
            if additive:
                if is_positive.shape[0] < flat.shape[0]:
                    is_positive = np.empty(2 * flat.shape[0], np.bool_)
                for n in range(flat.shape[0]):
                    is_positive[n] = flat[n] > 0
                    flat[n] = flat[n] if flat[n] > 0 else flat[n] * slope
            subtract_maximum(groups, group_ptr, within, attention)
            subtract_maximum(targets, target_ptr, across, attention)
            exponentials_of(flat)
            divide_by_sum(groups, group_ptr, within, attention)
            divide_by_sum(targets, target_ptr, across, attention)
        else:
            constant_attention(np.int64(node_ptr[start]), np.int64(node_ptr[end]), group_ptr, within, attention)
            constant_attention(np.int64(start), np.int64(end), target_ptr, across, attention)
        if below.shape[0]:
            first, last = group_ptr[node_ptr[start]], group_ptr[node_ptr[end]]
            drop_edges(first, last, stream, below, scale, attention, weights)
        if aggregated.shape[0] == 0 and share == weights.shape[1]:
            _sum_rows(start, end, target_ptr, value_row, weights, values, out)
        else:
            _sum_values(
                start, end, group_ptr, node_ptr, group_row, group_relation, value_row, aggregated, weights, values,
                share, width, out,
            )  # fmt: skip
        if aggregated.shape[0]:
            _sum_inputs(
                start, end, group_ptr, node_ptr, group_row, group_relation, source_row, source_node,
                aggregated, weights, x, sums,
            )  # fmt: skip
        if additive and queries.shape[0]:
            flat = attention[target_ptr[start] : target_ptr[end]].reshape(-1)
            for n in range(flat.shape[0]):
                flat[n] = flat[n] if is_positive[n] else -flat[n]
