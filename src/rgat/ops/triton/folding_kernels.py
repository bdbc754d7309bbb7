"""Fold attention kernels into relation kernels in Triton; see ``ops/projection.py``."""

# ruff: noqa: N803
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from rgat.ops.torch import backend as vectorised
from rgat.ops.triton.launch import MAX_CHANNELS, first_and_part, grid_with_parts, launch, num_blocks, power_of_two


@triton.jit
def _fold_kernel(
    weight, query, kernels, attention, H: tl.constexpr, F: tl.constexpr, D: tl.constexpr, A: tl.constexpr,
    KEYS: tl.constexpr, BF: tl.constexpr, DP: tl.constexpr,
):  # fmt: skip
    """Write ``BF`` rows of one kernel, and their products with its attention kernels, into ``weight`` and ``query``.

    There are ``A`` query columns and ``KEYS`` key columns: as many, or none.
    """
    number, block = first_and_part((F + BF - 1) // BF, 1)
    number = number.to(tl.int64)
    relation, head = number // H, number % H
    f = block * BF + tl.arange(0, BF)
    d = tl.arange(0, DP)
    inside = (f < F)[:, None] & (d < D)[None, :]
    values = tl.load(kernels + (number * F + f)[:, None] * D + d[None, :], inside, 0.0)
    at_weight = weight + (relation * F + f) * (H * (D + KEYS))
    tl.store(at_weight[:, None] + head * D + d[None, :], values, inside)
    for a in range(A):
        query_kernel = attention + (number * (A + KEYS) + a) * D + d
        scores = tl.sum(values * tl.load(query_kernel, d < D, 0.0)[None, :], 1)
        tl.store(query + (relation * F + f) * (H * A) + head * A + a, scores, f < F)
        if KEYS > 0:
            scores = tl.sum(values * tl.load(query_kernel + A * D, d < D, 0.0)[None, :], 1)
            tl.store(at_weight + H * D + head * A + a, scores, f < F)


@triton.jit
def _fold_grad_kernel(
    dkernels, dattention, dweight, dquery, kernels, attention, H: tl.constexpr, F: tl.constexpr, D: tl.constexpr,
    A: tl.constexpr, KEYS: tl.constexpr, BF: tl.constexpr, DP: tl.constexpr,
):  # fmt: skip
    """Write the gradient of one kernel, or of one query and one key column of its attention kernels."""
    number, column = first_and_part(A + 1, 1)
    number = number.to(tl.int64)
    relation, head = number // H, number % H
    d = tl.arange(0, DP)
    dq = tl.zeros([DP], dkernels.dtype.element_ty)
    dk = tl.zeros([DP], dkernels.dtype.element_ty)
    for start in range(0, F, BF):
        f = start + tl.arange(0, BF)
        inside = (f < F)[:, None] & (d < D)[None, :]
        at = (number * F + f)[:, None] * D + d[None, :]
        at_values = dweight + (relation * F + f) * (H * (D + KEYS))
        at_query = dquery + (relation * F + f) * (H * A) + head * A
        at_key = at_values + H * D + head * A
        if column == A:
            total = tl.load(at_values[:, None] + head * D + d[None, :], inside, 0.0)
            for a in range(A):
                query_kernel = attention + (number * (A + KEYS) + a) * D + d
                total += tl.load(at_query + a, f < F, 0.0)[:, None] * tl.load(query_kernel, d < D, 0.0)[None, :]
                if KEYS > 0:
                    key = tl.load(query_kernel + A * D, d < D, 0.0)[None, :]
                    total += tl.load(at_key + a, f < F, 0.0)[:, None] * key
            tl.store(dkernels + at, total, inside)
        else:
            values = tl.load(kernels + at, inside, 0.0)
            dq += tl.sum(values * tl.load(at_query + column, f < F, 0.0)[:, None], 0)
            if KEYS > 0:
                dk += tl.sum(values * tl.load(at_key + column, f < F, 0.0)[:, None], 0)
    if column < A:
        dquery_kernel = dattention + (number * (A + KEYS) + column) * D + d
        tl.store(dquery_kernel, dq, d < D)
        if KEYS > 0:
            tl.store(dquery_kernel + A * D, dk, d < D)


@triton.jit(do_not_specialize=["size_a", "size_b", "size_out"])
def _head_products_kernel(
    out, a, b, size_a, size_b, size_out, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, ROW_A: tl.constexpr,
    COLUMN_A: tl.constexpr, ROW_B: tl.constexpr, COLUMN_B: tl.constexpr, MP: tl.constexpr, NP: tl.constexpr,
):  # fmt: skip
    """Write ``a @ b`` of one head, ``[M, K]`` times ``[K, N]``, with these strides."""
    number = tl.program_id(0).to(tl.int64)
    m, n = tl.arange(0, MP), tl.arange(0, NP)
    total = tl.zeros([MP, NP], out.dtype.element_ty)
    for k in range(K):
        left = tl.load(a + number * size_a + m * ROW_A + k * COLUMN_A, m < M, 0.0)
        right = tl.load(b + number * size_b + k * ROW_B + n * COLUMN_B, n < N, 0.0)
        total += left[:, None] * right[None, :]
    at = number * size_out + m[:, None] * N + n[None, :]
    tl.store(out + at, total, (m < M)[:, None] & (n < N)[None, :])


def _head_products(out: Tensor, a: Tensor, b: Tensor) -> None:
    """Fill ``out`` with ``a @ b`` of each head; heads of a tensor ``[R * H, ., .]`` are equally far apart."""
    (number, rows, inner), columns = a.shape, b.shape[2]
    if out.numel() > 0:
        launch(
            _head_products_kernel, (number, 1, 1), (out, a, b), (a.stride(0), b.stride(0), out.stride(0)),
            M=rows, N=columns, K=inner, ROW_A=a.stride(1), COLUMN_A=a.stride(2), ROW_B=b.stride(1),
            COLUMN_B=b.stride(2), MP=power_of_two(rows), NP=power_of_two(columns),
        )  # fmt: skip


def _by_head(kernels: Tensor) -> Tensor:
    """Return the kernels ``[R, H, M, N]`` as ``[R * H, M, N]``; axes of size one may have any stride before."""
    return kernels.contiguous().view(kernels.shape[0] * kernels.shape[1], *kernels.shape[2:])


def join_scores(attention: Tensor) -> Tensor:
    """Return ``K Q.T`` of each head, ``[R, H, D, D]``, from attention kernels ``[R, H, 2 D, A]``, ``Q`` first."""
    heads, channels = _by_head(attention), attention.shape[2] // 2
    out = heads.new_empty(len(heads), channels, channels)
    _head_products(out, heads[:, channels:], heads[:, :channels].transpose(1, 2))
    return out.view(*attention.shape[:2], channels, channels)


def join_scores_backward(grad: Tensor, attention: Tensor) -> Tensor:
    """Return the gradient of the attention kernels."""
    heads, channels, grad = _by_head(attention), attention.shape[2] // 2, _by_head(grad)
    out = torch.empty_like(heads)
    _head_products(out[:, :channels], grad.transpose(1, 2), heads[:, channels:])
    _head_products(out[:, channels:], grad, heads[:, :channels])
    return out.view(attention.shape)


def fold(kernels: Tensor, attention: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``[R, 1, F, H (D + A)]`` and ``[R, 1, F, H A]`` from ``[R, H, F, D]`` and ``[R, H, 2 A, D]``."""
    if kernels.shape[3] > MAX_CHANNELS:
        return vectorised.fold(kernels, attention)
    return _fold(kernels, attention, attention.shape[2] // 2)


def fold_queries(kernels: Tensor, joined: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``[R, 1, F, H D]`` and ``[R, 1, F, H D]`` from ``[R, H, F, D]`` and ``[R, H, D, D]``, without keys."""
    return _fold(kernels, joined, 0)


def _fold(kernels: Tensor, attention: Tensor, keys: int) -> tuple[Tensor, Tensor]:
    (relations, heads, inputs, channels), width = kernels.shape, attention.shape[2] - keys
    weight = kernels.new_empty(relations, 1, inputs, heads * (channels + keys))
    query = kernels.new_empty(relations, 1, inputs, heads * width)
    padded = power_of_two(channels)
    block = power_of_two(inputs, 1, max(1, 4096 // padded))
    if kernels.numel() > 0:
        launch(
            _fold_kernel, grid_with_parts(relations * heads, num_blocks(inputs, block)),
            (weight, query, kernels, attention), H=heads, F=inputs, D=channels, A=width, KEYS=keys, BF=block, DP=padded,
        )  # fmt: skip
    return weight, query


def fold_backward(dweight: Tensor, dquery: Tensor, kernels: Tensor, attention: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of kernels and attention kernels."""
    if kernels.shape[3] > MAX_CHANNELS:
        return vectorised.fold_backward(dweight, dquery, kernels, attention)
    return _fold_backward(dweight, dquery, kernels, attention, attention.shape[2] // 2)


def fold_queries_backward(dweight: Tensor, dquery: Tensor, kernels: Tensor, joined: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of kernels and joined scores."""
    return _fold_backward(dweight, dquery, kernels, joined, 0)


def _fold_backward(
    dweight: Tensor, dquery: Tensor, kernels: Tensor, attention: Tensor, keys: int
) -> tuple[Tensor, Tensor]:
    (relations, heads, inputs, channels), width = kernels.shape, attention.shape[2] - keys
    dkernels, dattention = torch.empty_like(kernels), torch.empty_like(attention)
    if kernels.numel() == 0:
        return dkernels, dattention.zero_()
    padded = power_of_two(channels)
    launch(
        _fold_grad_kernel, grid_with_parts(relations * heads, width + 1),
        (dkernels, dattention, dweight, dquery, kernels, attention), H=heads, F=inputs, D=channels, A=width, KEYS=keys,
        BF=power_of_two(inputs, 1, max(1, 4096 // padded)), DP=padded,
    )  # fmt: skip
    return dkernels, dattention
