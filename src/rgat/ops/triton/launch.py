"""How Triton kernels are launched, and what they have in common: dtypes, block sizes, tables made once per graph."""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable
from typing import Any

import torch
import triton.language as tl
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from rgat.ops.triton import recording as tape

_PATIENCE = 12  # a layer asks for the same table up to three times in a step, a batch is used by a few layers
_LOOKED_AT = 8  # entries of the table per new one; more than one, so that it shrinks when graphs are gone
LARGE = 1 << 17  # rows or edges; smaller graphs stay in the cache and are bound by launches and waiting
LONGEST_AXIS = 65_535  # programs on the second and third axis of a grid
WIDEST = 4096  # channels of a head that kernels of whole rows take; wider ones are left to plain PyTorch

_compiled: dict[tuple[Any, ...], Any] = {}
_made: dict[tuple[Any, ...], tuple[StorageWeakRef, int, Any]] = {}


def launch(
    kernel: Any, grid: tuple[int, int, int], tensors: tuple[Tensor | None, ...], numbers: tuple[int, ...] = (),
    warps: int = 4, stages: int = 3, **constants: Any,
) -> None:  # fmt: skip
    """Run a kernel on tensors, then integers, then ``constants`` in the order of its signature.

    Triton finds the compiled code of a launch by everything that it may be specialised on, which takes longer than the
    kernel itself does on a small graph. Here only dtypes, alignment and the width of integers may differ, so a kernel
    must name its integers in ``do_not_specialize``.
    """
    device = tensors[0].get_device()  # type: ignore[union-attr]
    if device != torch.cuda.current_device():
        with torch.cuda.device(device):
            launch(kernel, grid, tensors, numbers, warps, stages, **constants)
        return
    addresses = [None if tensor is None else tensor.data_ptr() for tensor in tensors]
    dtypes = [None if tensor is None else tensor.dtype for tensor in tensors]
    aligned: Any = functools.reduce(operator.or_, filter(None, addresses)) % 16 == 0
    if not aligned:
        aligned = tuple(address is not None and address % 16 == 0 for address in addresses)
    wide = max(numbers, default=0) >= 2**31 and tuple(number >= 2**31 for number in numbers)
    values = tuple(constants.values())
    key = (id(kernel), device, warps, stages, *values, *dtypes, aligned, wide)
    compiled = _compiled.get(key)
    if compiled is None:
        compiled = _compiled[key] = kernel[grid](*tensors, *numbers, **constants, num_warps=warps, num_stages=stages)
    else:
        stream = torch._C._cuda_getCurrentRawStream(device)
        compiled[grid](*addresses, *numbers, *values, stream=stream)
    tape.note(compiled, grid, tensors, (*numbers, *values))


def once(tensor: Tensor, what: tuple[Any, ...], make: Callable[[], Any]) -> Any:
    """Something that follows from ``tensor``, made once for as long as its memory lives unchanged; None: not yet.

    Made when it was asked for several times: a batch that is used once does not pay for it, nor wait. Within a capture
    nothing runs, so nothing is made there.
    """
    memory = StorageWeakRef(tensor.untyped_storage())
    version = -1 if tensor.is_inference() else tensor._version
    key = (memory.cdata, tensor.storage_offset(), tensor.shape[0], version, *what)
    _, asked, found = _made.get(key, (None, 0, None))
    if found is not None or torch.cuda.is_current_stream_capturing():
        return found
    if asked == 0:
        _forget_some()
    if asked + 1 == _PATIENCE:
        with torch.inference_mode(False):
            found = make()
        torch.cuda.current_stream(tensor.device).synchronize()  # other streams may use it next
    _made[key] = memory, asked + 1, found
    return found


def _forget_some() -> None:
    """Drop entries of memory that is gone among the few looked at longest ago: each new one pays for these alone."""
    for key in list(itertools.islice(_made, _LOOKED_AT)):
        entry = _made.pop(key, None)
        if entry is not None and not entry[0].expired():
            _made[key] = entry  # at the end


def accumulate(dtype: torch.dtype) -> tuple[torch.dtype, Any]:
    """The dtype of sums and temporaries, for PyTorch and for Triton."""
    return (torch.float64, tl.float64) if dtype == torch.float64 else (torch.float32, tl.float32)


@functools.lru_cache(4096)
def power(size: int, low: int = 1, high: int = 1 << 30) -> int:
    """The next power of two, between two others."""
    return min(max(1 << (size - 1).bit_length(), low), high)


def grid(first: int, parts: int, batch: int | None = None) -> tuple[int, int, int]:
    """A grid with an axis for parts, behind that of a batch; too many of them are on the first, as kernels expect."""
    if parts > LONGEST_AXIS:
        return first * parts, batch or 1, 1
    return (first, parts, 1) if batch is None else (first, batch, parts)


def blocks(size: int, block: int) -> int:
    """How many blocks cover ``size``."""
    return -(-size // block)
