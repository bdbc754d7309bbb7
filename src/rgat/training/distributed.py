"""Train one model in several processes (`torchrun`), with the result of one process and the same global batch.

Each of K processes takes a share of every batch of graphs or nodes. Its loss is divided by the size of the whole batch
and multiplied by K, because gradients are averaged over the processes. Batch-norm statistics are those of the whole
batch.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

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
        """Return the rows of all processes, in the order of the ids before `share`."""
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

    def agree_on(self, value: int, device: torch.device) -> bool:
        """Return whether all processes have the same value."""
        bounds = torch.tensor([value, -value], device=device)
        if self.number > 1:
            dist.all_reduce(bounds, dist.ReduceOp.MAX)
        return bool(bounds[0] == -bounds[1])

    def as_first(self, decision: bool, device: torch.device) -> bool:
        """Return the decision of the first process."""
        if self.number == 1:
            return decision
        decided = torch.tensor([int(decision)], device=device)
        dist.broadcast(decided, 0)
        return bool(decided)

    def word_of_first(self, word: str) -> str:
        """Return the word of the first process."""
        words = [word]
        dist.broadcast_object_list(words, 0)
        return words[0]

    def least(self, number: int) -> int:
        """Return the smallest of the processes' numbers."""
        if self.number == 1:
            return number
        numbers: list[int] = [0] * self.number
        dist.all_gather_object(numbers, number)
        return min(numbers)

    def gather_parts(self, part: Tensor) -> list[Tensor]:
        """Return the rows of each process, which may differ in number, in the order of the ranks."""
        if self.number == 1:
            return [part]
        sizes = torch.zeros(self.number, dtype=torch.int64, device=part.device)
        sizes[self.rank] = len(part)
        dist.all_reduce(sizes)
        numbers = sizes.tolist()
        padded = part.new_zeros(max(numbers), *part.shape[1:])
        padded[: len(part)] = part
        parts = [torch.empty_like(padded) for _ in numbers]
        dist.all_gather(parts, padded)
        return [rows[:size] for rows, size in zip(parts, numbers, strict=True)]

    def counts_once(self, ids: Tensor) -> Tensor:
        """Return 1 for each of this process's ids unless a process of lower rank has it too, else 0."""
        before = self.gather_parts(ids)[: self.rank]
        return torch.ones_like(ids) if not before else (~torch.isin(ids, torch.cat(before))).long()

    def average_gradients(self, dense: Sequence[nn.Parameter], sparse: Sequence[nn.Parameter]) -> None:
        """Average gradients over the processes, which then all have the same; of sparse ones only used rows are sent.

        Dense gradients are sent as one vector. So each number is added up in the same order in every step, and a
        resumed run takes the steps of an undisturbed one bit for bit. PyTorch's `DistributedDataParallel` changes its
        buckets after the first step, and keeps the group's threads alive when the group has ended.
        """
        if self.number == 1:
            return
        dense = [parameter for parameter in dense if parameter.requires_grad]
        flat = torch.cat([p.new_zeros(p.numel()) if p.grad is None else p.grad.flatten() for p in dense])
        averages = torch.split(self.average(flat), [p.numel() for p in dense])
        for parameter, average in zip(dense, averages, strict=True):
            parameter.grad = average.view_as(parameter)
        for parameter in sparse:
            assert parameter.grad is not None
            grad = parameter.grad.coalesce()
            ids, values = (torch.cat(self.gather_parts(part)) for part in (grad.indices()[0], grad.values()))
            mean = torch.sparse_coo_tensor(ids.unsqueeze(0), values / self.number, grad.shape, check_invariants=False)
            parameter.grad = mean.coalesce()


def processes() -> Processes:
    """Return this process's place among those that were started together."""
    if not (dist.is_available() and dist.is_initialized()):
        return Processes()
    return Processes(dist.get_rank(), dist.get_world_size())


def under_torchrun() -> bool:
    """Return whether `torchrun` started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


@contextmanager
def joined_processes(device: torch.device | None = None) -> Iterator[torch.device]:
    """Join the process group of `torchrun`, if there is one, and yield this process's device.

    Args:
        device: where to train; by default a GPU of its own if there is one, or one that it shares with others.
    """
    local_rank, local_number = (int(os.environ.get(name, default)) for name, default in _LOCAL.items())
    own, backend = choose_backend(local_rank, local_number, torch.cuda.device_count(), device)
    if not under_torchrun():
        yield own
        return
    with process_group(own, backend, **_own_store()):
        yield own


_LOCAL = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}  # as `torchrun` sets them


def choose_backend(
    local_rank: int, local_number: int, num_gpus: int, device: torch.device | None = None
) -> tuple[torch.device, str]:
    """Return the device of a process and the backend of its group: NCCL where each process has a GPU of its own.

    NCCL refuses a GPU that two processes use. Gloo takes tensors on GPUs too, and copies them through the host.

    Args:
        local_rank: the number of this process among those on its host.
        local_number: the number of processes on its host.
        num_gpus: the number of GPUs of its host.
        device: where to train, if that is given.
    """
    if num_gpus == 0 or (device is not None and device.type == "cpu"):
        return torch.device("cpu"), "gloo"
    if device is not None and device.index is not None:
        return device, "nccl" if local_number == 1 else "gloo"
    own = torch.device("cuda", local_rank % num_gpus)
    return own, "nccl" if local_number <= num_gpus else "gloo"


@contextmanager
def process_group(device: torch.device, backend: str, **options: Any) -> Iterator[None]:
    """Join the process group that the options of `torch.distributed.init_process_group` describe, and leave it.

    No thread of the group outlives it: one that does may need Python's lock at exit, which aborts the process.
    """
    # An optimizer imports this module, whose functions have the group of that moment as a default, and so keep it.
    importlib.import_module("torch.distributed.nn")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(backend, device_id=device if backend == "nccl" else None, **options)
    try:
        yield
    finally:
        dist.destroy_process_group()


def connection(device: torch.device) -> str:
    """Return a sentence that says how this process on a device and the others are connected, and why."""
    number, backend = processes().number, dist.get_backend()
    if backend == "nccl":
        return f"{number} processes are connected by NCCL: each has a GPU of its own."
    if device.type == "cpu":
        return f"{number} processes are connected by gloo: they run on CPUs."
    return f"{number} processes are connected by gloo: some share a GPU, which NCCL does not allow."


def _own_store() -> dict[str, Any]:
    """Return options of a process group that does not meet the addresses of workers before a restart.

    The launcher of PyTorch 2.13 gives restarted workers the store of those that it has ended, addresses included
    (github.com/pytorch/pytorch/issues/167288).
    """
    environment = os.environ
    if environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True" or environment["TORCHELASTIC_MAX_RESTARTS"] == "0":
        return {}
    if environment["GROUP_WORLD_SIZE"] != "1":  # hosts count restarts on their own
        raise ValueError(
            "workers on several hosts that are restarted must not share a store with those before; set "
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 for torchrun and use --rdzv-backend c10d"
        )
    rank, number = int(environment["RANK"]), int(environment["WORLD_SIZE"])
    stores: Any = dist
    store = stores.TCPStore(environment["MASTER_ADDR"], int(environment["MASTER_PORT"]), number, is_master=False)
    prefix = f"restart {environment['TORCHELASTIC_RESTART_COUNT']}"
    return {"store": stores.PrefixStore(prefix, store), "rank": rank, "world_size": number}


@contextmanager
def parallel(model: nn.Module, of_graphs: bool) -> Iterator[None]:
    """Let several processes train a model: batch normalisation is by the statistics of all of them.

    Models of graphs start as that of the first process, those of nodes as their seed says.
    """
    if processes().number == 1:
        yield
        return
    if of_graphs:
        for tensor in model.state_dict().values():
            dist.broadcast(tensor, 0)
    norms = {name: norm for name, norm in model.named_children() if isinstance(norm, nn.BatchNorm1d)}
    for name, norm in norms.items():
        setattr(model, name, SyncBatchNorm(norm))
    try:
        yield
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
        return normalise_counted(self, x, x.new_ones(len(x)), self.total)

    def total(self, summand: Tensor) -> Tensor:
        """Return the sum over all processes."""
        total: Tensor = _Sum.apply(summand)  # type: ignore[no-untyped-call]
        return total


def all_to_all(rows: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
    """Send rows to all processes and return those received; gradients take the opposite way.

    Args:
        rows: for the first process, then for the second one, and so on.
        sent: number of rows for each process.
        received: number of rows from each process.
    """
    out: Tensor = _AllToAll.apply(rows, sent, received)  # type: ignore[no-untyped-call]
    return out


class Requests:
    """Rows that processes ask of one another.

    Args:
        ids: those that this process asks for.
        owner: the process to ask for each.
        is_over: ask for none, and say that no more will follow.
    """

    def __init__(self, ids: Tensor, owner: Tensor, is_over: bool = False) -> None:
        order = owner.argsort(stable=True)
        self.place = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
        received = owner.bincount(minlength=processes().number) - int(is_over)
        sent = torch.empty_like(received)
        dist.all_to_all_single(sent, received)
        self.are_all_over = bool((sent < 0).all())
        self.received, self.sent = received.clamp(min=0).tolist(), sent.clamp(min=0).tolist()
        # What others ask of this process.
        self.ids = ids if self.are_all_over else all_to_all(ids[order], self.received, self.sent)

    def fetch(self, rows: Tensor) -> Tensor:
        """Send the rows of ``self.ids``, and return those asked for, in their order; gradients return to the owner."""
        return all_to_all(rows, self.sent, self.received).index_select(0, self.place)


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        ctx.sizes = (received, sent)
        out = rows.new_empty(sum(received), *rows.shape[1:])
        dist.all_to_all_single(out, rows.contiguous(), list(received), list(sent))
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return all_to_all(grads[0], *ctx.sizes), None, None


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
