"""What each predicate contributes: the held-out score with its literals or its edges exchanged among nodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rgat.data import MISSING, NodeData
from rgat.data.rdf.features import is_type, read_vocabulary
from rgat.graph import RelationalGraph
from rgat.predictor.predictor import NodePredictor
from rgat.progress import Show, Step
from rgat.training import accuracy
from rgat.training.metric import score_targets

REPEATS = 5  # permutations of each predicate, whose scores are averaged
MOST_EDGES = 500_000_000  # of all forward passes together; less than a tenth of a small training
STEP = "contributions of predicates"


class _Use(NamedTuple):
    """A way in which the model uses a predicate."""

    predicate: str
    used_as: str  # "links", or the kind of its literals
    places: list[slice]  # of its feature columns
    relation: int | None  # of its edges


def contributions(predictor: NodePredictor, data: NodeData, seed: int, show: Show) -> dict[str, Any]:
    """Return the score of held-out nodes and, for each predicate, the score with its facts permuted.

    Held-out nodes are those of the test part or, without any, of the validation part. Nothing is returned without
    either, for a graph that is sampled or in a store, and for one whose forward passes would take too long.
    """
    part = "test" if len(data.test) else "valid"
    nodes = getattr(data, part)
    nodes = nodes[data.labels[nodes] != MISSING]
    if data.is_stored or predictor.config.get("fanouts") is not None or not len(nodes):
        return {}
    uses = _uses(data)
    repeats = min(REPEATS, MOST_EDGES // max(len(uses) * data.graph.num_edges, 1))
    if not repeats:
        return {}
    score = _score(predictor, data.x, data.graph, nodes, data)
    rows = []
    for number, use in enumerate(uses):
        scores = [_score(predictor, x, graph, nodes, data) for x, graph in _permuted(data, use, repeats, seed)]
        rows.append({"predicate": use.predicate, "used_as": use.used_as, "score": sum(scores) / repeats})
        show(Step(STEP, (number + 1) / len(uses), STEP))
    rows.sort(key=lambda row: (row["score"], row["predicate"]))
    return {"contributions": {"part": part, "nodes": len(nodes), "score": score, "predicates": rows}}


def _uses(data: NodeData) -> list[_Use]:
    """Return the uses of all predicates: as edges, with the features that follow from these, and as literals."""
    num_given = data.provenance.get("relations", data.graph.num_relations)  # without inverses and self-loops
    links = [_Use(name, "links", [], relation) for relation, name in enumerate(data.relation_names[:num_given])]
    vocabulary = read_vocabulary(data.provenance)
    literals = []
    for group, name, place in vocabulary.columns() if vocabulary is not None and data.x is not None else ():
        if group in ("types", "degrees"):
            for use in links:
                if use.predicate == name or (group == "types" and is_type(use.predicate)):
                    use.places.append(place)
        else:
            literals.append(_Use(name or "text", group, [place], None))
    return links + literals


def _score(predictor: NodePredictor, x: Tensor | None, graph: RelationalGraph, nodes: Tensor, data: NodeData) -> float:
    logits = predictor.member_logits(x, graph)[:, nodes]
    if data.values is None:
        return accuracy(logits.mean(0), data.labels[nodes])
    bounds = None if data.bounds is None else data.bounds[nodes]
    return score_targets(predictor.probabilities(logits), data.values[nodes], data.targets, bounds)


def _permuted(data: NodeData, use: _Use, repeats: int, seed: int) -> Iterator[tuple[Tensor | None, RelationalGraph]]:
    """Yield features and graph with the columns, and the objects of the relation, exchanged among nodes.

    Labelled nodes exchange columns with each other, whether they have a value or not: that may tell the class too.
    Of the others only those that have a value do.
    """
    generator = torch.Generator().manual_seed(seed)
    is_labelled = data.labels != MISSING
    for _ in range(repeats):
        x, graph = data.x, data.graph
        if use.places and x is not None:
            x = x.clone()
            columns = torch.cat([torch.arange(place.start, place.stop) for place in use.places])
            has_value = (x[:, columns] != 0).any(1)
            for group in (is_labelled, ~is_labelled & has_value):
                nodes = group.nonzero().squeeze(1)
                order = nodes[torch.randperm(len(nodes), generator=generator)]
                x[nodes.unsqueeze(1), columns] = x[order.unsqueeze(1), columns]
        if use.relation is not None:
            graph = _exchange_objects(data, use.relation, generator)
        yield x, graph


def _exchange_objects(data: NodeData, relation: int, generator: torch.Generator) -> RelationalGraph:
    """Return the graph with the objects of a relation's triples permuted, in its inverse too."""
    edges, edge_type = data.graph.edge_index.clone(), data.graph.edge_type
    subject, target = edges[:, edge_type == relation]
    target = target[torch.randperm(len(target), generator=generator)]
    for other, base in enumerate(data.base_relation):
        if base == relation:
            ends = (subject, target) if other == relation else (target, subject)
            edges[:, edge_type == other] = torch.stack(ends)
    return RelationalGraph(
        edges, edge_type, num_nodes=data.graph.num_nodes, num_relations=data.graph.num_relations
    ).prepare()
