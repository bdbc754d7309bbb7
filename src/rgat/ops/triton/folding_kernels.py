"""Fold attention kernels into relation kernels in Triton; see ``ops/folding.py``."""

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
    BF: tl.constexpr, DP: tl.constexpr,
):  # fmt: skip
    """Write ``BF`` rows of one kernel, and their products with its attention kernels, into ``weight`` and ``query``."""
    number, block = first_and_part((F + BF - 1) // BF, 1)
    number = number.to(tl.int64)
    relation, head = number // H, number % H
    f = block * BF + tl.arange(0, BF)
    d = tl.arange(0, DP)
    inside = (f < F)[:, None] & (d < D)[None, :]
    values = tl.load(kernels + (number * F + f)[:, None] * D + d[None, :], inside, 0.0)
    at_weight = weight + (relation * F + f) * (H * (D + A))
    tl.store(at_weight[:, None] + head * D + d[None, :], values, inside)
    for a in range(A):
        query_kernel = attention + (number * (2 * A) + a) * D + d
        scores = tl.sum(values * tl.load(query_kernel, d < D, 0.0)[None, :], 1)
        tl.store(query + (relation * F + f) * (H * A) + head * A + a, scores, f < F)
        scores = tl.sum(values * tl.load(query_kernel + A * D, d < D, 0.0)[None, :], 1)
        tl.store(at_weight + H * D + head * A + a, scores, f < F)


@triton.jit
def _fold_grad_kernel(
    dkernels, dattention, dweight, dquery, kernels, attention, H: tl.constexpr, F: tl.constexpr, D: tl.constexpr,
    A: tl.constexpr, BF: tl.constexpr, DP: tl.constexpr,
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
        at_values = dweight + (relation * F + f) * (H * (D + A))
        at_query = dquery + (relation * F + f) * (H * A) + head * A
        at_key = at_values + H * D + head * A
        if column == A:
            total = tl.load(at_values[:, None] + head * D + d[None, :], inside, 0.0)
            for a in range(A):
                query_kernel = attention + (number * (2 * A) + a) * D + d
                total += tl.load(at_query + a, f < F, 0.0)[:, None] * tl.load(query_kernel, d < D, 0.0)[None, :]
                total += tl.load(at_key + a, f < F, 0.0)[:, None] * tl.load(query_kernel + A * D, d < D, 0.0)[None, :]
            tl.store(dkernels + at, total, inside)
        else:
            values = tl.load(kernels + at, inside, 0.0)
            dq += tl.sum(values * tl.load(at_query + column, f < F, 0.0)[:, None], 0)
            dk += tl.sum(values * tl.load(at_key + column, f < F, 0.0)[:, None], 0)
    if column < A:
        dquery_kernel = dattention + (number * (2 * A) + column) * D + d
        tl.store(dquery_kernel, dq, d < D)
        tl.store(dquery_kernel + A * D, dk, d < D)


def fold(kernels: Tensor, attention: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``[R, 1, F, H (D + A)]`` and ``[R, 1, F, H A]`` from ``[R, H, F, D]`` and ``[R, H, 2 A, D]``."""
    (relations, heads, inputs, channels), width = kernels.shape, attention.shape[2] // 2
    if channels > MAX_CHANNELS:
        return vectorised.fold(kernels, attention)
    weight = kernels.new_empty(relations, 1, inputs, heads * (channels + width))
    query = kernels.new_empty(relations, 1, inputs, heads * width)
    padded = power_of_two(channels)
    block = power_of_two(inputs, 1, max(1, 4096 // padded))
    if kernels.numel() > 0:
        launch(
            _fold_kernel, grid_with_parts(relations * heads, num_blocks(inputs, block)),
            (weight, query, kernels, attention), H=heads, F=inputs, D=channels, A=width, BF=block, DP=padded,
        )  # fmt: skip
    return weight, query


def fold_backward(dweight: Tensor, dquery: Tensor, kernels: Tensor, attention: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of kernels and attention kernels."""
    (relations, heads, inputs, channels), width = kernels.shape, attention.shape[2] // 2
    if channels > MAX_CHANNELS:
        return vectorised.fold_backward(dweight, dquery, kernels, attention)
    dkernels, dattention = torch.empty_like(kernels), torch.empty_like(attention)
    if kernels.numel() == 0:
        return dkernels, dattention.zero_()
    padded = power_of_two(channels)
    launch(
        _fold_grad_kernel, grid_with_parts(relations * heads, width + 1),
        (dkernels, dattention, dweight, dquery, kernels, attention), H=heads, F=inputs, D=channels, A=width,
        BF=power_of_two(inputs, 1, max(1, 4096 // padded)), DP=padded,
    )  # fmt: skip
    return dkernels, dattention
