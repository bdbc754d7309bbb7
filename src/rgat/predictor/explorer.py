"""Write a self-contained page to browse a graph and the reasons for a prediction.

Colours are relations, widths attention, fills classes. Effects are listed for the node at which the page opens.
"""

from __future__ import annotations

import base64
import itertools
import json
import math
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rgat.data import MISSING
from rgat.data.dataset import INVERSE
from rgat.data.files import write_atomically
from rgat.data.targets import places
from rgat.predictor.attention_flow import layer_attention
from rgat.predictor.explain_node import ORDERS, NodeExplanation, explain_node
from rgat.predictor.predictor import NodePredictor
from rgat.predictor.target_text import target_performance
from rgat.predictor.text import is_saturated, shown
from rgat.predictor.words import titled

RANGES = 6  # of numbers, each with a colour
MAX_EDGES = 400_000  # about ten megabytes; of larger graphs, the edges nearest to the start node


def write_explorer(
    predictor: NodePredictor,
    path: str | PathLike[str],
    node: str | None = None,
    explanation: NodeExplanation | None = None,
    task: str | None = None,
) -> None:
    """Write the page; it opens at ``node``, by default the first labelled one, with the effects of its edges.

    ``explanation`` is that of the node, if it is known already; ``task`` the target to show, by default the first.
    """
    path = Path(path)
    if path.suffix != ".html":
        raise ValueError(f"{path}: a page must go to a file that ends in .html")
    predictor.refuse_stored("write a page", "leave --html out")
    labelled = (predictor.data.labels != MISSING).nonzero().squeeze(1).tolist()
    start = predictor.find(node) if node is not None else next(iter(labelled), 0)
    explanation = explanation or explain_node(predictor, predictor.data, start, task=task)
    content = _content(predictor, start, explanation) | effects(predictor, explanation) | _quality(predictor)
    text = json.dumps(content, ensure_ascii=False).replace("<", "\\u003c")
    template = Path(__file__).with_name("explorer.html").read_text(encoding="utf-8")
    write_atomically(path, template.replace('"<!--content-->"', text, 1).encode())


def _content(predictor: NodePredictor, start: int, explanation: NodeExplanation) -> dict[str, Any]:
    data, graph, titles = predictor.data, predictor.data.graph, predictor.titles
    members = layer_attention(predictor, data.x, graph)
    attention = torch.stack([torch.stack(layers).mean(0) for layers in members]).mean(0)
    edges = _nearest(graph.edge_index, start, MAX_EDGES)
    source, target = graph.edge_index[:, edges]
    nodes = torch.unique(torch.cat([source, target, torch.tensor([start])]))
    page_id = torch.zeros(graph.num_nodes, dtype=torch.long)
    page_id[nodes] = torch.arange(len(nodes))
    of_target: dict[str, Any] = {}
    if predictor.targets:
        of_target, predicted, probability, label = _of_target(predictor, nodes, explanation)
    else:
        probability, predicted = predictor.probabilities(predictor.logits)[nodes].max(1)
        label = data.labels[nodes]
    return {
        "name": data.name,
        "start": int(page_id[start]),
        "left_out": int((graph.edge_index[0] != graph.edge_index[1]).sum()) - len(edges),
        "classes": [titled(name, titles) for name in data.classes],
        "relations": [titled(name, titles) for name in data.relation_names],
        "names": [data.node_names[i] for i in nodes.tolist()],
        "short": [titled(data.node_names[i], titles) for i in nodes.tolist()],
        "source": _packed(page_id[source]),
        "target": _packed(page_id[target]),
        "relation": _packed(graph.edge_type[edges]),
        "attention": _packed((1e6 * attention[edges]).round()),
        "predicted": _packed(predicted),
        "probability": _packed((1e4 * probability).round()),
        "label": _packed(label),
    } | of_target


def _of_target(
    predictor: NodePredictor, nodes: Tensor, explanation: NodeExplanation
) -> tuple[dict[str, Any], Tensor, Tensor, Tensor]:
    """Return what replaces the classes of the page for a target: names and texts, then what is filled and rimmed.

    Numbers are filled by ranges with equally many nodes.
    """
    data = predictor.data
    assert data.values is not None
    predictions, known = predictor.probabilities(predictor.logits)[nodes], data.values[nodes]
    output = list(data.classes).index(explanation.predicted)
    target = predictor.target_of(output)
    assert target is not None
    place = next(place for each, place in places(predictor.targets) if each == target)
    if target.kind == "regression":
        values, unit = predictions[:, output], f" {target.unit}" if target.unit else ""
        shares = torch.linspace(0, 1, RANGES + 1, dtype=values.dtype)[1:-1]
        cuts = torch.unique(torch.quantile(values[:MAX_EDGES], shares))
        bounds = [f"{cut:.4g}" for cut in cuts.tolist()]
        names = [f"{low} to {high}" for low, high in itertools.pairwise(bounds)]
        names = [f"below {bounds[0]}{unit}", *(f"{name}{unit}" for name in names), f"{bounds[-1]}{unit} or more"]
        texts = [f"{target.name} {value:.4g}{unit}" for value in values.tolist()]
        knowns = ["" if math.isnan(value) else f"{value:.4g}{unit}" for value in known[:, output].tolist()]
        predicted, probability = torch.bucketize(values.contiguous(), cuts, right=True), torch.ones(len(values))
    else:
        names = list(target.classes) or [target.name]
        probability, predicted = predictions[:, place].max(1)
        pairs = zip(predicted.tolist(), probability.tolist(), strict=True)
        texts = [f"{names[number]}, probability {share:.1%}" for number, share in pairs]
        rows = known[:, place].tolist()
        knowns = [", ".join(n for n, value in zip(names, row, strict=True) if value == 1) for row in rows]
    label = torch.where(known[:, place].isnan().any(1), MISSING, 0)
    found = {
        "explained": explanation.predicted,
        "is_number": target.kind == "regression",
        "texts": texts,
        "knowns": knowns,
    }
    return found | {"classes": [titled(name, predictor.titles) for name in names]}, predicted, probability, label


def effects(predictor: NodePredictor, explanation: NodeExplanation) -> dict[str, Any]:
    """Return the triples that the prediction of the start node rests on, literals among them, by their effects.

    A triple and its inverse are removed together, so that they are one row here, with the attention of both.
    """
    rows: dict[tuple[str, str, str], dict[str, Any]] = {}
    for reason in sorted(explanation.reasons, key=ORDERS["effect"], reverse=True):
        ends = (reason.source, reason.target)
        if reason.relation.startswith(INVERSE):
            ends = (reason.target, reason.source)
        triple = (ends[0], reason.relation.removeprefix(INVERSE), ends[1])
        other = reason.target if reason.source == explanation.node else reason.source
        row = {"triple": [titled(name, predictor.titles) for name in triple], "other": other, "attention": 0.0}
        row |= {"points": 100 * reason.effect, "log_odds": reason.log_odds}
        rows.setdefault(triple, row)["attention"] += reason.attention
    literals = [
        {
            "triple": [*(titled(name, predictor.titles) for name in (reason.node, reason.predicate)), shown(reason)],
            "other": reason.node,
            "attention": None,
            "points": 100 * reason.effect,
            "log_odds": reason.log_odds,
        }
        for reason in explanation.literals
    ]
    reasons = sorted([*rows.values(), *literals], key=lambda row: -abs(row["log_odds"]))
    is_number = explanation.kind == "regression"
    if is_number:
        reasons = [row | {"points": row["points"] / 100} for row in reasons]
    return {"reasons": reasons, "saturated": is_saturated(explanation)}


def _quality(predictor: NodePredictor) -> dict[str, Any]:
    """Return the scores of the test part and what predicates contribute, as far as the version that wrote it did."""
    report = predictor.report
    names = ("right", "tested", "interval", "macro_f1", "balanced_accuracy", "confusion")
    recall = report.get("classes", {}).get("recall", [])
    found = report.get("contributions", {"predicates": []})
    predicates = [row | {"predicate": titled(row["predicate"], predictor.titles)} for row in found["predicates"]]
    quality = {name: report[name] for name in names if name in report} | {"recall": recall}
    if "targets" in report:
        quality = {"lines": target_performance(predictor)} if "tested" in report else {}
    return {"quality": quality, "contributions": found | {"predicates": predicates}, "metric": report["metric"]}


def _nearest(edge_index: Tensor, start: int, limit: int) -> Tensor:
    """Return the ids of all edges but self-loops or, if they are more than ``limit``, of those nearest to a node."""
    source, target = edge_index.unbind()
    is_step: Tensor = source != target
    if int(is_step.sum()) <= limit:
        return torch.nonzero(is_step).squeeze(1)
    reached = torch.zeros(int(edge_index.max()) + 1, dtype=torch.bool)
    reached[start] = True
    while True:
        edges = torch.nonzero(is_step & reached[target]).squeeze(1)
        before = int(reached.sum())
        reached[source[edges]] = True
        if len(edges) >= limit or int(reached.sum()) == before:
            return edges[:limit]


def _packed(values: Tensor) -> str:
    """Encode values as base64 of int32."""
    return base64.b64encode(values.to(torch.int32).numpy().tobytes()).decode()
