"""Train one model in several processes (`torchrun`), with the result of one process and the same global batch.

Each of K processes takes every K-th graph of a batch. Its loss is divided by the number of graphs of the whole batch
and multiplied by K, because gradients are averaged over the processes. Batch-norm statistics are those of the whole
batch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from rgat.nn.normalisation import normalise_counted
from rgat.nn.relational import RelationalConv


class Processes(NamedTuple):
    """The rank of this process and the number of processes."""

    rank: int = 0
    number: int = 1

    def share(self, ids: Tensor) -> Tensor:
        """Return this process's share of some ids."""
        return ids[self.rank :: self.number]

    def gather(self, rows: Tensor, size: int) -> Tensor:
        """Return the rows of all processes, in the order of the ids before :meth:`share`."""
        if self.number == 1:
            return rows
        all_rows = rows.new_zeros(size, *rows.shape[1:])
        all_rows[self.rank :: self.number] = rows
        dist.all_reduce(all_rows)
        return all_rows

    def average(self, values: Tensor) -> Tensor:
        """Return the mean over the processes, in place."""
        if self.number > 1:
            dist.all_reduce(values)
            values /= self.number
        return values


def processes() -> Processes:
    """Return this process's place among those that were started together."""
    if not (dist.is_available() and dist.is_initialized()):
        return Processes()
    return Processes(dist.get_rank(), dist.get_world_size())


def under_torchrun() -> bool:
    """Return whether `torchrun` started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


@contextmanager
def joined_processes() -> Iterator[torch.device]:
    """Join the process group of `torchrun`, if there is one, and yield this process's device."""
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if torch.cuda.is_available() else None
    if not under_torchrun():
        yield device or torch.device("cpu")
        return
    if device is not None:
        torch.cuda.set_device(device)
    dist.init_process_group("gloo" if device is None else "nccl", device_id=device)
    try:
        yield device or torch.device("cpu")
    finally:
        dist.destroy_process_group()


@contextmanager
def parallel(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the model or, with several processes, a wrapper that averages its gradients over them."""
    if processes().number == 1:
        yield model
        return
    norms = {name: norm for name, norm in model.named_children() if isinstance(norm, nn.BatchNorm1d)}
    for name, norm in norms.items():
        setattr(model, name, SyncBatchNorm(norm))
    try:
        wrapper = DistributedDataParallel(model)
        wrapper.broadcast_buffers = False  # each process has its own dropout seeds
        yield wrapper
    finally:
        for name, norm in norms.items():
            setattr(model, name, norm.train(model.training))


def separate_masks(model: nn.Module) -> None:
    """Give each process its own dropout seeds, because graphs in different processes have the same ids."""
    for module in model.modules():
        if isinstance(module, RelationalConv):
            module.dropout_state[0] += processes().rank


class SyncBatchNorm(nn.BatchNorm1d):
    """Batch normalisation by the statistics of all processes' rows; PyTorch's own works on GPUs only.

    It shares parameters and statistics with the layer that it replaces.
    """

    def __init__(self, norm: nn.BatchNorm1d) -> None:
        super().__init__(norm.num_features, norm.eps, norm.momentum)
        self.weight, self.bias = norm.weight, norm.bias
        self.running_mean, self.running_var = norm.running_mean, norm.running_var
        self.num_batches_tracked = norm.num_batches_tracked
        self.train(norm.training)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise ``[N, C]``."""
        if not self.training:
            return super().forward(x)
        return normalise_counted(self, x, x.new_ones(len(x)), _Sum.apply)


class _Sum(torch.autograd.Function):
    """The sum over all processes; so is the gradient of each process's values."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        total = values.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return _Sum.forward(ctx, *grads)
