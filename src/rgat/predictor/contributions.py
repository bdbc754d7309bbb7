"""What each predicate contributes: the held-out score with its literals or its edges exchanged among nodes."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rgat.data import MISSING, NodeData
from rgat.data.rdf.features import is_type, read_vocabulary
from rgat.graph import RelationalGraph
from rgat.memory import kept_freed_memory, return_fragments
from rgat.predictor.predictor import NodePredictor
from rgat.progress import Show, Step
from rgat.training import accuracy
from rgat.training.metric import score_targets

REPEATS = 5  # permutations of each predicate, whose scores are averaged,
ENOUGH = 5_000  # or fewer, where so many held-out nodes are predicted in all
MOST_EDGES = 500_000_000  # of all forward passes together
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
    repeats = _repeats(data, len(uses), len(nodes))
    if not repeats:
        return {}
    score = _score(predictor, data.x, data.graph, nodes, data)
    rows = []
    with kept_freed_memory():  # for the next pass
        for number, use in enumerate(uses):
            generator, total = torch.Generator().manual_seed(seed), 0.0
            for _ in range(repeats):
                total += _score(predictor, *_permute(data, use, generator), nodes, data)
                return_fragments()
            rows.append({"predicate": use.predicate, "used_as": use.used_as, "score": total / repeats})
            show(Step(STEP, (number + 1) / len(uses), STEP))
    rows.sort(key=lambda row: (row["score"], row["predicate"]))
    return {"contributions": {"part": part, "nodes": len(nodes), "score": score, "predicates": rows}}


def num_passes(data: NodeData) -> int:
    """Return how many permuted graphs `contributions` makes and predicts, unless the graph is sampled."""
    num_uses = len(_uses(data))
    return num_uses * _repeats(data, num_uses, len(data.test) or len(data.valid))


def _repeats(data: NodeData, num_uses: int, num_nodes: int) -> int:
    """Return how often each use of a predicate is permuted; 0 where that would take too long."""
    wanted = min(REPEATS, math.ceil(ENOUGH / max(num_nodes, 1)))
    return min(wanted, MOST_EDGES // max(num_uses * data.graph.num_edges, 1))


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


def _permute(data: NodeData, use: _Use, generator: torch.Generator) -> tuple[Tensor | None, RelationalGraph]:
    """Return features and graph with the columns, and the objects of the relation, exchanged among nodes.

    Labelled nodes exchange columns with each other, whether they have a value or not: that may tell the class too.
    Of the others only those that have a value do.
    """
    x, graph, is_labelled = data.x, data.graph, data.labels != MISSING
    if use.places and x is not None:
        x = x.clone()
        columns = torch.cat([torch.arange(place.start, place.stop) for place in use.places])
        has_value = (x[:, columns] != 0).any(1)
        for group in (is_labelled, ~is_labelled & has_value):
            nodes = group.nonzero().squeeze(1)
            order = nodes[torch.randperm(len(nodes), generator=generator)]
            x[nodes.unsqueeze(1), columns] = x[order.unsqueeze(1), columns]
    if use.relation is not None:
        graph = exchange_objects(data, use.relation, generator)
    return x, graph


def exchange_objects(data: NodeData, relation: int, generator: torch.Generator) -> RelationalGraph:
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
