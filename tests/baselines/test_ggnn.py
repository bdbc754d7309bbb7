"""Gated graph networks: the recurrence by hand, sums and gradients against the reference, both tasks."""

import pytest
import torch
from helpers import assert_close, random_graph

from rgat import RelationalGraph, ops
from rgat.baselines.ggnn import GGNNGraphClassifier, GGNNNodeClassifier
from rgat.data import load
from rgat.experiments.variants import ALL_VARIANTS, FURTHER_VARIANTS, VARIANTS, build_variant
from rgat.nn import GGNNConv
from rgat.training import Settings, fit, l2_penalty

N, R, F, D = 9, 4, 5, 3


def test_one_step_by_hand():
    """Node 2 hears 0 and 1 by relation 0 and 1 by relation 1: m = 2 (1 + 3) + 5 * 3 = 23; then the gated unit."""
    graph = RelationalGraph(torch.tensor([[0, 1, 1], [2, 2, 2]]), torch.tensor([0, 0, 1]), num_nodes=3, num_relations=2)
    conv = GGNNConv(1, 1, 2, num_steps=1, bias=False)
    with torch.no_grad():
        conv.embedding.fill_(1.0)
        conv.kernel.weight.copy_(torch.tensor([2.0, 5.0]).view(2, 1, 1, 1))
        conv.cell.weight_ih.copy_(torch.tensor([[0.1], [0.02], [0.01]]))  # reset, update, new
        conv.cell.weight_hh.copy_(torch.tensor([[1.0], [-1.0], [0.5]]))
    x = torch.tensor([[1.0], [3.0], [2.0]])
    first, last = conv(x, graph).t()
    assert first.tolist() == [1, 3, 2]
    m, h = torch.tensor([0.0, 0.0, 23.0]), x.squeeze(1)
    r, z = torch.sigmoid(0.1 * m + h), torch.sigmoid(0.02 * m - h)
    new = torch.tanh(0.01 * m + r * 0.5 * h)
    torch.testing.assert_close(last, (1 - z) * new + z * h)


@pytest.mark.parametrize("num_bases", [None, 2])
@pytest.mark.parametrize("backend", ["torch", "numba"])
def test_it_agrees_with_the_reference_in_every_gradient(num_bases, backend):
    graph, x = random_graph(N, 60, R), torch.randn(N, F).double()
    conv = GGNNConv(F, D, R, num_steps=2, num_bases=num_bases, feature_dropout=0.3, edge_dropout=0.3).double()
    cotangent = torch.randn(N, 2 * D).double()
    found = []
    for word in ("reference", backend):
        conv.messages.dropout_state[1] = 0
        with ops.backend(word):
            out = conv(x, graph)
        found.append([out, *torch.autograd.grad((out * cotangent).sum(), list(conv.parameters()))])
    assert len(found[0]) >= 7
    for expected, actual in zip(*found, strict=True):
        assert expected.abs().max() > 0
        assert_close(actual, expected, 1e-10)


def test_more_neighbours_say_more():
    conv = GGNNConv(1, 2, 1, num_steps=1)
    for copies in (1, 2):
        edges = torch.tensor([[0] * copies, [1] * copies])
        graph = RelationalGraph(edges, edges[0] * 0, num_nodes=2, num_relations=1)
        found = conv.messages(torch.ones(2, 2), graph)
        torch.testing.assert_close(found[1], copies * conv.kernel.weight.sum((0, 1, 2)))
        assert found[0].tolist() == [0, 0]


def test_inputs_are_features_indices_or_nothing():
    graph = random_graph(N, 60, R)
    conv = GGNNConv(N, D, R)
    torch.testing.assert_close(conv(None, graph), conv(torch.eye(N), graph))
    torch.testing.assert_close(conv(None, graph), conv(torch.arange(N), graph))
    with pytest.raises(ValueError, match="`in_channels` must be the number of nodes, 9, got 5"):
        GGNNConv(F, D, R)(None, graph)
    with pytest.raises(ValueError, match=r"`x` must have shape \[num_nodes, 5\], got \[9, 4\]"):
        GGNNConv(F, D, R)(torch.randn(N, 4), graph)
    with pytest.raises(ValueError, match="`num_steps` must be an integer of at least 1, got 0"):
        GGNNConv(F, D, R, num_steps=0)
    assert "num_steps=4" in repr(conv)


def test_a_batch_equals_its_graphs_one_by_one():
    graphs = [random_graph(5, 20, R, seed=seed) for seed in range(3)]
    x = torch.randn(15, F)
    model = GGNNGraphClassifier(F, 2, R, hidden_channels=8, dense_channels=4)
    alone = [model(x[5 * i : 5 * i + 5], graph) for i, graph in enumerate(graphs)]
    torch.testing.assert_close(model(x, RelationalGraph.collate(graphs)), torch.cat(alone))
    assert alone[0].shape == (1, 2, 2)


def test_options_reach_the_layers_and_both_penalties_their_kernels():
    model = GGNNNodeClassifier(F, 3, R, hidden_channels=8, batch_norm=True, bias=False, num_bases=2, num_steps=3)
    assert (model.conv1.num_steps, model.conv1.cell.bias, model.conv2.bias) == (3, False, None)
    assert isinstance(model.norm1, torch.nn.BatchNorm1d)
    for coefficients, parameters in (
        ((1.0, 0.0), list(model.conv1.messages.parameters())),
        ((0.0, 1.0), [model.conv2.kernel.weight]),
    ):
        expected = sum(p.square().sum() for p in parameters)
        torch.testing.assert_close(l2_penalty(model, coefficients, (0.0, 0.0)), expected)
    for name in ("num_classes", "num_tasks"):
        build = GGNNNodeClassifier if name == "num_classes" else GGNNGraphClassifier
        with pytest.raises(ValueError, match=f"`{name}` must be an integer of at least 1, got 0"):
            build(F, 0, R)


@pytest.mark.parametrize("name", FURTHER_VARIANTS)
@pytest.mark.parametrize("data_name", ["planted-consensus", "molecules"])
def test_further_variants_train_like_the_others(name, data_name):
    data = load(data_name)
    options = {"hidden_channels": 8, "feature_dropout": 0.1, "edge_dropout": 0.1, "batch_norm": True, "bias": False}
    model = build_variant(data, 0, **ALL_VARIANTS[name], **options)
    settings = Settings(max_epochs=3, learning_rate=0.01, kernel_l2=(1e-4, 1e-4), attention_l2=(1e-4, 1e-4))
    result = fit(model, data, settings)
    assert result.curve[-1].train_loss < result.curve[0].train_loss
    assert (result.scores == result.constant_scores) == (name == "GGNN")


def test_the_tables_of_the_paper_keep_their_five_models():
    assert len(VARIANTS) == 5
    assert list(ALL_VARIANTS) == [*VARIANTS, "GGNN", "dynamic WIRGAT", "dynamic ARGAT"]
