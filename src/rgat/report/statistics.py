"""Statistics as pure functions on arrays; they return None where the data are too few for a number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
SIGNIFICANT = 0.05  # the paper's level
EXACT = 50  # observations up to which p-values are exact: a float64 still counts all arrangements exactly


@dataclass(frozen=True)
class MannWhitney:
    """p-values of the Mann-Whitney U test: first above second, first below second, either."""

    greater: float
    less: float
    two_sided: float


def mann_whitney(first: ArrayLike, second: ArrayLike) -> MannWhitney | None:
    """Test whether values of one sample tend to be larger than those of the other.

    Up to 50 observations the p-values are exact, also with ties: the share of all assignments of the pooled values to
    the two samples that are at least as extreme. With more, they come from the normal approximation with corrections
    for ties and continuity. A sample of fewer than two observations, or two constant samples, give no p-value.
    """
    a, b = np.asarray(first, float), np.asarray(second, float)
    if min(len(a), len(b)) < 2 or len(np.unique(a)) == len(np.unique(b)) == 1:
        return None
    if len(a) + len(b) > EXACT:
        from scipy.stats import mannwhitneyu

        greater, less = (
            float(mannwhitneyu(a, b, alternative=side, method="asymptotic").pvalue) for side in ("greater", "less")
        )
    else:
        doubled, counts = _doubled_ranks(np.concatenate([a, b]))
        rank_sum = int(doubled[: len(a)].sum())
        ways = _rank_sum_ways(counts, len(a))
        total = ways.sum()
        greater, less = float(ways[rank_sum:].sum() / total), float(ways[: rank_sum + 1].sum() / total)
    return MannWhitney(greater, less, min(1.0, 2 * min(greater, less)))


def _doubled_ranks(values: Array) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return twice the mid-rank of each value, a whole number, and the sizes of the groups of ties."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (2 * last - counts + 1)[inverse], counts


def _rank_sum_ways(counts: NDArray[np.int64], size: int) -> Array:
    """Count, for each doubled rank sum, the ways to choose ``size`` of the ranked values with this sum."""
    doubled = 2 * np.cumsum(counts) - counts + 1
    ways = np.zeros((size + 1, int((doubled * counts).sum()) + 1))  # [taken so far, doubled rank sum]
    ways[0, 0] = 1
    for rank, count in zip(doubled.tolist(), counts.tolist(), strict=True):
        new = ways.copy()
        for taken in range(1, min(count, size) + 1):
            shift = taken * rank
            new[taken:, shift:] += math.comb(count, taken) * ways[: size + 1 - taken, : ways.shape[1] - shift]
        ways = new
    return np.asarray(ways[size])


def mid_ranks(values: ArrayLike) -> Array:
    """Return ranks from 1; equal values share their mean rank."""
    return _doubled_ranks(np.asarray(values, float))[0] / 2


def smallest_p(first: int, second: int) -> float:
    """Return the smallest two-sided p-value that samples of these sizes can give."""
    return min(1.0, 2 / math.comb(first + second, first))


def wilcoxon(first: ArrayLike, second: ArrayLike) -> float | None:
    """Return the two-sided p-value of the signed-rank test on unequal pairs; None for fewer than two of them.

    Up to 50 unequal pairs it is exact, also with ties: the share of all assignments of signs at least as extreme.
    """
    differences = np.asarray(first, float) - np.asarray(second, float)
    differences = differences[differences != 0]
    if len(differences) < 2:
        return None
    if len(differences) > EXACT:
        from scipy.stats import wilcoxon as signed_rank

        return float(signed_rank(differences, method="approx", correction=True).pvalue)
    doubled, _ = _doubled_ranks(np.abs(differences))
    rank_sum = int(doubled[differences > 0].sum())
    ways = np.ones(1)
    for rank in doubled.tolist():
        ways = np.concatenate([ways, np.zeros(rank)]) + np.concatenate([np.zeros(rank), ways])
    return min(1.0, 2 * float(min(ways[rank_sum:].sum(), ways[: rank_sum + 1].sum()) / ways.sum()))


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Apply Holm's correction in one family; a missing p-value still counts in the size of the family."""
    order = sorted((p, i) for i, p in enumerate(p_values) if p is not None)
    corrected: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for step, (p, i) in enumerate(order):
        corrected[i] = largest = max(largest, min(1.0, p * (len(p_values) - step)))
    return corrected


def superiority(first: ArrayLike, second: ArrayLike) -> tuple[float, float, float]:
    """Return the shares of pairs in which the value of the first sample is above, equal to and below the other."""
    sign = np.sign(np.subtract.outer(np.asarray(first, float), np.asarray(second, float)))
    return tuple(float(np.mean(sign == s)) for s in (1, 0, -1))  # type: ignore[return-value]


def superiority_interval(
    first: ArrayLike, second: ArrayLike, rng: np.random.Generator, times: int = 2000
) -> tuple[float, float] | None:
    """Return a 95 % bootstrap interval of the share of pairs with the first above; None below two values a sample."""
    a, b = np.asarray(first, float), np.asarray(second, float)
    if min(len(a), len(b)) < 2:
        return None
    above = np.greater.outer(a, b).astype(float)
    counts_a, counts_b = resample_counts(rng, len(a), times), resample_counts(rng, len(b), times)
    shares = ((counts_a @ above) * counts_b).sum(1) / above.size
    low, high = np.quantile(shares, (0.025, 0.975))
    return float(low), float(high)


def resample_counts(rng: np.random.Generator, size: int, times: int) -> Array:
    """Return how often each of ``size`` items occurs in each of ``times`` bootstrap samples: ``[times, size]``."""
    return rng.multinomial(size, np.full(size, 1 / size), size=times).astype(float)


def relative_change(new: float, old: float) -> float:
    """Return the change from ``old`` to ``new`` as a share of ``old``."""
    return (new - old) / old


def spread(values: ArrayLike) -> float | None:
    """Return the standard deviation of the sample; None below two values."""
    numbers = np.asarray(values, float)
    return float(numbers.std(ddof=1)) if len(numbers) > 1 else None


def half_width(values: ArrayLike) -> float | None:
    """Return half of Student's 95 % interval of the mean; None below two values."""
    from scipy.stats import t

    deviation = spread(values)
    if deviation is None:
        return None
    n = len(np.asarray(values))
    return float(t.ppf(0.975, n - 1)) * deviation / math.sqrt(n)


def difference_half_width(first: ArrayLike, second: ArrayLike) -> float | None:
    """Return half of Welch's 95 % interval of the difference of two means; None below two values a sample."""
    samples = [np.asarray(first, float), np.asarray(second, float)]
    if min(map(len, samples)) < 2:
        return None
    return welch_half_width([(float(s.std(ddof=1)), len(s)) for s in samples])


def welch_half_width(samples: Sequence[tuple[float, int]]) -> float:
    """Return the same from the standard deviations and sizes of samples with at least two values each."""
    from scipy.stats import t

    errors = [deviation**2 / size for deviation, size in samples]
    total = sum(errors)
    if total == 0:
        return 0.0
    freedom = total**2 / sum(e**2 / (size - 1) for e, (_, size) in zip(errors, samples, strict=True))
    return float(t.ppf(0.975, freedom)) * math.sqrt(total)


def widened(seeds: float, replicates: Array) -> float:
    """Widen a half width over seeds by the spread of the estimate on resampled test examples.

    The two sources of variance are independent, so squares add.
    """
    return math.hypot(seeds, 1.96 * float(replicates.std()))


def resampled_accuracy(outputs: np.ndarray, labels: np.ndarray, counts: Array) -> Array:
    """Return the runs' mean accuracy on resampled examples, ``[times]``; outputs are ``[runs, examples, classes]``."""
    correct = (outputs.argmax(-1) == labels).mean(0)
    return np.asarray(counts @ correct / counts.sum(1))


def resampled_auc(scores: Array, positive: NDArray[np.bool_], counts: Array) -> Array:
    """Return the ROC-AUC of one task on resampled examples, ``[times]``; NaN where a class is missing.

    Args:
        scores: ``[examples]``, larger for examples predicted positive.
        positive: ``[examples]``, the labels.
        counts: ``[times, examples]``, from ``resample_counts``.
    """
    if not len(scores):
        return np.full(len(counts), np.nan)
    order = np.argsort(scores, kind="stable")
    starts = np.flatnonzero(np.r_[True, np.diff(scores[order]) > 0])  # first index of each group of equal scores
    ordered = counts[:, order]
    hits = np.add.reduceat(ordered * positive[order], starts, axis=1)
    misses = np.add.reduceat(ordered * ~positive[order], starts, axis=1)
    below = np.cumsum(misses, axis=1) - misses / 2  # ties count half
    pairs = hits.sum(1) * misses.sum(1)
    area = np.full(len(counts), np.nan)
    np.divide((hits * below).sum(1), pairs, out=area, where=pairs > 0)
    return area


def cumulative(values: ArrayLike, failed: int = 0) -> tuple[Array, Array]:
    """Return the distinct values and the share of trials at or below each; failed trials are below every value."""
    numbers = np.asarray(values, float)
    distinct, counts = np.unique(numbers, return_counts=True)
    return distinct, (failed + np.cumsum(counts)) / max(len(numbers) + failed, 1)


def expected_best(values: ArrayLike, most: int | None = None) -> Array:
    """Return the expected largest of 1, 2, ... values drawn with replacement from ``values``."""
    ordered = np.sort(np.asarray(values, float))
    n = len(ordered)
    draws = np.arange(1, (most or n) + 1)[:, None]
    rank = np.arange(n + 1) / n
    return np.asarray(np.diff(rank**draws, axis=1) @ ordered)


def explained(options: Sequence[object], ranks: Array, bins: int = 4) -> float | None:
    """Return the share of the variance of ``ranks`` that one option explains alone, corrected for chance, at least 0.

    Numbers with more than ``bins`` distinct values are grouped into bins of equal size. None if the option or the ranks
    never vary.
    """
    numeric = all(isinstance(option, int | float) and not isinstance(option, bool) for option in options)
    if numeric and len(set(options)) > bins:
        numbers = np.array(options, float)
        edges = np.unique(np.quantile(numbers, np.linspace(0, 1, bins + 1)[1:-1]))
        labels = np.searchsorted(edges, numbers, side="right")
    else:
        names = sorted({repr(option) for option in options})
        labels = np.array([names.index(repr(option)) for option in options])
    _, labels, counts = np.unique(labels, return_inverse=True, return_counts=True)
    total = float(((ranks - ranks.mean()) ** 2).sum())
    if len(counts) < 2 or len(ranks) <= len(counts) or total == 0:
        return None
    means = np.bincount(labels, weights=ranks) / counts
    within = float(((ranks - means[labels]) ** 2).sum())
    return max(0.0, 1 - (within / (len(ranks) - len(counts))) / (total / (len(ranks) - 1)))
