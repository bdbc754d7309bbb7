"""Statistics of a data set: the paper's table 1, and more."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rgat.data.dataset import MISSING, PARTS, GraphData, NodeData
from rgat.graph import RelationalGraph


def statistics(data: NodeData | GraphData) -> dict[str, Any]:
    """Count nodes, labels and splits, edges as given (triples, or bonds once) and as a layer receives them.

    Examples:
        >>> import rgat
        >>> rgat.data.statistics(rgat.data.load("institute"))["nodes"]
        1000
    """
    numbers: dict[str, Any] = {"name": data.name}
    labels = data.labels
    if isinstance(data, GraphData):
        graph = data.graphs.batch(torch.arange(len(data.graphs)))[1]
        numbers |= {"graphs": len(data.graphs), "nodes": graph.num_nodes, "tasks": len(data.tasks)}
        numbers["labelled"] = int((labels != MISSING).sum())
        numbers["missing"] = int((labels == MISSING).sum())
        numbers["positives"] = dict(zip(data.tasks, (labels == 1).sum(0).tolist(), strict=True))
    else:
        graph = data.graph
        known = labels[labels != MISSING]
        numbers |= {"nodes": graph.num_nodes, "classes": len(data.classes), "labelled": len(known)}
        counts = known.bincount(minlength=len(data.classes)).tolist()
        numbers["label_counts"] = dict(zip(data.classes, counts, strict=True))
        numbers["leaks"] = {part: _count_leaks(data, getattr(data, part)) for part in PARTS}
    numbers["edges"] = data.provenance.get("edges", graph.num_edges)
    numbers["relations"] = data.provenance.get("relations", graph.num_relations)
    numbers |= {part: len(getattr(data, part)) for part in PARTS}
    return numbers | {"model_edges": graph.num_edges, "model_relations": graph.num_relations} | _degrees(graph)


def _degrees(graph: RelationalGraph) -> dict[str, Any]:
    """Return in-degrees, and sizes of the softmax groups of one (target, relation), as a layer receives them."""
    s = graph.structure
    degree, group = s.target_ptr.diff().double(), s.group_ptr.diff().double()
    if not len(group):
        return {"mean_degree": 0.0, "max_degree": 0, "mean_group": 0.0, "max_group": 0, "single_groups": 0.0}
    return {
        "mean_degree": float(degree.mean()),
        "max_degree": int(degree.max()),
        "mean_group": float(group.mean()),
        "max_group": int(group.max()),
        "single_groups": float((group == 1).double().mean()),  # a softmax over one edge is always one
    }


def _count_leaks(data: NodeData, nodes: Tensor) -> int:
    """Count the nodes that are direct neighbours of the node named like their class."""
    node_id = {name: node for node, name in enumerate(data.node_names)}
    class_node = [node_id.get(f"<{name}>", node_id.get(name, -1)) for name in data.classes]
    source, target = data.graph.edge_index.tolist()
    pairs = set(zip(source, target, strict=True))
    leaks = 0
    for node in nodes.tolist():
        other = class_node[int(data.labels[node])]
        leaks += (node, other) in pairs or (other, node) in pairs
    return leaks
