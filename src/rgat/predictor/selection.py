"""Select the nodes to predict: by default the unlabelled nodes of the kind that has labels, and say which these are."""

from __future__ import annotations

import difflib
from typing import NamedTuple

import numpy as np
import torch

from rgat.data import MISSING, NodeData
from rgat.data.dataset import INVERSE
from rgat.data.rdf.features import is_type
from rgat.predictor.words import edges_of

MOST_NAMED = 5  # types in a note


class Selection(NamedTuple):
    """Unlabelled nodes, and what they have in common."""

    nodes: list[int]
    kind: str  # completes "the unlabelled nodes ..."


def nodes_by_type(data: NodeData) -> dict[int, set[int]]:
    """Return the nodes of each RDF type."""
    nodes = dict[int, set[int]]()
    for relation in (number for number, name in enumerate(data.relation_names) if is_type(name)):
        source, target = edges_of(data, relation)
        for node, type_node in zip(source.tolist(), target.tolist(), strict=True):
            nodes.setdefault(type_node, set()).add(node)
    return nodes


def _labelled(data: NodeData) -> set[int]:
    return set((data.labels != MISSING).nonzero().squeeze(1).tolist())


def shared_type(data: NodeData) -> str | None:
    """Return the rarest type that all labelled nodes share, if there is one."""
    labelled = _labelled(data)
    shared = [(len(nodes), type_node) for type_node, nodes in nodes_by_type(data).items() if labelled <= nodes]
    return data.node_names[min(shared)[1]] if shared else None


def of_type(data: NodeData, type_name: str) -> list[int]:
    """Return the unlabelled nodes of a type; raise if no node has it."""
    types = {data.node_names[node].strip("<>"): nodes for node, nodes in nodes_by_type(data).items()}
    if not types:
        raise ValueError("the graph must have types (rdf:type) to select by --type, got none; name nodes (--node)")
    nodes = types.get(type_name.strip("<>"))
    if nodes is None:
        common = sorted(types, key=lambda name: -len(types[name]))[:5]
        near = difflib.get_close_matches(type_name, types, n=1)
        hint = f"did you mean {near[0]}?" if near else f"the most common are {', '.join(common)}"
        raise ValueError(f"{type_name} must be the type of some node, but no node has it; {hint}")
    return sorted(node for node in nodes if data.labels[node] == MISSING)


def select(data: NodeData, type_name: str | None = None) -> Selection:
    """Return the unlabelled nodes of a type or, by default, of the kind of the labelled nodes.

    The kind is the rarest type that all labelled nodes share; else the rarest type of each of them; else, where some
    have no type, the rarest relation that all have in the same direction; else any node that is not a literal.
    """
    if type_name is not None:
        return Selection(of_type(data, type_name), f"of type {type_name}")
    if (shared := shared_type(data)) is not None:
        return Selection(of_type(data, shared), f"of type {shared}, which all labelled nodes have")
    types, labelled = nodes_by_type(data), _labelled(data)
    sizes = sorted((len(nodes), type_node) for type_node, nodes in types.items())
    chosen, untyped = [], set(labelled)
    for _, type_node in sizes:
        if untyped & types[type_node]:
            chosen.append(type_node)
            untyped -= types[type_node]
    if chosen and not untyped:
        nodes = set[int]().union(*(types[node] for node in chosen)) - labelled
        names = ", ".join(data.node_names[node] for node in chosen[:MOST_NAMED])
        more = f" and {len(chosen) - MOST_NAMED} more" if len(chosen) > MOST_NAMED else ""
        return Selection(sorted(nodes), f"of the types of the labelled nodes: {names}{more}")
    shared_relation = None if data.is_stored else _of_shared_relation(data)
    return shared_relation or Selection(
        _resources(data, torch.ones(data.graph.num_nodes, dtype=torch.bool)),
        "of the graph, of any kind, because the labelled nodes share neither a type nor a relation",
    )


def _of_shared_relation(data: NodeData) -> Selection | None:
    """Return the unlabelled nodes with the rarest relation into all labelled nodes; inverses are relations too."""
    (source, target), size = data.graph.edge_index, data.graph.num_nodes
    is_step, labelled = source != target, data.labels != MISSING
    pairs = torch.from_numpy(np.unique((data.graph.edge_type * size + target)[is_step].numpy()))
    relation, node = pairs.div(size, rounding_mode="floor"), pairs % size
    count = relation.bincount(minlength=len(data.relation_names))
    is_shared = relation[labelled[node]].bincount(minlength=len(count)) == labelled.sum().clamp(min=1)
    if not is_shared.any():
        return None
    rarest = int(torch.where(is_shared, count, size + 1).argmin())
    has_it = torch.zeros(size, dtype=torch.bool).index_fill_(0, node[relation == rarest], True)
    name, nodes = data.relation_names[rarest], _resources(data, has_it)
    role = f"that have {name.removeprefix(INVERSE)}" if name.startswith(INVERSE) else f"that are values of {name}"
    return Selection(nodes, f"{role}, as all labelled nodes do")


def _resources(data: NodeData, mask: torch.Tensor) -> list[int]:
    """Return the unlabelled nodes of a mask that are not literals."""
    nodes = (mask & (data.labels == MISSING)).nonzero().squeeze(1).tolist()
    return [node for node in nodes if not data.node_names[node].startswith('"')]
