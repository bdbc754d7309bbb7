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
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from rgat.ops import numba_kernels as loops

T = TypeVar("T")

ALONE = 1 << 14  # numbers to move below which a second thread costs more than it saves


class _Pools(NamedTuple):
    """Threads that lead operations, and threads that share their work: a leader never waits for another."""

    leaders: ThreadPoolExecutor
    workers: ThreadPoolExecutor


_pools: _Pools | None = None
_here = threading.local()  # `count`: how many threads to use from this one
_making = threading.Lock()


def _forget_pools() -> None:
    global _pools, _making
    _pools, _making = None, threading.Lock()


def _threads() -> _Pools:
    """Our threads, started on first use; neither PyTorch nor BLAS divides their work any further."""
    global _pools
    with _making:
        if _pools is None:
            before = torch.get_num_threads()
            _pools = _Pools(*(_start(os.cpu_count() or 1, name) for name in ("rgat-leader", "rgat-worker")))
            torch.set_num_threads(before)  # the number that threads yet to come begin with
        return _pools


def _start(size: int, name: str) -> ThreadPoolExecutor:
    pool, everybody = ThreadPoolExecutor(size, thread_name_prefix=name), threading.Barrier(size)
    for future in [pool.submit(_begin, everybody) for _ in range(size)]:
        future.result()
    return pool


def _begin(everybody: threading.Barrier) -> None:
    _here.count = 1
    torch.set_num_threads(1)
    everybody.wait()


def _count() -> int:
    return getattr(_here, "count", None) or torch.get_num_threads()


def lead(function: Callable[[], T], work: int) -> T:
    """Run an operation of much work on a thread of ours, from which it is shared out.

    PyTorch's own threads stay busy for a while after each of its operations, waiting for the next; here it has none.
    """
    count = _count()
    if count == 1 or work < 64 * ALONE:
        return function()
    return _threads().leaders.submit(_lead, function, count).result()


def _lead(function: Callable[[], T], count: int) -> T:
    _here.count = count
    with torch.no_grad():  # a setting of each thread
        return function()


os.register_at_fork(after_in_child=_forget_pools)  # a forked child has none of its parent's threads


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
        pool = _threads().workers
        futures = [pool.submit(kernel, lo, hi, *arguments) for lo, hi in itertools.pairwise(bounds[1:])]
    kernel(bounds[0], bounds[1], *arguments)
    for future in futures:
        future.result()


def share(function: Callable[[int, int], T], bounds: list[int]) -> list[T]:
    """What ``function(lo, hi)``, which may contain matrix products, returns for each range."""
    if len(bounds) == 2:
        return [function(*bounds)]
    pool = _threads().workers
    futures = [pool.submit(_lead, partial(function, lo, hi), 1) for lo, hi in itertools.pairwise(bounds[1:])]
    if torch.get_num_threads() > 1:  # not a thread of ours: its products would be shared by BLAS
        futures.insert(0, pool.submit(_lead, partial(function, *bounds[:2]), 1))
        return [future.result() for future in futures]
    before, _here.count = _count(), 1
    try:
        first = function(*bounds[:2])
    finally:
        _here.count = before
    return [first, *(future.result() for future in futures)]


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
