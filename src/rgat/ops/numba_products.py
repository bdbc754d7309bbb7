"""Loops over rows on the CPU (Numba): rows gathered and scattered, small products, bases and folded kernels.

Large products are left to BLAS, which several loops here feed; see ``cpu.py``.
"""

from __future__ import annotations

import numpy as np

from rgat.ops.numba_kernels import LONG, bring_back, compiled, put_aside


@compiled
def gather(lo, hi, first, index, x, out):
    """``out[u - first] = x[index[u]]`` for rows ``lo:hi``."""
    for u in range(lo, hi):
        j = index[u]
        for c in range(x.shape[1]):
            out[u - first, c] = x[j, c]


@compiled
def scatter_add(lo, hi, start, end, index, rows, out):
    """``out[index[u]] += rows[u - start]`` for the rows ``start:end`` whose index lies in ``lo:hi``."""
    for u in range(start, end):
        j = index[u]
        if lo <= j < hi:
            for c in range(out.shape[1]):
                out[j, c] += rows[u - start, c]


@compiled
def project(lo, hi, index, relation, x, weight, flipped, out):
    """``out[u, p] = x[index[u], p] @ weight[relation[u], p]`` for rows ``lo:hi`` and small matrices.

    ``flipped`` is the transpose of each matrix: for the columns that do not fill a vector, dot products are better.
    Sums take four terms at a time, so that a partial result is loaded and stored a quarter as often.
    """
    batch, inputs, columns = x.shape[1], x.shape[2], out.shape[2]
    zero = x.dtype.type(0)
    wide, fours = columns - columns % 8, inputs - inputs % 4
    for u in range(lo, hi):
        j = index[u] if index.shape[0] else u
        r = relation[u]
        for p in range(batch):
            for m in range(wide, columns):
                dot = zero
                for f in range(inputs):
                    dot += x[j, p, f] * flipped[r, p, m, f]
                out[u, p, m] = dot
            if wide == 0:
                continue
            for m in range(wide):
                out[u, p, m] = zero
            for f in range(0, fours, 4):
                x0, x1, x2, x3 = x[j, p, f], x[j, p, f + 1], x[j, p, f + 2], x[j, p, f + 3]
                for m in range(wide):
                    out[u, p, m] += (x0 * weight[r, p, f, m] + x1 * weight[r, p, f + 1, m]) + (
                        x2 * weight[r, p, f + 2, m] + x3 * weight[r, p, f + 3, m]
                    )
            for f in range(fours, inputs):
                x0 = x[j, p, f]
                for m in range(wide):
                    out[u, p, m] += x0 * weight[r, p, f, m]


@compiled
def project_input_grad(lo, hi, by_node, node_ptr, relation, grad, flipped, out):
    """``out[j, p] = sum over the rows u of node j: grad[u, p] @ flipped[relation[u], p]`` for nodes ``lo:hi``."""
    batch, inputs, columns = out.shape[1], out.shape[2], grad.shape[2]
    fours = columns - columns % 4
    for j in range(lo, hi):
        for p in range(batch):
            for f in range(inputs):
                out[j, p, f] = 0
        for place in range(node_ptr[j], node_ptr[j + 1]):
            u = by_node[place]
            r = relation[u]
            for p in range(batch):
                for m in range(0, fours, 4):
                    g0, g1, g2, g3 = grad[u, p, m], grad[u, p, m + 1], grad[u, p, m + 2], grad[u, p, m + 3]
                    for f in range(inputs):
                        out[j, p, f] += (g0 * flipped[r, p, m, f] + g1 * flipped[r, p, m + 1, f]) + (
                            g2 * flipped[r, p, m + 2, f] + g3 * flipped[r, p, m + 3, f]
                        )
                for m in range(fours, columns):
                    g0 = grad[u, p, m]
                    for f in range(inputs):
                        out[j, p, f] += g0 * flipped[r, p, m, f]


@compiled
def project_weight_grad(lo, hi, index, relation_ptr, grad, x, out):
    """``out[r, p] = sum over the rows u of r: outer(grad[u, p], x[index[u], p])`` for relations ``lo:hi``."""
    batch, inputs, columns = x.shape[1], x.shape[2], grad.shape[2]
    indexed = index.shape[0] > 0
    total = np.zeros(batch * columns * inputs)
    for r in range(lo, hi):
        for p in range(batch):
            for m in range(columns):
                for f in range(inputs):
                    out[r, p, m, f] = 0
        start, end = relation_ptr[r], relation_ptr[r + 1]
        fours = end - (end - start) % 4
        for first in range(start, fours, LONG):
            for u in range(first, min(first + LONG, fours), 4):
                j0, j1, j2, j3 = u, u + 1, u + 2, u + 3
                if indexed:
                    j0, j1, j2, j3 = index[u], index[u + 1], index[u + 2], index[u + 3]
                for p in range(batch):
                    for m in range(columns):
                        g0, g1, g2, g3 = grad[u, p, m], grad[u + 1, p, m], grad[u + 2, p, m], grad[u + 3, p, m]
                        for f in range(inputs):
                            out[r, p, m, f] += (g0 * x[j0, p, f] + g1 * x[j1, p, f]) + (
                                g2 * x[j2, p, f] + g3 * x[j3, p, f]
                            )
            if end - start > LONG:
                put_aside(total, out, r)
        if end - start > LONG:
            bring_back(total, out, r)
        for u in range(fours, end):
            j0 = index[u] if indexed else u
            for p in range(batch):
                for m in range(columns):
                    g0 = grad[u, p, m]
                    for f in range(inputs):
                        out[r, p, m, f] += g0 * x[j0, p, f]


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
