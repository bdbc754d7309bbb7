"""Multiply rows by the kernels of their relations in Triton, all relations in one launch: projection and its backward.

``project``:   ``out[u] = x[node[u]] @ weight[relation(u)]``
``row_grads``: ``dx[u] = dout[u] @ weight[relation(u)].T``, which ``node_sum_kernels`` sums by node

The columns of a kernel may make two outputs: wide values, then narrow keys. Where possible one launch computes both
from one read of the inputs. Sums are float32, or float64 for float64; each number is written by one program.
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
    dot,
    fit_one_launch,
    load_rows,
    precision,
    rows_per_tile,
    rows_to_read,
    split,
    split_product,
    tile,
    tiles_by_node,
)


@triton.jit
def _load_kernel(weight, k, m, stride_k, stride_m, K: tl.constexpr, M: tl.constexpr):
    """Return the entries ``[k, m]`` of a kernel ``[K, M]``."""
    return tl.load(weight + k[:, None] * stride_k + m[None, :] * stride_m, (k < K)[:, None] & (m < M)[None, :], 0.0)


@triton.jit
def _add_narrow_products(
    total, narrow_x, weight, row, live, m, M: tl.constexpr, A: tl.constexpr, W: tl.constexpr, ACC: tl.constexpr
):
    """Return ``total`` plus the rows of ``narrow_x`` ``[., A]`` times the transposed columns ``[M, A]``."""
    for a in tl.static_range(A):
        factor = tl.load(narrow_x + row.to(tl.int64) * A + a, live, 0.0).to(ACC)
        column = tl.load(weight + m * W + a, m < M, 0.0).to(ACC)
        total += factor[:, None] * column[None, :]
    return total


@triton.jit(do_not_specialize=["num_relations"])
def _project_kernel(
    out, x, weight, narrow_out, narrow_x, node, relation_ptr, order, num_relations,
    P: tl.constexpr, K: tl.constexpr, M: tl.constexpr, A: tl.constexpr, W: tl.constexpr, TRANSPOSED: tl.constexpr,
    ADD: tl.constexpr, ROWS: tl.constexpr, RP: tl.constexpr, BR: tl.constexpr, BK: tl.constexpr, BM: tl.constexpr,
    BA: tl.constexpr, TOGETHER: tl.constexpr, PRECISION: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Write ``x @ weight``, ``[., P, K]`` times ``[P, K, M]``, with the kernel of each row's relation.

    The kernel is ``M`` of ``W`` columns. The ``A`` columns after them make ``narrow_out`` of the same ``x``, or,
    transposed, add their product with ``narrow_x``.
    """
    number, block = first_and_part((M + BM - 1) // BM, 2, TOGETHER)
    _number, relation, begin, end = tile(number, order, relation_ptr, num_relations, ROWS, RP)
    p = tl.program_id(1)
    m = block * BM + tl.arange(0, BM)
    k = tl.arange(0, BK)
    if (M if TRANSPOSED else K) * W >= 2**31:  # entries of one kernel
        m = m.to(tl.int64)
        k = k.to(tl.int64)
    a = tl.arange(0, BA)
    stride_k: tl.constexpr = 1 if TRANSPOSED else W
    stride_m: tl.constexpr = W if TRANSPOSED else 1
    weight += (relation * P + p) * ((M if TRANSPOSED else K) * W)
    single: tl.constexpr = K <= BK
    in_halves: tl.constexpr = PRECISION == "tf32x3" and single
    if single:
        w, w_low, w_undo = split(_load_kernel(weight, k, m, stride_k, stride_m, K, M), False, in_halves)
    if narrow_out is not None:
        narrow_w, narrow_low, narrow_undo = split(_load_kernel(weight + M, k, a, W, 1, K, A), False, in_halves)
    row = begin + tl.arange(0, BR)
    source = rows_to_read(node, row, end)
    for _ in range(begin, end, BR):
        live = row < end
        total = tl.zeros([BR, BM], ACC)
        if single:
            left = load_rows(x, source, live, p, k, P, K)
            source = rows_to_read(node, row + BR, end)
            left, left_low, undo = split(left, True, in_halves)
            total = split_product(left, left_low, undo, w, w_low, w_undo, total, PRECISION, in_halves)
        else:
            for first in range(0, K, BK):
                some = _load_kernel(weight, first + k, m, stride_k, stride_m, K, M)
                total = dot(load_rows(x, source, live, p, first + k, P, K), some, total, PRECISION)
            source = rows_to_read(node, row + BR, end)
        if narrow_out is not None:
            zeros = tl.zeros([BR, BA], ACC)
            narrow = split_product(left, left_low, undo, narrow_w, narrow_low, narrow_undo, zeros, PRECISION, in_halves)
            at = (row.to(tl.int64) * A)[:, None] + a[None, :]
            tl.store(narrow_out + at, narrow, live[:, None] & (a < A)[None, :])
        elif narrow_x is not None:
            total = _add_narrow_products(total, narrow_x, weight + K, row, live, m, M, A, W, ACC)
        at = ((row.to(tl.int64) * P + p) * M)[:, None] + m[None, :]
        if ADD:
            total += tl.load(out + at, live[:, None] & (m < M)[None, :], 0.0)
        tl.store(out + at, total, live[:, None] & (m < M)[None, :], eviction_policy="evict_first")
        row += BR


def _multiply_rows(
    out: Tensor, x: Tensor, weight: Tensor, width: int, node: Tensor | None, relation_ptr: Tensor,
    transposed: bool = False, add: bool = False, narrow_out: Tensor | None = None, narrow_x: Tensor | None = None,
) -> None:  # fmt: skip
    """Fill ``out[u, p]`` with, or ``add``, ``x[node[u], p] @ weight[relation(u), p]``, or with the transposed kernel.

    ``weight`` is some of ``width`` columns. With ``narrow_out`` or ``narrow_x`` the columns after them are used too.
    """
    num_rows = out.shape[0]
    num_relations, batch, k, m = weight.shape
    if transposed:
        k, m = m, k
    block_rows, block_k, block_m, warps, stages = _block_sizes(x.dtype, num_rows, k, m)
    rows, together = max(rows_per_tile(num_rows, 512), block_rows), block_m > 64
    num_tiles = num_rows // rows + num_relations
    order = tiles_by_node(node, relation_ptr, num_tiles, rows)
    narrow = narrow_x if narrow_out is None else narrow_out
    launch(
        _project_kernel, grid_with_parts(num_tiles, num_blocks(m, block_m), batch, together),
        (out, x, weight, narrow_out, narrow_x, node, relation_ptr, order), (num_relations,), warps, P=batch, K=k, M=m,
        A=0 if narrow is None else narrow.shape[2], W=width, TRANSPOSED=transposed, ADD=add, ROWS=rows,
        RP=power_of_two(num_relations, 1, 1024), BR=block_rows, BK=block_k, BM=block_m, BA=16, TOGETHER=together,
        PRECISION=precision(x.dtype), ACC=sum_dtype(x.dtype)[1], stages=stages,
    )  # fmt: skip


def _block_sizes(dtype: torch.dtype, num_rows: int, k: int, m: int) -> tuple[int, int, int, int, int]:
    """Return the rows, inputs and columns of a product's block, its warps and its stages.

    Large products in half precision are compute-bound: wide blocks read the inputs seldom, and loads run ahead.
    """
    if dtype == torch.float64:
        return 16, 16, 16, 4, 1
    if dtype.itemsize == 2 and num_rows >= LARGE and k >= 256 and (m >= 128 or m <= 16):
        if m <= 16:
            return 128, 128, 16, 4, 3
        return (128, 64, 256, 8, 4) if m >= 256 else (128, 64, 128, 8, 3)
    block_k, block_m = power_of_two(k, 16, 128) if k <= 128 else 64, power_of_two(m, 16, 64)
    return max(64, min(4096 // max(block_k, block_m), 128)), block_k, block_m, 4, 1


def project(
    x: Tensor, weight: Tensor, node: Tensor | None, relation_ptr: Tensor, widths: Sequence[int] = ()
) -> list[Tensor]:
    """Return ``x[node[u], p] @ weight[relation(u), p]``, ``[U, P, M]``, its columns split into parts of these widths.

    Without ``node``, row ``u`` reads ``x[u]``.
    """
    widths = widths or (weight.shape[3],)
    num_rows = (x if node is None else node).shape[0]
    outs = [x.new_empty(num_rows, weight.shape[1], width) for width in widths]
    if x.numel() == 0 or num_rows == 0:
        return [out.zero_() for out in outs]
    if fit_one_launch(weight, widths):
        _multiply_rows(outs[0], x, weight[..., : widths[0]], sum(widths), node, relation_ptr, narrow_out=outs[1])
        return outs
    for out, part in zip(outs, weight.split_with_sizes(list(widths), dim=3), strict=True):
        if out.numel() > 0:
            _multiply_rows(out, x, part, sum(widths), node, relation_ptr)
    return outs


def row_grads(grads: Sequence[Tensor], weight: Tensor, relation_ptr: Tensor) -> Tensor:
    """Return the gradient of the inputs of each row, ``[U, P, F]``, from those of the parts of ``project``."""
    widths, (num_rows, batch, _) = [grad.shape[2] for grad in grads], grads[0].shape
    out = grads[0].new_empty(num_rows, batch, weight.shape[2], dtype=sum_dtype(weight.dtype)[0])
    if out.numel() == 0 or sum(widths) == 0:
        return out.zero_()
    if fit_one_launch(weight, widths):
        part = weight[..., : widths[0]]
        _multiply_rows(out, grads[0], part, sum(widths), None, relation_ptr, transposed=True, narrow_x=grads[1])
        return out
    for number, (grad, part) in enumerate(zip(grads, weight.split_with_sizes(widths, dim=3), strict=True)):
        _multiply_rows(out, grad, part, sum(widths), None, relation_ptr, transposed=True, add=number > 0)
    return out
