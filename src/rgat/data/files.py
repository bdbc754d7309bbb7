"""Files: written under a temporary name and renamed, so that nobody ever sees half of one."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import IO


def cache_folder() -> Path:
    """The user's cache folder for `rgat`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rgat"


@contextmanager
def replacing(path: str | PathLike[str]) -> Iterator[IO[bytes]]:
    """Open a temporary file beside ``path`` that takes its place when the block ends well, and vanishes otherwise."""
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    except OSError as error:
        raise ValueError(f"{path}: cannot be written: {error.strerror}") from error
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def write_atomically(path: str | PathLike[str], content: bytes) -> None:
    """Write a whole file or leave what was there."""
    with replacing(path) as file:
        file.write(content)
