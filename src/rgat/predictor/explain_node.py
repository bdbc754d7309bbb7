"""Explain a node's prediction by attention and by effects: the change of the prediction without an edge.

Attention is followed through all layers. They pass a node's features along walks of one edge per layer, each weighted
by the product of its attention. A walk is credited to its first edge. A self-loop is no step: a walk that starts with
self-loops is credited to its first other edge or, if it has none, to the node's own input. Heads and members are
averaged.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any

import torch
from torch import Tensor

from rgat.checks import check_word
from rgat.data import MISSING, NodeData, Target
from rgat.data.files import write_atomically
from rgat.data.targets import places
from rgat.graph import RelationalGraph
from rgat.predictor.attention_flow import flow, layer_attention
from rgat.predictor.ensemble import Ensemble, log_odds
from rgat.predictor.explain_literals import (
    LiteralReason,
    explain_literals,
    literal_columns,
    without_columns,
)
from rgat.predictor.variants import Variants

NO_CHOICE = 0.05  # attention that differs less than this from equal shares distinguishes no edges
CHANGED = 0.1  # of the training deviation, from which a number counts as changed
MIN_REMOVED = 32  # edges to remove one by one, even if fewer reasons are asked for


@dataclasses.dataclass(frozen=True)
class Reason:
    """An edge in the receptive field of a node."""

    relation: str  # "inverse of" says that it was given in the other direction
    source: str  # the node whose features the edge carries
    target: str  # the node that receives them: the explained node or a neighbour of it
    attention: float  # share of the attention that reaches the explained node along walks that start with this edge
    equal_share: float  # the same share under constant attention
    effect: float  # change of the predicted class's probability, or number, when the edge and its inverse are removed
    log_odds: float  # the same change in log-odds, which do not saturate; of a number in training deviations
    choice: float  # change in log-odds, or deviations, when the edge's attention is set to its equal share

    @property
    def support(self) -> float:
        """Support for the prediction by the edge, weighted by its attention."""
        return -self.log_odds * self.attention

    @property
    def strength(self) -> float:
        """Support for the prediction by the edge or by the model's choice of its attention, whichever is larger.

        Attention alone would rank edges without any effect first. Effects alone would miss the edges that the model
        ignores by choice.
        """
        return max(self.support, -self.choice)


def _ranked(value: float, *sizes: float) -> tuple[int, float]:
    """Return a key by which what supports a prediction comes first, then what counts against it, then what is nothing.

    Sizes that all print as 0.00 are nothing.
    """
    is_nothing = all(abs(size) < 0.005 for size in sizes)
    return (0 if is_nothing else 1 if value < 0 else 2), abs(value)


ORDERS: dict[str, Callable[[Reason], tuple[int, float]]] = {  # the largest first
    "strength": lambda reason: _ranked(reason.strength, reason.log_odds, reason.choice),
    "attention": lambda reason: (0, reason.attention),
    "effect": lambda reason: (0, abs(reason.log_odds)),
}


class Explanation:
    """A dataclass that can be written as JSON."""

    def as_json(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return dataclasses.asdict(self)  # type: ignore[call-overload,no-any-return]

    def save(self, path: str | PathLike[str]) -> None:
        """Write the explanation as JSON."""
        write_atomically(path, json.dumps(self.as_json(), indent=1, ensure_ascii=False).encode())


@dataclasses.dataclass(frozen=True)
class NodeExplanation(Explanation):
    """The reasons for a node's predicted class.

    ``agreement`` is the rank correlation between attention and effect over the reasons, None for fewer than three: near
    1, attention is a good guide, near 0 or below, it is not. ``choice`` is the distance between attention and equal
    shares, from 0 to 1: near 0, the model does not choose among edges.
    """

    node: str
    predicted: str  # the most probable class, or the explained target
    probability: float  # or the predicted number
    label: str | None  # the known class or value
    own: float  # share of attention on the node's own input
    reasons: list[Reason]  # by strength: for the prediction, then against it, then without effect
    relations: dict[str, float]  # share of attention of each relation, largest first
    agreement: float | None
    num_edges: int  # in the receptive field
    choice: float
    titles: dict[str, str] = dataclasses.field(default_factory=dict)  # `rdfs:label` of what is named here
    literals: list[LiteralReason] = dataclasses.field(default_factory=list)  # the largest effect first
    kind: str = "multi-class"  # of the target
    unit: str = ""  # of a number

    def names(self) -> list[str]:
        """Return all names that the explanation mentions."""
        edges = (name for reason in self.reasons for name in (reason.relation, reason.source, reason.target))
        literals = (name for reason in self.literals for name in (reason.predicate, reason.node))
        return [self.node, self.predicted, *([] if self.label is None else [self.label]), *edges, *literals]


@dataclasses.dataclass(frozen=True)
class RelationImportance(Explanation):
    """The importance of predicates for the labelled nodes of a graph: literals by effect, relations by attention."""

    attention: dict[str, float]  # share of each relation, both directions together; 0 of literals
    effect: dict[str, float]  # mean change of the predicted class's probability without the relation
    log_odds: dict[str, float]  # the same change in log-odds, which do not saturate
    changed: dict[str, float]  # share of the nodes whose predicted class changes without the relation
    nodes: int  # number of labelled nodes
    titles: dict[str, str] = dataclasses.field(default_factory=dict)  # `rdfs:label` of relations
    target: str = ""  # whose effects these are, if there are targets
    kind: str = "multi-class"
    unit: str = ""


def explain_node(
    ensemble: Ensemble, data: NodeData, node: int, top: int = 20, by: str = "strength", task: str | None = None
) -> NodeExplanation:
    """Return the ``top`` reasons for a node's predicted class, ordered by one of ``ORDERS``.

    With targets, ``task`` is the name of one or of an output; by default the first is explained.

    Only the edges with the most attention, or with the attention farthest from an equal share, are removed one by one.
    """
    check_word("by", by, tuple(ORDERS))
    fields = data.graph.receptive_fields(torch.tensor([node]), ensemble.num_layers)
    graph = fields[0].prepare()  # once, for all forward passes
    attention, equal = (
        flow(layer_attention(ensemble, data.x, graph, constant), graph, torch.tensor([node]))
        for constant in (False, True)
    )
    before = ensemble.probabilities(ensemble.member_logits(data.x, graph)[:, node])
    predicted = ensemble.output_of(before, data.classes, task)
    explained = ensemble.target_of(predicted) or Target("class", "multi-class")
    reasons = []
    score = torch.maximum(attention.edges, (attention.edges - equal.edges).abs())
    order = score.argsort(descending=True, stable=True)
    tried = order[score[order] > 0][: max(2 * top, MIN_REMOVED)].tolist()
    variants = Variants(ensemble, data.x, graph, node)
    removed = variants.without_edges([_with_inverse(graph, edge, data) for edge in tried])
    for edge, after, equally in zip(tried, removed, variants.at_equal_share(tried), strict=True):
        source, target = graph.edge_index[:, edge].tolist()
        reasons.append(
            Reason(
                relation=data.relation_names[int(graph.edge_type[edge])],
                source=data.node_names[source],
                target=data.node_names[target],
                attention=float(attention.edges[edge]),
                equal_share=float(equal.edges[edge]),
                effect=float(after[predicted] - before[predicted]),
                log_odds=float(ensemble.change(after, before, predicted)),
                choice=float(ensemble.change(equally, before, predicted)),
            )
        )
    choice = float((attention.edges - equal.edges).abs().sum() / 2)
    has_choice = by != "strength" or choice >= NO_CHOICE
    by_support = lambda reason: _ranked(reason.support, reason.log_odds)
    reasons.sort(key=ORDERS[by] if has_choice else by_support, reverse=True)
    return NodeExplanation(
        node=data.node_names[node],
        predicted=data.classes[predicted],
        probability=float(before[predicted]),
        label=_known(data, node, explained, predicted),
        own=float(attention.own.sum()),
        reasons=reasons[:top],
        relations=_sum_by_relation(attention.edges, graph.edge_type, data.relation_names),
        agreement=agreement([r.attention for r in reasons], [abs(r.log_odds) for r in reasons]),
        num_edges=graph.num_edges,
        choice=choice,
        literals=explain_literals(variants, data, graph, node, top, predicted),
        kind=explained.kind,
        unit=explained.unit,
    )


def _known(data: NodeData, node: int, target: Target, output: int) -> str | None:
    """Return the known class of a node, or its known value of the explained output; None if it is unknown."""
    if data.values is None:
        return None if data.labels[node] == MISSING else data.classes[int(data.labels[node])]
    value = float(data.values[node, output])
    if math.isnan(value):
        return None
    if target.kind == "regression":
        return f"{value:.4g}"
    if target.kind == "multi-class":
        place = next(place for each, place in places(data.targets) if each.name == target.name)
        return target.classes[int(data.values[node, place].argmax())]
    return "yes" if value else "no"


def explain_relations(ensemble: Ensemble, data: NodeData, task: str | None = None) -> RelationImportance:
    """Return the attention and effect of each relation, and of each predicate with literals, on the labelled nodes.

    With targets, these are the effects on ``task``, by default the first: of a number the mean absolute change.
    """
    graph = data.graph
    nodes = (data.labels != MISSING).nonzero().squeeze(1)
    attention = flow(layer_attention(ensemble, data.x, graph), graph, nodes)
    base = [data.relation_names[relation] for relation in data.base_relation]
    shares = _sum_by_relation(attention.edges, graph.edge_type, base)
    before = ensemble.probabilities(ensemble.member_logits(data.x, graph)[:, nodes])
    chosen = [ensemble.output_of(row, data.classes, task) for row in before] if ensemble.targets else before.argmax(1)
    predicted = torch.as_tensor(chosen).view(-1, 1)
    target = (ensemble.target_of(int(predicted[0])) if len(predicted) else None) or Target("", "multi-class")
    found: dict[str, tuple[float, float, float]] = {}

    def compare(name: str, after: Tensor) -> None:
        if target.kind == "regression":
            change = (after.gather(1, predicted) - before.gather(1, predicted)).abs()
            share = (change > CHANGED * target.scale).double().mean()
            found[name] = float(change.mean()), float(change.mean() / target.scale), float(share)
            return
        effect = float((after.gather(1, predicted) - before.gather(1, predicted)).mean())
        odds = float((log_odds(after.gather(1, predicted)) - log_odds(before.gather(1, predicted))).mean())
        if target.kind in ("binary", "multi-label"):
            is_other = (after.gather(1, predicted) >= 0.5) != (before.gather(1, predicted) >= 0.5)
        else:
            place = ensemble.competitors(int(predicted[0]), before.shape[1])
            is_other = after[:, place].argmax(1) + place.start != predicted.squeeze(1)
        found[name] = effect, odds, float(is_other.double().mean())

    for name in shares:
        removed = torch.tensor([relation for relation, other in enumerate(base) if other == name])
        kept = graph.with_edges(~torch.isin(graph.edge_type, removed))
        compare(name, ensemble.probabilities(ensemble.member_logits(data.x, kept)[:, nodes]))
    literals = [name or "text" for _, name, _ in literal_columns(data) if name not in shares]
    for _, name, place in literal_columns(data):
        if data.x is not None and name not in shares:
            x = without_columns(data.x, place)
            compare(name or "text", ensemble.probabilities(ensemble.member_logits(x, graph)[:, nodes]))
    literals.sort(key=lambda name: (-abs(found[name][1]), name))
    shares = dict.fromkeys(literals, 0.0) | shares
    effect, odds, changed = ({name: found[name][number] for name in shares} for number in range(3))
    named = {"target": target.name, "kind": target.kind, "unit": target.unit}
    return RelationImportance(shares, effect, odds, changed, len(nodes), **named)  # type: ignore[arg-type]


def _sum_by_relation(shares: Tensor, edge_type: Tensor, names: Sequence[str]) -> dict[str, float]:
    """Return the sum of the edges' shares for each name that has any, largest first; names may repeat."""
    totals: dict[str, float] = {}
    sums = torch.zeros(len(names), dtype=torch.float64).index_add_(0, edge_type, shares)
    for name, value in zip(names, sums.tolist(), strict=True):
        if value > 0:
            totals[name] = totals.get(name, 0.0) + value
    return dict(sorted(totals.items(), key=lambda item: (-item[1], item[0])))


def _with_inverse(graph: RelationalGraph, edge: int, data: NodeData) -> Tensor:
    """Return the ids of an edge and its inverse."""
    (source, target), relation = graph.edge_index[:, edge].tolist(), int(graph.edge_type[edge])
    base = torch.tensor(data.base_relation)
    found = (base[graph.edge_type] == base[relation]) & (graph.edge_type != relation)
    found &= (graph.edge_index[0] == target) & (graph.edge_index[1] == source)
    found[edge] = True
    return found.nonzero().squeeze(1)


def agreement(attention: Sequence[float], effect: Sequence[float]) -> float | None:
    """Return Spearman's rank correlation, ties sharing their mean rank; None where it is undefined."""
    if len(attention) < 3:
        return None
    values = torch.tensor([attention, effect], dtype=torch.float64)
    ranks = (values.unsqueeze(2) - values.unsqueeze(1)).sign().sum(2)  # mean ranks, scaled and shifted
    correlation = float(torch.corrcoef(ranks)[0, 1])
    return None if math.isnan(correlation) else correlation
