"""One model trained by several processes (`torchrun`), to the result of one process with the same global batch.

Each process takes every K-th graph of a batch. Its loss is divided by the number of graphs of the whole batch and
multiplied by K, for gradients are averaged over the processes. Batch-norm statistics are those of the whole batch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from rgat.nn.normalisation import normalise_counted
from rgat.nn.relational import RelationalConv


class Processes(NamedTuple):
    """Which of how many processes this one is."""

    rank: int = 0
    number: int = 1

    def share(self, ids: Tensor) -> Tensor:
        """This process's part."""
        return ids[self.rank :: self.number]

    def gather(self, own: Tensor, size: int) -> Tensor:
        """The rows of all processes, in the order of the ids that were shared out."""
        if self.number == 1:
            return own
        every = own.new_zeros(size, *own.shape[1:])
        every[self.rank :: self.number] = own
        dist.all_reduce(every)
        return every

    def average(self, values: Tensor) -> Tensor:
        """The mean over the processes."""
        if self.number > 1:
            dist.all_reduce(values)
            values /= self.number
        return values


def processes() -> Processes:
    """Those that were started together, or this one alone."""
    if not (dist.is_available() and dist.is_initialized()):
        return Processes()
    return Processes(dist.get_rank(), dist.get_world_size())


def under_torchrun() -> bool:
    """Whether this process is one of those that `torchrun` started."""
    return "TORCHELASTIC_RUN_ID" in os.environ


@contextmanager
def joined_processes() -> Iterator[torch.device]:
    """Join the processes that `torchrun` started, if it did; yields this one's device."""
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
    """The model as the loop calls it: itself or, with several processes, one whose gradients are averaged."""
    if processes().number == 1:
        yield model
        return
    norms = {name: norm for name, norm in model.named_children() if isinstance(norm, nn.BatchNorm1d)}
    for name, norm in norms.items():
        setattr(model, name, SyncBatchNorm(norm))
    try:
        yield DistributedDataParallel(model, broadcast_buffers=False)
    finally:
        for name, norm in norms.items():
            setattr(model, name, norm.train(model.training))


def separate_masks(model: nn.Module) -> None:
    """Give this process dropout seeds of its own: graphs in different processes have the same ids."""
    for module in model.modules():
        if isinstance(module, RelationalConv):
            module.dropout_state[0] += processes().rank


class SyncBatchNorm(nn.BatchNorm1d):
    """Batch normalisation by the statistics of all processes' rows; PyTorch's own is for GPUs alone.

    It shares parameters and statistics with the layer it stands for.
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
        return normalise_counted(self, x, x.new_ones(len(x)), _sum)


def _sum(own: Tensor) -> Tensor:
    """Over all processes, differentiable."""
    from torch.distributed.nn.functional import all_reduce

    total: Tensor = all_reduce(own)  # type: ignore[no-untyped-call]
    return total
