"""Fold attention kernels into relation kernels in loops on the CPU; see ``ops/folding.py``."""

from __future__ import annotations

from rgat.ops.numba.compile import compiled


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
