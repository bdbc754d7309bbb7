"""Rank the predicates of a graph: attention, and the change of predictions without a relation or its literals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from rgat.data import MISSING, NodeData, Target
from rgat.predictor.attention_flow import flow, layer_attention
from rgat.predictor.ensemble import Ensemble, log_odds
from rgat.predictor.explain_literals import literal_columns, without_columns
from rgat.predictor.explain_node import RelationImportance, named_shares
from rgat.predictor.large_field import LargeField, numbers_per_edge
from rgat.predictor.near_field import sum_by_relation
from rgat.sampling.blocks import BLOCK_NUMBERS

CHANGED = 0.1  # of the training deviation, from which a number counts as changed


class _Nodes(Protocol):
    """The labelled nodes of a graph."""

    def relations(self) -> Tensor:
        """Return the share of each relation in the attention that reaches the nodes, ``[R]``."""

    def probabilities(self, removed: Sequence[int] = (), columns: slice | None = None) -> Tensor:
        """Return the predictions without some relations, or with some features at zero, ``[n, outputs]``."""


class _InMemory:
    def __init__(self, ensemble: Ensemble, data: NodeData, nodes: Tensor) -> None:
        self.ensemble, self.data, self.nodes = ensemble, data, nodes

    def relations(self) -> Tensor:
        graph = self.data.graph
        attention = flow(layer_attention(self.ensemble, self.data.x, graph), graph, self.nodes)
        return sum_by_relation(attention.edges, graph)

    def probabilities(self, removed: Sequence[int] = (), columns: slice | None = None) -> Tensor:
        x, graph = self.data.x, self.data.graph
        if removed:
            graph = graph.with_edges(~torch.isin(graph.edge_type, torch.tensor(removed)))
        if columns is not None and x is not None:
            x = without_columns(x, columns)
        return self.ensemble.probabilities(self.ensemble.member_logits(x, graph)[:, self.nodes])


class _InBlocks:
    def __init__(self, ensemble: Ensemble, data: NodeData, nodes: Tensor) -> None:
        self.field = LargeField(ensemble, data, nodes)

    def relations(self) -> Tensor:
        return self.field.shares(0).relations

    def probabilities(self, removed: Sequence[int] = (), columns: slice | None = None) -> Tensor:
        return self.field.ensemble.probabilities(self.field.logits_without(removed, columns))


def _labelled(ensemble: Ensemble, data: NodeData, nodes: Tensor) -> _Nodes:
    fits = data.graph.num_edges * numbers_per_edge(ensemble, data) <= BLOCK_NUMBERS
    return _InMemory(ensemble, data, nodes) if fits and not data.is_stored else _InBlocks(ensemble, data, nodes)


def explain_relations(ensemble: Ensemble, data: NodeData, task: str | None = None) -> RelationImportance:
    """Return the attention and effect of each relation, and of each predicate with literals, on the labelled nodes.

    With targets, these are the effects on ``task``, by default the first: of a number the mean absolute change.
    """
    nodes = (data.labels != MISSING).nonzero().squeeze(1)
    field = _labelled(ensemble, data, nodes)
    base = [data.relation_names[relation] for relation in data.base_relation]
    shares = named_shares(field.relations(), base)
    before = field.probabilities()
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
        compare(name, field.probabilities([relation for relation, other in enumerate(base) if other == name]))
    others = [(name or "text", place) for _, name, place in literal_columns(data) if name not in shares]
    for name, place in others:
        compare(name, field.probabilities(columns=place))
    literals = [name for name, _ in others]
    literals.sort(key=lambda name: (-abs(found[name][1]), name))
    shares = dict.fromkeys(literals, 0.0) | shares
    effect, odds, changed = ({name: found[name][number] for name in shares} for number in range(3))
    named = {"target": target.name, "kind": target.kind, "unit": target.unit}
    return RelationImportance(shares, effect, odds, changed, len(nodes), **named)  # type: ignore[arg-type]
