"""Format reports, predictions and explanations as sentences and table rows for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rgat.predictor.described import WORDS
from rgat.predictor.explain_literals import LiteralReason
from rgat.predictor.explain_molecule import MoleculeExplanation
from rgat.predictor.explain_node import NO_CHOICE, NodeExplanation, RelationImportance
from rgat.predictor.members import members_sentence
from rgat.predictor.predictions import Predictions
from rgat.predictor.predictor import NodePredictor, Predictor
from rgat.predictor.target_text import Row, Table, target_performance, target_prediction_rows
from rgat.predictor.uncertainty_text import region_text, reliability
from rgat.predictor.words import counted, titled
from rgat.training.configuration import VARIANTS

LEAST_CHANGE = 0.05  # of the accuracy, to name a predicate
SATURATED = 0.99  # a probability beyond which effects in points are all near 0
MOST_PREDICATES = 10  # to print; the report of a model has all
MOST_CLASSES = 12  # to print; the report of a model has all
_PER_CLASS = ("recall", "precision", "f1")


def performance(predictor: Predictor) -> list[str]:
    """Return sentences about the held-out performance."""
    report = predictor.report
    if "tested" not in report:
        return ["held-out performance: unknown, because there is no labelled test part"]
    low, high = report["interval"]
    score = report["scores"]["test"]
    if "targets" in report:
        return [*target_performance(predictor), *_about_the_fit(report), *reliability(predictor)]
    if report["metric"] == "accuracy":
        line = f"accuracy {score:.1%} ({report['right']} of {counted(report['tested'], 'test node')})"
        bounds = f"{low:.1%} to {high:.1%}"
    else:
        line = f"mean ROC-AUC {score:.3f} on {counted(report['tested'], 'test molecule')}"
        bounds = f"{low:.3f} to {high:.3f}"
    lines = [f"held-out performance: {line}; 95 % interval {bounds}"]
    if "pr_auc" in report:
        line = f"mean PR-AUC {report['pr_auc']:.3f}, where {report['positives']:.1%} of the labels are positive"
        if report.get("macro_f1") is not None:  # not in models that an earlier version wrote
            line += f"; macro-F1 {report['macro_f1']:.1%}, balanced accuracy {report['balanced_accuracy']:.1%}"
        lines.append(line)
        unknown = [task for task, value in report["tasks"].items() if value is None]
        if unknown:
            lines.append(f"no score for {', '.join(unknown)}: the test part has one class only")
    return [*lines, *_about_the_fit(report), *reliability(predictor)]


def _about_the_fit(report: Mapping[str, Any]) -> list[str]:
    """Return sentences about cross-validation, transfer and descriptors, as far as the fit had these."""
    lines = []
    if (found := report.get("cross_validation")) and found["mean"] is not None:
        spread = "" if found["deviation"] is None else f" ± {found['deviation']:.3f}"
        scores = ", ".join("-" if score is None else f"{score:.3f}" for score in found["scores"])
        lines.append(
            f"cross-validation: {found['metric']} {found['mean']:.3f}{spread} (mean and standard deviation over "
            f"{found['folds']} folds: {scores})"
        )
    if begun := report.get("started_from"):
        how = "frozen" if begun["frozen"] else "trained on"
        lines.append(f"started from a model of {', '.join(begun['tasks'])}: its relational layers, {how}")
    found = report.get("descriptor_contribution")
    if found and None not in (found["score"], found["exchanged"]):
        part = {"test": "test", "valid": "validation"}[found["part"]]
        lines.append(
            f"descriptors beside the graph: exchanged among {part} molecules, they would change the {report['metric']} "
            f"from {found['score']:.3f} to {found['exchanged']:.3f}"
        )
    return lines


def class_tables(predictor: Predictor) -> list[tuple[str, Row, list[Row]]]:
    """Return tables of the classes of a node predictor on the test part: a title, columns and rows of each.

    They are the scores of each class, of the worst by recall if there are more than ``MOST_CLASSES``, and the confusion
    matrix of at most so many classes. There are none for molecules, and in models that an earlier version wrote.
    """
    report = predictor.report
    if "confusion" not in report or not isinstance(predictor, NodePredictor):
        return []
    names = [titled(name, predictor.titles) for name in predictor.data.classes]
    confusion, scores = report["confusion"], report["classes"]
    tested = [number for number in range(len(names)) if any(confusion[number])]
    tested.sort(key=lambda number: scores["recall"][number])
    rows = []
    for number in tested[:MOST_CLASSES]:
        wrong = [(count, other) for other, count in enumerate(confusion[number]) if other != number and count]
        count, other = max(wrong, default=(0, 0))
        values = ("-" if scores[name][number] is None else f"{scores[name][number]:.1%}" for name in _PER_CLASS)
        rows.append(
            (names[number], f"{names[other]} ({count})" if wrong else "-", str(sum(confusion[number])), *values)
        )
    some = f"the {MOST_CLASSES} of lowest recall" if len(tested) > MOST_CLASSES else "lowest recall first"
    title = f"classes of the test part, {some}; macro-F1 {report['macro_f1']:.1%}, "
    title += f"balanced accuracy {report['balanced_accuracy']:.1%}"
    if report.get("average_precision") is not None:  # not in models that an earlier version wrote
        title += f", average precision {report['average_precision']:.1%}"
    tables: list[tuple[str, Row, list[Row]]] = [(title, ("class", "mistaken for", "nodes", *_PER_CLASS), rows)]
    if len(names) <= MOST_CLASSES:
        numbers = [str(number + 1) for number in range(len(names))]
        cells = [tuple(map(str, row)) for row in confusion]
        lines = [(f"{number} {name}", *row) for number, name, row in zip(numbers, names, cells, strict=True)]
        tables.append(("confusion matrix: true classes in rows, predicted ones in columns", ("", *numbers), lines))
    return tables


def choice_table(predictor: Predictor) -> list[Table]:
    """Return the table of the inputs and models that were compared; none where there was no choice."""
    choice = predictor.report.get("choice")
    if choice is None:
        return []
    rows: list[Row] = []
    for row in choice["candidates"]:
        is_chosen = (row["input"], row["model"]) == (choice["input"], choice["model"])
        error = f" ± {100 * row['error']:.1f}" if "error" in row else ""
        score = "diverged" if row["score"] is None else f"{100 * row['score']:.1f}{error}"
        words = row["input"] if isinstance(predictor, NodePredictor) else WORDS[row["input"]]
        rows.append((words, row["model"], "chosen" if is_chosen else "", score))
    rule = "; chosen is the first within one standard error of the best" * any(
        "error" in row for row in choice["candidates"]
    )
    title = f"compared by {predictor.report['metric']} {choice['on']}{rule}:"
    return [(title, ("input", "model", "", "%"), rows, 3)]


def contribution_table(predictor: Predictor) -> list[Table]:
    """Return the table of what the predicates contribute; none in models that an earlier version wrote."""
    found = predictor.report.get("contributions")
    if found is None or not isinstance(predictor, NodePredictor):
        return []
    nodes = counted(found["nodes"], {"test": "test node", "valid": "validation node"}[found["part"]])
    rows: list[Row] = []
    for row in found["predicates"][:MOST_PREDICATES]:
        name, change = titled(row["predicate"], predictor.titles), 100 * (row["score"] - found["score"])
        rows.append((name, row["used_as"], f"{100 * row['score']:.1f}", f"{change:+.1f}"))
    title = f"{predictor.report['metric']} on {nodes} with the facts of one predicate exchanged among nodes (with all: "
    return [(f"{title}{_percent(found['score'])}):", ("predicate", "used as", "%", "change"), rows, 2)]


def comparison_rows(predictor: Predictor) -> tuple[list[Row], list[str]]:
    """Return name, training and test score of the model and of the systems it is compared with, and notes on them."""
    report, count = predictor.report, len(predictor.members)
    name = f"{predictor.config['model']}{f', {count} members' if count > 1 else ''}"
    systems = [{"name": name, "scores": report["scores"], "note": ""}, *report.get("comparison", [])]
    rows = [_score_row(system["name"], system["scores"]) for system in systems]
    notes = [f"{system['name']}: {system['note']}" for system in systems if system["note"]]
    notes += verdicts(predictor)
    if count == 1:
        (member,) = report["training"]
        if name != "RGCN":
            rows.insert(1, _score_row("the same, constant attention", member["constant_scores"]))
        chosen_by = "cross-validation" if member["scores"]["valid"] is None else "validation"
        notes.append(f"Best epoch by {chosen_by}: {member['best_epoch']} of {member['epochs']}.")
    return rows, notes


def verdicts(predictor: Predictor) -> list[str]:
    """Return sentences on which model was kept and why, on what attention changes, and on simpler systems."""
    report, model = predictor.report, predictor.config["model"]
    lines = _rests_on(predictor) + members_sentence(report)
    if weights := report.get("class_weights"):
        scores = ", ".join(f"{word} {_percent(score)}" for word, score in weights["average_precision"].items())
        lines.append(f"Class weights were chosen by average precision on held-out examples ({scores}).")
    if selection := report.get("selection"):
        mine, (other, theirs) = selection["scores"][model], *(i for i in selection["scores"].items() if i[0] != model)
        if mine is not None and theirs is not None:
            numbers = f"({_percent(mine)}, {other} {_percent(theirs)})"
            if mine > theirs:
                lines.append(f"{model} was kept: it has the higher {selection['on']} {numbers}.")
            elif mine == theirs:
                lines.append(f"{model} was kept: {other} has the same {selection['on']} ({_percent(mine)}).")
            else:
                lines.append(
                    f"{other} has a higher {selection['on']} ({_percent(theirs)}) than {model} ({_percent(mine)}); "
                    f"train with --model {other} to use it."
                )
    score = report["scores"].get("test")
    tested = {row["name"]: row["scores"].get("test") for row in report.get("comparison", [])}
    rivals = {name: value for name, value in tested.items() if value is not None}
    if score is None:
        return lines
    for name in (name for name in rivals if name in VARIANTS):
        gain = (score - rivals[name]) * (-1 if model == "RGCN" else 1)
        attended, plain = (name, model) if model == "RGCN" else (model, name)
        change = f"changes the test score by {100 * gain:+.1f} points" if gain else "does not change the test score"
        lines.append(f"Attention {change} ({attended} against {plain}); test scores select nothing.")
    better = [
        f"{name} ({_percent(value)})" for name, value in rivals.items() if name not in VARIANTS and value >= score
    ]
    if better:
        lines.append(
            f"{model} ({_percent(score)}) is not better on the test part than {' and '.join(better)}: "
            f"use the simpler system, or {_advice(predictor)}."
        )
    return lines


def _rests_on(predictor: Predictor) -> list[str]:
    """Return a sentence about the predicate that the model needs most."""
    found = predictor.report.get("contributions")
    if not found or not isinstance(predictor, NodePredictor):
        return []
    first = found["predicates"][0]
    if found["score"] - first["score"] < LEAST_CHANGE:
        return []
    name = titled(first["predicate"], predictor.titles)
    return [
        f"The model rests most on {name} ({first['used_as']}): without it the {predictor.report['metric']} falls from "
        f"{_percent(found['score'])} to {_percent(first['score'])}."
    ]


def _advice(predictor: Predictor) -> str:
    """Return what may help a model that is no better than a simple one: literals that it does not read, or labels."""
    data = predictor.data if isinstance(predictor, NodePredictor) else None
    if data is None or data.x is not None or data.is_stored or "choice" in predictor.report:
        return "add labels"
    if any(name[0] == '"' for name in data.node_names):
        return "let the model read literals as numbers, dates and text (--features auto)"
    return "add labels"


def _percent(score: float) -> str:
    return f"{score:.1%}"


def _score_row(name: str, scores: Mapping[str, float | None]) -> Row:
    """Return the name of a system and its training and test score in percent."""
    values = [scores.get(part) for part in ("train", "test")]
    return name, *("-" if value is None else f"{100 * value:.1f}" for value in values)


def prediction_rows(predictions: Predictions) -> tuple[Row, list[Row], int]:
    """Return columns, rows and the number of text columns: the class of each node, or each molecule and task."""
    names, columns = predictions.names, predictions.columns
    if predictions.targets:
        return target_prediction_rows(predictions)
    if predictions.exclusive:
        cells = [(i, int(k)) for i, k in enumerate(predictions.probabilities.argmax(1))]
        labels: list[Row] = [
            (titled(names[i], predictions.titles), titled(columns[k], predictions.titles)) for i, k in cells
        ]
    else:
        cells = [(i, k) for i in range(len(names)) for k in range(len(columns))]
        labels = [(names[i], columns[k]) for i, k in cells]
    header: Row = ("node", "class") if predictions.exclusive else ("smiles", "task")
    if predictions.regions:
        header = (*header, f"{100 * (predictions.coverage or 0):g} % set")
        words = [region_text(predictions, 0 if predictions.exclusive else k, i) for i, k in cells]
        labels = [(*label, word) for label, word in zip(labels, words, strict=True)]
    numbers = [(f"{predictions.probabilities[cell]:.1%}", f"{predictions.spread[cell]:.1%}") for cell in cells]
    rows = [(*label, *row) for label, row in zip(labels, numbers, strict=True)]
    if predictions.distance is not None:
        rows = [(*row, f"{predictions.distance[i]:.2f}") for row, (i, _) in zip(rows, cells, strict=True)]
    added = ("distance",) if predictions.distance is not None else ()
    return (*header, "probability", "spread", *added), rows, len(header)


def _number_effect(value: float) -> str:
    return f"{value:+.4g}"


def _points(value: float) -> str:
    return f"{100 * value:+.1f}"


def node_rows(explanation: NodeExplanation, wide: bool = True) -> tuple[Row, list[Row]]:
    """Return columns and rows of the reasons: literals, the largest effect first, then edges.

    Narrow tables have attention and one effect: in points or, where the probability is saturated, in log-odds.
    """
    columns = ("relation", "source", "target", "attention", "effect, points", "log-odds", "equal share", "choice")
    titles, is_number = explanation.titles, explanation.kind == "regression"
    if is_number:
        columns = (*columns[:4], f"effect, {explanation.unit or 'value'}", "deviations", *columns[6:])
    effect = _number_effect if is_number else _points
    rows: list[Row] = [
        (
            titled(reason.relation, titles),
            titled(reason.source, titles),
            "itself" if reason.target == explanation.node else titled(reason.target, titles),
            f"{reason.attention:.1%}",
            effect(reason.effect),
            f"{reason.log_odds:+.2f}",
            f"{reason.equal_share:.1%}",
            f"{reason.choice:+.2f}",
        )
        for reason in explanation.reasons
    ]
    of_literals: list[Row] = [
        (
            titled(reason.predicate, titles),
            shown(reason),
            "itself" if reason.node == explanation.node else titled(reason.node, titles),
            *("-", effect(reason.effect), f"{reason.log_odds:+.2f}", "-", "-"),
        )
        for reason in explanation.literals
    ]
    rows = of_literals + rows
    if wide:
        return columns, rows
    place = 5 if is_saturated(explanation) else 4
    return (*columns[:4], columns[place]), [(*row[:4], row[place]) for row in rows]


def is_saturated(explanation: NodeExplanation) -> bool:
    """Return whether a probability is so near to 1 that effects in points are all near 0."""
    return explanation.kind != "regression" and explanation.probability >= SATURATED


def prediction_text(explanation: NodeExplanation) -> str:
    """Return what is predicted for a node: a class or a label with its probability, or a number."""
    name, titles = titled(explanation.predicted, explanation.titles), explanation.titles
    known = "" if explanation.label is None else f" (labelled {titled(explanation.label, titles)})"
    if explanation.kind == "regression":
        return f"{name} is {explanation.probability:.4g}{f' {explanation.unit}' if explanation.unit else ''}{known}"
    return f"is {name}, with probability {explanation.probability:.1%}{known}"


def shown(reason: LiteralReason) -> str:
    """Return the value of a literal or, where it is not known, what it is used as."""
    return f'"{reason.value}"' if reason.value else f"({reason.used_as})"


def node_sentences(explanation: NodeExplanation) -> list[str]:
    """Return sentences about the prediction, and about how far attention explains it."""
    titles = explanation.titles
    sign = ":" if explanation.kind == "regression" else ""
    lines = [
        f"{titled(explanation.node, titles)}{sign} {prediction_text(explanation)}. Its receptive field has "
        f"{counted(explanation.num_edges, 'edge')}; "
        f"{explanation.own:.1%} of the attention stays with its own input."
    ]
    if is_saturated(explanation):
        lines.append("So near to 1, a probability hardly changes: read the effects as changes of its log-odds.")
    if explanation.literals:
        literal = explanation.literals[0]
        whose = "" if literal.node == explanation.node else f" of {titled(literal.node, titles)}"
        lines.append(
            f"The literal with the largest effect is {titled(literal.predicate, titles)} {shown(literal)}{whose}: if "
            f"it were missing, {_changing(explanation)} would change by {literal.log_odds:+.2f}."
        )
    if explanation.choice < NO_CHOICE:
        lines.append(
            f"Attention differs from equal shares by only {explanation.choice:.1%}: the model does not choose among "
            "edges here; trust the effects."
        )
    elif explanation.agreement is not None:
        value = explanation.agreement
        guide = "is a good guide here" if value > 0.5 else "is a weak guide here: trust the effects"
        lines.append(f"Rank correlation of attention and effect: {value:.2f}; attention {guide}.")
    return lines


def _changing(explanation: NodeExplanation) -> str:
    is_number = explanation.kind == "regression"
    return "the number, in deviations of the training part," if is_number else "the log-odds"


def _first(attention: Mapping[str, float], count: int) -> list[tuple[str, float]]:
    """Return the first predicates with literals, which have no attention, and as many relations."""
    literals = [entry for entry in attention.items() if not entry[1]]
    return literals[:count] + [entry for entry in attention.items() if entry[1]][:count]


def explanation_table(
    explanation: NodeExplanation | RelationImportance | MoleculeExplanation, top: int, wide: bool
) -> tuple[list[str], Sequence[str], list[Row], int]:
    """Return sentences, columns and rows to print, and how many of the columns are text."""
    if isinstance(explanation, NodeExplanation):
        return node_sentences(explanation), *node_rows(explanation, wide), 3
    if isinstance(explanation, RelationImportance):
        nodes = counted(explanation.nodes, "labelled node")
        sentence = f"Literals by effect, then relations by attention, over {nodes}; effect: mean change without them."
        columns: Row = ("relation", "attention", "effect, points", "log-odds", "class changes")
        is_number = explanation.kind == "regression"
        if is_number:
            sentence = sentence.replace("mean change", f"mean absolute change of {explanation.target}")
            columns = (*columns[:2], f"effect, {explanation.unit or 'value'}", "deviations", "changes by 0.1 dev.")
        rows: list[Row] = [
            (
                titled(name, explanation.titles),
                f"{attention:.1%}" if attention else "-",
                f"{explanation.effect[name]:.4g}" if is_number else f"{100 * explanation.effect[name]:+.2f}",
                f"{explanation.log_odds[name]:+.3f}",
                f"{explanation.changed[name]:.1%}",
            )
            for name, attention in _first(explanation.attention, top)
        ]
    else:
        amount, is_number = explanation.amount, explanation.kind == "regression"
        word = " positive" if explanation.kind == "binary" else ""
        shown = amount(explanation.probability)
        of_task = f"{explanation.task} {shown}" if is_number else f"{explanation.task}{word} with probability {shown}"
        sentence = f"{explanation.smiles}: {of_task}"
        columns = ("atom or bond", "attention", f"effect, {explanation.unit or 'value' if is_number else 'points'}")
        named = explanation.named()[:top]
        rows = [(name, f"{share:.1%}", amount(effect, change=True)) for name, share, effect in named]
    lines = [sentence]
    if isinstance(explanation, MoleculeExplanation) and explanation.descriptor_effect is not None:
        change = explanation.amount(explanation.descriptor_effect, change=True)
        what = f"value would change by {change}" if is_number else f"probability would change by {change} points"
        lines.append(
            f"Descriptors beside the graph: if all were those of the average training molecule, the {what}; effects of "
            "atoms and bonds are of the graph."
        )
    return lines, columns, rows, 1
