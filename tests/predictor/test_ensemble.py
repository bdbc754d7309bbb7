import torch

from rgat.predictor.ensemble import Calibration, calibrate_graphs, calibrate_nodes


def test_slope_and_intercept_of_each_task_are_found_again():
    generator = torch.Generator().manual_seed(0)
    margin = 2 * torch.randn(4000, 2, generator=generator)
    truth = torch.sigmoid(torch.tensor([0.5, 2.0]) * margin + torch.tensor([-3.0, 1.0]))
    labels = (torch.rand(4000, 2, generator=generator) < truth).long()
    labels[::7] = -1
    logits = torch.stack([torch.zeros_like(margin), margin], dim=-1)
    found = calibrate_graphs(logits, labels, torch.ones(2, 2))
    assert torch.allclose(found.slope, torch.tensor([0.5, 2.0]), atol=0.25)
    assert torch.allclose(found.intercept, torch.tensor([-3.0, 1.0]), atol=0.3)
    assert torch.allclose(found.probabilities(logits), truth, atol=0.08)


def test_a_task_without_held_out_labels_has_the_shift_of_its_class_weights_undone():
    weights = torch.tensor([[1.0, 20.0]])
    found = calibrate_graphs(torch.randn(5, 1, 2), torch.full((5, 1), -1), weights)
    assert torch.allclose(found.slope, torch.ones(1))
    assert torch.allclose(found.intercept, -torch.tensor([20.0]).log())
    even = found.probabilities(torch.zeros(1, 1, 2))
    assert torch.allclose(even, torch.tensor([[1 / 21]]))


def test_nodes_are_calibrated_by_a_slope():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3000, 3, generator=generator)
    labels = torch.multinomial(torch.softmax(logits, 1), 1, generator=generator).squeeze(1)
    found = calibrate_nodes(4 * logits, labels)  # four times too sure
    assert abs(float(found.slope) - 0.25) < 0.03
    assert torch.allclose(found.probabilities(4 * logits).sum(1), torch.ones(3000))


def test_few_held_out_nodes_that_are_all_right_do_not_make_certainty():
    logits = 10 * torch.eye(3)
    found = calibrate_nodes(logits, torch.arange(3))
    assert 0.5 < float(found.slope) < 3
    assert isinstance(found, Calibration)
