"""Compile the loops of the CPU backend (Numba), and cache their machine code on disk for later processes.

Numba recompiles a cached function only when the function's own file changes, but loops contain inlined code of
several files. So the cache is a folder named after a digest of all loop files. Folders of other digests are removed
after a week.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numba
from filelock import FileLock

from rgat.folders import home_folder, temporary_folder

# These flags only let sums be reordered, so that dot products vectorise; none assumes finite numbers.
FAST = {"reassoc", "contract"}

_HERE = Path(__file__).parent
_KEPT_SECONDS = 7 * 86400  # a process started before an upgrade may still compile loops
_LONGEST_SAVE = 60  # seconds to wait for another process; then its entry may be lost, or mixed with ours
_settings: Any = numba.config


def loop_files() -> list[Path]:
    """Return the files whose code is compiled into loops."""
    return sorted([*_HERE.glob("*_loops.py"), _HERE / "compile.py", _HERE / "blas.py"])


def _digest(contents: Iterable[bytes]) -> str:
    return hashlib.sha256(b"\0".join(contents)).hexdigest()[:16]


def _cache_folders() -> Iterator[Path]:
    """Yield the folders that may cache the machine code of this copy of the package, the best first."""
    name = f"loops-{_digest([os.fsencode(_HERE)])}"
    if _settings.CACHE_DIR:
        yield Path(_settings.CACHE_DIR) / name
    yield _HERE / "__pycache__" / "loops"
    home = home_folder()
    if home is not None:
        yield home / name
    with suppress(ValueError):
        yield temporary_folder() / name


def _find_folder() -> Path | None:
    """Return the cache folder of the current loop files; None if no folder can be written."""
    try:
        name = _digest(path.read_bytes() for path in loop_files())
    except OSError:  # a package without source files
        return None
    for folder in _cache_folders():
        try:
            (folder / name).mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder / name).close()
        except OSError:
            continue
        _remove_old(folder, name)
        return folder / name
    return None


def _remove_old(folder: Path, name: str) -> None:
    """Remove folders of other digests, except recent ones, which a running process may still write to."""
    for other in folder.iterdir():
        with suppress(OSError):
            if other.name != name and other.stat().st_mtime < time.time() - _KEPT_SECONDS:
                shutil.rmtree(other, ignore_errors=True)


FOLDER = _find_folder()


def inline(function: Callable[..., Any]) -> Any:
    """Compile a function as part of every loop that calls it."""
    return numba.njit(inline="always", fastmath=FAST, error_model="numpy")(function)


def compiled(function: Callable[..., Any]) -> Any:
    """Compile a function for the types of its calls, and cache the machine code on disk if possible."""
    options: Any = {"nogil": True, "fastmath": FAST, "error_model": "numpy"}
    if FOLDER is None:
        return numba.njit(**options)(function)
    before, _settings.CACHE_DIR = _settings.CACHE_DIR, str(FOLDER)  # read when a function is decorated
    try:
        loop = numba.njit(cache=True, **options)(function)
    finally:
        _settings.CACHE_DIR = before
    save = loop._cache.save_overload
    loop._cache.save_overload = lambda *found: _save_alone(save, *found)
    return loop


def _save_alone(save: Callable[..., None], *found: Any) -> None:
    """Save machine code while no other process does: Numba numbers files by an index that it reads before."""
    assert FOLDER is not None
    lock = FileLock(FOLDER / "save.lock", fallback_to_soft=False)
    with suppress(OSError, NotImplementedError):  # a file system without locks, or a process that was stopped
        lock.acquire(timeout=_LONGEST_SAVE)
    try:
        save(*found)
    finally:
        lock.release()


@functools.cache
def announce() -> None:
    """Tell on standard error, before the first loop runs, that loops will be compiled and where they are cached."""
    message = "rgat: compiling the loops of the CPU backend"
    if FOLDER is None:
        end = "for this process alone, as no folder can be written to keep them in; set NUMBA_CACHE_DIR to one that can"
        print(f"{message} {end}", file=sys.stderr)
    elif not any(FOLDER.rglob("attention_loops.*.nbi")):
        end = ""
        if FOLDER.parents[2] == Path(tempfile.gettempdir()):
            end = " until temporary files are removed; set NUMBA_CACHE_DIR to a folder that lasts"
        print(f"{message}, once; they are kept in {FOLDER}{end}", file=sys.stderr)
