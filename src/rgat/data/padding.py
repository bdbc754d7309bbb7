"""Batches of small graphs padded to one size at a fixed memory address, so that a GPU can replay a training step.

Padding is one more graph, behind all others, whose edges are spread evenly over its rows and its rows evenly over its
nodes. Its rows have the last relation, so padding moves no other entry of the batch. Missing graphs of a smaller batch
have no nodes. The masks of feature dropout depend on the number of nodes, so a padded batch has other masks than the
same batch without padding.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rgat.data.graph_store import GraphStore
from rgat.graph import RelationalGraph
from rgat.structure import Structure

Array = NDArray[Any]
ALIGN = 4  # int32 entries: compiled kernels are fastest on arrays that begin at multiples of 16 bytes
SIGMAS = 4  # standard deviations above the mean size of a batch


class Capacity(NamedTuple):
    """Numbers of nodes, edges, and rows of sources and targets of a padded batch."""

    nodes: int
    edges: int
    sources: int
    targets: int

    @classmethod
    def usual(cls, store: GraphStore, graphs: Tensor, number: int) -> Capacity:
        """Return a capacity that holds nearly every random batch of ``number`` of these graphs, and padding."""
        sizes = store.prepared.sizes[graphs.numpy()]
        capacity = number * sizes.mean(axis=0) + SIGMAS * number**0.5 * sizes.std(axis=0)
        return cls(*(_aligned(int(size) + ALIGN) for size in capacity))


def _aligned(size: int) -> int:
    return -(-size // ALIGN) * ALIGN


class PaddedBatch:
    """Memory that holds one batch of up to ``num_graphs`` graphs after another.

    Attributes:
        graph: the batch of ``num_graphs + 1`` graphs; the last one is padding.
        nodes: index of each node in the store; the number of nodes there for padding.
        edges: index of each edge in the store; the number of edges there for padding.
        ids: ids of the graphs; ``len(store)`` for missing graphs.
        number: number of graphs without missing ones and padding, ``[1]``.
    """

    def __init__(self, store: GraphStore, num_graphs: int, device: torch.device, capacity: Capacity) -> None:
        self.store, self.num_graphs, self.capacity, self.device = store, num_graphs, capacity, device
        nodes, edges, sources, targets = capacity
        relations = store.num_relations
        sizes = {
            **dict.fromkeys(("order", "target", "group", "source_row", "by_source"), edges),
            **dict.fromkeys(("target_ptr", "sources.node_ptr", "targets.node_ptr"), nodes + 1),
            "group_ptr": targets + 1,
            "source_ptr": sources + 1,
            **dict.fromkeys(("sources.node", "sources.relation", "sources.by_node"), sources),
            **dict.fromkeys(("targets.node", "targets.relation", "targets.by_node"), targets),
            **dict.fromkeys(("sources.relation_ptr", "targets.relation_ptr"), relations + 1),
            "graph_sizes": num_graphs + 1,
            **dict.fromkeys(("batch", "nodes"), nodes),
            **dict.fromkeys(("edge_source", "edge_target", "edge_type", "edges"), edges),
            "ids": num_graphs,
            "number": 1,
        }
        self._slices, end = {}, 0
        for name, size in sizes.items():
            self._slices[name] = slice(end, end + size)
            end += _aligned(size)
        self._memory = torch.zeros(end, dtype=torch.int32, device=device)
        field = {name: self._memory[entries] for name, entries in self._slices.items()}
        self.nodes, self.edges, self.ids, self.number = (field[name] for name in ("nodes", "edges", "ids", "number"))
        self._batch, self._graph_sizes = field["batch"], field["graph_sizes"]
        leaves = [*(field[name] for name in Structure._fields[:8])]
        leaves += [field[f"{side}.{name}"] for side in ("sources", "targets") for name in _ROWS]
        first = self._slices["edge_source"].start
        graph = RelationalGraph(
            self._memory.new_empty(2, 0),
            self._memory.new_empty(0),
            num_nodes=nodes,
            num_relations=relations,
            batch=self._batch,
            num_graphs=num_graphs + 1,
            validate=False,
        )
        graph.edge_index, graph.edge_type = self._memory[first : first + 2 * edges].view(2, edges), field["edge_type"]
        graph._structure = Structure.from_leaves([*leaves, self._graph_sizes.long()])
        graph._sealed = None  # the memory changes with every batch
        graph.counted = torch.zeros(nodes, device=device)
        self.graph = graph

    def holds(self, graphs: Tensor) -> bool:
        """Whether these graphs fit, with at least one node, edge and row of padding."""
        sizes = self.store.prepared.sizes[graphs.numpy()].sum(axis=0)
        return len(graphs) <= self.num_graphs and bool((sizes < self.capacity).all())

    def fill(self, graphs: Tensor) -> None:
        """Copy these graphs into the memory; on a GPU without synchronisation."""
        content = torch.empty(len(self._memory), dtype=torch.int32, pin_memory=self.device.type == "cuda")
        values = content.numpy()
        for name, parts in self._fields(graphs).items():
            start = self._slices[name].start
            for part in parts:
                values[start : start + len(part)] = part
                start += len(part)
            assert start == self._slices[name].stop, name
        self._memory.copy_(content, non_blocking=True)

    def widen(self) -> None:
        """Copy the fields that PyTorch needs as int64 or float; part of the replayed step."""
        assert self.graph.batch is not None
        assert self.graph.counted is not None
        self.graph.batch.copy_(self._batch)
        self.graph.structure.graph_sizes.copy_(self._graph_sizes)
        self.graph.counted.copy_(self._batch < self.num_graphs)

    def _fields(self, graphs: Tensor) -> dict[str, tuple[Any, ...]]:
        """Return the entries of each field: those of the graphs, then those of the padding.

        Padding has ``n`` nodes, ``e`` edges and ``u`` rows of sources. Its edge ``k`` belongs to row ``k u // e``, and
        its row ``k`` to node ``k n // u``; rows and nodes begin where these quotients increase.
        """
        parts = self.store.prepared.assemble(graphs.long().numpy())
        s: Any = Structure.from_leaves([leaf.numpy() for leaf in parts.structure.leaves()])  # type: ignore[misc]
        nodes, edges, sources, targets = (len(part) for part in (parts.nodes, s.order, s.sources.node, s.targets.node))
        n, e, u, v = (size - used for size, used in zip(self.capacity, (nodes, edges, sources, targets), strict=True))
        last = self.store.num_relations - 1
        edge, row, group = (np.arange(count) for count in (e, u, v))
        source_node, target_node = nodes + row * n // u, nodes + group * n // v
        group_of_edge = edge * v // max(e, 1)
        row_of_edge = edge * u // max(e, 1)
        first_group = _jumps(v, n)
        missing = np.zeros(self.num_graphs - len(graphs), dtype=np.int32)
        edge_type = self.store.edge_type.index_select(0, parts.edges).numpy()
        source, target = parts.edge_index.numpy()
        return {
            "order": (s.order, edges + edge),
            "target": (s.target, target_node[group_of_edge]),
            "group": (s.group, targets + group_of_edge),
            "source_row": (s.source_row, sources + row_of_edge),
            "by_source": (s.by_source, edges + edge),
            "target_ptr": (s.target_ptr, edges + -(-first_group * e // v)),
            "group_ptr": (s.group_ptr, edges + _jumps(e, v)),
            "source_ptr": (s.source_ptr, edges + _jumps(e, u)),
            "sources.node": (s.sources.node, source_node),
            "sources.relation": (s.sources.relation, np.full(u, last)),
            "sources.by_node": (s.sources.by_node, sources + row),
            "sources.node_ptr": (s.sources.node_ptr, sources + _jumps(u, n)),
            "sources.relation_ptr": (s.sources.relation_ptr[:-1], [self.capacity.sources]),
            "targets.node": (s.targets.node, target_node),
            "targets.relation": (s.targets.relation, np.full(v, last)),
            "targets.by_node": (s.targets.by_node, targets + group),
            "targets.node_ptr": (s.targets.node_ptr, targets + first_group),
            "targets.relation_ptr": (s.targets.relation_ptr[:-1], [self.capacity.targets]),
            "graph_sizes": (s.graph_sizes, missing, [n]),
            "batch": (parts.batch.numpy(), np.full(n, self.num_graphs)),
            "nodes": (parts.nodes.numpy(), np.full(n, len(self.store.x))),
            "edges": (parts.edges.numpy(), np.full(e, len(self.store.edge_type))),
            "edge_source": (source, source_node[row_of_edge]),
            "edge_target": (target, target_node[group_of_edge]),
            "edge_type": (edge_type, np.full(e, last)),
            "ids": (graphs.numpy(), missing + len(self.store)),
            "number": ([len(graphs)],),
        }


_ROWS = ("node", "relation", "relation_ptr", "by_node", "node_ptr")


def _jumps(count: int, segments: int) -> Array:
    """Return where segments 1, 2, ... begin and the last one ends, if entry ``k`` is in ``k * segments // count``."""
    return -(-np.arange(1, segments + 1) * count // segments)
