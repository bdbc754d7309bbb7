"""Node embeddings divided among processes: each holds the rows whose id modulo the number of processes is its rank.

No process ever holds the whole table: each draws its own rows, and reads them from a checkpoint. The first process
collects blocks of rows to write them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import embedding

from rgat.models import embedding_bound
from rgat.training.distributed import Requests, processes

BLOCK_NUMBERS = 2**20  # of a whole table, that a process holds at a time; the C library keeps freed larger blocks
# Of a checkpoint, which holds them whole.
SHARDED_TENSORS = tuple(f"{name}.embedding.weight" for name in ("model", "best", "mean")) + tuple(
    f"adam.embedding.weight.{name}" for name in ("exp_avg", "exp_avg_sq")
)


class ShardedEmbedding(nn.Embedding):
    """This process's rows of a table; a lookup asks other processes for theirs, and gradients return to the owner.

    All processes must look up equally often, or answer the others with `serve`. Gradients are sparse and those of all
    processes together. Its name and sizes are those of the whole table, so that any number of processes resumes the
    same checkpoints.

    Args:
        num_embeddings: number of rows of the whole table.
        rows: this process's rows.
    """

    def __init__(self, num_embeddings: int, rows: Tensor) -> None:
        super().__init__(num_embeddings, rows.shape[1], sparse=True, device="meta")
        self.weight = nn.Parameter(rows)

    def _get_name(self) -> str:
        return nn.Embedding.__name__

    @classmethod
    def draw(cls, num_nodes: int, channels: int) -> ShardedEmbedding:
        """Draw this process's rows of the table that `rgat.models.node_embedding` draws whole."""
        _skip_normal(num_nodes * channels)  # `nn.Embedding` draws these before
        bound, sizes = embedding_bound(channels), _block_sizes(num_nodes, channels)
        blocks = (torch.empty(size, channels).uniform_(-bound, bound) for size in sizes)
        return cls(num_nodes, own_rows(blocks, num_nodes))

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


class DividedRows:
    """A table of which each process has the rows of a `ShardedEmbedding`.

    Args:
        own: this process's rows.
        num_rows: number of rows of the whole table.
    """

    def __init__(self, own: Tensor, num_rows: int) -> None:
        self.own, self.dtype, self.shape = own.detach(), own.dtype, (num_rows, *own.shape[1:])

    def blocks(self) -> Iterator[Tensor]:
        """Yield the whole table in blocks of rows on the CPU, in the first process; all processes must call this."""
        (rank, number), num_rows = processes(), self.shape[0]
        longest = -(-num_rows // number)
        most = max(1, BLOCK_NUMBERS // (number * max(1, self.shape[1])))
        for start in range(0, longest, most):
            part = self.own[start : start + most]
            missing = min(most, longest - start) - len(part)
            part = torch.cat([part, part.new_zeros(missing, *part.shape[1:])])
            parts = [torch.empty_like(part) for _ in range(number)] if rank == 0 else None
            dist.gather(part, parts)
            if parts is not None:
                yield torch.stack(parts, dim=1).flatten(0, 1)[: num_rows - start * number].cpu()


def own_rows(blocks: Iterator[Tensor], num_rows: int) -> Tensor:
    """Return this process's rows of a table that comes in blocks of rows."""
    rank, number = processes()
    rows: Tensor | None = None
    first = done = 0
    for block in blocks:
        own = block[(rank - first) % number :: number]
        if rows is None:
            rows = block.new_empty(len(range(rank, num_rows, number)), *block.shape[1:])
        rows[done : done + len(own)] = own
        first, done = first + len(block), done + len(own)
    assert rows is not None
    return rows


def row_ranges(num_rows: int, channels: int) -> Iterator[tuple[int, int]]:
    """Yield where blocks of rows of bounded size begin and end."""
    most = max(1, BLOCK_NUMBERS // max(1, channels))
    yield from ((start, min(start + most, num_rows)) for start in range(0, num_rows, most))


def _block_sizes(num_rows: int, channels: int) -> Iterator[int]:
    return (end - start for start, end in row_ranges(num_rows, channels))


def _skip_normal(count: int) -> None:
    """Advance the random generator of the CPU as ``torch.empty(count).normal_()`` does, without the memory.

    From 16 numbers on, PyTorch draws one uniform number for each, and the last 16 again unless 16 divides the count.
    """
    if count < 16:
        torch.empty(count).normal_()
        return
    for size in _block_sizes(count + (16 if count % 16 else 0), 1):
        torch.empty(size).uniform_()


def divide_embedding(model: Any) -> None:
    """Divide a model's embeddings among the processes, if there are several and it is not done."""
    table = getattr(model, "embedding", None)
    if isinstance(table, nn.Embedding) and not isinstance(table, ShardedEmbedding) and processes().number > 1:
        model.embedding = ShardedEmbedding(len(table.weight), processes().share(table.weight.detach()).clone())


def whole_state(model: nn.Module) -> dict[str, Tensor | DividedRows]:
    """Return the tensors of a model by name; those of divided embeddings can be read whole, in blocks."""
    state: dict[str, Tensor | DividedRows] = dict(model.state_dict())
    table = getattr(model, "embedding", None)
    if isinstance(table, ShardedEmbedding):
        state["embedding.weight"] = DividedRows(table.weight, table.num_embeddings)
    return state
