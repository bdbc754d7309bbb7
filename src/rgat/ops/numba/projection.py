"""Products of rows with the kernels of their relations, embedding lookups and bases, and their gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rgat.ops import cache
from rgat.ops.numba import blas, fold_loops, projection_loops, row_loops
from rgat.ops.numba.launch import (
    NO_INDEX,
    NO_MARKS,
    SEVERAL,
    Array,
    as_array,
    as_matrix,
    cut,
    even,
    indices,
    optional_indices,
    run,
)
from rgat.structure import Rows, Structure, pointers

COPIES = 4  # at most: to zero and add a copy of the sums costs as much as a round of as many rows
ROUND = 1 << 20  # numbers in a round at least, so that few nodes with many rows do not need many rounds

_Divide = Callable[[int, int], list[int]]
_Make = Callable[[list[int], Array, Tensor], None]


class NodeSums:
    """Sums ``[N, C]`` to which every row adds for one node.

    Up to ``COPIES`` threads have a copy each. More threads fill a buffer, one round of rows after the other, and after
    each round every thread adds the rows of its own nodes. So memory does not grow with the number of threads.
    """

    def __init__(self, like: Tensor, num_nodes: int, channels: int, ranges: int) -> None:
        """Start with zeros, for this many ranges of rows in parallel; 0: there is nothing to sum."""
        self._in_rounds = ranges > COPIES
        self.copies = like.new_zeros(1 if self._in_rounds else ranges, num_nodes, channels)

    def add(self, node: Array, divide: _Divide, make: _Make) -> None:
        """Call ``make(bounds, into, out)``, which adds each row ``u`` of some ranges to ``out[..., into[u], :]``.

        Args:
            node: The node of each row.
            divide: Returns the bounds of ranges that cover the rows between its two arguments.
            make: Called once, or several times with different rows.
        """
        if self._in_rounds:
            self._add_in_rounds(node, divide, make)
            return
        bounds = divide(0, len(node))
        if 0 < len(self.copies) < len(bounds) - 1:
            bounds = [0, len(node)]
        make(bounds, node, self.copies)

    def _add_in_rounds(self, node: Array, divide: _Divide, make: _Make) -> None:
        _, num_nodes, channels = self.copies.shape
        step = min(max(num_nodes, ROUND // max(channels, 1)), max(len(node), 1))
        into, buffer = np.arange(len(node), dtype=np.int32) % step, self.copies.new_empty(1, step, channels)
        for first in range(0, len(node), step):
            last = min(first + step, len(node))
            make(divide(first, last), into, buffer.zero_())
            arrays = (node, buffer[0].numpy(), self.copies[0].numpy())
            run(row_loops.add_rows, even(0, num_nodes, channels), first, last, *arrays)

    def total(self) -> Tensor:
        """Return the sums; copies are added in their order."""
        for other in self.copies[1:]:
            self.copies[0].add_(other)
        return self.copies[0]


def project(x: Tensor, weight: Tensor, rows: Rows, node: Tensor | None, size: int | None = None) -> Tensor:
    """Multiply the rows ``x[node]`` (or ``x`` itself) by the kernels of their relations.

    The result has as many rows, or ``size``, of which the last are zero.
    """
    return project_apart(x, weight, rows, node, weight.shape[3], size=size)[0]


def project_apart(
    x: Tensor,
    weight: Tensor,
    rows: Rows,
    node: Tensor | None,
    first: int,
    partly: Array = NO_MARKS,
    keyless: Array = NO_MARKS,
    size: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Do the same; return the columns before ``first`` and those behind, which are fewer.

    Of relations that are marked in ``partly`` the columns before ``first`` stay undefined; those behind are zero for
    ``keyless`` ones.
    """
    (_, batch, _, columns), number = weight.shape, rows.relation.shape[0] if size is None else size
    out, behind = x.new_empty(number, batch, first), x.new_empty(number, batch, columns - first)
    out[rows.relation.shape[0] :] = 0
    bounds = even(0, rows.relation.shape[0], math.prod(weight.shape[1:]), SEVERAL)
    run(
        projection_loops.project, bounds, blas.address(x.dtype), optional_indices(node),
        indices(rows.relation_ptr), partly, keyless, *(as_array(t) for t in (x.flatten(1), weight, out, behind)),
    )  # fmt: skip
    return out, behind


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
    (_, batch, columns), width = grad.shape, (weight if x is None else x).shape[2]  # type: ignore[union-attr]
    relations = 0 if x is None else rows.relation_ptr.shape[0] - 1
    dweight = grad.new_zeros(relations, batch, width, columns)
    inputs = grad.new_empty(0, batch, width) if x is None else x
    kernels = grad.new_empty(0, batch, width, columns) if weight is None else weight

    def divide(lo: int, hi: int) -> list[int]:
        return even(lo, hi, batch * width * columns)

    def make(bounds: list[int], into: Array, out: Tensor) -> None:
        run_with_kernel_grads(
            projection_loops.project_backward, bounds, dweight, rows, blas.address(grad.dtype), optional_indices(node),
            into, indices(rows.relation_ptr), as_matrix(grad), as_matrix(inputs), as_array(kernels), as_array(out),
        )  # fmt: skip

    if node is None:  # each row of `x` is read by one row
        make(divide(0, len(grad)), NO_INDEX, dx.copies)
    else:
        dx.add(indices(node), divide, make)
    return dweight


def row_bounds(rows: Rows, shape: Sequence[int]) -> list[int]:
    """Return the rows that each thread multiplies by kernels of some shape."""
    return even(0, rows.relation.shape[0], math.prod(shape))


def run_with_kernel_grads(
    loop: Callable[..., Any], bounds: list[int], dweight: Tensor, rows: Rows, *arguments: Any
) -> None:
    """Run a loop over rows that adds to the gradients ``dweight`` of kernels.

    A relation that two ranges of rows share has a gradient of its own in the second range, which is added here.
    """
    ranges = len(bounds) - 1
    shared = dweight.new_zeros(0 if ranges == 1 and bounds[0] == 0 else ranges, *dweight.shape[1:])
    run(loop, bounds, np.array(bounds), *arguments, as_array(dweight), as_array(shared))
    if len(dweight) and len(shared):
        sums, parts = as_array(dweight), as_array(shared)
        for part, r in enumerate(np.searchsorted(indices(rows.relation_ptr), bounds[:-1], side="right") - 1):
            if r < len(sums):
                sums[r] += parts[part]


def scores_backward(x: Tensor, weight: Tensor, dscores: Tensor, rows: Rows, place: Tensor, dx: Tensor) -> Tensor:
    """Add the gradient of the rows of ``x`` that scores were made of to ``dx``; return that of the kernels."""
    bounds, dweight = row_bounds(rows, weight.shape[1:]), weight.new_zeros(weight.shape)
    run_with_kernel_grads(
        projection_loops.scores_backward, bounds, dweight, rows, indices(place), indices(rows.relation_ptr),
        as_array(dscores), as_matrix(x), as_array(weight), as_array(dx),
    )  # fmt: skip
    return dweight


def _targets(s: Structure) -> Array:
    """Return the target of each target row; ``s.targets.node`` may be the row of a table where its input is."""
    kept, rows = cache.derived(s.targets.by_node), s.targets
    targets: Array | None = kept.get("targets")
    if targets is None:
        number = torch.arange(len(rows.node_ptr) - 1, dtype=torch.int32).repeat_interleave(rows.node_ptr.diff())
        targets = torch.empty_like(number).scatter_(0, rows.by_node.long(), number).numpy()
        kept["targets"] = targets
    return targets


def project_sums(sums: Tensor, weight: Tensor, aggregated: Array, s: Structure, heads: int, channels: int) -> Tensor:
    """Multiply the sums of inputs by the kernels of values, and add them up by target."""

    def divide(lo: int, hi: int) -> list[int]:
        return even(lo, hi, sums.shape[2] * heads * channels)

    def make(bounds: list[int], into: Array, out: Tensor) -> None:
        run(
            projection_loops.project_sums, bounds, np.array(bounds), blas.address(sums.dtype), into,
            indices(s.targets.relation_ptr), aggregated, *(as_array(t) for t in (sums, weight, out)),
        )  # fmt: skip

    ranges = len(divide(0, len(sums))) - 1
    out = NodeSums(sums, len(s.target_ptr) - 1, heads * channels, ranges)
    out.add(_targets(s), divide, make)
    return out.total()


def sums_grad(dsums: Tensor, grad: Tensor, sums: Tensor, weight: Tensor, aggregated: Array, s: Structure) -> Tensor:
    """Fill the gradient of the sums of inputs; return that of their kernels."""
    bounds = even(0, len(sums), sums.shape[2] * grad.shape[1] * grad.shape[2])
    dweight, rows = weight.new_zeros(weight.shape), s.targets
    run_with_kernel_grads(
        projection_loops.project_sums_backward, bounds, dweight, rows, blas.address(grad.dtype), _targets(s),
        indices(rows.relation_ptr), aggregated, as_matrix(grad), *(as_array(t) for t in (sums, weight, dsums)),
    )  # fmt: skip
    return dweight


def sum_rows(rows: Tensor) -> Tensor:
    """Add up the rows of a matrix."""
    bounds = even(0, len(rows), rows.shape[1])
    sums = rows.new_zeros(len(bounds) - 1, rows.shape[1], dtype=torch.float64)
    run(row_loops.sum_rows, bounds, np.array(bounds[:-1]), as_array(rows), as_array(sums))
    return sums.sum(0).to(rows.dtype)


def fold(kernels: Tensor, attention: Tensor) -> tuple[Tensor, Tensor]:
    """Return the folded kernels of source and target rows."""
    (relations, heads, inputs, channels), width = kernels.shape, attention.shape[2] // 2
    weight = kernels.new_empty(relations, 1, inputs, heads * (channels + width))
    query = kernels.new_empty(relations, 1, inputs, heads * width)
    arrays = (as_array(t) for t in (kernels, attention, weight[:, 0], query[:, 0]))
    run(fold_loops.fold, even(0, relations, heads * inputs * channels), blas.address(kernels.dtype), *arrays)
    return weight, query


def fold_backward(dweight: Tensor, dquery: Tensor, kernels: Tensor, attention: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of kernels and attention kernels."""
    dkernels, dattention = torch.empty_like(kernels), torch.empty_like(attention)
    arrays = (as_array(t) for t in (dweight[:, 0], dquery[:, 0], kernels, attention, dkernels, dattention))
    bounds = even(0, len(kernels), kernels[0].numel() if len(kernels) else 0)
    run(fold_loops.fold_backward, bounds, blas.address(kernels.dtype), *arrays)
    return dkernels, dattention


def spread(table: Tensor, coefficients: Tensor, rows: Rows, node: Tensor) -> Tensor:
    """Combine the bases ``table`` ``[N, G, B, D]`` for each row; see `rgat.ops.bases`."""
    (_, _, bases, channels), heads = table.shape, coefficients.shape[1]
    out = table.new_empty(len(rows.relation), heads, channels)
    arrays = (as_array(t) for t in (node, rows.relation, table, coefficients, out))
    run(row_loops.spread, even(0, len(out), heads * bases * channels), *arrays)
    return out


def collect(values: Tensor, coefficients: Tensor, rows: Rows, node: Tensor, num_nodes: int, groups: int) -> Tensor:
    """Apply the transpose of ``spread``: from rows ``[U, H, D]`` to nodes and bases ``[N, G, B, D]``."""
    (_, heads, channels), bases = values.shape, coefficients.shape[2]
    if node is rows.node:
        by_node, node_ptr = rows.by_node, rows.node_ptr
    else:
        by_node, node_ptr = node.argsort(stable=True).int(), pointers(node.bincount(minlength=num_nodes))
    out = values.new_empty(num_nodes, groups, bases, channels)
    arrays = (as_array(t) for t in (by_node, node_ptr, rows.relation, values, coefficients, out))
    run(row_loops.collect, cut(indices(node_ptr), 0, num_nodes, heads * bases * channels), *arrays)
    return out


def pair(table: Tensor, values: Tensor, rows: Rows, node: Tensor) -> Tensor:
    """Return the gradient of the coefficients of ``spread``, ``[R, H, B]``."""
    (_, _, bases, channels), heads = table.shape, values.shape[1]
    out = values.new_empty(len(rows.relation_ptr) - 1, heads, bases)
    arrays = (as_array(t) for t in (node, rows.relation_ptr, table, values, out))
    run(row_loops.pair, cut(indices(rows.relation_ptr), 0, len(out), heads * bases * channels), *arrays)
    return out


def gather_back(grads: list[Tensor], backs: list[Tensor]) -> Tensor:
    """Return the gradient of a table whose rows were looked up at one or two ends."""
    out = grads[0].new_empty(len(backs[0]), *grads[0].shape[1:])
    flat = [as_array(t).reshape(len(t), out[0].numel() if len(out) else 0) for t in (out, grads[0], grads[-1])]
    bounds = even(0, len(out), 3 * flat[0].shape[1])
    run(row_loops.gather_back, bounds, *flat, *(as_array(t) for t in (backs[0], backs[-1])), len(grads) == 2)
    return out
