"""Format reports, predictions and explanations as sentences and table rows for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rgat.predictor.explain_literals import LiteralReason
from rgat.predictor.explain_molecule import MoleculeExplanation
from rgat.predictor.explain_node import NO_CHOICE, NodeExplanation, RelationImportance
from rgat.predictor.predictions import Predictions
from rgat.predictor.predictor import NodePredictor, Predictor
from rgat.predictor.words import counted, titled
from rgat.training.configuration import VARIANTS

Row = tuple[str, ...]
Table = tuple[str, Row, list[Row], int]  # title, columns, rows, and how many columns are text
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
    if report["metric"] == "accuracy":
        line = f"accuracy {score:.1%} ({report['right']} of {counted(report['tested'], 'test node')})"
        bounds = f"{low:.1%} to {high:.1%}"
    else:
        line = f"mean ROC-AUC {score:.3f} on {counted(report['tested'], 'test molecule')}"
        bounds = f"{low:.3f} to {high:.3f}"
    lines = [f"held-out performance: {line}; 95 % interval {bounds}"]
    if "pr_auc" in report:
        lines.append(f"mean PR-AUC {report['pr_auc']:.3f}, where {report['positives']:.1%} of the labels are positive")
        unknown = [task for task, value in report["tasks"].items() if value is None]
        if unknown:
            lines.append(f"no score for {', '.join(unknown)}: the test part has one class only")
    return lines + _reliability(predictor)


def _reliability(predictor: Predictor) -> list[str]:
    """Return sentences about the sets and distances of the test part; none for models of earlier versions."""
    report, lines = predictor.report, []
    if found := report.get("sets"):
        labels = counted(found["labels"], "test node" if report["metric"] == "accuracy" else "test label")
        size = f"a set has {found['size']:.2f} classes on average, and {found['empty']:.1%} are empty"
        lines.append(
            f"sets of a coverage of {found['coverage']:.0%} hold the true class of {found['covered']:.1%} of {labels}; "
            f"{size}"
        )
    if "far" in report:
        lines.append(
            f"{report['far']:.1%} of the test part is further from the training part than 99 % of held-out examples"
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
        score = "diverged" if row["score"] is None else f"{100 * row['score']:.1f}"
        rows.append((row["input"], row["model"], "chosen" if is_chosen else "", score))
    title = f"compared by {predictor.report['metric']} {choice['on']}:"
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
    title = f"accuracy on {nodes} with the facts of one predicate exchanged among nodes (with all: "
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
            rows.insert(1, _score_row("constant attention", member["constant_scores"]))
        chosen_by = "cross-validation" if member["scores"]["valid"] is None else "validation"
        notes.append(f"Best epoch by {chosen_by}: {member['best_epoch']} of {member['epochs']}; {member['how']}.")
    return rows, notes


def verdicts(predictor: Predictor) -> list[str]:
    """Return sentences on which model was kept and why, on what attention changes, and on simpler systems."""
    report, model = predictor.report, predictor.config["model"]
    lines = _rests_on(predictor)
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
        f"The model rests most on {name} ({first['used_as']}): without it the accuracy falls from "
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
        words = [_set_words(predictions, i, 0 if predictions.exclusive else k) for i, k in cells]
        labels = [(*label, word) for label, word in zip(labels, words, strict=True)]
    numbers = [(f"{predictions.probabilities[cell]:.1%}", f"{predictions.spread[cell]:.1%}") for cell in cells]
    rows = [(*label, *row) for label, row in zip(labels, numbers, strict=True)]
    if predictions.distance is not None:
        rows = [(*row, f"{predictions.distance[i]:.2f}") for row, (i, _) in zip(rows, cells, strict=True)]
    added = ("distance",) if predictions.distance is not None else ()
    return (*header, "probability", "spread", *added), rows, len(header)


def _set_words(predictions: Predictions, row: int, column: int) -> str:
    """Return the classes of a set with commas."""
    region = predictions.regions[column]
    pairs = zip(region.classes, region.inside[row], strict=True)
    return ", ".join(titled(name, predictions.titles) for name, is_in in pairs if is_in) or "none"


def warning_sentences(predictions: Predictions) -> list[str]:
    """Return a sentence about the examples that are unlike the training data; none if there are none."""
    unlike = [(name, text) for name, text in zip(predictions.names, predictions.warnings, strict=True) if text]
    if not unlike:
        return []
    name, text = unlike[0]
    noun = "node" if predictions.exclusive else "molecule"
    are = "is" if len(unlike) == 1 else "are"
    return [
        f"{counted(len(unlike), noun)} of {len(predictions):,} {are} unlike the training data, such as "
        f"{titled(name, predictions.titles)} ({text}): its prediction may be wrong more often than the report says"
    ]


def node_rows(explanation: NodeExplanation, wide: bool = True) -> tuple[Row, list[Row]]:
    """Return columns and rows of the reasons: literals, the largest effect first, then edges.

    Narrow tables have attention and one effect: in points or, where the probability is saturated, in log-odds.
    """
    columns = ("relation", "source", "target", "attention", "effect, points", "log-odds", "equal share", "choice")
    titles = explanation.titles
    rows: list[Row] = [
        (
            titled(reason.relation, titles),
            titled(reason.source, titles),
            "itself" if reason.target == explanation.node else titled(reason.target, titles),
            f"{reason.attention:.1%}",
            f"{100 * reason.effect:+.1f}",
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
            *("-", f"{100 * reason.effect:+.1f}", f"{reason.log_odds:+.2f}", "-", "-"),
        )
        for reason in explanation.literals
    ]
    rows = of_literals + rows
    if wide:
        return columns, rows
    effect = columns.index("log-odds" if explanation.probability >= SATURATED else "effect, points")
    return (*columns[:4], columns[effect]), [(*row[:4], row[effect]) for row in rows]


def shown(reason: LiteralReason) -> str:
    """Return the value of a literal or, where it is not known, what it is used as."""
    return f'"{reason.value}"' if reason.value else f"({reason.used_as})"


def node_sentences(explanation: NodeExplanation) -> list[str]:
    """Return sentences about the prediction, and about how far attention explains it."""
    titles = explanation.titles
    label = "" if explanation.label is None else f" (labelled {titled(explanation.label, titles)})"
    lines = [
        f"{titled(explanation.node, titles)} is {titled(explanation.predicted, titles)}, with probability "
        f"{explanation.probability:.1%}{label}. Its receptive field has {counted(explanation.num_edges, 'edge')}; "
        f"{explanation.own:.1%} of the attention stays with its own input."
    ]
    if explanation.probability >= SATURATED:
        lines.append("So near to 1, a probability hardly changes: read the effects as changes of its log-odds.")
    if explanation.literals:
        literal = explanation.literals[0]
        whose = "" if literal.node == explanation.node else f" of {titled(literal.node, titles)}"
        lines.append(
            f"The literal with the largest effect is {titled(literal.predicate, titles)} {shown(literal)}{whose}: if "
            f"it were missing, the log-odds would change by {literal.log_odds:+.2f}."
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
        rows: list[Row] = [
            (
                titled(name, explanation.titles),
                f"{attention:.1%}" if attention else "-",
                f"{100 * explanation.effect[name]:+.2f}",
                f"{explanation.log_odds[name]:+.3f}",
                f"{explanation.changed[name]:.1%}",
            )
            for name, attention in _first(explanation.attention, top)
        ]
    else:
        probability = f"{explanation.probability:.1%}"
        sentence = f"{explanation.smiles}: {explanation.task} positive with probability {probability}"
        columns = ("atom or bond", "attention", "effect, points")
        rows = [(name, f"{share:.1%}", f"{100 * effect:+.1f}") for name, share, effect in explanation.named()[:top]]
    return [sentence], columns, rows, 1
