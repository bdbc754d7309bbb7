"""Padded samples are samples: the same edges, outputs and gradients, in memory of one size that grows when it must."""

import copy
import dataclasses

import pytest
import torch
from helpers import random_graph

from rgat import ops
from rgat.data import load
from rgat.models import stack
from rgat.ops.padded_sampling import Capacity
from rgat.sampling import NeighborSampler
from rgat.sampling.padded import PaddedSampler
from rgat.training import Settings, build_model, fit
from rgat.training.loop import make_task
from rgat.training.sampled import SampledTask

N, R = 60, 4
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def at_once():
    return lambda work: work()


def padded_sampler(graph, fanouts, seeds, batch_size, seed=0):
    return PaddedSampler(NeighborSampler(graph, fanouts, seed), seeds, batch_size, at_once)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("fanouts", [[-1, -1], [2, 1], [3, {0: 1}, 2]])
def test_a_padded_sample_begins_with_the_sample(fanouts, device):
    graph = random_graph(N, 500, R, seed=2).to(device)
    seeds = torch.randperm(N, generator=torch.Generator().manual_seed(3))
    padded = padded_sampler(graph, fanouts, seeds, 16, seed=9)
    for step, part in enumerate(torch.split(seeds, 16)):  # the last is smaller
        padded.draw(part, step)
        padded.take()
        batch, number = padded.batch()
        expected = padded.sampler.sample(part, step)
        assert number.tolist() == [len(part)]
        for ours, theirs in zip(batch.graphs, expected.graphs, strict=True):
            size, s = theirs.num_edges, ours.structure
            assert ours.num_edges > size
            assert torch.equal(s.edge_id[:size], theirs.structure.edge_id)
            for end in (0, 1):
                nodes = ours.node_ids[ours.edge_index[end, :size]]
                assert torch.equal(nodes, expected.nodes[theirs.edge_index[end]])
            is_padding = ours.padding[ours.edge_index]
            assert not is_padding[:, :size].any()
            assert is_padding[:, size:].all()
        assert sum(int((~each).sum()) for each in (batch.graphs[0].padding,)) == len(expected.nodes)


@pytest.mark.parametrize("fanouts", [[2, 1], [-1, -1]])
def test_the_structure_of_a_padded_sample_is_that_of_its_edges(fanouts):
    graph = random_graph(N, 500, R, seed=2)
    padded = padded_sampler(graph, fanouts, torch.arange(16), 16)
    padded.draw(torch.arange(11), 4)
    padded.take()
    for each in padded.batch()[0].graphs:
        s, (source, target), relation = each.structure, each.edge_index, each.edge_type
        assert torch.equal(s.sources.node[s.source_row].long(), source)
        assert torch.equal(s.sources.relation[s.source_row].long(), relation)
        by_group = s.targets.by_node.long()
        assert torch.equal(s.targets.node[by_group][s.group].long(), target)
        assert torch.equal(s.targets.relation[by_group][s.group].long(), relation)
        for rows in (s.sources, s.targets):
            assert bool((rows.keys(each.num_nodes).diff() >= 0).all())
            counts = torch.stack([rows.relation == r for r in range(R)]).sum(1)
            assert torch.equal(rows.relation_ptr.diff().long(), counts)
            in_order = rows.node[rows.by_node.long()]
            assert bool((in_order.diff() >= 0).all())
            assert torch.equal(rows.node_ptr.diff().long(), in_order.bincount(minlength=each.num_nodes))
        for pointer, owner in ((s.target_ptr, s.target), (s.group_ptr, s.group)):
            assert torch.equal(pointer.diff().long(), owner.bincount(minlength=len(pointer) - 1))
            assert bool((owner.diff() >= 0).all())
        rows_in_order = s.source_row[s.by_source.long()]
        assert bool((rows_in_order.diff() >= 0).all())
        assert torch.equal(s.source_ptr.diff().long(), rows_in_order.bincount(minlength=len(s.source_ptr) - 1))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("too_small", Capacity._fields)
def test_memory_grows_where_a_sample_does_not_fit(too_small, device):
    graph = random_graph(N, 500, R, seed=2).to(device)
    padded = padded_sampler(graph, [3, 2], torch.arange(32), 16)
    part = torch.arange(16)
    padded.draw(part, 0)
    assert not padded.take()
    padded.draw(part, 1)
    assert padded.take()  # in the same place
    first = padded.capacities[0]
    least = {"nodes": padded.capacities[1].nodes + 2}.get(too_small, 5)
    padded.capacities[0] = first._replace(**{too_small: least})
    grow, grown = padded._grow, []
    padded._grow = lambda sizes: (grown.append(sizes), grow(sizes))
    padded.draw(part, 2)
    assert not padded.take()
    assert len(grown) == 1
    assert getattr(padded.capacities[0], too_small) > least
    batch, _ = padded.batch()
    expected = padded.sampler.sample(part, 2)
    for ours, theirs in zip(batch.graphs, expected.graphs, strict=True):
        assert torch.equal(ours.structure.edge_id[: theirs.num_edges], theirs.structure.edge_id)


OPTIONS = {
    "one-hot": {"feature_dropout": 0.3, "edge_dropout": 0.3},
    "features": {"heads": 2, "score": "multiplicative", "scope": "across", "batch_norm": True, "edge_dropout": 0.3},
    "convolution": {"layer": "rgcn", "num_bases": 3, "feature_dropout": 0.3},
}


def make_data(name):
    data = load("institute")
    data = dataclasses.replace(data, valid=data.test[:10])
    if name == "features":
        generator = torch.Generator().manual_seed(1)
        data = dataclasses.replace(data, x=torch.randn(data.graph.num_nodes, 7, generator=generator))
    return data


@pytest.mark.parametrize("weights", [None, "balanced"])
@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("name", OPTIONS)
def test_the_loss_of_a_padded_batch_is_that_of_the_batch(name, together, weights):
    data, settings = make_data(name), Settings(fanouts=(3, 2), batch_size=24, class_weights=weights)
    models = [build_model(data, seed, hidden_channels=8, **OPTIONS[name]) for seed in range(2)]
    model = stack(models) if together else models[0]
    task = make_task([data], settings, torch.device("cpu"))
    assert isinstance(task, SampledTask)
    found = []
    with ops.backend("torch"):
        for padded in (False, True):
            if padded:
                task._padded = PaddedSampler(task.loader.sampler, task.loader.nodes, 24, at_once)
                task._known, task.pads = data.labels, True
            trained = copy.deepcopy(model).train()
            for batch in task.batches(torch.Generator(), epoch=1):
                if padded:
                    task.pad(batch)
                losses = task.padded_losses(trained) if padded else task.losses(trained, batch)
                losses.sum().backward()
                found.append(losses.detach())
            found += [parameter.grad for parameter in trained.parameters() if parameter.grad is not None]
            found += [buffer for buffer in trained.buffers() if buffer.is_floating_point()]
    half = len(found) // 2
    assert half > 6
    for ours, theirs in zip(found[:half], found[half:], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("too_small", [False, True])
@pytest.mark.parametrize("name", OPTIONS)
def test_captured_sampled_steps_are_steps(name, too_small, monkeypatch):
    """Also where a batch outgrows the memory of the capture."""
    data = make_data(name)
    data = data if data.x is None else dataclasses.replace(data, x=data.x.double())
    settings = Settings(fanouts=(3, 2), batch_size=16, max_epochs=3, patience=None)
    grown = []

    def make(*arguments):
        padded = PaddedSampler(*arguments)
        if too_small:
            least = padded.capacities[0]._replace(edges=50)
            padded.capacities[0], grow = least, padded._grow
            padded._grow = lambda sizes: (grown.append(sizes), grow(sizes))
        return padded

    monkeypatch.setattr("rgat.training.sampled.PaddedSampler", make)
    results, states = [], []
    for limit in (2**19, 0):
        monkeypatch.setattr("rgat.training.sampled.PADDED_EDGES", limit)
        model = build_model(data, 0, hidden_channels=8, **OPTIONS[name]).double().cuda()
        results.append(fit(model, data, settings))
        states.append(model.state_dict())
    assert len(grown) == too_small
    assert "captured in a CUDA graph" in results[0].how
    assert "its batches are large" in results[1].how
    for key, tensor in states[0].items():
        torch.testing.assert_close(tensor, states[1][key], rtol=1e-8, atol=1e-9)
    losses = [[epoch.train_loss for epoch in result.curve] for result in results]
    assert losses[0] == pytest.approx(losses[1], abs=1e-8)


@pytest.mark.parametrize("device", DEVICES)
def test_steps_that_update_embeddings_are_not_captured(device):
    data = make_data("one-hot")
    model = build_model(data, 0, embedding_channels=4, hidden_channels=8).to(device)
    result = fit(model, data, Settings(fanouts=(3, 2), batch_size=24, max_epochs=2))
    reason = "it runs on the CPU" if device == "cpu" else "its embeddings are updated row by row"
    assert result.how == f"alone; steps not captured: {reason}"
