"""Parsed data, kept in a safe binary form: arrays and text, no code; a damaged file is made anew."""

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

VERSION = 1  # of the stored form; another number makes old files unused
Arrays = dict[str, NDArray[Any]]


def cached(name: str, content_hash: str, options: dict[str, Any], build: Callable[[], Arrays]) -> Arrays:
    """Return ``build()``, or what an earlier call with the same file content and options stored of it."""
    key = json.dumps([VERSION, name, [content_hash], options], sort_keys=True)
    try:
        folder = cache_folder()
    except ValueError:  # no place to keep anything
        return build()
    path = folder / "parsed" / f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.npz"
    stored: Arrays = {}
    # A damaged file may fail in any way; whatever it is, the data are made anew.
    with suppress(Exception), path.open("rb") as content, np.load(content, allow_pickle=False) as archive:
        stored = {field: archive[field] for field in archive.files}
    if stored and stored.pop("seal", np.empty(0)).tobytes() == _seal(key, stored):
        return stored
    arrays = build()
    seal = np.frombuffer(_seal(key, arrays), dtype=np.uint8)
    with suppress(OSError, ValueError), replacing(path) as file:  # a full disk is no reason to stop
        np.savez(file, seal=seal, **arrays)  # type: ignore[arg-type]
    return arrays


def _seal(key: str, arrays: Arrays) -> bytes:
    """A hash of the key and of everything stored, so that no damage goes unnoticed."""
    digest = hashlib.sha256(key.encode())
    for field in sorted(arrays):
        digest.update(f"{field} {arrays[field].dtype} {arrays[field].shape}".encode())
        digest.update(np.ascontiguousarray(arrays[field]).tobytes())
    return digest.digest()


def pack_text(lines: Sequence[str]) -> NDArray[np.uint8]:
    """Lines of text, none with a line break, as bytes."""
    return np.frombuffer("\n".join(lines).encode(), dtype=np.uint8)


def unpack_text(packed: NDArray[np.uint8]) -> list[str]:
    """The lines again."""
    text = packed.tobytes().decode()
    return text.split("\n") if text else []
