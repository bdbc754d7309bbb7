"""Compute the gradient of relation kernels in Triton.

``dweight[r] = sum over tiles of r: x[nodes of the tile].T @ dout[rows of the tile]``: one launch writes the summand of
each tile, a second adds the tiles of each relation in order. There are no atomics, so results are bit-identical in
every run.
"""

# ruff: noqa: N803
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from rgat.ops.triton.launch import LARGE, first_and_part, grid_with_parts, launch, num_blocks, power_of_two, sum_dtype
from rgat.ops.triton.row_tiles import (
    dot_halves,
    fit_one_launch,
    halves,
    load_rows,
    precision,
    rows_per_tile,
    rows_to_read,
    tile,
    tiles_by_node,
)


@triton.jit
def _outer(a, b, total, PRECISION: tl.constexpr):
    """Return ``total + a.T @ b``."""
    if PRECISION is None:
        total += tl.sum(a[:, :, None] * b[:, None, :], 0)
    elif PRECISION == "tf32x3" and a.shape[1] >= 64:  # smaller ones use tensor-core instructions that transpose tf32
        high, low, undo = halves(a, tl.max(tl.abs(a), 0)[None, :])
        right, right_low, right_undo = halves(b, tl.max(tl.abs(b)))
        part = dot_halves(tl.trans(high), tl.trans(low), right, right_low, tl.zeros_like(total))
        total += (part * tl.trans(undo)) * right_undo  # in this order: their product may be out of range
    else:
        total = tl.dot(tl.trans(a), b, total, input_precision=PRECISION)
    return total


@triton.jit(do_not_specialize=["num_relations"])
def _tile_grad_kernel(
    part, grad, narrow_grad, x, node, relation_ptr, order, num_relations, P: tl.constexpr, F: tl.constexpr,
    M: tl.constexpr, A: tl.constexpr, ROWS: tl.constexpr, RP: tl.constexpr, BR: tl.constexpr, BF: tl.constexpr,
    BM: tl.constexpr, BA: tl.constexpr, TOGETHER: tl.constexpr, PRECISION: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Write what one tile adds to the gradient of its kernel ``[F, M]``, and of the ``A`` columns after it."""
    across: tl.constexpr = (M + BM - 1) // BM
    number, block = first_and_part((F + BF - 1) // BF * across, 2, TOGETHER)
    number, _relation, begin, end = tile(number, order, relation_ptr, num_relations, ROWS, RP)
    p = tl.program_id(1)
    f = (block // across) * BF + tl.arange(0, BF)
    m = (block % across) * BM + tl.arange(0, BM)
    if F * (M + A) >= 2**31:  # entries of one kernel
        f = f.to(tl.int64)
    a = tl.arange(0, BA)
    total = tl.zeros([BF, BM], ACC)
    narrow_total = tl.zeros([BF, BA], ACC)
    row = begin + tl.arange(0, BR)
    source = rows_to_read(node, row, end)
    for _ in range(begin, end, BR):
        live = row < end
        left = load_rows(x, source, live, p, f, P, F)
        right = load_rows(grad, row, live, p, m, P, M)
        source = rows_to_read(node, row + BR, end)
        if narrow_grad is not None:
            narrow_total = _outer(left, load_rows(narrow_grad, row, live, 0, a, 1, A), narrow_total, PRECISION)
        total = _outer(left, right, total, PRECISION)
        row += BR
    if begin < end:
        to = part + (number * P + p) * (F * (M + A)) + f[:, None] * (M + A)
        tl.store(to + m[None, :], total, (f < F)[:, None] & (m < M)[None, :])
        if narrow_grad is not None:
            tl.store(to + M + a[None, :], narrow_total, (f < F)[:, None] & (a < A)[None, :])


@triton.jit
def _add_tiles_kernel(
    out, part, relation_ptr, SIZE: tl.constexpr, M: tl.constexpr, W: tl.constexpr, BEGIN: tl.constexpr,
    ROWS: tl.constexpr, BE: tl.constexpr, BC: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Add the tiles of a relation, ``SIZE`` numbers in rows of ``M``, into the columns of ``W`` from ``BEGIN`` on."""
    relation, block = first_and_part((SIZE + BC - 1) // BC, 1)
    if SIZE // M * W >= 2**31:  # entries of one kernel
        block = block.to(tl.int64)
    column = block * BC + tl.arange(0, BC)
    begin = tl.load(relation_ptr + relation)
    count = tl.cdiv(tl.load(relation_ptr + relation + 1) - begin, ROWS)
    first = begin // ROWS + relation
    total = tl.zeros([BE, BC], ACC)
    for start in range(0, count, BE):
        number = start + tl.arange(0, BE)
        at = ((first + number).to(tl.int64) * SIZE)[:, None] + column[None, :]
        total += tl.load(part + at, (number < count)[:, None] & (column < SIZE)[None, :], 0.0)
    out += relation.to(tl.int64) * (SIZE // M * W) + BEGIN
    tl.store(out + column // M * W + column % M, tl.sum(total, 0), column < SIZE)


def weight_grad(grads: Sequence[Tensor], x: Tensor, node: Tensor | None, relation_ptr: Tensor) -> Tensor:
    """Return the gradient of the kernels, ``[R, P, F, M]``, from those of the parts of ``project``."""
    num_relations, (num_rows, batch, _), channels = relation_ptr.shape[0] - 1, grads[0].shape, x.shape[2]
    widths = [grad.shape[2] for grad in grads]
    out = x.new_empty(num_relations, batch, channels, sum(widths))
    if x.numel() == 0 or num_rows == 0 or out.numel() == 0:
        return out.zero_()
    if len(grads) == 1 or fit_one_launch(out, widths):
        _weight_grad(out, 0, grads, x, node, relation_ptr)
        return out
    begin = 0
    for grad, width in zip(grads, widths, strict=True):
        _weight_grad(out, begin, [grad], x, node, relation_ptr)
        begin += width
    return out


def _block_sizes(dtype: torch.dtype, num_rows: int, channels: int, width: int) -> tuple[int, int, int, int, int, int]:
    """Return the rows, features and columns of a block, the rows of a tile, its warps and its stages.

    Large gradients in half precision are compute-bound: wide blocks read the inputs seldom, and loads run ahead.
    """
    if dtype == torch.float64:
        return 16, 16, 16, rows_per_tile(num_rows, 512), 4, 1
    if dtype.itemsize == 2 and num_rows >= LARGE and channels >= 256 and width >= 128:
        rows = 1 << 14 if num_rows < 1 << 20 else 1 << 15
        return (64, 128, 256, rows, 8, 3) if width >= 256 else (64, 256, 128, rows, 8, 3)
    block_f, block_m = power_of_two(channels, 16, 64), power_of_two(width, 16, 64)
    if block_f * block_m <= 512:  # a tile for one warp
        return 32, block_f, block_m, rows_per_tile(num_rows, 512), 1, 1
    return 64, block_f, block_m, rows_per_tile(num_rows, 2048), 4, 1


def _weight_grad(
    out: Tensor, begin: int, grads: Sequence[Tensor], x: Tensor, node: Tensor | None, relation_ptr: Tensor
) -> None:
    """Fill the columns of ``out`` from ``begin`` on."""
    (num_rows, batch, width), (num_relations, _, channels, columns) = grads[0].shape, out.shape
    narrow_grad, narrow = (None, 0) if len(grads) == 1 else (grads[1], grads[1].shape[2])
    dtype, acc = sum_dtype(x.dtype)
    block_rows, block_f, block_m, rows, warps, stages = _block_sizes(x.dtype, num_rows, channels, width)
    together = block_m > 64
    num_tiles = num_rows // rows + num_relations
    part = out.new_empty(num_tiles, batch, channels, width + narrow, dtype=dtype)
    order = tiles_by_node(node, relation_ptr, num_tiles, rows)
    launch(
        _tile_grad_kernel,
        grid_with_parts(num_tiles, num_blocks(channels, block_f) * num_blocks(width, block_m), batch, together),
        (part, grads[0], narrow_grad, x, node, relation_ptr, order), (num_relations,), P=batch, F=channels, M=width,
        A=narrow, ROWS=rows, RP=power_of_two(num_relations, 1, 1024), BR=block_rows, BF=block_f, BM=block_m, BA=16,
        TOGETHER=together, PRECISION=precision(x.dtype), ACC=acc, warps=warps, stages=stages,
    )  # fmt: skip
    size = part[0].numel()
    block = 64 if size > 1024 else 16
    launch(
        _add_tiles_kernel, grid_with_parts(num_relations, num_blocks(size, block)), (out, part, relation_ptr),
        SIZE=size, M=width + narrow, W=columns, BEGIN=begin, ROWS=rows,
        BE=(1024 if num_tiles < 1024 else 4096) // block, BC=block, ACC=acc,
    )  # fmt: skip
