"""A cache of parsed data: arrays in .npz files that can hold no code; a damaged file is rebuilt."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rgat.data.files import replacing
from rgat.folders import cache_folder

VERSION = 1  # of the file format; files of another version are ignored
Arrays = dict[str, NDArray[Any]]


def cached(name: str, content_hash: str, options: dict[str, Any], build: Callable[[], Arrays]) -> Arrays:
    """Return ``build()``, or the arrays that an earlier call with the same content hash and options stored."""
    key = json.dumps([VERSION, name, [content_hash], options], sort_keys=True)
    try:
        folder = cache_folder()
    except ValueError:  # there is no cache folder
        return build()
    path = folder / "parsed" / f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.npz"
    stored: Arrays = {}
    # Reading a damaged file may raise anything; in every case the arrays are built again.
    with suppress(Exception), path.open("rb") as content, np.load(content, allow_pickle=False) as archive:
        stored = {field: archive[field] for field in archive.files}
    if stored and stored.pop("seal", np.empty(0)).tobytes() == _seal(key, stored):
        return stored
    arrays = build()
    seal = np.frombuffer(_seal(key, arrays), dtype=np.uint8)
    with suppress(OSError, ValueError), replacing(path) as file:  # a full disk must not stop the caller
        np.savez(file, seal=seal, **arrays)  # type: ignore[arg-type]
    return arrays


def _seal(key: str, arrays: Arrays) -> bytes:
    """Return a hash of the key and all arrays, which detects any damage."""
    digest = hashlib.sha256(key.encode())
    for field in sorted(arrays):
        digest.update(f"{field} {arrays[field].dtype} {arrays[field].shape}".encode())
        digest.update(np.ascontiguousarray(arrays[field]).tobytes())
    return digest.digest()


def pack_text(lines: Sequence[str]) -> NDArray[np.uint8]:
    """Return lines of text, none of which contains a line break, as one array of bytes."""
    return np.frombuffer("\n".join(lines).encode(), dtype=np.uint8)


def unpack_text(packed: NDArray[np.uint8]) -> list[str]:
    """Return the lines that `pack_text` was given."""
    text = packed.tobytes().decode()
    return text.split("\n") if text else []
