"""Iterate over mini-batches, sampled in the background while the one before is used."""

from __future__ import annotations

import atexit
import queue
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress

import torch
from torch import Tensor

from rgat.checks import check_count
from rgat.graph import RelationalGraph
from rgat.sampling.sampler import Batch, FanoutOption, HasIncomingEdges, NeighborSampler

Item = tuple[Batch, torch.cuda.Event | None] | BaseException | None


class NeighborLoader:
    """Mini-batches of seed nodes in a new order each epoch; ``for batch in loader`` is one epoch.

    Epoch ``e`` shuffles by (seed, e), and its batches have the steps that follow those of epoch ``e - 1``, so that an
    epoch is the same after a restart; `epoch` may be set.

    Args:
        graph: as `NeighborSampler` takes it.
        nodes: ids of the seed nodes, each once.
        fanouts: one per layer of the model, first layer first; see `NeighborSampler`.
        batch_size: seed nodes per batch; the last batch of an epoch may be smaller.
        shuffle: shuffle the seed nodes before each epoch.
        seed: random seed of order and samples.
        prefetch: the number of batches that a background thread keeps ready; 0 samples when a batch is asked for.
        share: ``(k, K)`` takes the k-th of K contiguous shares of every batch, counted from 0, which may be empty. The
            K shares together are the batch, whatever K is.

    Examples:
        >>> import rgat
        >>> data = rgat.data.load("institute")
        >>> loader = rgat.sampling.NeighborLoader(data.graph, data.train, fanouts=[10, 5], batch_size=50)
        >>> sum(batch.num_seeds for batch in loader) == len(data.train)
        True
    """

    def __init__(
        self,
        graph: RelationalGraph | HasIncomingEdges,
        nodes: Tensor,
        fanouts: Sequence[FanoutOption],
        batch_size: int = 1024,
        shuffle: bool = True,
        seed: int = 0,
        prefetch: int = 2,
        share: tuple[int, int] = (0, 1),
    ) -> None:
        check_count("batch_size", batch_size)
        check_count("prefetch", prefetch, least=0)
        _check_share(share)
        self.sampler = NeighborSampler(graph, fanouts, seed)
        self.nodes = self.sampler.check_seeds(nodes).cpu()
        self.batch_size, self.shuffle, self.prefetch, self.share = batch_size, shuffle, prefetch, share
        self.epoch = 0

    def __len__(self) -> int:
        return -(-len(self.nodes) // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        epoch, self.epoch = self.epoch, self.epoch + 1
        batches = torch.split(self.order(epoch), self.batch_size) if len(self.nodes) else []
        parts = [torch.tensor_split(batch, self.share[1])[self.share[0]] for batch in batches]
        first_step = epoch * len(self)
        if self.prefetch == 0:
            for number, part in enumerate(parts):
                yield self.sampler.sample(part, first_step + number)
            return
        yield from self._prefetched(parts, first_step)

    def order(self, epoch: int) -> Tensor:
        """Return the seed nodes in the order of an epoch."""
        if not self.shuffle:
            return self.nodes
        generator = torch.Generator().manual_seed((self.sampler.seed * 1_000_003 + epoch) % 2**63)
        return self.nodes[torch.randperm(len(self.nodes), generator=generator)]

    def _prefetched(self, parts: Sequence[Tensor], first_step: int) -> Iterator[Batch]:
        """Sample in a thread; the compiled loops release Python's lock."""
        ready: queue.Queue[Item] = queue.Queue(self.prefetch)
        is_over = threading.Event()

        def put(item: Item) -> None:
            while not is_over.is_set():
                with suppress(queue.Full):
                    ready.put(item, timeout=0.1)
                    return

        device = self.sampler.device
        # High priority: the many short kernels of a sample must not queue behind the long ones of a training step.
        stream = torch.cuda.Stream(device, priority=-1) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

        def work() -> None:
            try:
                for number, part in enumerate(parts):
                    if is_over.is_set():
                        return
                    with torch.cuda.stream(stream):  # does nothing without one
                        batch = self.sampler.sample(part, first_step + number)
                        put((batch, None if stream is None else stream.record_event()))
                put(None)
            except BaseException as error:  # raised again where the batch is asked for
                put(error)

        thread = threading.Thread(target=work, name="rgat-sampling", daemon=True)

        def end() -> None:
            is_over.set()
            thread.join()

        # A thread that returns from compiled code while Python ends would abort the process. An error's traceback can
        # keep this generator, and so the thread, alive until then.
        atexit.register(end)
        thread.start()
        try:
            while (item := ready.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                batch, is_made = item
                if is_made is not None:
                    batch.use_after(is_made)
                yield batch
        finally:
            end()
            atexit.unregister(end)
            if stream is not None:  # memory that batches left behind use may be given away
                torch.cuda.current_stream(device).wait_stream(stream)


def _check_share(share: tuple[int, int]) -> None:
    pair = tuple(share) if isinstance(share, Sequence) else ()
    if len(pair) != 2 or not all(type(number) is int for number in pair) or not 0 <= pair[0] < pair[1]:
        raise ValueError(f"`share` must be (k, K) with k from 0 to K - 1, such as (0, 2), got {share!r}")
