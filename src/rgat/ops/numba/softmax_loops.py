"""Compute the softmax of groups of edges, and its backward, in loops on the CPU."""

from __future__ import annotations

import math

import numba
import numpy as np

from rgat.ops.numba.compile import FAST, compiled


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
    """Return the largest absolute value, or infinity where there is NaN."""
    zero = numbers.dtype.type(0)
    top = total = zero
    for n in range(numbers.shape[0]):
        top = max(top, abs(numbers[n]))
        total += numbers[n] * zero  # NaN, where a number is infinite or NaN
    return np.float64(top) if total == zero else np.inf


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


@compiled
def subtract_maximum(segments, ptr, heads, logits):
    """Subtract the maximum of each segment ``ptr[s]:ptr[s + 1]`` of edges from its logits, for some heads."""
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
def divide_by_sum(segments, ptr, heads, weights):
    """Divide the weights of each segment by their sum, for some heads."""
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
def subtract_share_of_sum(segments, ptr, heads, attention, dlogits):
    """Turn ``a * da`` into the gradient of the logits, for some segments and heads."""
    for s in segments:
        start, end = ptr[s], ptr[s + 1]
        for h in heads:
            if end - start == 1:
                dlogits[start, h] = 0  # the attention of the only edge of a group is one
                continue
            total = 0.0
            for e in range(start, end):
                total += dlogits[e, h]
            rounded = dlogits.dtype.type(total)
            for e in range(start, end):
                dlogits[e, h] -= attention[e, h] * rounded
