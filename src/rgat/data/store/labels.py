"""Labels of a store's nodes, for training on samples of a graph that is not loaded."""

from __future__ import annotations

from dataclasses import dataclass, field
from os import PathLike

from torch import Tensor

from rgat.data.rdf.labels import LabelSource, match_labels, read_label_tables
from rgat.data.store.names import NodeNames, NumberedNames
from rgat.data.store.stored_graph import StoredGraph, open_store


@dataclass(frozen=True)
class StoredData:
    """A store with labels on some of its nodes: what :class:`rgat.data.NodeData` is for a graph in memory.

    Attributes:
        name: name of the data set.
        store: the graph, its names and its features.
        labels: class of each node ``[N]``, -1 where it has no label.
        classes: names of the classes.
        train: ids of the training nodes.
        valid: ids of the validation nodes.
        test: ids of the test nodes.
        num_unknown: number of labels left out because their nodes are not in the graph.
    """

    name: str
    store: StoredGraph
    labels: Tensor = field(repr=False)
    classes: tuple[str, ...]
    train: Tensor = field(repr=False)
    valid: Tensor = field(repr=False)
    test: Tensor = field(repr=False)
    num_unknown: int = 0

    @property
    def x(self) -> Tensor | None:
        """Node features ``[N, F]``, or None."""
        return self.store.x

    @property
    def node_names(self) -> NodeNames | NumberedNames:
        """Names of the nodes, decoded on demand."""
        return self.store.node_names

    @property
    def relation_names(self) -> tuple[str, ...]:
        """Names of the relations."""
        return self.store.relation_names

    def __str__(self) -> str:
        features = "no node features" if self.x is None else f"{self.x.shape[1]} node features"
        return (
            f"{self.name}: {self.store.num_nodes:,} nodes ({features}), {self.store.num_edges:,} edges, "
            f"{self.store.num_relations} relations, {len(self.classes)} classes; "
            f"{len(self.train)} train / {len(self.valid)} valid / {len(self.test)} test nodes"
        )


def label_store(
    store: StoredGraph | str | PathLike[str], source: LabelSource | None = None, name: str | None = None
) -> StoredData:
    """Return a store with the labels of a source, or with its own if the source names none, split as the source says.

    Args:
        store: an opened store, or its path.
        source: label tables, columns, shares and random seed of the split.
        name: name of the data set; by default that of the folder.
    """
    store = store if isinstance(store, StoredGraph) else open_store(store)
    source = LabelSource() if source is None else source
    if source.label_predicate is not None:
        raise ValueError(
            f"{store.path}: `label_predicate` must be chosen when a store is written, because its triples are removed "
            "from the graph; give --label-predicate to `rgat data convert`"
        )
    if not source.is_empty:
        labels = match_labels(read_label_tables(source), store.node_names, source.skip_unknown)
    elif store.labels is not None:
        labels = store.labels
    else:
        raise ValueError(f"{store.path}: has no labels; give a table of them, or convert the graph with --labels")
    targets, (train, valid, test) = labels.split(store.num_nodes, source)
    name = store.path.name if name is None else name
    return StoredData(name, store, targets, labels.class_names, train, valid, test, labels.num_unknown)
