"""Node embeddings divided among processes: each holds the rows whose id modulo the number of processes is its rank."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import embedding

from rgat.training.distributed import Requests, processes

# Of a checkpoint, which holds them whole.
SHARDED_TENSORS = tuple(f"{name}.embedding.weight" for name in ("model", "best")) + tuple(
    f"adam.embedding.weight.{name}" for name in ("exp_avg", "exp_avg_sq")
)


class ShardedEmbedding(nn.Module):
    """This process's rows of a table; a lookup asks other processes for theirs, and gradients return to the owner.

    All processes must look up equally often, or answer the others with `serve`. Gradients are sparse and those of all
    processes together.

    Args:
        table: the whole table, of which this process's rows are copied.
    """

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.num_embeddings = len(table)
        self.weight = nn.Parameter(processes().share(table.detach()).clone())

    def forward(self, nodes: Tensor) -> Tensor:
        """Return the embeddings of nodes, ``[n, C]``."""
        requests = Requests(nodes, nodes % processes().number)
        return requests.fetch(self._rows(requests))

    def _rows(self, requests: Requests) -> Tensor:
        return embedding(requests.ids // processes().number, self.weight, sparse=True)

    def average_gradient(self) -> None:
        """Average the gradient over the processes, whose sum it is."""
        if self.weight.grad is not None:
            self.weight.grad = self.weight.grad.coalesce() / processes().number

    @torch.no_grad()
    def serve(self) -> None:
        """Answer the lookups of other processes until all have called this."""
        nobody = torch.empty(0, dtype=torch.int64, device=self.weight.device)
        while not (requests := Requests(nobody, nobody, is_over=True)).are_all_over:
            requests.fetch(self._rows(requests))

    def whole(self, shard: Tensor) -> Tensor:
        """Return the whole table of which each process has a shard such as ``weight``; the first process alone has it.

        The others get an empty tensor.
        """
        rank, number = processes()
        longest = -(-self.num_embeddings // number)
        padded = torch.cat([shard, shard.new_zeros(longest - len(shard), *shard.shape[1:])])
        shards = [torch.empty_like(padded) for _ in range(number)] if rank == 0 else None
        dist.gather(padded, shards)
        if shards is None:
            return shard[:0]
        return torch.stack(shards, dim=1).flatten(0, 1)[: self.num_embeddings]


@contextmanager
def sharded_embeddings(model: nn.Module, shards: bool) -> Iterator[None]:
    """Divide a model's embeddings among processes, if asked; afterwards every process has the whole table again."""
    table: nn.Embedding | None = getattr(model, "embedding", None)
    if not shards or table is None or processes().number == 1:
        yield
        return
    sharded = ShardedEmbedding(table.weight)
    table.weight.data = table.weight.new_empty(0)  # free its memory
    model.embedding = sharded
    try:
        yield
    finally:
        model.embedding = table
    whole = sharded.whole(sharded.weight.data)
    if processes().rank > 0:
        whole = whole.new_empty(sharded.num_embeddings, *whole.shape[1:])
    dist.broadcast(whole, 0)
    table.weight.data = whole
