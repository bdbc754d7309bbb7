"""One self-contained page to walk through a graph: relations as colours, attention as width, classes as fills."""

from __future__ import annotations

import base64
import json
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rgat.data import MISSING
from rgat.data.files import write_atomically
from rgat.predictor.attention import layer_attention
from rgat.predictor.predictor import NodeModel
from rgat.predictor.text import short

MAX_EDGES = 400_000  # about ten megabytes; of larger graphs what is nearest to the first node
TEMPLATE = "explorer.html"


def write_explorer(fitted: NodeModel, path: str | PathLike[str], node: str | None = None) -> None:
    """Write the page; it opens at a node, by default the first labelled one."""
    path = Path(path)
    if path.suffix != ".html":
        raise ValueError(f"{path}: a page must go to a file that ends in .html")
    labelled = (fitted.data.labels != MISSING).nonzero().squeeze(1).tolist()
    start = fitted.find(node) if node is not None else next(iter(labelled), 0)
    content = json.dumps(_content(fitted, start), ensure_ascii=False).replace("<", "\\u003c")
    template = Path(__file__).with_name(TEMPLATE).read_text(encoding="utf-8")
    write_atomically(path, template.replace('"<!--content-->"', content, 1).encode())


def _content(fitted: NodeModel, start: int) -> dict[str, Any]:
    data, graph = fitted.data, fitted.data.graph
    both = [(first + second) / 2 for first, second in layer_attention(fitted.members, data.x, graph)]
    attention = torch.stack(both).mean(0)
    edges = _nearest(graph.edge_index, start, MAX_EDGES)
    source, target = graph.edge_index[:, edges]
    nodes = torch.unique(torch.cat([source, target, torch.tensor([start])]))
    place = torch.zeros(graph.num_nodes, dtype=torch.long)
    place[nodes] = torch.arange(len(nodes))
    chance = fitted.calibration.probabilities(fitted.logits.double().mean(0))[nodes]
    best, predicted = chance.max(1)
    return {
        "name": data.name,
        "start": int(place[start]),
        "left_out": int((graph.edge_index[0] != graph.edge_index[1]).sum()) - len(edges),
        "classes": [short(name) for name in data.classes],
        "relations": [short(name) for name in data.relation_names],
        "names": [data.node_names[i] for i in nodes.tolist()],
        "short": [short(data.node_names[i]) for i in nodes.tolist()],
        "source": _packed(place[source]),
        "target": _packed(place[target]),
        "relation": _packed(graph.edge_type[edges]),
        "attention": _packed((1e6 * attention[edges]).round()),
        "predicted": _packed(predicted),
        "chance": _packed((1e4 * best).round()),
        "label": _packed(data.labels[nodes]),
    }


def _nearest(edge_index: Tensor, start: int, limit: int) -> Tensor:
    """Ids of all edges between different nodes or, of too many, of those nearest to a node, in steps."""
    source, target = edge_index.unbind()
    steps: Tensor = source != target
    if int(steps.sum()) <= limit:
        return torch.nonzero(steps).squeeze(1)
    heard = torch.zeros(int(edge_index.max()) + 1, dtype=torch.bool)
    heard[start] = True
    while True:
        found = torch.nonzero(steps & heard[target]).squeeze(1)
        if len(found) >= limit:
            return found[:limit]
        before = int(heard.sum())
        heard[source[found]] = True
        if int(heard.sum()) == before:
            return found


def _packed(values: Tensor) -> str:
    """32-bit whole numbers as text."""
    return base64.b64encode(values.to(torch.int32).numpy().tobytes()).decode()
