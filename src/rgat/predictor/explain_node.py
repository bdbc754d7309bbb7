"""Why a node is judged as it is: attention, and beside it what happens without an edge, for attention can mislead."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any

import torch
from torch import Tensor

from rgat.checks import check_word
from rgat.data import MISSING, NodeData
from rgat.data.files import write_atomically
from rgat.graph import RelationalGraph
from rgat.predictor.attention import flow, layer_attention, logits_at_equal_share, receptive_field
from rgat.predictor.predictor import NodeModel

NO_CHOICE = 0.05  # of the attention; less than that elsewhere than with equal shares is no choice
LEAST_TRIED = 32  # edges: few enough to take each away in turn


@dataclasses.dataclass(frozen=True)
class Reason:
    """One edge in the neighbourhood of a node.

    Attributes:
        relation: its name; "inverse of" says that it was given in the other direction.
        source: the node that speaks.
        target: the node that hears it: the explained one, or a neighbour of it.
        attention: share of what reaches the explained node that starts with this edge.
        equal_share: the same if attention were constant: what the edge would have if the model did not choose.
        effect: change of the probability of the predicted class when the edge (and its inverse) is taken away.
        log_odds: the same change, in log-odds, which do not saturate.
        choice: change in log-odds if the model gave the edge its equal share of attention instead.
    """

    relation: str
    source: str
    target: str
    attention: float
    equal_share: float
    effect: float
    log_odds: float
    choice: float

    @property
    def strength(self) -> float:
        """What speaks for the prediction: the edge by its attention, or the choice of its attention, if that is more.

        Attention alone would name edges without any effect, and effects alone not those that the model shuts out, which
        is a choice as well.
        """
        return max(-self.log_odds * self.attention, -self.choice)


ORDERS: dict[str, Callable[[Reason], float]] = {
    "strength": lambda reason: reason.strength,
    "attention": lambda reason: reason.attention,
    "effect": lambda reason: abs(reason.log_odds),
}


class _Explanation:
    """Something with a table, that can be saved."""

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return dataclasses.asdict(self)  # type: ignore[call-overload,no-any-return]

    def save(self, path: str | PathLike[str]) -> None:
        """Write it as JSON."""
        write_atomically(path, json.dumps(self.as_json(), indent=1, ensure_ascii=False).encode())


@dataclasses.dataclass(frozen=True)
class NodeExplanation(_Explanation):
    """Why a node is judged as it is.

    Attributes:
        node: its name.
        predicted: the most probable class.
        probability: of this class.
        label: the known class, if there is one.
        own: share of attention on the node's own input.
        reasons: in the order asked for; by strength, those that speak against the prediction come last.
        relations: share of attention of each relation, most first.
        agreement: rank correlation between attention and effect over the reasons: near 1, attention is to be believed;
            near 0 or below, look at the effects. None for fewer than three.
        num_edges: number of edges that could have had an influence.
        choice: how much of the attention is elsewhere than with equal shares, from 0 to 1; near 0 the model chooses
            nothing.
    """

    node: str
    predicted: str
    probability: float
    label: str | None
    own: float
    reasons: list[Reason]
    relations: dict[str, float]
    agreement: float | None
    num_edges: int
    choice: float


@dataclasses.dataclass(frozen=True)
class RelationImportance(_Explanation):
    """Which relations matter for the labelled nodes of a graph, most attention first.

    Attributes:
        attention: share of each relation, both directions together.
        effect: mean change of the probability of the predicted class without the relation.
        changed: share of the nodes that would be given another class without it.
        nodes: number of nodes this was measured on.
    """

    attention: dict[str, float]
    effect: dict[str, float]
    changed: dict[str, float]
    nodes: int


def explain_node(fitted: NodeModel, node: int, top: int = 20, by: str = "strength") -> NodeExplanation:
    """The effects of taking away those edges that attention chooses most, and the first reasons among them in an order.

    Args:
        fitted: the model.
        node: its id.
        top: number of reasons.
        by: one of the ``ORDERS``.
    """
    check_word("by", by, tuple(ORDERS))
    data = fitted.data
    edges = receptive_field(data.graph, node)
    graph = data.graph.with_edges(edges).prepare()  # once, for all that is tried
    found, equal = (
        flow(layer_attention(fitted.members, data.x, graph, constant), graph, torch.tensor([node]))
        for constant in (False, True)
    )
    before = _probabilities(fitted, graph, torch.tensor([node]))[0]
    predicted = int(before.argmax())
    reasons = []
    for place in _most_chosen(found.edges, equal.edges)[: max(2 * top, LEAST_TRIED)]:
        after = _probabilities(fitted, _without(graph, place, data), torch.tensor([node]))[0]
        equally = _at_equal_share(fitted, graph, place, node)
        (source, target), relation = graph.edge_index[:, place].tolist(), int(graph.edge_type[place])
        reasons.append(
            Reason(
                relation=data.relation_names[relation],
                source=data.node_names[source],
                target=data.node_names[target],
                attention=float(found.edges[place]),
                equal_share=float(equal.edges[place]),
                effect=float(after[predicted] - before[predicted]),
                log_odds=float(_log_odds(after[predicted]) - _log_odds(before[predicted])),
                choice=float(_log_odds(equally[predicted]) - _log_odds(before[predicted])),
            )
        )
    choice = float((found.edges - equal.edges).abs().sum() / 2)
    chooses = by != "strength" or choice >= NO_CHOICE
    reasons.sort(key=ORDERS[by] if chooses else lambda reason: -reason.log_odds * reason.attention, reverse=True)
    label = int(data.labels[node])
    return NodeExplanation(
        node=data.node_names[node],
        predicted=data.classes[predicted],
        probability=float(before[predicted]),
        label=None if label == MISSING else data.classes[label],
        own=found.own,
        reasons=reasons[:top],
        relations=_by_relation(found.edges, graph.edge_type, data.relation_names),
        agreement=agreement([r.attention for r in reasons], [abs(r.log_odds) for r in reasons]),
        num_edges=len(edges),
        choice=choice,
    )


def _most_chosen(attention: Tensor, equal_share: Tensor) -> list[int]:
    """Edges that anything flows along, by attention or its distance from an equal share, whichever is more."""
    chosen = torch.maximum(attention, (attention - equal_share).abs())
    order: list[int] = chosen.argsort(descending=True, stable=True).tolist()
    return [edge for edge in order if chosen[edge] > 0]


def explain_relations(fitted: NodeModel) -> RelationImportance:
    """Attention and effect of each relation on the labelled nodes."""
    data, graph = fitted.data, fitted.data.graph
    nodes = (data.labels != MISSING).nonzero().squeeze(1)
    found = flow(layer_attention(fitted.members, data.x, graph), graph, nodes)
    base = [data.relation_names[relation] for relation in data.base_relation]
    shares = _by_relation(found.edges, graph.edge_type, base)
    before = _probabilities(fitted, graph, nodes)
    predicted = before.argmax(1, keepdim=True)
    effect, changed = {}, {}
    for name in shares:
        numbers = torch.tensor([place for place, other in enumerate(base) if other == name])
        kept = (~torch.isin(graph.edge_type, numbers)).nonzero().squeeze(1)
        after = _probabilities(fitted, graph.with_edges(kept), nodes)
        effect[name] = float((after.gather(1, predicted) - before.gather(1, predicted)).mean())
        changed[name] = float((after.argmax(1) != predicted.squeeze(1)).double().mean())
    return RelationImportance(shares, effect, changed, len(nodes))


def _by_relation(shares: Tensor, edge_type: Tensor, names: Sequence[str]) -> dict[str, float]:
    totals: dict[str, float] = {}
    sums = torch.zeros(len(names), dtype=torch.float64).index_add_(0, edge_type, shares)
    for name, value in zip(names, sums.tolist(), strict=True):
        if value > 0:
            totals[name] = totals.get(name, 0.0) + value
    return dict(sorted(totals.items(), key=lambda item: (-item[1], item[0])))


def _probabilities(fitted: NodeModel, graph: RelationalGraph, nodes: Tensor) -> Tensor:
    logits = fitted.member_logits(fitted.data.x, graph)[:, nodes]
    return fitted.calibration.probabilities(logits.double().mean(0))


def _at_equal_share(fitted: NodeModel, graph: RelationalGraph, edge: int, node: int) -> Tensor:
    x, device = fitted.data.x, next(fitted.members[0].parameters()).device
    x, graph = None if x is None else x.to(device), graph.to(device)
    logits = [logits_at_equal_share(member, x, graph, edge)[node] for member in fitted.members]
    return fitted.calibration.probabilities(torch.stack(logits).double().mean(0).cpu().unsqueeze(0))[0]


def _without(graph: RelationalGraph, edge: int, data: NodeData) -> RelationalGraph:
    """The graph without an edge and its inverse."""
    (source, target), relation = graph.edge_index[:, edge].tolist(), int(graph.edge_type[edge])
    gone = torch.zeros(graph.num_edges, dtype=torch.bool)
    gone[edge] = True
    base = torch.tensor(data.base_relation)
    is_inverse = (base[graph.edge_type] == base[relation]) & (graph.edge_type != relation)
    gone |= is_inverse & (graph.edge_index[0] == target) & (graph.edge_index[1] == source)
    return graph.with_edges((~gone).nonzero().squeeze(1))


def _log_odds(probability: Tensor) -> Tensor:
    return torch.logit(probability.clamp(1e-12, 1 - 1e-12))


def agreement(attention: Sequence[float], effect: Sequence[float]) -> float | None:
    """Spearman's rank correlation; ties share their mean rank."""
    if len(attention) < 3:
        return None
    ranks = torch.stack([_ranks(torch.tensor(values, dtype=torch.float64)) for values in (attention, effect)])
    ranks = ranks - ranks.mean(1, keepdim=True)
    scale = float(ranks.norm(dim=1).prod())
    return float(ranks.prod(0).sum()) / scale if scale > 0 else None


def _ranks(values: Tensor) -> Tensor:
    below, same = values.unsqueeze(1) > values, values.unsqueeze(1) == values
    return below.sum(1).double() + (same.sum(1).double() - 1) / 2
