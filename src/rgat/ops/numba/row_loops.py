"""Read, add and write rows of tables in loops on the CPU: prefetch, long sums, gather, scatter, embedding lookup."""

from __future__ import annotations

import numba
import numpy as np
from llvmlite import ir

from rgat.ops.numba.compile import compiled, inline

AHEAD = 12  # edges: how far ahead rows are prefetched
LONG = 512  # terms after which a sum continues in double precision


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
