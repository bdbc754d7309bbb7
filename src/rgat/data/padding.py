"""Batches of small graphs that all have one size, in memory that stays where it is, so that a GPU can replay a step.

What is missing to that size is one more graph, the filler: nodes, rows and edges that are spread over each other
evenly. It stands behind all others, and its rows have the last relation, so nothing of the batch itself changes its
place. A batch with fewer graphs than others has some without nodes. Masks of feature dropout are drawn by relation and
node from the number of nodes; a batch that is filled up draws other ones than the batch alone.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rgat.data.store import GraphStore
from rgat.graph import RelationalGraph, Structure

Array = NDArray[Any]
ALIGN = 4  # numbers of 4 bytes: compiled kernels like their arrays to begin at multiples of 16
SIGMAS = 4  # standard deviations of the size of a batch above its mean


class Capacity(NamedTuple):
    """How many nodes, edges, and rows of sources and targets a batch has, with its filler."""

    nodes: int
    edges: int
    sources: int
    targets: int

    @classmethod
    def usual(cls, store: GraphStore, graphs: Tensor, number: int) -> Capacity:
        """Room for nearly every batch of so many of these graphs, drawn at random, and for a filler."""
        sizes = store._flat.sizes[graphs.numpy()]
        room = number * sizes.mean(axis=0) + SIGMAS * number**0.5 * sizes.std(axis=0)
        return cls(*(_aligned(int(size) + ALIGN) for size in room))


def _aligned(size: int) -> int:
    return -(-size // ALIGN) * ALIGN


class PaddedBatch:
    """One batch after another of ``num_graphs`` graphs, in the same memory.

    Attributes:
        graph: the batch, of ``num_graphs + 1`` graphs; the last one is the filler.
        nodes: place in the store of each node; one behind the last for a filler's.
        edges: likewise.
        ids: of the graphs; ``len(store)`` for those that are missing.
        number: of graphs that are there, ``[1]``.
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
        self._places, end = {}, 0
        for name, size in sizes.items():
            self._places[name] = slice(end, end + size)
            end += _aligned(size)
        self._memory = torch.zeros(end, dtype=torch.int32, device=device)
        field = {name: self._memory[place] for name, place in self._places.items()}
        self.nodes, self.edges, self.ids, self.number = (field[name] for name in ("nodes", "edges", "ids", "number"))
        self._batch, self._graph_sizes = field["batch"], field["graph_sizes"]
        leaves = [*(field[name] for name in Structure._fields[:8])]
        leaves += [field[f"{side}.{name}"] for side in ("sources", "targets") for name in _ROWS]
        first = self._places["edge_source"].start
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
        graph._sealed = None  # this memory is meant to change
        graph.counted = torch.zeros(nodes, device=device)
        self.graph = graph

    def holds(self, graphs: Tensor) -> bool:
        """Whether there is room for these graphs, and a filler of one at least of everything."""
        sizes = self.store._flat.sizes[graphs.numpy()].sum(axis=0)
        return len(graphs) <= self.num_graphs and bool((sizes < self.capacity).all())

    def fill(self, graphs: Tensor) -> None:
        """Put these graphs into the memory; on a GPU without waiting."""
        content = torch.empty(len(self._memory), dtype=torch.int32, pin_memory=self.device.type == "cuda")
        values = content.numpy()
        for name, parts in self._fields(graphs).items():
            place, at = self._places[name], self._places[name].start
            for part in parts:
                values[at : at + len(part)] = part
                at += len(part)
            assert at == place.stop, name
        self._memory.copy_(content, non_blocking=True)

    def widen(self) -> None:
        """Bring what PyTorch wants wider up to date; part of the step, so that it is replayed with it."""
        assert self.graph.batch is not None
        assert self.graph.counted is not None
        self.graph.batch.copy_(self._batch)
        self.graph.structure.graph_sizes.copy_(self._graph_sizes)
        self.graph.counted.copy_(self._batch < self.num_graphs)

    def _fields(self, graphs: Tensor) -> dict[str, tuple[Any, ...]]:
        """What each field is made of: first that of the graphs, then that of the filler.

        The filler's edge ``k`` of ``e`` belongs to its row ``k u // e`` of ``u``, and its row ``k`` to its node
        ``k n // u``; so rows and nodes begin where these numbers jump.
        """
        parts = self.store._flat.assemble(graphs.long().numpy())
        s: Any = Structure.from_leaves([leaf.numpy() for leaf in parts.structure.leaves()])  # type: ignore[misc]
        nodes, edges, sources, targets = (len(part) for part in (parts.nodes, s.order, s.sources.node, s.targets.node))
        n, e, u, v = (room - used for room, used in zip(self.capacity, (nodes, edges, sources, targets), strict=True))
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
    """Where segments 1, 2, ... begin, and the last one ends, if entry ``k`` belongs to ``k * segments // count``."""
    return -(-np.arange(1, segments + 1) * count // segments)
