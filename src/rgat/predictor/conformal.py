"""Conformal prediction: sets of classes and intervals that hold the truth with a stated probability.

Held-out examples get a score that says how badly the model misses their truth: one minus the probability of the true
class, or the absolute error of a number. Of ``n`` such scores, the ``ceil((n + 1) * coverage)``-th smallest is the
threshold. A new example that comes from the same distribution as the held-out ones stays below it with a probability
of at least ``coverage``, and at most ``1 / (n + 1)`` more, whatever the model and the distribution are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Ids = NDArray[np.int64]
COVERAGE = 0.9  # unless another one is asked for
EXCESS = 0.2  # of `1 - coverage`: by so much a class with its own threshold may exceed the coverage, for rounding up


def check_coverage(coverage: float) -> None:
    """Raise unless a coverage is a share between 0 and 1."""
    if isinstance(coverage, bool) or not 0 < coverage < 1:
        raise ValueError(f"`coverage` (--coverage) must be a share above 0 and below 1, such as 0.9, got {coverage}")


def threshold(scores: Array, coverage: float) -> float:
    """Return the score that a new example exceeds with a probability of at most ``1 - coverage``.

    It is infinite where the scores are fewer than ``coverage / (1 - coverage)``.
    """
    rank = math.ceil((len(scores) + 1) * coverage - 1e-9)  # 0.95 * 20 is not 19 in binary
    return math.inf if rank > len(scores) else float(np.partition(scores, rank - 1)[rank - 1])


def fewest_scores(coverage: float) -> int:
    """Return how many scores a finite `threshold` needs."""
    return math.ceil(round(coverage / (1 - coverage), 6))


def class_thresholds(scores: Array, classes: Ids, num_classes: int, coverage: float) -> Array:
    """Return the threshold of each class, from the scores of held-out examples ``[n]`` and their classes ``[n]``.

    A class with enough examples (49 for a coverage of 90 %) has its own, so that the coverage holds among the examples
    of this class. All other classes share one, so that it holds among their examples together; where even these are too
    few for a finite one, it is infinite, and these classes are in every set.
    """
    is_alone = np.bincount(classes, minlength=num_classes) + 1 >= 1 / (EXCESS * (1 - coverage)) - 1e-9
    rest = threshold(scores[~is_alone[classes]], coverage)
    return np.array([threshold(scores[classes == c], coverage) if is_alone[c] else rest for c in range(num_classes)])


class Question(NamedTuple):
    """One thing that is predicted: a class, a result that is 0 or 1, or a number."""

    name: str
    place: slice  # of its columns among the predictions
    classes: tuple[str, ...] = ()  # a column for each, or one column with the probability of the second; none: a number

    @property
    def num_groups(self) -> int:
        """The number of thresholds: one for each class, or for the number."""
        return max(len(self.classes), 1)

    def of(self, predictions: Array) -> Array:
        """Return the probabilities of the classes, ``[n, classes]``, or the numbers, ``[n, 1]``."""
        own = predictions[:, self.place]
        return np.concatenate([1 - own, own], axis=1) if own.shape[1] < len(self.classes) else own


class Region(NamedTuple):
    """The answers to one question that cannot be ruled out: a set of classes, or an interval, for each example."""

    name: str
    classes: tuple[str, ...]  # none for a number
    inside: NDArray[Any]  # bool [n, classes], or [n, 2] with the lower and upper bounds

    def cells(self) -> list[list[str | float]]:
        """Return the cells of each example: a set as words, or two bounds."""
        if not self.classes:
            return [list(row) for row in self.inside.tolist()]
        rows = ([name for name, is_in in zip(self.classes, row, strict=True) if is_in] for row in self.inside.tolist())
        return [[" | ".join(names) or "none"] for names in rows]


@dataclass(frozen=True)
class HeldOut:
    """Scores of held-out examples, each in a group: a class of a question, or the numbers of a question."""

    scores: Array  # [m]
    groups: Ids  # [m]; numbered question by question

    def thresholds(self, questions: Sequence[Question], coverage: float) -> list[Array]:
        """Return the thresholds of each question: one for each class, or one for numbers."""
        check_coverage(coverage)
        found, start = [], 0
        for question in questions:
            own = (self.groups >= start) & (self.groups < start + question.num_groups)
            found.append(class_thresholds(self.scores[own], self.groups[own] - start, question.num_groups, coverage))
            start += question.num_groups
        return found


def hold_out(questions: Sequence[Question], predictions: Array, truth: Array) -> HeldOut:
    """Return the scores of held-out examples, from predictions ``[n, columns]`` and the truth ``[n, questions]``.

    The truth is the number of a class, or a number; NaN where it is not known.
    """
    scores, groups, start = [], [], 0
    for question, column in zip(questions, truth.T, strict=True):
        rows = np.flatnonzero(~np.isnan(column))
        found, known = question.of(predictions)[rows].astype(np.float64), column[rows]
        number = known.astype(np.int64) if question.classes else np.zeros(len(rows), dtype=np.int64)
        scores.append(1 - found[np.arange(len(rows)), number] if question.classes else np.abs(found[:, 0] - known))
        groups.append(start + number)
        start += question.num_groups
    return HeldOut(np.concatenate(scores), np.concatenate(groups))


def regions(
    questions: Sequence[Question], predictions: Array, held_out: HeldOut, coverage: float = COVERAGE
) -> tuple[Region, ...]:
    """Return the sets and intervals of a coverage.

    A set may be empty: no class is then as probable as it is for the share ``coverage`` of its held-out examples.
    """
    found = []
    for question, limits in zip(questions, held_out.thresholds(questions, coverage), strict=True):
        own = question.of(predictions)
        inside = 1 - own <= limits if question.classes else np.concatenate([own - limits, own + limits], axis=1)
        found.append(Region(question.name, question.classes, inside))
    return tuple(found)


def measure_coverage(found: Sequence[Region], truth: Array) -> dict[str, Any]:
    """Return how well regions cover the truth ``[n, questions]``, NaN where it is not known: a report's plain values.

    Of ``sets`` they are the share that holds the true class, the mean number of classes, the share of empty sets and
    the number of sets; of ``intervals``, by name, the share that holds the number, the mean width, and their number.
    The width is None where too few examples were held out for bounded intervals.
    """
    held: list[NDArray[np.bool_]] = []
    sizes: list[Ids] = []
    numbers = {}
    for region, column in zip(found, truth.T, strict=True):
        rows = np.flatnonzero(~np.isnan(column))
        inside, known = region.inside[rows], column[rows]
        if region.classes:
            held.append(inside[np.arange(len(rows)), known.astype(np.int64)])
            sizes.append(inside.sum(1))
        elif len(rows):
            covered = float(((inside[:, 0] <= known) & (known <= inside[:, 1])).mean())
            width = float((inside[:, 1] - inside[:, 0]).mean())
            bounded = width if math.isfinite(width) else None
            numbers[region.name] = {"covered": covered, "width": bounded, "labels": len(rows)}
    report: dict[str, Any] = {"intervals": numbers} if numbers else {}
    if sum(map(len, held)):
        all_held, size = np.concatenate(held), np.concatenate(sizes)
        shares = {"covered": all_held.mean(), "size": size.mean(), "empty": (size == 0).mean()}
        report["sets"] = {**{name: float(share) for name, share in shares.items()}, "labels": len(size)}
    return report
