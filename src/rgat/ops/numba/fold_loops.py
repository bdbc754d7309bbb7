"""Fold the kernels of queries and keys into those of values on the CPU, and compute the gradients; see `projection`."""

from __future__ import annotations

from rgat.ops.numba.blas import address_of
from rgat.ops.numba.compile import compiled
from rgat.ops.numba.tile_loops import multiply, multiply_by, transposed


@compiled
def fold(lo, hi, routine, kernels, attention, weight, query):
    """Fill ``weight`` and ``query``, the folded kernels of the relations ``lo:hi``."""
    _, heads, inputs, channels = kernels.shape
    width, columns, zero = attention.shape[2] // 2, weight.shape[2], kernels.dtype.type(0)
    for r in range(lo, hi):
        for h in range(heads):
            for f in range(inputs):
                for d in range(channels):
                    weight[r, f, h * channels + d] = kernels[r, h, f, d]
            kernel, queries, keys = address_of(kernels[r, h], 0), attention[r, h, :width], attention[r, h, width:]
            multiply_by(
                routine, inputs, kernel, channels, transposed(queries, 0, channels), zero,
                address_of(query[r], h * width), heads * width,
            )  # fmt: skip
            multiply_by(
                routine, inputs, kernel, channels, transposed(keys, 0, channels), zero,
                address_of(weight[r], heads * channels + h * width), columns,
            )  # fmt: skip


@compiled
def fold_backward(lo, hi, routine, dweight, dquery, kernels, attention, dkernels, dattention):
    """Fill the gradients of the kernels and attention kernels of the relations ``lo:hi``."""
    _, heads, inputs, channels = kernels.shape
    width, columns = attention.shape[2] // 2, dweight.shape[2]
    zero, one = kernels.dtype.type(0), kernels.dtype.type(1)
    for r in range(lo, hi):
        for h in range(heads):
            for f in range(inputs):
                for d in range(channels):
                    dkernels[r, h, f, d] = dweight[r, f, h * channels + d]
            dqueries = (address_of(dquery[r], h * width), heads * width, 0)
            dkeys = (address_of(dweight[r], heads * channels + h * width), columns, width * channels)
            for grad, row, half in (dqueries, dkeys):
                multiply(
                    routine, (inputs, channels, width), grad, row, False,
                    address_of(attention[r, h], half), channels, one, address_of(dkernels[r, h], 0), channels,
                )  # fmt: skip
                multiply(
                    routine, (width, channels, inputs), grad, row, True,
                    address_of(kernels[r, h], 0), channels, zero, address_of(dattention[r, h], half), channels,
                )  # fmt: skip
