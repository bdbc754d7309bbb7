"""Loops over rows on the CPU (Numba): bases and folded kernels."""

from __future__ import annotations

import numpy as np

from rgat.ops.numba.compile import compiled


@compiled
def spread(lo, hi, index, relation, table, coefficients, out):
    """``out[u, h] = sum over b: coefficients[r, h, b] * table[index[u], h or 0, b]`` for rows ``lo:hi``."""
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
    """The transpose of ``spread``: sums over the rows of the nodes ``lo:hi`` (and over heads, where they share)."""
    num_heads, channels, groups, bases = rows.shape[1], rows.shape[2], out.shape[1], out.shape[2]
    for j in range(lo, hi):
        for g in range(groups):
            for b in range(bases):
                for d in range(channels):
                    out[j, g, b, d] = 0
        for place in range(node_ptr[j], node_ptr[j + 1]):
            u = by_node[place]
            r = relation[u]
            for h in range(num_heads):
                g = h if groups > 1 else 0
                for b in range(bases):
                    scalar = coefficients[r, h, b]
                    for d in range(channels):
                        out[j, g, b, d] += scalar * rows[u, h, d]


@compiled
def pair(lo, hi, index, relation_ptr, table, rows, out):
    """``out[r, h, b] = sum over the rows u of r: table[index[u], h or 0, b] . rows[u, h]`` for relations ``lo:hi``."""
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


@compiled
def fold(lo, hi, kernels, attention, weight, query):
    """The folded matrices of the relations ``lo:hi``; see ``folding.py``."""
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
    """The gradients of the kernels and attention kernels of the relations ``lo:hi``."""
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
