"""Names of nodes in memory-mapped files, decoded when they are asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from rgat.data.store.arrays import ArrayWriter

_BLOCK = 100_000  # names read or written at once


class NodeNames(Sequence[str]):
    """The sorted names of a store's nodes.

    Args:
        text: all names in UTF-8, one after the other.
        ptr: ``[N + 1]``; the name of node ``i`` is ``text[ptr[i]:ptr[i + 1]]``.
    """

    def __init__(self, text: NDArray[np.uint8], ptr: NDArray[np.int64]) -> None:
        self._text, self._ptr = text, ptr

    def __len__(self) -> int:
        return len(self._ptr) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self._bytes(node).decode() for node in range(*index.indices(len(self)))]
        return self._bytes(_checked(index, len(self))).decode()

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self), _BLOCK):
            ptr = self._ptr[start : start + _BLOCK + 1].tolist()
            text = self._text[ptr[0] : ptr[-1]].tobytes()
            for begin, end in pairwise(ptr):
                yield text[begin - ptr[0] : end - ptr[0]].decode()

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.find(name) is not None

    def find(self, name: str) -> int | None:
        """Return the id of the node with this name, by binary search; None if there is none."""
        wanted = name.encode("utf-8", "surrogatepass")
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            if self._bytes(middle) < wanted:  # bytes of UTF-8 sort as the text does
                low = middle + 1
            else:
                high = middle
        return low if low < len(self) and self._bytes(low) == wanted else None

    def _bytes(self, node: int) -> bytes:
        return self._text[self._ptr[node] : self._ptr[node + 1]].tobytes()


class NumberedNames(Sequence[str]):
    """The names "n0", "n1", ... of nodes without names of their own."""

    def __init__(self, num_nodes: int) -> None:
        self._num_nodes = num_nodes

    def __len__(self) -> int:
        return self._num_nodes

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [f"n{node}" for node in range(*index.indices(len(self)))]
        return f"n{_checked(index, len(self))}"

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.find(name) is not None

    def find(self, name: str) -> int | None:
        """Return the id of the node with this name; None if there is none."""
        digits = name[1:]
        if name[:1] != "n" or not digits.isdecimal() or len(digits) > 10 or name != f"n{int(digits)}":
            return None
        return int(digits) if int(digits) < self._num_nodes else None


def _checked(index: int, length: int) -> int:
    if not -length <= index < length:
        raise IndexError(f"a node must be from 0 to {length - 1}, got {index}")
    return index + length if index < 0 else int(index)


def write_names(text: Path, ptr: Path, names: Iterable[str | bytes]) -> tuple[int, int]:
    """Write names, which must be sorted and distinct; return how many there are, and how many bytes."""
    last, end = None, 0
    iterator = iter(names)
    with ArrayWriter(text, np.uint8) as text_file, ArrayWriter(ptr, np.int64) as ptr_file:
        ptr_file.append(np.zeros(1, dtype=np.int64))
        while block := [name.encode() if isinstance(name, str) else name for name in islice(iterator, _BLOCK)]:
            ordered = [last, *block] if last is not None else block
            for name, following in pairwise(ordered):
                if not name < following:
                    raise ValueError(
                        f"names of nodes must be sorted and distinct, got {_shown(name)} before {_shown(following)}"
                    )
            sizes: NDArray[Any] = np.fromiter(map(len, block), dtype=np.int64, count=len(block))
            ptr_file.append(end + np.cumsum(sizes))
            text_file.append(np.frombuffer(b"".join(block), dtype=np.uint8))
            end += int(sizes.sum())
            last = block[-1]
        return ptr_file.rows - 1, end


def _shown(name: bytes) -> str:
    return f'"{name.decode(errors="replace")}"'
