import dataclasses
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from helpers import random_graphs

from rgat import ops
from rgat.data import load
from rgat.training import Job, Settings, build_model, fit, fit_many, many
from rgat.training import loop as module
from rgat.training.capture import WARM_UP, Captured, training_on, why_not_capture
from rgat.training.loop import make_task

DROPOUT = {"feature_dropout": 0.3, "edge_dropout": 0.3}
CPU, GPU = torch.device("cpu"), torch.device("cuda")


def test_a_step_that_is_not_captured_says_why(monkeypatch):
    nodes, graphs = load("institute"), load("molecules")
    settings = Settings(max_epochs=1)
    assert fit(build_model(nodes), nodes, settings).how == "alone; steps not captured: it runs on the CPU"
    task = make_task([graphs], settings, CPU)
    assert why_not_capture(task.why_not_pad, GPU) != "several processes share its batches"
    monkeypatch.setattr("rgat.training.task.processes", lambda: task.processes._replace(number=2))
    task = make_task([graphs], settings, CPU)
    assert why_not_capture(task.why_not_pad, GPU) == "several processes share its batches"
    with ops.backend("torch"):
        assert why_not_capture(None, GPU) == 'the backend "torch" reads numbers on the host'


@pytest.fixture
def gpus(monkeypatch):
    """Let training believe that models are on a second GPU; returns the GPUs that are current, innermost last."""
    current = threading.local()

    @contextmanager
    def make_current(device):
        current.devices = [*getattr(current, "devices", []), str(device)]
        yield
        current.devices.pop()

    monkeypatch.setattr(torch.cuda, "device", make_current)
    for place in (module, many):
        monkeypatch.setattr(place, "training_on", lambda device: training_on(torch.device("cuda", 1)))
    return lambda: getattr(current, "devices", [])


def test_everything_runs_on_the_gpu_of_the_model(gpus, monkeypatch):
    data, seen = load("institute"), []

    def watch(owner, name):
        function = getattr(owner, name)

        def watched(*arguments, **options):
            seen.append((name, gpus()[-1]))
            return function(*arguments, **options)

        monkeypatch.setattr(owner, name, watched)

    for owner in (module, many):
        watch(owner, "make_task")
    watch(many, "plan_stacks")
    watch(many, "stack")
    methods = ("__init__", "step", "validate", "results")
    for name in methods:
        watch(module.Training, name)
    models = [build_model(data, seed) for seed in range(2)]
    fit(models[0], data, Settings(max_epochs=1))
    fit_many(models, data, Settings(max_epochs=1))
    assert {device for _, device in seen} == {"cuda:1"}
    assert {name for name, _ in seen} == {"make_task", "plan_stacks", "stack", *methods}
    assert gpus() == []


def test_the_free_memory_of_the_gpu_of_the_model_counts(monkeypatch):
    data, device = load("institute"), torch.device("cuda", 1)
    parameter = SimpleNamespace(is_cuda=True, device=device, numel=lambda: 10, element_size=lambda: 4)
    like = build_model(data)
    model = SimpleNamespace(parameters=lambda: iter([parameter]), conv1=like.conv1, conv2=like.conv2)
    asked = []
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None: asked.append(device) or (2**30, 2**30))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device=None: asked.append(device) or 0)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device=None: asked.append(device) or 0)
    assert many.members_that_fit(Job(model, data, Settings(), 0)) > 1
    assert asked == [device] * 3


def test_work_is_captured_on_a_stream_of_its_own(monkeypatch):
    """PyTorch's default stream for captures is of the GPU that captured first."""
    calls, replays, made = [], [], []
    current = ["main"]

    @contextmanager
    def on(stream):
        current.append(stream)
        yield
        current.pop()

    class Stream:
        def __init__(self):
            made.append(self)

        def wait_stream(self, other):
            pass

    main = SimpleNamespace(wait_stream=lambda other: None)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: main)
    monkeypatch.setattr(torch.cuda, "stream", on)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: SimpleNamespace(replay=lambda: replays.append(len(calls))))
    monkeypatch.setattr(torch.cuda, "graph", lambda graph, stream, capture_error_mode: on(stream))
    captured = Captured()
    for number in range(6):
        assert captured(lambda number=number: calls.append(current[-1]) or number) == min(number, WARM_UP)
    assert calls == made * (WARM_UP + 1)
    assert replays == [WARM_UP + 1] * 3


def test_of_two_threads_that_train_on_a_gpu_the_second_waits(gpus):
    data, epochs = load("institute"), []

    def train(number):
        def note(epoch):
            time.sleep(0.01)  # the other one would go on meanwhile
            epochs.append(number)

        return fit(models[number], data, Settings(max_epochs=5), on_epoch=note)

    models = [build_model(data, seed) for seed in range(2)]
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(train, range(2)))
    assert epochs in ([0] * 5 + [1] * 5, [1] * 5 + [0] * 5)
    for seed, result in enumerate(results):
        assert result.curve == fit(build_model(data, seed), data, Settings(max_epochs=5)).curve


def test_a_training_may_train_another_model_in_its_course(gpus):
    data = load("institute")

    def train_another(epoch):
        fit(build_model(data, 1), data, Settings(max_epochs=1))

    assert len(fit(build_model(data), data, Settings(max_epochs=2), on_epoch=train_another).curve) == 2


@pytest.mark.gpu
def test_two_threads_may_train_on_one_gpu():
    data, settings = load("institute"), Settings(max_epochs=8)

    def models():
        return [build_model(data, seed) for seed in range(2)]

    def run(model):
        return fit(model.to(GPU), data, settings)  # one takes memory while the other captures

    expected = [run(model) for model in models()]
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(run, models()))
    for result, other in zip(found, expected, strict=True):
        assert "captured in a CUDA graph" in result.how
        losses = [epoch.train_loss for epoch in result.curve]
        assert losses == pytest.approx([epoch.train_loss for epoch in other.curve], rel=1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("batch_norm", [False, True])
@pytest.mark.parametrize("extended", [False, True])
def test_captured_steps_are_steps(monkeypatch, members, batch_norm, extended):
    data, more, options = load("institute"), {}, DROPOUT
    if extended:
        data = dataclasses.replace(data, x=torch.randn(data.graph.num_nodes, 6, dtype=torch.float64))
        more = {"weight_averaging": True, "label_smoothing": 0.1}
        options = DROPOUT | {"identity": True, "residual": True, "layer_norm": True, "jumping_knowledge": True}
    settings = [
        Settings(
            max_epochs=12 - k, learning_rate=0.01, patience=None if batch_norm else 30, kernel_l2=(1e-4, 0.0), **more
        )
        for k in range(members)
    ]

    def run():
        models = [build_model(data, k, batch_norm=batch_norm, **options).double().to(GPU) for k in range(members)]
        return models, fit_many(models, data, settings)

    captured, results = run()
    assert all("captured in a CUDA graph" in result.how for result in results)
    monkeypatch.setattr(module, "why_not_capture", lambda task, device: "asked not to")
    eager, expected = run()
    for ours, theirs, result, other in zip(captured, eager, results, expected, strict=True):
        for name, tensor in theirs.state_dict().items():
            # a bias before a batch norm has gradient zero: Adam divides its rounding errors by their own size
            torch.testing.assert_close(ours.state_dict()[name], tensor, rtol=1e-9, atol=1e-8)
        assert len(result.curve) == len(other.curve)
        for point, same in zip(result.curve, other.curve, strict=True):
            assert dataclasses.astuple(point) == pytest.approx(dataclasses.astuple(same), nan_ok=True)


@pytest.mark.gpu
@pytest.mark.parametrize("options", [{}, {"batch_norm": True, "edge_dropout": 0.3}, {"layer": "rgcn"}], ids=str)
@pytest.mark.parametrize("more", [{}, {"weight_averaging": True, "label_smoothing": 0.1}], ids=str)
def test_captured_steps_of_graphs_are_steps(monkeypatch, options, more):
    data = random_graphs()
    settings = Settings(max_epochs=6, learning_rate=0.01, batch_size=12, kernel_l2=(1e-4, 0.0), **more)

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
@pytest.mark.parametrize("score", ["additive", "dynamic"])
def test_a_stack_on_a_gpu_is_its_members_on_the_cpu(score):
    data = load("institute")
    rates = [{"feature_dropout": 0.1 * k, "edge_dropout": 0.1 * (4 - k)} for k in range(4)]
    # The last member trains for some epochs alone, as a stack of one; without patience its last epoch counts.
    settings = [Settings(max_epochs=8 + 2 * k, learning_rate=0.01 * (k + 1), patience=None) for k in range(4)]
    models = [build_model(data, k, heads=2, score=score, **rates[k]).double().to(GPU) for k in range(4)]
    results = fit_many(models, data, settings)
    for k, model in enumerate(models):
        alone = build_model(data, k, heads=2, score=score, **rates[k]).double()
        expected = fit(alone, data, settings[k])
        assert len(results[k].curve) == len(expected.curve)
        for name, tensor in alone.state_dict().items():
            torch.testing.assert_close(model.state_dict()[name].cpu(), tensor, rtol=1e-7, atol=1e-8)


@pytest.mark.gpu
def test_graphs_train_on_a_gpu():
    data = random_graphs()
    settings = Settings(max_epochs=2)
    model = build_model(data, 1, hidden_channels=8, edge_dropout=0.3)
    expected = fit(build_model(data, 1, hidden_channels=8, edge_dropout=0.3), data, settings, 1)
    result = fit(model.to(GPU), data, settings, 1)
    assert result.how == "alone; steps captured in a CUDA graph"
    assert [e.train_loss for e in result.curve] == pytest.approx([e.train_loss for e in expected.curve], rel=1e-3)
