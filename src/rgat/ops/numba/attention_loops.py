"""Attend in compiled loops on the CPU (Numba): logits, softmax and weighted sums.

Threads take ranges of target nodes. No two threads write to the same memory, so there are no atomics, and results do
not depend on the number of threads. Per target node ``i``::

    logit[e, h]  = score(query[i's group], key[source row of e])          for the edges e of i
    a[e, h]      = softmax of the logits over the group, or over all edges of i
    out[i, h]   += a[e, h] * value[source row of e, h]                    relations that are projected first
    sum[v, h]   += a[e, h] * x[source node of e]                          relations that are aggregated first
                                                                          (then out[i, h] += sum[v, h] W[r, h])
"""

from __future__ import annotations

import math

import numba
import numpy as np

from rgat.ops.numba.compile import FAST, compiled, inline
from rgat.ops.numba.lane_loops import dot_lanes, fits_lanes, row_address
from rgat.ops.numba.row_loops import (
    AHEAD,
    LONG,
    add_double,
    add_row,
    drop_edges,
    is_aggregated,
    move_to_double,
    prefetch_row,
)


def _exponentials(numbers):
    """Replace numbers that are not positive by their exponentials."""


@numba.extending.overload(_exponentials, jit_options={"fastmath": FAST, "error_model": "numpy"})
def _(numbers):
    if numbers.dtype != numba.types.float32:

        def plain(numbers):
            for n in range(numbers.shape[0]):
                numbers[n] = math.exp(numbers[n])

        return plain

    log2e, high, low = np.float32(1.44269504), np.float32(0.693359375), np.float32(-2.12194440e-4)
    c2, c3, c4, c5, c6, c7 = (np.float32(1 / math.factorial(n)) for n in range(2, 8))
    zero, half, one, least = np.float32(0), np.float32(0.5), np.float32(1), np.float32(-87)

    def vectorised(numbers):
        # exp(x) = 2^n exp(x - n log 2): a Taylor polynomial on +-log(2)/2, and n written into the exponent's bits.
        powers = np.empty(numbers.shape[0], np.int32)
        for n in range(numbers.shape[0]):
            x = numbers[n]
            bounded = x if x > least else least  # also for NaN, which has no whole part
            whole = np.int32(bounded * log2e - half)
            scale = np.float32(whole)
            r = bounded - scale * high - scale * low
            y = one + r + r * r * (c2 + r * (c3 + r * (c4 + r * (c5 + r * (c6 + r * c7)))))
            numbers[n] = y if x > least else zero if x <= least else x
            powers[n] = (whole + np.int32(127)) << np.int32(23)
        scales = powers.view(np.float32)
        for n in range(numbers.shape[0]):
            numbers[n] *= scales[n]

    return vectorised


@compiled
def exponentials_of(numbers):
    """Replace numbers that are not positive by their exponentials."""
    _exponentials(numbers)


@compiled
def largest(bits, without_sign):
    """Return the bits of the largest absolute value, or of NaN, of floating-point numbers given as their bits."""
    # Of numbers without a sign the order is that of their bits, NaN the largest; whole numbers are compared in vectors.
    top = without_sign & np.uint8(0)
    for n in range(bits.shape[0]):
        top = max(top, bits[n] & without_sign)
    return top


@compiled
def list_groups(start, end, group_ptr, node_ptr, singles, group, owner):
    """List the groups of the targets ``start:end``, without ``singles`` only those of several edges; return how many.

    The only edge of a softmax group has attention one, whatever its finite score. On knowledge graphs most groups are
    such, and a test at each of them in each loop costs more than the work on the others.
    """
    number = np.uint64(0)
    for i in range(start, end):
        for v in range(node_ptr[i], node_ptr[i + 1]):
            group[number], owner[number] = v, i
            number += np.uint64(
                singles or group_ptr[v + 1] - group_ptr[v] > 1
            )  # no branch, which would often be mispredicted
    return number


@compiled
def constant_attention(lo, hi, ptr, heads, attention):
    """Fill ``attention`` with one over the size of each segment, for some heads."""
    for s in range(lo, hi):
        weight = attention.dtype.type(1) / attention.dtype.type(ptr[s + 1] - ptr[s])
        for e in range(ptr[s], ptr[s + 1]):
            for h in heads:
                attention[e, h] = weight


@inline
def four_heads(heads, n):
    """Tell whether the heads from ``n`` on include four neighbours, which are processed together."""
    return n + 4 <= heads.shape[0] and heads[n + 3] - heads[n] == 3


@compiled
def subtract_maximum(segments, ptr, heads, logits):
    """Subtract the maximum of each segment ``ptr[s]:ptr[s + 1]`` of edges from its logits, for some heads."""
    for s in segments:
        start, end, n = np.uint64(ptr[s]), np.uint64(ptr[s + 1]), 0
        while n < heads.shape[0]:
            h = np.uint64(heads[n])
            if four_heads(heads, n):
                i, j, k = h + np.uint64(1), h + np.uint64(2), h + np.uint64(3)
                first = second = third = fourth = logits.dtype.type(-np.inf)
                for e in range(start, end):
                    first, second = max(first, logits[e, h]), max(second, logits[e, i])
                    third, fourth = max(third, logits[e, j]), max(fourth, logits[e, k])
                for e in range(start, end):
                    logits[e, h], logits[e, i] = logits[e, h] - first, logits[e, i] - second
                    logits[e, j], logits[e, k] = logits[e, j] - third, logits[e, k] - fourth
                n += 4
                continue
            maximum = logits.dtype.type(-np.inf)
            for e in range(start, end):
                maximum = max(maximum, logits[e, h])
            for e in range(start, end):
                logits[e, h] -= maximum
            n += 1


@compiled
def divide_by_sum(segments, ptr, heads, weights):
    """Divide the weights of each segment by their sum, for some heads."""
    for s in segments:
        start, end, n = np.uint64(ptr[s]), np.uint64(ptr[s + 1]), 0
        if end - start <= np.uint64(1):
            continue  # the exponential of zero, or NaN
        while n < heads.shape[0]:
            h = np.uint64(heads[n])
            if four_heads(heads, n):
                i, j, k = h + np.uint64(1), h + np.uint64(2), h + np.uint64(3)
                first = second = third = fourth = 0.0
                for e in range(start, end):
                    first, second = first + weights[e, h], second + weights[e, i]
                    third, fourth = third + weights[e, j], fourth + weights[e, k]
                a, b = weights.dtype.type(1 / first), weights.dtype.type(1 / second)
                c, d = weights.dtype.type(1 / third), weights.dtype.type(1 / fourth)
                for e in range(start, end):
                    weights[e, h], weights[e, i] = weights[e, h] * a, weights[e, i] * b
                    weights[e, j], weights[e, k] = weights[e, j] * c, weights[e, k] * d
                n += 4
                continue
            total = 0.0
            for e in range(start, end):
                total += weights[e, h]
            factor = weights.dtype.type(1 / total)
            for e in range(start, end):
                weights[e, h] *= factor
            n += 1


TARGETS_PER_BLOCK = 128  # whose attention and sums are computed together, while they are in the cache


@compiled
def _scores(groups, group_ptr, query_row, source_row, queries, keys, edge_logits, additive, out):
    """Fill ``out`` with the logits of the edges of some groups, before LeakyReLU."""
    num_heads, channels = out.shape[1], queries.shape[2]
    zero = out.dtype.type(0)
    base, row_bytes = np.uint64(keys.ctypes.data), np.uint64(num_heads * channels * keys.itemsize)
    final = group_ptr[groups[-1] + 1] - 1 if len(groups) else 0
    for v in groups:
        row = query_row[v]
        for e in range(group_ptr[v], group_ptr[v + 1]):
            u = source_row[e]
            prefetch_row(base, row_bytes, source_row[min(e + AHEAD, final)])
            if additive:
                for h in range(num_heads):
                    out[e, h] = queries[row, h, 0] + keys[u, h, 0]
            elif channels == 1:
                for h in range(num_heads):
                    out[e, h] = queries[row, h, 0] * keys[u, h, 0]
            elif fits_lanes(channels):
                query, key = row_address(queries, row), row_address(keys, u)
                dot_lanes(num_heads, channels, query, key, row_address(out, e), zero)
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
def _sum_rows(lo, hi, target_ptr, source_row, weights, values, bias, out):
    """Fill ``out[i, h]`` with the bias and ``sum over edges e of i: weights[e, h] * values[source row of e, h]``."""
    channels = np.uint64(out.shape[1] // weights.shape[1])
    total = np.zeros(out.shape[1])
    base, row_bytes = np.uint64(values.ctypes.data), np.uint64(values.shape[1] * values.itemsize)
    final, ahead = np.uint64(max(target_ptr[hi], 1) - 1), np.uint64(AHEAD)
    for i in range(np.uint64(lo), np.uint64(hi)):
        for c in range(np.uint64(out.shape[1])):
            out[i, c] = bias[c]
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
    lo, hi, group_ptr, node_ptr, group_row, group_relation, source_row, aggregated, weights, values, bias, out
):
    """Do the same for the relations that are not aggregated first."""
    # Divide here: a division takes longer than an edge, and no compiler moves it out of a loop that may not run.
    channels = out.shape[1] // weights.shape[1]
    total = np.zeros(out.shape[1])
    base, row_bytes = np.uint64(values.ctypes.data), np.uint64(values.shape[1] * values.itemsize)
    final = group_ptr[node_ptr[hi]] - 1
    for i in range(lo, hi):
        for c in range(out.shape[1]):
            out[i, c] = bias[c]
        for v in range(node_ptr[i], node_ptr[i + 1]):
            if is_aggregated(aggregated, group_relation[group_row[v]]):
                continue
            for start in range(group_ptr[v], group_ptr[v + 1], LONG):
                for e in range(start, min(start + LONG, group_ptr[v + 1])):
                    prefetch_row(base, row_bytes, source_row[min(e + AHEAD, final)])
                    add_row(out, i, weights, e, values, source_row[e], channels)
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
    query_row, queries, keys, edge_logits, additive, slope, singles, within, across,
    stream, below, scale, edge_id, aggregated, values, bias, x,
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
            _scores(groups, group_ptr, query_row, source_row, queries, keys, edge_logits, additive, attention)
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
            drop_edges(first, last, stream, below, scale, edge_id, attention, weights)
        if aggregated.shape[0] == 0:
            _sum_rows(start, end, target_ptr, value_row, weights, values, bias, out)
        else:
            _sum_values(
                start, end, group_ptr, node_ptr, group_row, group_relation, value_row, aggregated, weights, values,
                bias, out,
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
