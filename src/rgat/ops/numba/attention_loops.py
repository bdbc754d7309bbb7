"""The operations of a relational layer as compiled loops on the CPU (Numba), around BLAS for the projections.

Everything runs over contiguous ranges: of target nodes where a softmax or an output is made, of source rows where the
gradients of values and keys are collected. No two threads write to one place, so there are no atomics, and results do
not depend on the number of threads. Per target node ``i``, forward::

    logit[e, h]  = score(query[i's group], key[source row of e])          for the edges e of i
    a[e, h]      = softmax of the logits over the group, or over all edges of i
    out[i, h]   += a[e, h] * value[source row of e, h]                    relations that are projected first
    sum[v, h]   += a[e, h] * x[source node of e]                          relations that are aggregated first
                                                                          (then out[i, h] += sum[v, h] W[r, h])

and backward, first by targets, then by source rows ``u``::

    da           = dout[i, h] . value[u, h]   or   (dout[i, h] W[r, h]') . x[source node]
    dlogit[e, h] = a * (da - sum of a * da over the softmax group)        dquery[i's group] += dlogit
    dvalue[u, h] = sum over e of u: a[e, h] * dout[target of e, h]        dkey[u] = sum over e of u: dlogit[e, h]

This file holds the loops over edges, ``numba_products.py`` those over rows; ``cpu.py`` calls them.
"""

from __future__ import annotations

import math

import numba
import numpy as np
from llvmlite import ir

from rgat.ops.numba.compile import FAST, compiled, inline

AHEAD = 12  # edges: how far ahead rows are asked for
LONG = 512  # terms after which a sum goes on in double precision
_BLOCK = 128  # targets whose attention and sums are made together, while they are in the cache

_GOLDEN64 = np.uint64(0x9E3779B97F4A7C15)
_MIX64 = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_GOLDEN32 = np.uint32(0x9E3779B9)
_MIX32 = (np.uint32(0x85EBCA6B), np.uint32(0xC2B2AE35))


@inline
def _mix64(value):
    value = (value ^ (value >> np.uint64(30))) * _MIX64[0]
    value = (value ^ (value >> np.uint64(27))) * _MIX64[1]
    return value ^ (value >> np.uint64(31))


@inline
def _mix32(value):
    value = np.uint32((value ^ (value >> np.uint32(16))) * _MIX32[0])
    value = np.uint32((value ^ (value >> np.uint32(13))) * _MIX32[1])
    return value ^ (value >> np.uint32(16))


@inline
def _is_kept(stream, number, column, below):
    """Whether dropout keeps one element; the same function as ``dropout.keep_mask``."""
    key = _mix64(stream ^ (np.uint64(number) * _GOLDEN64))
    low, high = np.uint32(key), np.uint32(key >> np.uint64(32))
    return _mix32(np.uint32(low + np.uint32(np.uint32(column) * _GOLDEN32)) ^ high) >= below


@compiled
def mask_rows(lo, hi, first, into, rows, num_heads, share, width, channels, row_id, stream, below, scale):
    """Multiply the values in ``rows[lo - first:hi - first]``, which have the ids ``row_id[lo:hi]``, by their masks.

    With ``into`` those in ``rows[into[lo:hi]]``.
    """
    zero, per_member = rows.dtype.type(0), num_heads // stream.shape[0]
    together = min(share, per_member)  # heads whose values are side by side, and of one member
    for u in range(lo, hi):
        row = into[u] if into.shape[0] else u - first
        for h in range(0, num_heads, together):
            m, own = h // per_member, np.uint32(h % per_member * channels)
            key = _mix64(stream[m] ^ (np.uint64(row_id[u]) * _GOLDEN64))
            low, high = np.uint32(key), np.uint32(key >> np.uint64(32))
            at = np.uint64(h // share * width + h % share * channels)
            for c in range(together * channels):
                column = np.uint32(np.uint32(own + np.uint32(c)) * _GOLDEN32)
                bits = _mix32(np.uint32(low + column) ^ high)
                rows[row, at + np.uint64(c)] *= scale[m] if bits >= below[m] else zero


@numba.extending.intrinsic
def _prefetch(typing_context, address):
    """Ask for the memory at an address before it is needed: rows are read in no order that hardware foresees."""

    def generate(context, builder, signature, arguments):
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        function = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
        place = builder.inttoptr(arguments[0], byte)
        builder.call(function, [place, number(0), number(3), number(1)])  # to read, keep, data
        return context.get_dummy_value()

    return numba.types.void(numba.types.uint64), generate


@inline
def prefetch_row(base, row_bytes, row):
    """Ask for one row of a table."""
    address = base + np.uint64(row) * row_bytes
    for offset in range(np.uint64(0), row_bytes, np.uint64(64)):
        _prefetch(address + offset)


@inline
def _prefetch_number(array, place):
    _prefetch(np.uint64(array.ctypes.data) + np.uint64(place) * np.uint64(array.itemsize))


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
def largest(numbers):
    """The largest absolute value; infinite where there is NaN."""
    zero = numbers.dtype.type(0)
    top = total = zero
    for n in range(numbers.shape[0]):
        top = max(top, abs(numbers[n]))
        total += numbers[n] * zero  # NaN, where a number is infinite or NaN
    return np.float64(top) if total == zero else np.inf


@inline
def put_aside(total, rows, row):
    """Move a partial sum of many terms out of single precision."""
    flat = rows[row].reshape(-1)
    for n in range(flat.shape[0]):
        total[n] += flat[n]
        flat[n] = 0


@inline
def bring_back(total, rows, row):
    """Add what was put aside, and begin anew."""
    flat = rows[row].reshape(-1)
    for n in range(flat.shape[0]):
        flat[n] += total[n]
        total[n] = 0


@inline
def _is_aggregated(aggregated, relation):
    return aggregated.shape[0] > 0 and aggregated[relation]


@compiled
def _constant_attention(lo, hi, ptr, heads, attention):
    """One over the size of each segment, for some heads."""
    for s in range(lo, hi):
        weight = attention.dtype.type(1) / attention.dtype.type(ptr[s + 1] - ptr[s])
        for e in range(ptr[s], ptr[s + 1]):
            for h in heads:
                attention[e, h] = weight


@compiled
def _list_groups(start, end, group_ptr, node_ptr, singles, group, owner):
    """List the groups of the targets ``start:end``, only those of several edges unless ``singles``; say how many.

    An edge alone in its softmax group has attention one, whatever its finite score. On knowledge graphs most groups
    are such, and to ask at every one of them, again and again, costs more than the others' work.
    """
    number = np.uint64(0)
    for i in range(start, end):
        for v in range(node_ptr[i], node_ptr[i + 1]):
            group[number], owner[number] = v, i
            number += np.uint64(singles or group_ptr[v + 1] - group_ptr[v] > 1)  # no branch that could be mispredicted
    return number


@compiled
def _scores(groups, group_ptr, group_row, source_row, queries, keys, edge_logits, additive, out):
    """The logits of the edges of some groups, before LeakyReLU."""
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
def _subtract_maximum(segments, ptr, heads, logits):
    """For each of some segments ``ptr[s]:ptr[s + 1]`` of edges, and each of some heads, in place."""
    for s in segments:
        start, end = ptr[s], ptr[s + 1]
        for h in heads:
            if end - start == 1:
                logits[start, h] -= logits[start, h]  # zero, but NaN stays
                continue
            maximum = logits.dtype.type(-np.inf)
            for e in range(start, end):
                maximum = max(maximum, logits[e, h])
            for e in range(start, end):
                logits[e, h] -= maximum


@compiled
def _divide_by_sum(segments, ptr, heads, weights):
    """Likewise."""
    for s in segments:
        start, end = ptr[s], ptr[s + 1]
        if end - start <= 1:
            continue  # the exponential of zero, or NaN
        for h in heads:
            total = 0.0
            for e in range(start, end):
                total += weights[e, h]
            factor = weights.dtype.type(1 / total)
            for e in range(start, end):
                weights[e, h] *= factor


@compiled
def _subtract_share_of_sum(segments, ptr, heads, attention, dlogits):
    """From ``a * da`` to the gradient of the logits, likewise."""
    for s in segments:
        start, end = ptr[s], ptr[s + 1]
        for h in heads:
            if end - start == 1:
                dlogits[start, h] = 0  # the attention of an edge alone in its softmax group is one
                continue
            total = 0.0
            for e in range(start, end):
                total += dlogits[e, h]
            rounded = dlogits.dtype.type(total)
            for e in range(start, end):
                dlogits[e, h] -= attention[e, h] * rounded


@compiled
def drop_edges(start, end, stream, below, scale, attention, weights):
    """Attention after dropout, of the edges ``start:end``."""
    zero, per_member = attention.dtype.type(0), attention.shape[1] // stream.shape[0]
    for e in range(start, end):
        for m in range(stream.shape[0]):
            for q in range(per_member):
                h = m * per_member + q
                weights[e, h] = attention[e, h] * scale[m] if _is_kept(stream[m], e, q, below[m]) else zero


@inline
def _add_row(out, row, weights, e, values, other, channels):
    """``out[row, h] += weights[e, h] * values[other, h]`` where both have the same columns, head by head."""
    # Unsigned numbers need no test whether an index counts from the end.
    row, other, channels = np.uint64(row), np.uint64(other), np.uint64(channels)
    for h in range(np.uint64(weights.shape[1])):
        weight = weights[e, h]
        for c in range(h * channels, (h + np.uint64(1)) * channels):
            out[row, c] += weight * values[other, c]


@compiled
def _sum_rows(lo, hi, target_ptr, source_row, weights, values, out):
    """``out[i, h] = sum over the edges e of i: weights[e, h] * values[source row of e, h]``."""
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
                _add_row(out, i, weights, e, values, source_row[e], channels)
            if end - begin > LONG:
                put_aside(total, out, i)
        if end - begin > LONG:
            bring_back(total, out, i)


@compiled
def _sum_values(
    lo, hi, group_ptr, node_ptr, group_row, group_relation, source_row, aggregated, weights, values, share, width, out
):
    num_heads = weights.shape[1]
    # Divided once: a division takes longer than an edge, and no compiler moves it out of a loop that may not run.
    channels, batch = out.shape[1] // num_heads, num_heads // share
    total = np.zeros(out.shape[1])
    base, row_bytes = np.uint64(values.ctypes.data), np.uint64(values.shape[1] * values.itemsize)
    final = group_ptr[node_ptr[hi]] - 1
    for i in range(lo, hi):
        for c in range(out.shape[1]):
            out[i, c] = 0
        for v in range(node_ptr[i], node_ptr[i + 1]):
            if _is_aggregated(aggregated, group_relation[group_row[v]]):
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
                    put_aside(total, out, i)
            if group_ptr[v + 1] - group_ptr[v] > LONG:
                bring_back(total, out, i)


@compiled
def _sum_inputs(
    lo, hi, group_ptr, node_ptr, group_row, group_relation, source_row, source_node, aggregated, weights, x, sums
):
    num_heads, inputs = sums.shape[1], sums.shape[2]
    total = np.zeros(num_heads * inputs)
    for v in range(node_ptr[lo], node_ptr[hi]):
        row = group_row[v]
        if not _is_aggregated(aggregated, group_relation[row]):
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
                put_aside(total, sums, row)
        if group_ptr[v + 1] - group_ptr[v] > LONG:
            bring_back(total, sums, row)


@compiled
def forward(
    lo, hi, target_ptr, group_ptr, node_ptr, group_row, group_relation, source_row, source_node, value_row,
    queries, keys, edge_logits, additive, slope, singles, within, across,
    stream, below, scale, aggregated, values, share, width, x,
    attention, weights, out, sums,
):  # fmt: skip
    """Attention of the edges of the targets ``lo:hi``, and their outputs, or sums of inputs per target row.

    Without ``singles`` no edge that is alone in its group has a score of NaN. The attention of an additive score has
    its sign, which backward needs, and which no cast loses.
    """
    is_positive = np.empty(0, np.bool_)
    group, owner = np.empty(0, np.int64), np.empty(0, np.int64)
    for start in range(lo, hi, _BLOCK):
        end = min(start + _BLOCK, hi)
        if queries.shape[0]:
            most = node_ptr[end] - node_ptr[start]
            if group.shape[0] < most:
                group, owner = np.empty(2 * most, np.int64), np.empty(2 * most, np.int64)
            groups = group[: _list_groups(start, end, group_ptr, node_ptr, singles, group, owner)]
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
            _subtract_maximum(groups, group_ptr, within, attention)
            _subtract_maximum(targets, target_ptr, across, attention)
            exponentials_of(flat)
            _divide_by_sum(groups, group_ptr, within, attention)
            _divide_by_sum(targets, target_ptr, across, attention)
        else:
            _constant_attention(np.int64(node_ptr[start]), np.int64(node_ptr[end]), group_ptr, within, attention)
            _constant_attention(np.int64(start), np.int64(end), target_ptr, across, attention)
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


@compiled
def _dot_values(
    groups, owner, group_ptr, group_row, group_relation, source_row, aggregated, values, share, width, grad, dots
):
    """``dots[e, h] = grad[target, h] . values[source row, h]`` for the edges of some groups, with their targets."""
    num_heads = dots.shape[1]
    channels, batch = grad.shape[1] // num_heads, num_heads // share
    zero = grad.dtype.type(0)
    base, row_bytes = np.uint64(values.ctypes.data), np.uint64(values.shape[1] * values.itemsize)
    final = group_ptr[groups[-1] + 1] - 1 if len(groups) else 0
    for n in range(groups.shape[0]):
        v, i = groups[n], owner[n]
        if _is_aggregated(aggregated, group_relation[group_row[v]]):
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
    """``dots[e, h] = grad_sums[target row, h] . x[source node]`` for the edges of some groups."""
    num_heads, inputs = grad_sums.shape[1], grad_sums.shape[2]
    zero = x.dtype.type(0)
    for v in groups:
        row = group_row[v]
        if not _is_aggregated(aggregated, group_relation[row]):
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
    """Through LeakyReLU, and summed over the edges of some groups; added to zeros."""
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
                put_aside(total, dqueries, row)
        if group_ptr[v + 1] - group_ptr[v] > LONG:
            bring_back(total, dqueries, row)


@compiled
def _query_grads(groups, group_ptr, group_row, source_row, keys, dlogits, dqueries):
    """The same for the multiplicative score."""
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
                put_aside(total, dqueries, row)
        if group_ptr[v + 1] - group_ptr[v] > LONG:
            bring_back(total, dqueries, row)


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
                    dot *= scale[m] if _is_kept(stream[m], e, q, below[m]) else zero
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
    """Gradients of the logits of the edges of the targets ``lo:hi``, and of their queries, which come as zeros."""
    # An edge alone in its group has no gradient, unless it shares its target's softmax, or is wanted for itself.
    singles = across.shape[0] > 0 or grad_attention.shape[0] > 0
    group, owner = np.empty(0, np.int64), np.empty(0, np.int64)
    for start in range(lo, hi, _BLOCK):
        end = min(start + _BLOCK, hi)
        most = node_ptr[end] - node_ptr[start]
        if group.shape[0] < most:
            group, owner = np.empty(2 * most, np.int64), np.empty(2 * most, np.int64)
        groups = group[: _list_groups(start, end, group_ptr, node_ptr, singles, group, owner)]
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
        _subtract_share_of_sum(groups, group_ptr, within, attention, dlogits)
        _subtract_share_of_sum(targets, target_ptr, across, attention, dlogits)
        if additive:
            _additive_query_grads(groups, group_ptr, group_row, slope, signed, dlogits, dqueries)
        else:
            _query_grads(groups, group_ptr, group_row, source_row, keys, dlogits, dqueries)


@compiled
def _short_rows_by_source(
    lo, hi, first, into, by_source, source_ptr, target, weights, grad, dlogits, dvalues, dkeys, first_key
):
    """The same for rows of few edges, where heads are not divided; the others stay as they are."""
    one, ahead = np.uint64(1), np.uint64(AHEAD)
    heads = np.uint64(weights.shape[1])
    channels, first_key = np.uint64(grad.shape[1]) // heads, np.uint64(first_key)
    base, row_bytes = np.uint64(grad.ctypes.data), np.uint64(grad.shape[1] * grad.itemsize)
    final = np.uint64(max(source_ptr[hi], 1) - 1)
    for u in range(np.uint64(lo), np.uint64(hi)):
        begin, end, own = np.uint64(source_ptr[u]), np.uint64(source_ptr[u + one]), u - np.uint64(first)
        if end == begin or end - begin > LONG:
            continue
        row = np.uint64(into[u]) if into.shape[0] else own
        for place in range(begin, end):
            further = np.uint64(by_source[min(place + ahead + ahead, final)])
            _prefetch_number(target, further)
            _prefetch_number(weights, further * heads)
            prefetch_row(base, row_bytes, target[np.uint64(by_source[min(place + ahead, final)])])
            e = np.uint64(by_source[place])
            i = np.uint64(target[e])
            if place > begin:
                _add_row(dvalues, row, weights, e, grad, i, channels)
                for h in range(np.uint64(dlogits.shape[1])):
                    dkeys[own, first_key + h] += dlogits[e, h]
                continue
            for h in range(heads):
                weight = weights[e, h]
                for c in range(h * channels, (h + one) * channels):
                    dvalues[row, c] = weight * grad[i, c]
            for h in range(np.uint64(dlogits.shape[1])):
                dkeys[own, first_key + h] = dlogits[e, h]


@compiled
def values_by_source(
    lo, hi, first, into, by_source, source_ptr, target, weights, grad, dlogits, dvalues, share, width,
    dkeys, key_width, first_key,
):  # fmt: skip
    """Gradients of the values of the source rows ``lo:hi``, into a buffer that begins with row ``first``.

    Or, with ``into``, into rows of a table. With ``dlogits`` also those of additive keys: of each share of the heads
    from column ``first_key`` of its ``key_width`` columns on.
    """
    num_heads = weights.shape[1]
    channels, batch = grad.shape[1] // num_heads, num_heads // share
    key_batch = dlogits.shape[1] // share
    if batch == 1:
        _short_rows_by_source(
            lo, hi, first, into, by_source, source_ptr, target, weights, grad, dlogits, dvalues, dkeys, first_key
        )
    total, key_sums = np.zeros(dvalues.shape[1]), np.zeros(dlogits.shape[1])
    for u in range(lo, hi):
        begin, end = source_ptr[u], source_ptr[u + 1]
        if batch == 1 and begin < end <= begin + LONG:
            continue
        row = into[u] if into.shape[0] else u - first
        for p in range(batch):
            for c in range(share * channels):
                dvalues[row, p * width + c] = 0
        for start in range(begin, end, LONG):
            for place in range(start, min(start + LONG, end)):
                e = by_source[place]
                i = target[e]
                for h in range(dlogits.shape[1]):
                    key_sums[h] += dlogits[e, h]
                for p in range(batch):
                    for q in range(share):
                        weight, to = weights[e, p * share + q], np.uint64(p * width + q * channels)
                        at = np.uint64((p * share + q) * channels)
                        for d in range(channels):
                            dvalues[row, to + np.uint64(d)] += weight * grad[i, at + np.uint64(d)]
            if end - begin > LONG:
                for p in range(batch):
                    for c in range(share * channels):
                        total[p * width + c] += dvalues[row, p * width + c]
                        dvalues[row, p * width + c] = 0
        if end - begin > LONG:
            for p in range(batch):
                for c in range(share * channels):
                    dvalues[row, p * width + c] = total[p * width + c]
                    total[p * width + c] = 0
        for p in range(key_batch):
            for q in range(share):
                dkeys[u - first, p * key_width + first_key + q] = key_sums[p * share + q]
                key_sums[p * share + q] = 0


@compiled
def inputs_by_source(lo, hi, first, by_source, source_ptr, group, group_row, weights, grad_sums, dinputs):
    """Gradients of the inputs of the source rows ``lo:hi`` that are aggregated, into a buffer likewise."""
    num_heads, inputs = grad_sums.shape[1], grad_sums.shape[2]
    total = np.zeros(inputs)
    for u in range(lo, hi):
        for f in range(inputs):
            dinputs[u - first, f] = 0
        for start in range(source_ptr[u], source_ptr[u + 1], LONG):
            for place in range(start, min(start + LONG, source_ptr[u + 1])):
                e = by_source[place]
                row = group_row[group[e]]
                for h in range(num_heads):
                    weight = weights[e, h]
                    for f in range(inputs):
                        dinputs[u - first, f] += weight * grad_sums[row, h, f]
            if source_ptr[u + 1] - source_ptr[u] > LONG:
                put_aside(total, dinputs, u - first)
        if source_ptr[u + 1] - source_ptr[u] > LONG:
            bring_back(total, dinputs, u - first)


@compiled
def keys_by_source(
    lo, hi, first, by_source, source_ptr, group, group_row, queries, additive, dlogits, dkeys,
    share, key_width, first_key,
):  # fmt: skip
    """Gradients of the keys of the source rows ``lo:hi``, into a buffer likewise."""
    num_heads, channels, batch = queries.shape[1], queries.shape[2], queries.shape[1] // share
    sums = np.zeros((num_heads, channels))  # in double precision
    for u in range(lo, hi):
        for place in range(source_ptr[u], source_ptr[u + 1]):
            e = by_source[place]
            if additive:
                for h in range(num_heads):
                    sums[h, 0] += dlogits[e, h]
            elif channels == 1:
                row = group_row[group[e]]
                for h in range(num_heads):
                    sums[h, 0] += dlogits[e, h] * queries[row, h, 0]
            else:
                row = group_row[group[e]]
                for h in range(num_heads):
                    gradient = dlogits[e, h]
                    for a in range(channels):
                        sums[h, a] += gradient * queries[row, h, a]
        for p in range(batch):
            for q in range(share):
                for a in range(channels):
                    at = np.uint64(p * key_width + first_key + q * channels + a)
                    dkeys[u - first, at] = sums[p * share + q, a]
                    sums[p * share + q, a] = 0


@compiled
def clear_rows(lo, hi, back, rows):
    """Set to zero what no row reads."""
    for t in range(lo, hi):
        if back[t] < 0:
            for c in range(rows.shape[1]):
                rows[t, c] = 0


@compiled
def gather_back(lo, hi, out, first, second, first_back, second_back, both):
    """For each entry ``lo:hi`` of a table the sum of what the at most two rows that read it bring."""
    zero = out.dtype.type(0)
    for t in range(lo, hi):
        u, v = first_back[t], second_back[t] if both else -1
        if u >= 0 and v >= 0:
            for c in range(out.shape[1]):
                out[t, c] = first[u, c] + second[v, c]
        elif u >= 0:
            for c in range(out.shape[1]):
                out[t, c] = first[u, c]
        elif v >= 0:
            for c in range(out.shape[1]):
                out[t, c] = second[v, c]
        else:
            for c in range(out.shape[1]):
                out[t, c] = zero
