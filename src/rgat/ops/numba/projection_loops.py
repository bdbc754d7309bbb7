"""Multiply rows by the kernels of their relations in loops on the CPU, around BLAS, and compute the gradients.

Rows are processed in chunks that stay in the second-level cache between gather, product and scatter. The gradient of
row ``u`` is added to row ``into[u]`` of a sum. Threads share one sum or have a copy each, number ``part``; see
``projection.NodeSums``. A relation that two ranges of rows share has one gradient of its kernel per range.

``source_rows_backward`` computes the gradients of a whole layer for relations that are projected first.
``project_sums`` multiplies the sums of inputs of those that are aggregated first.
"""

from __future__ import annotations

import numpy as np

from rgat.ops.numba.attention_grad_loops import inputs_by_source, keys_by_source, values_by_source
from rgat.ops.numba.blas import address_of
from rgat.ops.numba.compile import compiled, inline
from rgat.ops.numba.row_loops import AHEAD, LONG, gather, mask_rows, move_to_double, prefetch_row, scatter_add
from rgat.ops.numba.tile_loops import multiply, multiply_by, transposed

_BUFFER_SIZE = 1 << 15  # numbers in a buffer between a loop and a matrix product: three fit the second-level cache
_MIN_CHUNK = 64  # rows
NARROW = 4  # columns up to which dot products are faster than tiles: those of additive queries and keys


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
    """Tell whether dot products are faster than tiles."""
    return batch == 1 and columns <= NARROW


@compiled
def _project_narrow(start, end, index, x, kernel_rows, out):
    """Fill ``out[u, m]`` with ``x[index[u]] . kernel_rows[m]``; no index: with ``x[u] . kernel_rows[m]``."""
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
            out[u, m] = dot


@compiled
def _multiply_rows(routine, rows, kernel, begin, out):
    """Fill ``out[u, p]`` with the products of ``rows[u, p]`` and the columns of ``kernel[p]`` from ``begin`` on."""
    _, batch, count = out.shape
    inputs, columns = kernel.shape[1:]
    if count == 0:
        return
    if is_narrow(batch, count):
        kernel_rows = transposed(kernel[0], begin, begin + count)
        _project_narrow(0, out.shape[0], np.empty(0, np.int32), rows, kernel_rows, out[:, 0])
        return
    for p in range(batch):
        multiply(
            routine, (out.shape[0], count, inputs), address_of(rows, p * inputs), batch * inputs, False,
            address_of(kernel, p * inputs * columns + begin), columns,
            rows.dtype.type(0), address_of(out, p * count), batch * count,
        )  # fmt: skip


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
def project(lo, hi, routine, index, relation_ptr, partly, keyless, x, weight, out, behind):
    """Fill ``out[u, p]`` with ``x[index[u], p] @ weight[relation, p]`` for rows ``lo:hi``; no index: with ``x[u, p]``.

    The last columns go to ``behind``; for relations that are marked in ``partly`` fill only these, and for those in
    ``keyless`` fill these with zeros.
    """
    relations, batch, inputs, columns = weight.shape
    step, first = chunk_size(batch * inputs), out.shape[2]
    is_read_in_place = is_narrow(batch, first) and first == columns
    gathered = buffer(min(step, hi - lo) if index.shape[0] and not is_read_in_place else 0, batch * inputs, x)
    for r in range(relations):
        start, end = rows_between(relation_ptr, r, lo, hi)
        if start >= end or columns == 0:
            continue
        if is_read_in_place:
            _project_narrow(start, end, index, x, transposed(weight[r, 0], 0, columns), out[:, 0])
            continue
        for a in range(start, end, step):
            b = min(a + step, end)
            if index.shape[0]:
                gather(a, b, index, x, gathered)
            rows = gathered if index.shape[0] else x[a:b]
            if not (partly.shape[0] and partly[r]):
                _multiply_rows(routine, rows, weight[r], 0, out[a:b])
            if keyless.shape[0] and keyless[r]:
                behind[a:b] = 0
            else:
                _multiply_rows(routine, rows, weight[r], first, behind[a:b])


@inline
def kernel_grad(dweight, shared, part, relation_ptr, r, lo):
    """Return the gradient of a kernel that this range adds to: a relation that began in another range has its own."""
    return shared[part] if relation_ptr[r] < lo else dweight[r]


@compiled
def _transposed_kernels(weight, r, begin, end):
    """Return the columns ``begin:end`` of the kernels of a relation as rows."""
    _, batch, inputs, _ = weight.shape
    rows = np.empty((batch, end - begin, inputs), weight.dtype)
    for p in range(batch):
        for m in range(end - begin):
            for f in range(inputs):
                rows[p, m, f] = weight[r, p, f, begin + m]
    return rows


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
            narrow_backward(start, end, index, into, grad, np.int64(0), x, transposed(kernel, 0, columns), to, dkernel)
            continue
        flipped = _transposed_kernels(weight, r, 0, columns if start < end and dx.shape[0] else 0)
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
                        routine, (inputs, columns, b - a), left, batch * inputs, True, at_grad, batch * columns,
                        one, address_of(kernel_grad(dweight, shared, part, relation_ptr, r, lo), p * inputs * columns),
                        columns,
                    )  # fmt: skip
                if dx.shape[0]:
                    to = address_of(dinputs, p * inputs) if index.shape[0] else address_of(dx, (a * batch + p) * inputs)
                    multiply_by(routine, b - a, at_grad, batch * columns, flipped[p], zero, to, batch * inputs)
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
def _row_grads(
    start, end, nowhere, by_source, source_ptr, target_by_source, query_by_source, group, group_row, weights, grad,
    dlogits, additive_dlogits, queries, additive, share, channels, is_aggregated, dsums, row_id, stream, below, scale,
    dtable, columns, dinputs,
):  # fmt: skip
    """Fill ``dtable`` with the gradients of values and keys of the source rows ``start:end``.

    For a relation that is aggregated first there are no values: fill the gradients of its inputs, unless empty.
    """
    first_key, attends = share * channels, queries.shape[0] > 0
    if is_aggregated and dinputs.shape[0]:
        inputs_by_source(start, end, start, by_source, source_ptr, group, group_row, weights, dsums, dinputs)
    elif not is_aggregated:
        values_by_source(
            start, end, start, nowhere, by_source, source_ptr, target_by_source, weights, grad, additive_dlogits,
            dtable, share, columns, dtable, columns, first_key,
        )  # fmt: skip
        if below.shape[0]:
            mask_rows(
                start, end, start, nowhere, dtable, weights.shape[1], share, columns, channels, row_id, stream, below,
                scale,
            )  # fmt: skip
    if attends and (is_aggregated or not additive):
        keys_by_source(
            start, end, start, by_source, source_ptr, query_by_source, queries, additive, dlogits, dtable, share,
            columns, first_key,
        )  # fmt: skip


@compiled
def source_rows_backward(
    lo, hi, bounds, routine, index, into, relation_ptr, by_source, source_ptr, target_by_source, query_by_source,
    group, group_row, weights, grad, dlogits, queries, additive, share, channels, aggregated, keyless, dsums,
    row_id, stream, below, scale, x, weight, dx, dweight, shared,
):  # fmt: skip
    """Add the gradients of inputs and kernels of the source rows ``lo:hi`` to ``dx``, unless empty, and ``dweight``.

    The gradients of values and keys are computed for one chunk at a time and never leave the cache. Relations that are
    marked in ``keyless`` have no gradients of keys.
    """
    relations, batch, inputs, columns = weight.shape
    step, part = chunk_size(batch * max(inputs, columns)), part_number(bounds, lo)
    zero, one = grad.dtype.type(0), grad.dtype.type(1)
    rows = min(step, hi - lo)
    gathered, dinputs = buffer(rows, batch * inputs, grad), buffer(rows, batch * inputs, grad)
    dtable = buffer(rows, batch * columns, grad)
    if queries.shape[0] == 0:
        dtable[:] = 0  # every edge is alone in its group: nothing fills the columns of keys
    additive_dlogits = dlogits if queries.shape[0] > 0 and additive else np.empty((0, 0), dlogits.dtype)
    to = own_copy(dx, part) if dx.shape[0] else gathered[:0]
    for r in range(relations):
        start, end = rows_between(relation_ptr, r, lo, hi)
        is_aggregated = aggregated.shape[0] > 0 and aggregated[r]
        is_keyless = keyless.shape[0] > 0 and keyless[r] and not is_narrow(batch, columns)
        begin, last = share * channels if is_aggregated else 0, share * channels if is_keyless else columns
        flipped = _transposed_kernels(weight, r, begin, last if start < end and dx.shape[0] else begin)
        for a in range(start, end, step):
            b = min(a + step, end)
            _row_grads(
                a, b, index[:0], by_source, source_ptr, target_by_source, query_by_source, group, group_row, weights,
                grad, dlogits, additive_dlogits, queries[:0] if is_keyless else queries, additive, share, channels,
                is_aggregated, dsums, row_id, stream, below, scale, dtable, columns,
                dinputs if dx.shape[0] else dinputs[:0],
            )  # fmt: skip
            if not is_aggregated and is_narrow(batch, columns):
                dkernel = kernel_grad(dweight, shared, part, relation_ptr, r, lo)[0]
                narrow_backward(a, b, index, into, dtable, a, x, transposed(weight[r, 0], 0, columns), to, dkernel)
                continue
            if begin < last:
                gather(a, b, index, x, gathered)
                for p in range(batch):
                    at_grad, kernel = address_of(dtable, p * columns + begin), p * inputs * columns + begin
                    to_kernel = address_of(kernel_grad(dweight, shared, part, relation_ptr, r, lo), kernel)
                    multiply(
                        routine, (inputs, last - begin, b - a), address_of(gathered, p * inputs), batch * inputs,
                        True, at_grad, batch * columns, one, to_kernel, columns,
                    )  # fmt: skip
                    if dx.shape[0]:
                        multiply_by(
                            routine, b - a, at_grad, batch * columns, flipped[p],
                            one if is_aggregated else zero, address_of(dinputs, p * inputs), batch * inputs,
                        )  # fmt: skip
            if dx.shape[0]:
                scatter_add(a, b, into, dinputs, to)


@compiled
def project_sums(lo, hi, bounds, routine, into, relation_ptr, aggregated, sums, weight, out):
    """Add the sums of inputs ``[V, H, F]`` of target rows ``lo:hi``, times the kernels of values, to ``out``."""
    _, _, inputs, columns = weight.shape
    heads, channels = sums.shape[1], out.shape[2] // sums.shape[1]
    step, part, zero = chunk_size(heads * channels), part_number(bounds, lo), sums.dtype.type(0)
    products = buffer(min(step, hi - lo), heads * channels, sums)
    for r in range(len(relation_ptr) - 1):
        start, end = rows_between(relation_ptr, r, lo, hi)
        for a in range(start, end if aggregated[r] else start, step):
            b = min(a + step, end)
            for h in range(heads):
                multiply(
                    routine, (b - a, channels, inputs), address_of(sums, (a * heads + h) * inputs), heads * inputs,
                    False, address_of(weight, r * inputs * columns + h * channels), columns,
                    zero, address_of(products, h * channels), heads * channels,
                )  # fmt: skip
            scatter_add(a, b, into, products, own_copy(out, part))


@compiled
def project_sums_backward(
    lo, hi, bounds, routine, node, relation_ptr, aggregated, grad, sums, weight, dsums, dweight, shared
):
    """Fill the gradients of the sums of the target rows ``lo:hi``, and add those of their kernels to ``dweight``."""
    _, _, inputs, columns = weight.shape
    heads, channels = sums.shape[1], grad.shape[1] // sums.shape[1]
    step, part = chunk_size(heads * channels), part_number(bounds, lo)
    zero, one = sums.dtype.type(0), sums.dtype.type(1)
    gathered = buffer(min(step, hi - lo), heads * channels, sums)
    for r in range(len(relation_ptr) - 1):
        start, end = rows_between(relation_ptr, r, lo, hi)
        for a in range(start, end if aggregated[r] else start, step):
            b = min(a + step, end)
            gather(a, b, node, grad, gathered)
            for h in range(heads):
                at_grad, at_sums = address_of(gathered, h * channels), (a * heads + h) * inputs
                multiply_by(
                    routine, b - a, at_grad, heads * channels,
                    transposed(weight[r, 0], h * channels, (h + 1) * channels), zero,
                    address_of(dsums, at_sums), heads * inputs,
                )  # fmt: skip
                multiply(
                    routine, (inputs, channels, b - a), address_of(sums, at_sums), heads * inputs, True,
                    at_grad, heads * channels, one,
                    address_of(kernel_grad(dweight, shared, part, relation_ptr, r, lo), h * channels), columns,
                )  # fmt: skip
