import math

import numpy as np
import pytest

from rgat.predictor.conformal import (
    class_sets,
    class_thresholds,
    coverage_of_intervals,
    coverage_of_sets,
    held_out_classes,
    held_out_numbers,
    intervals,
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
    held_out = held_out_classes(p[:30_000, None], labels[:30_000, None])
    sets = class_sets(p[30_000:, None], held_out.thresholds(0.9))
    for each in range(3):
        own = labels[30_000:] == each
        assert abs(sets[own, 0, each].mean() - 0.9) < 0.02


def test_tasks_are_apart_and_missing_labels_left_out():
    p = np.zeros((100, 2, 2))
    p[:, 0, 1], p[:, 1, 1] = 0.75, np.linspace(0.01, 1, 100)
    p[..., 0] = 1 - p[..., 1]
    labels = np.ones((100, 2), dtype=np.int64)
    labels[:, 1] = np.where(np.arange(100) < 50, -1, 1)
    held_out = held_out_classes(p, labels)
    assert held_out.shape == (2, 2)
    assert len(held_out.scores) == 150
    found = held_out.thresholds(0.9)
    assert found[0].tolist() == [math.inf, 0.25]
    assert found[1].tolist() == [math.inf, pytest.approx(0.45)]  # 46th of 50 scores from 0 to 0.49
    sets = class_sets(p, found)
    assert sets[:, :, 0].all()
    assert sets[:, 1, 1].sum() == 46


def test_intervals_and_their_coverage():
    errors = np.stack([np.arange(-10.0, 9.0), np.full(19, np.nan)], axis=1)
    errors[:9, 1] = 1.0
    held_out = held_out_numbers(errors)
    half = held_out.thresholds(0.9)
    assert half[:, 0].tolist() == [9.0, 1.0]
    low, high = intervals(np.zeros((2, 2)), half, scale=np.array([[1.0, 1.0], [2.0, 2.0]]))
    assert low.tolist() == [[-9.0, -1.0], [-18.0, -2.0]]
    assert high.tolist() == (-low).tolist()
    found = coverage_of_intervals(low, high, np.array([[9.0, 2.0], [math.nan, -2.0]]))
    assert found == {"covered": 2 / 3, "width": (18 + 2 + 4) / 3, "labels": 3}


def test_the_coverage_of_sets_is_counted_over_known_labels():
    sets = np.array([[[True, True]], [[False, False]], [[True, False]], [[True, True]]])
    found = coverage_of_sets(sets, np.array([[0], [1], [0], [-1]]))
    assert found == {"covered": 2 / 3, "size": 1.0, "empty": 1 / 3, "labels": 3}


@pytest.mark.parametrize("coverage", [0, 1, 90, -0.1, math.nan, True])
def test_a_coverage_is_a_share(coverage):
    held_out = held_out_numbers(np.ones((3, 1)))
    with pytest.raises(ValueError, match=r"`coverage` \(--coverage\) must be a share above 0 and below 1"):
        held_out.thresholds(coverage)
