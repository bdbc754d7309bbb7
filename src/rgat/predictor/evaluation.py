"""Score a predictor, and what it has to beat on the same split: a majority vote, a simple baseline and an RGCN."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rgat.baselines import GRAPH_BASELINES, NODE_BASELINES
from rgat.baselines.targets import constant, random_forest
from rgat.data import MISSING, GraphData, NodeData
from rgat.data.dataset import PARTS
from rgat.data.targets import Target, places
from rgat.models import Model
from rgat.predictor.conformal import COVERAGE, measure_coverage, regions
from rgat.predictor.ensemble import Ensemble, true_answers
from rgat.predictor.familiarity import collected
from rgat.predictor.predictor import NodePredictor, Predictor, make_predictor
from rgat.training import accuracy, graph_logits, mean_pr_auc, mean_roc_auc, node_logits, roc_auc_per_task
from rgat.training.configuration import MAX_LAYERS, Config
from rgat.training.metric import (
    binary_scores,
    confusion_matrix,
    known_rows,
    mean_average_precision,
    measure_target,
    metric_name,
    score_classes,
    score_targets,
)
from rgat.training.run import Result
from rgat.training.targets import in_units

REPLICATES = 200  # of the bootstrap
QUANTILE = 1.959964  # of the normal distribution, for 95 %
LOGISTIC = "logistic regression"
OF_ATTENTION = (  # options that an RGCN does not have
    *("heads", "num_attention_bases", "attention_channels", "edge_dim", "negative_slope", "scope"),
    *(f"attention_l2_{layer}" for layer in range(1, MAX_LAYERS + 1)),
)


class Rival(NamedTuple):
    """A model trained for comparison."""

    ensemble: Ensemble
    training: list[dict[str, Any]]  # as in a report
    valid: float  # mean validation score


def evaluate(predictor: Predictor, data: NodeData | GraphData) -> dict[str, Any]:
    """Return the scores of the training and test parts and the test interval; empty parts are left out."""
    if data.values is not None:
        return _evaluate_targets(predictor, data)
    if isinstance(data, NodeData):
        assert isinstance(predictor, NodePredictor)
        return _evaluate_nodes(predictor, data)
    report: dict[str, Any] = {"metric": "mean ROC-AUC", "scores": {}}
    for part in ("train", "test"):
        ids = getattr(data, part)
        if not len(ids):
            continue
        batches = (data.graphs.batch(batch) for batch in data.graphs.split(ids))
        with collected(predictor.members[0]) as hidden:
            logits = torch.cat([predictor.member_logits(*batch).mean(0) for batch in batches])
        labels = data.labels[ids]
        report["scores"][part] = mean_roc_auc(logits, labels)
        if part == "test":
            report |= _evaluate_test_graphs(logits, labels, data.tasks)
            probabilities = predictor.calibration.probabilities(logits.double())
            values = torch.where(labels < 0, torch.nan, labels)
            report |= nan_to_none(binary_scores(probabilities.numpy(), values.numpy()))
            report |= _evaluate_uncertainty(predictor, probabilities, true_answers(data, ids), hidden.rows)
    return report


def _evaluate_uncertainty(
    predictor: Predictor, predictions: Tensor, truth: Tensor, hidden: Tensor | None
) -> dict[str, Any]:
    """Return the coverage of the sets and intervals of test examples, and how many are far from the training part.

    The truth is that of `true_answers`.
    """
    report: dict[str, Any] = {}
    calibration = predictor.calibration
    if calibration.held_out is not None:
        questions = calibration.questions()
        found = measure_coverage(regions(questions, predictions.numpy(), calibration.held_out), truth.numpy())
        report |= {"coverage": COVERAGE} | found
    if predictor.familiarity is not None and hidden is not None:
        report["far"] = float((predictor.familiarity.distances(hidden) > 1).mean())
    return report


def _evaluate_nodes(predictor: NodePredictor, data: NodeData) -> dict[str, Any]:
    parts = {part: getattr(data, part) for part in ("train", "test")}
    labelled = {part: ids[data.labels[ids] != MISSING] for part, ids in parts.items()}
    outputs = {part: predictor.outputs_of(ids.tolist()) for part, ids in labelled.items() if len(ids)}
    logits = {part: each.mean(0) for part, (each, _) in outputs.items()}
    scores = {part: accuracy(logits[part], data.labels[labelled[part]]) for part in logits}
    report: dict[str, Any] = {"metric": "accuracy", "scores": scores}
    if "test" in scores:
        count = len(labelled["test"])
        report |= {"tested": count, "right": round(scores["test"] * count), "interval": wilson(scores["test"], count)}
        shares = torch.softmax(logits["test"].double(), 1)
        true = torch.nn.functional.one_hot(data.labels[labelled["test"]], len(data.classes)).double()
        report |= nan_to_none({"average_precision": mean_average_precision(shares.numpy(), true.numpy())})
        predicted = logits["test"].argmax(1)
        report |= score_classes(confusion_matrix(data.labels[labelled["test"]], predicted, len(data.classes)))
        probabilities = predictor.probabilities(logits["test"][None])
        truth = true_answers(data, labelled["test"])
        report |= _evaluate_uncertainty(predictor, probabilities, truth, outputs["test"][1])
    return report


def _predictions(predictor: Predictor, data: NodeData | GraphData, ids: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return probabilities, and numbers in their units, of some examples, ``[n, outputs]``, and their hidden layer."""
    if isinstance(data, NodeData):
        assert isinstance(predictor, NodePredictor)
        logits, rows = predictor.outputs_of(ids.tolist())
        return predictor.probabilities(logits), rows
    batches = (data.graphs.batch(batch) for batch in data.graphs.split(ids))
    with collected(predictor.members[0]) as hidden:
        found = torch.cat([predictor.probabilities(predictor.member_logits(*batch)) for batch in batches])
    return found, hidden.rows


def score_graphs(predictor: Predictor, data: GraphData, ids: Tensor) -> float:
    """Return the score of some graphs, the higher the better."""
    if data.values is not None:
        bounds = None if data.bounds is None else data.bounds[ids]
        return score_targets(_predictions(predictor, data, ids)[0], data.values[ids], data.targets, bounds)
    batches = (data.graphs.batch(batch) for batch in data.graphs.split(ids))
    logits = torch.cat([predictor.member_logits(*batch).mean(0) for batch in batches])
    return mean_roc_auc(logits, data.labels[ids])


def _evaluate_targets(predictor: Predictor, data: NodeData | GraphData) -> dict[str, Any]:
    """Return the scores of the parts and, of the test part, those of each target and label."""
    assert data.values is not None
    report: dict[str, Any] = {"metric": metric_name(data.targets), "scores": {}}
    for part in ("train", "test"):
        ids = getattr(data, part)
        ids = ids[~data.values[ids].isnan().all(1)]
        if not len(ids):
            continue
        (predicted, hidden), values = _predictions(predictor, data, ids), data.values[ids]
        bounds = None if data.bounds is None else data.bounds[ids]
        report["scores"][part] = score_targets(predicted, values, data.targets, bounds)
        if part == "test":
            score: Callable[[Tensor], float] = lambda rows, p=predicted, v=values, b=bounds: score_targets(  # type: ignore[misc]
                p[rows], v[rows], data.targets, None if b is None else b[rows]
            )
            report |= {"tested": len(ids), "interval": bootstrap(score, len(ids)), "targets": {}}
            report |= _evaluate_uncertainty(predictor, predicted, true_answers(data, ids), hidden)
            for target, place in places(data.targets):
                found, true, _ = known_rows(predicted, values, place, bounds)
                report["targets"][target.name] = _measures(target, found, true)
    report["scores"] = nan_to_none(report["scores"])
    return report


def _measures(target: Target, predicted: Any, true: Any) -> dict[str, Any]:
    """Return the scores of a target and, of several labels, those of each."""
    if not len(true):
        return {"kind": target.kind, "examples": 0}
    measured = measure_target(target, predicted, true)
    if target.kind == "multi-label":
        columns = enumerate(target.classes)
        each = {n: measure_target(Target(n, "binary"), predicted[:, [k]], true[:, [k]]) for k, n in columns}
        measured["labels"] = each
    return measured


def _evaluate_test_graphs(logits: Tensor, labels: Tensor, tasks: tuple[str, ...]) -> dict[str, Any]:
    per_task = dict(zip(tasks, roc_auc_per_task(logits, labels), strict=True))
    return {
        "tested": len(labels),
        "interval": bootstrap(lambda rows: mean_roc_auc(logits[rows], labels[rows]), len(labels)),
        "pr_auc": mean_pr_auc(logits, labels),
        "positives": float((labels == 1).sum() / (labels != MISSING).sum().clamp(min=1)),
        "tasks": nan_to_none(per_task),
    }


def wilson(share: float, count: int) -> list[float]:
    """Return Wilson's 95 % interval of a share of ``count`` examples; holds for few examples and shares near 0 or 1."""
    z = QUANTILE**2
    centre = (share + z / (2 * count)) / (1 + z / count)
    half = QUANTILE / (1 + z / count) * math.sqrt(share * (1 - share) / count + z / (4 * count**2))
    return [max(centre - half, 0.0), min(centre + half, 1.0)]


def bootstrap(statistic: Callable[[Tensor], float], count: int, seed: int = 0) -> list[float]:
    """Return the 95 % percentile interval of a statistic over bootstrap samples of the examples."""
    generator = torch.Generator().manual_seed(seed)
    values = [statistic(torch.randint(count, (count,), generator=generator)) for _ in range(REPLICATES)]
    finite = [value for value in values if not math.isnan(value)]
    return [float(bound) for bound in np.quantile(finite, [0.025, 0.975])] if finite else [0.0, 1.0]


def compare(
    data: NodeData | GraphData,
    config: Config,
    seed: int,
    train: Callable[[Config], Rival],
    tell: Callable[[str], None],
) -> tuple[list[dict[str, Any]], Rival | None]:
    """Return a row for each system, with its name, its scores by part and a note, and the rival that was trained.

    ``train`` trains one model of a configuration, and ``tell`` is called with the name of each system before it runs; a
    system that fails gets a row that says why.
    """
    rivals: list[Rival] = []

    def rgcn() -> tuple[dict[str, float], str]:
        rivals.append(train(without_attention(config)))
        return _score(rivals[0].ensemble.members[0], data), ""

    simple, baselines = ("FEAT", NODE_BASELINES) if isinstance(data, NodeData) else (LOGISTIC, GRAPH_BASELINES)
    forest: Callable[[], tuple[dict[str, float], str]] = lambda: (random_forest(data, seed), "")  # type: ignore[arg-type]
    systems: dict[str, Callable[[], tuple[dict[str, float], str]]] = {
        "majority vote": lambda: (_majority(data), ""),
        simple: lambda: (baselines[simple](data, seed).scores(data), ""),
        "RGCN": rgcn,
    }
    if data.values is not None:
        of_molecules = {"random forest": forest} if isinstance(data, GraphData) else {}
        systems = {"constant prediction": lambda: (constant(data), ""), **of_molecules, "RGCN": rgcn}
    elif isinstance(data, NodeData) and data.is_stored:
        del systems[simple]  # it needs all triples in memory
    rows = []
    for name, run in systems.items():
        if name == config["model"]:
            continue
        tell(name)
        try:
            scores, note = run()
        except Exception as error:  # the predictor does not depend on it
            message = str(error).partition("\n")[0] or type(error).__name__
            reason = "memory ran out" if isinstance(error, MemoryError) else message
            scores, note = {}, f"left out: {reason}"
        rows.append({"name": name, "scores": nan_to_none(scores), "note": note})
    return rows, rivals[0] if rivals else None


def without_attention(config: Config) -> Config:
    """Return the configuration of an RGCN to compare a model with."""
    return {name: value for name, value in config.items() if name not in OF_ATTENTION} | {"model": "RGCN"}


def _majority(data: NodeData | GraphData) -> dict[str, float]:
    """Always predict the largest class; a constant score has a ROC-AUC of one half."""
    if isinstance(data, GraphData):
        return {part: 0.5 for part in PARTS if len(getattr(data, part))}
    largest = int(data.labels[data.train].bincount().argmax())
    hits = {part: data.labels[getattr(data, part)] == largest for part in PARTS}
    return {part: float(hit.double().mean()) for part, hit in hits.items() if len(hit)}


def _score(model: Model, data: NodeData | GraphData) -> dict[str, float]:
    """Return the metric of a model on each part that is not empty."""
    scores = {}
    for part in PARTS:
        ids = getattr(data, part)
        if len(ids) and data.values is not None:
            if isinstance(data, GraphData):
                logits = graph_logits(model, data.graphs, ids)
            else:
                logits = node_logits(model, data, nodes=ids)
            bounds = None if data.bounds is None else data.bounds[ids]
            scores[part] = score_targets(
                in_units(logits.double(), data.targets), data.values[ids], data.targets, bounds
            )
        elif len(ids) and isinstance(data, NodeData):
            scores[part] = accuracy(node_logits(model, data, nodes=ids), data.labels[ids])
        elif len(ids) and isinstance(data, GraphData):
            scores[part] = mean_roc_auc(graph_logits(model, data.graphs, ids), data.labels[ids])
    return scores


def keep_best(predictor: Predictor, rival: Rival, data: NodeData | GraphData, valid: float, is_free: bool) -> Predictor:
    """Return the predictor or, if ``is_free`` and it has a higher validation score, its rival; note the selection.

    Test scores select nothing. Equal validation scores keep the predictor.
    """
    asked, other = predictor.config["model"], rival.ensemble.config["model"]
    is_replaced = is_free and rival.valid > valid
    predictor.report["selection"] = {
        "on": f"{predictor.report['metric']} {where_validated(data)}",
        "scores": nan_to_none({asked: valid, other: rival.valid}),
        "selected": other if is_replaced else asked,
    }
    if not is_replaced:
        return predictor
    kept = make_predictor(rival.ensemble, data)
    rows = [row for row in predictor.report["comparison"] if row["name"] != other]
    rows.append({"name": asked, "scores": nan_to_none(predictor.report["scores"]), "note": ""})
    kept.report.update(predictor.report | evaluate(kept, data))
    kept.report.update(training=rival.training, comparison=rows)
    return kept


def where_validated(data: NodeData | GraphData) -> str:
    """Return where validation scores of the data come from."""
    return "of the validation part" if len(data.valid) else "in cross-validation inside the training part"


def nan_to_none(scores: Mapping[str, float]) -> dict[str, float | None]:
    """Return scores with None in place of NaN, which JSON does not have."""
    return {name: None if math.isnan(value) else value for name, value in scores.items()}


def training_summary(result: Result) -> dict[str, Any]:
    """Return the training result of one member as plain values."""
    scores, constant_scores = nan_to_none(result.scores), nan_to_none(result.constant_scores)
    epochs = {"best_epoch": result.best_epoch, "epochs": len(result.curve)}
    return {**epochs, "scores": scores, "constant_scores": constant_scores, "how": result.how}
