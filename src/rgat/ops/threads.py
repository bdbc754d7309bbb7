"""Threads of our own, for compiled loops and for the matrix products between them.

Numba's pools neither survive a fork nor two Python threads at once. And a product of a few hundred rows is too short to
be shared by the threads of BLAS, which wait for each other at the end of each: here each thread has its own products.
"""

from __future__ import annotations

import functools
import itertools
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from rgat.ops import numba_kernels as loops

T = TypeVar("T")

ALONE = 1 << 14  # numbers to move below which a second thread costs more than it saves


_pool: ThreadPoolExecutor | None = None
_here = threading.local()  # `count`: how many threads to use from this one
_making = threading.Lock()


def _forget_pool() -> None:
    global _pool, _making
    _pool, _making = None, threading.Lock()


def _threads() -> ThreadPoolExecutor:
    """Our threads, started on first use; neither PyTorch nor BLAS divides their work any further."""
    global _pool
    with _making:
        if _pool is None:
            size, before = os.cpu_count() or 1, torch.get_num_threads()
            pool, everybody = ThreadPoolExecutor(size, thread_name_prefix="rgat"), threading.Barrier(size)
            for future in [pool.submit(_begin, everybody) for _ in range(size)]:
                future.result()
            torch.set_num_threads(before)  # the number that threads yet to come begin with
            _pool = pool
        return _pool


def _begin(everybody: threading.Barrier) -> None:
    _here.count = 1
    torch.set_num_threads(1)
    everybody.wait()


def _count() -> int:
    return getattr(_here, "count", None) or torch.get_num_threads()


def _without_gradients(function: Callable[[int, int], T], lo: int, hi: int) -> T:
    with torch.no_grad():  # a setting of each thread
        return function(lo, hi)


os.register_at_fork(after_in_child=_forget_pool)  # a forked child has none of its parent's threads


@functools.cache
def _announce() -> None:
    """Before the first loop runs: say so if it has to be compiled first."""
    folder = Path(loops.forward.stats.cache_path or "")
    if not any(folder.glob("numba_kernels.*.nbi")):
        print(f"rgat: compiling the loops of the CPU backend, once; they are kept in {folder}", file=sys.stderr)


def run(kernel: Callable[..., Any], bounds: list[int], *arguments: Any) -> None:
    """Call ``kernel(lo, hi, ...)`` for each range between two neighbouring bounds, side by side."""
    _announce()
    futures = []
    if len(bounds) > 2:
        pool = _threads()
        futures = [pool.submit(kernel, lo, hi, *arguments) for lo, hi in itertools.pairwise(bounds[1:])]
    kernel(bounds[0], bounds[1], *arguments)
    for future in futures:
        future.result()


def share(function: Callable[[int, int], T], bounds: list[int]) -> list[T]:
    """What ``function(lo, hi)``, which may contain matrix products, returns for each range."""
    if len(bounds) == 2:
        return [function(*bounds)]
    pool = _threads()
    futures = [pool.submit(_without_gradients, function, lo, hi) for lo, hi in itertools.pairwise(bounds)]
    return [future.result() for future in futures]


def cut(ptr: NDArray[Any], lo: int, hi: int, width: int) -> list[int]:
    """Cut ``lo:hi`` into as many ranges as there are threads, each with the same share of what ``ptr`` counts."""
    threads = _count()
    total = int(ptr[hi] - ptr[lo]) + hi - lo
    if threads == 1 or total * width < ALONE:
        return [lo, hi]
    marks = np.linspace(ptr[lo], ptr[hi], threads + 1)[1:-1]
    return [lo, *(lo + np.searchsorted(ptr[lo : hi + 1], marks).clip(0, hi - lo)).tolist(), hi]


def even(lo: int, hi: int, width: int) -> list[int]:
    """Cut ``lo:hi`` into as many ranges as there are threads."""
    threads = _count()
    if threads == 1 or (hi - lo) * width < ALONE:
        return [lo, hi]
    return [lo + (hi - lo) * k // threads for k in range(threads + 1)]
