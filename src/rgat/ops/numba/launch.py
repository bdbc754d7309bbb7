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
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rgat.ops import cache
from rgat.ops.numba.blas import find_function, use_threads
from rgat.ops.numba.compile import announce

Array = NDArray[Any]

NO_INDEX = np.empty(0, np.int32)
NO_IDS = np.empty(0, np.int64)
NO_MARKS = np.empty(0, np.bool_)
NUMBERS = {torch.float32: np.float32, torch.float64: np.float64}

SEVERAL = 3  # ranges per thread, where results do not depend on ranges: a thread that is early takes another
ALONE = 1 << 14  # numbers to move; with fewer, a second thread costs more than it saves

_Body = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

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


def _run_sequentially(tasks: Iterable[Callable[[], None]]) -> None:
    """Call functions one after the other; BLAS uses one thread in them."""
    before = use_threads(1)
    try:
        for task in tasks:
            task()
    finally:
        use_threads(before)


def _run_in_parallel(tasks: list[Callable[[], None]]) -> None:
    """Call functions that release the global interpreter lock on the threads of an OpenMP team."""
    waiting, errors = iter(tasks), []

    def body(_: Any) -> None:
        try:
            _run_sequentially(waiting)
        except BaseException as error:
            errors.append(error)

    _parallel()(_Body(body), None, ctypes.c_uint(min(len(tasks), _num_threads())), ctypes.c_uint(0))
    if errors:
        raise errors[0]


def run(loop: Callable[..., Any], bounds: list[int], *arguments: Any) -> None:
    """Call ``loop(lo, hi, ...)`` in parallel for each non-empty range between neighbouring bounds."""
    announce()
    tasks: list[Callable[[], None]] = [
        functools.partial(loop, lo, hi, *arguments) for lo, hi in itertools.pairwise(bounds) if lo < hi
    ]
    if len(tasks) > 1:
        _run_in_parallel(tasks)
    else:
        _run_sequentially(tasks)


def cut(ptr: Array, lo: int, hi: int, width: int, row_cost: float = 0, per_thread: int = 1) -> list[int]:
    """Return the bounds of ranges of ``lo:hi``, one or more per thread, with equal costs.

    A row ``i`` costs as much as its elements, ``ptr[i]:ptr[i + 1]``, and ``row_cost`` more.
    """
    threads = _num_threads()
    total = int(ptr[hi] - ptr[lo]) + hi - lo
    if threads == 1 or total * width < ALONE:
        return [lo, hi]
    ranges = threads * per_thread

    def cost(row: int) -> float:
        return int(ptr[row]) - int(ptr[lo]) + row_cost * (row - lo)

    # A search computes the costs of a few rows; to sum up those of all takes as long as some loops.
    marks = (cost(hi) * k / ranges for k in range(1, ranges))
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
