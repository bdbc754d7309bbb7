"""Inspect a data set before training: refuse it if nothing can be learned, describe it, find label leaks."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from rgat.data import MISSING, GraphData, NodeData
from rgat.data.dataset import PARTS
from rgat.data.molecules.smiles import NUM_ATOM_FEATURES
from rgat.data.rdf import leaks
from rgat.data.rdf.features import learn_vocabulary, read_vocabulary
from rgat.data.rdf.featurised import is_open, triples_of
from rgat.data.rdf.leaks import Facts, Leak
from rgat.data.targets import Target, places
from rgat.predictor.words import counted, listed, short

MIN_EXAMPLES = 2  # training nodes of each class
MOST_CLASSES = 40  # to describe
LITERAL_COLUMNS = ("predicate", "used as", "values", "nodes")
_USES = {"date": "date or time", "category": "one column per value", "text": "words and n-grams"}


def check(data: NodeData | GraphData) -> None:
    """Raise unless there are enough labels to learn from."""
    if isinstance(data, NodeData) and data.graph.num_edges == 0:
        raise ValueError(f"{data.name}: the graph must have edges, got {data.graph.num_nodes} nodes and no edge")
    if isinstance(data, NodeData) and getattr(data.graph, "edge_attr", None) is not None:
        raise ValueError(
            f"{data.name}: the graph must have no edge features here, got some; train with `rgat.training.fit` and a "
            "model of `edge_dim=`, or leave them out"
        )
    if data.values is not None:
        _check_targets(data)
        return
    if isinstance(data, GraphData):
        _check_tasks(data)
        return
    counts = data.labels[data.train].bincount(minlength=len(data.classes)).tolist()
    if not sum(counts):
        raise ValueError(f"{data.name}: some nodes must have labels to learn from, got none")
    if len(data.classes) < 2:
        raise ValueError(
            f'{data.name}: labels must be of two classes or more, got one only, "{data.classes[0]}"; '
            "add labels of another class"
        )
    for name, count in zip(data.classes, counts, strict=True):
        if count < MIN_EXAMPLES:
            raise ValueError(
                f"{data.name}: each class must have {MIN_EXAMPLES} labelled nodes or more to learn from, got {count} "
                f'of "{name}" in the training part; label more, or leave this class out'
            )


def _check_targets(data: NodeData | GraphData) -> None:
    """Raise unless each target has examples in the training part that differ."""
    assert data.values is not None
    for target, place in places(data.targets):
        learned = data.values[data.train, place]
        known = learned[~learned.isnan().any(1)]
        advice = "give more rows, or leave the column out"
        if len(known) < MIN_EXAMPLES:
            raise ValueError(
                f"{data.name}: {target.name} must have {MIN_EXAMPLES} values or more to learn from in the training "
                f"part, got {len(known)}; {advice}"
            )
        if target.kind == "regression" and bool((known == known[0]).all()):
            raise ValueError(
                f"{data.name}: {target.name} must have different values to learn from in the training part, got only "
                f"{float(known[0, 0]):g}; {advice}"
            )
        if target.kind == "regression" and data.bounds is not None:
            exact = learned[(data.bounds[data.train, place] == 0).all(1), 0]
            different = len(set(exact[~exact.isnan()].tolist()))
            if different < MIN_EXAMPLES:
                raise ValueError(
                    f"{data.name}: {target.name} must have {MIN_EXAMPLES} different values or more that are no bounds "
                    f"in the training part, got {different}; {advice}"
                )
        _check_classes(data.name, target, known.sum(0).tolist(), len(known))


def _check_classes(name: str, target: Target, counts: list[float], total: int) -> None:
    """Raise unless two classes, or a label and its absence, have examples; others may be too rare to be learned."""
    if target.kind == "regression":
        return
    if target.kind == "multi-class":
        is_enough, need = sum(count > 0 for count in counts) > 1, "two classes or more"
    else:
        is_enough, need = any(0 < count < total for count in counts), "rows with a label and rows without it"
    if not is_enough:
        raise ValueError(
            f"{name}: {target.name} must have {need} to learn from among the {total} known values of the training "
            "part, got the same in all; give more rows, or leave the column out"
        )


def _check_tasks(data: GraphData) -> None:
    if not len(data.graphs):
        raise ValueError(f"{data.name}: the table must have rows, got none")
    labels = data.labels[data.train]
    for task, column in zip(data.tasks, labels.t(), strict=True):
        values = sorted(set(column.tolist()) - {MISSING})
        if len(values) < 2:
            got = f"only {values[0]}" if values else "no label at all"
            raise ValueError(
                f"{data.name}: task {task} must have a 0 and a 1 among the {len(labels)} molecules to learn from, "
                f"got {got}; leave it out with `tasks` (--tasks), or give more rows"
            )


def describe(data: NodeData | GraphData) -> list[str]:
    """Return lines that describe the data: counts, classes or tasks, what was skipped, the split, and label leaks."""
    parts = ", ".join(f"{len(getattr(data, part)):,} {part}" for part in PARTS if len(getattr(data, part)))
    provenance = data.provenance
    if isinstance(data, NodeData):
        one_hot = "without node features" if data.is_stored else "one-hot"
        one_hot = "one-hot nodes or features" if is_open(data) else one_hot
        features = one_hot if data.x is None else counted(data.x.shape[1], "node feature")
        counts = data.labels[data.labels != MISSING].bincount(minlength=len(data.classes)).tolist()
        labelled = counted(sum(counts), "node")
        sizes = ", ".join(f"{name} ({count})" for name, count in zip(data.classes, counts, strict=True))
        edges = provenance.get("edges", data.graph.num_edges)
        relations = provenance.get("relations", data.graph.num_relations)
        unknown, invalid = provenance.get("unknown_nodes"), provenance.get("invalid_lines")
        return [
            f"graph: {counted(data.graph.num_nodes, 'node')}, {counted(edges, 'triple')}, "
            f"{counted(relations, 'relation')}; input {features}",
            *_describe_use(data),
            f"labels: {labelled} of {counted(len(counts), 'class', 'classes')}: {sizes}"
            if data.values is None
            else f"labels: {labelled}",
            *_describe_targets(data),
            *(
                [f"skipped: {counted(invalid['count'], 'invalid RDF line')}, the first: {invalid['first']}"]
                if invalid
                else []
            ),
            *([f"skipped: {counted(unknown, 'label')} of nodes that are not in the graph"] if unknown else []),
            f"split: {parts}",
            *(f"warning: {leak}" for leak in find_leaks(data)),
        ]
    lines = [f"molecules: {len(data.graphs):,}, with {counted(len(data.graphs.x), 'atom')}"]
    if skipped := provenance.get("skipped_lines"):
        more = ", ..." if len(skipped) > 5 else ""
        lines.append(
            f"skipped: {counted(len(skipped), 'row')} with invalid SMILES (line{'s' * (len(skipped) > 1)} "
            f"{', '.join(map(str, skipped[:5]))}{more})"
        )
    lines += _describe_targets(data)
    for task, column in zip(data.tasks, data.labels.t(), strict=True) if data.values is None else ():
        ones, zeros, missing = ((column == value).sum().item() for value in (1, 0, MISSING))
        lines.append(f"task {task}: {ones:,} positive, {zeros:,} negative, {missing:,} missing")
    if provenance.get("repeated_molecules"):
        contradictory = f"{provenance['contradictory_molecules']:,} of them with contradictory labels"
        lines.append(
            f"repeated: {counted(provenance['repeated_molecules'], 'molecule')} with several rows"
            f"{f', {contradictory}' if data.values is None else ''}; "
            "all rows of a molecule are in the same part, and each counts"
        )
    if "mixtures" in provenance:
        done = (
            "only the largest fragment of each was kept"
            if provenance["fragments"] == "largest"
            else "all fragments were kept (--fragments largest keeps the largest)"
        )
        lines.append(f"salts and mixtures: {counted(provenance['mixtures'], 'molecule')} of several fragments; {done}")
    if provenance.get("stereo_molecules"):
        is_used = data.graphs.edge_attr is not None or data.in_channels > NUM_ATOM_FEATURES
        lines.append(
            f"stereo: {counted(provenance['stereo_molecules'], 'molecule')} with stereo marks, which the model "
            f"{'reads' if is_used else 'ignores'}; "
            f"{counted(provenance['stereoisomers'], 'structure')} in several stereoisomers, "
            f"{provenance['contradictory_isomers']:,} of them with contradictory labels"
        )
    lines += [f"warning: {each}" for each in _missing_classes(data)]
    if provenance.get("ignored_columns"):
        lines.append(f"ignored columns: {', '.join(provenance['ignored_columns'])}")
    by = f" by {provenance['split_column']}" if "split_column" in provenance else ""
    return [*lines, f"split ({provenance.get('split', 'given')}{by}): {parts}"]


def _missing_classes(data: GraphData) -> list[str]:
    """Return a sentence for each task that has both classes, but in some part only one."""
    sentences = []
    for task, column in zip(data.tasks, data.labels.t(), strict=True) if data.values is None else ():
        for part in PARTS:
            labels = column[getattr(data, part)]
            for value, word in ((1, "positive"), (0, "negative")):
                if len(labels) and (column == value).any() and not (labels == value).any():
                    sentences.append(f"the {part} part has no {word} of {task}; --split stratified may help")
    return sentences


def _describe_targets(data: NodeData | GraphData) -> list[str]:
    """Return a line for each target with values: its kind, its values, and how many are missing."""
    lines: list[str] = []
    if data.values is None:
        return lines
    for target, place in places(data.targets):
        values = data.values[:, place]
        known = values[~values.isnan().any(1)]
        missing = int((data.labels != MISSING).sum()) if isinstance(data, NodeData) else len(values)
        missing -= len(known)
        if target.kind == "regression":
            unit = f" {target.unit}" if target.unit else ""
            shown = f"from {float(known.min()):.4g} to {float(known.max()):.4g}{unit}, training mean {target.mean:.4g}"
            if data.bounds is not None and (count := int((data.bounds[:, place] != 0).sum())):
                shown += f", {counted(count, 'bound')}"
        else:
            names = target.classes if target.width > 1 else ("positive",)
            counts = zip(names, known.sum(0).long().tolist(), strict=False)
            shown = ", ".join(f"{name} ({count:,})" for name, count in list(counts)[:MOST_CLASSES])
            shown += f" and {target.width - MOST_CLASSES} more" if target.width > MOST_CLASSES else ""
        lines.append(f"target {target.name} ({target.kind}): {shown}; {missing:,} missing")
    return lines


def find_leaks(data: NodeData) -> list[Leak]:
    """Return the relations and literals that alone tell the classes of training nodes."""
    if data.values is not None:
        return []
    labels = np.full(data.graph.num_nodes, MISSING)
    labels[data.train] = data.labels[data.train]
    if data.is_stored:
        graph: Any = data.graph
        source, target, relation = (each.numpy() for each in graph.incoming.into(data.train))
    else:
        (source, target), relation = data.graph.edge_index.numpy(), data.graph.edge_type.numpy()
    into_labelled = (labels[target] != MISSING) & (source != target)  # inverse relations cover the other direction
    names = [data.relation_names[base] for base in data.base_relation]
    facts = Facts(target[into_labelled], relation[into_labelled], source[into_labelled], names, data.node_names)
    of_literals = [Leak(**leak) for leak in data.provenance.get("literal_leaks", [])]
    return [*leaks.find_leaks(facts, labels, data.classes), *of_literals]


def _describe_use(data: NodeData) -> list[str]:
    """Return lines that say what the predicates are used as."""
    names = data.relation_names[: data.provenance.get("relations", data.graph.num_relations)]
    lines = [f"edges: {counted(len(names), 'predicate')} (" + listed(names) + ")"]
    vocabulary = data.provenance.get("vocabulary")
    if vocabulary and vocabulary["types"] is not None:
        lines.append(f"features of types: {counted(len(vocabulary['types']), 'type')} ({listed(vocabulary['types'])})")
    if vocabulary and vocabulary["degrees"] is not None:
        lines.append(f"features of degrees: of {counted(len(vocabulary['degrees']), 'predicate')}, in and out")
    if vocabulary and vocabulary["numbers"] is not None:
        lines.append(f"features of numbers: {listed(list(vocabulary['numbers'])) or 'none'}; of text: all others")
    if is_open(data) or (vocabulary and vocabulary.get("literals") is not None):
        return lines  # `literal_rows` has the rest
    if data.is_stored:
        return lines  # its names are not read as a whole
    is_literal = torch.tensor([name[0] == '"' for name in data.node_names], dtype=torch.bool)
    if is_literal.any():
        used = np.unique(data.graph.edge_type[is_literal[data.graph.edge_index[1]]].numpy()).tolist()
        valued = [data.relation_names[number] for number in used if number < len(names)]
        lines.append(
            f"literals: values of {listed(valued)} are only nodes, which equal values share; "
            "--features literals reads them as numbers and text"
        )
    return lines


def literal_rows(data: NodeData | GraphData) -> list[tuple[str, ...]]:
    """Return a row for each predicate whose literals are features, or may become these: its use and its counts."""
    if isinstance(data, GraphData):
        return []
    vocabulary = read_vocabulary(data.provenance)
    if vocabulary is None and is_open(data):
        vocabulary = learn_vocabulary(triples_of(data), ("literals",))
    encoders = (vocabulary.literals if vocabulary else None) or {}
    return [
        (short(name), _USES.get(encoder.kind, encoder.kind), f"{encoder.values:,}", f"{encoder.nodes:,}")
        for name, encoder in encoders.items()
    ]
