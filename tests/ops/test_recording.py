"""Replayed launches, with kernels that are Python functions on addresses of the CPU's memory."""

import ctypes

import pytest
import torch

from rgat.ops.triton import recording


class AddKernel:
    """``out[i] = a[i] + b[i] + number`` on three addresses, started as Triton 3.6 starts a compiled kernel."""

    function, packed_metadata = "function", "metadata"

    def __getitem__(self, grid):
        def start(*arguments, stream):
            self.run(*grid, stream, self.function, self.packed_metadata, None, None, None, *arguments)

        return start

    def run(self, *arguments):
        out, a, b, size, number = arguments[9:]  # after grid, stream, function, metadata, launch metadata and two hooks
        floats = [ctypes.cast(at, ctypes.POINTER(ctypes.c_float)) for at in (out, a, b)]
        for i in range(size):
            floats[0][i] = floats[1][i] + floats[2][i] + number


class OtherTritonKernel(AddKernel):
    """The same as another version of Triton might start it: ``run`` takes the function first, and no hooks."""

    started = 0

    def __getitem__(self, grid):
        def start(*arguments, stream):
            OtherTritonKernel.started += 1
            self.run(self.function, *grid, stream, *arguments)

        return start

    def run(self, function, *arguments):
        assert function == "function"
        super().run(*[None] * 9, *arguments[4:])


kernel = AddKernel()
calls = 0


def launch(out, a, b, number):
    recording.note_launch(kernel, (1, 1, 1), (out, a, b), (len(out), number))
    kernel[1, 1, 1](out.data_ptr(), a.data_ptr(), b.data_ptr(), len(out), number, stream=0)


def add(x, y, graph, number):
    """``x + y + graph + 2 * number``, by way of a temporary."""
    global calls
    calls += 1
    between, out = x.new_empty(len(x)), x.new_empty(len(x))
    launch(between, x, y, number)
    launch(out, between, graph[1], number)
    return out


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch):
    monkeypatch.setattr(recording, "_CALLS_BEFORE_RECORDING", 3)
    monkeypatch.setattr(recording, "_entries", {})
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 0, raising=False)
    monkeypatch.setattr(recording.torch.Tensor, "get_device", lambda tensor: 0)


def counted(function, *arguments):
    before = calls
    return recording.replay_or_run(function, arguments), calls - before


def test_after_some_calls_only_the_launches_run_on_the_new_tensors():
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
    outs = [recording.replay_or_run(add, (torch.full((4,), float(i)), torch.zeros(4), graph, 0)) for i in range(6)]
    assert [out[0].item() for out in outs] == [0, 1, 2, 3, 4, 5]


def test_a_graph_changed_in_place_is_recorded_again():
    graph = [torch.zeros(4), torch.zeros(4)]
    arguments = (torch.ones(4), torch.ones(4), graph, 0)
    for _ in range(4):
        recording.replay_or_run(add, arguments)
    assert counted(add, *arguments)[1] == 0
    graph[1].add_(1)
    out, count = counted(add, *arguments)
    assert count == 1
    assert torch.equal(out, torch.full((4,), 3.0))
    graph[1] = torch.full((4,), 7.0)
    assert counted(add, *arguments)[1] == 1


def test_recordings_of_deleted_graphs_are_dropped():
    for _ in range(5):
        graph = [torch.zeros(4), torch.zeros(4)]
        for _ in range(4):
            recording.replay_or_run(add, (torch.ones(4), torch.ones(4), graph, 0))
    assert len(recording._entries) <= 2


@pytest.mark.parametrize("action", ["computes", "returns an input", "returns a part", "writes"])
def test_an_operation_that_does_more_than_launch_is_not_recorded(action):
    def other(x, y, graph, number):
        out = add(x, y, graph, number)
        if action == "computes":
            return out * 2
        if action == "writes":
            return out.add_(1)
        return x if action == "returns an input" else out[1:]

    graph = [torch.zeros(4), torch.zeros(4)]
    for _ in range(6):
        x = torch.randn(4)
        out, count = counted(other, x, x + 1, graph, 0)
        assert count == 1
        assert torch.allclose(out, other(x, x + 1, graph, 0))


def test_a_view_that_had_to_be_copied_is_not_recorded():
    def other(x, y, graph, number):
        transposed = y.view(2, 2).t().reshape(4)  # says that it is a view
        return add(x, transposed, graph, number)

    graph = [torch.zeros(4), torch.zeros(4)]
    with torch.inference_mode():  # where `reshape` arrives as such
        for _ in range(6):
            x, y = torch.randn(4), torch.randn(4)
            out, count = counted(other, x, y, graph, 0)
            assert count == 1
            assert torch.allclose(out, x + y.view(2, 2).t().reshape(4))


def test_the_number_of_recordings_is_limited(monkeypatch):
    monkeypatch.setattr(recording, "_MAX_ENTRIES", 5)
    graph = [torch.zeros(4), torch.zeros(4)]
    for number in range(20):
        recording.replay_or_run(add, (torch.ones(4), torch.ones(4), graph, number))
    assert len(recording._entries) == 5


def test_strided_overlapping_or_unaligned_inputs_are_not_replayed():
    graph = [torch.zeros(4), torch.zeros(4)]
    twice = torch.randn(8)
    for _ in range(5):
        assert counted(add, twice[:4], twice[:4], graph, 0)[1] == 1  # one memory: which input is it?
    graph = [torch.zeros(4), torch.zeros(4)]
    for _ in range(5):
        counted(add, twice[:4], twice[4:], graph, 0)
    assert counted(add, twice[:4], twice[4:], graph, 0)[1] == 0
    assert counted(add, twice[::2], twice[4:], graph, 0)[1] == 1
    assert counted(add, twice[1:5], torch.randn(4), graph, 0)[1] == 1  # not aligned


def test_another_version_of_triton_is_replayed_by_ordinary_launches(monkeypatch):
    monkeypatch.setitem(globals(), "kernel", OtherTritonKernel())
    graph = [torch.arange(4.0), torch.arange(4.0)]
    ran = []
    for _ in range(6):
        x, y = torch.randn(4), torch.randn(4)
        out, count = counted(add, x, y, graph, 2)
        ran.append(count)
        assert torch.allclose(out, x + y + graph[1] + 4)
    assert ran == [1, 1, 1, 0, 0, 0]
    assert OtherTritonKernel.started >= 12  # two by each call, replayed or not
    (entry,) = recording._entries.values()
    assert not entry.recording.by_run


@pytest.mark.parametrize("change", ["other order", "more arguments", "fewer arguments", "no run", "no function"])
def test_run_is_used_only_with_the_arguments_that_triton_gives_it(change):
    class Kernel(AddKernel):
        def __getitem__(self, grid):
            def start(*arguments, stream):
                metadata = (None, None) if change == "fewer arguments" else (None, None, None)
                if change == "other order":
                    self.run(*grid, stream, self.packed_metadata, self.function, *metadata, *arguments)
                elif change != "no run":
                    more = (0,) if change == "more arguments" else ()
                    self.run(*grid, stream, self.function, self.packed_metadata, *metadata, *arguments, *more)

            return start

    changed = Kernel()
    if change == "no function":
        Kernel.function = property(lambda self: self.handle)
    assert recording._starts_by_run(AddKernel(), (1, 2, 3))
    assert not recording._starts_by_run(changed, (1, 2, 3))
