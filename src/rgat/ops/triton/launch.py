"""Launch Triton kernels with little Python, and choose their dtypes, block sizes and grids."""

# mypy: disable-error-code="no-untyped-call, no-untyped-def, untyped-decorator"
# ruff: noqa: N803

from __future__ import annotations

import functools
import operator
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from rgat.ops.triton import recording

LARGE = 1 << 17  # rows or edges; smaller graphs stay in the L2 cache and are launch-bound
MAX_GRID_AXIS = tl.constexpr(65_535)  # programs on the second and third axis of a grid
MAX_CHANNELS = 4096  # of a head, in kernels that hold whole rows; wider heads run in plain PyTorch

_compiled: dict[tuple[Any, ...], Any] = {}


def launch(
    kernel: Any, grid: tuple[int, int, int], tensors: tuple[Tensor | None, ...], integers: tuple[int, ...] = (),
    warps: int = 4, stages: int = 3, **constants: Any,
) -> None:  # fmt: skip
    """Run a kernel on tensors, then integers, then ``constants`` in the order of its signature.

    Triton looks up compiled code by everything that it may specialise on, which takes longer than a kernel on a small
    graph. Here the key is dtypes, alignment, constants and whether an integer needs 64 bits, so a kernel must name its
    integers in ``do_not_specialize``.
    """
    device = tensors[0].get_device()  # type: ignore[union-attr]
    if device != torch.cuda.current_device():
        with torch.cuda.device(device):
            launch(kernel, grid, tensors, integers, warps, stages, **constants)
        return
    addresses = [None if tensor is None else tensor.data_ptr() for tensor in tensors]
    dtypes = [None if tensor is None else tensor.dtype for tensor in tensors]
    aligned: Any = functools.reduce(operator.or_, filter(None, addresses)) % 16 == 0
    if not aligned:
        aligned = tuple(address is not None and address % 16 == 0 for address in addresses)
    wide = max(integers, default=0) >= 2**31 and tuple(integer >= 2**31 for integer in integers)
    values = tuple(constants.values())
    key = (id(kernel), device, warps, stages, *values, *dtypes, aligned, wide)
    compiled = _compiled.get(key)
    if compiled is None:
        compiled = _compiled[key] = kernel[grid](*tensors, *integers, **constants, num_warps=warps, num_stages=stages)
    else:
        stream = torch._C._cuda_getCurrentRawStream(device)
        compiled[grid](*addresses, *integers, *values, stream=stream)
    recording.note_launch(compiled, grid, tensors, (*integers, *values))


def sum_dtype(dtype: torch.dtype) -> tuple[torch.dtype, Any]:
    """Return the dtype of sums and temporaries, for PyTorch and for Triton."""
    return (torch.float64, tl.float64) if dtype == torch.float64 else (torch.float32, tl.float32)


@functools.lru_cache(4096)
def power_of_two(size: int, low: int = 1, high: int = 1 << 30) -> int:
    """Return the next power of two, between ``low`` and ``high``."""
    return min(max(1 << (size - 1).bit_length(), low), high)


def num_blocks(size: int, block: int) -> int:
    """Return the number of blocks that cover ``size``."""
    return -(-size // block)


def grid_with_parts(first: int, parts: int, batch: int | None = None, together: bool = False) -> tuple[int, int, int]:
    """Return the grid ``(first, parts)`` or ``(first, batch, parts)``; too many parts move to the first axis.

    So do parts that are to run ``together``, because they read the same numbers, which the L2 cache then holds. A
    kernel reads its position by ``first_and_part``.
    """
    if together or parts > MAX_GRID_AXIS.value:
        return first * parts, batch or 1, 1
    return (first, parts, 1) if batch is None else (first, batch, parts)


@triton.jit
def first_and_part(PARTS: tl.constexpr, AXIS: tl.constexpr, TOGETHER: tl.constexpr = False):
    """Return a program's position on the first axis of ``grid_with_parts`` and its part; ``AXIS`` is that of parts."""
    first = tl.program_id(0)
    part = tl.program_id(AXIS)
    if TOGETHER or PARTS > MAX_GRID_AXIS:
        part = first % PARTS
        first = first // PARTS
    return first, part
