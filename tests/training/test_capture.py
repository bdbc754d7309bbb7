import dataclasses

import pytest
import torch

from rgat import ops
from rgat.data import GraphData, GraphStore, load
from rgat.experiments.variants import build_model
from rgat.training import Settings, fit, fit_many
from rgat.training import loop as module
from rgat.training.capture import why_not_capture
from rgat.training.loop import make_task

DROPOUT = {"feature_dropout": 0.3, "edge_dropout": 0.3}
CPU, GPU = torch.device("cpu"), torch.device("cuda")


def test_a_step_that_is_not_captured_says_why():
    nodes, graphs = load("institute"), load("molecules")
    settings = Settings(max_epochs=1)
    assert fit(build_model(nodes), nodes, settings).how == "alone; steps not captured: it runs on the CPU"
    task = make_task([graphs], settings, CPU)
    task.processes = task.processes._replace(number=2)
    assert why_not_capture(task, GPU) == "several processes share its batches"
    with ops.backend("torch"):
        task = make_task([nodes], settings, CPU)
        assert why_not_capture(task, GPU) == 'the backend "torch" looks at numbers on the host'


@pytest.mark.gpu
@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("batch_norm", [False, True])
def test_captured_steps_are_steps(monkeypatch, members, batch_norm):
    data = load("institute")
    settings = [
        Settings(max_epochs=12 - k, learning_rate=0.01, patience=None if batch_norm else 30, kernel_l2=(1e-4, 0.0))
        for k in range(members)
    ]

    def run():
        models = [build_model(data, k, batch_norm=batch_norm, **DROPOUT).double().to(GPU) for k in range(members)]
        return models, fit_many(models, data, settings)

    captured, results = run()
    assert all("captured in a CUDA graph" in result.how for result in results)
    monkeypatch.setattr(module, "why_not_capture", lambda task, device: "asked not to")
    eager, expected = run()
    for ours, theirs, result, other in zip(captured, eager, results, expected, strict=True):
        for name, tensor in theirs.state_dict().items():
            torch.testing.assert_close(ours.state_dict()[name], tensor, rtol=1e-9, atol=1e-9)
        assert len(result.curve) == len(other.curve)
        for point, same in zip(result.curve, other.curve, strict=True):
            assert dataclasses.astuple(point) == pytest.approx(dataclasses.astuple(same), nan_ok=True)


@pytest.mark.gpu
@pytest.mark.parametrize("options", [{}, {"batch_norm": True, "edge_dropout": 0.3}, {"layer": "rgcn"}], ids=str)
def test_captured_steps_of_graphs_are_steps(monkeypatch, options):
    data = random_graphs()
    settings = Settings(max_epochs=6, learning_rate=0.01, batch_size=12, kernel_l2=(1e-4, 0.0))

    def run():
        model = build_model(data, 0, hidden_channels=16, **options).double().to(GPU)
        store = dataclasses.replace(data.graphs, x=data.graphs.x.double())
        return model, fit(model, dataclasses.replace(data, graphs=store), settings)

    captured, result = run()
    assert "captured in a CUDA graph" in result.how
    monkeypatch.setattr(module, "why_not_capture", lambda task, device: "asked not to")
    eager, expected = run()
    for name, tensor in eager.state_dict().items():
        torch.testing.assert_close(captured.state_dict()[name], tensor, rtol=1e-9, atol=1e-9)
    for point, same in zip(result.curve, expected.curve, strict=True):
        assert dataclasses.astuple(point) == pytest.approx(dataclasses.astuple(same), nan_ok=True)


@pytest.mark.gpu
def test_a_stack_on_a_gpu_is_its_members_on_the_cpu():
    data = load("institute")
    rates = [{"feature_dropout": 0.1 * k, "edge_dropout": 0.1 * (3 - k)} for k in range(4)]
    settings = [Settings(max_epochs=8 + k, learning_rate=0.01 * (k + 1)) for k in range(4)]
    models = [build_model(data, k, heads=2, **rates[k]).double().to(GPU) for k in range(4)]
    results = fit_many(models, data, settings)
    for k, model in enumerate(models):
        alone = build_model(data, k, heads=2, **rates[k]).double()
        expected = fit(alone, data, settings[k])
        assert len(results[k].curve) == len(expected.curve)
        for name, tensor in alone.state_dict().items():
            torch.testing.assert_close(model.state_dict()[name].cpu(), tensor, rtol=1e-7, atol=1e-8)


def random_graphs():
    """A set of small graphs that needs no reader of molecules."""
    graphs, nodes, edges = 60, 5, 12
    relation = torch.randint(3, (graphs * edges,))
    ends = torch.randint(nodes, (2, graphs * edges)) + nodes * torch.arange(graphs).repeat_interleave(edges)
    ptr = [size * torch.arange(graphs + 1) for size in (nodes, edges)]
    store = GraphStore(torch.randn(graphs * nodes, 4), ends, relation, *ptr, num_relations=3)
    labels, ids = torch.randint(2, (graphs, 2)), torch.arange(graphs)
    return GraphData("made up", store, labels, ("a", "b"), ids[:40], ids[40:50], ids[50:], (), ())


@pytest.mark.gpu
def test_graphs_train_on_a_gpu():
    data = random_graphs()
    settings = Settings(max_epochs=2)
    model = build_model(data, 1, hidden_channels=8, edge_dropout=0.3)
    expected = fit(build_model(data, 1, hidden_channels=8, edge_dropout=0.3), data, settings, 1)
    result = fit(model.to(GPU), data, settings, 1)
    assert result.how == "alone; steps captured in a CUDA graph"
    assert [e.train_loss for e in result.curve] == pytest.approx([e.train_loss for e in expected.curve], rel=1e-3)
