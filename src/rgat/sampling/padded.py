"""Mini-batches of one size at a fixed memory address, so that a GPU can replay their making and the training step."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from rgat.graph import RelationalGraph
from rgat.ops.dropout import mask_stream
from rgat.ops.padded_sampling import Capacity, PaddedTargets, sample_padded
from rgat.ops.sampling import FIRST_STREAM, Numbering
from rgat.sampling.sampler import Batch, NeighborSampler
from rgat.structure import Structure, outside

SPARE = 1.2  # capacity over the largest size seen so far
ALIGN = 64  # entries by which capacities grow
TRIALS = 4  # samples that the first capacities are taken from

Run = Callable[[Callable[[], Tensor]], Tensor]  # runs a function, or replays what it did


class PaddedSampler:
    """Makes one batch after another in the same memory: `draw` the next one while the one that was `taken` is used.

    Nothing waits for the device, except `take`, which needs the sizes of a batch that was drawn a step earlier. A batch
    that does not fit is drawn again in larger memory.

    Args:
        sampler: on the device where batches are made.
        seeds: ids of all seed nodes, of which batches are parts.
        batch_size: the largest number of seed nodes of a batch.
        replay: makes a function that runs what it is given, or replays it; a new one is asked for after every growth.
    """

    def __init__(self, sampler: NeighborSampler, seeds: Tensor, batch_size: int, replay: Callable[[], Run]) -> None:
        self.sampler, self._replay, self.device = sampler, replay, sampler.device
        self.num_seeds = batch_size + max(8, batch_size // 8)  # some for the padding
        self._numbering = Numbering(sampler.num_nodes, self.device)
        self._number, self._state = (torch.zeros(size, dtype=torch.int64, device=self.device) for size in (1, 2))
        self._seeds = torch.zeros(self.num_seeds, dtype=torch.int64, device=self.device)
        self._drawn: tuple[Tensor, int] | None = None
        self._is_done: torch.cuda.Event | None = None
        parts = torch.split(seeds, batch_size)[:TRIALS]
        sizes = [_sizes(sampler.sample(part, step)) for step, part in enumerate(parts)]
        self.mean_edges = sum(layer[1] for sample in sizes for layer in sample) / len(sizes)
        self._sizes = torch.zeros(len(sampler.fanouts), 4, dtype=torch.int64)
        self._grow(torch.tensor(sizes).amax(0))

    def _grow(self, sizes: Tensor) -> None:
        """Make room also for samples of these sizes, ``[layers, 4]``: groups, edges, new nodes and source rows.

        Of a sample that does not fit, sizes are only those of the part that did, so memory never shrinks.
        """
        before, self.capacities = self.num_seeds, list[Capacity]()
        self._sizes = torch.maximum(self._sizes, sizes)
        for groups, edges, nodes, rows in reversed(self._sizes.tolist()):
            groups, edges, nodes, rows = (
                -(-int(SPARE * size + ALIGN) // ALIGN) * ALIGN for size in (groups, edges, nodes, rows)
            )
            self.capacities.insert(0, Capacity(groups, edges, before + nodes, rows))
            before += nodes
        self._run, self._taken = self._replay(), list[Tensor]()
        self._leaves: list[Tensor] = []
        self._needed = torch.zeros_like(self._sizes)
        if self.device.type == "cuda":
            self._needed = self._needed.pin_memory()

    def draw(self, seeds: Tensor, step: int) -> None:
        """Begin to sample the batch of some seed nodes, given on the CPU."""
        self._drawn = (seeds, step)
        values = torch.full((self.num_seeds + 3,), self.sampler.num_nodes)
        values[: len(seeds)] = seeds
        values[-3:] = torch.tensor([len(seeds), self.sampler.seed, step])
        if self.device.type == "cuda":
            values = values.pin_memory()
        seeds, number, state = values.to(self.device, non_blocking=True).split_with_sizes([self.num_seeds, 1, 2])
        torch._foreach_copy_([self._seeds, self._number, self._state], [seeds, number, state])
        with outside():
            needed = self._run(self._sample)
        self._needed.copy_(needed, non_blocking=True)
        if self.device.type == "cuda":
            self._is_done = torch.cuda.current_stream(self.device).record_event()

    def take(self) -> bool:
        """Move what was drawn to where `batch` reads it; return False if that is in another place than before."""
        is_new = len(self._taken) == 0
        while not self._fits():
            assert self._drawn is not None
            self._grow(self._needed)
            self.draw(*self._drawn)
            is_new = True
        if is_new:
            self._taken = [torch.empty_like(leaf) for leaf in self._leaves]
        torch._foreach_copy_(self._taken, self._leaves)
        return not is_new

    def _fits(self) -> bool:
        """Tell whether what was drawn leaves room for padding in every layer."""
        if self._is_done is not None:
            self._is_done.synchronize()
        targets = [*(capacity.nodes for capacity in self.capacities[1:]), self.num_seeds]
        return all(
            need < have
            for needs, each, before in zip(self._needed.tolist(), self.capacities, targets, strict=True)
            for need, have in zip(needs, (each.groups, each.edges, each.nodes - before, each.rows), strict=True)
        )

    def _sample(self) -> Tensor:
        """Sample into `_leaves`; return the sizes of each layer, ``[layers, 4]``."""
        sampler, needed = self.sampler, list[Tensor]()
        targets = PaddedTargets(self._seeds, self._number[0])
        self._numbering.begin(self._seeds)
        leaves: list[Tensor] = []
        for layer in reversed(range(len(sampler.fanouts))):
            sample = sample_padded(
                sampler.incoming,
                sampler.fanouts[layer],
                mask_stream(self._state, FIRST_STREAM + layer),
                targets,
                self._numbering,
                self.capacities[layer],
            )
            needed.insert(0, sample.sizes)
            targets = sample.sources
            edges = sample.edges
            leaves = [edges.source, edges.relation, *edges.structure.leaves(), *leaves]
        self._numbering.nodes = targets.nodes
        self._numbering.clear()
        self._leaves = [targets.nodes, self._number.clone(), *leaves]
        return torch.stack(needed)

    def batch(self) -> tuple[Batch, Tensor]:
        """Return the batch that was taken, with padding, and its number of seed nodes, ``[1]``.

        The tensors are new views, so that nothing that was derived from an earlier batch is found with them.
        """
        nodes, number, *leaves = (leaf.view_as(leaf) for leaf in self._taken)
        is_padding = nodes >= self.sampler.num_nodes
        # Padding has ids of different nodes: their sums are computed side by side.
        nodes = torch.where(is_padding, torch.arange(len(nodes), device=self.device) % self.sampler.num_nodes, nodes)
        graphs, each = list[RelationalGraph](), len(leaves) // len(self.capacities)
        for layer, capacity in enumerate(self.capacities):
            source, relation, *structure = leaves[layer * each : (layer + 1) * each]
            s = Structure.from_leaves(structure)
            assert s.edge_id is not None
            edges, features = torch.stack([source, s.target]).long(), self.sampler.edge_features(s.edge_id)
            graph = RelationalGraph.from_structure(edges, relation.long(), s, features, nodes[: capacity.nodes])
            graph.padding = is_padding[: capacity.nodes]
            graph.counted = (~is_padding[: s.num_targets]).float()
            graph.validate = False
            graphs.append(graph)
        return Batch(nodes, tuple(graphs), self.num_seeds), number


def _sizes(batch: Batch) -> list[list[int]]:
    """Return the numbers of groups, edges, new nodes and source rows of each layer."""
    return [
        [len(s.targets.node), len(s.order), s.num_nodes - s.num_targets, len(s.sources.node)]
        for s in (graph.structure for graph in batch.graphs)
    ]
