import math

import numpy as np
import pytest

from rgat.predictor.conformal import (
    Question,
    Region,
    class_thresholds,
    hold_out,
    measure_coverage,
    regions,
    threshold,
)


@pytest.mark.parametrize(("count", "coverage", "rank"), [(9, 0.9, 9), (10, 0.9, 10), (19, 0.95, 19), (99, 0.9, 90)])
def test_a_threshold_is_the_order_statistic_of_finite_samples(count, coverage, rank):
    scores = np.random.default_rng(0).permutation(count).astype(float)
    assert threshold(scores, coverage) == rank - 1
    assert threshold(scores[: math.ceil(coverage / (1 - coverage)) - 2], coverage) == math.inf


@pytest.mark.parametrize(("count", "coverage"), [(9, 0.9), (25, 0.9), (40, 0.8), (200, 0.95)])
def test_the_mean_coverage_is_between_that_asked_for_and_one_over_n_more(count, coverage):
    rng = np.random.default_rng(count)
    held = [threshold(rng.exponential(size=count), coverage) for _ in range(4000)]
    covered = 1 - np.exp(-np.array(held))  # the probability of a new score below each
    error = 4 * covered.std() / math.sqrt(len(covered))
    assert coverage - error < covered.mean() < coverage + 1 / (count + 1) + error


def test_frequent_classes_have_thresholds_of_their_own_and_the_others_share_one():
    rng = np.random.default_rng(0)
    classes = np.repeat([0, 1, 2, 3], [49, 48, 30, 200])
    scores = rng.random(len(classes)) + classes
    found = class_thresholds(scores, classes, 5, 0.9)
    assert found[0] == threshold(scores[:49], 0.9) < 1
    assert found[3] == threshold(scores[-200:], 0.9) > 3
    assert found[1] == found[2] == found[4] == threshold(scores[49:127], 0.9)
    few = class_thresholds(scores[:55], classes[:55], 2, 0.9)
    assert few[1] == math.inf  # six examples say nothing about nine in ten


def test_coverage_holds_within_each_class():
    rng = np.random.default_rng(1)
    labels = rng.choice(3, size=60_000, p=[0.8, 0.15, 0.05])
    logits = rng.normal(size=(len(labels), 3)) + np.eye(3)[labels] + [2, 0, 0]  # the first class is overrated
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    questions = [Question("class", slice(0, 3), ("a", "b", "c"))]
    held_out = hold_out(questions, p[:30_000], labels[:30_000, None].astype(float))
    (region,) = regions(questions, p[30_000:], held_out)
    for each in range(3):
        own = labels[30_000:] == each
        assert abs(region.inside[own, each].mean() - 0.9) < 0.02


# A result that is 0 or 1, a number, and a class.
MIXED = [
    Question("toxic", slice(0, 1), ("0", "1")),
    Question("size", slice(1, 2)),
    Question("kind", slice(2, 5), ("a", "b", "c")),
]


def test_questions_are_apart_and_missing_truths_left_out():
    predictions = np.zeros((100, 5))
    predictions[:, 0] = np.linspace(0.01, 1, 100)
    predictions[:, 2:] = [0.5, 0.3, 0.2]
    truth = np.full((100, 3), np.nan)
    truth[50:, 0] = 1
    truth[:19, 1] = np.arange(-10.0, 9.0)
    truth[:60, 2] = 1
    held_out = hold_out(MIXED, predictions, truth)
    assert np.bincount(held_out.groups, minlength=6).tolist() == [0, 50, 19, 0, 60, 0]
    toxic, size, kind = held_out.thresholds(MIXED, 0.9)
    assert toxic.tolist() == [math.inf, pytest.approx(0.45)]  # 46th of 50 scores from 0 to 0.49
    assert size.tolist() == [9.0]
    assert kind.tolist() == [math.inf, pytest.approx(0.7), math.inf]
    found = regions(MIXED, predictions, held_out)
    assert found[0].inside[:, 0].all()
    assert found[0].inside[:, 1].sum() == 46
    assert found[1].inside[0].tolist() == [-9.0, 9.0]
    assert found[2].inside.all()
    assert found[0].cells()[0] == ["0"]
    assert found[1].cells()[0] == [-9.0, 9.0]
    assert found[2].cells()[0] == ["a | b | c"]


def test_the_coverage_is_counted_over_what_is_known():
    inside = np.array([[True, True], [False, False], [True, False], [True, True]])
    found = [
        Region("toxic", ("0", "1"), inside),
        Region("size", (), np.array([[0.0, 1.0], [0.0, 3.0], [5.0, 6.0], [0.0, 1.0]])),
    ]
    truth = np.array([[0, 1.0], [1, 4.0], [0, np.nan], [np.nan, 0.5]])
    assert measure_coverage(found, truth) == {
        "sets": {"covered": 2 / 3, "size": 1.0, "empty": 1 / 3, "labels": 3},
        "intervals": {"size": {"covered": 2 / 3, "width": pytest.approx(5 / 3), "labels": 3}},
    }
    assert measure_coverage(found, np.full((4, 2), np.nan)) == {}
    assert found[0].cells()[1] == ["none"]


@pytest.mark.parametrize("coverage", [0, 1, 90, -0.1, math.nan, True])
def test_a_coverage_is_a_share(coverage):
    held_out = hold_out(MIXED[1:2], np.ones((3, 5)), np.ones((3, 1)))
    with pytest.raises(ValueError, match=r"`coverage` \(--coverage\) must be a share above 0 and below 1"):
        held_out.thresholds(MIXED[1:2], coverage)
