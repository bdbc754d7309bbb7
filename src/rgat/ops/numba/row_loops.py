"""Loops on the CPU that need no BLAS: read, add, write and mask rows, combine bases.

Dropout masks are those of ``ops/dropout.py``.
"""

from __future__ import annotations

import numba
import numpy as np
from llvmlite import ir

from rgat.ops.numba.compile import compiled, inline
from rgat.ops.numba.lane_loops import add_lanes, fits_lanes, row_address

AHEAD = 12  # edges: how far ahead rows are prefetched
LONG = 512  # terms after which a sum continues in double precision

_GOLDEN64 = np.uint64(0x9E3779B97F4A7C15)
_MIX64 = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_GOLDEN32 = np.uint32(0x9E3779B9)
_MIX32 = (np.uint32(0x85EBCA6B), np.uint32(0xC2B2AE35))


@numba.extending.intrinsic
def _prefetch(typing_context, address):
    """Prefetch the memory at an address: hardware cannot predict the order in which rows are read."""

    def generate(context, builder, signature, arguments):
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        function = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
        pointer = builder.inttoptr(arguments[0], byte)
        builder.call(function, [pointer, number(0), number(3), number(1)])  # to read, keep, data
        return context.get_dummy_value()

    return numba.types.void(numba.types.uint64), generate


@inline
def prefetch_row(base, row_bytes, row):
    """Prefetch one row of a table."""
    address = base + np.uint64(row) * row_bytes
    for offset in range(np.uint64(0), row_bytes, np.uint64(64)):
        _prefetch(address + offset)


@inline
def prefetch_number(array, position):
    """Prefetch one element of an array."""
    _prefetch(np.uint64(array.ctypes.data) + np.uint64(position) * np.uint64(array.itemsize))


@inline
def move_to_double(total, rows, row):
    """Add a partial sum to ``total``, which is in double precision, and set it to zero."""
    flat = rows[row].reshape(-1)
    for n in range(flat.shape[0]):
        total[n] += flat[n]
        flat[n] = 0


@inline
def add_double(total, rows, row):
    """Add ``total`` to a row, and set it to zero."""
    flat = rows[row].reshape(-1)
    for n in range(flat.shape[0]):
        flat[n] += total[n]
        total[n] = 0


@inline
def is_aggregated(aggregated, relation):
    """Tell whether a relation's inputs are aggregated before they are projected."""
    return aggregated.shape[0] > 0 and aggregated[relation]


@inline
def add_row(out, row, weights, e, values, other, channels):
    """Add ``weights[e, h] * values[other, h]`` to ``out[row, h]``; both have the same columns."""
    # Unsigned numbers need no test whether an index counts from the end.
    row, other, channels = np.uint64(row), np.uint64(other), np.uint64(channels)
    if fits_lanes(channels):
        at, numbers, to = row_address(weights, e), row_address(values, other), row_address(out, row)
        add_lanes(weights.shape[1], channels, at, numbers, to, out.dtype.type(0))
    else:
        for h in range(np.uint64(weights.shape[1])):
            weight = weights[e, h]
            for c in range(h * channels, (h + np.uint64(1)) * channels):
                out[row, c] += weight * values[other, c]


@compiled
def gather(start, end, index, x, out):
    """Fill ``out[u - start]`` with ``x[index[u]]``."""
    base, row_bytes = np.uint64(x.ctypes.data), np.uint64(x.shape[1] * x.itemsize)
    for u in range(start, end):
        prefetch_row(base, row_bytes, index[min(u + AHEAD, end - 1)])
        j = index[u]
        for c in range(x.shape[1]):
            out[u - start, c] = x[j, c]


@compiled
def scatter_add(start, end, index, rows, out):
    """Add ``rows[u - start]`` to ``out[index[u]]``."""
    base, row_bytes = np.uint64(out.ctypes.data), np.uint64(out.shape[1] * out.itemsize)
    for u in range(start, end):
        prefetch_row(base, row_bytes, index[min(u + AHEAD, end - 1)])
        j = index[u]
        for c in range(out.shape[1]):
            out[j, c] += rows[u - start, c]


@compiled
def add_rows(lo, hi, first, last, index, rows, out):
    """Add ``rows[u - first]``, for ``u`` in ``first:last``, to ``out[index[u]]`` where ``lo <= index[u] < hi``."""
    for u in range(first, last):
        j = index[u]
        if lo <= j < hi:
            for c in range(out.shape[1]):
                out[j, c] += rows[u - first, c]


@compiled
def sum_rows(lo, hi, starts, rows, sums):
    """Fill ``sums[n]``, in double precision, with the sum of the rows ``lo:hi``, where ``lo`` is ``starts[n]``."""
    part = np.zeros((1, rows.shape[1]), rows.dtype)
    number = np.searchsorted(starts, lo)
    for start in range(lo, hi, LONG):
        for u in range(start, min(start + LONG, hi)):
            for c in range(rows.shape[1]):
                part[0, c] += rows[u, c]
        move_to_double(sums[number], part, 0)


@compiled
def clear_rows(lo, hi, back, rows):
    """Set the entries ``lo:hi`` of a table that no row reads to zero."""
    for t in range(lo, hi):
        if back[t] < 0:
            for c in range(rows.shape[1]):
                rows[t, c] = 0


@compiled
def gather_back(lo, hi, out, first, second, first_back, second_back, both):
    """Fill the entries ``lo:hi`` of a table with the sum of the gradients of the rows that read them, two at most."""
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
def drop_edges(start, end, stream, below, scale, edge_id, attention, weights):
    """Fill ``weights`` with the attention of the edges ``start:end`` after dropout.

    Masks follow from ``edge_id``, or where it is empty from the positions of the edges.
    """
    zero, per_member = attention.dtype.type(0), attention.shape[1] // stream.shape[0]
    for e in range(start, end):
        number = edge_id[e] if edge_id.shape[0] else e
        for m in range(stream.shape[0]):
            for q in range(per_member):
                h = m * per_member + q
                weights[e, h] = attention[e, h] * scale[m] if is_kept(stream[m], number, q, below[m]) else zero


@compiled
def spread(lo, hi, index, relation, table, coefficients, out):
    """Fill ``out[u, h]`` with ``sum over b: coefficients[r, h, b] * table[index[u], h or 0, b]`` for rows ``lo:hi``."""
    num_heads, channels, bases = out.shape[1], out.shape[2], table.shape[2]
    for u in range(lo, hi):
        j, r = index[u], relation[u]
        for h in range(num_heads):
            g = h if table.shape[1] > 1 else 0
            for d in range(channels):
                out[u, h, d] = 0
            for b in range(bases):
                scalar = coefficients[r, h, b]
                for d in range(channels):
                    out[u, h, d] += scalar * table[j, g, b, d]


@compiled
def collect(lo, hi, by_node, node_ptr, relation, rows, coefficients, out):
    """Apply the transpose of ``spread``: sum the rows of the nodes ``lo:hi``, and heads where they share bases."""
    num_heads, channels, groups, bases = rows.shape[1], rows.shape[2], out.shape[1], out.shape[2]
    for j in range(lo, hi):
        for g in range(groups):
            for b in range(bases):
                for d in range(channels):
                    out[j, g, b, d] = 0
        for position in range(node_ptr[j], node_ptr[j + 1]):
            u = by_node[position]
            r = relation[u]
            for h in range(num_heads):
                g = h if groups > 1 else 0
                for b in range(bases):
                    scalar = coefficients[r, h, b]
                    for d in range(channels):
                        out[j, g, b, d] += scalar * rows[u, h, d]


@compiled
def pair(lo, hi, index, relation_ptr, table, rows, out):
    """Fill ``out[lo:hi]``: ``out[r, h, b] = sum over rows u of r: table[index[u], h or 0, b] . rows[u, h]``."""
    num_heads, channels, bases = rows.shape[1], rows.shape[2], table.shape[2]
    zero = rows.dtype.type(0)
    sums = np.zeros((num_heads, bases))  # in double precision
    for r in range(lo, hi):
        for u in range(relation_ptr[r], relation_ptr[r + 1]):
            j = index[u]
            for h in range(num_heads):
                g = h if table.shape[1] > 1 else 0
                for b in range(bases):
                    dot = zero
                    for d in range(channels):
                        dot += table[j, g, b, d] * rows[u, h, d]
                    sums[h, b] += dot
        for h in range(num_heads):
            for b in range(bases):
                out[r, h, b] = sums[h, b]
                sums[h, b] = 0
