"""Threads for compiled loops, of our own: Numba's pools neither survive a fork nor two Python threads at once."""

from __future__ import annotations

import functools
import itertools
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rgat.ops import numba_kernels as loops

ALONE = 1 << 14  # numbers to move below which a second thread costs more than it saves

_pool: ThreadPoolExecutor | None = None


def _forget_pool() -> None:
    global _pool
    _pool = None


os.register_at_fork(after_in_child=_forget_pool)  # a forked child has none of its parent's threads


@functools.cache
def _announce() -> None:
    """Before the first loop runs: say so if it has to be compiled first."""
    folder = Path(loops.forward.stats.cache_path or "")
    if not any(folder.glob("numba_kernels.*.nbi")):
        print(f"rgat: compiling the loops of the CPU backend, once; they are kept in {folder}", file=sys.stderr)


def run(kernel: Callable[..., Any], bounds: list[int], *arguments: Any) -> None:
    """Call ``kernel(lo, hi, ...)`` for each range between two neighbouring bounds, side by side."""
    global _pool
    _announce()
    futures = []
    if len(bounds) > 2:
        if _pool is None:
            _pool = ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="rgat")
        futures = [_pool.submit(kernel, lo, hi, *arguments) for lo, hi in itertools.pairwise(bounds[1:])]
    kernel(bounds[0], bounds[1], *arguments)
    for future in futures:
        future.result()


def cut(ptr: NDArray[Any], lo: int, hi: int, width: int) -> list[int]:
    """Cut ``lo:hi`` into as many ranges as there are threads, each with the same share of what ``ptr`` counts."""
    threads = torch.get_num_threads()
    total = int(ptr[hi] - ptr[lo]) + hi - lo
    if threads == 1 or total * width < ALONE:
        return [lo, hi]
    marks = np.linspace(ptr[lo], ptr[hi], threads + 1)[1:-1]
    return [lo, *(lo + np.searchsorted(ptr[lo : hi + 1], marks).clip(0, hi - lo)).tolist(), hi]


def even(lo: int, hi: int, width: int) -> list[int]:
    """Cut ``lo:hi`` into as many ranges as there are threads."""
    threads = torch.get_num_threads()
    if threads == 1 or (hi - lo) * width < ALONE:
        return [lo, hi]
    return [lo + (hi - lo) * k // threads for k in range(threads + 1)]
