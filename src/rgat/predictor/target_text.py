"""Format scores and predictions of targets, other than one class per node and 0/1 tasks, for a terminal."""

from __future__ import annotations

from rgat.data.targets import places
from rgat.predictor.predictions import Predictions
from rgat.predictor.predictor import NodePredictor, Predictor
from rgat.predictor.words import counted, titled

Row = tuple[str, ...]
Table = tuple[str, Row, list[Row], int]  # title, columns, rows, and how many columns are text
MOST_LABELS = 12  # to print; the report of a model has all


def target_performance(predictor: Predictor) -> list[str]:
    """Return a sentence about the score of all targets, and one about each number."""
    report = predictor.report
    (low, high), score = report["interval"], report["scores"]["test"]
    of_what = counted(report["tested"], "test node" if isinstance(predictor, NodePredictor) else "test molecule")
    if score is None:
        return [f"held-out performance: unknown, because {report['metric']} is undefined on {of_what}"]
    lines = [
        f"held-out performance: {report['metric']} {score:.3f} on {of_what}; 95 % interval {low:.3f} to {high:.3f}"
    ]
    for target in predictor.targets:
        found = report["targets"][target.name]
        if target.kind == "regression" and found["examples"]:
            unit = f" {target.unit}" if target.unit else ""
            lines.append(f"{target.name}: RMSE {found['rmse']:.4g}{unit}, mean absolute error {found['mae']:.4g}{unit}")
    return lines


# By kind: what stands first, then the names of scores in a report and in a table.
_SCORES = {
    "regression": ("number", {"rmse": "RMSE", "mae": "MAE", "score": "R2", "rank_correlation": "rank corr."}),
    "multi-class": (
        "target",
        {"score": "accuracy", "macro_f1": "macro-F1", "balanced_accuracy": "bal. acc.", "average_precision": "AP"},
    ),
    "binary": (
        "label",
        {
            "positives": "positive",
            "score": "ROC-AUC",
            "average_precision": "AP",
            "macro_f1": "macro-F1",
            "balanced_accuracy": "bal. acc.",
        },
    ),
}


def target_tables(predictor: Predictor) -> list[Table]:
    """Return a table of the test scores for each kind of target; several labels are listed one by one below them."""
    rows: dict[str, list[Row]] = {}
    for name, found in predictor.report.get("targets", {}).items():
        kind = "binary" if found["kind"] == "multi-label" else found["kind"]
        for label, scores in [(name, found), *list(found.get("labels", {}).items())[:MOST_LABELS]]:
            values = (scores.get(key) for key in _SCORES[kind][1])
            cells = ("-" if value is None else f"{value:.4g}" for value in values)
            rows.setdefault(kind, []).append((label, str(scores["examples"]), *cells))
    return [
        (f"{kind} targets on the test part:", (_SCORES[kind][0], "examples", *_SCORES[kind][1].values()), found, 1)
        for kind, found in rows.items()
    ]


def target_prediction_rows(predictions: Predictions) -> tuple[Row, list[Row]]:
    """Return columns and rows: one for each target, or label, of each node or molecule."""
    rows: list[Row] = []
    for i, name in enumerate(predictions.names):
        for target, place in places(predictions.targets):
            values, spread = predictions.probabilities[i, place], predictions.spread[i, place]
            shown = titled(name, predictions.titles)
            if target.kind == "regression":
                unit = f" {target.unit}" if target.unit else ""
                rows.append((shown, target.name, f"{values[0]:.4g}{unit}", f"{spread[0]:.2g}"))
                continue
            labels = target.classes if target.kind != "binary" else (target.name,)
            kept = [int(values.argmax())] if target.kind == "multi-class" else range(len(values))
            for k in kept:
                label = labels[k] if len(labels) == 1 or len(predictions.targets) == 1 else f"{target.name}={labels[k]}"
                rows.append((shown, label, f"{values[k]:.1%}", f"{spread[k]:.1%}"))
    return ("node" if predictions.exclusive else "smiles", "target", "prediction", "spread"), rows
