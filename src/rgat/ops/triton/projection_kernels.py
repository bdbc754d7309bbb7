"""Multiply rows by the kernels of their relations in Triton, all relations in one launch: projection and its backward.

``project``:   ``out[u] = x[node[u]] @ weight[relation(u)]``
``row_grads``: ``dx[u] = dout[u] @ weight[relation(u)].T``, which ``node_sum_kernels`` sums by node

The columns of a kernel may make two outputs: wide values, then narrow keys. Where possible one launch computes both
from one read of the inputs, and with them the queries of the target rows that read the same inputs (``Pairs``). Sums
are float32, or float64 for float64; each number is written by one program.
"""

# ruff: noqa: N803
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from rgat.ops.triton.dropout_kernels import NO_DROPOUT, Dropout, drop_row_tile
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
from rgat.ops.triton.paired_rows import Pairs
from rgat.ops.triton.row_tiles import (
    NARROW,
    beside,
    dot,
    fit_one_launch,
    in_halves,
    level_rows,
    load_narrow,
    load_rows,
    load_value_grads,
    narrow_columns,
    precision,
    rows_per_tile,
    rows_to_read,
    split,
    split_product,
    store_narrow,
    tile,
    tiles_by_node,
)
from rgat.ops.triton.single_edges import ValueGrads


class PairedQueries(NamedTuple):
    """Queries, or their gradients, of the target rows that are paired with the source rows of a product."""

    rows: Tensor  # [V, 1, Q]
    weight: Tensor  # [R, 1, F, Q]
    pairs: Pairs


@triton.jit
def _load_kernel(weight, k, m, stride_k, stride_m, K: tl.constexpr, M: tl.constexpr):
    """Return the entries ``[k, m]`` of a kernel ``[K, M]``."""
    return tl.load(weight + k[:, None] * stride_k + m[None, :] * stride_m, (k < K)[:, None] & (m < M)[None, :], 0.0)


@triton.jit
def _load_narrow_kernel(weight, query_weight, f, a, F: tl.constexpr, A: tl.constexpr, W: tl.constexpr):
    """Return rows ``f`` of ``A`` of the ``W`` columns of a kernel and, beside them, of the ``A`` columns of another."""
    columns = _load_kernel(weight, f, a, W, 1, F, A)
    if query_weight is not None:
        columns = beside(columns, _load_kernel(query_weight, f, a, A, 1, F, A))
    return columns


@triton.jit(do_not_specialize=["num_relations", "feature_threshold", "feature_scale"])
def _project_kernel(
    out, x, weight, keys, queries, query_weight, sums, factor, pair, pair_shift, node, relation_ptr, order, row_id,
    feature_state, num_relations, feature_threshold, feature_scale, P: tl.constexpr, K: tl.constexpr, M: tl.constexpr,
    A: tl.constexpr, W: tl.constexpr, H: tl.constexpr, MEMBERS: tl.constexpr, TRANSPOSED: tl.constexpr,
    ADD: tl.constexpr, ROWS: tl.constexpr, RP: tl.constexpr, BR: tl.constexpr, BK: tl.constexpr, BM: tl.constexpr,
    BA: tl.constexpr, TOGETHER: tl.constexpr, HALVES: tl.constexpr, PRECISION: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Write ``x @ weight``, ``[., P, K]`` times ``[P, K, M]``, with the kernel of each row's relation.

    The kernel is ``M`` of ``W`` columns. The ``A`` columns after them make ``keys`` of the same ``x``, and the ``A``
    columns of ``query_weight`` of the paired relation ``queries``; or, ``TRANSPOSED``, their products with ``keys`` and
    ``queries`` are added. Queries without keys are as wide as values. With ``sums`` and ``factor``, ``x`` and ``node``
    are ``ValueGrads``.
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
    inputs: tl.constexpr = M if TRANSPOSED else K
    stride_k: tl.constexpr = 1 if TRANSPOSED else W
    stride_m: tl.constexpr = W if TRANSPOSED else 1
    weight += (relation * P + p) * (inputs * W)
    blocks: tl.constexpr = (K + BK - 1) // BK
    held: tl.constexpr = blocks == 1 or (blocks == 2 and HALVES)  # the whole kernel, during all rows
    in_halves: tl.constexpr = HALVES and held
    if held:
        w, w_low, w_undo = split(_load_kernel(weight, k, m, stride_k, stride_m, K, M), 0, in_halves)
        if blocks == 2:
            rest = _load_kernel(weight, BK + k, m, stride_k, stride_m, K, M)
            rest_w, rest_low, rest_undo = split(rest, 0, in_halves)
    shift = 0
    if queries is not None:
        query_weight += tl.load(pair + relation).to(tl.int64) * (inputs * A)
        shift = tl.load(pair_shift + relation)
    wide_queries: tl.constexpr = keys is None and queries is not None
    if wide_queries:
        wide_w, wide_low, wide_undo = split(_load_kernel(query_weight, k, m, 1, A, A, M), 0, in_halves)
    elif keys is not None:
        narrow_weight = weight + (K if TRANSPOSED else M)
        f = m if TRANSPOSED else k
        narrow = _load_narrow_kernel(narrow_weight, query_weight, f, a, inputs, A, W)
        if TRANSPOSED:
            narrow = tl.trans(narrow)
            if in_halves:
                narrow, powers = level_rows(narrow)
        narrow_w, narrow_low, narrow_undo = split(narrow, 0, in_halves)
        if not TRANSPOSED and blocks == 2:
            others = _load_narrow_kernel(narrow_weight, query_weight, BK + k, a, inputs, A, W)
            others_w, others_low, others_undo = split(others, 0, in_halves)
    row = begin + tl.arange(0, BR)
    source = rows_to_read(node, row, end)
    for _ in range(begin, end, BR):
        live = row < end
        zeros = tl.zeros([BR, BM], ACC)
        narrow_zeros = tl.zeros([BR, BA if queries is None else 2 * BA], ACC)
        if wide_queries:  # all loads before the first product, so that their latencies overlap
            narrow_left = load_rows(queries, row + shift, live, 0, k, 1, A)
        elif keys is not None and TRANSPOSED:
            narrow_left = load_narrow(keys, queries, row, shift, live, a, A)
            if in_halves:
                narrow_left *= powers
        if held:
            if sums is None:
                rows = load_rows(x, source, live, p, k, P, K)
                if blocks == 2:
                    rest_rows = load_rows(x, source, live, p, BK + k, P, K)
            else:
                rows = load_value_grads(x, sums, factor, source, row, live, 0, K, H, BR, BK)
                if blocks == 2:
                    rest_rows = load_value_grads(x, sums, factor, source, row, live, BK, K, H, BR, BK)
            left, left_low, undo = split(rows, 1, in_halves)
            total = split_product(left, left_low, undo, w, w_low, w_undo, zeros, PRECISION, in_halves)
            if not TRANSPOSED and keys is not None:
                narrow_total = split_product(
                    left, left_low, undo, narrow_w, narrow_low, narrow_undo, narrow_zeros, PRECISION, in_halves
                )
            if blocks == 2:
                left, left_low, undo = split(rest_rows, 1, in_halves)
                total += split_product(left, left_low, undo, rest_w, rest_low, rest_undo, zeros, PRECISION, in_halves)
                if not TRANSPOSED and keys is not None:
                    narrow_total += split_product(
                        left, left_low, undo, others_w, others_low, others_undo, narrow_zeros, PRECISION, in_halves
                    )
        else:
            total = zeros
            for first in range(0, K, BK):
                some = _load_kernel(weight, first + k, m, stride_k, stride_m, K, M)
                if sums is None:
                    rows = load_rows(x, source, live, p, first + k, P, K)
                else:
                    rows = load_value_grads(x, sums, factor, source, row, live, first, K, H, BR, BK)
                total = dot(rows, some, total, PRECISION)
        source = rows_to_read(node, row + BR, end)
        if wide_queries:
            left, left_low, undo = split(narrow_left, 1, in_halves)
            total += split_product(left, left_low, undo, wide_w, wide_low, wide_undo, zeros, PRECISION, in_halves)
        elif keys is not None and TRANSPOSED:
            left, left_low, undo = split(narrow_left, 1, in_halves)
            total += split_product(left, left_low, undo, narrow_w, narrow_low, narrow_undo, zeros, PRECISION, in_halves)
        elif keys is not None:
            store_narrow(keys, queries, narrow_total, row, shift, live & (block == 0), a, A)
        if feature_state is not None:
            total = drop_row_tile(total, feature_state, row_id, row, live, p * M + m, feature_threshold, feature_scale,
                                  P * M // H, H, MEMBERS, ACC)  # fmt: skip
        at = ((row.to(tl.int64) * P + p) * M)[:, None] + m[None, :]
        if ADD:
            total += tl.load(out + at, live[:, None] & (m < M)[None, :], 0.0)
        tl.store(out + at, total, live[:, None] & (m < M)[None, :], eviction_policy="evict_first")
        row += BR


def _multiply_rows(
    out: Tensor, x: Tensor | ValueGrads, weight: Tensor, width: int, node: Tensor | None, relation_ptr: Tensor,
    transposed: bool = False, add: bool = False, keys: Tensor | None = None, queries: PairedQueries | None = None,
    row_id: Tensor | None = None, drop: Dropout = NO_DROPOUT, heads: int = 1,
) -> None:  # fmt: skip
    """Fill ``out[u, p]`` with, or ``add``, ``x[node[u], p] @ weight[relation(u), p]``, or with the transposed kernel.

    ``weight`` is some of ``width`` columns. With ``keys`` the columns after them are used too, and with ``queries``
    those of their kernels.
    """
    num_rows, dtype = out.shape[0], weight.dtype
    num_relations, batch, k, m = weight.shape
    if transposed:
        k, m = m, k
    block_rows, block_k, block_m, warps, stages = _block_sizes(dtype, num_rows, k, m, transposed)
    rows = max(rows_per_tile(num_rows, 512), block_rows)
    together = block_m > 64 or (num_rows > LARGE and k <= 128)
    num_tiles = num_rows // rows + num_relations
    order = tiles_by_node(node, relation_ptr, num_tiles, rows)
    query_rows, query_weight, (pair, shift) = (None, None, (None, None)) if queries is None else queries
    sums, factor = None, None
    if isinstance(x, ValueGrads):
        x, sums, node, factor = x
        heads = factor.shape[1]
    fills_registers = block_k < k <= 128 or sums is not None
    narrow_rows = keys if query_rows is None else query_rows
    narrow = 0 if narrow_rows is None else narrow_rows.shape[2]
    launch(
        _project_kernel, grid_with_parts(num_tiles, num_blocks(m, block_m), batch, together),
        (out, x, weight, keys, query_rows, query_weight, sums, factor, pair, shift, node, relation_ptr, order, row_id,
         drop.state),
        (num_relations, *drop[1:3]), warps, P=batch, K=k, M=m, A=narrow, W=width, H=heads, MEMBERS=drop.members,
        TRANSPOSED=transposed, ADD=add, ROWS=rows, RP=power_of_two(num_relations, 1, 1024), BR=block_rows, BK=block_k,
        BM=block_m, BA=narrow_columns(narrow, 1 if query_rows is None else 2, 16),
        TOGETHER=together, HALVES=in_halves(dtype), PRECISION=precision(dtype), ACC=sum_dtype(dtype)[1], stages=stages,
        registers=_REGISTERS if in_halves(dtype) and fills_registers and num_rows > LARGE else None,
    )  # fmt: skip


_REGISTERS = 168  # of a thread, where a product takes more: three programs then fit on a multiprocessor


def _block_sizes(dtype: torch.dtype, num_rows: int, k: int, m: int, transposed: bool) -> tuple[int, int, int, int, int]:
    """Return the rows, inputs and columns of a product's block, its warps and its stages.

    Large products in half precision are compute-bound: wide blocks read the inputs seldom, and loads run ahead.
    """
    if dtype == torch.float64:
        return 16, 16, 16, 4, 1
    if dtype.itemsize == 2 and num_rows >= LARGE and k >= 256 and (m >= 128 or m <= 16) and holds_wide_blocks():
        if m <= 16:
            return 128, 128, 16, 4, 3
        return (128, 64, 256, 8, 4) if m >= 256 else (128, 64, 128, 8, 3)
    block_k, block_m = power_of_two(k, 16, 128) if k <= 128 else 64, power_of_two(m, 16, 64)
    if dtype == torch.float32 and 64 < k <= 128:
        if 64 < m <= 128 and not transposed and holds_wide_blocks():
            return 128, 128, 128, 8, 1
        return 64, 64, block_m, 4, 1  # in two blocks, which leaves room for more programs
    return max(64, min(4096 // max(block_k, block_m), 128)), block_k, block_m, 4, 1


def project(
    x: Tensor, weight: Tensor, node: Tensor | None, relation_ptr: Tensor, widths: Sequence[int] = (),
    queries: PairedQueries | None = None, row_id: Tensor | None = None, drop: Dropout = NO_DROPOUT, heads: int = 1,
) -> list[Tensor]:  # fmt: skip
    """Return ``x[node[u], p] @ weight[relation(u), p]``, ``[U, P, M]``, its columns split into parts of these widths.

    Without ``node``, row ``u`` reads ``x[u]``. The first part is multiplied by the mask of feature dropout. ``queries``
    are filled in the same launch where ``can_pair``.
    """
    widths = widths or (weight.shape[3],)
    num_rows = (x if node is None else node).shape[0]
    outs = [x.new_empty(num_rows, weight.shape[1], width) for width in widths]
    if x.numel() == 0 or num_rows == 0:
        return [out.zero_() for out in outs]
    masks: dict[str, Any] = {"row_id": row_id, "drop": drop, "heads": heads}
    if fit_one_launch(weight, widths):
        part = weight[..., : widths[0]]
        _multiply_rows(outs[0], x, part, sum(widths), node, relation_ptr, keys=outs[1], queries=queries, **masks)
        return outs
    for number, (out, part) in enumerate(zip(outs, weight.split_with_sizes(list(widths), dim=3), strict=True)):
        if out.numel() > 0:
            _multiply_rows(out, x, part, sum(widths), node, relation_ptr, **({} if number else masks))
    return outs


def can_pair(weight: Tensor, query_weight: Tensor) -> bool:
    """Tell whether one launch makes values, keys and the queries of paired rows, or adds the gradients of their inputs.

    The first for narrow queries, the second for queries as wide as values, which are read as keys.
    """
    _, batch, inputs, columns = weight.shape
    width = query_weight.shape[3]
    if columns > width:
        return fit_one_launch(weight, (columns - width, width, width))
    return batch == 1 and max(inputs, columns) <= 64 and columns > NARROW and weight.dtype != torch.float64


def reads_value_grads(weight: Tensor, width: int, heads: int) -> bool:
    """Tell whether the gradients of ``width`` columns of values can be ``ValueGrads``."""
    return weight.dtype == torch.float32 and weight.shape[1] == 1 and (width // heads).bit_count() == 1


def row_grads(
    grads: Sequence[Tensor | ValueGrads], weight: Tensor, relation_ptr: Tensor, queries: PairedQueries | None = None
) -> Tensor:
    """Return the gradient of the inputs of each row, ``[U, P, F]``, from those of the parts of ``project``.

    The first part may be ``ValueGrads``, where ``reads_value_grads``.
    """
    widths, (num_rows, batch, _) = [grad.shape[2] for grad in grads], grads[0].shape
    out = weight.new_empty(num_rows, batch, weight.shape[2], dtype=sum_dtype(weight.dtype)[0])
    if out.numel() == 0 or sum(widths) == 0:
        return out.zero_()
    if fit_one_launch(weight, widths) or queries is not None:
        part, keys = weight[..., : widths[0]], grads[1] if len(grads) > 1 else None
        assert not isinstance(keys, ValueGrads)
        _multiply_rows(
            out, grads[0], part, sum(widths), None, relation_ptr, transposed=True, keys=keys, queries=queries
        )
        return out
    for number, (grad, part) in enumerate(zip(grads, weight.split_with_sizes(widths, dim=3), strict=True)):
        _multiply_rows(out, grad, part, sum(widths), None, relation_ptr, transposed=True, add=number > 0)
    return out
