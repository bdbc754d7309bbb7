import dataclasses
import math

import numpy as np
import pytest
import torch
from helpers import random_graphs
from helpers_targets import MIXED, with_targets
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from rgat.data import Target, load
from rgat.training import Settings, build_model, fit, fit_many
from rgat.training.loop import make_task
from rgat.training.loss import target_losses
from rgat.training.metric import measure_target, metric_name, score_targets, spearman
from rgat.training.targets import in_units, make_goals

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def graphs():
    return with_targets(load("molecules"), bounded=True)


@pytest.fixture(scope="module")
def nodes():
    return with_targets(load("institute"))


def test_each_kind_has_its_own_loss():
    outputs = torch.randn(5, 7, dtype=torch.float64)
    goals = torch.tensor([[0.5, 0, 1, 0, 1, 0, 1]] * 5, dtype=torch.float64)
    losses = target_losses(outputs, goals, None, MIXED)
    assert torch.allclose(losses[:, 0], (outputs[:, 0] - 0.5) ** 2)
    assert torch.allclose(losses[:, 1:4].sum(1), cross_entropy(outputs[:, 1:4], torch.ones(5).long(), reduction="none"))
    assert torch.allclose(
        losses[:, 4:], binary_cross_entropy_with_logits(outputs[:, 4:], goals[:, 4:], reduction="none")
    )
    smooth = target_losses(outputs, goals, None, MIXED, smoothing=0.2)
    expected = cross_entropy(outputs[:, 1:4], torch.ones(5).long(), reduction="none", label_smoothing=0.2)
    assert torch.allclose(smooth[:, 1:4].sum(1), expected)
    assert torch.equal(smooth[:, 0], losses[:, 0])


def test_only_the_wrong_side_of_a_bound_counts():
    outputs, goals = torch.tensor([[3.0], [1.0], [3.0], [1.0]]), torch.full((4, 1), 2.0)
    bounds = torch.tensor([[1], [1], [-1], [-1]])
    losses = target_losses(outputs, goals, bounds, MIXED[:1])
    assert losses.flatten().tolist() == [0, 1, 1, 0]


@pytest.mark.parametrize("name", ["graphs", "nodes"])
def test_missing_values_change_neither_loss_nor_gradient(name, request):
    data = request.getfixturevalue(name)
    model = build_model(data, hidden_channels=8)
    losses = []
    for filler in (0.0, 50.0):
        task = make_task([data], Settings(), CPU)
        holder = task.targets if name == "graphs" else task
        goals = holder.goals
        filled = torch.where(goals.weights == 0, filler, goals.values)
        assert (goals.weights == 0).any()
        holder.goals = goals._replace(values=filled)
        loss = task.losses(model, data.train[:20])
        model.zero_grad()
        loss.sum().backward()
        losses.append((loss.item(), [p.grad.clone() for p in model.parameters()]))
    assert losses[0][0] == losses[1][0]
    assert all(torch.equal(a, b) for a, b in zip(losses[0][1], losses[1][1], strict=True))
    assert any(grad.abs().sum() > 0 for grad in losses[0][1])


def test_class_weights_let_classes_count_equally(graphs):
    balanced = make_goals(graphs, ("binary", "multi-class", "multi-label"))
    plain = make_goals(graphs, ())
    assert set(plain.weights.unique().tolist()) == {0, 1}
    train = graphs.train
    by_class = (balanced.weights * balanced.values)[train][:, 1:4].sum(0)
    assert torch.allclose(by_class, by_class.mean().expand(3), rtol=1e-4)
    for column in (4, 5, 6):
        positive = balanced.values[train, column] == 1
        weights = balanced.weights[train, column]
        assert weights[positive].sum() == pytest.approx(float(weights[~positive].sum()), rel=1e-4)
    assert torch.equal(balanced.weights[:, 0], plain.weights[:, 0])


def test_a_padded_batch_has_the_losses_of_its_graphs(graphs):
    task, model = make_task([graphs], Settings(batch_size=16), CPU), build_model(graphs, hidden_channels=8)
    for ids in (graphs.train[:16], graphs.train[16:25]):
        task.pad(ids)
        torch.testing.assert_close(task.padded_losses(model), task.losses(model, ids))


@pytest.mark.parametrize("name", ["graphs", "nodes"])
def test_a_stack_learns_what_its_members_learn_alone(name, request):
    data = request.getfixturevalue(name)
    settings = Settings(max_epochs=2, class_weights="balanced")
    models = [[build_model(data, seed, hidden_channels=8) for seed in range(2)] for _ in range(2)]
    together = fit_many(models[0], data, settings)
    alone = fit_many(models[1], data, settings, stacked=False)
    assert "in a stack of 2" in together[0].how
    assert together[0].metric == "mean score"
    for one, other in zip(together, alone, strict=True):
        assert one.scores == pytest.approx(other.scores, abs=1e-4)
        assert np.isfinite(list(one.scores.values())).all()


def test_a_training_on_targets_resumes_and_notices_other_values(graphs, tmp_path):
    def train(data, epochs, folder):
        model = build_model(data, hidden_channels=8)
        return fit(model, data, Settings(max_epochs=epochs), checkpoint=folder, checkpoint_seconds=0)

    whole = train(graphs, 2, None)
    train(graphs, 1, tmp_path)
    assert train(graphs, 2, tmp_path).curve == whole.curve
    with pytest.raises(ValueError, match="it had other targets"):
        train(dataclasses.replace(graphs, values=graphs.values * 2), 2, tmp_path)


@pytest.mark.parametrize("class_weights", [None, "balanced"])
def test_a_batch_with_all_edges_has_the_losses_of_the_whole_graph(nodes, class_weights):
    shared = {"class_weights": class_weights, "label_smoothing": 0.1}
    whole = make_task([nodes], Settings(**shared), CPU)
    sampled = make_task([nodes], Settings(fanouts=(-1, -1), batch_size=len(nodes.train), **shared), CPU)
    model = build_model(nodes, hidden_channels=8).double()
    assert whole.metric == sampled.metric == "mean score"
    (batch,) = sampled.batches(torch.Generator(), 0)
    losses = [whole.losses(model, nodes.train), sampled.losses(model, batch)]
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-10, atol=1e-10)
    gradients = [torch.autograd.grad(loss.sum(), list(model.parameters())) for loss in losses]
    assert any(gradient.abs().max() > 0.01 for gradient in gradients[0])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-10, atol=1e-10)
    for part in ("train", "valid", "test"):
        with torch.no_grad():
            model.eval()
            ((expected,),), ((found,),) = (task.evaluate(model, [part]) for task in (whole, sampled))
        assert found == pytest.approx(expected, rel=1e-6)


def test_sampled_targets_are_learned_and_a_stack_is_its_members(nodes):
    settings = Settings(max_epochs=3, fanouts=(3, 3), batch_size=32)
    models = [[build_model(nodes, seed, hidden_channels=8) for seed in range(2)] for _ in range(2)]
    together, alone = (
        fit_many(each, nodes, settings, stacked=stacked) for each, stacked in zip(models, (True, False), strict=True)
    )
    for one, other in zip(together, alone, strict=True):
        assert one.scores == pytest.approx(other.scores, abs=1e-4)
        assert one.curve[-1].train_loss < one.curve[0].train_loss


def test_validation_graphs_must_have_values(graphs):
    values = graphs.values.clone()
    values[graphs.valid] = torch.nan
    empty = dataclasses.replace(graphs, values=values)
    with pytest.raises(ValueError, match="must have known values among its validation graphs, got none"):
        make_task([empty], Settings(), CPU)
    make_task([empty], Settings(patience=None), CPU)


def test_outputs_are_given_back_in_their_unit():
    outputs = torch.zeros(1, 7)
    assert in_units(outputs, MIXED)[0].tolist() == [2, 0, 0, 0, 0, 0, 0]
    assert in_units(outputs + 1, MIXED)[0].tolist() == [5, 1, 1, 1, 1, 1, 1]


def test_scores_follow_the_kind():
    target = Target("n", "regression", mean=2.0)
    true = np.array([[1.0], [2.0], [4.0]])
    found = measure_target(target, np.array([[1.0], [2.0], [2.0]]), true)
    assert found["rmse"] == pytest.approx(math.sqrt(4 / 3))
    assert found["mae"] == pytest.approx(2 / 3)
    assert found["score"] == pytest.approx(1 - 4 / 5)  # against the training mean
    assert found["rank_correlation"] == pytest.approx(math.sqrt(3) / 2)
    classes = Target("c", "multi-class", ("a", "b"))
    measured = measure_target(classes, np.array([[0.9, 0.1]] * 4), np.array([[1.0, 0]] * 3 + [[0, 1]]))
    assert (measured["score"], measured["balanced_accuracy"], measured["examples"]) == (0.75, 0.5, 4)
    label = measure_target(Target("b", "binary"), np.array([[0.9], [0.2], [0.6]]), np.array([[1.0], [0], [0]]))
    assert (label["score"], label["average_precision"], label["balanced_accuracy"]) == (1, 1, 0.75)
    assert label["positives"] == pytest.approx(1 / 3)
    assert measure_target(Target("b", "binary"), np.array([[0.9]]), np.array([[1.0]]))["score"] is None
    assert math.isnan(spearman(np.array([1.0, 1.0]), np.array([1.0, 2.0])))


def test_bounds_are_not_scored_and_names_say_what_is():
    values, predictions = torch.tensor([[1.0], [3.0], [9.0]]), torch.tensor([[1.0], [3.0], [0.0]])
    bounds = torch.tensor([[0], [0], [1]])
    target = Target("n", "regression", mean=2.0)
    assert score_targets(predictions, values, [target], bounds) == 1
    assert score_targets(predictions, values, [target]) < 1
    assert math.isnan(score_targets(predictions * torch.nan, values, [target]))
    assert metric_name([target]) == "R2"
    assert metric_name([target, target]) == "mean R2"
    assert metric_name(MIXED) == "mean score"
    assert metric_name(MIXED[3:]) == "mean ROC-AUC"


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["graphs", "nodes"])
def test_captured_steps_learn_what_the_cpu_learns(name):
    data = with_targets(random_graphs(), bounded=True) if name == "graphs" else with_targets(load("institute"))
    settings = Settings(max_epochs=3, learning_rate=1e-3)
    results = [fit(build_model(data, hidden_channels=8).to(device), data, settings) for device in ("cpu", "cuda")]
    assert "captured in a CUDA graph" in results[1].how
    losses = [[epoch.train_loss for epoch in result.curve] for result in results]
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)
