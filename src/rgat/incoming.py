"""The incoming edges of every node, grouped by relation: what neighbour sampling and block-wise inference read."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from rgat.structure import sorted_edges

if TYPE_CHECKING:
    from rgat.graph import RelationalGraph


class IncomingEdges(NamedTuple):
    """The edges of a graph, sorted by (target, relation, source).

    A group holds the edges of one target and one relation. The arrays may be memory-mapped files or on a GPU.
    """

    node_ptr: Tensor  # [N + 1] int64; the groups of node i are node_ptr[i]:node_ptr[i + 1], in the order of relations
    group_ptr: Tensor  # [V + 1] int64; the edges of group v are group_ptr[v]:group_ptr[v + 1]
    group_relation: Tensor  # [V] int32
    source: Tensor  # [E] int32
    edge_id: Tensor | None = (
        None  # [E] int32; the caller's position of each edge, where the caller gave a list of edges
    )

    @property
    def num_nodes(self) -> int:
        return self.node_ptr.shape[0] - 1

    @property
    def num_edges(self) -> int:
        return self.source.shape[0]

    def positions(self, nodes: Tensor) -> Tensor:
        """Return the positions of all edges into some nodes, int64."""
        begin = self.group_ptr[self.node_ptr[nodes]]
        return ranges(begin, self.group_ptr[self.node_ptr[nodes + 1]] - begin)[0]

    def into(self, nodes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return source, target and relation of all edges into some nodes, int64 each."""
        first = self.node_ptr[nodes]
        groups, target = ranges(first, self.node_ptr[nodes + 1] - first)
        begin = self.group_ptr[groups]
        edges, group = ranges(begin, self.group_ptr[groups + 1] - begin)
        return self.source[edges].long(), nodes[target][group], self.group_relation[groups][group].long()

    def of_relation(self, relation: int) -> tuple[Tensor, Tensor]:
        """Return source and target of all edges of a relation, int64 each; reads the relation of every group."""
        groups = (self.group_relation == relation).nonzero().squeeze(1)
        target = torch.searchsorted(self.node_ptr, groups, right=True) - 1
        begin = self.group_ptr[groups]
        edges, group = ranges(begin, self.group_ptr[groups + 1] - begin)
        return self.source[edges].long(), target[group]


def incoming_edges(graph: RelationalGraph) -> IncomingEdges:
    """Return the incoming edges of a graph in memory, on its device."""
    if graph.is_prepared:
        s = graph.structure
        return IncomingEdges(
            node_ptr=s.targets.node_ptr.long(),
            group_ptr=s.group_ptr.long(),
            group_relation=s.targets.relation.index_select(0, s.targets.by_node),
            source=s.sources.node.index_select(0, s.source_row),
            edge_id=s.order,
        )
    graph.check_unchanged()
    (source, target), relation = graph.edge_index, graph.edge_type
    order = sorted_edges(source, target, relation, graph.num_relations, graph.edge_attr)
    key, sizes = torch.unique_consecutive((target * graph.num_relations + relation)[order], return_counts=True)
    node = torch.div(key, max(graph.num_relations, 1), rounding_mode="floor")
    return IncomingEdges(
        node_ptr=_pointers(node.bincount(minlength=graph.num_nodes)),
        group_ptr=_pointers(sizes),
        group_relation=(key - node * graph.num_relations).int(),
        source=source[order].int(),
        edge_id=order.int(),
    )


def ranges(begin: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
    """Return the numbers of all ranges, one range after the other, and the range that each belongs to."""
    number = torch.arange(len(begin), device=begin.device).repeat_interleave(sizes)
    offset = begin - (sizes.cumsum(0) - sizes)
    return torch.arange(len(number), device=begin.device) + offset[number], number


def _pointers(counts: Tensor) -> Tensor:
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)])
