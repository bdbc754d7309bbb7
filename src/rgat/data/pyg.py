"""Convert graphs to and from PyTorch Geometric's `Data` and `HeteroData`; it is imported only when called."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rgat.graph import RelationalGraph


def import_pyg() -> Any:
    """Import the data classes of PyTorch Geometric, or raise an error that says how to install it."""
    try:
        from torch_geometric import data
    except ImportError as error:
        raise ImportError(
            "converting needs PyTorch Geometric; install it with `pip install torch-geometric`"
        ) from error
    return data


def to_pyg(graph: RelationalGraph, x: Tensor | None = None) -> Any:
    """Return a `Data` with ``edge_index``, ``edge_type`` and, if present, ``x``, ``edge_attr`` and ``batch``."""
    fields = {"x": x, "edge_attr": graph.edge_attr, "batch": graph.batch}
    return import_pyg().Data(
        edge_index=graph.edge_index,
        edge_type=graph.edge_type,
        num_nodes=graph.num_nodes,
        **{name: value for name, value in fields.items() if value is not None},
    )


def from_pyg(data: Any, num_relations: int | None = None) -> tuple[RelationalGraph, Tensor | None]:
    """Return the graph and the node features of a `Data` with ``edge_type``, or of a `HeteroData`.

    The nodes of a `HeteroData` are numbered one node type after the other, and its edge types become relations, both in
    its own order. Node types that have different numbers of features, or none, get columns of their own: their
    features, or a column of ones. All edge types must have the same number of edge features.
    """
    if isinstance(data, import_pyg().HeteroData):
        return _from_hetero(data, data), _node_features(data)
    graph = RelationalGraph(
        data.edge_index,
        _edge_type(data),
        num_nodes=data.num_nodes,
        num_relations=_num_relations(data) if num_relations is None else num_relations,
        edge_attr=data.edge_attr,
        batch=getattr(data, "batch", None),
    )
    return graph, data.x


def _edge_type(data: Any) -> Tensor:
    if getattr(data, "edge_type", None) is None:
        raise ValueError("a `Data` must have `edge_type`, one relation id per edge, got none")
    edge_type: Tensor = data.edge_type
    return edge_type


def _num_relations(data: Any) -> int:
    edge_type = _edge_type(data)
    return int(edge_type.max()) + 1 if edge_type.numel() else 0


def _from_hetero(data: Any, whole: Any) -> RelationalGraph:
    """Return the graph of a `HeteroData` whose node and edge types are those of ``whole``, in that order."""
    starts, num_nodes = _starts(data, whole)
    edges, types = [torch.empty(2, 0, dtype=torch.long)], [torch.empty(0, dtype=torch.long)]
    for relation, name in enumerate(whole.edge_types):
        edge_index = data[name].edge_index
        edges.append(edge_index + edge_index.new_tensor([[starts[name[0]]], [starts[name[2]]]]))
        types.append(edge_index.new_full(edge_index.shape[1:], relation))
    return RelationalGraph(
        torch.cat(edges[1:] or edges, dim=1),
        torch.cat(types[1:] or types),
        num_nodes=num_nodes,
        num_relations=len(whole.edge_types),
        edge_attr=_edge_features(data, whole),
    )


def _edge_features(data: Any, whole: Any) -> Tensor | None:
    found = {name: data[name].get("edge_attr") for name in whole.edge_types}
    present = [table for table in found.values() if table is not None]
    if not present:
        return None
    if len(present) < len(found) or any(table.dim() != 2 or table.shape[1] != present[0].shape[1] for table in present):
        shapes = ", ".join(f"{'-'.join(name)} {_shape(table)}" for name, table in found.items())
        raise ValueError(
            f"`edge_attr` must have the same number of columns in all edge types, got {shapes}; fill the others up, or "
            "delete it"
        )
    return torch.cat(present)


def _node_features(data: Any) -> Tensor | None:
    """Return the features of all nodes; node types that differ in their number have columns of their own."""
    found = [(name, data[name].get("x")) for name in data.node_types]
    if all(x is None for _, x in found):
        return None
    for name, x in found:
        if x is not None and (x.is_sparse or x.dim() != 2):
            raise ValueError(f"`x` of node type {name} must be a dense table with a row per node, got {_shape(x)}")
    if all(x is not None for _, x in found) and len({x.shape[1] for _, x in found}) == 1:
        return torch.cat([x for _, x in found])
    present = next(x for _, x in found if x is not None)
    tables = [present.new_ones(data[name].num_nodes, 1) if x is None else x for name, x in found]
    features: Tensor = present.new_zeros(sum(map(len, tables)), sum(table.shape[1] for table in tables))
    row = column = 0
    for table in tables:
        features[row : row + len(table), column : column + table.shape[1]] = table
        row, column = row + len(table), column + table.shape[1]
    return features


def _shape(table: Tensor | None) -> str:
    return "none" if table is None else f"of shape {tuple(table.shape)}"


def _starts(data: Any, whole: Any) -> tuple[dict[str, int], int]:
    """Return the id of the first node of each node type, and the number of nodes."""
    starts, num_nodes = dict[str, int](), 0
    for name in whole.node_types:
        starts[name] = num_nodes
        num_nodes += data[name].num_nodes
    return starts, num_nodes


def from_pyg_batch(batch: Any, whole: Any, num_relations: int | None = None) -> tuple[Tensor, RelationalGraph, int]:
    """Return node ids, the graph and the number of seed nodes of a batch that a loader of PyTorch Geometric made.

    Seed nodes come first. Ids are those of the nodes of ``whole``, the data that the loader samples from, as
    `from_pyg` numbers them.
    """
    if not isinstance(batch, import_pyg().HeteroData):
        _check_loaded(batch)
        if getattr(batch, "batch_size", None) is None:
            raise ValueError("a batch must have `batch_size`, the number of its seed nodes, got none")
        graph, _ = from_pyg(batch, _num_relations(whole) if num_relations is None else num_relations)
        return batch.n_id, graph, batch.batch_size
    seeds = [name for name in batch.node_types if "batch_size" in batch[name]]
    if len(seeds) != 1:
        raise ValueError(f"a batch must have seed nodes of one node type, got {len(seeds)} types with `batch_size`")
    for name in whole.node_types:
        _check_loaded(batch[name])
    graph = _from_hetero(batch, whole)
    first_of_whole, (starts, size) = _starts(whole, whole)[0], _starts(batch, whole)
    ids = torch.cat([batch[name].n_id + first_of_whole[name] for name in whole.node_types])
    first, num_seeds = starts[seeds[0]], batch[seeds[0]].batch_size
    numbers = torch.arange(size, device=ids.device)
    order = torch.cat([numbers[first : first + num_seeds], numbers[:first], numbers[first + num_seeds :]])
    renumbered = RelationalGraph(
        torch.empty_like(order).scatter_(0, order, numbers)[graph.edge_index],
        graph.edge_type,
        num_nodes=size,
        num_relations=graph.num_relations,
        edge_attr=graph.edge_attr,
    )
    return ids[order], renumbered, num_seeds


def _check_loaded(part: Any) -> None:
    if getattr(part, "n_id", None) is None:
        raise ValueError("a batch must have `n_id`, as the loaders of PyTorch Geometric give it, got none")


def to_hetero(graph: RelationalGraph, x: Tensor | None = None, relation_names: tuple[str, ...] | None = None) -> Any:
    """Return a `HeteroData` with one node type, "node", and an edge type per relation."""
    names = relation_names or tuple(f"relation {r}" for r in range(graph.num_relations))
    if len(set(names)) != len(names):
        raise ValueError("`relation_names` must differ from each other, got the same name twice")
    if len(names) != graph.num_relations:
        raise ValueError(f"`relation_names` must name {graph.num_relations} relations, got {len(names)}")
    data = import_pyg().HeteroData()
    data["node"].num_nodes = graph.num_nodes
    if x is not None:
        data["node"].x = x
    for relation, name in enumerate(names):
        chosen = graph.edge_type == relation
        data["node", name, "node"].edge_index = graph.edge_index[:, chosen]
        if graph.edge_attr is not None:
            data["node", name, "node"].edge_attr = graph.edge_attr[chosen]
    return data
