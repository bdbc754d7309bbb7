"""Compare a predictor with what it has to beat: a majority vote, a simple baseline and an RGCN, on the same split."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch import Tensor

from rgat.baselines import GRAPH_BASELINES, NODE_BASELINES
from rgat.data import GraphData, NodeData
from rgat.data.dataset import PARTS
from rgat.models import Model
from rgat.training import accuracy, graph_logits, mean_roc_auc, node_logits
from rgat.training.configuration import Config, task_of

MEMORISED = 0.99  # training score of an RGCN that leaves attention nothing to gain
SIMPLE = {"node": "FEAT", "graph": "logistic regression"}
OF_ATTENTION = (  # options that an RGCN does not have
    *("heads", "num_attention_bases", "attention_l2_1", "attention_l2_2", "attention_channels"),
    *("edge_dim", "negative_slope"),
)


def compare(
    data: NodeData | GraphData, config: Config, seed: int, train: Callable[[Config, str], Model]
) -> list[dict[str, Any]]:
    """Return a row for each system: its name, its scores by part, and a note on them.

    ``train`` trains one model of a configuration; a system that fails gets a row that says why.
    """
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
        except (ImportError, ValueError, RuntimeError, MemoryError) as error:  # the predictor does not depend on it
            reason = "memory ran out" if isinstance(error, MemoryError) else str(error).partition("\n")[0]
            rows.append(_row(name, {}, f"left out: {reason}"))
    return rows


def _majority(data: NodeData | GraphData) -> dict[str, Any]:
    """Always predict the largest class; a constant score has a ROC-AUC of one half."""
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
    shared = {name: value for name, value in config.items() if name not in OF_ATTENTION}
    model = train(shared | {"model": "RGCN"}, "an RGCN to compare with")
    parts = {part: getattr(data, part) for part in PARTS}
    scores = {part: _score(model, data, ids) for part, ids in parts.items() if len(ids)}
    note = ""
    if scores["train"] >= MEMORISED:
        note = "it fits the training part without attention, so attention is unlikely to help on these data"
    return _row("RGCN", scores, note)


def _score(model: Model, data: NodeData | GraphData, ids: Tensor) -> float:
    if isinstance(data, NodeData):
        return accuracy(node_logits(model, data)[ids], data.labels[ids])
    return mean_roc_auc(graph_logits(model, data.graphs, ids), data.labels[ids])


def _row(name: str, scores: dict[str, float], note: str = "") -> dict[str, Any]:
    return {
        "name": name,
        "scores": {part: None if math.isnan(value) else value for part, value in scores.items()},
        "note": note,
    }
