"""Multiply rows by the kernels of their relations in loops on the CPU, around BLAS; fold kernels and combine bases.

Rows are processed in chunks that stay in the second-level cache between gather, product and scatter. The gradient of
row ``u`` is added to row ``into[u]`` of a sum. Threads share one sum or have a copy each, number ``part``; see
``node_sums``. A relation that two ranges of rows share has one gradient of its kernel per range.
"""

from __future__ import annotations

import numpy as np

from rgat.ops.numba.blas import address_of, multiply
from rgat.ops.numba.compile import compiled, inline
from rgat.ops.numba.row_loops import AHEAD, LONG, gather, move_to_double, prefetch_row, scatter_add

_BUFFER_SIZE = 1 << 17  # numbers in a buffer between a loop and a matrix product: fits the second-level cache
_MIN_CHUNK = 64  # rows
NARROW = 8  # columns up to which loops are faster than BLAS: those of queries, and of layers that compute class logits


@inline
def part_number(bounds, lo):
    """Return the number of the range that begins with ``lo``."""
    part = 0
    while bounds[part] != lo or bounds[part + 1] == lo:
        part += 1
    return part


@inline
def own_copy(copies, part):
    """Return the copy of a sum that a range adds to."""
    return copies[part] if copies.shape[0] > 1 else copies[0]


@compiled
def chunk_size(width):
    """Return how many rows of some width make a chunk."""
    return max(_BUFFER_SIZE // max(width, 1), _MIN_CHUNK)


@inline
def rows_between(relation_ptr, r, lo, hi):
    """Return the range of the rows of relation ``r`` within ``lo:hi``."""
    return max(relation_ptr[r], lo), min(relation_ptr[r + 1], hi)


@compiled
def buffer(rows, width, like):
    """Return uninitialised rows aligned to a cache line, so that BLAS takes the same path every time."""
    spare = 64 // like.itemsize
    memory = np.empty(rows * width + spare, like.dtype)
    skip = (64 - memory.ctypes.data % 64) % 64 // like.itemsize
    return memory[skip : skip + rows * width].reshape((rows, width))


@inline
def is_narrow(batch, columns):
    """Tell whether a loop is faster than BLAS."""
    return batch == 1 and columns <= NARROW


@compiled
def transposed(kernel, begin):
    """Return the columns of a kernel from ``begin`` on, as rows."""
    inputs, columns = kernel.shape
    rows = np.empty((columns - begin, inputs), kernel.dtype)
    for m in range(columns - begin):
        for f in range(inputs):
            rows[m, f] = kernel[f, begin + m]
    return rows


@compiled
def _project_narrow(start, end, index, x, kernel_rows, begin, out):
    """Fill ``out[u, begin + m]`` with ``x[index[u]] . kernel_rows[m]``."""
    base, row_bytes = np.uint64(x.ctypes.data), np.uint64(x.shape[1] * x.itemsize)
    zero, inputs, last = x.dtype.type(0), np.uint64(x.shape[1]), np.uint64(end - 1)
    for u in range(np.uint64(start), np.uint64(end)):
        j = u
        if index.shape[0]:
            prefetch_row(base, row_bytes, index[min(u + np.uint64(AHEAD), last)])
            j = np.uint64(index[u])
        for m in range(np.uint64(kernel_rows.shape[0])):
            dot = zero
            for f in range(inputs):
                dot += x[j, f] * kernel_rows[m, f]
            out[u, np.uint64(begin) + m] = dot


@compiled
def narrow_backward(start, end, index, into, grad, first, x, kernel_rows, dx, dkernel):
    """Add the gradients of ``_project_narrow`` to ``dx[into[u]]`` and ``dkernel``; ``grad[0]`` is row ``first``."""
    inputs, last = np.uint64(kernel_rows.shape[1]), np.uint64(end - 1)
    base, row_bytes = np.uint64(dx.ctypes.data), np.uint64(dx.shape[1] * dx.itemsize)
    other = np.uint64(x.ctypes.data)
    sums = np.zeros(kernel_rows.shape, kernel_rows.dtype)
    for u in range(np.uint64(start), np.uint64(end)):
        j = to = u
        if index.shape[0]:
            further = min(u + np.uint64(AHEAD), last)
            j, to = np.uint64(index[u]), np.uint64(into[u])
            if dkernel.shape[0]:
                prefetch_row(other, row_bytes, index[further])
            if dx.shape[0]:
                prefetch_row(base, row_bytes, into[further])
        for m in range(np.uint64(kernel_rows.shape[0])):
            gradient = grad[u - np.uint64(first), m]
            if gradient == 0:
                continue  # as for queries of softmax groups of one edge
            if dkernel.shape[0]:
                for f in range(inputs):
                    sums[m, f] += gradient * x[j, f]
            if dx.shape[0]:
                for f in range(inputs):
                    dx[to, f] += gradient * kernel_rows[m, f]
    if dkernel.shape[0]:
        for m in range(kernel_rows.shape[0]):
            for f in range(kernel_rows.shape[1]):
                dkernel[f, m] += sums[m, f]


@compiled
def project(lo, hi, routine, index, relation_ptr, partly, first, x, weight, out):
    """Fill ``out[u, p]`` with ``x[index[u], p] @ weight[relation, p]`` for rows ``lo:hi``; no index: with ``x[u, p]``.

    For relations that are marked in ``partly`` fill only the columns from ``first`` on.
    """
    relations, batch, inputs, columns = weight.shape
    step, zero = chunk_size(batch * inputs), x.dtype.type(0)
    gathered = buffer(min(step, hi - lo) if index.shape[0] else 0, batch * inputs, x)
    for r in range(relations):
        start, end = rows_between(relation_ptr, r, lo, hi)
        begin = first if partly.shape[0] and partly[r] else 0
        if start >= end or begin == columns:
            continue
        if is_narrow(batch, columns - begin):
            _project_narrow(start, end, index, x, transposed(weight[r, 0], begin), begin, out[:, 0])
            continue
        for a in range(start, end, step):
            b = min(a + step, end)
            if index.shape[0]:
                gather(a, b, index, x, gathered)
            for p in range(batch):
                left = address_of(gathered, p * inputs) if index.shape[0] else address_of(x, (a * batch + p) * inputs)
                multiply(
                    routine, (b - a, columns - begin, inputs), left, batch * inputs, False,
                    address_of(weight, (r * batch + p) * inputs * columns + begin), columns, False,
                    zero, address_of(out, (a * batch + p) * columns + begin), batch * columns,
                )  # fmt: skip


@inline
def kernel_grad(dweight, shared, part, relation_ptr, r, lo):
    """Return the gradient of a kernel that this range adds to: a relation that began in another range has its own."""
    return shared[part] if relation_ptr[r] < lo else dweight[r]


@inline
def kernel_grad_address(dweight, shared, part, relation_ptr, r, lo):
    """Return its address."""
    return address_of(kernel_grad(dweight, shared, part, relation_ptr, r, lo), 0)


@compiled
def project_backward(lo, hi, bounds, routine, index, into, relation_ptr, grad, x, weight, dx, dweight, shared):
    """Add the gradients of ``project`` of the rows ``lo:hi`` to ``dx`` (inputs) and ``dweight`` (kernels).

    Either may be empty, and is then not computed. Without an index the rows of ``dx`` are those of ``grad``.
    """
    _, batch, inputs, columns = weight.shape
    step, part = chunk_size(batch * max(inputs, columns)), part_number(bounds, lo)
    zero, one = grad.dtype.type(0), grad.dtype.type(1)
    rows = min(step, hi - lo) if index.shape[0] else 0
    gathered, dinputs = buffer(rows, batch * inputs, grad), buffer(rows, batch * inputs, grad)
    for r in range(len(relation_ptr) - 1):
        start, end = rows_between(relation_ptr, r, lo, hi)
        if is_narrow(batch, columns) and start < end:
            kernel = weight[r, 0] if weight.shape[0] else np.zeros((inputs, columns), grad.dtype)
            dkernel = to = gathered[:0]
            if dweight.shape[0]:
                dkernel = kernel_grad(dweight, shared, part, relation_ptr, r, lo)[0]
            if dx.shape[0]:
                to = own_copy(dx, part)
                if index.shape[0] == 0:
                    to[start:end] = 0
            narrow_backward(start, end, index, into, grad, np.int64(0), x, transposed(kernel, np.int64(0)), to, dkernel)
            continue
        for a in range(start, end, step):
            b = min(a + step, end)
            if index.shape[0] and dweight.shape[0]:
                gather(a, b, index, x, gathered)
            for p in range(batch):
                at_grad = address_of(grad, (a * batch + p) * columns)
                if dweight.shape[0]:
                    left = (
                        address_of(gathered, p * inputs) if index.shape[0] else address_of(x, (a * batch + p) * inputs)
                    )
                    multiply(
                        routine, (inputs, columns, b - a), left, batch * inputs, True, at_grad, batch * columns, False,
                        one, kernel_grad_address(dweight, shared, part, relation_ptr, r, lo)
                        + np.uint64(p * inputs * columns * grad.itemsize), columns,
                    )  # fmt: skip
                if dx.shape[0]:
                    to = address_of(dinputs, p * inputs) if index.shape[0] else address_of(dx, (a * batch + p) * inputs)
                    multiply(
                        routine, (b - a, inputs, columns), at_grad, batch * columns, False,
                        address_of(weight, (r * batch + p) * inputs * columns), columns, True, zero, to, batch * inputs,
                    )  # fmt: skip
            if index.shape[0] and dx.shape[0]:
                scatter_add(a, b, into, dinputs, own_copy(dx, part))


@compiled
def scores_backward(lo, hi, bounds, index, relation_ptr, dscores, x, weight, dx, dweight, shared):
    """Add the gradients of ``project`` of the rows ``lo:hi`` to ``dx`` and ``dweight``; zero gradients are skipped.

    No two rows may read the same row of ``x``.
    """
    _, heads, inputs, columns = weight.shape
    part, kernel_rows = part_number(bounds, lo), np.empty((heads * columns, inputs), weight.dtype)
    sums, totals = np.zeros((1, heads * columns, inputs), weight.dtype), np.zeros(heads * columns * inputs)
    for r in range(len(relation_ptr) - 1):
        start, end = rows_between(relation_ptr, r, lo, hi)
        if start >= end:
            continue
        for row in range(heads * columns):
            for f in range(inputs):
                kernel_rows[row, f] = weight[r, row // columns, f, row % columns]
        for begin in range(start, end, LONG):
            for u in range(np.uint64(begin), np.uint64(min(begin + LONG, end))):
                j = np.uint64(index[u])
                for h in range(np.uint64(heads)):
                    at = h * np.uint64(inputs)
                    for m in range(np.uint64(columns)):
                        gradient, row = dscores[u, h, m], h * np.uint64(columns) + m
                        if gradient != 0:
                            for f in range(np.uint64(inputs)):
                                sums[0, row, f] += gradient * x[j, at + f]
                            for f in range(np.uint64(inputs)):
                                dx[j, at + f] += gradient * kernel_rows[row, f]
            move_to_double(totals, sums, 0)
        dkernel = kernel_grad(dweight, shared, part, relation_ptr, r, lo)
        for row in range(heads * columns):
            for f in range(inputs):
                dkernel[row // columns, f, row % columns] += totals[row * inputs + f]
                totals[row * inputs + f] = 0


@compiled
def fold(lo, hi, kernels, attention, weight, query):
    """Fill ``weight`` and ``query``, the folded kernels of the relations ``lo:hi``."""
    _, num_heads, inputs, channels = kernels.shape
    width = attention.shape[2] // 2
    zero = kernels.dtype.type(0)
    for r in range(lo, hi):
        for h in range(num_heads):
            for f in range(inputs):
                for d in range(channels):
                    weight[r, f, h * channels + d] = kernels[r, h, f, d]
                for a in range(2 * width):
                    dot = zero
                    for d in range(channels):
                        dot += kernels[r, h, f, d] * attention[r, h, a, d]
                    if a < width:
                        query[r, f, h * width + a] = dot
                    else:
                        weight[r, f, num_heads * channels + h * width + a - width] = dot


@compiled
def fold_backward(lo, hi, dweight, dquery, kernels, attention, dkernels, dattention):
    """Fill the gradients of the kernels and attention kernels of the relations ``lo:hi``."""
    _, num_heads, inputs, channels = kernels.shape
    width = attention.shape[2] // 2
    for r in range(lo, hi):
        for h in range(num_heads):
            for a in range(2 * width):
                for d in range(channels):
                    dattention[r, h, a, d] = 0
            for f in range(inputs):
                for d in range(channels):
                    dkernels[r, h, f, d] = dweight[r, f, h * channels + d]
                for a in range(2 * width):
                    if a < width:
                        gradient = dquery[r, f, h * width + a]
                    else:
                        gradient = dweight[r, f, num_heads * channels + h * width + a - width]
                    for d in range(channels):
                        dkernels[r, h, f, d] += gradient * attention[r, h, a, d]
                        dattention[r, h, a, d] += gradient * kernels[r, h, f, d]


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
