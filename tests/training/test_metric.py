import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rgat.training import accuracy, mean_pr_auc, mean_roc_auc, roc_auc, roc_auc_per_task
from rgat.training.metric import pr_auc


def test_accuracy_by_hand():
    logits = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 1.0]])
    assert accuracy(logits, torch.tensor([0, 1, 1])) == pytest.approx(2 / 3)
    assert math.isnan(accuracy(logits[:0], torch.empty(0).long()))


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=30))
def test_roc_auc_is_the_share_of_ordered_pairs(rows):
    scores = np.array([score for score, _ in rows], dtype=float)
    positive = np.array([flag for _, flag in rows], dtype=bool)
    pairs = [(p, n) for p in scores[positive] for n in scores[~positive]]
    value = roc_auc(scores, positive)
    if not pairs:
        assert math.isnan(value)
    else:
        assert value == pytest.approx(sum((p > n) + (p == n) / 2 for p, n in pairs) / len(pairs))


def test_nan_scores_have_no_roc_auc():
    assert math.isnan(roc_auc(np.array([0.0, np.nan]), np.array([True, False])))


def test_mean_roc_auc_leaves_out_missing_labels_and_tasks_with_one_class():
    scores = torch.tensor([[1.0, 1.0, 1.0], [2.0, 2.0, 2.0], [3.0, 3.0, 3.0], [4.0, 4.0, 4.0]])
    logits = torch.stack([torch.zeros_like(scores), scores], dim=-1)
    labels = torch.tensor([[0, 1, 1], [1, -1, 1], [0, 0, -1], [1, 1, 1]])
    per_task = roc_auc_per_task(logits, labels)
    assert per_task[:2] == [0.75, 0.5]
    assert math.isnan(per_task[2])
    assert mean_roc_auc(logits, labels) == pytest.approx(0.625)
    assert math.isnan(mean_roc_auc(logits[:, 2:], labels[:, 2:]))
    logits[0, 0] = math.nan  # a diverged task is not left out
    assert math.isnan(mean_roc_auc(logits, labels))


def test_average_precision_by_hand_and_with_ties():
    positive = np.array([True, False, True, False])
    assert pr_auc(np.array([4.0, 3.0, 2.0, 1.0]), positive) == pytest.approx((1 + 2 / 3) / 2)
    assert pr_auc(np.ones(4), positive) == pytest.approx(0.5)  # one step: precision is the share of positives
    assert np.isnan(pr_auc(np.ones(2), np.array([True, True])))
    logits = torch.tensor([[[0.0, 4.0]], [[0.0, 3.0]], [[0.0, 2.0]], [[0.0, 9.0]]])
    assert mean_pr_auc(logits, torch.tensor([[1], [0], [1], [-1]])) == pytest.approx((1 + 2 / 3) / 2)
    assert np.isnan(mean_pr_auc(logits, torch.ones(4, 1)))


def test_accuracy_leaves_out_rows_without_a_label():
    logits = torch.eye(3)
    assert accuracy(logits, torch.tensor([0, 1, -1])) == 1.0
    assert math.isnan(accuracy(logits, torch.tensor([-1, -1, -1])))
    assert math.isnan(accuracy(logits[:0], torch.empty(0, dtype=torch.long)))
