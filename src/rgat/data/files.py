"""Files: written under a temporary name and renamed, so that nobody ever sees half of one."""

from __future__ import annotations

import bz2
import gzip
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import IO, Any

_MASK = os.umask(0o077)  # what new files are not allowed; it can only be read by setting it
os.umask(_MASK)
COMPRESSIONS: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open}


def open_any(path: Path, mode: str = "rb", **options: Any) -> Any:
    """Open a file that may be compressed, as its name says."""
    return COMPRESSIONS.get(path.suffix, open)(path, mode, **options)


def kind_of(path: Path) -> str:
    """The suffix, in small letters, that tells what a file is once it is unpacked; empty if there is none."""
    suffixes = [suffix for suffix in path.suffixes if suffix not in COMPRESSIONS]
    return suffixes[-1].lower() if suffixes else ""


def cache_folder() -> Path:
    """The user's cache folder for `rgat`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rgat"


@contextmanager
def replacing(path: str | PathLike[str]) -> Iterator[IO[bytes]]:
    """Open a temporary file beside ``path`` that takes its place when the block ends well, and vanishes otherwise."""
    path = Path(path)
    if path.is_dir():
        raise ValueError(f"{path}: cannot be written: it is a folder")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    except OSError as error:
        raise ValueError(f"{path}: cannot be written: {error.strerror}") from error
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        os.chmod(name, 0o666 & ~_MASK)  # as any new file: a temporary one is its owner's alone
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def write_atomically(path: str | PathLike[str], content: bytes) -> None:
    """Write a whole file or leave what was there."""
    with replacing(path) as file:
        file.write(content)
