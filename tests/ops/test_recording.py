"""Test launch recording and replay with kernels that are Python functions on CPU addresses."""

import ctypes

import pytest
import torch

from rgat.ops.triton import recording as tape


class AddKernel:
    """Compute ``out[i] = a[i] + b[i] + number`` on three addresses."""

    function = packed_metadata = None

    def run(self, *arguments):
        out, a, b, size, number = arguments[9:]  # after grid, stream, kernel metadata and hooks
        floats = [ctypes.cast(at, ctypes.POINTER(ctypes.c_float)) for at in (out, a, b)]
        for i in range(size):
            floats[0][i] = floats[1][i] + floats[2][i] + number


def launch(out, a, b, number):
    tape.note(AddKernel(), (1, 1, 1), (out, a, b), (len(out), number))
    AddKernel().run(*[None] * 9, out.data_ptr(), a.data_ptr(), b.data_ptr(), len(out), number)


calls = 0


def add(x, y, graph, number):
    """Compute ``x + y + graph + 2 * number`` through a temporary."""
    global calls
    calls += 1
    between, out = x.new_empty(len(x)), x.new_empty(len(x))
    launch(between, x, y, number)
    launch(out, between, graph[1], number)
    return out


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch):
    monkeypatch.setattr(tape, "_PATIENCE", 3)
    monkeypatch.setattr(tape, "_kept", {})
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 0, raising=False)
    monkeypatch.setattr(tape.torch.Tensor, "get_device", lambda tensor: 0)


def counted(function, *arguments):
    before = calls
    return tape.play(function, arguments), calls - before


def test_after_some_calls_only_launches_are_replayed_on_the_new_tensors():
    graph = [torch.arange(4.0), torch.arange(4.0)]
    ran = []
    for number in range(6):
        x, y = torch.randn(4), torch.randn(4)
        out, count = counted(add, x, y, graph, 2)
        ran.append(count)
        assert torch.allclose(out, x + y + graph[1] + 4), number
    assert ran == [1, 1, 1, 0, 0, 0]
    out, count = counted(add, x, y, graph, 5)  # another number
    assert count == 1
    assert torch.allclose(out, x + y + graph[1] + 10)
    out, count = counted(add, torch.ones(3), torch.ones(3), graph, 2)  # another shape
    assert count == 1
    assert torch.allclose(out, graph[1][:3] + 6)


def test_outputs_do_not_share_memory():
    graph = [torch.zeros(4), torch.zeros(4)]
    outs = [tape.play(add, (torch.full((4,), float(i)), torch.zeros(4), graph, 0)) for i in range(6)]
    assert [out[0].item() for out in outs] == [0, 1, 2, 3, 4, 5]


def test_a_changed_graph_is_recorded_again():
    graph = [torch.zeros(4), torch.zeros(4)]
    arguments = (torch.ones(4), torch.ones(4), graph, 0)
    for _ in range(4):
        tape.play(add, arguments)
    assert counted(add, *arguments)[1] == 0
    graph[1].add_(1)
    out, count = counted(add, *arguments)
    assert count == 1
    assert torch.equal(out, torch.full((4,), 3.0))
    graph[1] = torch.full((4,), 7.0)
    assert counted(add, *arguments)[1] == 1


def test_recordings_are_freed_with_their_graph():
    for _ in range(5):
        graph = [torch.zeros(4), torch.zeros(4)]
        for _ in range(4):
            tape.play(add, (torch.ones(4), torch.ones(4), graph, 0))
    assert len(tape._kept) <= 2


@pytest.mark.parametrize("what", ["computes", "returns an input", "returns a part", "writes"])
def test_operators_that_do_more_than_launch_are_not_replayed(what):
    def other(x, y, graph, number):
        out = add(x, y, graph, number)
        if what == "computes":
            return out * 2
        if what == "writes":
            return out.add_(1)
        return x if what == "returns an input" else out[1:]

    graph = [torch.zeros(4), torch.zeros(4)]
    for _ in range(6):
        x = torch.randn(4)
        out, count = counted(other, x, x + 1, graph, 0)
        assert count == 1
        assert torch.allclose(out, other(x, x + 1, graph, 0))


def test_a_view_that_was_copied_is_not_replayed():
    def other(x, y, graph, number):
        turned = y.view(2, 2).t().reshape(4)  # declared as a view, but copies
        return add(x, turned, graph, number)

    graph = [torch.zeros(4), torch.zeros(4)]
    with torch.inference_mode():  # here the dispatcher sees `reshape` itself
        for _ in range(6):
            x, y = torch.randn(4), torch.randn(4)
            out, count = counted(other, x, y, graph, 0)
            assert count == 1
            assert torch.allclose(out, x + y.view(2, 2).t().reshape(4))


def test_the_number_of_recordings_is_bounded(monkeypatch):
    monkeypatch.setattr(tape, "_MOST_KEPT", 5)
    graph = [torch.zeros(4), torch.zeros(4)]
    for number in range(20):
        tape.play(add, (torch.ones(4), torch.ones(4), graph, number))
    assert len(tape._kept) == 5


def test_strides_alignment_and_overlapping_inputs_are_checked():
    graph = [torch.zeros(4), torch.zeros(4)]
    twice = torch.randn(8)
    for _ in range(5):
        assert counted(add, twice[:4], twice[:4], graph, 0)[1] == 1  # two inputs share memory: ambiguous
    graph = [torch.zeros(4), torch.zeros(4)]
    for _ in range(5):
        counted(add, twice[:4], twice[4:], graph, 0)
    assert counted(add, twice[:4], twice[4:], graph, 0)[1] == 0
    assert counted(add, twice[::2], twice[4:], graph, 0)[1] == 1
    assert counted(add, twice[1:5], torch.randn(4), graph, 0)[1] == 1  # not aligned
