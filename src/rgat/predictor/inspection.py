"""Inspect a data set before training: refuse it if nothing can be learned, describe it, find label leaks."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from rgat.data import MISSING, GraphData, NodeData
from rgat.data.dataset import PARTS

LEAK_ACCURACY = 0.95  # a relation that alone reaches this accuracy probably states the class
MIN_COVERAGE = 0.5  # share of the labelled nodes that such a relation has to reach
MAX_VALUES = 3  # per class: a relation that states the class has about as many values as there are classes
MIN_EXAMPLES = 2  # training nodes of each class


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """Return a number and a noun in its singular or plural form."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"


def check(data: NodeData | GraphData) -> None:
    """Raise unless there are enough labels to learn from."""
    if isinstance(data, GraphData):
        _check_tasks(data)
        return
    if data.graph.num_edges == 0:
        raise ValueError(f"{data.name}: the graph must have edges, got {data.graph.num_nodes} nodes and no edge")
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
        features = "one-hot" if data.x is None else counted(data.x.shape[1], "node feature")
        counts = data.labels[data.labels != MISSING].bincount(minlength=len(data.classes)).tolist()
        listed = ", ".join(f"{name} ({count})" for name, count in zip(data.classes, counts, strict=True))
        edges = provenance.get("edges", data.graph.num_edges)
        relations = provenance.get("relations", data.graph.num_relations)
        unknown, invalid = provenance.get("unknown_nodes"), provenance.get("invalid_lines")
        return [
            f"graph: {counted(data.graph.num_nodes, 'node')}, {counted(edges, 'triple')}, "
            f"{counted(relations, 'relation')}; input {features}",
            f"labels: {counted(sum(counts), 'node')} of {counted(len(counts), 'class', 'classes')}: {listed}",
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
    for task, column in zip(data.tasks, data.labels.t(), strict=True):
        ones, zeros, missing = ((column == value).sum().item() for value in (1, 0, MISSING))
        lines.append(f"task {task}: {ones:,} positive, {zeros:,} negative, {missing:,} missing")
    if provenance.get("repeated_molecules"):
        lines.append(
            f"repeated: {counted(provenance['repeated_molecules'], 'molecule')} with several rows, "
            f"{provenance['contradictory_molecules']:,} of them with contradictory labels; "
            "all rows of a molecule are in the same part, and each counts"
        )
    if provenance.get("ignored_columns"):
        lines.append(f"ignored columns: {', '.join(provenance['ignored_columns'])}")
    return [*lines, f"split ({provenance.get('split', 'given')}): {parts}"]


class Leak(NamedTuple):
    """A relation whose values alone determine the classes of labelled nodes."""

    relation: str
    coverage: float  # share of the labelled nodes that have the relation
    accuracy: float  # share of these whose class it determines

    def __str__(self) -> str:
        return (
            f"{self.relation} alone determines the class of {self.accuracy:.0%} of the labelled nodes that have it "
            f"({self.coverage:.0%} of all); if it states the class, leave it out with `drop_predicates` (--drop)"
        )


def find_leaks(data: NodeData) -> list[Leak]:
    """Return the relations whose neighbours alone determine the classes of training nodes.

    For each relation with few distinct neighbours, a node's class is predicted as the majority class of the other
    training nodes with the same neighbour. Names and numbers, which are unique, and relations such as co-authorship,
    which have many values, are not leaks.
    """
    labels = np.full(data.graph.num_nodes, MISSING)
    labels[data.train] = data.labels[data.train]
    source, target = data.graph.edge_index.numpy()
    relation = data.graph.edge_type.numpy()
    if len(data.train) == 0 or data.labels[data.train].bincount().max() >= LEAK_ACCURACY * len(data.train):
        return []  # the majority class alone reaches this accuracy
    into_labelled = (labels[target] != MISSING) & (source != target)  # inverse relations cover the other direction
    leaks = []
    for number in np.unique(relation[into_labelled]).tolist():
        chosen = into_labelled & (relation == number)
        if len(np.unique(source[chosen])) > MAX_VALUES * len(data.classes):
            continue
        reached, correct = _vote(source[chosen], target[chosen], labels, len(data.classes))
        if reached >= MIN_COVERAGE * len(data.train) and correct >= LEAK_ACCURACY * reached:
            name = data.relation_names[data.base_relation[number]]
            leaks.append(Leak(name, reached / len(data.train), correct / reached))
    return sorted(set(leaks), key=lambda leak: -leak.accuracy)


def _vote(neighbour: Any, node: Any, labels: Any, num_classes: int) -> tuple[int, int]:
    """Return how many nodes share a neighbour with another labelled node, and how many get the right class by vote."""
    _, neighbour = np.unique(neighbour, return_inverse=True)
    nodes, voter = np.unique(node, return_inverse=True)
    one_hot = np.eye(num_classes)[labels[node]]
    counts = np.zeros((neighbour.max() + 1, num_classes))
    np.add.at(counts, neighbour, one_hot)
    votes = np.zeros((len(nodes), num_classes))
    np.add.at(votes, voter, counts[neighbour] - one_hot)  # a node has no vote for itself
    has_votes = votes.sum(1) > 0
    return int(has_votes.sum()), int((votes.argmax(1) == labels[nodes])[has_votes].sum())
