"""Test that batch normalisation without variance is the same for one model, a stack and a padded batch."""

import dataclasses

import pytest
import torch
from helpers import assert_close
from torch import nn

from rgat.data import GraphData, GraphStore, load
from rgat.data.padding import Capacity, PaddedBatch
from rgat.models import stack
from rgat.nn.normalisation import normalise
from rgat.nn.stacked import stack_layers
from rgat.training import Settings, build_model, distributed, fit, fit_many
from rgat.training.loop import make_task

CPU = torch.device("cpu")
CHANNELS = 3


def counted(nodes, padding):
    """Return the mask of real nodes in a padded batch, or None without padding."""
    return (torch.arange(nodes + padding) < nodes).float() if padding else None


def make_norm(seed=0):
    """Return a layer with parameters and running statistics as after some training."""
    torch.manual_seed(seed)
    norm = nn.BatchNorm1d(CHANNELS).double()
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    for _ in range(2):
        norm(torch.randn(7, CHANNELS).double())
    return norm


def results(nodes, padding, members, x):
    """Return outputs, gradients and statistics of member 0 after one training step."""
    norms = [make_norm(seed) for seed in range(members)]
    norm = norms[0] if members == 1 else stack_layers(norms)
    x = torch.cat([x, torch.full((padding, CHANNELS), 1e3).double()])
    x = x if members == 1 else x.unsqueeze(1).repeat(1, members, 1)
    x.requires_grad_()
    out = normalise(norm, x, counted(nodes, padding))
    out[:nodes].sin().sum().backward()
    first = (lambda tensor: tensor) if members == 1 else (lambda tensor: tensor[0])
    values = {"output": out[:nodes] if members == 1 else out[:nodes, 0]}
    values["gradient of x"] = x.grad[:nodes] if members == 1 else x.grad[:nodes, 0]
    values |= {f"gradient of {name}": first(p.grad) for name, p in norm.named_parameters()}
    return values | {name: first(buffer) for name, buffer in norm.named_buffers()}


@pytest.mark.parametrize("nodes", [0, 1, 2, 5])
@pytest.mark.parametrize(("padding", "members"), [(0, 1), (4, 1), (0, 2), (4, 2)])
def test_small_batches_are_normalised_the_same_alone_padded_and_stacked(nodes, padding, members):
    x = torch.randn(nodes, CHANNELS).double()
    actual, before = results(nodes, padding, members, x), make_norm()
    if nodes < 2:  # no variance to learn, so the running statistics stay
        expected = dict(before.named_buffers())
        expected["output"] = before.bias.expand(nodes, -1)
        expected["gradient of x"] = torch.zeros_like(x)
        expected["gradient of bias"] = nodes * before.bias.cos()
        expected["gradient of weight"] = torch.zeros(CHANNELS).double()
    else:
        given = x.clone().requires_grad_()
        out = before(given)
        out.sin().sum().backward()
        expected = {"output": out, "gradient of x": given.grad} | dict(before.named_buffers())
        expected |= {f"gradient of {name}": p.grad for name, p in before.named_parameters()}
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(actual[name], value.detach(), rtol=1e-9, atol=1e-9)


def test_a_padded_batch_in_half_precision_is_normalised_in_single_precision():
    x = torch.randn(300, CHANNELS).bfloat16()  # bfloat16 cannot count beyond 256
    norms = [nn.BatchNorm1d(CHANNELS) for _ in range(2)]
    expected = normalise(norms[0], x)
    padded = normalise(norms[1], torch.cat([x, x.new_zeros(2, CHANNELS)]), counted(300, 2))[:300]
    assert padded.dtype == expected.dtype == torch.bfloat16
    assert_close(padded.float(), expected.float(), 1e-2)
    for ours, theirs in zip(norms[1].buffers(), norms[0].buffers(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)


def lone_atoms():
    """Return graphs such that the last batch of an epoch may be a single atom."""
    sizes = torch.tensor([1] * 9 + [4] * 12)
    node_ptr = torch.cat([torch.zeros(1).long(), sizes.cumsum(0)])
    number = int(node_ptr[-1])
    store = GraphStore(
        torch.randn(number, 3).double(),
        torch.arange(number).expand(2, -1),
        torch.zeros(number).long(),
        node_ptr,
        node_ptr,
        num_relations=1,
    )
    labels, ids = torch.arange(21).unsqueeze(1) % 2, torch.arange(21)
    return GraphData("lone atoms", store, labels, ("a",), ids[:9], ids[9:15], ids[15:], (), ("self",))


def test_training_accepts_a_last_batch_of_one_atom():
    data, settings = lone_atoms(), Settings(max_epochs=3, batch_size=4)
    options = {"hidden_channels": 4, "dense_channels": 4, "batch_norm": True}
    model = build_model(data, 1, **options).double()
    result = fit(model, data, settings)
    assert all(torch.isfinite(torch.tensor(dataclasses.astuple(epoch))).all() for epoch in result.curve)
    assert all(buffer.isfinite().all() for buffer in model.buffers())
    together = [build_model(data, seed, **options).double() for seed in (1, 2)]
    stacked = fit_many(together, data, settings)[0]
    assert stacked.curve[-1].valid_loss == pytest.approx(result.curve[-1].valid_loss, rel=1e-8)


@pytest.mark.parametrize("members", [1, 2])
def test_a_padded_batch_of_one_atom_leaves_a_model_finite(members):
    data = lone_atoms()
    task = make_task([data], Settings(batch_size=4), CPU)
    models = [build_model(data, seed, hidden_channels=4, batch_norm=True).double() for seed in range(members)]
    model = (models[0] if members == 1 else stack(models)).train()
    for ids in (data.train[:4], data.train[:1]):
        task.pad(ids)
        losses = task.padded_losses(model)
        losses.sum().backward()
    assert losses.isfinite().all()
    assert all(buffer.isfinite().all() for buffer in model.buffers())
    assert all(p.grad.isfinite().all() for p in model.parameters())


def test_a_padded_batch_without_graphs_leaves_the_statistics_unchanged():
    store = load("molecules").graphs
    batch = PaddedBatch(store, 4, CPU, Capacity.usual(store, torch.arange(4), 4))
    batch.fill(torch.arange(0))
    batch.widen()
    norm = nn.BatchNorm1d(CHANNELS)
    assert normalise(norm, torch.randn(batch.graph.num_nodes, CHANNELS), batch.graph.counted).isfinite().all()
    assert torch.equal(norm.running_mean, torch.zeros(CHANNELS))
    assert torch.equal(norm.running_var, torch.ones(CHANNELS))


@pytest.mark.parametrize("others", [0, 4])
def test_a_process_with_one_node_is_normalised_by_the_nodes_of_all_processes(others, monkeypatch):
    """With several processes only the variance of the whole batch matters."""
    x, theirs = torch.randn(1, CHANNELS).double(), torch.randn(others, CHANNELS).double()
    before, norm = make_norm(), make_norm()
    together = normalise(before, torch.cat([x, theirs]))[:1]
    mean = torch.cat([x, theirs]).mean(0)
    shares = iter([torch.tensor(float(others)), theirs.sum(0), (theirs - mean).square().sum(0)])
    monkeypatch.setattr(distributed._Sum, "apply", lambda own: own + next(shares))
    out = normalise(distributed.SyncBatchNorm(norm), x)
    torch.testing.assert_close(out, together)
    for ours, expected in zip(norm.buffers(), before.buffers(), strict=True):
        torch.testing.assert_close(ours, expected)
