"""Conformal prediction: sets of classes and intervals that hold the truth with a stated probability.

Held-out examples get a score that says how badly the model misses their truth: one minus the probability of the true
class, or the absolute error of a number. Of ``n`` such scores, the ``ceil((n + 1) * coverage)``-th smallest is the
threshold. A new example that comes from the same distribution as the held-out ones stays below it with a probability
of at least ``coverage``, and at most ``1 / (n + 1)`` more, whatever the model and the distribution are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

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


def class_thresholds(scores: Array, classes: Ids, num_classes: int, coverage: float) -> Array:
    """Return the threshold of each class, from the scores of held-out examples ``[n]`` and their classes ``[n]``.

    A class with enough examples (49 for a coverage of 90 %) has its own, so that the coverage holds among the examples
    of this class. All other classes share one, so that it holds among their examples together; where even these are too
    few for a finite one, it is infinite, and these classes are in every set.
    """
    is_alone = np.bincount(classes, minlength=num_classes) + 1 >= 1 / (EXCESS * (1 - coverage)) - 1e-9
    rest = threshold(scores[~is_alone[classes]], coverage)
    return np.array([threshold(scores[classes == c], coverage) if is_alone[c] else rest for c in range(num_classes)])


@dataclass(frozen=True)
class HeldOut:
    """Scores of held-out examples, in groups: one per class of each column."""

    scores: Array  # [m]
    groups: Ids  # [m]; column * classes + class
    shape: tuple[int, int]  # number of columns, which are 1 or the tasks, and classes of each; 1 class for numbers

    def thresholds(self, coverage: float) -> Array:
        """Return the threshold of each class in each column, ``[columns, classes]``."""
        check_coverage(coverage)
        columns, classes = self.shape
        found = []
        for column in range(columns):
            own = self.groups // classes == column
            found.append(class_thresholds(self.scores[own], self.groups[own] % classes, classes, coverage))
        return np.array(found).reshape(self.shape)


def held_out_classes(probabilities: Array, labels: Ids) -> HeldOut:
    """Return the scores of held-out examples, from probabilities ``[n, columns, classes]`` and labels ``[n, columns]``.

    Labels that are missing are negative, and left out.
    """
    rows, columns = np.nonzero(labels >= 0)
    classes = labels[rows, columns]
    scores = 1 - probabilities[rows, columns, classes].astype(np.float64)
    _, num_columns, num_classes = probabilities.shape
    return HeldOut(scores, (columns * num_classes + classes).astype(np.int64), (num_columns, num_classes))


def class_sets(probabilities: Array, thresholds: Array) -> NDArray[np.bool_]:
    """Return which classes belong to the set of each example and column, ``[n, columns, classes]``.

    A set may be empty: no class is then as probable as it is for the share ``coverage`` of its held-out examples.
    """
    return 1 - probabilities <= thresholds


def held_out_numbers(errors: Array) -> HeldOut:
    """Return the scores of held-out numbers, from the errors of predictions ``[n, columns]``, NaN where unknown.

    Errors may be divided by a scale of each example, by which `intervals` multiplies.
    """
    rows, columns = np.nonzero(~np.isnan(errors))
    return HeldOut(np.abs(errors[rows, columns]), columns.astype(np.int64), (errors.shape[1], 1))


def intervals(values: Array, thresholds: Array, scale: Array | float = 1.0) -> tuple[Array, Array]:
    """Return the lower and upper bounds of predicted numbers ``[n, columns]``."""
    half = thresholds[:, 0] * scale
    return values - half, values + half


def coverage_of_sets(sets: NDArray[np.bool_], labels: Ids) -> dict[str, float | int]:
    """Return how well sets ``[n, columns, classes]`` cover labels ``[n, columns]``: the report's plain values.

    They are the share of labels inside, the mean number of classes, the share of empty sets, and the number of labels.
    """
    rows, columns = np.nonzero(labels >= 0)
    sizes = sets[rows, columns].sum(1)
    held = sets[rows, columns, labels[rows, columns]]
    shares = {"covered": held.mean(), "size": sizes.mean(), "empty": (sizes == 0).mean()}
    return {**{name: float(share) for name, share in shares.items()}, "labels": len(held)}


def coverage_of_intervals(low: Array, high: Array, values: Array) -> dict[str, float | int]:
    """Return how well intervals cover numbers ``[n, columns]``, NaN where unknown: the report's plain values.

    They are the share of numbers inside, the mean width, and the number of numbers.
    """
    known = ~np.isnan(values)
    held = ((low <= values) & (values <= high))[known]
    width = (high - low)[known]
    return {"covered": float(held.mean()), "width": float(width.mean()), "labels": len(held)}
