"""Pass tensors to compiled loops, and run the loops on the threads that PyTorch's own operations use.

A second pool of threads would slow both down: an OpenMP thread that has finished its part spins for some milliseconds
on a core that the other pool needs. So loops run as a parallel region of the OpenMP library that PyTorch has loaded, or
sequentially if that library has no ``GOMP_parallel``. Numba's own pools survive neither a fork nor two Python threads
at once.
"""

from __future__ import annotations

import bisect
import ctypes
import functools
import itertools
import math
import os
from typing import Any

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rgat.ops import cache
from rgat.ops.numba import region_loops
from rgat.ops.numba.blas import find_function, use_threads
from rgat.ops.numba.compile import announce

Array = NDArray[Any]

NO_INDEX = np.empty(0, np.int32)
NO_IDS = np.empty(0, np.int64)
NO_MARKS = np.empty(0, np.bool_)
NUMBERS = {torch.float32: np.float32, torch.float64: np.float64}

SEVERAL = 3  # ranges per thread, where results do not depend on ranges: a thread that is early takes another
ALONE = 1 << 14  # numbers to move; with fewer, a second thread costs more than it saves

_is_forked = False  # OpenMP's threads do not survive a fork, and it waits for them


def _note_fork() -> None:
    global _is_forked
    _is_forked = True
    torch.set_num_threads(1)  # or PyTorch's own operations would wait for them


if hasattr(os, "register_at_fork"):  # not on Windows, where processes do not fork
    os.register_at_fork(after_in_child=_note_fork)


def _parallel() -> Any:
    return find_function(("GOMP_parallel",))


def _num_threads() -> int:
    return 1 if _is_forked or _parallel() is None else torch.get_num_threads()


@functools.cache
def _address(name: str) -> np.uint64:
    """Return the address of a function that a library of PyTorch has, or 0."""
    function = find_function((name,))
    return np.uint64(0 if function is None else ctypes.cast(function, ctypes.c_void_p).value or 0)


def _compile(loop: Any, arguments: tuple[Any, ...]) -> np.uint64:
    """Compile a loop for some arguments behind its bounds; return its address."""
    types = (numba.types.int64, numba.types.int64, *map(numba.typeof, arguments))
    loop.compile(types)
    code = loop.overloads[types]
    return np.uint64(code.library.get_pointer_to_function(code.fndesc.llvm_func_name))


_compiled: dict[Any, dict[int, np.uint64]] = {}  # of each loop the addresses, by the kind of its arguments
_latest: dict[Any, tuple[int, np.uint64]] = {}  # the last of these that was called


def _run_in_parallel(loop: Any, bounds: list[int], arguments: tuple[Any, ...]) -> None:
    """Call a loop for each range between neighbouring bounds on the threads of an OpenMP team."""
    team = (_address("GOMP_parallel"), min(len(bounds) - 1, _num_threads()), _address("MKL_Set_Num_Threads_Local"))
    ends = np.array(bounds, np.int64)
    kind, address = _latest.get(loop, (-1, np.uint64(0)))
    while (result := region_loops.run_region(*team, kind, address, ends, *arguments)) >= 0:
        known = _compiled.setdefault(loop, {})
        if result not in known:
            known[result] = _compile(loop, arguments)
        kind, address = _latest[loop] = result, known[result]
    if result < -1:
        failed = -2 - result
        loop(bounds[failed], bounds[failed + 1], *arguments)  # raises the error
        raise RuntimeError(f"a range of {loop.py_func.__name__} failed")


def run(loop: Any, bounds: list[int], *arguments: Any) -> None:
    """Call the compiled ``loop(lo, hi, ...)`` in parallel for each non-empty range between neighbouring bounds."""
    announce()
    ends = sorted({*bounds})
    if len(ends) > 2 and _num_threads() > 1:
        _run_in_parallel(loop, ends, arguments)
        return
    before = use_threads(1)  # of BLAS
    try:
        for lo, hi in itertools.pairwise(ends):
            loop(lo, hi, *arguments)
    finally:
        use_threads(before)


def cut(ptr: Array, lo: int, hi: int, width: int, row_cost: float = 0, per_thread: int = 1) -> list[int]:
    """Return the bounds of ranges of ``lo:hi``, one or more per thread, with equal costs.

    A row ``i`` costs as much as its elements, ``ptr[i]:ptr[i + 1]``, and ``row_cost`` more.
    """
    threads = _num_threads()
    total = int(ptr[hi] - ptr[lo]) + hi - lo
    if threads == 1 or total * width < ALONE:
        return [lo, hi]
    ranges, first = threads * per_thread, int(ptr[lo])

    def cost(row: int) -> float:
        return int(ptr[row]) - first + row_cost * (row - lo)

    # A search computes the costs of a few rows; to sum up those of all takes as long as some loops.
    marks = [cost(hi) * k / ranges for k in range(1, ranges)]
    if row_cost == 0:
        whole = np.ceil(np.array(marks) + first).astype(ptr.dtype)  # marks of another type would copy all rows
        return [lo, *(lo + np.searchsorted(ptr[lo:hi], whole)).tolist(), hi]
    return [lo, *(bisect.bisect_left(range(hi), mark, lo, key=cost) for mark in marks), hi]


def even(lo: int, hi: int, width: int, per_thread: int = 1) -> list[int]:
    """Return the bounds of ranges of ``lo:hi``, one or more per thread, of equal length."""
    threads = _num_threads()
    if threads == 1 or (hi - lo) * width < ALONE:
        return [lo, hi]
    ranges = threads * per_thread
    return [lo + (hi - lo) * k // ranges for k in range(ranges + 1)]


def as_array(tensor: Tensor) -> Array:
    """Return the tensor as an array on the same memory."""
    array: Array = (tensor.detach() if tensor.requires_grad else tensor).numpy()
    return array


def as_matrix(tensor: Tensor) -> Array:
    """Return the tensor as a matrix, with all axes behind the first as one."""
    array = as_array(tensor)
    return array.reshape(array.shape[0], math.prod(array.shape[1:]))


def indices(tensor: Tensor) -> Array:
    """Return the indices of a graph, which every call reads, as an array that is made once."""
    values = cache.derived(tensor)
    array: Array | None = values.get("array")
    if array is None:
        # The array of a tensor keeps it alive, that of its alias does not.
        array = values["array"] = tensor.detach().numpy()
    return array


@functools.cache
def nothing(dtype: torch.dtype, *shape: int) -> Array:
    """Return an array without entries, for an input that a call does not have."""
    return np.empty(shape, NUMBERS[dtype])


def optional_indices(node: Tensor | None) -> Array:
    """Return the indices as an array; without entries for None."""
    return NO_INDEX if node is None else indices(node)
