"""Products of rows with the kernels of their relations, and their gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from rgat.ops.numba import convolution_loops, projection_loops
from rgat.ops.numba.arrays import (
    NO_INDEX,
    NO_MARKS,
    Array,
    as_array,
    as_matrix,
    gemm_address,
    indices,
    optional_indices,
)
from rgat.ops.numba.node_sums import NodeSums
from rgat.ops.numba.threads import even, run
from rgat.structure import Rows, Structure


def project(
    x: Tensor, weight: Tensor, rows: Rows, node: Tensor | None, partly: Array = NO_MARKS, first: int = 0
) -> Tensor:
    """Multiply the rows ``x[node]`` (or ``x`` itself) by the kernels of their relations.

    Of the relations that are marked in ``partly`` only the columns from ``first`` on; the others stay undefined.
    """
    out = x.new_empty(rows.relation.shape[0], weight.shape[1], weight.shape[3])
    arrays = (as_matrix(x), as_array(weight), as_array(out))
    run(
        projection_loops.project,
        row_bounds(rows, weight.shape[1:]),
        gemm_address(x),
        optional_indices(node),
        indices(rows.relation_ptr),
        partly,
        first,
        *arrays,
    )
    return out


def project_input_grad(grad: Tensor, weight: Tensor, rows: Rows, node: Tensor | None, num_nodes: int) -> Tensor:
    """Return the gradient of ``x``."""
    ranges = 1 if node is None else len(row_bounds(rows, weight.shape[1:])) - 1
    dx = NodeSums(grad, num_nodes, weight.shape[1] * weight.shape[2], ranges)
    project_backward(grad, None, weight, rows, node, dx)
    return dx.total().view(num_nodes, *weight.shape[1:3])


def project_weight_grad(grad: Tensor, x: Tensor, rows: Rows, node: Tensor | None) -> Tensor:
    """Return the gradient of ``weight``."""
    return project_backward(grad, x, None, rows, node, NodeSums(x, 0, 0, 0))


def project_backward(
    grad: Tensor, x: Tensor | None, weight: Tensor | None, rows: Rows, node: Tensor | None, dx: NodeSums
) -> Tensor:
    """Where ``weight`` is given, add the gradient of ``x`` to ``dx``; where ``x`` is, return that of ``weight``."""
    (_, batch, columns), inputs = grad.shape, (weight if x is None else x).shape[2]  # type: ignore[union-attr]
    relations = 0 if x is None else rows.relation_ptr.shape[0] - 1
    dweight = grad.new_zeros(relations, batch, inputs, columns)
    given = grad.new_empty(0, batch, inputs) if x is None else x
    kernels = grad.new_empty(0, batch, inputs, columns) if weight is None else weight

    def divide(lo: int, hi: int) -> list[int]:
        return even(lo, hi, batch * inputs * columns)

    def make(bounds: list[int], into: Array, out: Tensor) -> None:
        shared = shared_grads(dweight, bounds)
        arrays = (as_matrix(grad), as_matrix(given), *(as_array(t) for t in (kernels, out, dweight, shared)))
        where = (gemm_address(grad), optional_indices(node), into, indices(rows.relation_ptr))
        run(projection_loops.project_backward, bounds, np.array(bounds), *where, *arrays)
        add_shared(dweight, shared, bounds, rows)

    if node is None:  # each row of `x` is read by one row
        make(divide(0, len(grad)), NO_INDEX, dx.copies)
    else:
        dx.add(indices(node), divide, make)
    return dweight


def row_bounds(rows: Rows, shape: Sequence[int]) -> list[int]:
    """Return the rows that each thread multiplies by kernels of some shape."""
    return even(0, rows.relation.shape[0], math.prod(shape))


def shared_grads(dweight: Tensor, bounds: list[int]) -> Tensor:
    """Return one more kernel gradient per range of rows: that of a relation which the range before it also has."""
    ranges = len(bounds) - 1
    return dweight.new_zeros(0 if ranges == 1 and bounds[0] == 0 else ranges, *dweight.shape[1:])


def add_shared(dweight: Tensor, shared: Tensor, bounds: list[int], rows: Rows) -> None:
    """Add what `shared_grads` gathered."""
    if not len(dweight) or not len(shared):
        return
    starts = torch.tensor(bounds[:-1])
    for part, r in enumerate((torch.searchsorted(rows.relation_ptr, starts, right=True) - 1).tolist()[: len(shared)]):
        if r < len(dweight):
            dweight[r] += shared[part]


def scores_backward(x: Tensor, weight: Tensor, dscores: Tensor, rows: Rows, place: Tensor, dx: Tensor) -> Tensor:
    """Add the gradient of the rows of ``x`` that scores were made of to ``dx``; return that of the kernels."""
    bounds, dweight = row_bounds(rows, weight.shape[1:]), weight.new_zeros(weight.shape)
    shared = shared_grads(dweight, bounds)
    arrays = (as_array(dscores), as_matrix(x), *(as_array(t) for t in (weight, dx, dweight, shared)))
    run(projection_loops.scores_backward, bounds, np.array(bounds), indices(place), indices(rows.relation_ptr), *arrays)
    add_shared(dweight, shared, bounds, rows)
    return dweight


def project_sums(sums: Tensor, weight: Tensor, aggregated: Array, s: Structure, heads: int, channels: int) -> Tensor:
    """Multiply the sums of inputs by the kernels of values, and add them up by target."""

    def divide(lo: int, hi: int) -> list[int]:
        return even(lo, hi, sums.shape[2] * heads * channels)

    def make(bounds: list[int], into: Array, out: Tensor) -> None:
        arrays = (aggregated, *(as_array(t) for t in (sums, weight, out)))
        where = (gemm_address(sums), into, indices(s.targets.relation_ptr))
        run(convolution_loops.project_sums, bounds, np.array(bounds), *where, *arrays)

    ranges = len(divide(0, len(sums))) - 1
    out = NodeSums(sums, len(s.target_ptr) - 1, heads * channels, ranges)
    out.add(indices(s.targets.node), divide, make)
    return out.total()


def sums_grad(dsums: Tensor, grad: Tensor, sums: Tensor, weight: Tensor, aggregated: Array, s: Structure) -> Tensor:
    """Fill the gradient of the sums of inputs; return that of their kernels."""
    bounds = even(0, len(sums), sums.shape[2] * grad.shape[1] * grad.shape[2])
    dweight = weight.new_zeros(weight.shape)
    shared = shared_grads(dweight, bounds)
    arrays = (as_matrix(grad), *(as_array(t) for t in (sums, weight, dsums, dweight, shared)))
    where = (gemm_address(grad), indices(s.targets.node), indices(s.targets.relation_ptr), aggregated)
    run(convolution_loops.project_sums_backward, bounds, np.array(bounds), *where, *arrays)
    add_shared(dweight, shared, bounds, s.targets)
    return dweight


def fold(kernels: Tensor, attention: Tensor) -> tuple[Tensor, Tensor]:
    """Return the folded kernels of source and target rows."""
    (relations, heads, inputs, channels), width = kernels.shape, attention.shape[2] // 2
    weight = kernels.new_empty(relations, 1, inputs, heads * (channels + width))
    query = kernels.new_empty(relations, 1, inputs, heads * width)
    arrays = (as_array(t) for t in (kernels, attention, weight[:, 0], query[:, 0]))
    run(projection_loops.fold, even(0, relations, heads * inputs * channels), *arrays)
    return weight, query


def fold_backward(dweight: Tensor, dquery: Tensor, kernels: Tensor, attention: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of kernels and attention kernels."""
    dkernels, dattention = torch.empty_like(kernels), torch.empty_like(attention)
    arrays = (as_array(t) for t in (dweight[:, 0], dquery[:, 0], kernels, attention, dkernels, dattention))
    run(projection_loops.fold_backward, even(0, len(kernels), kernels[0].numel() if len(kernels) else 0), *arrays)
    return dkernels, dattention
