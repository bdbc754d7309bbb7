"""Reports, explanations and predictions in words and rows, for a terminal."""

from __future__ import annotations

import re

from rgat.data.dataset import INVERSE
from rgat.predictor.explain_molecule import MoleculeExplanation
from rgat.predictor.explain_node import NO_CHOICE, NodeExplanation, RelationImportance
from rgat.predictor.predictions import Predictions
from rgat.predictor.predictor import GraphModel, NodeModel

Row = tuple[str, ...]


def short(name: str) -> str:
    """The last part of an IRI, or the value of a literal: what people call it."""
    prefix = INVERSE if name.startswith(INVERSE) else ""
    name = name.removeprefix(prefix)
    if name.startswith('"'):
        return prefix + name[: name.rindex('"') + 1]
    bare = name[1:-1] if name.startswith("<") and name.endswith(">") else name
    if "://" not in bare:
        return prefix + bare
    parts = [part for part in re.split(r"[/#]", bare) if part]
    # A number alone says little: person/3.
    return prefix + ("/".join(parts[-2:]) if parts[-1].isdigit() and len(parts) > 3 else parts[-1])


def performance(fitted: NodeModel | GraphModel) -> list[str]:
    """How good the model is, a sentence each."""
    report = fitted.report
    if "tested" not in report:
        return ["held-out performance: unknown, for no labels were set aside for a test"]
    low, high = report["interval"]
    score = report["scores"]["test"]
    if report["metric"] == "accuracy":
        line = f"accuracy {score:.1%} ({report['right']} of {report['tested']} test nodes)"
    else:
        line = f"mean ROC-AUC {score:.3f} on {report['tested']:,} test molecules"
    bounds = f"{low:.1%} to {high:.1%}" if report["metric"] == "accuracy" else f"{low:.3f} to {high:.3f}"
    lines = [f"held-out performance: {line}; 95 % interval {bounds}"]
    if "pr_auc" in report:
        lines.append(f"mean PR-AUC {report['pr_auc']:.3f}, where {report['positives']:.1%} of the labels are positive")
        unknown = [task for task, value in report["tasks"].items() if value is None]
        if unknown:
            lines.append(f"no score for {', '.join(unknown)}: the test part has one class only")
    return lines


def comparison_rows(fitted: NodeModel | GraphModel) -> tuple[list[Row], list[str]]:
    """Name, training and test score of this model and of what it is compared with; and what to make of it."""
    report = fitted.report
    members = f", {len(fitted.members)} members" if len(fitted.members) > 1 else ""
    systems = [{"name": f"{fitted.config['model']}{members}", "scores": report["scores"], "note": ""}]
    systems += report.get("comparison", [])
    rows = [
        (system["name"], *(_percent(system["scores"].get(part)) for part in ("train", "test"))) for system in systems
    ]
    notes = [f"{system['name']}: {system['note']}" for system in systems if system["note"]]
    score = report["scores"].get("test")
    better = [s["name"] for s in systems[1:] if score is not None and (s["scores"].get("test") or 0) >= score]
    if better:
        notes.append(f"not better on the test part than {' and '.join(better)}: prefer the simpler one, or more labels")
    return rows, notes


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}"


def prediction_rows(found: Predictions) -> tuple[Row, list[Row]]:
    """Columns and rows that fit a terminal: the most probable class of each node, or one row per molecule and task."""
    rows: list[Row]
    if found.exclusive:
        best = found.probabilities.argmax(1)
        rows = [
            (short(name), short(found.columns[k]), f"{chance[k]:.1%}", f"{spread[k]:.1%}")
            for name, k, chance, spread in zip(found.names, best, found.probabilities, found.spread, strict=True)
        ]
        return ("node", "class", "probability", "spread"), rows
    rows = [
        (name, task, f"{chance[k]:.1%}", f"{spread[k]:.1%}")
        for name, chance, spread in zip(found.names, found.probabilities, found.spread, strict=True)
        for k, task in enumerate(found.columns)
    ]
    return ("smiles", "task", "probability", "spread"), rows


def node_rows(explanation: NodeExplanation, wide: bool = True) -> tuple[Row, list[Row]]:
    """Columns and rows: relation, who speaks, who hears, attention, effect and, where there is room, three more."""
    columns = ("relation", "who speaks", "to whom", "attention", "effect, points", "equal share", "log-odds", "choice")
    rows = [
        (
            short(reason.relation),
            short(reason.source),
            "itself" if reason.target == explanation.node else short(reason.target),
            f"{reason.attention:.1%}",
            f"{100 * reason.effect:+.1f}",
            f"{reason.equal_share:.1%}",
            f"{reason.log_odds:+.2f}",
            f"{reason.choice:+.2f}",
        )
        for reason in explanation.reasons
    ]
    kept = len(columns) if wide else len(columns) - 3
    return columns[:kept], [row[:kept] for row in rows]


def node_sentences(explanation: NodeExplanation) -> list[str]:
    """What is explained, and how far attention can be believed."""
    known = "" if explanation.label is None else f" (labelled {short(explanation.label)})"
    lines = [
        f"{short(explanation.node)} is {short(explanation.predicted)}, with probability {explanation.probability:.1%}"
        f"{known}. {explanation.num_edges:,} edges can have an influence; {explanation.own:.1%} of the attention stays "
        "with its own input."
    ]
    if explanation.choice < NO_CHOICE:
        lines.append(
            f"Attention differs from equal shares by {explanation.choice:.1%} only: the model chooses nothing here; "
            "trust the effects."
        )
    elif explanation.agreement is not None:
        value = explanation.agreement
        verdict = "can be believed here" if value > 0.5 else "is a weak guide here: trust the effects"
        lines.append(f"Rank correlation of attention and effect: {value:.2f}; attention {verdict}.")
    return lines


def relation_rows(importance: RelationImportance, top: int) -> list[Row]:
    """Relation, attention, effect, share of nodes that change class."""
    names = list(importance.attention)[:top]
    return [
        (
            short(name),
            f"{importance.attention[name]:.1%}",
            f"{100 * importance.effect[name]:+.2f}",
            f"{importance.changed[name]:.1%}",
        )
        for name in names
    ]


def molecule_rows(explanation: MoleculeExplanation, top: int) -> list[Row]:
    """Atom or bond, attention, effect; the strongest effects first."""
    return [(name, f"{attention:.1%}", f"{100 * effect:+.1f}") for name, attention, effect in explanation.named()[:top]]
