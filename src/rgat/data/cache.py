"""Parsed data, kept in a safe binary form: arrays and text, no code; a damaged file is made anew."""

from __future__ import annotations

import hashlib
import json
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rgat.data.download import sha256
from rgat.data.files import cache_folder, replacing

VERSION = 1  # of the stored form; another number makes old files unused
Arrays = dict[str, NDArray[Any]]


def cached(name: str, files: Sequence[Path], options: dict[str, Any], build: Callable[[], Arrays]) -> Arrays:
    """Return ``build()``, or what an earlier call with the same file contents and options stored of it."""
    key = json.dumps([VERSION, name, [sha256(file) for file in files], options], sort_keys=True)
    path = cache_folder() / "parsed" / f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.npz"
    try:
        with path.open("rb") as content, np.load(content, allow_pickle=False) as stored:
            if stored["key"].tobytes().decode() == key:
                return {field: stored[field] for field in stored.files if field != "key"}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error, UnicodeDecodeError):
        pass  # not there, or damaged
    arrays = build()
    try:
        with replacing(path) as file:
            np.savez(file, key=pack_text([key]), **arrays)  # type: ignore[arg-type]
    except (OSError, ValueError):
        pass  # a cache that cannot be written is no reason to stop
    return arrays


def pack_text(lines: Sequence[str]) -> NDArray[np.uint8]:
    """Lines of text, none with a line break, as bytes."""
    return np.frombuffer("\n".join(lines).encode(), dtype=np.uint8)


def unpack_text(packed: NDArray[np.uint8]) -> list[str]:
    """The lines again."""
    text = packed.tobytes().decode()
    return text.split("\n") if text else []
