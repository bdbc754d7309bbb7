"""Products of rows with the kernels of their relations as Triton kernels: launchers on CUDA tensors, without autograd.

``project``: tiles of consecutive rows of one relation are gathered and multiplied by its kernel, all relations in one
launch. Where the tiles of relation ``r`` begin is known without a table: at ``relation_ptr[r] // tile + r``. Backward::

    row_grads:    drow[u]    = dout[u] @ weight[relation(u)].T
    sum_by_node:  dx[j]      = sum over the rows u of node j: drow[u]
    weight_grad:  dweight[r] = sum over tiles of r: x[rows of the tile].T @ dout[rows of the tile]

The columns of a kernel may belong to two results, wide values and then narrow keys: both are made of one reading of the
inputs. Queries are so narrow that their part of ``dx`` is summed by node without making ``drow``.

``fold`` makes the kernels of keys and queries, see ``folding``. Sums and temporaries are float32, or float64 for
float64. There are no atomics: each number is written by one program. A grid's second and third axis hold at most 65,535
programs; what may be more is part of the first.
"""

# ruff: noqa: N803
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from rgat.graph import Rows
from rgat.ops.torch import backend as vectorised
from rgat.ops.triton import launch as triton_launch
from rgat.ops.triton.launch import LARGE, WIDEST, accumulate, blocks, grid, launch, once, power
from rgat.ops.triton.recording import allows_tf32

LONGEST_AXIS = tl.constexpr(triton_launch.LONGEST_AXIS)


@triton.jit
def _tile(number, order, relation_ptr, num_relations, ROWS: tl.constexpr, RP: tl.constexpr):
    """A tile, its relation and its rows; there may be none."""
    if order is not None:
        number = tl.load(order + number)
    count = number * 0  # of the relations whose tiles begin at or before this one
    for start in range(0, num_relations, RP):
        lane = start + tl.arange(0, RP)
        begins = tl.load(relation_ptr + lane, lane < num_relations, 0) // ROWS + lane
        count += tl.sum(((begins <= number) & (lane < num_relations)).to(tl.int32))
    relation = count - 1
    begin = tl.load(relation_ptr + relation)
    begin += (number - begin // ROWS - relation) * ROWS
    end = tl.minimum(begin + ROWS, tl.load(relation_ptr + relation + 1))
    return number.to(tl.int64), relation.to(tl.int64), begin, end


@triton.jit
def _rows(x, row, live, p, column, P: tl.constexpr, C: tl.constexpr):
    """Entry ``p`` of some rows of ``x`` ``[rows, P, C]``."""
    at = ((row.to(tl.int64) * P + p) * C)[:, None] + column[None, :]
    return tl.load(x + at, live[:, None] & (column < C)[None, :], 0.0)


@triton.jit
def _dot(a, b, total, PRECISION: tl.constexpr):
    """``total + a @ b``; float64 without matrix units."""
    if PRECISION is None:
        total += tl.sum(a[:, :, None] * b[None, :, :], 1)
    else:
        total = tl.dot(a, b, total, input_precision=PRECISION)
    return total


@triton.jit
def _halves(x, top):
    """Two float16 numbers whose sum is ``x`` times a power of two, and what undoes it; ``top`` is the largest ``|x|``.

    Together they have the 22 bits of two tf32 numbers, but multiply at twice the speed and can be transposed. What is
    more than 2^17 times smaller than ``top`` keeps fewer, so each feature has a top of its own where kernels' gradients
    are made, and each row where rows are multiplied.
    """
    bits = tl.minimum(tl.maximum(267 - (top.to(tl.int32, bitcast=True) >> 23), 1), 253)
    x = x * (bits << 23).to(tl.float32, bitcast=True)
    high = x.to(tl.float16)
    return high, (x - high.to(tl.float32)).to(tl.float16), ((254 - bits) << 23).to(tl.float32, bitcast=True)


@triton.jit
def _dot_halves(a, a_low, b, b_low, total):
    total = tl.dot(a_low, b, total)
    total = tl.dot(a, b_low, total)
    return tl.dot(a, b, total)


@triton.jit
def _outer(a, b, total, PRECISION: tl.constexpr):
    """``total + a.T @ b``."""
    if PRECISION is None:
        total += tl.sum(a[:, :, None] * b[:, None, :], 0)
    elif PRECISION == "tf32x3" and a.shape[1] >= 64:  # smaller ones use other matrix units, which transpose tf32
        high, low, undo = _halves(a, tl.max(tl.abs(a), 0)[None, :])
        right, right_low, right_undo = _halves(b, tl.max(tl.abs(b)))
        part = _dot_halves(tl.trans(high), tl.trans(low), right, right_low, tl.zeros_like(total))
        total += (part * tl.trans(undo)) * right_undo  # in this order: their product may be out of range
    else:
        total = tl.dot(tl.trans(a), b, total, input_precision=PRECISION)
    return total


@triton.jit(do_not_specialize=["num_relations"])
def _project_kernel(
    out, x, weight, also_out, also_x, node, relation_ptr, order, num_relations,
    P: tl.constexpr, K: tl.constexpr, M: tl.constexpr, N: tl.constexpr, W: tl.constexpr, TRANSPOSED: tl.constexpr,
    ADD: tl.constexpr, ROWS: tl.constexpr, RP: tl.constexpr, BR: tl.constexpr, BK: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr, PRECISION: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """``out = x @ weight``, ``[., P, K]`` times ``[P, K, M]``, with the kernel of each row's relation.

    A kernel is some columns of ``W``. The ``N`` columns behind them may make a second output of the same ``x``, or
    transposed add to the first what they make of a second ``x``.
    """
    parts: tl.constexpr = (M + BM - 1) // BM
    number = tl.program_id(0)
    block = tl.program_id(2)
    if parts > LONGEST_AXIS:
        block = number % parts
        number = number // parts
    _number, relation, begin, end = _tile(number, order, relation_ptr, num_relations, ROWS, RP)
    p = tl.program_id(1)
    m = block * BM + tl.arange(0, BM)
    k = tl.arange(0, BK)
    if (M if TRANSPOSED else K) * W >= 2**31:  # places in one kernel
        m = m.to(tl.int64)
        k = k.to(tl.int64)
    n = tl.arange(0, BN)
    stride_k: tl.constexpr = 1 if TRANSPOSED else W
    stride_m: tl.constexpr = W if TRANSPOSED else 1
    weight += (relation * P + p) * ((M if TRANSPOSED else K) * W)
    single: tl.constexpr = K <= BK
    halves: tl.constexpr = PRECISION == "tf32x3" and single
    if single:
        w = tl.load(weight + k[:, None] * stride_k + m[None, :] * stride_m, (k < K)[:, None] & (m < M)[None, :], 0.0)
        if halves:
            w, w_low, w_undo = _halves(w, tl.max(tl.abs(w)))
    if also_out is not None:
        also_w = tl.load(weight + M + k[:, None] * W + n[None, :], (k < K)[:, None] & (n < N)[None, :], 0.0)
        if halves:
            also_w, also_low, also_undo = _halves(also_w, tl.max(tl.abs(also_w)))
    row = begin + tl.arange(0, BR)
    source = row if node is None else tl.load(node + row, row < end, 0)
    for _ in range(begin, end, BR):
        live = row < end
        total = tl.zeros([BR, BM], ACC)
        if single:
            left = _rows(x, source, live, p, k, P, K)
            source = row + BR if node is None else tl.load(node + row + BR, row + BR < end, 0)
            if halves:
                left, left_low, undo = _halves(left, tl.max(tl.abs(left), 1)[:, None])
                total = _dot_halves(left, left_low, w, w_low, total) * undo * w_undo
            else:
                total = _dot(left, w, total, PRECISION)
        else:
            for first in range(0, K, BK):
                kernel = weight + (first + k)[:, None] * stride_k + m[None, :] * stride_m
                some = tl.load(kernel, (first + k < K)[:, None] & (m < M)[None, :], 0.0)
                total = _dot(_rows(x, source, live, p, first + k, P, K), some, total, PRECISION)
            source = row + BR if node is None else tl.load(node + row + BR, row + BR < end, 0)
        if also_out is not None:
            also = tl.zeros([BR, BN], ACC)
            if halves:
                also = _dot_halves(left, left_low, also_w, also_low, also) * undo * also_undo
            else:
                also = _dot(left, also_w, also, PRECISION)
            tl.store(also_out + (row.to(tl.int64) * N)[:, None] + n[None, :], also, live[:, None] & (n < N)[None, :])
        elif also_x is not None:
            for i in tl.static_range(N):
                factor = tl.load(also_x + row.to(tl.int64) * N + i, live, 0.0).to(ACC)
                some = tl.load(weight + K + m * W + i, m < M, 0.0).to(ACC)
                total += factor[:, None] * some[None, :]
        at = ((row.to(tl.int64) * P + p) * M)[:, None] + m[None, :]
        if ADD:
            total += tl.load(out + at, live[:, None] & (m < M)[None, :], 0.0)
        tl.store(out + at, total, live[:, None] & (m < M)[None, :], eviction_policy="evict_first")
        row += BR


@triton.jit(do_not_specialize=["num_relations"])
def _weight_part_kernel(
    part, grad, also_grad, x, node, relation_ptr, order, num_relations, P: tl.constexpr, F: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, ROWS: tl.constexpr, RP: tl.constexpr, BR: tl.constexpr, BF: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """What one tile adds to the gradient of its kernel, and of the ``N`` columns behind it."""
    across: tl.constexpr = (M + BM - 1) // BM
    parts: tl.constexpr = (F + BF - 1) // BF * across
    number = tl.program_id(0)
    block = tl.program_id(2)
    if parts > LONGEST_AXIS:
        block = number % parts
        number = number // parts
    number, _relation, begin, end = _tile(number, order, relation_ptr, num_relations, ROWS, RP)
    p = tl.program_id(1)
    f = (block // across) * BF + tl.arange(0, BF)
    m = (block % across) * BM + tl.arange(0, BM)
    if F * (M + N) >= 2**31:  # places in one kernel
        f = f.to(tl.int64)
    n = tl.arange(0, BN)
    total = tl.zeros([BF, BM], ACC)
    also_total = tl.zeros([BF, BN], ACC)
    row = begin + tl.arange(0, BR)
    source = row if node is None else tl.load(node + row, row < end, 0)
    for _ in range(begin, end, BR):
        live = row < end
        left = _rows(x, source, live, p, f, P, F)
        right = _rows(grad, row, live, p, m, P, M)
        source = row + BR if node is None else tl.load(node + row + BR, row + BR < end, 0)
        if also_grad is not None:
            also_total = _outer(left, _rows(also_grad, row, live, 0, n, 1, N), also_total, PRECISION)
        total = _outer(left, right, total, PRECISION)
        row += BR
    if begin < end:
        to = part + (number * P + p) * (F * (M + N)) + f[:, None] * (M + N)
        tl.store(to + m[None, :], total, (f < F)[:, None] & (m < M)[None, :])
        if also_grad is not None:
            tl.store(to + M + n[None, :], also_total, (f < F)[:, None] & (n < N)[None, :])


@triton.jit
def _weight_join_kernel(
    out, part, relation_ptr, size: tl.constexpr, M: tl.constexpr, W: tl.constexpr, BEGIN: tl.constexpr,
    ROWS: tl.constexpr, BE: tl.constexpr, BC: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Sums over the tiles of a relation, into columns of ``W`` from ``BEGIN``."""
    parts: tl.constexpr = (size + BC - 1) // BC
    relation = tl.program_id(0)
    block = tl.program_id(1)
    if parts > LONGEST_AXIS:
        block = relation % parts
        relation = relation // parts
    if size // M * W >= 2**31:  # places in one kernel
        block = block.to(tl.int64)
    column = block * BC + tl.arange(0, BC)
    begin = tl.load(relation_ptr + relation)
    count = tl.cdiv(tl.load(relation_ptr + relation + 1) - begin, ROWS)
    first = begin // ROWS + relation
    total = tl.zeros([BE, BC], ACC)
    for start in range(0, count, BE):
        number = start + tl.arange(0, BE)
        at = ((first + number).to(tl.int64) * size)[:, None] + column[None, :]
        total += tl.load(part + at, (number < count)[:, None] & (column < size)[None, :], 0.0)
    out += relation.to(tl.int64) * (size // M * W) + BEGIN
    tl.store(out + column // M * W + column % M, tl.sum(total, 0), column < size)


@triton.jit(do_not_specialize=["num_nodes"])
def _node_sum_kernel(
    out, rows, by_node, node_ptr, also, also_weight, also_relation, also_by_node, also_ptr, num_nodes,
    C: tl.constexpr, A: tl.constexpr, ADD: tl.constexpr, T: tl.constexpr, K: tl.constexpr, CP: tl.constexpr,
    AP: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Sums over the rows of each node, and over other rows: ``also`` ``[., A]`` times their kernels ``[C, A]``."""
    parts: tl.constexpr = (C + CP - 1) // CP
    number = tl.program_id(0)
    block = tl.program_id(1)
    if parts > LONGEST_AXIS:
        block = number % parts
        number = number // parts
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
    if also is not None:
        a = tl.arange(0, AP)
        more = tl.zeros([T, CP, AP], ACC)
        first = tl.load(also_ptr + node, live, 0)
        last = tl.load(also_ptr + node + 1, live, 0)
        for step in range(0, tl.max(last - first), K):
            for ahead in tl.static_range(K):
                position = first + (step + ahead)
                there = position < last
                row = tl.load(also_by_node + position, there, 0).to(tl.int64)
                relation = tl.load(also_relation + row, there, 0).to(tl.int64)
                factor = tl.load(also + (row * A)[:, None] + a[None, :], there[:, None] & (a < A)[None, :], 0.0)
                at = (relation * (C * A))[:, None, None] + c[None, :, None] * A + a[None, None, :]
                here = there[:, None, None] & inside[:, :, None] & (a < A)[None, None, :]
                more += tl.load(also_weight + at, here, 0.0).to(ACC) * factor.to(ACC)[:, None, :]
        total += tl.sum(more, 2)
    at = (node * C)[:, None] + c[None, :]
    if ADD:
        total += tl.load(out + at, inside, 0.0).to(ACC)
    tl.store(out + at, total, inside)


@triton.jit(do_not_specialize=["size", "num_rows"])
def _column_sum_kernel(out, x, size, num_rows, C: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr, ACC: tl.constexpr):
    """Sums of ``num_rows`` consecutive rows of ``x`` ``[size, C]``."""
    parts: tl.constexpr = (C + BC - 1) // BC
    number = tl.program_id(0)
    block = tl.program_id(1)
    if parts > LONGEST_AXIS:
        block = number % parts
        number = number // parts
    begin = number.to(tl.int64) * num_rows
    column = block * BC + tl.arange(0, BC)
    end = tl.minimum(begin + num_rows, size)
    total = tl.zeros([BR, BC], ACC)
    for start in range(begin, end, BR):
        row = start + tl.arange(0, BR)
        there = (row < end)[:, None] & (column < C)[None, :]
        total += tl.load(x + (row * C)[:, None] + column[None, :], there, 0.0).to(ACC)
    tl.store(out + number.to(tl.int64) * C + column, tl.sum(total, 0), column < C)


@triton.jit
def _fold_kernel(
    weight, query, kernels, attention, H: tl.constexpr, F: tl.constexpr, D: tl.constexpr, A: tl.constexpr,
    BF: tl.constexpr, DP: tl.constexpr,
):  # fmt: skip
    parts: tl.constexpr = (F + BF - 1) // BF
    number = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    if parts > LONGEST_AXIS:
        block = tl.program_id(0) % parts
        number = number // parts
    relation, head = number // H, number % H
    f = block * BF + tl.arange(0, BF)
    d = tl.arange(0, DP)
    inside = (f < F)[:, None] & (d < D)[None, :]
    values = tl.load(kernels + (number * F + f)[:, None] * D + d[None, :], inside, 0.0)
    to = weight + (relation * F + f) * (H * (D + A))
    tl.store(to[:, None] + head * D + d[None, :], values, inside)
    for a in range(A):
        one = attention + (number * (2 * A) + a) * D + d
        scores = tl.sum(values * tl.load(one, d < D, 0.0)[None, :], 1)
        tl.store(query + (relation * F + f) * (H * A) + head * A + a, scores, f < F)
        scores = tl.sum(values * tl.load(one + A * D, d < D, 0.0)[None, :], 1)
        tl.store(to + H * D + head * A + a, scores, f < F)


@triton.jit
def _fold_grad_kernel(
    dkernels, dattention, dweight, dquery, kernels, attention, H: tl.constexpr, F: tl.constexpr, D: tl.constexpr,
    A: tl.constexpr, BF: tl.constexpr, DP: tl.constexpr,
):  # fmt: skip
    """The gradient of one kernel, or of one query and one key column of its attention kernels."""
    number = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1)
    if A >= LONGEST_AXIS:
        column = tl.program_id(0) % (A + 1)
        number = number // (A + 1)
    relation, head = number // H, number % H
    d = tl.arange(0, DP)
    dq = tl.zeros([DP], dkernels.dtype.element_ty)
    dk = tl.zeros([DP], dkernels.dtype.element_ty)
    for start in range(0, F, BF):
        f = start + tl.arange(0, BF)
        inside = (f < F)[:, None] & (d < D)[None, :]
        at = (number * F + f)[:, None] * D + d[None, :]
        to_values = dweight + (relation * F + f) * (H * (D + A))
        to_query = dquery + (relation * F + f) * (H * A) + head * A
        to_key = to_values + H * D + head * A
        if column == A:
            total = tl.load(to_values[:, None] + head * D + d[None, :], inside, 0.0)
            for a in range(A):
                one = attention + (number * (2 * A) + a) * D + d
                total += tl.load(to_query + a, f < F, 0.0)[:, None] * tl.load(one, d < D, 0.0)[None, :]
                total += tl.load(to_key + a, f < F, 0.0)[:, None] * tl.load(one + A * D, d < D, 0.0)[None, :]
            tl.store(dkernels + at, total, inside)
        else:
            values = tl.load(kernels + at, inside, 0.0)
            dq += tl.sum(values * tl.load(to_query + column, f < F, 0.0)[:, None], 0)
            dk += tl.sum(values * tl.load(to_key + column, f < F, 0.0)[:, None], 0)
    if column < A:
        one = dattention + (number * (2 * A) + column) * D + d
        tl.store(one, dq, d < D)
        tl.store(one + A * D, dk, d < D)


def _precision(dtype: torch.dtype) -> str | None:
    if dtype == torch.float64:
        return None
    return "tf32x3" if dtype == torch.float32 and not allows_tf32() else "tf32"


def _tiles_by_node(node: Tensor | None, relation_ptr: Tensor, num_tiles: int, rows: int) -> Tensor | None:
    """Tiles of neighbouring nodes side by side, whatever their relations, so that the cache holds their inputs."""
    if node is None or node.shape[0] <= LARGE:
        return None

    def make() -> Tensor:
        begins = relation_ptr[:-1] // rows + torch.arange(relation_ptr.shape[0] - 1, device=node.device)
        tile = torch.arange(num_tiles, device=node.device)
        relation = torch.searchsorted(begins, tile, right=True) - 1
        first = relation_ptr[relation] + (tile - begins[relation]) * rows
        return node[first.clamp(max=node.shape[0] - 1)].sort(stable=True).indices.int()

    order: Tensor | None = once(node, ("tiles by node", num_tiles, rows), make)
    return order


def _tile_rows(num_rows: int, most: int) -> int:
    """A power of two that gives the programs of a small graph about one tile each."""
    return min(max(1 << (num_rows // 400).bit_length() >> 1, 64), most)


def _can_join(weight: Tensor, widths: Sequence[int]) -> bool:
    """Whether one launch serves both parts of the columns: the second is narrow, and both fit into one tile."""
    _, batch, inputs, _ = weight.shape
    fits = batch == 1 and max(inputs, widths[0]) <= 64 and widths[-1] <= 16
    return len(widths) == 2 and fits and weight.dtype != torch.float64


def _multiply_rows(
    out: Tensor, x: Tensor, weight: Tensor, columns: int, node: Tensor | None, ptr: Tensor, transposed: bool = False,
    add: bool = False, also_out: Tensor | None = None, also_x: Tensor | None = None, narrow: int = 0,
) -> None:  # fmt: skip
    """``out[u, p] = x[node[u], p] @ weight[r(u), p]``, or by the transposed kernel; ``weight`` is some of its columns.

    ``narrow``: so many columns behind these make ``also_out``, or transposed add what they make of ``also_x``.
    """
    num_rows = out.shape[0]
    num_relations, batch, k, m = weight.shape
    if transposed:
        k, m = m, k
    wide = x.dtype == torch.float64
    block_k, block_m = (16, 16) if wide else (power(k, 16, 128) if k <= 128 else 64, power(m, 16, 64))
    block_rows = 16 if wide else max(64, min(4096 // max(block_k, block_m), 128))
    rows = max(_tile_rows(num_rows, 512), block_rows)
    num_tiles = num_rows // rows + num_relations
    order = _tiles_by_node(node, ptr, num_tiles, rows)
    launch(
        _project_kernel, grid(num_tiles, blocks(m, block_m), batch),
        (out, x, weight, also_out, also_x, node, ptr, order), (num_relations,), P=batch, K=k, M=m, N=narrow, W=columns,
        TRANSPOSED=transposed, ADD=add, ROWS=rows, RP=power(num_relations, 1, 1024), BR=block_rows, BK=block_k,
        BM=block_m, BN=16, PRECISION=_precision(x.dtype), ACC=accumulate(x.dtype)[1], stages=1,
    )  # fmt: skip


def project(
    x: Tensor, weight: Tensor, node: Tensor | None, relation_ptr: Tensor, widths: Sequence[int] = ()
) -> list[Tensor]:
    """``out[u, p] = x[node[u], p] @ weight[r(u), p]``, ``[U, P, M]``, its columns divided into parts of these widths.

    Without ``node``, ``x`` has the rows itself.
    """
    widths = widths or (weight.shape[3],)
    num_rows = (x if node is None else node).shape[0]
    outs = [x.new_empty(num_rows, weight.shape[1], width) for width in widths]
    if x.numel() == 0 or num_rows == 0:
        return [out.zero_() for out in outs]
    if _can_join(weight, widths):
        part = weight[..., : widths[0]]
        _multiply_rows(outs[0], x, part, sum(widths), node, relation_ptr, also_out=outs[1], narrow=widths[1])
        return outs
    for out, part in zip(outs, weight.split_with_sizes(list(widths), dim=3), strict=True):
        if out.numel() > 0:
            _multiply_rows(out, x, part, sum(widths), node, relation_ptr)
    return outs


def row_grads(grads: Sequence[Tensor], weight: Tensor, relation_ptr: Tensor) -> Tensor:
    """The gradient of what each row has read, ``[U, P, F]``, from those of the parts of ``project``."""
    widths, (num_rows, batch, _) = [grad.shape[2] for grad in grads], grads[0].shape
    out = grads[0].new_empty(num_rows, batch, weight.shape[2], dtype=accumulate(weight.dtype)[0])
    if out.numel() == 0 or sum(widths) == 0:
        return out.zero_()
    if _can_join(weight, widths):
        part = weight[..., : widths[0]]
        _multiply_rows(out, grads[0], part, sum(widths), None, relation_ptr, True, also_x=grads[1], narrow=widths[1])
        return out
    for number, (grad, part) in enumerate(zip(grads, weight.split_with_sizes(widths, dim=3), strict=True)):
        _multiply_rows(out, grad, part, sum(widths), None, relation_ptr, True, add=number > 0)
    return out


def is_narrow(weight: Tensor) -> bool:
    """Whether ``sum_by_node`` may multiply by these kernels itself, reading them from the cache for each row."""
    _, batch, inputs, width = weight.shape
    return batch == 1 and power(inputs) * power(width) <= 1024 and width <= 8


def _nodes_in_step(columns: int, width: int) -> tuple[int, int, int]:
    """How many nodes a program takes in step, how many of their rows at a time, and its warps."""
    if width == 0:
        return power(128 // columns), 4, 1
    return power(512 // (columns * power(width)), 1, 16), 4, 1


def sum_by_node(
    per_row: Tensor, rows: Rows, num_nodes: int, into: Tensor | None = None,
    also: tuple[Tensor, Tensor, Rows] | None = None, dtype: torch.dtype | None = None,
) -> Tensor:  # fmt: skip
    """Sums over the rows of each node ``[N, P, F]``, added to ``into`` if that is given.

    ``also``: gradients of other rows ``[V, 1, A]``, the narrow kernels ``[R, 1, F, A]`` to multiply them by, and these
    rows.
    """
    batch, channels = per_row.shape[1:]
    out = per_row.new_empty(num_nodes, batch, channels, dtype=dtype) if into is None else into
    if out.numel() == 0:
        return out
    columns, acc = batch * channels, accumulate(per_row.dtype)[1]
    padded = power(columns, 1, 256)
    grad, weight, others = (None, None, None) if also is None else also
    width = 0 if weight is None else weight.shape[3]
    together, ahead, warps = _nodes_in_step(padded, width)
    where = (None, None, None) if others is None else (others.relation, others.by_node, others.node_ptr)
    launch(
        _node_sum_kernel, grid(blocks(num_nodes, together), blocks(columns, padded)),
        (out, per_row, rows.by_node, rows.node_ptr, grad, weight, *where), (num_nodes,), warps, C=columns, A=width,
        ADD=into is not None, T=together, K=ahead, CP=padded, AP=power(width) if width else 1, ACC=acc,
    )  # fmt: skip
    return out


def weight_grad(grads: Sequence[Tensor], x: Tensor, node: Tensor | None, relation_ptr: Tensor) -> Tensor:
    """The gradient of the kernels, ``[R, P, F, M]``, from those of the parts of ``project``."""
    num_relations, (num_rows, batch, _), channels = relation_ptr.shape[0] - 1, grads[0].shape, x.shape[2]
    widths = [grad.shape[2] for grad in grads]
    out = x.new_empty(num_relations, batch, channels, sum(widths))
    if x.numel() == 0 or num_rows == 0 or out.numel() == 0:
        return out.zero_()
    if len(grads) == 1 or _can_join(out, widths):
        _weight_grad(out, 0, grads, x, node, relation_ptr)
        return out
    begin = 0
    for grad, width in zip(grads, widths, strict=True):
        _weight_grad(out, begin, [grad], x, node, relation_ptr)
        begin += width
    return out


def _weight_grad(
    out: Tensor, begin: int, grads: Sequence[Tensor], x: Tensor, node: Tensor | None, relation_ptr: Tensor
) -> None:
    """The columns of ``out`` from ``begin``: sums of tiles, then sums of these."""
    (num_rows, batch, width), (num_relations, _, channels, columns) = grads[0].shape, out.shape
    also, narrow = (None, 0) if len(grads) == 1 else (grads[1], grads[1].shape[2])
    dtype, acc = accumulate(x.dtype)
    wide = x.dtype == torch.float64
    block_f, block_m = (16, 16) if wide else (power(channels, 16, 64), power(width, 16, 64))
    small = block_f * block_m <= 512  # a tile for one warp
    block_rows = 16 if wide else 32 if small else 64
    rows = _tile_rows(num_rows, 512 if small else 2048)
    num_tiles = num_rows // rows + num_relations
    part = out.new_empty(num_tiles, batch, channels, width + narrow, dtype=dtype)
    order = _tiles_by_node(node, relation_ptr, num_tiles, rows)
    launch(
        _weight_part_kernel, grid(num_tiles, blocks(channels, block_f) * blocks(width, block_m), batch),
        (part, grads[0], also, x, node, relation_ptr, order), (num_relations,), P=batch, F=channels, M=width,
        N=narrow, ROWS=rows, RP=power(num_relations, 1, 1024), BR=block_rows, BF=block_f, BM=block_m, BN=16,
        PRECISION=_precision(x.dtype), ACC=acc, warps=1 if small and not wide else 4, stages=1,
    )  # fmt: skip
    size = part[0].numel()
    block = 64 if size > 1024 else 16
    launch(
        _weight_join_kernel, grid(num_relations, blocks(size, block)), (out, part, relation_ptr), size=size,
        M=width + narrow, W=columns, BEGIN=begin, ROWS=rows, BE=(1024 if num_tiles < 1024 else 4096) // block,
        BC=block, ACC=acc,
    )  # fmt: skip


def column_sum(x: Tensor) -> Tensor:
    """The sum of all rows of ``[N, C]``, in two steps of fixed order."""
    size, columns = x.shape
    dtype, acc = accumulate(x.dtype)
    rows = power(blocks(max(size, 1), 1024), 64)
    part = x.new_empty(blocks(size, rows), columns, dtype=dtype)
    out = x.new_empty(columns)
    if x.numel() == 0:
        return out.zero_()
    for to, of, some, block in ((part, x, rows, power(columns, 1, 64)), (out, part, part.shape[0], 16)):
        numbers = (of.shape[0], some)
        where = grid(blocks(of.shape[0], some), blocks(columns, block))
        launch(_column_sum_kernel, where, (to, of), numbers, C=columns, BR=4096 // block, BC=block, ACC=acc)
    return out


def fold(kernels: Tensor, attention: Tensor) -> tuple[Tensor, Tensor]:
    """From ``[R, H, F, D]`` and ``[R, H, 2 A, D]``: ``[R, 1, F, H (D + A)]`` and ``[R, 1, F, H A]``."""
    (relations, heads, inputs, channels), width = kernels.shape, attention.shape[2] // 2
    if channels > WIDEST:
        return vectorised.fold(kernels, attention)
    weight = kernels.new_empty(relations, 1, inputs, heads * (channels + width))
    query = kernels.new_empty(relations, 1, inputs, heads * width)
    padded = power(channels)
    block = power(inputs, 1, max(1, 4096 // padded))
    if kernels.numel() > 0:
        launch(
            _fold_kernel, grid(relations * heads, blocks(inputs, block)), (weight, query, kernels, attention),
            H=heads, F=inputs, D=channels, A=width, BF=block, DP=padded,
        )  # fmt: skip
    return weight, query


def fold_backward(dweight: Tensor, dquery: Tensor, kernels: Tensor, attention: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of kernels and attention kernels."""
    (relations, heads, inputs, channels), width = kernels.shape, attention.shape[2] // 2
    if channels > WIDEST:
        return vectorised.fold_backward(dweight, dquery, kernels, attention)
    dkernels, dattention = torch.empty_like(kernels), torch.empty_like(attention)
    if kernels.numel() == 0:
        return dkernels, dattention.zero_()
    padded = power(channels)
    launch(
        _fold_grad_kernel, grid(relations * heads, width + 1),
        (dkernels, dattention, dweight, dquery, kernels, attention), H=heads, F=inputs, D=channels, A=width,
        BF=power(inputs, 1, max(1, 4096 // padded)), DP=padded,
    )  # fmt: skip
    return dkernels, dattention
