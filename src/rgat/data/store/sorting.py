"""Sort more triples than fit in memory, and remove duplicates."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[Any]  # of any integer type

_BYTES_PER_KEY = 24  # of memory while a run is sorted: the keys, a copy without duplicates, and a mask
_COPIES = 16  # of the keys that are merged at once: sorted, without duplicates, and unpacked
_MIN_RUN, _MIN_BLOCK = 1024, 64  # keys sorted, and keys of a run read, at once, however small the memory


class TripleSorter:
    """Collect triples of integers, and return the distinct ones in lexicographic order.

    Triples become keys. Keys that fill the memory are sorted and written as a run; the runs are then merged block by
    block. So memory does not grow with the number of triples, nor with the number of those that share a first element.

    Args:
        folder: an existing folder for the runs.
        sizes: a bound of each of the three elements.
        memory: bytes to use.
    """

    def __init__(self, folder: Path, sizes: tuple[int, int, int], memory: int) -> None:
        self.folder, self.sizes = folder, sizes
        first, second, third = sizes
        # A triple fits one unsigned integer, which sorts fastest, or else twelve bytes that compare in the same order.
        self.fits_integer = first * second * third < 2**64
        self.dtype = np.dtype(np.uint64) if self.fits_integer else np.dtype("S12")
        self.memory = memory
        self.buffer = np.empty(max(memory // (_BYTES_PER_KEY * self.dtype.itemsize // 8), _MIN_RUN), dtype=self.dtype)
        self.filled = 0
        self.runs: list[Path] = []

    def add(self, first: Ids, second: Ids, third: Ids) -> None:
        """Add triples, given as three columns."""
        keys = self._pack(first, second, third)
        while len(keys):
            taken = keys[: len(self.buffer) - self.filled]
            self.buffer[self.filled : self.filled + len(taken)] = taken
            self.filled += len(taken)
            keys = keys[len(taken) :]
            if self.filled == len(self.buffer):
                self._write_run()

    def blocks(self) -> Iterator[tuple[Ids, Ids, Ids]]:
        """Yield the distinct triples in order, block by block; no more can be added."""
        self._write_run()
        self.buffer = np.empty(0, dtype=self.dtype)
        for keys in self._merge():
            yield self._unpack(keys)
        for path in self.runs:
            path.unlink()

    def _write_run(self) -> None:
        if not self.filled:
            return
        path = self.folder / f"run-{len(self.runs)}"
        self.runs.append(path)
        keys = self.buffer[: self.filled]
        keys.sort()
        with path.open("wb") as file:
            file.write(_distinct(keys).view(np.uint8).data)
        self.filled = 0

    def _merge(self) -> Iterator[NDArray[Any]]:
        size = max(self.memory // (_COPIES * self.dtype.itemsize * max(len(self.runs), 1)), _MIN_BLOCK)
        runs = [_Run(path, self.dtype, size) for path in self.runs]
        while runs := [run for run in runs if run.read()]:
            # Beyond the smallest end of a block, a run may have more keys that are not read yet.
            ends = [run.block[-1] for run in runs if run.has_more]
            yield _distinct(np.sort(np.concatenate([run.take(min(ends) if ends else None) for run in runs])))

    def _pack(self, first: Ids, second: Ids, third: Ids) -> NDArray[Any]:
        _, num_second, num_third = self.sizes
        if self.fits_integer:
            keys = first.astype(np.uint64)
            keys *= np.uint64(num_second)
            keys += second.astype(np.uint64)
            keys *= np.uint64(num_third)
            keys += third.astype(np.uint64)
            return keys
        words = np.empty((len(first), 3), dtype=">u4")
        words[:, 0], words[:, 1], words[:, 2] = first, second, third
        return words.view(self.dtype)[:, 0]

    def _unpack(self, keys: NDArray[Any]) -> tuple[Ids, Ids, Ids]:
        _, num_second, num_third = self.sizes
        if self.fits_integer:
            pair, third = np.divmod(keys, np.uint64(max(num_third, 1)))
            first, second = np.divmod(pair, np.uint64(max(num_second, 1)))
            return first.astype(np.int64), second.astype(np.int64), third.astype(np.int64)
        words = keys.view(">u4").reshape(-1, 3).astype(np.int64)
        return words[:, 0], words[:, 1], words[:, 2]


class _Run:
    """The sorted keys of a file, read block by block."""

    def __init__(self, path: Path, dtype: np.dtype[Any], size: int) -> None:
        self.path, self.size, self.offset = path, size, 0
        self.left = path.stat().st_size // dtype.itemsize
        self.block = np.empty(0, dtype=dtype)

    @property
    def has_more(self) -> bool:
        return self.left > 0

    def read(self) -> bool:
        """Read the next block if all keys of the last one are taken; return whether there are keys."""
        if not len(self.block) and self.left:
            self.block = np.fromfile(self.path, self.block.dtype, min(self.size, self.left), offset=self.offset)
            self.left -= len(self.block)
            self.offset += self.block.nbytes
        return len(self.block) > 0

    def take(self, end: Any) -> NDArray[Any]:
        """Remove the keys up to ``end``, or all if it is None, from the block and return them."""
        count = len(self.block) if end is None else int(np.searchsorted(self.block, end, side="right"))
        taken, self.block = self.block[:count], self.block[count:]
        return taken


def _distinct(keys: NDArray[Any]) -> NDArray[Any]:
    """Return sorted keys without repetitions."""
    return keys[np.concatenate([[True], keys[1:] != keys[:-1]])] if len(keys) else keys
