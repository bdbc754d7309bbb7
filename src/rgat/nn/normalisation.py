"""Batch normalisation over the nodes of a batch, but not over those that fill it up to a size."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rgat.graph import RelationalGraph
from rgat.nn.stacked import StackedBatchNorm


def normalise(norm: nn.Module, x: Tensor, graph: RelationalGraph) -> Tensor:
    """``norm(x)``, with the statistics of the nodes that count."""
    counted = graph.counted
    if counted is None or not norm.training or not isinstance(norm, nn.BatchNorm1d | StackedBatchNorm):
        return norm(x)  # type: ignore[no-any-return]
    like: Any = norm.like if isinstance(norm, StackedBatchNorm) else norm
    own: Any = norm
    weight = counted.to(x.dtype).view(-1, *[1] * (x.dim() - 1))
    number = weight.sum()
    mean = (x * weight).sum(0) / number
    centred = x - mean
    variance = (centred.square() * weight).sum(0) / number
    with torch.no_grad():
        own.num_batches_tracked += 1
        own.running_mean.lerp_(mean, like.momentum)
        own.running_var.lerp_(variance * (number / (number - 1)), like.momentum)
    out: Tensor = centred * torch.rsqrt(variance + like.eps) * own.weight + own.bias
    return out
