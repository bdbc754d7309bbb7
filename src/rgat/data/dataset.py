"""Data sets as frozen records: graph, labels, split, names, provenance."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from rgat.data.graph_store import GraphStore as GraphStore  # re-exported: it is part of GraphData
from rgat.data.molecules.descriptors import Descriptors
from rgat.data.targets import Target
from rgat.graph import RelationalGraph

MISSING = -1
"""The label of a node, or of a graph in a task, that has none.

Examples:
    >>> import torch
    >>> from rgat.data import MISSING
    >>> labels = torch.tensor([0, MISSING, 1])
    >>> labels[labels != MISSING]
    tensor([0, 1])
"""
PARTS = ("train", "valid", "test")
INVERSE = "inverse of "  # prefix of the name of an inverse relation


@dataclass(frozen=True)
class NodeData:
    """One graph with labels on some of its nodes.

    Attributes:
        name: name of the data set.
        graph: the graph that layers receive, with inverse relations and self-loops where these were added; or one in a
            store (`rgat.data.StoredGraph`), which only sampled training and block-wise inference can read.
        x: node features ``[N, F]``, or None for featureless input.
        labels: class of each node ``[N]``, -1 where it has no label; with ``values``, 0 where some value is known.
        classes: names of the classes; with ``values``, of the outputs.
        train: ids of the training nodes.
        valid: ids of the validation nodes.
        test: ids of the test nodes.
        node_names: names of the nodes.
        relation_names: names of the graph's relations.
        provenance: where the data come from.
        values: where the nodes do not have one class each: the values of the targets, as in `TargetTable`.
        bounds: which of the values are bounds, as in `TargetTable`.
        targets: what is to be learned.
        base_relation: for each relation the relation that it is the inverse of, or itself; from ``relation_names``.

    Examples:
        >>> import rgat
        >>> data = rgat.data.load("institute")
        >>> data.graph.num_relations, len(data.train), data.labels[data.train].max()
        (43, 120, tensor(3))
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
    values: Tensor | None = field(default=None, repr=False)
    bounds: Tensor | None = field(default=None, repr=False)
    targets: tuple[Target, ...] = field(default=(), repr=False)
    base_relation: tuple[int, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.values is None:
            kind = "binary" if len(self.classes) == 2 else "multi-class"
            object.__setattr__(self, "targets", (Target("class", kind, self.classes),))
        number = {f"{INVERSE}{name}": relation for relation, name in enumerate(self.relation_names)}
        base = tuple(number.get(name, relation) for relation, name in enumerate(self.relation_names))
        object.__setattr__(self, "base_relation", base)

    @property
    def is_stored(self) -> bool:
        """Whether the graph is in a store and not in memory."""
        return not isinstance(self.graph, RelationalGraph)

    @property
    def in_channels(self) -> int:
        """Number of input channels of a model: node features or, without any, the number of nodes."""
        return self.graph.num_nodes if self.x is None else self.x.shape[1]

    def labels_of(self, nodes: Tensor) -> dict[str, Tensor | None]:
        """Return the fields that hold labels, of some nodes only."""
        fields = {"labels": self.labels, "values": self.values, "bounds": self.bounds}
        return {name: None if tensor is None else tensor[nodes] for name, tensor in fields.items()}

    def __str__(self) -> str:
        features = "no node features" if self.x is None else f"{self.x.shape[1]} node features"
        outputs = "classes" if self.values is None else "outputs"
        return (
            f"{self.name}: {self.graph.num_nodes:,} nodes, {self.graph.num_edges:,} edges, "
            f"{self.graph.num_relations} relations, {features}, {len(self.classes)} {outputs}; "
            f"{len(self.train)} train / {len(self.valid)} valid / {len(self.test)} test nodes"
        )


@dataclass(frozen=True)
class GraphData:
    """Many graphs, each labelled for several tasks.

    Attributes:
        name: name of the data set.
        graphs: the graphs and their node features.
        labels: classes ``[G, tasks]``, -1 where a label is missing; with ``values``, 0 where a number is known.
        tasks: names of the tasks; with ``values``, of the outputs.
        train: ids of the training graphs.
        valid: ids of the validation graphs.
        test: ids of the test graphs.
        graph_names: names of the graphs, such as SMILES.
        relation_names: names of the relations.
        provenance: where the data come from.
        values: where not all tasks are columns of 0 and 1: the values of the targets, as in `TargetTable`.
        bounds: which of the values are bounds, as in `TargetTable`.
        targets: what is to be learned.
        descriptors: which descriptors of molecules `graphs.graph_attr` holds.
        groups: of each graph, where the parts keep groups together.

    Examples:
        >>> import rgat
        >>> data = rgat.data.load("molecules")
        >>> data.tasks[:2], data.labels.shape
        (('amide', 'acid'), torch.Size([320, 6]))
        >>> x, batch = data.graphs.batch(data.train[:10])
        >>> batch.num_graphs
        10
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
    values: Tensor | None = field(default=None, repr=False)
    bounds: Tensor | None = field(default=None, repr=False)
    targets: tuple[Target, ...] = field(default=(), repr=False)
    descriptors: Descriptors | None = field(default=None, repr=False)
    groups: tuple[str, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        if self.values is None:
            object.__setattr__(self, "targets", tuple(Target(name, "binary") for name in self.tasks))

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
