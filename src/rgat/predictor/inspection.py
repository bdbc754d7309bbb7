"""What a data set holds, before anything is trained: counts, reasons to refuse it, relations that give classes away."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from rgat.data import MISSING, GraphData, NodeData
from rgat.data.dataset import PARTS

LEAK = 0.95  # a relation that is right this often by itself does more likely state the class than predict it
LEAST_SHARE = 0.5  # of the labelled nodes that it has to reach
MOST_VALUES = 3  # per class: what states a class has about as many values as there are classes
LEAST_EXAMPLES = 2


def check(data: NodeData | GraphData) -> None:
    """Raise, with one clear sentence, unless something can be learned from the data."""
    if isinstance(data, GraphData):
        _check_tasks(data)
    else:
        _check_classes(data)


def _check_classes(data: NodeData) -> None:
    if data.graph.num_edges == 0:
        raise ValueError(f"{data.name}: the graph must have edges, got {data.graph.num_nodes} nodes and no edge")
    counts = data.labels[data.train].bincount(minlength=len(data.classes)).tolist()
    if not sum(counts):
        raise ValueError(f"{data.name}: some nodes must have labels to learn from, got none")
    if len(data.classes) < 2:
        raise ValueError(
            f'{data.name}: labels must be of two classes or more, got one only, "{data.classes[0]}"; '
            "with a single class there is nothing to tell apart"
        )
    for name, count in zip(data.classes, counts, strict=True):
        if count < LEAST_EXAMPLES:
            raise ValueError(
                f"{data.name}: each class must have {LEAST_EXAMPLES} labelled nodes or more to learn from, got {count} "
                f'of "{name}" in the training part of the labels; label more, or leave this class out'
            )


def _check_tasks(data: GraphData) -> None:
    if not len(data.graphs):
        raise ValueError(f"{data.name}: the table must have rows, got none")
    for part in ("train", "valid"):
        labels = data.labels[getattr(data, part)]
        for task, column in zip(data.tasks, labels.t(), strict=True):
            found = sorted(set(column.tolist()) - {MISSING})
            if part == "train" and len(found) < 2:
                got = f"only {found[0]}" if found else "no label at all"
                raise ValueError(
                    f"{data.name}: task {task} must have a 0 and a 1 among the {len(labels)} molecules to learn from, "
                    f"got {got}; leave it out with `tasks` (--tasks), or give more rows"
                )


def describe(data: NodeData | GraphData) -> list[str]:
    """What was understood of the data, a line each."""
    parts = ", ".join(f"{len(getattr(data, part)):,} {part}" for part in PARTS if len(getattr(data, part)))
    given = data.provenance
    if isinstance(data, NodeData):
        kind = "one-hot" if data.x is None else f"{data.x.shape[1]} features of nodes"
        counts = data.labels[data.labels != MISSING].bincount(minlength=len(data.classes)).tolist()
        listed = ", ".join(f"{name} ({count})" for name, count in zip(data.classes, counts, strict=True))
        edges, relations = given.get("edges", data.graph.num_edges), given.get("relations", data.graph.num_relations)
        unknown = given.get("unknown_nodes")
        return [
            f"graph: {data.graph.num_nodes:,} nodes, {edges:,} triples, {relations} relations; input {kind}",
            f"labels: {sum(counts):,} nodes of {len(counts)} classes: {listed}",
            *([f"skipped: {unknown:,} labels of nodes that are not in the graph"] if unknown else []),
            f"split: {parts}",
        ]
    lines = [f"molecules: {len(data.graphs):,}, with {len(data.graphs.x):,} atoms"]
    if given.get("skipped_lines"):
        skipped = given["skipped_lines"]
        more = ", ..." if len(skipped) > 5 else ""
        lines.append(
            f"skipped: {len(skipped)} rows that are no SMILES (lines {', '.join(map(str, skipped[:5]))}{more})"
        )
    for task, column in zip(data.tasks, data.labels.t(), strict=True):
        ones, zeros, missing = ((column == value).sum().item() for value in (1, 0, MISSING))
        lines.append(f"task {task}: {ones:,} positive, {zeros:,} negative, {missing:,} missing")
    if given.get("repeated_molecules"):
        lines.append(
            f"repeated: {given['repeated_molecules']:,} molecules stand in several rows, "
            f"{given['contradictory_molecules']:,} of them with labels that "
            "contradict each other; all rows of a molecule stay in one part, and each counts"
        )
    if given.get("ignored_columns"):
        lines.append(f"columns left aside: {', '.join(given['ignored_columns'])}")
    return [*lines, f"split ({given.get('split', 'given')}): {parts}"]


class Leak(NamedTuple):
    """A relation that alone tells the class of the labelled nodes."""

    relation: str
    reached: float  # share of the labelled nodes
    right: float  # share of these whose class it tells

    def __str__(self) -> str:
        return (
            f"{self.relation} alone tells the class of {self.right:.0%} of the labelled nodes that have it "
            f"({self.reached:.0%} of all); if it states the class, leave it out with `drop_predicates` (--drop)"
        )


def find_leaks(data: NodeData) -> list[Leak]:
    """Relations by which labelled nodes share neighbours with their own class alone.

    For each relation with few values a node is given the class of most other training nodes with the same neighbour.
    Names, numbers and the like are no leak, for nobody else has the same; nor are co-authors, who are many.
    """
    labels = np.full(data.graph.num_nodes, MISSING)
    labels[data.train] = data.labels[data.train]
    source, target = data.graph.edge_index.numpy()
    relation = data.graph.edge_type.numpy()
    if len(data.train) == 0 or data.labels[data.train].bincount().max() >= LEAK * len(data.train):
        return []  # any relation is right that often, by naming the largest class
    known = labels[target] != MISSING  # messages into labelled nodes; inverses make the other direction one of these
    leaks = []
    for number in np.unique(relation[known & (source != target)]).tolist():
        chosen = known & (relation == number) & (source != target)
        if len(np.unique(source[chosen])) > MOST_VALUES * len(data.classes):
            continue
        reached, right = _told(source[chosen], target[chosen], labels, len(data.classes))
        if reached >= LEAST_SHARE * len(data.train) and right >= LEAK * reached:
            name = data.relation_names[data.base_relation[number]]
            leaks.append(Leak(name, reached / len(data.train), right / reached))
    return sorted(set(leaks), key=lambda leak: -leak.right)


def _told(neighbour: Any, node: Any, labels: Any, num_classes: int) -> tuple[int, int]:
    """How many nodes share a neighbour with another labelled one, and for how many these tell the class."""
    _, neighbour = np.unique(neighbour, return_inverse=True)
    _, place = np.unique(node, return_inverse=True)
    own = np.eye(num_classes)[labels[node]]
    counts = np.zeros((neighbour.max() + 1, num_classes))
    np.add.at(counts, neighbour, own)
    votes = np.zeros((place.max() + 1, num_classes))
    np.add.at(votes, place, counts[neighbour] - own)
    truth = np.zeros(len(votes), dtype=np.int64)
    truth[place] = labels[node]
    heard = votes.sum(1) > 0
    return int(heard.sum()), int((votes.argmax(1) == truth)[heard].sum())
