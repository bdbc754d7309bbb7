"""Arrays in `.npy` files: written piece by piece, and opened by memory mapping."""

from __future__ import annotations

import os
import warnings
import zlib
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor

_HEADER_BYTES = 128  # NumPy pads the header of an array with up to two dimensions to this size
_PIECE = 1 << 22  # bytes read at a time for a checksum


class ArrayWriter:
    """Append rows to a `.npy` file whose length is known only at the end.

    Args:
        path: the file.
        dtype: the type of the elements.
        columns: elements per row of a matrix; None for a vector.
    """

    def __init__(self, path: Path, dtype: DTypeLike, columns: int | None = None) -> None:
        self.path, self.dtype, self.columns = path, np.dtype(dtype), columns
        self.rows = 0
        self.file = path.open("wb")
        self.file.write(bytes(_HEADER_BYTES))

    def append(self, rows: NDArray[Any]) -> None:
        """Write some rows."""
        self.file.write(np.ascontiguousarray(rows, dtype=self.dtype).data)
        self.rows += len(rows)

    def __enter__(self) -> ArrayWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Write the header, and wait until the content is on the disk."""
        with self.file:
            if kind is None:
                shape = (self.rows,) if self.columns is None else (self.rows, self.columns)
                header = {"descr": self.dtype.str, "fortran_order": False, "shape": shape}
                self.file.seek(0)
                np.lib.format.write_array_header_1_0(self.file, header)
                assert self.file.tell() == _HEADER_BYTES
                self.file.flush()
                os.fsync(self.file.fileno())


def write_array(path: Path, rows: NDArray[Any]) -> None:
    """Write a whole vector."""
    with ArrayWriter(path, rows.dtype) as file:
        file.append(rows)


def map_array(path: Path, dtype: DTypeLike, shape: tuple[int, ...]) -> NDArray[Any]:
    """Map a `.npy` file into memory, read-only; raise a ValueError if its type or shape is another one."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError, SyntaxError) as error:
        raise ValueError(f"it cannot be mapped ({error})") from error
    if array.dtype != np.dtype(dtype) or array.shape != shape:
        raise ValueError(f"it must hold {np.dtype(dtype)} {list(shape)}, got {array.dtype} {list(array.shape)}")
    return np.asarray(array)


def as_tensor(array: NDArray[Any]) -> Tensor:
    """Return a tensor that shares the memory of a read-only array; nobody may write to it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given (NumPy array|buffer) is not writable")
        return torch.from_numpy(array)


def crc32(path: Path) -> int:
    """Return the CRC-32 of a file."""
    value = 0
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            value = zlib.crc32(piece, value)
    return value
