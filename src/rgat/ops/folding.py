"""Kernels of queries and keys folded into one (equations 3 and 4): ``q = (h W) Q = h (W Q)``.

With ``W`` ``[R, H, F, D]`` and ``[Q; K]`` stacked, ``[R, H, 2 D, A]``, for each relation one matrix for the source
rows, the values of all heads and then their keys, and one for the target rows, their queries::

    weight[r] = [W[r, 1] ... W[r, H]  W[r, 1] K[r, 1] ... W[r, H] K[r, H]]        F x H (D + A)
    query[r]  = [W[r, 1] Q[r, 1] ... W[r, H] Q[r, H]]                             F x H A

A function of each backend, because as a chain of products, transpositions and copies it costs as much as the edges.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from rgat.ops.dispatch import implementation
from rgat.ops.registration import as_given, forbid_double_backward, operator, widen


def fold_heads(per_head: Tensor) -> Tensor:
    """``[R, H, F, D] -> [R, 1, F, H * D]``: all heads of a relation as one matrix."""
    return per_head.transpose(1, 2).flatten(2).unsqueeze(1)


def unfold_heads(beside: Tensor, heads: int) -> Tensor:
    """``[R, 1, F, H * D] -> [R, H, F, D]``."""
    relations, _, inputs, columns = beside.shape
    return beside.reshape(relations, inputs, heads, columns // heads).transpose(1, 2)


def _turned(stacked: Tensor, size: int) -> Tensor:
    """Both halves of the third axis, ``size`` long, transposed; without copying where they are single columns."""
    relations, heads, _, columns = stacked.shape
    return (
        stacked.reshape(relations, heads, 2, size, columns).transpose(3, 4).reshape(relations, heads, 2 * columns, size)
    )


def fold_kernels(
    module: ModuleType, kernels: Tensor, attention: Tensor | None, dtype: torch.dtype, batch: int = 1
) -> tuple[Tensor, Tensor | None]:
    """The matrices ``[R, P, F, M]`` of source and target rows on a backend; without attention, those of values alone.

    The heads of each entry of a ``batch`` follow one another.
    """
    kernels = _apart(kernels, batch)
    if attention is None:
        return _batched(fold_heads(kernels).to(dtype), batch), None
    weight, query = module.fold(*widen((kernels, _turned(_apart(attention, batch), kernels.shape[3]))))
    return _batched(weight.to(dtype), batch), _batched(query.to(dtype), batch)


def _apart(kernels: Tensor, batch: int) -> Tensor:
    """``[R, P * H, F, D] -> [R * P, H, F, D]``."""
    return kernels if batch == 1 else kernels.reshape(-1, kernels.shape[1] // batch, *kernels.shape[2:])


def _batched(matrices: Tensor, batch: int) -> Tensor:
    """``[R * P, 1, F, M] -> [R, P, F, M]``."""
    return matrices.contiguous().view(-1, batch, *matrices.shape[2:])


def fold_kernels_backward(
    module: ModuleType, dweight: Tensor, dquery: Tensor | None, kernels: Tensor, attention: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """The gradients of kernels and attention kernels, from those of their matrices."""
    batch = dweight.shape[1]
    dweight, own = dweight.reshape(-1, 1, *dweight.shape[2:]), _apart(kernels, batch)
    if attention is None or dquery is None:
        return unfold_heads(dweight, own.shape[1]).reshape(kernels.shape), None
    dquery = dquery.reshape(-1, 1, *dquery.shape[2:])
    tensors = widen((dweight, dquery, own, _turned(_apart(attention, batch), own.shape[3])))
    dkernels, dattention = module.fold_backward(*tensors)
    return dkernels.reshape(kernels.shape), _turned(dattention, attention.shape[3]).reshape(attention.shape)


@operator("rgat::fold")
def _fold(kernels: Tensor, attention: Tensor) -> tuple[Tensor, Tensor]:
    with as_given(kernels):
        weight, query = fold_kernels(implementation(kernels.device), kernels, attention, kernels.dtype)
    assert query is not None
    return weight, query


@_fold.register_fake
def _(kernels: Tensor, attention: Tensor) -> tuple[Tensor, Tensor]:
    relations, heads, inputs, channels = kernels.shape
    width = attention.shape[3]
    return (
        kernels.new_empty(relations, 1, inputs, heads * (channels + width)),
        kernels.new_empty(relations, 1, inputs, heads * width),
    )


@operator("rgat::fold_backward")
def _fold_grads(dweight: Tensor, dquery: Tensor, kernels: Tensor, attention: Tensor) -> tuple[Tensor, Tensor]:
    module = implementation(kernels.device)
    with as_given(kernels):
        dkernels, dattention = fold_kernels_backward(module, dweight, dquery, kernels, attention)
    assert dattention is not None
    return dkernels.to(kernels.dtype).contiguous(), dattention.to(attention.dtype).contiguous()


@_fold_grads.register_fake
def _(dweight: Tensor, dquery: Tensor, kernels: Tensor, attention: Tensor) -> tuple[Tensor, Tensor]:
    return kernels.new_empty(kernels.shape), attention.new_empty(attention.shape)


def _fold_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs)


def _fold_backward(ctx: Any, dweight: Tensor, dquery: Tensor) -> tuple[Tensor, Tensor]:
    grads: tuple[Tensor, Tensor] = _fold_grads(dweight, dquery, *ctx.saved_tensors)
    return grads


_fold.register_autograd(_fold_backward, setup_context=_fold_context)
forbid_double_backward(_fold_grads)


def fold(kernels: Tensor, attention: Tensor) -> tuple[Tensor, Tensor]:
    """From ``W`` ``[R, H, F, D]`` and ``[Q; K]`` ``[R, H, 2 D, A]``: the matrices of source and target rows."""
    made: tuple[Tensor, Tensor] = _fold(kernels, attention)
    return made
