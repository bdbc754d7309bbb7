"""Labels of a store's nodes, for training on samples of a graph that is not loaded."""

from __future__ import annotations

from os import PathLike
from typing import Any

from rgat.data.dataset import PARTS, NodeData
from rgat.data.rdf.labels import LabelSource, NodeLabels, match_labels, read_label_tables
from rgat.data.rdf.node_targets import attach, table_cells
from rgat.data.store.stored_graph import StoredGraph, open_store


def label_store(
    store: StoredGraph | str | PathLike[str], source: LabelSource | None = None, name: str | None = None
) -> NodeData:
    """Return a store with the labels of a source, or with its own if the source names none, split as the source says.

    Args:
        store: an opened store, or its path.
        source: label tables, columns, shares and random seed of the split.
        name: name of the data set; by default that of the folder.

    Examples:
        >>> import numpy as np
        >>> from rgat.data import StoreWriter
        >>> from rgat.data.store import label_store
        >>> with StoreWriter("store", nodes=["a", "b", "c"], relation_names=["cites"]) as store:
        ...     store.add(np.array([0, 1]), np.array([0, 0]), np.array([2, 2]))
        ...     store.set_labels(np.array([0, 1]), np.array([0, 1]), class_names=["x", "y"], parts=np.array([0, 1]))
        >>> label_store("store").train
        tensor([0])
    """
    store = store if isinstance(store, StoredGraph) else open_store(store)
    source = LabelSource() if source is None else source
    if source.label_predicate is not None:
        raise ValueError(
            f"{store.path}: `label_predicate` must be chosen when a store is written, because its triples are removed "
            "from the graph; give --label-predicate to `rgat data convert`"
        )
    cells = None if source.is_empty else table_cells(source, store.node_names)
    if cells is not None:
        fields, num_unknown = attach(cells, store.node_names, source)
    else:
        labels = _classes(store, source)
        classes, parts = labels.split(store.num_nodes, source)
        fields = {"labels": classes, "classes": labels.class_names, **dict(zip(PARTS, parts, strict=True))}
        num_unknown = labels.num_unknown
    graph: Any = store  # sampled, never loaded
    names: Any = store.node_names
    unknown = {"unknown_nodes": num_unknown} if num_unknown else {}
    sizes = {
        "nodes": store.num_nodes,
        "edges": store.manifest.num_triples,
        "relations": len(store.manifest.relation_names),
    }
    return NodeData(
        name=store.path.name if name is None else name,
        graph=graph,
        x=store.x,
        node_names=names,
        relation_names=store.relation_names,
        provenance=sizes
        | unknown
        | {word: store.provenance[word] for word in ("vocabulary", "invalid_lines") if word in store.provenance},
        **fields,
    )


def _classes(store: StoredGraph, source: LabelSource) -> NodeLabels:
    """Return the classes of nodes, by the tables of a source or, if it names none, those that the store keeps."""
    if not source.is_empty:
        return match_labels(read_label_tables(source), store.node_names, source.skip_unknown)
    if store.labels is None:
        raise ValueError(f"{store.path}: has no labels; give a table of them, or convert the graph with --labels")
    return store.labels
