"""Sum rows by node, and all rows of a matrix, in Triton: each number is written by one program, in a fixed order."""

# ruff: noqa: N803
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from rgat.ops.triton.launch import first_and_part, grid_with_parts, launch, num_blocks, power_of_two, sum_dtype
from rgat.structure import Rows


@triton.jit(do_not_specialize=["num_nodes"])
def _node_sum_kernel(
    out, rows, by_node, node_ptr, narrow_grad, narrow_weight, narrow_relation, narrow_by_node, narrow_ptr, num_nodes,
    C: tl.constexpr, A: tl.constexpr, ADD: tl.constexpr, T: tl.constexpr, K: tl.constexpr, CP: tl.constexpr,
    AP: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Sum the rows of ``T`` nodes, and other rows: ``narrow_grad`` ``[., A]`` times transposed kernels ``[C, A]``.

    ``K`` rows of a node are loaded before they are added.
    """
    number, block = first_and_part((C + CP - 1) // CP, 1)
    node = number.to(tl.int64) * T + tl.arange(0, T)
    live = node < num_nodes
    c = block * CP + tl.arange(0, CP)
    inside = live[:, None] & (c < C)[None, :]
    total = tl.zeros([T, CP], ACC)
    first = tl.load(node_ptr + node, live, 0)
    last = tl.load(node_ptr + node + 1, live, 0)
    for step in range(0, tl.max(last - first), K):
        for ahead in tl.static_range(K):
            position = first + (step + ahead)
            row = tl.load(by_node + position, position < last, 0).to(tl.int64)
            at = (row * C)[:, None] + c[None, :]
            total += tl.load(rows + at, (position < last)[:, None] & inside, 0.0).to(ACC)
    if narrow_grad is not None:
        a = tl.arange(0, AP)
        products = tl.zeros([T, CP, AP], ACC)
        first = tl.load(narrow_ptr + node, live, 0)
        last = tl.load(narrow_ptr + node + 1, live, 0)
        for step in range(0, tl.max(last - first), K):
            for ahead in tl.static_range(K):
                position = first + (step + ahead)
                exists = position < last
                row = tl.load(narrow_by_node + position, exists, 0).to(tl.int64)
                relation = tl.load(narrow_relation + row, exists, 0).to(tl.int64)
                at = (row * A)[:, None] + a[None, :]
                factor = tl.load(narrow_grad + at, exists[:, None] & (a < A)[None, :], 0.0).to(ACC)
                at = (relation * (C * A))[:, None, None] + c[None, :, None] * A + a[None, None, :]
                mask = exists[:, None, None] & inside[:, :, None] & (a < A)[None, None, :]
                products += tl.load(narrow_weight + at, mask, 0.0).to(ACC) * factor[:, None, :]
        total += tl.sum(products, 2)
    at = (node * C)[:, None] + c[None, :]
    if ADD:
        total += tl.load(out + at, inside, 0.0).to(ACC)
    tl.store(out + at, total, inside)


@triton.jit(do_not_specialize=["size", "num_rows"])
def _column_sum_kernel(out, x, size, num_rows, C: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr, ACC: tl.constexpr):
    """Sum ``num_rows`` consecutive rows of ``x`` ``[size, C]``."""
    number, block = first_and_part((C + BC - 1) // BC, 1)
    begin = number.to(tl.int64) * num_rows
    column = block * BC + tl.arange(0, BC)
    end = tl.minimum(begin + num_rows, size)
    total = tl.zeros([BR, BC], ACC)
    for start in range(begin, end, BR):
        row = start + tl.arange(0, BR)
        exists = (row < end)[:, None] & (column < C)[None, :]
        total += tl.load(x + (row * C)[:, None] + column[None, :], exists, 0.0).to(ACC)
    tl.store(out + number.to(tl.int64) * C + column, tl.sum(total, 0), column < C)


def is_narrow(weight: Tensor) -> bool:
    """Tell whether ``sum_by_node`` can multiply by these kernels, reading them from the L1 cache for each row."""
    _, batch, inputs, width = weight.shape
    return batch == 1 and power_of_two(inputs) * power_of_two(width) <= 1024 and width <= 8


def _nodes_per_program(columns: int, width: int) -> tuple[int, int, int]:
    """Return how many nodes a program sums, how many of their rows it loads at a time, and its warps."""
    if width == 0:
        return power_of_two(128 // columns), 4, 1
    return power_of_two(512 // (columns * power_of_two(width)), 1, 16), 4, 1


def sum_by_node(
    per_row: Tensor, rows: Rows, num_nodes: int, into: Tensor | None = None,
    also: tuple[Tensor, Tensor, Rows] | None = None, dtype: torch.dtype | None = None,
) -> Tensor:  # fmt: skip
    """Return the sum of the rows of each node, ``[N, P, F]``, or add it to ``into``.

    ``also``: gradients of other rows ``[V, 1, A]``, the narrow kernels ``[R, 1, F, A]`` whose transpose they are
    multiplied by, and these rows. Queries are so narrow that this is cheaper than ``row_grads`` and a second sum.
    """
    batch, channels = per_row.shape[1:]
    out = per_row.new_empty(num_nodes, batch, channels, dtype=dtype) if into is None else into
    if out.numel() == 0:
        return out
    columns, acc = batch * channels, sum_dtype(per_row.dtype)[1]
    padded = power_of_two(columns, 1, 256)
    grad, weight, others = (None, None, None) if also is None else also
    width = 0 if weight is None else weight.shape[3]
    together, ahead, warps = _nodes_per_program(padded, width)
    indices = (None, None, None) if others is None else (others.relation, others.by_node, others.node_ptr)
    launch(
        _node_sum_kernel, grid_with_parts(num_blocks(num_nodes, together), num_blocks(columns, padded)),
        (out, per_row, rows.by_node, rows.node_ptr, grad, weight, *indices), (num_nodes,), warps, C=columns, A=width,
        ADD=into is not None, T=together, K=ahead, CP=padded, AP=power_of_two(width) if width else 1, ACC=acc,
    )  # fmt: skip
    return out


def column_sum(x: Tensor) -> Tensor:
    """Return the sum of all rows of ``[N, C]``, in two steps of fixed order."""
    size, columns = x.shape
    dtype, acc = sum_dtype(x.dtype)
    rows = power_of_two(num_blocks(max(size, 1), 1024), 64)
    part = x.new_empty(num_blocks(size, rows), columns, dtype=dtype)
    out = x.new_empty(columns)
    if x.numel() == 0:
        return out.zero_()
    for sums, terms, num_rows, block in ((part, x, rows, power_of_two(columns, 1, 64)), (out, part, len(part), 16)):
        grid = grid_with_parts(num_blocks(len(terms), num_rows), num_blocks(columns, block))
        sizes = (len(terms), num_rows)
        launch(_column_sum_kernel, grid, (sums, terms), sizes, C=columns, BR=4096 // block, BC=block, ACC=acc)
    return out
