"""Sample the receptive fields of nodes: one small graph per layer, of bounded degree."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from rgat.checks import INT32_LIMIT, check_count, check_ids
from rgat.data.pyg import from_pyg_batch
from rgat.graph import RelationalGraph
from rgat.incoming import IncomingEdges, incoming_edges
from rgat.ops.sampling import Fanout, Numbering, SampledEdges, sample_edges, stream_of
from rgat.structure import outside

FanoutOption = int | Mapping[int, int]
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


@runtime_checkable
class HasIncomingEdges(Protocol):
    """A graph that is not in memory as a `RelationalGraph`, such as one in a store."""

    num_relations: int

    @property
    def incoming(self) -> IncomingEdges: ...


@dataclass(frozen=True)
class Batch:
    """A mini-batch: the nodes that some seed nodes depend on, and the graph of each layer.

    ``model(x[batch.nodes], batch.graphs)`` returns the outputs of the seed nodes; a model with node embeddings or
    one-hot input takes ``model(None, batch.graphs)``.

    Attributes:
        nodes: ids of the nodes in the whole graph, ``[n]``, seed nodes first.
        graphs: one per layer, first layer first, with nodes renumbered. Each takes features of its ``num_nodes`` nodes
            and gives outputs to the first ``num_targets`` of them, which are the nodes of the next one.
        num_seeds: the number of seed nodes.

    Examples:
        >>> import torch
        >>> import rgat
        >>> from rgat.models import NodeClassifier
        >>> data = rgat.data.load("institute")
        >>> graph = data.graph
        >>> model = NodeClassifier(graph.num_nodes, 4, graph.num_relations, embedding_channels=16)
        >>> batch = rgat.sampling.NeighborSampler(graph, fanouts=[10, 5]).sample(data.train[:8])
        >>> model(None, batch.graphs).shape
        torch.Size([8, 4])
    """

    nodes: Tensor
    graphs: tuple[RelationalGraph, ...]
    num_seeds: int

    def to(self, device: torch.device | str) -> Batch:
        """Return the batch on another device."""
        return Batch(self.nodes.to(device), tuple(graph.to(device) for graph in self.graphs), self.num_seeds)

    def use_after(self, event: torch.cuda.Event) -> None:
        """Let the current stream wait for an event of the stream that made the batch, and keep its memory till then."""
        stream = torch.cuda.current_stream(self.nodes.device)
        stream.wait_event(event)
        for graph in self.graphs:
            for tensor in (
                graph.edge_index,
                graph.edge_type,
                graph.node_ids,
                graph.edge_attr,
                *graph.structure.leaves(),
            ):
                if tensor is not None:
                    tensor.record_stream(stream)
        self.nodes.record_stream(stream)

    @staticmethod
    def from_pyg(batch: Any, whole: Any, num_layers: int, num_relations: int | None = None) -> Batch:
        """Return a batch that a loader of PyTorch Geometric made, of `Data` with ``edge_type`` or of `HeteroData`.

        Every layer gets all edges of the batch, as in PyTorch Geometric's own models, so a model returns outputs of all
        its nodes: take the first ``num_seeds``.

        Args:
            batch: what the loader yields.
            whole: the data that the loader samples from; ids of nodes and relations are those of ``from_pyg(whole)``.
            num_layers: number of layers of the model.
            num_relations: of `Data`; by default up to the last relation that has an edge.
        """
        nodes, graph, num_seeds = from_pyg_batch(batch, whole, num_relations)
        graph.node_ids = nodes
        return Batch(nodes, (graph.prepare(),) * num_layers, num_seeds)


class NeighborSampler:
    """Samples mini-batches of a graph for a model of several layers.

    Each layer of a node takes at most ``fanout`` of its incoming edges of each relation, drawn uniformly without
    replacement. A sample is a pure function of (seed, step, layer, relation, node): the same on every device and with
    any number of threads.

    Args:
        graph: in memory on the CPU or a GPU, where samples are then made, or in a store (`rgat.data.open_store`).
        fanouts: one per layer of the model, first layer first: the largest number of edges of each (target, relation),
            or -1 for all; or a mapping of relations to such numbers, where relations without one keep all edges.
        seed: random seed of the samples.

    Examples:
        >>> import torch
        >>> import rgat
        >>> data = rgat.data.load("institute")
        >>> sampler = rgat.sampling.NeighborSampler(data.graph, fanouts=[-1, 5], seed=1)
        >>> batch = sampler.sample(torch.tensor([3, 1]))
        >>> batch.nodes[:2], batch.graphs[1].num_targets
        (tensor([3, 1]), 2)
    """

    def __init__(
        self, graph: RelationalGraph | HasIncomingEdges, fanouts: Sequence[FanoutOption], seed: int = 0
    ) -> None:
        if isinstance(graph, RelationalGraph):
            with outside():
                self.incoming = incoming_edges(graph)
            self.edge_attr = graph.edge_attr
        elif isinstance(graph, HasIncomingEdges):
            self.incoming, self.edge_attr = graph.incoming, None
        else:
            raise TypeError(
                f"`graph` must be a RelationalGraph or a store of `rgat.data.open_store`, got {type(graph).__name__}"
            )
        self.num_relations = graph.num_relations
        self.num_nodes = self.incoming.num_nodes
        self.device = self.incoming.source.device
        if not isinstance(fanouts, Sequence) or isinstance(fanouts, str) or len(fanouts) == 0:
            raise ValueError(f"`fanouts` must be a list with one entry per layer, such as [15, 10], got {fanouts!r}")
        self.fanouts = [_fanout(fanout, self.num_relations, self.device) for fanout in fanouts]
        if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= int(seed) < 2**63:
            raise ValueError(f"`seed` must be an integer between 0 and 2^63 - 1, got {seed!r}")
        self.seed = int(seed)
        self.step = 0
        self._left_out = torch.empty(0, dtype=torch.int64, device=self.device)  # relations, of blocks and parts
        self._numbering: Numbering | None = None  # made at the first sample: one entry per node of the graph
        self._lock = threading.Lock()
        self._done = self._record()

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what belongs to this process; a copy makes it anew."""
        return self.__dict__ | {"_numbering": None, "_lock": None, "_done": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        self._lock = threading.Lock()
        self._done = self._record()

    def degrees(self, nodes: Tensor) -> Tensor:
        """Return the in-degree of nodes over all relations."""
        first, last = self.incoming.node_ptr[nodes], self.incoming.node_ptr[nodes + 1]
        return self.incoming.group_ptr[last] - self.incoming.group_ptr[first]

    def block(self, targets: Tensor) -> RelationalGraph:
        """Return the graph of all edges into some nodes, which are its first."""
        with self._alone():
            graph = self._sample(targets, [_fanout(-1, self.num_relations, self.device)], 0).graphs[0]
        if not len(self._left_out):
            return graph
        return graph.with_edges(~torch.isin(graph.edge_type, self._left_out)).prepare()

    def without(self, relations: Sequence[int]) -> NeighborSampler:
        """Return a sampler whose blocks and parts have no edges of some relations; its samples have them."""
        new = copy.copy(self)
        new._left_out = torch.tensor(relations, dtype=torch.int64, device=self.device)
        return new

    def edge_spans(self, target: int) -> list[tuple[int, int]]:
        """Return the first and last position, exclusive, of runs of edges into a node among all sorted edges."""
        first, last = self.incoming.node_ptr[target : target + 2].tolist()
        ends = self.incoming.group_ptr[first : last + 1].tolist()
        if not len(self._left_out):
            return [(ends[0], ends[-1])]
        kept = ~torch.isin(self.incoming.group_relation[first:last], self._left_out)
        return [(ends[group], ends[group + 1]) for group in kept.nonzero().squeeze(1).tolist()]

    def part(self, target: int, first: int, last: int) -> RelationalGraph:
        """Return the graph of some of the edges into a node, which is its first: those at ``first:last`` of all."""
        incoming, nodes = self.incoming, self.incoming.node_ptr[target : target + 2].tolist()
        with outside():
            source = incoming.source[first:last].long()
            others = torch.unique(source)
            others = others[others != target]
            local = torch.where(source == target, 0, torch.searchsorted(others, source) + 1)
            ends = incoming.group_ptr[nodes[0] + 1 : nodes[1] + 1]
            edges = torch.arange(first, last, device=self.device)
            relation = incoming.group_relation[nodes[0] : nodes[1]][torch.searchsorted(ends, edges, right=True)]
            edge_attr = None
            if self.edge_attr is not None:
                ids = edges if incoming.edge_id is None else incoming.edge_id[first:last]
                edge_attr = self.edge_attr.index_select(0, ids.long())
            graph = RelationalGraph(
                torch.stack([local, torch.zeros_like(local)]),
                relation.long(),
                num_nodes=len(others) + 1,
                num_relations=self.num_relations,
                edge_attr=edge_attr,
                num_targets=1,
                validate=False,
            )
            graph.node_ids = torch.cat([others.new_tensor([target]), others])
            return graph.prepare()

    def sample(self, nodes: Tensor | Sequence[int], step: int | None = None) -> Batch:
        """Return the mini-batch of some seed nodes.

        Args:
            nodes: ids of the seed nodes, each once.
            step: number of the sample, which with the seed decides the random numbers; by default the samples made so
                far are counted.
        """
        seeds = self.check_seeds(nodes)
        check_count("step", 0 if step is None else step, least=0)
        if step is not None and step >= 2**62:
            raise ValueError(f"`step` must be below 2^62, got {step}")
        with self._alone():
            number = self.step if step is None else step
            self.step = number + 1
            return self._sample(seeds, self.fanouts, number)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Let one thread, and on a GPU one stream, after the other use the sampler's memory."""
        with self._lock, outside():
            if self._done is not None:
                torch.cuda.current_stream(self.device).wait_event(self._done)
            try:
                yield
            finally:
                self._done = self._record()

    def _record(self) -> torch.cuda.Event | None:
        return torch.cuda.current_stream(self.device).record_event() if self.device.type == "cuda" else None

    def _sample(self, seeds: Tensor, fanouts: Sequence[Fanout], step: int) -> Batch:
        if self._numbering is None:
            self._numbering = Numbering(self.num_nodes, self.device)
        numbering, sampled = self._numbering, list[tuple[SampledEdges, int]]()
        try:
            numbering.begin(seeds)
            for layer in reversed(range(len(fanouts))):
                stream = stream_of(self.seed, step, layer)
                edges = sample_edges(self.incoming, fanouts[layer], stream, numbering)
                sampled.insert(0, (edges, len(numbering.nodes)))
            nodes = numbering.nodes
        finally:
            numbering.clear()
        graphs = tuple(self._graph(edges, nodes[:size]) for edges, size in sampled)
        return Batch(nodes, graphs, len(seeds))

    def check_seeds(self, nodes: Tensor | Sequence[int]) -> Tensor:
        """Return a copy of the ids of seed nodes on the sampler's device, or raise."""
        nodes = self.check_nodes(nodes)
        if len(torch.unique(nodes)) != len(nodes):
            raise ValueError("`nodes` must name each seed node once, got one of them several times")
        return nodes

    def check_nodes(self, nodes: Tensor | Sequence[int]) -> Tensor:
        """Return a copy of the ids of nodes on the sampler's device, or raise."""
        if isinstance(nodes, list | tuple) and all(type(each) is int for each in nodes):
            beyond = next((node for node in nodes if not -(2**63) <= node < 2**63), None)  # fits no tensor
            if beyond is not None:
                raise ValueError(f"`nodes` must lie between 0 and num_nodes - 1 = {self.num_nodes - 1}, got {beyond}")
            nodes = torch.tensor(nodes, dtype=torch.int64)
        if not isinstance(nodes, Tensor) or nodes.dim() != 1 or nodes.dtype not in _INTEGERS:
            given = f"{nodes.dtype} of shape {list(nodes.shape)}" if isinstance(nodes, Tensor) else type(nodes).__name__
            raise TypeError(f"`nodes` must be integer node ids, a list or a tensor of shape [n], got {given}")
        with outside():
            nodes = nodes.to(self.device, torch.int64, copy=True)
        check_ids("nodes", nodes, self.num_nodes, "num_nodes")
        return nodes

    def _graph(self, edges: SampledEdges, nodes: Tensor) -> RelationalGraph:
        s = edges.structure
        if edges.source.shape[0] >= INT32_LIMIT:
            raise ValueError("a batch must have fewer than 2^31 edges; lower `fanouts` or the number of seed nodes")
        features = self.edge_features(edges.edge_id)
        return RelationalGraph.from_structure(
            torch.stack([edges.source, s.target]).long(), edges.relation.long(), s, features, nodes
        )

    def edge_features(self, edge_id: Tensor) -> Tensor | None:
        """Return the features of edges, given by their position among the incoming edges."""
        if self.edge_attr is None:
            return None
        ids = edge_id if self.incoming.edge_id is None else self.incoming.edge_id[edge_id]
        return self.edge_attr.index_select(0, ids.long())


def _fanout(fanout: FanoutOption, num_relations: int, device: torch.device) -> Fanout:
    """Return the fan-out of each relation."""
    table = torch.full((num_relations,), -1, dtype=torch.int64)
    given: dict[Any, Any] = dict(fanout) if isinstance(fanout, Mapping) else dict.fromkeys(range(num_relations), fanout)
    for number in given.values() if isinstance(fanout, Mapping) else [fanout]:
        if isinstance(number, bool) or not isinstance(number, int | np.integer) or (number < 1 and number != -1):
            raise ValueError(f"a fan-out must be a number of at least 1, or -1 for all edges, got {number!r}")
    for relation, number in given.items():
        is_number = isinstance(relation, int | np.integer) and not isinstance(relation, bool)
        if not is_number or not 0 <= int(relation) < num_relations:
            raise ValueError(
                f"a fan-out must be for a relation between 0 and {num_relations - 1}, got one for {relation!r}"
            )
        table[int(relation)] = min(int(number), INT32_LIMIT)
    return Fanout(table.to(device), int(table.max()) if num_relations else -1)
