"""Compute the gradients of a whole layer's inputs and kernels in loops on the CPU, around BLAS.

``table_backward`` handles relations that are projected first, ``project_sums`` those that are aggregated first.
"""

from __future__ import annotations

import numpy as np

from rgat.ops.numba.blas import address_of, multiply
from rgat.ops.numba.compile import compiled
from rgat.ops.numba.dropout_loops import mask_rows
from rgat.ops.numba.projection_loops import (
    buffer,
    chunk_size,
    is_narrow,
    kernel_grad,
    kernel_grad_address,
    narrow_backward,
    own_copy,
    part_number,
    rows_between,
    transposed,
)
from rgat.ops.numba.row_loops import gather, scatter_add
from rgat.ops.numba.source_grad_loops import inputs_by_source, keys_by_source, values_by_source


@compiled
def _row_grads(
    start, end, nowhere, by_source, source_ptr, target, group, group_row, weights, grad, dlogits, additive_dlogits,
    queries, additive, share, channels, is_aggregated, dsums, row_id, stream, below, scale, dtable, columns, dinputs,
):  # fmt: skip
    """Fill ``dtable`` with the gradients of values and keys of the source rows ``start:end``.

    For a relation that is aggregated first there are no values: fill the gradients of its inputs, unless empty.
    """
    first_key, attends = share * channels, queries.shape[0] > 0
    if is_aggregated and dinputs.shape[0]:
        inputs_by_source(start, end, start, by_source, source_ptr, group, group_row, weights, dsums, dinputs)
    elif not is_aggregated:
        values_by_source(
            start, end, start, nowhere, by_source, source_ptr, target, weights, grad, additive_dlogits, dtable, share,
            columns, dtable, columns, first_key,
        )  # fmt: skip
        if below.shape[0]:
            mask_rows(
                start, end, start, nowhere, dtable, weights.shape[1], share, columns, channels, row_id, stream, below,
                scale,
            )  # fmt: skip
    if attends and (is_aggregated or not additive):
        keys_by_source(
            start, end, start, by_source, source_ptr, group, group_row, queries, additive, dlogits, dtable, share,
            columns, first_key,
        )  # fmt: skip


@compiled
def table_backward(
    lo, hi, bounds, routine, index, into, relation_ptr, by_source, source_ptr, target, group, group_row,
    weights, grad, dlogits, queries, additive, share, channels, aggregated, dsums,
    row_id, stream, below, scale, x, weight, dx, dweight, shared,
):  # fmt: skip
    """Add the gradients of inputs and kernels of the source rows ``lo:hi`` to ``dx``, unless empty, and ``dweight``.

    The gradients of values and keys are computed for one chunk at a time and never leave the cache.
    """
    relations, batch, inputs, columns = weight.shape
    step, part = chunk_size(batch * max(inputs, columns)), part_number(bounds, lo)
    zero, one = grad.dtype.type(0), grad.dtype.type(1)
    rows = min(step, hi - lo)
    gathered, dinputs = buffer(rows, batch * inputs, grad), buffer(rows, batch * inputs, grad)
    dtable = buffer(rows, batch * columns, grad)
    additive_dlogits = dlogits if queries.shape[0] > 0 and additive else np.empty((0, 0), dlogits.dtype)
    to = own_copy(dx, part) if dx.shape[0] else gathered[:0]
    for r in range(relations):
        start, end = rows_between(relation_ptr, r, lo, hi)
        is_aggregated = aggregated.shape[0] > 0 and aggregated[r]
        begin = share * channels if is_aggregated else 0
        for a in range(start, end, step):
            b = min(a + step, end)
            _row_grads(
                a, b, index[:0], by_source, source_ptr, target, group, group_row, weights, grad, dlogits,
                additive_dlogits, queries, additive, share, channels, is_aggregated, dsums, row_id, stream, below,
                scale, dtable, columns, dinputs if dx.shape[0] else dinputs[:0],
            )  # fmt: skip
            if not is_aggregated and is_narrow(batch, columns):
                dkernel = kernel_grad(dweight, shared, part, relation_ptr, r, lo)[0]
                narrow_backward(a, b, index, into, dtable, a, x, transposed(weight[r, 0], np.int64(0)), to, dkernel)
                continue
            if begin < columns:
                gather(a, b, index, x, gathered)
                for p in range(batch):
                    at_grad, kernel = address_of(dtable, p * columns + begin), p * inputs * columns + begin
                    dkernel_address = kernel_grad_address(dweight, shared, part, relation_ptr, r, lo)
                    multiply(
                        routine, (inputs, columns - begin, b - a), address_of(gathered, p * inputs), batch * inputs,
                        True, at_grad, batch * columns, False, one, dkernel_address + np.uint64(kernel * grad.itemsize),
                        columns,
                    )  # fmt: skip
                    if dx.shape[0]:
                        multiply(
                            routine, (b - a, inputs, columns - begin), at_grad, batch * columns, False,
                            address_of(weight, r * batch * inputs * columns + kernel), columns, True,
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
                    False, address_of(weight, r * inputs * columns + h * channels), columns, False,
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
                multiply(
                    routine, (b - a, inputs, channels), at_grad, heads * channels, False,
                    address_of(weight, r * inputs * columns + h * channels), columns, True,
                    zero, address_of(dsums, at_sums), heads * inputs,
                )  # fmt: skip
                multiply(
                    routine, (inputs, channels, b - a), address_of(sums, at_sums), heads * inputs, True,
                    at_grad, heads * channels, False, one,
                    kernel_grad_address(dweight, shared, part, relation_ptr, r, lo)
                    + np.uint64(h * channels * grad.itemsize), columns,
                )  # fmt: skip
