"""Apply dropout masks in loops on the CPU; the masks are those of ``ops/dropout.py``."""

from __future__ import annotations

import numpy as np

from rgat.ops.numba.compile import compiled, inline

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
def id_key(stream, number):
    """Return the 64-bit key of an id in a random stream, as ``dropout.id_keys``."""
    return _mix64(stream ^ (np.uint64(number) * _GOLDEN64))


@inline
def random_bits(key, column):
    """Return 32 random bits for a key and a column, as ``dropout.random_bits``."""
    low, high = np.uint32(key), np.uint32(key >> np.uint64(32))
    return _mix32(np.uint32(low + np.uint32(np.uint32(column) * _GOLDEN32)) ^ high)


@inline
def is_kept(stream, number, column, below):
    """Tell whether dropout keeps one element, as ``dropout.keep_mask``."""
    return random_bits(id_key(stream, number), column) >= below


@compiled
def mask_rows(lo, hi, first, into, rows, num_heads, share, width, channels, row_id, stream, below, scale):
    """Multiply the values of rows ``lo:hi`` by their feature masks, which follow from ``row_id[lo:hi]``.

    Row ``u`` is ``rows[u - first]``, or with ``into`` ``rows[into[u]]``.
    """
    zero, per_member = rows.dtype.type(0), num_heads // stream.shape[0]
    together = min(share, per_member)  # heads of one member whose values are adjacent
    for u in range(lo, hi):
        row = into[u] if into.shape[0] else u - first
        for h in range(0, num_heads, together):
            m, first_column = h // per_member, np.uint32(h % per_member * channels)
            key = _mix64(stream[m] ^ (np.uint64(row_id[u]) * _GOLDEN64))
            low, high = np.uint32(key), np.uint32(key >> np.uint64(32))
            at = np.uint64(h // share * width + h % share * channels)
            for c in range(together * channels):
                column = np.uint32(np.uint32(first_column + np.uint32(c)) * _GOLDEN32)
                bits = _mix32(np.uint32(low + column) ^ high)
                rows[row, at + np.uint64(c)] *= scale[m] if bits >= below[m] else zero


@compiled
def drop_edges(start, end, stream, below, scale, attention, weights):
    """Fill ``weights`` with the attention of the edges ``start:end`` after dropout."""
    zero, per_member = attention.dtype.type(0), attention.shape[1] // stream.shape[0]
    for e in range(start, end):
        for m in range(stream.shape[0]):
            for q in range(per_member):
                h = m * per_member + q
                weights[e, h] = attention[e, h] * scale[m] if is_kept(stream[m], e, q, below[m]) else zero
