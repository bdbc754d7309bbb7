"""Data sets as frozen records: graph, labels, split, names, provenance."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from rgat.graph import RelationalGraph

MISSING = -1  # in place of a class: the label is not known
PARTS = ("train", "valid", "test")


@dataclass(frozen=True)
class NodeData:
    """One graph, some of whose nodes are labelled.

    Attributes:
        name: of the data set.
        graph: what the layers see, inverse relations and self-loops included where there are any.
        x: node features ``[N, F]``, or None for featureless input.
        labels: class of each node ``[N]``, -1 where there is none.
        classes: names of the classes.
        train: ids of the nodes to learn from.
        valid: ids of the nodes to select on.
        test: ids of the nodes to report on.
        node_names: names of the nodes.
        relation_names: names of the graph's relations.
        provenance: where the data come from.
    """

    name: str
    graph: RelationalGraph
    x: Tensor | None
    labels: Tensor
    classes: tuple[str, ...]
    train: Tensor
    valid: Tensor
    test: Tensor
    node_names: tuple[str, ...] = field(repr=False)
    relation_names: tuple[str, ...] = field(repr=False)
    provenance: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def in_channels(self) -> int:
        """Number of input channels of a model: features, or nodes where there are none."""
        return self.graph.num_nodes if self.x is None else self.x.shape[1]

    def __str__(self) -> str:
        features = "no node features" if self.x is None else f"{self.x.shape[1]} node features"
        return (
            f"{self.name}: {self.graph.num_nodes:,} nodes, {self.graph.num_edges:,} edges, "
            f"{self.graph.num_relations} relations, {features}, {len(self.classes)} classes; "
            f"{len(self.train)} train / {len(self.valid)} valid / {len(self.test)} test nodes"
        )


@dataclass(frozen=True)
class GraphStore:
    """Many graphs, stored flat: the nodes of all graphs in one numbering, graph after graph, and so the edges."""

    x: Tensor  # [nodes, F]
    edge_index: Tensor  # [2, edges], flat node ids
    edge_type: Tensor  # [edges]
    node_ptr: Tensor  # [G + 1]
    edge_ptr: Tensor  # [G + 1]
    num_relations: int
    edge_attr: Tensor | None = None  # [edges, edge_dim]

    def __len__(self) -> int:
        return len(self.node_ptr) - 1

    def __getitem__(self, graph: int) -> RelationalGraph:
        """One graph alone."""
        if not -len(self) <= graph < len(self):
            raise IndexError(f"graph {graph} of {len(self)}")
        return self.batch(torch.tensor([graph % len(self)]))[1]

    def select(self, graphs: Tensor) -> GraphStore:
        """The given graphs as a store of their own."""
        x, batch = self.batch(graphs)
        sizes = [ptr[graphs + 1] - ptr[graphs] for ptr in (self.node_ptr, self.edge_ptr)]
        node_ptr, edge_ptr = (torch.cat([size.new_zeros(1), size.cumsum(0)]) for size in sizes)
        return GraphStore(x, batch.edge_index, batch.edge_type, node_ptr, edge_ptr, self.num_relations, batch.edge_attr)

    def batch(self, graphs: Tensor) -> tuple[Tensor, RelationalGraph]:
        """Node features and one graph made of the given graphs, in the given order, without a loop over them."""
        nodes, graph_of_node = _ranges(self.node_ptr, graphs)
        edges, graph_of_edge = _ranges(self.edge_ptr, graphs)
        sizes = self.node_ptr[graphs + 1] - self.node_ptr[graphs]
        shift = sizes.cumsum(0) - sizes - self.node_ptr[graphs]  # from the flat numbering to the batch's
        batch = RelationalGraph(
            self.edge_index[:, edges] + shift[graph_of_edge],
            self.edge_type[edges],
            num_nodes=len(nodes),
            num_relations=self.num_relations,
            edge_attr=None if self.edge_attr is None else self.edge_attr[edges],
            batch=graph_of_node,
            num_graphs=len(graphs),
            validate=False,
        )
        return self.x[nodes], batch


def _ranges(ptr: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """The entries of the chosen segments one after the other, and the place of each entry's segment."""
    sizes = ptr[chosen + 1] - ptr[chosen]
    owner = torch.repeat_interleave(torch.arange(len(chosen)), sizes)
    start = sizes.cumsum(0) - sizes
    return torch.arange(int(sizes.sum())) - start[owner] + ptr[chosen][owner], owner


@dataclass(frozen=True)
class GraphData:
    """Many graphs, each labelled for several tasks.

    Attributes:
        name: of the data set.
        graphs: the graphs and their node features.
        labels: classes ``[G, tasks]``, -1 where a label is missing.
        tasks: names of the tasks.
        train: ids of the graphs to learn from.
        valid: ids of the graphs to select on.
        test: ids of the graphs to report on.
        graph_names: a name of each graph, such as its SMILES.
        relation_names: names of the relations.
        provenance: where the data come from.
    """

    name: str
    graphs: GraphStore = field(repr=False)
    labels: Tensor
    tasks: tuple[str, ...]
    train: Tensor
    valid: Tensor
    test: Tensor
    graph_names: tuple[str, ...] = field(repr=False)
    relation_names: tuple[str, ...] = field(repr=False)
    provenance: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def in_channels(self) -> int:
        """Number of node features."""
        return self.graphs.x.shape[1]

    def __str__(self) -> str:
        missing = float((self.labels == MISSING).double().mean()) if self.labels.numel() else 0.0
        return (
            f"{self.name}: {len(self.graphs):,} graphs, {len(self.graphs.x):,} nodes, "
            f"{len(self.graphs.edge_type):,} edges, {self.graphs.num_relations} relations, "
            f"{len(self.tasks)} tasks ({missing:.0%} of labels missing); "
            f"{len(self.train)} train / {len(self.valid)} valid / {len(self.test)} test graphs"
        )
