"""Combine bases for rows, and the gradients of that, in loops on the CPU; see ``ops/bases.py``."""

from __future__ import annotations

import numpy as np

from rgat.ops.numba.compile import compiled


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
