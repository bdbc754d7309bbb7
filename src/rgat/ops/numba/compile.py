"""Compile the loops of the CPU backend (Numba), and keep their machine code for later processes.

Numba looks at a function's own file to tell whether the machine code on disk is still that of the source. Loops contain
code of several files. So their machine code lives in a folder named after a digest of all of them: after any change the
name is another one, and the folders of other digests are removed after a week.
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

from rgat.folders import home_folder, temporary_folder

# No flag that assumes finite numbers: these two only let sums be reordered, so that dot products vectorise.
FAST = {"reassoc", "contract"}

_HERE = Path(__file__).parent
_KEPT_SECONDS = 7 * 86400  # longer than a training begun before an upgrade compiles further loops
_settings: Any = numba.config


def loop_files() -> list[Path]:
    """Return the files whose code ends up in loops."""
    return sorted([*_HERE.glob("*_loops.py"), _HERE / "compile.py", _HERE / "blas.py"])


def _digest(contents: Iterable[bytes]) -> str:
    return hashlib.sha256(b"\0".join(contents)).hexdigest()[:16]


def _places() -> Iterator[Path]:
    """Yield the folders that may hold the machine code of this copy of the package, the best first."""
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
    """Return a folder for the machine code of the loops as they are now; None where nothing can be written."""
    try:
        name = _digest(path.read_bytes() for path in loop_files())
    except OSError:  # a package without source files
        return None
    for place in _places():
        try:
            (place / name).mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=place / name).close()
        except OSError:
            continue
        _remove_old(place, name)
        return place / name
    return None


def _remove_old(place: Path, name: str) -> None:
    """Remove folders of other digests, but not those that a process that runs on may still write to."""
    for other in place.iterdir():
        with suppress(OSError):
            if other.name != name and other.stat().st_mtime < time.time() - _KEPT_SECONDS:
                shutil.rmtree(other, ignore_errors=True)


FOLDER = _find_folder()


def inline(function: Callable[..., Any]) -> Any:
    """Compile as part of every loop that calls it."""
    return numba.njit(inline="always", fastmath=FAST, error_model="numpy")(function)


def compiled(function: Callable[..., Any]) -> Any:
    """Compile for the types of the first call, and keep the result on disk where that is possible."""
    options: Any = {"nogil": True, "fastmath": FAST, "error_model": "numpy"}
    if FOLDER is None:
        return numba.njit(**options)(function)
    before, _settings.CACHE_DIR = _settings.CACHE_DIR, str(FOLDER)  # read when a function is decorated
    try:
        return numba.njit(cache=True, **options)(function)
    finally:
        _settings.CACHE_DIR = before


@functools.cache
def announce() -> None:
    """Say on standard error, before the first loop runs, that loops have to be compiled and whether they are kept."""
    what = "rgat: compiling the loops of the CPU backend"
    if FOLDER is None:
        end = "for this process alone, as no folder can be written to keep them in; set NUMBA_CACHE_DIR to one that can"
        print(f"{what} {end}", file=sys.stderr)
    elif not any(FOLDER.rglob("attention_loops.*.nbi")):
        end = ""
        if FOLDER.parents[2] == Path(tempfile.gettempdir()):
            end = " until temporary files are removed; set NUMBA_CACHE_DIR to a folder that lasts"
        print(f"{what}, once; they are kept in {FOLDER}{end}", file=sys.stderr)
