"""Labelled graphs of PyTorch Geometric as data sets: one graph with labelled nodes, or many labelled graphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rgat.data.dataset import MISSING, GraphData, GraphStore, NodeData
from rgat.data.pyg import from_pyg, import_pyg
from rgat.data.rdf.graph import all_relation_names
from rgat.data.splits import random_parts, stratified_parts
from rgat.graph import RelationalGraph

_MASKS = ("train_mask", "val_mask", "test_mask")


def from_pyg_data(
    source: Any,
    *,
    inverses: bool = False,
    self_loops: bool = True,
    shares: tuple[float, float] = (0.8, 0.1),
    seed: int = 0,
    name: str = "graphs",
) -> NodeData | GraphData:
    """Return a data set of PyTorch Geometric's: a `Data` or `HeteroData` with labelled nodes, or many labelled graphs.

    Relations are ``edge_type``, or the columns of a one-hot ``edge_attr``, as in a `TUDataset`, or else one that all
    edges have; of `HeteroData` its edge types. Labels are ``y``. Many graphs are learned as tasks with the classes 0
    and 1: classes of a single column ``y`` become one task each if there are more than two, and NaN is no label.

    Args:
        source: a `Data`, a `HeteroData` with ``y`` in one node type, or a sequence of `Data` such as a `TUDataset`.
        inverses: add an inverse of every relation; graphs of PyTorch Geometric often have both directions already.
        self_loops: add a relation from every node to itself.
        shares: shares of the training and validation parts, unless the nodes have ``train_mask``, ``val_mask`` and
            ``test_mask``. Nodes outside these masks have no label.
        seed: random seed of the split.
        name: name of the data set.

    Examples:
        >>> import torch
        >>> from torch_geometric.data import Data
        >>> import rgat
        >>> edges, types = torch.tensor([[0, 1, 2], [1, 2, 0]]), torch.tensor([0, 1, 0])
        >>> graphs = [Data(torch.randn(3, 4), edges, edge_type=types, y=torch.tensor([n % 2])) for n in range(20)]
        >>> data = rgat.data.from_pyg_data(graphs)
        >>> len(data.train), data.tasks, data.relation_names
        (16, ('y',), ('relation 0', 'relation 1', 'self'))
        >>> model = rgat.training.build_model(data)
        >>> model(*data.graphs.batch(data.test)).shape
        torch.Size([2, 1, 2])
    """
    options, data = _Options(inverses, self_loops, shares, seed, name), import_pyg()
    if isinstance(source, data.HeteroData):
        return _hetero_nodes(source, options)
    if isinstance(source, data.Data):
        return _nodes(source, options)
    graphs = list(source)
    if not graphs or not all(isinstance(graph, data.Data) for graph in graphs):
        raise ValueError(
            "a data set must be a Data, a HeteroData or a sequence of Data, got others or an empty sequence"
        )
    return _graphs(graphs, options)


class _Options(NamedTuple):
    inverses: bool
    self_loops: bool
    shares: tuple[float, float]
    seed: int
    name: str

    def extend(self, graph: RelationalGraph) -> RelationalGraph:
        graph = graph.with_inverses() if self.inverses else graph
        return graph.with_self_loops() if self.self_loops else graph

    def relation_names(self, names: Sequence[str]) -> tuple[str, ...]:
        return all_relation_names(names, self.inverses, self.self_loops)


def _typed(graphs: Sequence[Any]) -> tuple[list[Any], int]:
    """Return the graphs with ``edge_type``, their own or made from ``edge_attr``, and the number of relations."""
    if all(getattr(graph, "edge_type", None) is not None for graph in graphs):
        return list(graphs), max(
            (int(graph.edge_type.max()) + 1 for graph in graphs if len(graph.edge_type)), default=1
        )
    if any(getattr(graph, "edge_type", None) is not None for graph in graphs):
        raise ValueError("graphs must all have `edge_type` or none of them, got some with it")
    copies, are_one_hot = [graph.clone() for graph in graphs], all(_is_one_hot(graph.edge_attr) for graph in graphs)
    for graph in copies:
        if are_one_hot:
            graph.edge_type, graph.edge_attr = graph.edge_attr.argmax(1), None
        else:
            graph.edge_type = graph.edge_index.new_zeros(graph.edge_index.shape[1])
    return copies, graphs[0].edge_attr.shape[1] if are_one_hot else 1


def _is_one_hot(rows: Tensor | None) -> bool:
    if rows is None or rows.dim() != 2 or rows.shape[1] < 2:
        return False
    return bool(((rows == 1).sum(1) == 1).all() and ((rows != 0).sum(1) == 1).all())


def _nodes(source: Any, options: _Options) -> NodeData:
    (data,), num_relations = _typed([source])
    graph, x = from_pyg(data, num_relations)
    names = tuple(f"node {number}" for number in range(graph.num_nodes))
    relations = [f"relation {number}" for number in range(graph.num_relations)]
    labels, masks = _node_labels(data), _masks(data)
    return _node_data(graph, x, labels, masks, names, relations, options)


def _hetero_nodes(data: Any, options: _Options) -> NodeData:
    labelled = [word for word in data.node_types if data[word].get("y") is not None]
    if len(labelled) != 1:
        raise ValueError(f"a HeteroData must have `y` in one node type, got {len(labelled)} with it")
    graph, x = from_pyg(data)
    names = tuple(f"{word} {number}" for word in data.node_types for number in range(data[word].num_nodes))
    first = next(number for number, text in enumerate(names) if text == f"{labelled[0]} 0")
    part = data[labelled[0]]

    def whole(values: Tensor | None, fill: Any) -> Tensor | None:
        if values is None:
            return None
        new = values.new_full((graph.num_nodes,), fill)
        new[first : first + len(values)] = values
        return new

    labels = whole(_node_labels(part), MISSING)
    assert labels is not None
    masks = [whole(mask, False) for mask in _masks(part)]
    relations = [" ".join(edge_type) for edge_type in data.edge_types]
    return _node_data(graph, x, labels, masks, names, relations, options)


def _masks(data: Any) -> list[Tensor | None]:
    """Return the masks of the three parts, as far as there are any."""
    masks: list[Tensor | None] = [data.get(name) for name in _MASKS]
    for name, mask in zip(_MASKS, masks, strict=True):
        if mask is not None and (mask.dtype != torch.bool or mask.shape != (data.num_nodes,)):
            raise ValueError(
                f"`{name}` must have one truth value per node, got {mask.dtype} of shape {tuple(mask.shape)}; of "
                f"several splits choose one, such as `data.{name} = data.{name}[:, 0]`"
            )
    return masks


def _node_labels(data: Any) -> Tensor:
    """Return the class of each node; -1 where it is missing."""
    y = data.get("y")
    if y is None or y.dim() != 1 or y.is_floating_point():
        raise ValueError("nodes must have `y`, one class id each, got none or other values; set `data.y`")
    labels: Tensor = y.long().clamp(min=MISSING)
    return labels


def _node_data(
    graph: RelationalGraph,
    x: Tensor | None,
    labels: Tensor,
    masks: Sequence[Tensor | None],
    names: tuple[str, ...],
    relations: Sequence[str],
    options: _Options,
) -> NodeData:
    if masks[0] is None:
        labelled = (labels != MISSING).nonzero().squeeze(1)
        parts = [labelled[part] for part in stratified_parts(labels[labelled].tolist(), options.shares, options.seed)]
    else:
        none = torch.zeros_like(labels, dtype=torch.bool)
        chosen = [(none if mask is None else mask) & (labels != MISSING) for mask in masks]
        parts = [mask.nonzero().squeeze(1) for mask in chosen]
        labels = torch.where(chosen[0] | chosen[1] | chosen[2], labels, MISSING)
    return NodeData(
        name=options.name,
        graph=options.extend(graph),
        x=None if x is None else x.float(),
        labels=labels,
        classes=tuple(f"class {number}" for number in range(int(labels.max()) + 1)),
        train=parts[0],
        valid=parts[1],
        test=parts[2],
        node_names=names,
        relation_names=options.relation_names(relations),
        provenance={"nodes": graph.num_nodes, "edges": graph.num_edges, "relations": len(relations)},
    )


def _graphs(graphs: Sequence[Any], options: _Options) -> GraphData:
    if any(graph.x is None for graph in graphs):
        raise ValueError("graphs must have node features `x`, got one without; add them, such as by OneHotDegree")
    typed, relations = _typed(graphs)
    converted = [from_pyg(graph, relations) for graph in typed]
    whole = [options.extend(graph) for graph, _ in converted]
    batch = RelationalGraph.collate(whole)
    nodes, edges = (
        torch.tensor([0, *(getattr(graph, f"num_{word}") for graph in whole)]) for word in ("nodes", "edges")
    )
    labels, tasks = _graph_labels(graphs)
    names = [f"relation {number}" for number in range(relations)]
    parts = random_parts(len(graphs), options.seed, options.shares)
    return GraphData(
        name=options.name,
        graphs=GraphStore(
            torch.cat([x.float() for _, x in converted if x is not None]),
            batch.edge_index,
            batch.edge_type,
            nodes.cumsum(0),
            edges.cumsum(0),
            batch.num_relations,
            batch.edge_attr,
        ),
        labels=labels,
        tasks=tasks,
        train=parts[0],
        valid=parts[1],
        test=parts[2],
        graph_names=tuple(f"graph {number}" for number in range(len(graphs))),
        relation_names=options.relation_names(names),
        provenance={"edges": sum(graph.num_edges for graph in typed), "relations": relations},
    )


def _graph_labels(graphs: Sequence[Any]) -> tuple[Tensor, tuple[str, ...]]:
    """Return labels ``[G, tasks]``, 0, 1 or -1 where missing, and the names of the tasks."""
    rows = [graph.y.reshape(1, -1).double() for graph in graphs if graph.y is not None]
    if len(rows) < len(graphs) or len({row.shape for row in rows}) > 1:
        raise ValueError("graphs must all have `y` with the same number of labels, got some without or with others")
    y = torch.cat(rows)
    known = y[~y.isnan()]
    if not torch.equal(known, known.round()) or (known < 0).any():
        raise ValueError("labels `y` of graphs must be class ids, 0, 1, 2 and so on, or NaN, got other numbers")
    classes = int(known.max()) + 1 if len(known) else 1
    labels = torch.where(y.isnan(), MISSING, y.nan_to_num()).long()
    if classes <= 2:
        return labels, tuple(f"y{number}" for number in range(y.shape[1])) if y.shape[1] > 1 else ("y",)
    if y.shape[1] > 1:
        raise ValueError(f"several labels per graph must be 0 or 1 each, got a class {classes - 1}")
    each = (labels == torch.arange(classes)).long()
    return torch.where(labels == MISSING, MISSING, each), tuple(f"class {number}" for number in range(classes))
