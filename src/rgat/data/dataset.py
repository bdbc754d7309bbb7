"""Data sets as frozen records: graph, labels, split, names, provenance."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from rgat.data.store import GraphStore as GraphStore  # part of a record, and found here too
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
