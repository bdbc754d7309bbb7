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
from rgat.predictor.ensemble import Ensemble
from rgat.predictor.explain_literals import LiteralReason, explain_literals
from rgat.predictor.large_field import LargeField, numbers_per_edge
from rgat.predictor.near_field import Field, NearField, receptive_data
from rgat.sampling.blocks import BLOCK_NUMBERS

NO_CHOICE = 0.05  # attention that differs less than this from equal shares distinguishes no edges
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
    field, data, node = find_field(ensemble, data, node)
    before, shares = field.before, field.shares(max(2 * top, MIN_REMOVED))
    predicted = ensemble.output_of(before, data.classes, task)
    explained = ensemble.target_of(predicted) or Target("class", "multi-class")
    reasons, tried, choice = [], shares.edges, shares.choice
    removed, equal = field.without_edges(tried), field.at_equal_share(tried)
    for edge, after, equally in zip(tried, removed, equal, strict=True):
        reasons.append(
            Reason(
                relation=data.relation_names[edge.relation],
                source=data.node_names[edge.source],
                target=data.node_names[edge.target],
                attention=edge.attention,
                equal_share=edge.equal_share,
                effect=float(after[predicted] - before[predicted]),
                log_odds=float(ensemble.change(after, before, predicted)),
                choice=float(ensemble.change(equally, before, predicted)),
            )
        )
    has_choice = by != "strength" or choice >= NO_CHOICE
    by_support = lambda reason: _ranked(reason.support, reason.log_odds)
    reasons.sort(key=ORDERS[by] if has_choice else by_support, reverse=True)
    return NodeExplanation(
        node=data.node_names[node],
        predicted=data.classes[predicted],
        probability=float(before[predicted]),
        label=_known(data, node, explained, predicted),
        own=shares.own,
        reasons=reasons[:top],
        relations=named_shares(shares.relations, data.relation_names),
        agreement=agreement([r.attention for r in reasons], [abs(r.log_odds) for r in reasons]),
        num_edges=field.num_edges,
        choice=choice,
        literals=explain_literals(field, data, node, top, predicted),
        kind=explained.kind,
        unit=explained.unit,
    )


def find_field(ensemble: Ensemble, data: NodeData, node: int) -> tuple[Field, NodeData, int]:
    """Return the receptive field of a node, and the data and the id by which it is known there.

    A field that would not fit into a block of memory is read in blocks.
    """
    most = BLOCK_NUMBERS // numbers_per_edge(ensemble, data)
    if data.graph.num_edges > most:
        large = LargeField(ensemble, data, torch.tensor([node]))
        if large.num_edges > most:
            return large, data, node
    if data.is_stored:
        data, node = receptive_data(data, node, ensemble.num_layers), 0
    return NearField(ensemble, data, node), data, node


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


def named_shares(shares: Tensor, names: Sequence[str]) -> dict[str, float]:
    """Return the relations' shares ``[R]`` for each name that has any, largest first; names may repeat."""
    totals: dict[str, float] = {}
    for name, value in zip(names, shares.tolist(), strict=True):
        if value > 0:
            totals[name] = totals.get(name, 0.0) + value
    return dict(sorted(totals.items(), key=lambda item: (-item[1], item[0])))


def agreement(attention: Sequence[float], effect: Sequence[float]) -> float | None:
    """Return Spearman's rank correlation, ties sharing their mean rank; None where it is undefined."""
    if len(attention) < 3:
        return None
    values = torch.tensor([attention, effect], dtype=torch.float64)
    ranks = (values.unsqueeze(2) - values.unsqueeze(1)).sign().sum(2)  # mean ranks, scaled and shifted
    correlation = float(torch.corrcoef(ranks)[0, 1])
    return None if math.isnan(correlation) else correlation
