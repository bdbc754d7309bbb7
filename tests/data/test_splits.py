import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rgat.data.splits import grouped_parts, random_parts, stratified_folds, stratified_parts

CLASSES = st.lists(st.integers(0, 3), min_size=1, max_size=80)


@given(CLASSES, st.integers(0, 5))
def test_stratified_parts_are_a_partition_in_the_right_shares(classes, seed):
    parts = stratified_parts(classes, (0.6, 0.2), seed)
    assert sorted(torch.cat(parts).tolist()) == list(range(len(classes)))
    assert abs(len(parts[0]) - 0.6 * len(classes)) <= 1
    for label in set(classes):
        count = classes.count(label)
        taken = sum(classes[place] == label for place in parts[0].tolist())
        assert abs(taken - 0.6 * count) < 2


@given(st.lists(st.integers(0, 3), min_size=5, max_size=80), st.integers(0, 5))
def test_folds_are_a_partition_and_stratified(classes, seed):
    folds = stratified_folds(classes, 5, seed)
    assert sorted(torch.cat(folds).tolist()) == list(range(len(classes)))
    for label in set(classes):
        counts = [sum(classes[place] == label for place in fold.tolist()) for fold in folds]
        assert max(counts) - min(counts) <= 1


def test_random_parts_are_the_published_ones():
    order = np.random.RandomState(122).permutation(8014)
    train, valid, test = random_parts(8014, 122)
    assert [len(part) for part in (train, valid, test)] == [6411, 801, 802]
    assert torch.cat([train, valid, test]).tolist() == order.tolist()


def test_groups_stay_together():
    groups = ["a"] * 5 + ["b"] * 2 + ["c", "d", "e"]
    parts = grouped_parts(groups, (0.7, 0.1))
    assert [[groups[place] for place in part.tolist()] for part in parts] == [["a"] * 5 + ["b"] * 2, ["c"], ["d", "e"]]


def test_bad_splits_are_refused():
    for shares in ((0.9, 0.2), (-0.1, 0.5), (0.0, 0.0)):
        with pytest.raises(ValueError, match="`shares` must be two numbers"):
            random_parts(10, 0, shares)
    with pytest.raises(ValueError, match="`num_folds` must be at most the number of examples, 3, got 5"):
        stratified_folds([0, 1, 0], 5, 0)
