"""Record an operation's kernel launches once and replay them, to remove Python overhead on small graphs.

An eager training step on a small graph is launch-bound: Python takes longer to choose and start the kernels than the
GPU takes to run them. On an H200 a step on AIFB takes 2.0 to 2.4 ms without this module and 0.8 to 1.1 ms with it. A
CUDA graph cannot be captured here, because the inputs of an operation have other addresses in each call.

Which kernels run, and on which grids, depends only on the graph, the shapes, the dtypes and the options. So
``replay_or_run`` counts the calls of an operation with equal ones. The 16th call is recorded: ``launch`` reports each
kernel to ``note_launch``, a dispatch mode watches PyTorch's own operations, and each address is stored relative to the
input, output or temporary that it lies in. Later calls allocate outputs and one block of temporaries and start the
recorded kernels on the new addresses.

An operation is recorded only if nothing but allocations, views and launches happen in it, its inputs do not overlap,
and its inputs and outputs are contiguous; otherwise every call runs as usual. So do calls whose inputs are not aligned
to 16 bytes. Index tables of a graph are held at their fixed addresses; a kernel that reads floating-point numbers from
elsewhere prevents recording. Temporaries of more than 256 MiB do too: such a graph is not launch-bound.

A recording lives as long as the tensors of its graph, and is dropped when one of them is changed in place or when 256
others were added after it.

A replay starts kernels by ``CompiledKernel.run``, a private function of Triton, with the arguments that it has in
Triton 3.6, because ``CompiledKernel.__getitem__``, the ordinary way, costs more Python. When a recording is made,
``_starts_by_run`` lets Triton's own ``__getitem__`` call a substitute of ``run`` and compares the arguments. If they
differ, as they may in another version of Triton, replays use ``__getitem__``.
"""

from __future__ import annotations

import functools
import itertools
import threading
import weakref
from collections.abc import Callable, Sequence
from operator import itemgetter, or_
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

_CALLS_BEFORE_RECORDING = 16  # more than `cache` needs to have all tables of a graph
_MAX_ENTRIES = 256  # over all graphs
_MAX_TEMPORARY_BYTES = 1 << 28
_ALIGNMENT = 512
_ALLOCATIONS = {
    torch.ops.aten.empty.memory_format,
    torch.ops.aten.empty_like.default,
    torch.ops.aten.empty_strided.default,
    torch.ops.aten.new_empty.default,
    torch.ops.aten.new_empty_strided.default,
}

_Grid = tuple[int, int, int]

_thread = threading.local()  # .recorder: the one that records the launches of this thread
_entries: dict[tuple[Any, ...], _Entry] = {}


class _Launch(NamedTuple):
    kernel: Any  # compiled
    grid: _Grid
    tensors: tuple[Tensor | None, ...]
    constants: tuple[Any, ...]  # the arguments after the tensors


class _Entry:
    """The number of calls of an operation on a graph, and its recording; removed with the first tensor of the graph."""

    def __init__(self, key: tuple[Any, ...], graph: Sequence[Tensor]) -> None:
        self.graph = [weakref.ref(tensor, lambda _: _entries.pop(key, None)) for tensor in graph]
        self.calls = 0
        self.recording: _Recording | None = None


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Collect a function's allocations and launches, and notice whether it does anything else to tensors."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.launches: list[_Launch] = []
        self.allocations: list[Tensor] = []
        self.only_launches = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in _ALLOCATIONS:
            self.allocations.append(result)
        elif (
            func._schema.is_mutable
            or not all(returned.alias_info for returned in func._schema.returns)
            or not _storages(result) <= _storages((args, kwargs))  # `reshape` may copy, against its schema
        ):
            self.only_launches = False
        return result


class _Recording:
    """The launches of an operation, with addresses relative to its inputs, its outputs and one block of temporaries."""

    def __init__(
        self, graph: Sequence[Tensor], recorder: _Recorder, inputs: Sequence[Tensor], outputs: Sequence[Tensor]
    ) -> None:
        self.versions = [tensor._version for tensor in graph]
        self.outputs = [(output.shape, output.stride(), output.dtype) for output in outputs]
        spans = [(tensor.data_ptr(), tensor.nbytes, base, 0) for base, tensor in enumerate((*inputs, *outputs))]
        temporary_base, returned = len(spans), {output.data_ptr() for output in outputs}
        self.temporary_bytes = 0
        for memory in recorder.allocations:
            if memory.data_ptr() not in returned:
                spans.append((memory.data_ptr(), memory.nbytes, temporary_base, self.temporary_bytes))
                self.temporary_bytes += -(-memory.nbytes // _ALIGNMENT) * _ALIGNMENT
        self.addresses: list[tuple[int, int]] = []  # a base (input, output or temporaries) and an offset from it
        self.constants: list[Any] = []
        self.tables: list[Tensor] = []  # other memory, at fixed addresses
        # Each argument is a position in `addresses`, or one in `constants`, which come after them in a replay.
        arguments = [
            [*(self._tensor_argument(tensor, spans) for tensor in launch.tensors),
             *(self._constant(constant) for constant in launch.constants)]
            for launch in recorder.launches
        ]  # fmt: skip
        count = len(self.addresses)
        self.launches = [
            (launch.kernel, launch.grid, itemgetter(*(at if is_address else count + at for is_address, at in chosen)))
            for launch, chosen in zip(recorder.launches, arguments, strict=True)
        ]
        self.by_run = all(_starts_by_run(launch.kernel, launch.grid) for launch in recorder.launches)

    def _tensor_argument(self, tensor: Tensor | None, spans: list[tuple[int, int, int, int]]) -> tuple[bool, int]:
        if tensor is None:
            return self._constant(None)
        pointer = tensor.data_ptr()
        for begin, size, base, before in spans:
            if begin <= pointer < begin + size:
                address = (base, before + pointer - begin)
                if address not in self.addresses:
                    self.addresses.append(address)
                return True, self.addresses.index(address)
        self.tables.append(tensor)
        return self._constant(pointer)

    def _constant(self, value: Any) -> tuple[bool, int]:
        self.constants.append(value)
        return False, len(self.constants) - 1

    def replay(self, inputs: list[Tensor]) -> list[Tensor] | None:
        """Return the outputs for other inputs; None if they are not aligned as the recorded ones."""
        device, bases = inputs[0].device, [tensor.data_ptr() for tensor in inputs]
        if functools.reduce(or_, bases) % 16:
            return None
        outputs = [
            torch.empty_strided(shape, stride, dtype=dtype, device=device)  # the fastest way to allocate
            for shape, stride, dtype in self.outputs
        ]
        temporary = torch.empty_strided((self.temporary_bytes,), (1,), dtype=torch.uint8, device=device)
        bases += [output.data_ptr() for output in outputs]
        bases.append(temporary.data_ptr())
        values = [bases[base] + offset for base, offset in self.addresses]
        values += self.constants
        stream = torch._C._cuda_getCurrentRawStream(device.index)
        if self.by_run:
            for kernel, grid, choose in self.launches:  # as in `__getitem__`, but without metadata and profiler hooks
                kernel.run(*grid, stream, kernel.function, kernel.packed_metadata, None, None, None, *choose(values))
        else:
            for kernel, grid, choose in self.launches:
                kernel[grid](*choose(values), stream=stream)
        return outputs


class _WithoutLaunch:
    """A compiled kernel whose ``run`` only notes its arguments."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.arguments: tuple[Any, ...] = ()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.kernel, name)

    def run(self, *arguments: Any) -> None:
        self.arguments = arguments


def _starts_by_run(kernel: Any, grid: _Grid) -> bool:
    """Tell whether this version of Triton starts a kernel by ``run`` with the arguments that ``replay`` gives it."""
    stream, arguments, probe = 7, (11, 13.0), _WithoutLaunch(kernel)
    try:
        type(kernel).__getitem__(probe, grid)(*arguments, stream=stream)
        expected = (*grid, stream, kernel.function, kernel.packed_metadata)
        metadata_and_hooks = probe.arguments[6:9]
        return probe.arguments == (*expected, *metadata_and_hooks, *arguments) and len(metadata_and_hooks) == 3
    except Exception:  # whatever another version of Triton raises
        return False


def allows_tf32() -> bool:
    """Tell whether products of float32 may use TF32, by either of PyTorch's two settings."""
    try:
        return bool(torch.backends.cuda.matmul.allow_tf32)
    except RuntimeError:  # the newer setting is in use
        return bool(torch.backends.cuda.matmul.fp32_precision == "tf32")


def _storages(values: Any) -> set[int]:
    return {t.untyped_storage()._cdata for t in pytree.tree_leaves(values) if isinstance(t, Tensor)}


def _record(
    function: Callable[..., Any], arguments: tuple[Any, ...], inputs: list[Tensor], graph: Sequence[Tensor]
) -> tuple[Any, _Recording | None]:
    """Call the function; return its result, and a recording if it can be replayed."""
    recorder = _thread.recorder = _Recorder()
    try:
        with recorder:
            result = function(*arguments)
    finally:
        _thread.recorder = None
    outputs = [result] if isinstance(result, Tensor) else list(result)
    spans = sorted((tensor.data_ptr(), tensor.nbytes) for tensor in inputs if tensor.nbytes > 0)
    disjoint = all(begin + size <= after for (begin, size), (after, _) in itertools.pairwise(spans))
    allocated = {tensor.data_ptr(): tensor.nbytes for tensor in recorder.allocations}
    filled = [output for output in outputs if output.nbytes > 0]
    can_be_replayed = (
        recorder.only_launches
        and inputs[0].get_device() == torch.cuda.current_device()
        and disjoint
        and all(tensor.is_contiguous() for tensor in (*inputs, *outputs))
        and all(tensor.data_ptr() % 16 == 0 for tensor in inputs)
        and all(allocated.get(output.data_ptr()) == output.nbytes for output in filled)
        and len({output.data_ptr() for output in filled}) == len(filled)
        and not any(tensor.is_inference() for tensor in graph)
    )
    if not can_be_replayed:
        return result, None
    recording = _Recording(graph, recorder, inputs, outputs)
    reads_other_values = any(table.is_floating_point() and table.nbytes > 0 for table in recording.tables)
    too_large = recording.temporary_bytes > _MAX_TEMPORARY_BYTES
    return result, None if reads_other_values or too_large else recording


def note_launch(kernel: Any, grid: _Grid, tensors: tuple[Tensor | None, ...], constants: tuple[Any, ...]) -> None:
    """Add a launch to the recording of this thread, if there is one: compiled kernel, grid and arguments."""
    recorder = getattr(_thread, "recorder", None)
    if recorder is not None:
        recorder.launches.append(_Launch(kernel, grid, tensors, constants))


def replay_or_run(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Return ``function(*arguments)`` on CUDA tensors; a list of tensors among the arguments is the graph."""
    inputs: list[Tensor] = []
    graph: list[Tensor] = []
    parts: list[Any] = [function, torch.cuda.current_device(), allows_tf32()]
    for argument in arguments:
        if isinstance(argument, Tensor):
            inputs.append(argument)
            parts += (argument.shape, argument.dtype, argument.get_device(), argument.is_contiguous())
        elif type(argument) is not list:
            parts.append(argument)
        elif isinstance(argument[0], Tensor):
            graph = argument
            parts += map(id, argument)
        else:
            parts += argument
            parts.append(len(argument))
    key = tuple(parts)
    inputs += graph
    entry = _entries.get(key)
    if entry is None:
        if len(_entries) >= _MAX_ENTRIES:
            _entries.pop(next(iter(_entries)), None)
        entry = _entries[key] = _Entry(key, graph)
    if entry.recording is not None:
        if entry.recording.versions != [tensor._version for tensor in graph]:
            _entries.pop(key, None)
        elif (outputs := entry.recording.replay(inputs)) is not None:
            return outputs[0] if len(outputs) == 1 else tuple(outputs)
    elif not torch.cuda.is_current_stream_capturing():
        entry.calls += 1
        if entry.calls == _CALLS_BEFORE_RECORDING:
            result, entry.recording = _record(function, arguments, inputs, graph)
            return result
    return function(*arguments)
