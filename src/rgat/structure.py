"""The structure that layers need to know about a graph's edges: sorted orders, distinct rows and pointers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Rows(NamedTuple):
    """The distinct (relation, node) pairs at one end of the edges, sorted by relation, then node."""

    node: Tensor  # [U] int32
    relation: Tensor  # [U] int32
    relation_ptr: Tensor  # [R + 1] int32; the rows of relation r are relation_ptr[r]:relation_ptr[r + 1]
    by_node: Tensor  # [U] int32; the rows again, sorted by node, then relation
    node_ptr: Tensor  # [N + 1] int32; the rows of node j are by_node[node_ptr[j]:node_ptr[j + 1]]

    def keys(self, num_nodes: int) -> Tensor:
        """Return the rows as single numbers ``relation * N + node``, [U] int64, sorted."""
        return self.relation.long() * num_nodes + self.node


class Structure(NamedTuple):
    """The edges, sorted by (target, relation, source).

    In this order the edges of one softmax group are contiguous for both scopes: a "within" group is one
    (target, relation), an "across" group one target. Groups are in the order of ``targets.by_node``: group ``v`` is
    the target row ``targets.by_node[v]``, and the groups of a target are contiguous.
    """

    order: Tensor  # [E] int32; the caller's position of each sorted edge
    target: Tensor  # [E] int32
    group: Tensor  # [E] int32; the (target, relation) group of each edge
    source_row: Tensor  # [E] int32; the edge's place in `sources`
    target_ptr: Tensor  # [num_targets + 1] int32
    group_ptr: Tensor  # [V + 1] int32
    by_source: Tensor  # [E] int32; sorted edges again, in the order of their source row
    source_ptr: Tensor  # [U + 1] int32; the edges of source row u are by_source[source_ptr[u]:source_ptr[u + 1]]
    sources: Rows
    targets: Rows
    graph_sizes: Tensor  # [G] int64; number of nodes of each graph of a batch
    # A sample of a larger graph remembers the ids that dropout masks there depend on; None: the ids below.
    row_id: Tensor | None = None  # [U] int64; of the source rows, ``relation * N + node``
    edge_id: Tensor | None = None  # [E] int64; of the sorted edges, their position

    @property
    def num_nodes(self) -> int:
        """The number of nodes, which are the rows of a layer's input."""
        return self.sources.node_ptr.shape[0] - 1

    @property
    def num_targets(self) -> int:
        """The number of targets, the first nodes, which are the rows of a layer's output; by default all nodes."""
        return self.target_ptr.shape[0] - 1

    def reading_at(self, position: Tensor, with_ids: bool) -> Structure:
        """Return the structure for an input whose row ``position[i]`` belongs to node ``i``.

        ``with_ids``: keep the ids that dropout masks depend on, which are those of the nodes.
        """
        sources, targets = (
            rows._replace(node=position.index_select(0, rows.node).int()) for rows in (self.sources, self.targets)
        )
        ids = {"row_id": self.source_ids(), "edge_id": self.edge_ids()} if with_ids else {}
        return self._replace(sources=sources, targets=targets, **ids)

    def source_ids(self) -> Tensor:
        """Return the ids of the source rows for feature dropout, [U] int64."""
        return self.sources.keys(self.num_nodes) if self.row_id is None else self.row_id

    def edge_ids(self) -> Tensor:
        """Return the ids of the sorted edges for edge dropout, [E] int64."""
        return torch.arange(self.target.shape[0], device=self.target.device) if self.edge_id is None else self.edge_id

    def leaves(self) -> list[Tensor]:
        """Return all tensors, in order; spelt out, because a generic tree walk takes longer than a small layer."""
        leaves = [*self[:8], *self.sources, *self.targets, self.graph_sizes]
        return leaves if self.row_id is None or self.edge_id is None else [*leaves, self.row_id, self.edge_id]

    @classmethod
    def from_leaves(cls, leaves: Sequence[Tensor]) -> Structure:
        """Invert `leaves`."""
        fields: list[Any] = [*leaves[:8], Rows(*leaves[8:13]), Rows(*leaves[13:18]), *leaves[18:]]
        return cls(*fields)


@contextmanager
def outside() -> Iterator[None]:
    """Leave inference mode and transforms: a graph first used inside one may be trained on later."""
    # In this order: the second takes effect when it is made, and the first restores what it found. It cannot be traced.
    with torch.inference_mode(False), nullcontext() if torch.compiler.is_compiling() else torch._C._DisableFuncTorch():
        yield


def derive(
    edge_index: Tensor,
    edge_type: Tensor,
    edge_attr: Tensor | None,
    sizes: tuple[int, int, int],
    graph_sizes: Tensor,
) -> Structure:
    """Return the structure of the edges of a graph; ``sizes`` are the numbers of nodes, relations and targets."""
    (num_nodes, num_relations, num_targets), (source, target), relation = sizes, edge_index, edge_type
    order = sorted_edges(source, target, relation, sizes[:2], edge_attr)
    source, target, relation = source[order], target[order], relation[order]

    group_key, group, group_sizes = torch.unique_consecutive(
        target * num_relations + relation, return_inverse=True, return_counts=True
    )
    target_key, by_relation = _relation_major(group_key, num_nodes, num_relations).sort()
    source_key, by_source = (relation * num_nodes + source).sort(stable=True)
    source_key, row, row_sizes = torch.unique_consecutive(source_key, return_inverse=True, return_counts=True)
    node = source_key % max(num_nodes, 1)
    return Structure(
        order=order.int(),
        target=target.int(),
        group=group.int(),
        source_row=row.index_select(0, _inverse(by_source)).int(),
        target_ptr=pointers(target.bincount(minlength=num_targets)),
        group_ptr=pointers(group_sizes),
        by_source=by_source.int(),
        source_ptr=pointers(row_sizes),
        sources=_rows(source_key, node.argsort(stable=True), num_nodes, num_relations),
        targets=_rows(target_key, _inverse(by_relation), num_nodes, num_relations),
        graph_sizes=graph_sizes,
    )


def sorted_edges(
    source: Tensor, target: Tensor, relation: Tensor, sizes: tuple[int, int], edge_attr: Tensor | None
) -> Tensor:
    """Sort by (target, relation, source); parallel edges by their features, so that no order of the caller is left.

    ``sizes`` are the numbers of nodes and relations.
    """
    num_nodes, num_relations = sizes
    order, group = torch.arange(len(source), device=source.device), target * num_relations + relation
    if edge_attr is not None and len(source) and edge_attr.shape[1]:
        rank = torch.unique(edge_attr.detach(), dim=0, return_inverse=True)[1]
        order = rank.argsort(stable=True)
    if num_nodes**2 * num_relations < 2**63:  # one number tells target, relation and source
        return order[(group * num_nodes + source)[order].argsort(stable=True)]
    order = order[source[order].argsort(stable=True)]
    return order[group[order].argsort(stable=True)]


def _inverse(order: Tensor) -> Tensor:
    """Return the inverse of a permutation."""
    return torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))


def _relation_major(key: Tensor, num_nodes: int, num_relations: int) -> Tensor:
    """Turn ``node * R + relation`` into ``relation * N + node``."""
    divisor = max(num_relations, 1)
    return key % divisor * num_nodes + torch.div(key, divisor, rounding_mode="floor")


def _rows(key: Tensor, by_node: Tensor, num_nodes: int, num_relations: int) -> Rows:
    divisor = max(num_nodes, 1)
    relation, node = torch.div(key, divisor, rounding_mode="floor"), key % divisor
    return Rows(
        node=node.int(),
        relation=relation.int(),
        relation_ptr=pointers(relation.bincount(minlength=num_relations)),
        by_node=by_node.int(),
        node_ptr=pointers(node.bincount(minlength=num_nodes)),
    )


def pointers(counts: Tensor) -> Tensor:
    """Return where segments of the given sizes begin, and where the last one ends."""
    zero = torch.zeros(1, dtype=torch.int32, device=counts.device)
    return torch.cat([zero, counts.cumsum(0).int()])
