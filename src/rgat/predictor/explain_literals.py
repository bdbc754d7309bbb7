"""Explain predictions by literals: the change of a prediction when the literals of a node and predicate are missing."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rgat.data import NodeData
from rgat.data.rdf.features import read_vocabulary
from rgat.predictor.near_field import Columns, Field

LEAST = 0.05  # of the largest effect, for a literal of a near node to be listed
MOST_TRIED = 32  # pairs of a node and a predicate whose literals are removed, the largest gradients first


@dataclasses.dataclass(frozen=True)
class LiteralReason:
    """The literals of one predicate of a node in the receptive field of the explained one."""

    predicate: str
    value: str  # several are separated by commas; empty where the model folder does not have them
    node: str  # the node that has them
    used_as: str  # number, date, boolean, category or text
    effect: float  # change of the predicted class's probability when they are missing
    log_odds: float  # the same change in log-odds, which do not saturate


def literal_columns(data: NodeData) -> list[Columns]:
    """Return the kind, the predicate and the feature columns of each predicate with literals."""
    vocabulary = read_vocabulary(data.provenance)
    if vocabulary is None or data.x is None:
        return []
    return [entry for entry in vocabulary.columns() if entry[0] not in ("types", "degrees")]


def without_columns(x: Tensor, place: slice) -> Tensor:
    """Return features with some columns as if no node had a literal there."""
    x = x.clone()
    x[:, place] = 0.0
    return x


def explain_literals(field: Field, data: NodeData, node: int, top: int, predicted: int) -> list[LiteralReason]:
    """Return the literals with the largest effects on a node's predicted class: its own, and those of near nodes.

    Args:
        field: the receptive field of the node.
        data: the data whose ids the field has.
        node: the node to explain.
        top: how many to return.
        predicted: the class or other output to explain.
    """
    places = literal_columns(data)
    if not places or data.x is None:
        return []
    before, reasons = field.before, []
    tried = _largest(field, data.x, node, predicted, places)
    missing = field.without_columns([(near, place) for near, _, _, place in tried])
    for (near, kind, predicate, _), after in zip(tried, missing, strict=True):
        reasons.append(
            LiteralReason(
                predicate=predicate or "text",
                value=_values(data, near, predicate),
                node=data.node_names[near],
                used_as=kind,
                effect=float(after[predicted] - before[predicted]),
                log_odds=float(field.ensemble.change(after, before, predicted)),
            )
        )
    reasons.sort(key=lambda reason: -abs(reason.log_odds))
    least = LEAST * max((abs(reason.log_odds) for reason in reasons), default=0.0)
    return [each for each in reasons if each.node == data.node_names[node] or abs(each.log_odds) >= least][:top]


def _largest(
    field: Field, x: Tensor, node: int, predicted: int, places: Sequence[Columns]
) -> list[tuple[int, str, str, slice]]:
    """Return the node, kind, predicate and columns of the literals to try: all of the node, then by gradient."""
    change = field.gradients(predicted, places).abs()  # 0 where a node has no literal
    found = []
    for (kind, predicate, place), column in zip(places, change.unbind(1), strict=True):
        column[node] = torch.inf if bool((x[node, place] != 0).any()) else 0
        largest = column.argsort(descending=True, stable=True)[:MOST_TRIED]
        for near in largest[column[largest] > 0].tolist():
            found.append((float(column[near]), near, kind, predicate, place))
    found.sort(key=lambda entry: -entry[0])
    return [entry[1:] for entry in found[:MOST_TRIED]]


def _values(data: NodeData, node: int, predicate: str) -> str:
    """Return the literals of a node, if the data have them."""
    kept: dict[str, Any] = data.provenance.get("literal_values", {})
    triples = zip(kept.get("node", ()), kept.get("predicate", ()), kept.get("value", ()), strict=True)
    known = data.graph.node_ids
    wanted = node if known is None else int(known[node])  # of a receptive field
    return ", ".join(value for owner, name, value in triples if owner == wanted and name == predicate)
