"""To and from PyTorch Geometric's `Data` and `HeteroData`, which is imported only here and when called."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rgat.graph import RelationalGraph


def _pyg() -> Any:
    try:
        from torch_geometric import data
    except ImportError as error:
        raise ImportError(
            "converting needs PyTorch Geometric; install it with `pip install torch-geometric`"
        ) from error
    return data


def to_pyg(graph: RelationalGraph, x: Tensor | None = None) -> Any:
    """A `Data` with ``edge_index``, ``edge_type`` and, where there are any, ``x``, ``edge_attr`` and ``batch``."""
    fields = {"x": x, "edge_attr": graph.edge_attr, "batch": graph.batch}
    return _pyg().Data(
        edge_index=graph.edge_index,
        edge_type=graph.edge_type,
        num_nodes=graph.num_nodes,
        **{name: value for name, value in fields.items() if value is not None},
    )


def from_pyg(data: Any, num_relations: int | None = None) -> tuple[RelationalGraph, Tensor | None]:
    """A graph and its node features, from a `Data` with ``edge_type`` or from a `HeteroData`.

    The node types of a `HeteroData` are numbered one after the other, its edge types are the relations, both in the
    order in which it lists them; features of nodes and edges are kept only if all types have as many.
    """
    if isinstance(data, _pyg().HeteroData):
        return _from_hetero(data)
    if getattr(data, "edge_type", None) is None:
        raise ValueError("a `Data` must have `edge_type`, one relation id per edge, got none")
    if num_relations is None:
        num_relations = int(data.edge_type.max()) + 1 if data.edge_type.numel() else 0
    graph = RelationalGraph(
        data.edge_index,
        data.edge_type,
        num_nodes=data.num_nodes,
        num_relations=num_relations,
        edge_attr=data.edge_attr,
        batch=getattr(data, "batch", None),
    )
    return graph, data.x


def _from_hetero(data: Any) -> tuple[RelationalGraph, Tensor | None]:
    start, num_nodes = {}, 0
    for node_type in data.node_types:
        start[node_type] = num_nodes
        num_nodes += data[node_type].num_nodes
    edges, types = [torch.empty(2, 0, dtype=torch.long)], [torch.empty(0, dtype=torch.long)]
    for relation, (source, _, target) in enumerate(data.edge_types):
        edge_index = data[data.edge_types[relation]].edge_index
        edges.append(edge_index + torch.tensor([[start[source]], [start[target]]]))
        types.append(torch.full((edge_index.shape[1],), relation))
    features = [data[node_type].get("x") for node_type in data.node_types]
    same = all(x is not None for x in features) and len({x.shape[1] for x in features}) == 1
    attributes = [data[edge_type].get("edge_attr") for edge_type in data.edge_types]
    whole = bool(attributes) and all(a is not None and a.dim() == 2 for a in attributes)
    graph = RelationalGraph(
        torch.cat(edges, dim=1),
        torch.cat(types),
        num_nodes=num_nodes,
        num_relations=len(data.edge_types),
        edge_attr=torch.cat(attributes) if whole and len({a.shape[1] for a in attributes}) == 1 else None,
    )
    return graph, torch.cat(features) if same else None


def to_hetero(graph: RelationalGraph, x: Tensor | None = None, relation_names: tuple[str, ...] | None = None) -> Any:
    """A `HeteroData` with one node type, "node", and an edge type per relation."""
    names = relation_names or tuple(f"relation {r}" for r in range(graph.num_relations))
    if len(set(names)) != len(names):
        raise ValueError("`relation_names` must differ from each other, got the same name twice")
    if len(names) != graph.num_relations:
        raise ValueError(f"`relation_names` must name {graph.num_relations} relations, got {len(names)}")
    data = _pyg().HeteroData()
    data["node"].num_nodes = graph.num_nodes
    if x is not None:
        data["node"].x = x
    for relation, name in enumerate(names):
        mine = graph.edge_type == relation
        data["node", name, "node"].edge_index = graph.edge_index[:, mine]
        if graph.edge_attr is not None:
            data["node", name, "node"].edge_attr = graph.edge_attr[mine]
    return data
