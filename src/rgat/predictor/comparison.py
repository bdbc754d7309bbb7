"""What a model has to be better than: a majority vote, a simple baseline, and an RGCN, on the same split."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rgat.baselines import GRAPH_BASELINES, NODE_BASELINES
from rgat.data import GraphData, NodeData
from rgat.data.dataset import PARTS
from rgat.models import Model
from rgat.predictor.configuration import Config, configure, task_of
from rgat.training import accuracy, graph_logits, mean_roc_auc

MEMORISED = 0.99  # an RGCN with this training score has nothing left for attention to gain there
SIMPLE = {"node": "FEAT", "graph": "logistic regression"}


def compare(
    data: NodeData | GraphData, config: Config, seed: int, train: Callable[[Config, str], Model]
) -> list[dict[str, Any]]:
    """One row for each system: its name, its scores by part, and what to make of them."""
    systems: dict[str, Callable[[], dict[str, Any]]] = {
        "majority vote": lambda: _majority(data),
        SIMPLE[task_of(data)]: lambda: _simple(data, seed),
        "RGCN": lambda: _rgcn(data, config, train),
    }
    if config["model"] == "RGCN":
        del systems["RGCN"]
    rows = []
    for name, run in systems.items():
        try:
            rows.append(run())
        except (ImportError, ValueError, RuntimeError, MemoryError) as error:  # the model is fitted without it
            reason = "memory ran out" if isinstance(error, MemoryError) else str(error).partition("\n")[0]
            rows.append(_row(name, {}, f"left out: {reason}"))
    return rows


def _majority(data: NodeData | GraphData) -> dict[str, Any]:
    """The largest class; a constant ranks nothing, so its ROC-AUC is one half."""
    if isinstance(data, GraphData):
        return _row("majority vote", {part: 0.5 for part in PARTS if len(getattr(data, part))})
    largest = int(data.labels[data.train].bincount().argmax())
    shares = {part: data.labels[getattr(data, part)] == largest for part in PARTS}
    return _row("majority vote", {part: float(hit.double().mean()) for part, hit in shares.items() if len(hit)})


def _simple(data: NodeData | GraphData, seed: int) -> dict[str, Any]:
    name = SIMPLE[task_of(data)]
    run = (NODE_BASELINES if isinstance(data, NodeData) else GRAPH_BASELINES)[name]
    return _row(name, run(data, seed).scores(data))


def _rgcn(data: NodeData | GraphData, config: Config, train: Callable[[Config, str], Model]) -> dict[str, Any]:
    kept = ("model", "heads", "num_attention_bases", "attention_l2_1", "attention_l2_2", "attention_channels")
    shared = {name: value for name, value in config.items() if name not in (*kept, "edge_dim", "negative_slope")}
    rival = configure(task_of(data), shared | {"model": "RGCN"})
    rival = {name: value for name, value in rival.items() if name in shared or name == "model"}  # no default of its own
    model = train(rival, "an RGCN to compare with")
    scores = {}
    for part in PARTS:
        ids = getattr(data, part)
        if len(ids):
            scores[part] = _score(model, data, ids)
    note = ""
    if scores["train"] >= MEMORISED:
        note = "it memorises the training part without attention: attention is unlikely to help on these data"
    return _row("RGCN", scores, note)


def _score(model: Model, data: NodeData | GraphData, ids: Tensor) -> float:
    device = next(model.parameters()).device
    with torch.no_grad():
        if isinstance(data, NodeData):
            x = None if data.x is None else data.x.to(device)
            return accuracy(model(x, data.graph.to(device)).cpu()[ids], data.labels[ids])
        return mean_roc_auc(graph_logits(model, data.graphs, ids), data.labels[ids])


def _row(name: str, scores: dict[str, float], note: str = "") -> dict[str, Any]:
    return {
        "name": name,
        "scores": {part: None if math.isnan(value) else value for part, value in scores.items()},
        "note": note,
    }
