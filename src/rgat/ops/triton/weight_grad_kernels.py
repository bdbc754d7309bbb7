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

from rgat.ops.triton.launch import (
    LARGE,
    first_and_part,
    grid_with_parts,
    holds_wide_blocks,
    launch,
    num_blocks,
    power_of_two,
    sum_dtype,
)
from rgat.ops.triton.projection_kernels import PairedQueries
from rgat.ops.triton.row_tiles import (
    dot_halves,
    fit_one_launch,
    halves,
    in_halves,
    load_narrow,
    load_rows,
    load_value_grads,
    narrow_columns,
    precision,
    rows_per_tile,
    rows_to_read,
    tile,
    tiles_by_node,
)
from rgat.ops.triton.single_edges import ValueGrads


@triton.jit
def _outer(a, b, total, HALVES: tl.constexpr, PRECISION: tl.constexpr):
    """Return ``total + a.T @ b``."""
    if PRECISION is None:
        total += tl.sum(a[:, :, None] * b[:, None, :], 0)
    elif HALVES and a.shape[1] >= 64:  # smaller ones use tensor-core instructions that transpose tf32
        high, low, undo = halves(a, tl.max(tl.abs(a), 0)[None, :])
        right, right_low, right_undo = halves(b, tl.max(tl.abs(b), 0)[None, :])
        part = dot_halves(tl.trans(high), tl.trans(low), right, right_low, tl.zeros_like(total), PRECISION)
        total += (part * tl.trans(undo)) * right_undo  # in this order: their product may be out of range
    else:
        total = tl.dot(tl.trans(a), b, total, input_precision=PRECISION)
    return total


@triton.jit(do_not_specialize=["num_relations"])
def _tile_grad_kernel(
    part, grad, sums, grad_row, factor, dkeys, dqueries, pair_shift, x, node, relation_ptr, order, num_relations,
    P: tl.constexpr, F: tl.constexpr, M: tl.constexpr, A: tl.constexpr, H: tl.constexpr, ROWS: tl.constexpr,
    RP: tl.constexpr, BR: tl.constexpr, BF: tl.constexpr, BM: tl.constexpr, BA: tl.constexpr, TOGETHER: tl.constexpr,
    HALVES: tl.constexpr, PRECISION: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Write what one tile adds to the gradient of its kernel ``[F, M]``, and of the columns after it.

    These are ``A`` of keys, and ``A`` of paired queries. With ``sums`` the gradients are ``ValueGrads``.
    """
    across: tl.constexpr = (M + BM - 1) // BM
    number, block = first_and_part((F + BF - 1) // BF * across, 2, TOGETHER)
    number, relation, begin, end = tile(number, order, relation_ptr, num_relations, ROWS, RP)
    p = tl.program_id(1)
    f = (block // across) * BF + tl.arange(0, BF)
    m = (block % across) * BM + tl.arange(0, BM)
    parts: tl.constexpr = 1 if dqueries is None else 2
    columns: tl.constexpr = M + parts * A
    if F * columns >= 2**31:  # entries of one kernel
        f = f.to(tl.int64)
    a = tl.arange(0, BA)
    total = tl.zeros([BF, BM], ACC)
    narrow_total = tl.zeros([BF, parts * BA], ACC)
    shift = 0
    if dqueries is not None:
        shift = tl.load(pair_shift + relation)
    row = begin + tl.arange(0, BR)
    source = rows_to_read(node, row, end)
    at = rows_to_read(grad_row, row, end)
    for _ in range(begin, end, BR):
        live = row < end
        left = load_rows(x, source, live, p, f, P, F)
        if sums is None:
            right = load_rows(grad, row, live, p, m, P, M)
        else:
            right = load_value_grads(grad, sums, factor, at, row, live, (block % across) * BM, M, H, BR, BM)
        source = rows_to_read(node, row + BR, end)
        at = rows_to_read(grad_row, row + BR, end)
        if dkeys is not None:
            narrow = load_narrow(dkeys, dqueries, row, shift, live, a, A)
            narrow_total = _outer(left, narrow, narrow_total, HALVES, PRECISION)
        total = _outer(left, right, total, HALVES, PRECISION)
        row += BR
    if begin < end:
        to = part + (number * P + p) * (F * columns) + f[:, None] * columns
        tl.store(to + m[None, :], total, (f < F)[:, None] & (m < M)[None, :])
        if dkeys is not None:
            column = tl.arange(0, parts * BA)
            exists = (column % BA < A) & (block % across == 0)
            column = M + column // BA * A + column % BA
            tl.store(to + column[None, :], narrow_total, (f < F)[:, None] & exists[None, :])


@triton.jit
def _add_tiles_kernel(
    out, query_out, part, pair, relation_ptr, SIZE: tl.constexpr, M: tl.constexpr, Q: tl.constexpr, W: tl.constexpr,
    BEGIN: tl.constexpr, ROWS: tl.constexpr, BE: tl.constexpr, BC: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Add the tiles of a relation, ``SIZE`` numbers in rows of ``M + Q``, into the columns of ``W`` from ``BEGIN`` on.

    The last ``Q`` numbers of a row belong to ``query_out`` of the paired relation.
    """
    relation, block = first_and_part((SIZE + BC - 1) // BC, 1)
    if SIZE // (M + Q) * W >= 2**31:  # entries of one kernel
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
    total = tl.sum(total, 0)
    f, m = column // (M + Q), column % (M + Q)
    out += relation.to(tl.int64) * (SIZE // (M + Q) * W) + BEGIN
    tl.store(out + f * W + m, total, (column < SIZE) & (m < M))
    if query_out is not None:
        query_out += tl.load(pair + relation).to(tl.int64) * (SIZE // (M + Q) * Q)
        tl.store(query_out + f * Q + (m - M), total, (column < SIZE) & (m >= M))


def weight_grad(
    grads: Sequence[Tensor | ValueGrads], x: Tensor, node: Tensor | None, relation_ptr: Tensor,
    queries: PairedQueries | None = None,
) -> Tensor:  # fmt: skip
    """Return the gradient of the kernels, ``[R, P, F, M]``, from those of the parts of ``project``.

    The first part may be ``ValueGrads``, where ``reads_value_grads``. Fills ``queries.weight`` with the gradient of the
    kernels of paired queries.
    """
    num_relations, (num_rows, batch, _), channels = relation_ptr.shape[0] - 1, grads[0].shape, x.shape[2]
    widths = [grad.shape[2] for grad in grads]
    out = x.new_empty(num_relations, batch, channels, sum(widths))
    if x.numel() == 0 or num_rows == 0 or out.numel() == 0:
        return out.zero_()
    if len(grads) == 1 or fit_one_launch(out, widths):
        _weight_grad(out, 0, grads, x, node, relation_ptr, queries)
        return out
    begin = 0
    for grad, width in zip(grads, widths, strict=True):
        _weight_grad(out, begin, [grad], x, node, relation_ptr)
        begin += width
    return out


_REGISTERS = 168  # of a thread, where halves take more: three programs of four warps then fit on a multiprocessor


def _block_sizes(dtype: torch.dtype, num_rows: int, channels: int, width: int) -> tuple[int, int, int, int, int, int]:
    """Return the rows, features and columns of a block, the rows of a tile, its warps and its stages.

    Large gradients in half precision are compute-bound: wide blocks read the inputs seldom, and loads run ahead.
    """
    if dtype == torch.float64:
        return 16, 16, 16, rows_per_tile(num_rows, 512), 4, 1
    if dtype.itemsize == 2 and num_rows >= LARGE and channels >= 256 and width >= 128 and holds_wide_blocks():
        rows = 1 << 14 if num_rows < 1 << 20 else 1 << 15
        return (64, 128, 256, rows, 8, 3) if width >= 256 else (64, 256, 128, rows, 8, 3)
    block_f, block_m = power_of_two(channels, 16, 64), power_of_two(width, 16, 64)
    if block_f * block_m <= 512:  # a tile for one warp
        return 32, block_f, block_m, rows_per_tile(num_rows, 512), 1, 1
    return 64, block_f, block_m, rows_per_tile(num_rows, 2048), 4, 1


def _weight_grad(
    out: Tensor, begin: int, grads: Sequence[Tensor | ValueGrads], x: Tensor, node: Tensor | None, relation_ptr: Tensor,
    queries: PairedQueries | None = None,
) -> None:  # fmt: skip
    """Fill the columns of ``out`` from ``begin`` on."""
    (num_rows, batch, width), (num_relations, _, channels, columns) = grads[0].shape, out.shape
    dkeys, narrow = (None, 0) if len(grads) == 1 else (grads[1], grads[1].shape[2])
    grad, sums, grad_row, factor = (grads[0], None, None, None) if isinstance(grads[0], Tensor) else grads[0]
    assert not isinstance(dkeys, ValueGrads)
    dqueries, query_out, (pair, shift) = (None, None, (None, None)) if queries is None else queries
    query_width = 0 if dqueries is None else dqueries.shape[2]
    dtype, acc = sum_dtype(x.dtype)
    block_rows, block_f, block_m, rows, warps, stages = _block_sizes(x.dtype, num_rows, channels, width)
    together = block_m > 64 or (num_rows > LARGE and channels <= 128)
    num_tiles = num_rows // rows + num_relations
    part = out.new_empty(num_tiles, batch, channels, width + narrow + query_width, dtype=dtype)
    order = tiles_by_node(node, relation_ptr, num_tiles, rows)
    launch(
        _tile_grad_kernel,
        grid_with_parts(num_tiles, num_blocks(channels, block_f) * num_blocks(width, block_m), batch, together),
        (part, grad, sums, grad_row, factor, dkeys, dqueries, shift, x, node, relation_ptr, order), (num_relations,),
        P=batch, F=channels, M=width, A=narrow, H=1 if factor is None else factor.shape[1], ROWS=rows,
        RP=power_of_two(num_relations, 1, 1024), BR=block_rows, BF=block_f, BM=block_m,
        BA=narrow_columns(narrow, 1 if dqueries is None else 2, 8), TOGETHER=together, HALVES=in_halves(x.dtype),
        PRECISION=precision(x.dtype), ACC=acc, warps=warps, stages=stages,
        registers=_REGISTERS if in_halves(x.dtype) and block_f >= 64 and num_rows > LARGE else None,
    )  # fmt: skip
    size = part[0].numel()
    block = 64 if size > 1024 else 16
    launch(
        _add_tiles_kernel, grid_with_parts(num_relations, num_blocks(size, block)),
        (out, query_out, part, pair, relation_ptr), SIZE=size, M=width + narrow, Q=query_width, W=columns,
        BEGIN=begin, ROWS=rows,
        BE=(1024 if num_tiles < 1024 else 4096) // block, BC=block, ACC=acc,
    )  # fmt: skip
