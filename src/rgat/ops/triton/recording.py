"""Launches that are written down and repeated.

On a small graph a GPU waits for the Python that decides what to launch. What is launched depends on the graph, the
shapes and the options alone. So when an operation was called often enough with the same ones, its launches are written
down (which kernels, on which grids, with which addresses and numbers), and from then on repeated on new memory.
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

_PATIENCE = 16  # more than tables of a graph need to be made
_MOST_KEPT = 256  # operations, over all graphs that live
_MOST_BYTES = 1 << 28  # of temporaries, which live as long as the operation here; a larger graph needs no help
_ALIGNMENT = 512
_ALLOCATIONS = {
    torch.ops.aten.empty.memory_format,
    torch.ops.aten.empty_like.default,
    torch.ops.aten.empty_strided.default,
    torch.ops.aten.new_empty.default,
    torch.ops.aten.new_empty_strided.default,
}

_here = threading.local()  # .recorder: the one that writes down what this thread launches
_kept: dict[tuple[Any, ...], _Kept] = {}


class _Launch(NamedTuple):
    kernel: Any  # compiled
    grid: tuple[int, int, int]
    tensors: tuple[Tensor | None, ...]
    others: tuple[Any, ...]  # what follows the addresses: numbers and constants


class _Kept:
    """How often an operation was called on a graph, and its tape; forgotten with the first of the graph's tensors."""

    def __init__(self, name: tuple[Any, ...], leaves: Sequence[Tensor]) -> None:
        self.graph = [weakref.ref(leaf, lambda _: _kept.pop(name, None)) for leaf in leaves]
        self.calls = 0
        self.tape: _Tape | None = None


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees all that a function does on tensors: memory that it takes, launches, and whether there is anything else."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.launches: list[_Launch] = []
        self.memory: list[Tensor] = []
        self.only_launches = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if func in _ALLOCATIONS:
            self.memory.append(made)
        elif (
            func._schema.is_mutable
            or not all(result.alias_info for result in func._schema.returns)
            or not _memory(made) <= _memory((args, kwargs))
        ):
            self.only_launches = False  # more than another view of the same memory; a schema may say less: `reshape`
        return made


class _Tape:
    """The launches of an operation, with addresses relative to those of its inputs, its outputs and one temporary."""

    def __init__(
        self, leaves: Sequence[Tensor], recorder: _Recorder, inputs: Sequence[Tensor], outputs: Sequence[Tensor]
    ) -> None:
        self.versions = [leaf._version for leaf in leaves]
        self.outputs = [(output.shape, output.stride(), output.dtype) for output in outputs]
        spans = [(tensor.data_ptr(), tensor.nbytes, base, 0) for base, tensor in enumerate((*inputs, *outputs))]
        temporary, returned, self.size = len(spans), {output.data_ptr() for output in outputs}, 0
        for memory in recorder.memory:
            if memory.data_ptr() not in returned:
                spans.append((memory.data_ptr(), memory.nbytes, temporary, self.size))
                self.size += -(-memory.nbytes // _ALIGNMENT) * _ALIGNMENT
        self.places: list[tuple[int, int]] = []  # of each address: what it is relative to, and its offset
        self.constants: list[Any] = []
        self.tables: list[Tensor] = []  # memory of others, at constant addresses
        self.launches: list[tuple[Any, tuple[int, int, int], Callable[[list[Any]], tuple[Any, ...]]]] = []
        chosen: list[list[tuple[bool, int]]] = []
        for launch in recorder.launches:
            arguments = []
            for tensor in launch.tensors:
                place = None if tensor is None else _find(tensor.data_ptr(), spans)
                if place is None:
                    if tensor is not None:
                        self.tables.append(tensor)
                    arguments.append((False, len(self.constants)))
                    self.constants.append(None if tensor is None else tensor.data_ptr())
                else:
                    if place not in self.places:
                        self.places.append(place)
                    arguments.append((True, self.places.index(place)))
            arguments += [(False, len(self.constants) + number) for number in range(len(launch.others))]
            self.constants += launch.others
            chosen.append(arguments)
        for launch, arguments in zip(recorder.launches, chosen, strict=True):
            numbers = [number if is_place else len(self.places) + number for is_place, number in arguments]
            self.launches.append((launch.kernel, launch.grid, itemgetter(*numbers)))

    def repeat(self, inputs: list[Tensor]) -> list[Tensor] | None:
        """The outputs for other inputs; None where their memory is not aligned as it was."""
        device, bases = inputs[0].device, [tensor.data_ptr() for tensor in inputs]
        if functools.reduce(or_, bases) % 16:
            return None
        outputs = [
            torch.empty_strided(shape, stride, dtype=dtype, device=device)  # the fastest way to have memory
            for shape, stride, dtype in self.outputs
        ]
        temporary = torch.empty_strided((self.size,), (1,), dtype=torch.uint8, device=device)
        bases += [output.data_ptr() for output in outputs]
        bases.append(temporary.data_ptr())
        table = [bases[base] + offset for base, offset in self.places]
        table += self.constants
        stream = torch._C._cuda_getCurrentRawStream(device.index)
        for kernel, grid, arguments in self.launches:  # as Triton does it, without the hooks of its profiler
            kernel.run(*grid, stream, kernel.function, kernel.packed_metadata, None, None, None, *arguments(table))
        return outputs


def allows_tf32() -> bool:
    """Whether products of single-precision numbers may be less than that, by either of PyTorch's two settings."""
    try:
        return bool(torch.backends.cuda.matmul.allow_tf32)
    except RuntimeError:  # the newer one is in use
        return bool(torch.backends.cuda.matmul.fp32_precision == "tf32")


def _memory(values: Any) -> set[int]:
    return {t.untyped_storage()._cdata for t in pytree.tree_leaves(values) if isinstance(t, Tensor)}


def _find(address: int, spans: list[tuple[int, int, int, int]]) -> tuple[int, int] | None:
    return next(
        ((base, before + address - begin) for begin, size, base, before in spans if begin <= address < begin + size),
        None,
    )


def _write_tape(
    function: Callable[..., Any], arguments: tuple[Any, ...], inputs: list[Tensor], leaves: Sequence[Tensor]
) -> tuple[Any, _Tape | None]:
    """Call the function; return what it returns, and its tape if it can be repeated."""
    recorder = _here.recorder = _Recorder()
    try:
        with recorder:
            made = function(*arguments)
    finally:
        _here.recorder = None
    outputs = [made] if isinstance(made, Tensor) else list(made)
    begins = sorted((tensor.data_ptr(), tensor.nbytes) for tensor in inputs if tensor.nbytes > 0)
    apart = all(begin + size <= after for (begin, size), (after, _) in itertools.pairwise(begins))
    memory = {tensor.data_ptr(): tensor.nbytes for tensor in recorder.memory}
    own = [output for output in outputs if output.nbytes > 0]
    can = (
        recorder.only_launches
        and inputs[0].get_device() == torch.cuda.current_device()
        and apart
        and all(tensor.is_contiguous() for tensor in (*inputs, *outputs))
        and all(tensor.data_ptr() % 16 == 0 for tensor in inputs)
        and all(memory.get(output.data_ptr()) == output.nbytes for output in own)
        and len({output.data_ptr() for output in own}) == len(own)
        and not any(tensor.is_inference() for tensor in leaves)
    )
    if not can:
        return made, None
    tape = _Tape(leaves, recorder, inputs, outputs)
    fixed = any(table.is_floating_point() and table.nbytes > 0 for table in tape.tables)  # indices alone are kept
    return made, None if fixed or tape.size > _MOST_BYTES else tape


def note(kernel: Any, grid: tuple[int, int, int], tensors: tuple[Tensor | None, ...], others: tuple[Any, ...]) -> None:
    """Called with each launch: a compiled kernel, its grid, its tensors, and what follows them."""
    recorder = getattr(_here, "recorder", None)
    if recorder is not None:
        recorder.launches.append(_Launch(kernel, grid, tensors, others))


def play(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """``function(*arguments)``, on CUDA tensors; one argument is the list of the tensors of a graph."""
    inputs: list[Tensor] = []
    leaves: list[Tensor] = []
    key: list[Any] = [function, torch.cuda.current_device(), allows_tf32()]
    for argument in arguments:
        if isinstance(argument, Tensor):
            inputs.append(argument)
            key += (argument.shape, argument.dtype, argument.get_device(), argument.is_contiguous())
        elif type(argument) is not list:
            key.append(argument)
        elif isinstance(argument[0], Tensor):
            leaves = argument
            key += map(id, argument)
        else:
            key += argument
            key.append(len(argument))
    name = tuple(key)
    inputs += leaves
    kept = _kept.get(name)
    if kept is None:
        if len(_kept) >= _MOST_KEPT:
            _kept.pop(next(iter(_kept)), None)
        kept = _kept[name] = _Kept(name, leaves)
    if kept.tape is not None:
        if kept.tape.versions != [leaf._version for leaf in leaves]:
            _kept.pop(name, None)
        elif (outputs := kept.tape.repeat(inputs)) is not None:
            return outputs[0] if len(outputs) == 1 else tuple(outputs)
    elif not torch.cuda.is_current_stream_capturing():
        kept.calls += 1
        if kept.calls == _PATIENCE:
            made, kept.tape = _write_tape(function, arguments, inputs, leaves)
            return made
    return function(*arguments)
