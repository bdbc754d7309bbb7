"""Lock an output so that one process at a time writes it; the lock ends with its process, even a killed one."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP)  # file systems without locks, such as some network drives


@contextmanager
def locked(path: Path, output: str) -> Iterator[None]:
    """Hold the lock file ``path`` while the block runs; raise a ValueError at once if another process holds it.

    The system's lock on the file counts, not its existence: a lock file left by a killed process is taken over. On a
    file system without locks the block runs unlocked.

    Args:
        path: the lock file. It is created, with its folders, and removed again.
        output: the name of the output in the error message.
    """
    lock = FileLock(path, timeout=0, fallback_to_soft=False)
    missing = [folder for folder in path.parents if not folder.exists()]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout:
        raise ValueError(
            f"{output} must be written by one process at a time, but {_holder(path)} is writing it; "
            "wait until it has ended, or choose another --out"
        ) from None
    except (OSError, NotImplementedError) as error:
        if isinstance(error, OSError) and error.errno not in UNSUPPORTED:
            raise ValueError(f"{output}: cannot be written: {error.strerror}; choose another --out") from error
    try:
        with contextlib.suppress(OSError):
            path.write_text(f"process {os.getpid()} on {socket.gethostname()}", encoding="utf-8")
        yield
    finally:
        with contextlib.suppress(OSError):  # Windows cannot remove an open file
            path.unlink(missing_ok=True)
        lock.release()
        for folder in missing:
            with contextlib.suppress(OSError):  # not empty: the output was written
                folder.rmdir()


def _holder(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8") or "another process"
    except OSError:  # on Windows other processes cannot read a locked file
        return "another process"
