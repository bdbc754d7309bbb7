"""Compute the gradients of attention in compiled loops on the CPU (Numba), by target and then by source row.

Threads take ranges of target nodes. Per edge ``e`` of target ``i``, with source row ``u``::

    da           = dout[i, h] . value[u, h]   or   (dout[i, h] W[r, h]') . x[source node]
    dlogit[e, h] = a * (da - sum of a * da over the softmax group)        dquery[i's group] += dlogit

Then they take ranges of source rows ``u``::

    dvalue[u, h] = sum over edges e of u: a[e, h] * dout[target of e, h]
    dkey[u]      = sum over edges e of u: dlogit[e, h]   (times the query, with the multiplicative score)
    dinput[u]    = sum over edges e of u: a[e, h] * dsum[group of e, h]   (relations that are aggregated first)
"""

from __future__ import annotations

import numpy as np

from rgat.ops.numba.attention_loops import TARGETS_PER_BLOCK, four_heads, list_groups
from rgat.ops.numba.compile import compiled
from rgat.ops.numba.lane_loops import add_lanes, dot_lanes, fits_lanes, row_address, write_lanes
from rgat.ops.numba.row_loops import (
    AHEAD,
    LONG,
    add_double,
    add_row,
    is_aggregated,
    is_kept,
    move_to_double,
    prefetch_number,
    prefetch_row,
)


@compiled
def subtract_share_of_sum(segments, ptr, heads, attention, dlogits):
    """Turn ``a * da`` into the gradient of the logits, for some segments and heads."""
    for s in segments:
        start, end, n = np.uint64(ptr[s]), np.uint64(ptr[s + 1]), 0
        while n < heads.shape[0]:
            h = np.uint64(heads[n])
            if end - start == np.uint64(1):
                dlogits[start, h] = 0  # the attention of the only edge of a group is one
            elif four_heads(heads, n):
                i, j, k = h + np.uint64(1), h + np.uint64(2), h + np.uint64(3)
                first = second = third = fourth = 0.0
                for e in range(start, end):
                    first, second = first + dlogits[e, h], second + dlogits[e, i]
                    third, fourth = third + dlogits[e, j], fourth + dlogits[e, k]
                a, b = dlogits.dtype.type(first), dlogits.dtype.type(second)
                c, d = dlogits.dtype.type(third), dlogits.dtype.type(fourth)
                for e in range(start, end):
                    dlogits[e, h] -= attention[e, h] * a
                    dlogits[e, i] -= attention[e, i] * b
                    dlogits[e, j] -= attention[e, j] * c
                    dlogits[e, k] -= attention[e, k] * d
                n += 3
            else:
                total = 0.0
                for e in range(start, end):
                    total += dlogits[e, h]
                rounded = dlogits.dtype.type(total)
                for e in range(start, end):
                    dlogits[e, h] -= attention[e, h] * rounded
            n += 1


@compiled
def _dot_values(groups, owner, group_ptr, group_row, group_relation, source_row, aggregated, values, grad, dots):
    """Fill ``dots[e, h]`` with ``grad[target, h] . values[source row, h]`` for the edges of some groups.

    ``owner`` is the target of each group. Skip relations that are aggregated first.
    """
    num_heads = dots.shape[1]
    channels, zero = grad.shape[1] // num_heads, grad.dtype.type(0)
    base, row_bytes = np.uint64(values.ctypes.data), np.uint64(values.shape[1] * values.itemsize)
    final = group_ptr[groups[-1] + 1] - 1 if len(groups) else 0
    for n in range(groups.shape[0]):
        v, i = groups[n], owner[n]
        if is_aggregated(aggregated, group_relation[group_row[v]]):
            continue
        for e in range(group_ptr[v], group_ptr[v + 1]):
            u = source_row[e]
            prefetch_row(base, row_bytes, source_row[min(e + AHEAD, final)])
            if fits_lanes(channels):
                to, value = row_address(grad, i), row_address(values, u)
                dot_lanes(num_heads, channels, to, value, row_address(dots, e), zero)
                continue
            for h in range(np.uint64(num_heads)):
                dot = zero
                for c in range(h * np.uint64(channels), (h + np.uint64(1)) * np.uint64(channels)):
                    dot += grad[np.uint64(i), c] * values[np.uint64(u), c]
                dots[e, h] = dot


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
def _additive_query_grads(groups, group_ptr, query_row, slope, signed, dlogits, dqueries):
    """Multiply ``dlogits`` by LeakyReLU's derivative, and fill ``dqueries`` with the sum over each group."""
    one = dlogits.dtype.type(1)
    num_heads = dlogits.shape[1]
    total = np.zeros(num_heads)
    for v in groups:
        row = query_row[v]
        dqueries[row] = 0
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
def _query_grads(groups, group_ptr, query_row, source_row, keys, dlogits, dqueries):
    """Fill ``dqueries`` with the sum of ``dlogits * key`` over each group (multiplicative score)."""
    num_heads, channels = dlogits.shape[1], keys.shape[2]
    total = np.zeros(num_heads * channels)
    base, row_bytes = np.uint64(keys.ctypes.data), np.uint64(num_heads * channels * keys.itemsize)
    final = group_ptr[groups[-1] + 1] - 1 if len(groups) else 0
    for v in groups:
        row = query_row[v]
        dqueries[row] = 0
        for first in range(group_ptr[v], group_ptr[v + 1], LONG):
            for e in range(first, min(first + LONG, group_ptr[v + 1])):
                u = source_row[e]
                prefetch_row(base, row_bytes, source_row[min(e + AHEAD, final)])
                if channels == 1:
                    for h in range(num_heads):
                        dqueries[row, h, 0] += dlogits[e, h] * keys[u, h, 0]
                elif fits_lanes(channels):
                    at, key, to = row_address(dlogits, e), row_address(keys, u), row_address(dqueries, row)
                    add_lanes(num_heads, channels, at, key, to, keys.dtype.type(0))
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
def _times_attention(start, end, stream, below, scale, edge_id, attention, grad_attention, dlogits):
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
                    dot *= scale[m] if is_kept(stream[m], edge_id[e] if edge_id.shape[0] else e, q, below[m]) else zero
                if grad_attention.shape[0]:
                    dot += grad_attention[e, h]
                dlogits[e, h] = attention[e, h] * dot


@compiled
def _clear_singles(first, last, group_ptr, dlogits):
    """Set the gradients of edges that are alone in one of the groups ``first:last`` to zero."""
    for v in range(first, last):
        if group_ptr[v + 1] - group_ptr[v] == 1:
            dlogits[group_ptr[v]] = 0


@compiled
def backward_by_target(
    lo, hi, target_ptr, group_ptr, node_ptr, group_row, group_relation, source_row, source_node, value_row,
    query_row, keys, additive, slope, within, across,
    stream, below, scale, edge_id, aggregated, values, x,
    attention, signed, grad, grad_sums, grad_attention, dlogits, dqueries,
):  # fmt: skip
    """Fill the gradients of the logits of the targets ``lo:hi``, and of the queries of groups with gradients.

    With the additive score ``signed`` is the attention with the sign of the logit; fill ``attention`` from it.
    """
    singles = across.shape[0] > 0  # or the only edge of its group has no gradient
    group, owner = np.empty(0, np.int64), np.empty(0, np.int64)
    for start in range(lo, hi, TARGETS_PER_BLOCK):
        end = min(start + TARGETS_PER_BLOCK, hi)
        most = node_ptr[end] - node_ptr[start]
        if group.shape[0] < most:
            group, owner = np.empty(2 * most, np.int64), np.empty(2 * most, np.int64)
        groups = group[: list_groups(start, end, group_ptr, node_ptr, singles, group, owner)]
        targets = np.arange(start, end)
        first, last = target_ptr[start], target_ptr[end]
        flat = dlogits[first:last].reshape(-1)
        for n in range(flat.shape[0]):
            flat[n] = 0
        if additive:
            weights, with_sign = attention[first:last].reshape(-1), signed[first:last].reshape(-1)
            for n in range(flat.shape[0]):
                weights[n] = abs(with_sign[n])
        _dot_values(groups, owner, group_ptr, group_row, group_relation, value_row, aggregated, values, grad, dlogits)
        if aggregated.shape[0]:
            _dot_inputs(
                groups, group_ptr, group_row, group_relation, source_row, source_node, aggregated,
                x, grad_sums, dlogits,
            )  # fmt: skip
        _times_attention(first, last, stream, below, scale, edge_id, attention, grad_attention, dlogits)
        if not singles and grad_attention.shape[0]:
            _clear_singles(node_ptr[start], node_ptr[end], group_ptr, dlogits)
        subtract_share_of_sum(groups, group_ptr, within, attention, dlogits)
        subtract_share_of_sum(targets, target_ptr, across, attention, dlogits)
        if additive:
            _additive_query_grads(groups, group_ptr, query_row, slope, signed, dlogits, dqueries)
        else:
            _query_grads(groups, group_ptr, query_row, source_row, keys, dlogits, dqueries)


@compiled
def _short_rows_by_source(
    lo, hi, first, into, by_source, source_ptr, target_by_source, weights, grad, dlogits, dvalues, dkeys, first_key
):
    """Do the same for rows of at most ``LONG`` edges, without a batch axis; leave the other rows alone."""
    one, ahead = np.uint64(1), np.uint64(AHEAD)
    heads = np.uint64(weights.shape[1])
    channels, first_key = np.uint64(grad.shape[1]) // heads, np.uint64(first_key)
    base, row_bytes = np.uint64(grad.ctypes.data), np.uint64(grad.shape[1] * grad.itemsize)
    final = np.uint64(max(source_ptr[hi], 1) - 1)
    for u in range(np.uint64(lo), np.uint64(hi)):
        begin, end, key_row = np.uint64(source_ptr[u]), np.uint64(source_ptr[u + one]), u - np.uint64(first)
        if end == begin or end - begin > LONG:
            continue
        row = np.uint64(into[u]) if into.shape[0] else key_row
        for position in range(begin, end):
            further = min(position + ahead, final)
            prefetch_number(weights, np.uint64(by_source[further]) * heads)
            prefetch_row(base, row_bytes, target_by_source[further])
            e, i = np.uint64(by_source[position]), np.uint64(target_by_source[position])
            if position > begin:
                add_row(dvalues, row, weights, e, grad, i, channels)
                for h in range(np.uint64(dlogits.shape[1])):
                    dkeys[key_row, first_key + h] += dlogits[e, h]
                continue
            if fits_lanes(channels):
                at, numbers, to = row_address(weights, e), row_address(grad, i), row_address(dvalues, row)
                write_lanes(heads, channels, at, numbers, to, grad.dtype.type(0))
            else:
                for h in range(heads):
                    weight = weights[e, h]
                    for c in range(h * channels, (h + one) * channels):
                        dvalues[row, c] = weight * grad[i, c]
            for h in range(np.uint64(dlogits.shape[1])):
                dkeys[key_row, first_key + h] = dlogits[e, h]


@compiled
def values_by_source(
    lo, hi, first, into, by_source, source_ptr, target_by_source, weights, grad, dlogits, dvalues, share, width,
    dkeys, key_width, first_key,
):  # fmt: skip
    """Fill the gradients of the values of the source rows ``lo:hi``, and with ``dlogits`` those of additive keys.

    Row ``u`` is ``dvalues[u - first]``, or with ``into`` ``dvalues[into[u]]``. Each ``share`` of the heads has
    ``width`` columns of values, and keys from column ``first_key`` of ``key_width`` columns on.
    """
    num_heads = weights.shape[1]
    channels, batch = grad.shape[1] // num_heads, num_heads // share
    key_batch = dlogits.shape[1] // share
    if batch == 1:
        _short_rows_by_source(
            lo, hi, first, into, by_source, source_ptr, target_by_source, weights, grad, dlogits, dvalues, dkeys,
            first_key,
        )  # fmt: skip
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
            for position in range(start, min(start + LONG, end)):
                e, i = by_source[position], target_by_source[position]
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
    """Fill the gradients of the inputs of the source rows ``lo:hi``, which are aggregated first."""
    num_heads, inputs = grad_sums.shape[1], grad_sums.shape[2]
    total = np.zeros(inputs)
    for u in range(lo, hi):
        for f in range(inputs):
            dinputs[u - first, f] = 0
        for start in range(source_ptr[u], source_ptr[u + 1], LONG):
            for position in range(start, min(start + LONG, source_ptr[u + 1])):
                e = by_source[position]
                row = group_row[group[e]]
                for h in range(num_heads):
                    weight = weights[e, h]
                    for f in range(inputs):
                        dinputs[u - first, f] += weight * grad_sums[row, h, f]
            if source_ptr[u + 1] - source_ptr[u] > LONG:
                move_to_double(total, dinputs, u - first)
        if source_ptr[u + 1] - source_ptr[u] > LONG:
            add_double(total, dinputs, u - first)


@compiled
def _short_keys_by_source(lo, hi, first, by_source, source_ptr, query_by_source, queries, dlogits, dkeys, first_key):
    """Do the same for rows of at most ``LONG`` edges, without a batch axis; leave the other rows alone."""
    one, zero, ahead = np.uint64(1), dlogits.dtype.type(0), np.uint64(AHEAD)
    heads, channels, first_key = np.uint64(queries.shape[1]), np.uint64(queries.shape[2]), np.uint64(first_key)
    query_rows = queries.reshape((queries.shape[0], queries.shape[1] * queries.shape[2]))
    base, row_bytes = np.uint64(queries.ctypes.data), np.uint64(query_rows.shape[1] * queries.itemsize)
    final = np.uint64(max(source_ptr[hi], 1) - 1)
    for u in range(np.uint64(lo), np.uint64(hi)):
        begin, end, key_row = np.uint64(source_ptr[u]), np.uint64(source_ptr[u + one]), u - np.uint64(first)
        if end - begin > LONG:
            continue
        is_empty = True
        for position in range(begin, end):
            further = min(position + ahead, final)
            prefetch_number(dlogits, np.uint64(by_source[further]) * heads)
            prefetch_row(base, row_bytes, max(query_by_source[further], 0))
            e, row = np.uint64(by_source[position]), query_by_source[position]
            if row < 0:
                continue
            if fits_lanes(channels):
                at, query = row_address(dlogits, e), row_address(query_rows, row)
                to = row_address(dkeys, key_row) + first_key * np.uint64(dkeys.itemsize)
                if is_empty:
                    write_lanes(heads, channels, at, query, to, zero)
                else:
                    add_lanes(heads, channels, at, query, to, zero)
                is_empty = False
                continue
            for h in range(heads):
                gradient = dlogits[e, h]
                if is_empty:
                    for c in range(h * channels, (h + one) * channels):
                        dkeys[key_row, first_key + c] = gradient * query_rows[np.uint64(row), c]
                else:
                    for c in range(h * channels, (h + one) * channels):
                        dkeys[key_row, first_key + c] += gradient * query_rows[np.uint64(row), c]
            is_empty = False
        if is_empty:
            for c in range(heads * channels):
                dkeys[key_row, first_key + c] = zero


@compiled
def keys_by_source(
    lo, hi, first, by_source, source_ptr, query_by_source, queries, additive, dlogits, dkeys,
    share, key_width, first_key,
):  # fmt: skip
    """Fill the gradients of the keys of the source rows ``lo:hi``; edges without a query have none.

    ``query_by_source`` is the query of each edge, in the order of source rows.
    """
    num_heads, channels, batch = queries.shape[1], queries.shape[2], queries.shape[1] // share
    is_short = batch == 1 and not additive
    if is_short:
        _short_keys_by_source(
            lo, hi, first, by_source, source_ptr, query_by_source, queries, dlogits, dkeys, first_key
        )  # fmt: skip
    sums = np.zeros((num_heads, channels))  # in double precision
    for u in range(lo, hi):
        if is_short and source_ptr[u + 1] - source_ptr[u] <= LONG:
            continue
        for position in range(source_ptr[u], source_ptr[u + 1]):
            e = by_source[position]
            if additive:
                for h in range(num_heads):
                    sums[h, 0] += dlogits[e, h]
                continue
            row = query_by_source[position]
            if row < 0:
                continue
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
