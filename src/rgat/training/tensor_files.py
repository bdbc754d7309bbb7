"""Write and read safetensors files in bounded memory, with tensors that are divided among processes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from rgat.data.files import open_regular
from rgat.training.embeddings import DividedRows, own_rows, row_ranges
from rgat.training.kept_rows import KeptRows

Table = Tensor | DividedRows | KeptRows
_TYPES = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"} | {
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def write_tensors(file: IO[bytes], tensors: Mapping[str, Table]) -> str:
    """Write tensors to a file, and return the SHA-256 of its bytes.

    Its format is an eight-byte length, a header in JSON that places each tensor, and the bytes of the tensors.
    """
    sha256, end, header = hashlib.sha256(), 0, {}
    ordered = _in_order(tensors)
    for name, tensor in ordered:
        start, end = end, end + torch.Size(tensor.shape).numel() * tensor.dtype.itemsize
        header[name] = {"dtype": _TYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at multiples of eight bytes
    for piece in (len(text).to_bytes(8, "little"), text):
        sha256.update(piece)
        file.write(piece)
    for _, tensor in ordered:
        for block in [tensor] if isinstance(tensor, Tensor) else tensor.blocks():
            data = as_bytes(block)
            sha256.update(data)
            file.write(data)
    return sha256.hexdigest()


def give_rows(tensors: Mapping[str, Table]) -> None:
    """Give this process's rows of divided tensors to the first process, which calls `write_tensors`."""
    for _, tensor in _in_order(tensors):
        for _ in tensor.blocks() if isinstance(tensor, DividedRows) else ():
            pass


def _in_order(tensors: Mapping[str, Table]) -> list[tuple[str, Table]]:
    """Order tensors so that each begins at a multiple of its number's size."""
    return sorted(tensors.items(), key=lambda item: (-item[1].dtype.itemsize, item[0]))


def as_bytes(tensor: Tensor) -> Any:
    """Return the bytes of a tensor as an array, without a copy if it is on the CPU and contiguous."""
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()


def digest_file(path: Path) -> str:
    """Return the SHA-256 of a regular file."""
    file: Any
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_tensors(path: Path, divided: Collection[str] = ()) -> dict[str, Tensor]:
    """Read the tensors of a file; of the ``divided`` ones, only this process's rows."""
    with _opened(path) as file:
        shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118  (no mapping)
    return {
        name: own_rows(_blocks(path, name, *shape), shape[0]) if name in divided else _whole(path, name)
        for name, shape in shapes.items()
    }


def _whole(path: Path, name: str) -> Tensor:
    with _opened(path) as file:
        tensor: Tensor = file.get_tensor(name)
        return tensor.clone()


def _blocks(path: Path, name: str, num_rows: int, channels: int) -> Iterator[Tensor]:
    for start, end in row_ranges(num_rows, channels):
        with _opened(path) as file:
            yield file.get_slice(name)[start:end]


def _opened(path: Path) -> Any:
    """Open a file of tensors; closed, it lets go of the pages that were read."""
    try:
        import safetensors
        import safetensors.torch
    except ImportError as error:
        raise ImportError("checkpoints need safetensors; install it with `pip install safetensors`") from error
    return safetensors.safe_open(path, framework="pt")
