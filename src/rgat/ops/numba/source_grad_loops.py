"""Compute the gradients of values, keys and inputs in compiled loops on the CPU (Numba).

Threads take ranges of source rows ``u``::

    dvalue[u, h] = sum over edges e of u: a[e, h] * dout[target of e, h]
    dkey[u]      = sum over edges e of u: dlogit[e, h]   (times the query, with the multiplicative score)
    dinput[u]    = sum over edges e of u: a[e, h] * dsum[group of e, h]   (relations that are aggregated first)
"""

from __future__ import annotations

import numpy as np

from rgat.ops.numba.compile import compiled
from rgat.ops.numba.row_loops import AHEAD, LONG, add_double, add_row, move_to_double, prefetch_number, prefetch_row


@compiled
def _short_rows_by_source(
    lo, hi, first, into, by_source, source_ptr, target, weights, grad, dlogits, dvalues, dkeys, first_key
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
            further = np.uint64(by_source[min(position + ahead + ahead, final)])
            prefetch_number(target, further)
            prefetch_number(weights, further * heads)
            prefetch_row(base, row_bytes, target[np.uint64(by_source[min(position + ahead, final)])])
            e = np.uint64(by_source[position])
            i = np.uint64(target[e])
            if position > begin:
                add_row(dvalues, row, weights, e, grad, i, channels)
                for h in range(np.uint64(dlogits.shape[1])):
                    dkeys[key_row, first_key + h] += dlogits[e, h]
                continue
            for h in range(heads):
                weight = weights[e, h]
                for c in range(h * channels, (h + one) * channels):
                    dvalues[row, c] = weight * grad[i, c]
            for h in range(np.uint64(dlogits.shape[1])):
                dkeys[key_row, first_key + h] = dlogits[e, h]


@compiled
def values_by_source(
    lo, hi, first, into, by_source, source_ptr, target, weights, grad, dlogits, dvalues, share, width,
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
            for position in range(start, min(start + LONG, end)):
                e = by_source[position]
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
def keys_by_source(
    lo, hi, first, by_source, source_ptr, group, group_row, queries, additive, dlogits, dkeys,
    share, key_width, first_key,
):  # fmt: skip
    """Fill the gradients of the keys of the source rows ``lo:hi``."""
    num_heads, channels, batch = queries.shape[1], queries.shape[2], queries.shape[1] // share
    sums = np.zeros((num_heads, channels))  # in double precision
    for u in range(lo, hi):
        for position in range(source_ptr[u], source_ptr[u + 1]):
            e = by_source[position]
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
