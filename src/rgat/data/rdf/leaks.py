"""Find relations and literals that alone tell the classes of labelled nodes, which often means that they state them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from rgat.data.dataset import MISSING
from rgat.data.rdf.literals import as_moment, as_number
from rgat.data.rdf.reader import Ids, Triples, split_literal

LEAK_ACCURACY = 0.95  # a relation that alone reaches this accuracy probably states the class
MIN_COVERAGE = 0.5  # share of the labelled nodes that such a relation has to reach
MAX_VALUES = 3  # per class: a relation that states the class has about as many values as there are classes,
NODES_PER_VALUE = 10  # or each value is shared by so many labelled nodes
MIN_CLASS = 5  # nodes of a class, so that a relation or value that all of them have is no coincidence


class Leak(NamedTuple):
    """A relation or value that alone determines the classes of labelled nodes.

    Without a class, the values of the relation determine the classes of the nodes that have it. With a class, it is
    the nodes of this class that have the relation, or the value of it, and no others.
    """

    relation: str
    coverage: float  # share of the labelled nodes, or of the class, that have it
    accuracy: float  # share of these whose class it determines, or of those that have it and are of the class
    of_class: str | None = None
    value: str | None = None

    def __str__(self) -> str:
        advice = "if it states the class, leave it out with `drop_predicates` (--drop)"
        if self.of_class is None:
            return (
                f"{self.relation} alone determines the class of {self.accuracy:.0%} of the labelled nodes that have it "
                f"({self.coverage:.0%} of all); {advice}"
            )
        what = self.relation if self.value is None else f"{self.relation} {self.value}"
        return (
            f'{self.accuracy:.0%} of the labelled nodes with {what} are "{self.of_class}", and {self.coverage:.0%} of '
            f"these have it; {advice}"
        )


class Facts(NamedTuple):
    """Relations and values of labelled nodes, one entry for each edge into such a node or literal of it."""

    node: Ids
    relation: Ids
    value: Ids
    relation_names: Sequence[str]  # by id; several relations may share a name
    value_names: Sequence[str]


def find_leaks(facts: Facts, labels: Ids, classes: Sequence[str]) -> list[Leak]:
    """Return the leaks among facts about the nodes that have labels, best first.

    For each relation with few distinct values, a node's class is predicted as the majority class of the other nodes
    with the same value. Names, which are unique, and relations such as co-authorship, which have many values, are not
    such leaks. A relation, or one value of it, is a leak also if it is the mark of a single class, and numbers or dates
    if those next to each other nearly always have the same class.
    """
    counts = np.bincount(labels[labels != MISSING], minlength=len(classes))
    if not counts.sum():
        return []
    has_vote = counts.max() < LEAK_ACCURACY * counts.sum()  # else the majority class alone reaches this accuracy
    leaks: list[Leak] = []
    for number in np.unique(facts.relation).tolist():
        chosen = facts.relation == number
        node, value, name = facts.node[chosen], facts.value[chosen], facts.relation_names[number]
        most = max(MAX_VALUES * len(classes), len(np.unique(node)) // NODES_PER_VALUE)
        if has_vote and len(np.unique(value)) <= most:
            reached, correct = _vote(value, node, labels, len(classes))
            if reached >= MIN_COVERAGE * counts.sum() and correct >= LEAK_ACCURACY * reached:
                leaks.append(Leak(name, reached / int(counts.sum()), correct / reached))
                continue
        reached = len(np.unique(node))
        if has_vote and reached >= MIN_COVERAGE * counts.sum():
            agreement = _agreement(value, node, labels, facts.value_names)
            if agreement >= LEAK_ACCURACY:
                leaks.append(Leak(name, reached / int(counts.sum()), agreement))
                continue
        marks = _marks(np.zeros_like(value), node, labels, counts)
        if marks:
            (_, label, coverage, accuracy), *_ = marks
            leaks.append(Leak(name, coverage, accuracy, classes[label]))
            continue
        for position, label, coverage, accuracy in _marks(value, node, labels, counts):
            leaks.append(Leak(name, coverage, accuracy, classes[label], facts.value_names[position]))
    return sorted(set(leaks), key=lambda leak: (-leak.accuracy, leak.relation, leak.of_class or "", leak.value or ""))


def literal_leaks(triples: Triples, labels: Ids, classes: Sequence[str]) -> list[Leak]:
    """Return the leaks among the literals of the nodes that have labels."""
    is_literal = np.array([name[0] == '"' for name in triples.node_names], dtype=bool)
    subject, relation, value = triples.edges[is_literal[triples.edges[:, 2]]].T
    known = labels[subject] != MISSING
    names = triples.relation_names, triples.node_names
    return find_leaks(Facts(subject[known], relation[known], value[known], *names), labels, classes)


def _vote(value: Any, node: Any, labels: Any, num_classes: int) -> tuple[int, int]:
    """Return how many nodes share a value with another labelled node, and how many get the right class by vote."""
    _, value = np.unique(value, return_inverse=True)
    nodes, voter = np.unique(node, return_inverse=True)
    one_hot = np.eye(num_classes)[labels[node]]
    counts = np.zeros((value.max() + 1, num_classes))
    np.add.at(counts, value, one_hot)
    votes = np.zeros((len(nodes), num_classes))
    np.add.at(votes, voter, counts[value] - one_hot)  # a node has no vote for itself
    has_votes = votes.sum(1) > 0
    return int(has_votes.sum()), int((votes.argmax(1) == labels[nodes])[has_votes].sum())


def _agreement(value: Any, node: Any, labels: Any, names: Sequence[str]) -> float:
    """Return how often neighbours in the order of their numbers or dates have the same class; 0 for other values.

    The borders between classes do not count if each class is in one piece. Equal numbers are in random order.
    """
    numbers = []
    for position in value.tolist():
        if (number := _position(names[position])) is None:
            return 0.0
        numbers.append(number)
    shuffled = np.random.default_rng(0).permutation(len(numbers))
    order = shuffled[np.argsort(np.array(numbers)[shuffled], kind="stable")]
    label = labels[node[order]]
    changes, borders = int((label[1:] != label[:-1]).sum()), len(np.unique(label)) - 1
    is_split = changes == borders and np.bincount(label)[np.unique(label)].min() >= MIN_CLASS
    return 1.0 if is_split else 1.0 - changes / max(len(label) - 1, 1)


def _position(name: str) -> float | None:
    """Return a number, or the place of a date on a line; None for other values."""
    if name[0] != '"':
        return None
    literal = split_literal(name)
    number = as_number(*literal)
    return (as_moment(*literal) or {}).get("position") if number is None else number


def _marks(value: Any, node: Any, labels: Any, counts: Any) -> list[tuple[int, int, float, float]]:
    """Return the values that nearly all nodes of one class have and nearly no others.

    Each comes with the class, the share of the class that has it, and the share of its nodes that are of the class.
    """
    pairs = np.unique(np.stack([value, node], axis=1), axis=0)
    values, inverse, sizes = np.unique(pairs[:, 0], return_inverse=True, return_counts=True)
    label = labels[pairs[:, 1]]
    cells, of_cell = np.unique(inverse * len(counts) + label, return_counts=True)
    found = []
    for cell, count in zip(cells.tolist(), of_cell.tolist(), strict=True):
        position, number = divmod(cell, len(counts))
        accuracy, coverage = count / sizes[position], count / counts[number]
        is_alone = counts[number] >= LEAK_ACCURACY * counts.sum()
        if min(accuracy, coverage) >= LEAK_ACCURACY and counts[number] >= MIN_CLASS and not is_alone:
            found.append((int(values[position]), number, float(coverage), float(accuracy)))
    return found
