"""Statistics against enumeration, known cases and the paper's own arithmetic."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rgat.experiments.published import PUBLISHED
from rgat.report import statistics as stats

samples = st.lists(st.integers(0, 4), min_size=2, max_size=6)


def enumerate_mann_whitney(a, b):
    """The share of all ways to deal the pooled values whose U is at least, and at most, the one found."""
    pooled = np.array([*a, *b])

    def u(chosen):
        rest = np.delete(pooled, chosen)
        return sum((x > y) + 0.5 * (x == y) for x in pooled[list(chosen)] for y in rest)

    values = [u(chosen) for chosen in itertools.combinations(range(len(pooled)), len(a))]
    found = u(tuple(range(len(a))))
    return np.mean([v >= found for v in values]), np.mean([v <= found for v in values])


@settings(max_examples=25, deadline=None)
@given(samples, samples)
def test_mann_whitney_is_the_enumeration_with_ties(a, b):
    result = stats.mann_whitney(a, b)
    if len(set(a)) == len(set(b)) == 1:
        assert result is None
        return
    greater, less = enumerate_mann_whitney(a, b)
    assert (result.greater, result.less) == pytest.approx((greater, less))
    assert result.two_sided == pytest.approx(min(1, 2 * min(greater, less)))


@pytest.mark.parametrize("size", range(2, 7))
def test_mann_whitney_is_the_enumeration_without_ties(size):
    values = np.random.default_rng(size).permutation(2 * size)
    result = stats.mann_whitney(values[:size], values[size:])
    assert (result.greater, result.less) == pytest.approx(enumerate_mann_whitney(values[:size], values[size:]))


def test_the_papers_p_values_on_tox21_are_those_of_six_against_six():
    """U = 23 and 20 of six against six give the 0.24 and 0.41 that it prints."""
    for u, p in ((23, 0.24), (20, 0.41)):
        b = np.arange(6) * 10.0
        wins = [6, 6, 6, u - 18, 0, 0]
        a = np.array([10 * w - 5 + 0.1 * i for i, w in enumerate(wins)])
        assert np.greater.outer(a, b).sum() == u
        assert round(stats.mann_whitney(a, b).greater, 2) == p


def test_large_samples_agree_with_the_exact_count_at_the_border():
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 12, 25), rng.integers(4, 16, 25)
    exact = stats.mann_whitney(a, b)
    from scipy.stats import mannwhitneyu

    assert exact.less == pytest.approx(mannwhitneyu(a, b, alternative="less", method="asymptotic").pvalue, rel=0.1)
    more = stats.mann_whitney(np.tile(a, 3), np.tile(b, 3))
    assert more.less < exact.less
    assert more.two_sided == pytest.approx(2 * more.less)


@pytest.mark.parametrize(("a", "b"), [([1, 1, 1], [1, 1, 1]), ([1, 1, 1], [2, 2, 2]), ([1], [2, 3, 4]), ([], [1, 2])])
def test_constant_samples_and_single_runs_give_no_p_value(a, b):
    assert stats.mann_whitney(a, b) is None


def test_six_against_six_can_pass_a_family_of_four_but_not_one_of_72():
    least = stats.smallest_p(6, 6)
    assert stats.mann_whitney(range(6, 12), range(6)).two_sided == pytest.approx(least)
    assert 4 * least < stats.SIGNIFICANT < 72 * least


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(-3, 3), min_size=2, max_size=8))
def test_wilcoxon_is_the_enumeration_of_signs(differences):
    nonzero = np.array([d for d in differences if d])
    found = stats.wilcoxon(differences, np.zeros(len(differences)))
    if len(nonzero) < 2:
        assert found is None
        return
    size = np.abs(nonzero)
    rank = np.array([(size < s).sum() + ((size == s).sum() + 1) / 2 for s in size])
    sums = np.array([rank[list(signs)].sum() for signs in itertools.product([True, False], repeat=len(nonzero))])
    w = rank[nonzero > 0].sum()
    assert found == pytest.approx(min(1, 2 * min(np.mean(sums >= w), np.mean(sums <= w))))


def test_wilcoxon_of_many_pairs_is_the_normal_approximation():
    rng = np.random.default_rng(0)
    noise = rng.normal(size=200)
    assert stats.wilcoxon(noise + 0.5, np.zeros(200)) < 1e-6
    assert stats.wilcoxon(noise, np.zeros(200)) > 0.05
    assert stats.wilcoxon([1.0, 2.0], [1.0, 2.0]) is None


def test_holm_on_known_cases():
    assert stats.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert stats.holm([0.5, 0.5]) == [1.0, 1.0]
    assert stats.holm([0.01, None, 0.02]) == [pytest.approx(0.03), None, pytest.approx(0.04)]
    assert stats.holm([]) == []


@settings(deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_never_makes_a_p_value_smaller_nor_changes_their_order(p):
    corrected = stats.holm(p)
    assert all(c >= q for c, q in zip(corrected, p, strict=True))
    assert [corrected[i] for i in np.argsort(p)] == sorted(corrected)


def test_superiority_on_known_cases():
    assert stats.superiority([1, 2], [1, 1]) == (0.5, 0.5, 0.0)
    assert stats.superiority([3], [1, 2, 3, 4]) == (0.5, 0.25, 0.25)
    rng = np.random.default_rng(0)
    assert stats.superiority_interval([5, 6, 7], [1, 2, 3], rng) == (1.0, 1.0)
    assert stats.superiority_interval([5], [1, 2, 3], rng) is None


def test_the_bootstrap_interval_covers_a_known_probability():
    """P(X > Y) of two normal variables one apart is 0.76; nineteen of twenty intervals should hold it."""
    rng = np.random.default_rng(1)
    held = 0
    for _ in range(100):
        low, high = stats.superiority_interval(rng.normal(1, 1, 40), rng.normal(0, 1, 40), rng, times=400)
        held += low < 0.7602 < high
    assert 88 <= held <= 100


def test_the_papers_printed_means_give_its_relative_changes():
    printed = {
        ("aifb", "additive ARGAT", "additive C-ARGAT"): 1.03,
        ("aifb", "multiplicative ARGAT", "multiplicative C-ARGAT"): 0.31,
        ("aifb", "multiplicative WIRGAT", "multiplicative C-WIRGAT"): -0.84,
        ("mutag", "additive WIRGAT", "additive C-WIRGAT"): 0.66,
        ("mutag", "additive ARGAT", "additive C-ARGAT"): 2.90,
        ("mutag", "multiplicative ARGAT", "multiplicative C-ARGAT"): -1.63,
        ("tox21", "multiplicative WIRGAT", "multiplicative C-WIRGAT"): 3.33,
        ("tox21", "multiplicative ARGAT", "multiplicative C-ARGAT"): 4.36,
        ("tox21", "RGCN", "GraphConv"): 0.72,
    }
    for (data, new, old), percent in printed.items():
        change = stats.relative_change(PUBLISHED[data][new]["test"].mean, PUBLISHED[data][old]["test"].mean)
        assert round(100 * change, 2) == percent


def test_the_doubtful_prints_carry_a_note():
    noted = {(data, row, part) for data, rows in PUBLISHED.items() for row, parts in rows.items() for part in parts
             if parts[part].note}  # fmt: skip
    assert ("tox21", "multiplicative ARGAT", "train") in noted
    assert ("tox21", "GraphConv", "train") in noted
    assert {len(PUBLISHED[data]) for data in PUBLISHED} == {13}


def test_intervals_of_means_are_students_and_welchs():
    from scipy import stats as scipy_stats

    a, b = np.array([1.0, 2.0, 4.0]), np.array([0.0, 1.0, 1.5, 3.0])
    low, high = scipy_stats.t.interval(0.95, 2, a.mean(), scipy_stats.sem(a))
    assert stats.half_width(a) == pytest.approx((high - low) / 2)
    welch = scipy_stats.ttest_ind(a, b, equal_var=False).confidence_interval()
    assert stats.difference_half_width(a, b) == pytest.approx((welch.high - welch.low) / 2)
    assert stats.half_width([1.0]) is None
    assert stats.spread([1.0]) is None
    assert stats.difference_half_width([1.0], b) is None
    assert stats.difference_half_width([1.0, 1.0], [2.0, 2.0]) == 0


def test_test_examples_widen_an_interval_by_what_a_binomial_would():
    correct = np.array([[1.0] * 27 + [0.0] * 9] * 5)
    counts = stats.resample_counts(np.random.default_rng(0), 36, 4000)
    replicates = stats.resampled_accuracy(np.stack([1 - correct, correct], axis=-1), np.ones(36), counts)
    assert replicates.mean() == pytest.approx(0.75, abs=0.01)
    assert stats.widened(0.0, replicates) == pytest.approx(1.96 * np.sqrt(0.75 * 0.25 / 36), rel=0.05)
    assert stats.widened(3.0, replicates) > 3.0


def test_auc_on_resampled_examples_is_that_of_the_repeated_examples():
    from rgat.training import roc_auc

    rng = np.random.default_rng(0)
    scores, positive = rng.integers(0, 5, 30).astype(float), rng.random(30) < 0.4
    counts = stats.resample_counts(rng, 30, 20)
    for found, count in zip(stats.resampled_auc(scores, positive, counts), counts.astype(int), strict=True):
        assert found == pytest.approx(roc_auc(np.repeat(scores, count), np.repeat(positive, count)))
    assert np.isnan(stats.resampled_auc(scores, np.zeros(30, bool), counts)).all()
    assert np.isnan(stats.resampled_auc(np.empty(0), np.empty(0, bool), counts[:, :0])).all()


def test_failed_trials_are_at_the_bottom_of_the_distribution():
    values, shares = stats.cumulative([0.5, 0.7, 0.7], failed=1)
    assert values.tolist() == [0.5, 0.7]
    assert shares.tolist() == [0.5, 1.0]
    assert stats.cumulative([])[0].tolist() == []


def test_the_expected_best_of_one_is_the_mean_and_of_many_the_maximum():
    values = [0.0, 1.0, 5.0]
    best = stats.expected_best(values, most=50)
    assert best[0] == pytest.approx(2.0)
    everything = [max(draw) for draw in itertools.product(values, repeat=2)]
    assert best[1] == pytest.approx(np.mean(everything))
    assert best[-1] == pytest.approx(5.0, abs=1e-6)
    assert (np.diff(best) >= 0).all()


def test_an_option_explains_what_it_decides_and_nothing_else():
    rng = np.random.default_rng(0)
    rate = 10 ** rng.uniform(-5, -1, 200)
    ranks = np.argsort(np.argsort(rate)).astype(float)
    assert stats.explained(rate.tolist(), ranks) > 0.9
    assert stats.explained(rng.permutation(rate).tolist(), ranks) < 0.05
    assert stats.explained([bool(r > 1e-3) for r in rate], ranks) > 0.7
    assert stats.explained(["full"] * 200, ranks) is None
    assert stats.explained([1, 2], np.array([1.0, 2.0])) is None
    assert stats.explained([1, 2, 1, 2], np.ones(4)) is None
    assert stats.explained([None, 5, None, 5, 5], np.array([1.0, 4.0, 2.0, 5.0, 3.0])) > 0.4
