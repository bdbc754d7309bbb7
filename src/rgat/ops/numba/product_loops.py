"""Loops over rows on the CPU (Numba) around matrix products: gather rows, multiply by their relation's kernel, scatter.

Rows are taken in chunks that stay in the second-level cache from one step to the next. What a row makes for its node is
added to row ``into[u]`` of a sum, of which each range may have a copy of its own, number ``part``; ``cpu.py`` chooses.
The same goes for the gradient of the kernel of a relation that two ranges share.
"""

from __future__ import annotations

import numpy as np

from rgat.ops.numba.attention_loops import (
    AHEAD,
    LONG,
    inputs_by_source,
    keys_by_source,
    mask_rows,
    prefetch_row,
    put_aside,
    values_by_source,
)
from rgat.ops.numba.blas import multiply, place
from rgat.ops.numba.compile import compiled, inline

_BUFFER = 1 << 17  # numbers in a buffer between a loop and a matrix product: fits the second-level cache
_LEAST = 64  # rows of a chunk
NARROW = 8  # columns up to which loops are faster than BLAS: those of queries, and of layers that make logits


@inline
def _part(bounds, lo):
    """The number of the range that begins with ``lo``."""
    part = 0
    while bounds[part] != lo or bounds[part + 1] == lo:
        part += 1
    return part


@inline
def _copy(copies, part):
    """The copy of a sum that a range adds to: its own, or the only one."""
    return copies[part] if copies.shape[0] > 1 else copies[0]


@compiled
def _chunk(width):
    return max(_BUFFER // max(width, 1), _LEAST)


@inline
def _rows_between(relation_ptr, r, lo, hi):
    """The rows of relation ``r`` that lie in ``lo:hi``."""
    return max(relation_ptr[r], lo), min(relation_ptr[r + 1], hi)


@compiled
def _buffer(rows, width, like):
    """Uninitialised rows that begin a cache line, so that BLAS takes the same path every time."""
    spare = 64 // like.itemsize
    memory = np.empty(rows * width + spare, like.dtype)
    skip = (64 - memory.ctypes.data % 64) % 64 // like.itemsize
    return memory[skip : skip + rows * width].reshape((rows, width))


@compiled
def _gather(start, end, index, x, out):
    """``out[u - start] = x[index[u]]``."""
    base, row_bytes = np.uint64(x.ctypes.data), np.uint64(x.shape[1] * x.itemsize)
    for u in range(start, end):
        prefetch_row(base, row_bytes, index[min(u + AHEAD, end - 1)])
        j = index[u]
        for c in range(x.shape[1]):
            out[u - start, c] = x[j, c]


@compiled
def _scatter_add(start, end, index, rows, out):
    """``out[index[u]] += rows[u - start]``."""
    base, row_bytes = np.uint64(out.ctypes.data), np.uint64(out.shape[1] * out.itemsize)
    for u in range(start, end):
        prefetch_row(base, row_bytes, index[min(u + AHEAD, end - 1)])
        j = index[u]
        for c in range(out.shape[1]):
            out[j, c] += rows[u - start, c]


@compiled
def add_rows(lo, hi, first, last, index, rows, out):
    """Add ``rows[u - first]``, of the rows ``first:last``, to ``out[index[u]]`` where that is one of ``lo:hi``."""
    for u in range(first, last):
        j = index[u]
        if lo <= j < hi:
            for c in range(out.shape[1]):
                out[j, c] += rows[u - first, c]


@inline
def _is_narrow(batch, columns):
    return batch == 1 and columns <= NARROW


@compiled
def _turned(kernel, begin):
    """The columns of a kernel from ``begin`` on, as rows."""
    inputs, columns = kernel.shape
    rows = np.empty((columns - begin, inputs), kernel.dtype)
    for m in range(columns - begin):
        for f in range(inputs):
            rows[m, f] = kernel[f, begin + m]
    return rows


@compiled
def _project_narrow(start, end, index, x, turned, begin, out):
    """``out[u, begin + m] = x[index[u]] . turned[m]``."""
    base, row_bytes = np.uint64(x.ctypes.data), np.uint64(x.shape[1] * x.itemsize)
    zero, inputs, last = x.dtype.type(0), np.uint64(x.shape[1]), np.uint64(end - 1)
    for u in range(np.uint64(start), np.uint64(end)):
        j = u
        if index.shape[0]:
            prefetch_row(base, row_bytes, index[min(u + np.uint64(AHEAD), last)])
            j = np.uint64(index[u])
        for m in range(np.uint64(turned.shape[0])):
            dot = zero
            for f in range(inputs):
                dot += x[j, f] * turned[m, f]
            out[u, np.uint64(begin) + m] = dot


@compiled
def _narrow_backward(start, end, index, into, grad, first, x, turned, dx, dkernel):
    """Its gradients, added to ``dx[into[u]]`` and to ``dkernel``; ``grad`` begins with row ``first``."""
    inputs, last = np.uint64(turned.shape[1]), np.uint64(end - 1)
    base, row_bytes = np.uint64(dx.ctypes.data), np.uint64(dx.shape[1] * dx.itemsize)
    other = np.uint64(x.ctypes.data)
    sums = np.zeros(turned.shape, turned.dtype)
    for u in range(np.uint64(start), np.uint64(end)):
        j = to = u
        if index.shape[0]:
            further = min(u + np.uint64(AHEAD), last)
            j, to = np.uint64(index[u]), np.uint64(into[u])
            if dkernel.shape[0]:
                prefetch_row(other, row_bytes, index[further])
            if dx.shape[0]:
                prefetch_row(base, row_bytes, into[further])
        for m in range(np.uint64(turned.shape[0])):
            own = grad[u - np.uint64(first), m]
            if own == 0:
                continue  # as for queries of edges that are alone in their softmax group
            if dkernel.shape[0]:
                for f in range(inputs):
                    sums[m, f] += own * x[j, f]
            if dx.shape[0]:
                for f in range(inputs):
                    dx[to, f] += own * turned[m, f]
    if dkernel.shape[0]:
        for m in range(turned.shape[0]):
            for f in range(turned.shape[1]):
                dkernel[f, m] += sums[m, f]


@compiled
def project(lo, hi, routine, index, relation_ptr, partly, first, x, weight, out):
    """``out[u, p] = x[index[u], p] @ weight[relation, p]`` for rows ``lo:hi``; without an index ``x[u, p]``.

    Of relations that are marked in ``partly`` only the columns from ``first`` on.
    """
    relations, batch, inputs, columns = weight.shape
    step, zero = _chunk(batch * inputs), x.dtype.type(0)
    taken = _buffer(min(step, hi - lo) if index.shape[0] else 0, batch * inputs, x)
    for r in range(relations):
        start, end = _rows_between(relation_ptr, r, lo, hi)
        begin = first if partly.shape[0] and partly[r] else 0
        if start >= end or begin == columns:
            continue
        if _is_narrow(batch, columns - begin):
            _project_narrow(start, end, index, x, _turned(weight[r, 0], begin), begin, out[:, 0])
            continue
        for a in range(start, end, step):
            b = min(a + step, end)
            if index.shape[0]:
                _gather(a, b, index, x, taken)
            for p in range(batch):
                left = place(taken, p * inputs) if index.shape[0] else place(x, (a * batch + p) * inputs)
                multiply(
                    routine, (b - a, columns - begin, inputs), left, batch * inputs, False,
                    place(weight, (r * batch + p) * inputs * columns + begin), columns, False,
                    zero, place(out, (a * batch + p) * columns + begin), batch * columns,
                )  # fmt: skip


@inline
def _own_kernel(dweight, shared, part, relation_ptr, r, lo):
    """Where the gradient of a kernel is summed: a relation that began in another range has a place of its own."""
    return shared[part] if relation_ptr[r] < lo else dweight[r]


@inline
def _kernel_grad(dweight, shared, part, relation_ptr, r, lo):
    """The address of that place."""
    return place(_own_kernel(dweight, shared, part, relation_ptr, r, lo), 0)


@compiled
def project_backward(lo, hi, bounds, routine, index, into, relation_ptr, grad, x, weight, dx, dweight, shared):
    """Gradients of ``project`` of the rows ``lo:hi``: of inputs, added to ``dx``, and of kernels, to ``dweight``.

    Either may be empty, and is then not computed. Without an index the rows of ``dx`` are those of ``grad``.
    """
    _, batch, inputs, columns = weight.shape
    step, part = _chunk(batch * max(inputs, columns)), _part(bounds, lo)
    zero, one = grad.dtype.type(0), grad.dtype.type(1)
    rows = min(step, hi - lo) if index.shape[0] else 0
    taken, dinputs = _buffer(rows, batch * inputs, grad), _buffer(rows, batch * inputs, grad)
    for r in range(len(relation_ptr) - 1):
        start, end = _rows_between(relation_ptr, r, lo, hi)
        if _is_narrow(batch, columns) and start < end:
            kernel = weight[r, 0] if weight.shape[0] else np.zeros((inputs, columns), grad.dtype)
            own = to = taken[:0]
            if dweight.shape[0]:
                own = _own_kernel(dweight, shared, part, relation_ptr, r, lo)[0]
            if dx.shape[0]:
                to = _copy(dx, part)
                if index.shape[0] == 0:
                    to[start:end] = 0
            _narrow_backward(start, end, index, into, grad, np.int64(0), x, _turned(kernel, np.int64(0)), to, own)
            continue
        for a in range(start, end, step):
            b = min(a + step, end)
            if index.shape[0] and dweight.shape[0]:
                _gather(a, b, index, x, taken)
            for p in range(batch):
                own = place(grad, (a * batch + p) * columns)
                if dweight.shape[0]:
                    left = place(taken, p * inputs) if index.shape[0] else place(x, (a * batch + p) * inputs)
                    multiply(
                        routine, (inputs, columns, b - a), left, batch * inputs, True, own, batch * columns, False, one,
                        _kernel_grad(dweight, shared, part, relation_ptr, r, lo)
                        + np.uint64(p * inputs * columns * grad.itemsize), columns,
                    )  # fmt: skip
                if dx.shape[0]:
                    to = place(dinputs, p * inputs) if index.shape[0] else place(dx, (a * batch + p) * inputs)
                    multiply(
                        routine, (b - a, inputs, columns), own, batch * columns, False,
                        place(weight, (r * batch + p) * inputs * columns), columns, True, zero, to, batch * inputs,
                    )  # fmt: skip
            if index.shape[0] and dx.shape[0]:
                _scatter_add(a, b, into, dinputs, _copy(dx, part))


@compiled
def table_backward(
    lo, hi, bounds, routine, index, into, relation_ptr, by_source, source_ptr, target, group, group_row,
    weights, grad, dlogits, queries, additive, share, channels, aggregated, dsums,
    row_id, stream, below, scale, x, weight, dx, dweight, shared,
):  # fmt: skip
    """From the gradients of outputs and logits to those of inputs and kernels, for the source rows ``lo:hi``.

    The gradients of values and keys are made for one chunk at a time and never leave the cache. ``dx`` may be empty,
    and is then not computed.
    """
    relations, batch, inputs, columns = weight.shape
    step, part, first = _chunk(batch * max(inputs, columns)), _part(bounds, lo), share * channels
    zero, one = grad.dtype.type(0), grad.dtype.type(1)
    rows = min(step, hi - lo)
    taken, dinputs = _buffer(rows, batch * inputs, grad), _buffer(rows, batch * inputs, grad)
    dtable = _buffer(rows, batch * columns, grad)
    attends, nowhere = queries.shape[0] > 0, index[:0]
    together = dlogits if attends and additive else np.empty((0, 0), dlogits.dtype)
    to = _copy(dx, part) if dx.shape[0] else taken[:0]
    for r in range(relations):
        start, end = _rows_between(relation_ptr, r, lo, hi)
        summed = aggregated.shape[0] > 0 and aggregated[r]
        for a in range(start, end, step):
            b = min(a + step, end)
            if summed and dx.shape[0]:
                inputs_by_source(a, b, a, by_source, source_ptr, group, group_row, weights, dsums, dinputs)
            elif not summed:
                values_by_source(
                    a, b, a, nowhere, by_source, source_ptr, target, weights, grad, together, dtable, share, columns,
                    dtable, columns, first,
                )  # fmt: skip
                if below.shape[0]:
                    mask_rows(
                        a, b, a, nowhere, dtable, weights.shape[1], share, columns, channels, row_id,
                        stream, below, scale,
                    )  # fmt: skip
            if attends and (summed or not additive):
                keys_by_source(
                    a, b, a, by_source, source_ptr, group, group_row, queries, additive, dlogits, dtable,
                    share, columns, first,
                )  # fmt: skip
            begin = first if summed else 0
            if not summed and _is_narrow(batch, columns):
                own = _own_kernel(dweight, shared, part, relation_ptr, r, lo)[0]
                _narrow_backward(a, b, index, into, dtable, a, x, _turned(weight[r, 0], np.int64(0)), to, own)
                continue
            if begin < columns:
                _gather(a, b, index, x, taken)
                for p in range(batch):
                    own, kernel = place(dtable, p * columns + begin), p * inputs * columns + begin
                    multiply(
                        routine, (inputs, columns - begin, b - a), place(taken, p * inputs), batch * inputs, True,
                        own, batch * columns, False, one,
                        _kernel_grad(dweight, shared, part, relation_ptr, r, lo) + np.uint64(kernel * grad.itemsize),
                        columns,
                    )  # fmt: skip
                    if dx.shape[0]:
                        multiply(
                            routine, (b - a, inputs, columns - begin), own, batch * columns, False,
                            place(weight, r * batch * inputs * columns + kernel), columns, True,
                            one if summed else zero, place(dinputs, p * inputs), batch * inputs,
                        )  # fmt: skip
            if dx.shape[0]:
                _scatter_add(a, b, into, dinputs, to)


@compiled
def project_sums(lo, hi, bounds, routine, into, relation_ptr, aggregated, sums, weight, out):
    """Add the sums of inputs ``[V, H, F]`` of target rows ``lo:hi``, times the kernels of values, to ``out``."""
    _, _, inputs, columns = weight.shape
    heads, channels = sums.shape[1], out.shape[2] // sums.shape[1]
    step, part, zero = _chunk(heads * channels), _part(bounds, lo), sums.dtype.type(0)
    made = _buffer(min(step, hi - lo), heads * channels, sums)
    for r in range(len(relation_ptr) - 1):
        start, end = _rows_between(relation_ptr, r, lo, hi)
        for a in range(start, end if aggregated[r] else start, step):
            b = min(a + step, end)
            for h in range(heads):
                multiply(
                    routine, (b - a, channels, inputs), place(sums, (a * heads + h) * inputs), heads * inputs, False,
                    place(weight, r * inputs * columns + h * channels), columns, False,
                    zero, place(made, h * channels), heads * channels,
                )  # fmt: skip
            _scatter_add(a, b, into, made, _copy(out, part))


@compiled
def project_sums_backward(
    lo, hi, bounds, routine, node, relation_ptr, aggregated, grad, sums, weight, dsums, dweight, shared
):
    """Gradients of ``project_sums``: of the sums of the target rows ``lo:hi``, and of their kernels."""
    _, _, inputs, columns = weight.shape
    heads, channels = sums.shape[1], grad.shape[1] // sums.shape[1]
    step, part = _chunk(heads * channels), _part(bounds, lo)
    zero, one = sums.dtype.type(0), sums.dtype.type(1)
    taken = _buffer(min(step, hi - lo), heads * channels, sums)
    for r in range(len(relation_ptr) - 1):
        start, end = _rows_between(relation_ptr, r, lo, hi)
        for a in range(start, end if aggregated[r] else start, step):
            b = min(a + step, end)
            _gather(a, b, node, grad, taken)
            for h in range(heads):
                own, place_of_sums = place(taken, h * channels), (a * heads + h) * inputs
                multiply(
                    routine, (b - a, inputs, channels), own, heads * channels, False,
                    place(weight, r * inputs * columns + h * channels), columns, True,
                    zero, place(dsums, place_of_sums), heads * inputs,
                )  # fmt: skip
                multiply(
                    routine, (inputs, channels, b - a), place(sums, place_of_sums), heads * inputs, True,
                    own, heads * channels, False, one,
                    _kernel_grad(dweight, shared, part, relation_ptr, r, lo) + np.uint64(h * channels * grad.itemsize),
                    columns,
                )  # fmt: skip


@compiled
def scores_backward(lo, hi, bounds, index, relation_ptr, dscores, x, weight, dx, dweight, shared):
    """Gradients of ``project`` of the rows ``lo:hi``, each of which reads another row of ``x``; zeros cost little.

    They are added to the rows of ``dx``, and to ``dweight``.
    """
    _, heads, inputs, columns = weight.shape
    part, turned = _part(bounds, lo), np.empty((heads * columns, inputs), weight.dtype)
    sums, totals = np.zeros((1, heads * columns, inputs), weight.dtype), np.zeros(heads * columns * inputs)
    for r in range(len(relation_ptr) - 1):
        start, end = _rows_between(relation_ptr, r, lo, hi)
        if start >= end:
            continue
        for row in range(heads * columns):
            for f in range(inputs):
                turned[row, f] = weight[r, row // columns, f, row % columns]
        for begin in range(start, end, LONG):
            for u in range(np.uint64(begin), np.uint64(min(begin + LONG, end))):
                j = np.uint64(index[u])
                for h in range(np.uint64(heads)):
                    at = h * np.uint64(inputs)
                    for m in range(np.uint64(columns)):
                        slope, row = dscores[u, h, m], h * np.uint64(columns) + m
                        if slope != 0:
                            for f in range(np.uint64(inputs)):
                                sums[0, row, f] += slope * x[j, at + f]
                            for f in range(np.uint64(inputs)):
                                dx[j, at + f] += slope * turned[row, f]
            put_aside(totals, sums, 0)
        own = _own_kernel(dweight, shared, part, relation_ptr, r, lo)
        for row in range(heads * columns):
            for f in range(inputs):
                own[row // columns, f, row % columns] += totals[row * inputs + f]
                totals[row * inputs + f] = 0
