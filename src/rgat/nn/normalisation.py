"""Batch normalisation over the nodes of a batch, for batches of any size, padded or not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from rgat.nn.stacked import StackedBatchNorm


def normalise(norm: nn.Module, x: Tensor, counted: Tensor | None = None) -> Tensor:
    """Return ``norm(x)``; in training with the statistics of the nodes that count.

    A batch of fewer than two nodes has no variance: its outputs are the bias, and running statistics stay as they are.

    Args:
        norm: batch normalisation, also stacked, or any module that normalises rows by itself.
        x: features of the nodes, ``[N, C]`` or, stacked, ``[N, S, C]``.
        counted: ``[N]``, 1 for each node of the batch and 0 for padding; None: all count.
    """
    if norm.training and isinstance(norm, nn.BatchNorm1d | StackedBatchNorm):
        if counted is None and len(x) < 2 and type(norm) in (nn.BatchNorm1d, StackedBatchNorm):
            counted = x.new_ones(len(x))  # PyTorch refuses one node; a subclass may know nodes of other processes
        if counted is not None:
            return normalise_counted(norm, x, counted, getattr(norm, "total", None))
    out: Tensor = norm(x)
    return out


def normalise_counted(
    norm: nn.BatchNorm1d | StackedBatchNorm, x: Tensor, counted: Tensor, total: Callable[[Tensor], Tensor] | None = None
) -> Tensor:
    """Normalise by the statistics of the nodes that count, and update the running ones, without waiting for a GPU.

    ``total`` adds up what several processes have; None: there is one.
    """
    total = total or (lambda summand: summand)
    layer: Any = norm
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    weight = counted.to(wide.dtype).view(-1, *[1] * (x.dim() - 1))
    number = total(weight.sum())
    has_variance, at_least_one = number > 1, number.clamp(min=1)
    mean = total((wide * weight).sum(0)) / at_least_one
    centred = wide - mean
    variance = total((centred.square() * weight).sum(0)) / at_least_one
    with torch.no_grad():
        layer.num_batches_tracked += has_variance
        rate = has_variance.to(layer.running_mean.dtype) * layer.momentum
        unbiased = variance * (number / (number - 1).clamp(min=1))
        layer.running_mean.lerp_(mean.to(rate.dtype), rate)
        layer.running_var.lerp_(unbiased.to(rate.dtype), rate)
    out: Tensor = centred * torch.rsqrt(variance + layer.eps) * layer.weight + layer.bias
    return out.to(x.dtype)
