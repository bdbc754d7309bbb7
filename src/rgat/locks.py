"""One process at a time: a lock on what is being written, which the system lets go when its holder ends, however."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP)


@contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Hold the lock ``path`` while the block runs; raise a ValueError at once while another process holds it.

    A file that a killed process has left is no obstacle: what counts is the system's lock on it, not the file. Where a
    file system has no locks, some network drives, nothing is held.

    Args:
        path: the lock, a file that is made and removed; the folder around it is made too.
        what: is written, for the error message.
    """
    lock = FileLock(path, timeout=0, fallback_to_soft=False)
    missing = [folder for folder in path.parents if not folder.exists()]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout:
        raise ValueError(
            f"{what} must be written by one process at a time, but {_holder(path)} is writing it; "
            "wait until it has ended, or choose another --out"
        ) from None
    except (OSError, NotImplementedError) as error:
        if isinstance(error, OSError) and error.errno not in WITHOUT_LOCKS:
            raise ValueError(f"{what}: cannot be written: {error.strerror}; choose another --out") from error
    try:
        with contextlib.suppress(OSError):
            path.write_text(f"process {os.getpid()} on {socket.gethostname()}", encoding="utf-8")
        yield
    finally:
        with contextlib.suppress(OSError):  # Windows removes no file that is open
            path.unlink(missing_ok=True)
        lock.release()
        for folder in missing:
            with contextlib.suppress(OSError):  # not empty: something was written
                folder.rmdir()


def _holder(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8") or "another process"
    except OSError:  # Windows lets nobody else read what is locked
        return "another process"
