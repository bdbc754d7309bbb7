"""Losses against numbers worked out by hand."""

import math

import pytest
import torch

from rgat.models import NodeClassifier
from rgat.training import balanced_class_weights, l2_penalty, multi_task_cross_entropy, node_cross_entropy
from rgat.training.loss import balanced_node_weights, negative_log_likelihood, summed_cross_entropy

LOGITS = torch.tensor([[0.0, 0.0], [math.log(3), 0.0], [5.0, 5.0], [0.0, math.log(9)]])
LABELS = torch.tensor([0, 1, -1, 1])


def loss_of(logits, *nodes):
    """The loss of each of several members, which share logits and labels, over nodes of their own."""
    padded = torch.nn.utils.rnn.pad_sequence([torch.tensor(ids).long() for ids in nodes], batch_first=True)
    known = torch.stack([torch.arange(padded.shape[1]) < len(ids) for ids in nodes]).long()
    size = len(nodes)
    return node_cross_entropy(logits.expand(size, -1, -1), LABELS.expand(size, -1), padded, known)


def test_node_cross_entropy_is_the_mean_over_the_given_nodes_of_each_member():
    # Probabilities of the true classes: 1/2, 1/4, (unlabelled), 9/10.
    total = -(math.log(1 / 2) + math.log(1 / 4) + math.log(9 / 10))
    losses = loss_of(LOGITS, [0, 1, 3], [0], [])
    assert losses.tolist() == pytest.approx([total / 3, math.log(2), 0.0])
    assert losses[0].item() * 3 == pytest.approx(total), "the paper's sum"


def test_node_cross_entropy_without_nodes_is_zero_with_a_zero_gradient():
    logits = LOGITS.clone().requires_grad_()
    loss_of(logits, []).sum().backward()
    assert logits.grad.abs().max() == 0


def test_node_cross_entropy_is_the_weighted_mean():
    nodes, weight = torch.tensor([[0, 1, 3]]), torch.tensor([[1.0, 0.0, 0.25]])
    loss = node_cross_entropy(LOGITS.unsqueeze(0), LABELS.unsqueeze(0), nodes, weight)
    assert loss.tolist() == pytest.approx([-(math.log(1 / 2) + 0.25 * math.log(9 / 10)) / 1.25])


def test_smoothed_labels_are_spread_over_all_classes():
    log_p = torch.log_softmax(LOGITS, dim=-1)
    expected = 0.8 * -log_p[0, 0] + 0.2 * -(log_p[0, 0] + log_p[0, 1]) / 2 + 0.8 * -log_p[3, 1] - 0.2 * log_p[3].mean()
    nodes, weight = torch.tensor([[0, 3]]), torch.ones(1, 2)
    loss = node_cross_entropy(LOGITS.unsqueeze(0), LABELS.unsqueeze(0), nodes, weight, 0.2)
    torch.testing.assert_close(loss, expected.view(1) / 2)
    known, labels = LOGITS[[0, 3]], LABELS[[0, 3]]
    torch.testing.assert_close(summed_cross_entropy(known, labels, None, 0.2), expected)
    theirs = torch.nn.functional.cross_entropy(known, labels, label_smoothing=0.2)
    torch.testing.assert_close(loss[0], theirs)
    graphs = multi_task_cross_entropy(known.unsqueeze(1), labels.unsqueeze(1), smoothing=0.2)
    torch.testing.assert_close(graphs, theirs)
    weights = torch.tensor([3.0, 0.5])
    each = torch.stack([negative_log_likelihood(known, labels, smoothing) for smoothing in (0.0, 0.2)])
    for smoothing, nll in zip((0.0, 0.2), each, strict=True):
        torch.testing.assert_close(summed_cross_entropy(known, labels, weights, smoothing), nll @ weights[labels])


def test_balanced_weights_let_all_classes_count_equally():
    labels = torch.tensor([0, 0, 0, 2, -1])
    weights = balanced_node_weights(labels, 4)
    assert weights.tolist() == pytest.approx([2 / 3, 1, 2, 1])
    assert weights[labels[:4]].mean() == pytest.approx(1)


def task_logits():
    """Two graphs, two tasks; probability of class 1: graph 0: 1/2, 3/4; graph 1: 1/4, 9/10."""
    odds = torch.tensor([[1.0, 3.0], [1 / 3, 9.0]])
    return torch.stack([torch.zeros(2, 2), odds.log()], dim=-1)


def test_multi_task_cross_entropy_by_hand():
    labels = torch.tensor([[1, 0], [0, 1]])
    terms = [math.log(2), math.log(4), -math.log(3 / 4), -math.log(9 / 10)]
    assert multi_task_cross_entropy(task_logits(), labels).item() == pytest.approx(sum(terms) / 2)


def test_missing_labels_count_nothing_and_the_divisor_stays_the_number_of_graphs():
    labels = torch.tensor([[1, -1], [-1, -1]])
    assert multi_task_cross_entropy(task_logits(), labels).item() == pytest.approx(math.log(2) / 2)
    assert multi_task_cross_entropy(task_logits(), labels, num_graphs=8).item() == pytest.approx(math.log(2) / 8)


def test_class_weights_multiply_the_terms_of_their_class():
    labels = torch.tensor([[1, 0], [0, -1]])
    weights = torch.tensor([[1.0, 10.0], [7.0, 100.0]])
    expected = 10 * math.log(2) + 7 * math.log(4) - 1 * math.log(3 / 4)
    assert multi_task_cross_entropy(task_logits(), labels, weights).item() == pytest.approx(expected / 2)


def test_a_batch_without_any_label_and_an_empty_batch_are_legal():
    logits = task_logits().requires_grad_()
    loss = multi_task_cross_entropy(logits, torch.full((2, 2), -1))
    loss.backward()
    assert loss.item() == 0
    assert logits.grad.abs().max() == 0
    assert multi_task_cross_entropy(logits[:0], torch.empty(0, 2).long()).item() == 0


def test_two_parts_of_a_batch_add_up_to_the_whole():
    logits, labels = torch.randn(6, 3, 2), torch.randint(-1, 2, (6, 3))
    whole = multi_task_cross_entropy(logits, labels)
    parts = [multi_task_cross_entropy(logits[s], labels[s], num_graphs=6) for s in (slice(0, 2), slice(2, 6))]
    torch.testing.assert_close(sum(parts), whole)


def test_labels_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"`labels` must have shape \[2, 2\], got \[2, 3\]"):
        multi_task_cross_entropy(task_logits(), torch.zeros(2, 3).long())


def test_a_missing_label_hides_even_an_infinite_logit_and_weights_must_fit():
    logits = task_logits()
    logits[0, 0, 0] = -torch.inf
    labels = torch.tensor([[-1, 0], [0, 1]])
    assert multi_task_cross_entropy(logits, labels).isfinite()
    with pytest.raises(ValueError, match=r"`class_weights` must have shape \[2, 2\], got \[5, 2\]"):
        multi_task_cross_entropy(logits, labels, torch.ones(5, 2))
    assert multi_task_cross_entropy(task_logits().bfloat16(), labels).dtype == torch.float32


def test_balanced_class_weights_are_negatives_over_positives():
    labels = torch.tensor([[1, 0, 1], [0, 0, 1], [0, -1, 1], [0, 0, -1]])
    assert balanced_class_weights(labels).tolist() == [[1, 3], [1, 1], [1, 1]]


def test_the_gradient_of_l2_is_that_of_the_squares():
    model, zero = NodeClassifier(5, 3, 4, heads=2, hidden_channels=4), NodeClassifier(5, 3, 4)
    torch.nn.init.zeros_(zero.conv1.kernel.weight)
    for each in (model, zero):
        weight = each.conv1.kernel.weight
        l2_penalty(each, (0.3, 0), (0, 0)).backward()
        found, weight.grad = weight.grad, None
        (0.3 * weight.square().sum()).backward()
        assert torch.equal(found, weight.grad)
    assert model.conv1.kernel.weight.grad.abs().max() > 0


def test_l2_counts_the_parameters_that_make_a_kernel():
    def squares(parameters):
        return sum(p.detach().square().sum().item() for p in parameters)

    full = NodeClassifier(5, 3, 4, heads=2, hidden_channels=4)
    expected = 2 * squares([full.conv1.kernel.weight]) + 3 * squares([full.conv2.kernel.weight])
    expected += 5 * squares([full.conv1.attention_kernel.weight]) + 7 * squares([full.conv2.attention_kernel.weight])
    assert l2_penalty(full, (2, 3), (5, 7)).item() == pytest.approx(expected, rel=1e-5)

    basis = NodeClassifier(5, 3, 4, num_bases=2, num_attention_bases=3)
    expected = 2 * squares([basis.conv1.kernel.bases, basis.conv1.kernel.coefficients])
    expected += 7 * squares([basis.conv2.attention_kernel.bases, basis.conv2.attention_kernel.coefficients])
    assert l2_penalty(basis, (2, 0), (0, 7)).item() == pytest.approx(expected, rel=1e-5)

    rgcn = NodeClassifier(5, 3, 4, layer="rgcn")
    assert l2_penalty(rgcn, (2, 0), (5, 7)).item() == pytest.approx(2 * squares([rgcn.conv1.kernel.weight]), rel=1e-5)
    assert l2_penalty(rgcn, (0, 0), (0, 0)).item() == 0
