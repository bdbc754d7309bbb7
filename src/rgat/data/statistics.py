"""What a data set holds: the paper's table 1, and more."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rgat.data.dataset import MISSING, PARTS, GraphData, NodeData
from rgat.graph import RelationalGraph


def statistics(data: NodeData | GraphData) -> dict[str, Any]:
    """Counts of the data as given (triples, or bonds once), of what a layer sees, and of softmax groups and labels."""
    given = data.provenance
    numbers: dict[str, Any] = {"name": data.name}
    if isinstance(data, GraphData):
        graph = data.graphs.batch(_all(data))[1]
        numbers |= {"graphs": len(data.graphs), "nodes": graph.num_nodes, "tasks": len(data.tasks)}
        labels = data.labels
        numbers["labelled"] = int((labels != MISSING).sum())
        numbers["missing"] = int((labels == MISSING).sum())
        numbers["positives"] = dict(zip(data.tasks, (labels == 1).sum(0).tolist(), strict=True))
    else:
        graph = data.graph
        labelled = data.labels != MISSING
        numbers |= {"nodes": graph.num_nodes, "classes": len(data.classes), "labelled": int(labelled.sum())}
        counts = data.labels[labelled].bincount(minlength=len(data.classes)).tolist()
        numbers["label_counts"] = dict(zip(data.classes, counts, strict=True))
        numbers["leaks"] = {part: _leaks(data, getattr(data, part)) for part in PARTS}
    numbers |= {"edges": given.get("edges", graph.num_edges), "relations": given.get("relations", graph.num_relations)}
    numbers |= {part: len(getattr(data, part)) for part in PARTS}
    return numbers | {"model_edges": graph.num_edges, "model_relations": graph.num_relations} | _shape(graph)


def _all(data: GraphData) -> Tensor:
    return torch.arange(len(data.graphs))


def _shape(graph: RelationalGraph) -> dict[str, Any]:
    """Degrees and softmax groups of the graph that a layer sees."""
    s = graph.structure
    degree, group = s.target_ptr.diff().double(), s.group_ptr.diff().double()
    if not len(group):
        return {"mean_degree": 0.0, "max_degree": 0, "mean_group": 0.0, "max_group": 0, "single_groups": 0.0}
    return {
        "mean_degree": float(degree.mean()),
        "max_degree": int(degree.max()),
        "mean_group": float(group.mean()),  # edges of one (target, relation)
        "max_group": int(group.max()),
        "single_groups": float((group == 1).double().mean()),  # there a softmax within relations is always one
    }


def _leaks(data: NodeData, nodes: Tensor) -> int:
    """How many of the nodes are direct neighbours of a node that is called like their class."""
    place = {name: node for node, name in enumerate(data.node_names)}
    class_node = [place.get(f"<{name}>", place.get(name, -1)) for name in data.classes]
    source, target = data.graph.edge_index.tolist()
    pairs = set(zip(source, target, strict=True))
    leaks = 0
    for node in nodes.tolist():
        other = class_node[int(data.labels[node])]
        leaks += (node, other) in pairs or (other, node) in pairs
    return leaks
