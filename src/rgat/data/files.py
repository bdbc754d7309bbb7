"""Files: written under a temporary name and renamed, read with limits, and named after anything.

Nobody ever sees half of a file. What a killed process leaves is removed by the next one that writes into the folder.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import os
import platform
import re
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from os import PathLike
from pathlib import Path
from typing import IO, Any

_MASK = os.umask(0o077)  # what new files are not allowed; it can only be read by setting it
os.umask(_MASK)
_TEMPORARY = re.compile(r"\.rgat-(?P<host>[0-9a-f]{8})-(?P<pid>\d+)-\w+\.part")
_STALE_SECONDS = 86_400  # a temporary file that nobody has touched for a day is left of a process that died
_LONGEST_NAME = 80  # of a slug, its digest left out; file systems allow 255, and suffixes follow
COMPRESSIONS: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open}
PIECE = 1 << 18  # bytes read and checked at a time
LONGEST = 15 << 20  # bytes of a line or a term; the RDF parser gives up at 16 MiB, without a line
MAX_RATIO = 200  # bytes unpacked per packed byte, beyond SPARE; text has 5 to 50, a packed bomb 1,000
SPARE = 1 << 24

Check = Callable[[bytes], None]  # looks at the next bytes of a file, and raises if they must not be read


class UnreadableError(ValueError):
    """A file is refused before a parser sees the rest of it; the message names the file, and the line where known."""


class Lines:
    """Refuse a file with a line that would fill the memory."""

    def __init__(self, path: Path) -> None:
        self.path, self.line, self.length = path, 1, 0

    def __call__(self, piece: bytes) -> None:
        """Look at the next bytes."""
        end = max(piece.rfind(b"\n"), piece.rfind(b"\r"))
        self.length = len(piece) - 1 - end + (self.length if end < 0 else 0)
        self.line += piece.count(b"\n")
        if self.length > LONGEST:
            raise UnreadableError(
                f"{self.path}, line {self.line}: a line must be at most {LONGEST:,} bytes long, got more"
            )


class _Checked(io.RawIOBase):
    """The bytes of a file, unpacked as its name says and checked piece by piece."""

    def __init__(self, file: IO[bytes], path: Path, checks: tuple[Check, ...]) -> None:
        self.file, self.path, self.checks, self.size = file, path, checks, 0
        self.content: IO[bytes] = COMPRESSIONS.get(path.suffix, lambda file: file)(file)
        self.measured = self.content is not self.file and self.file.seekable()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        piece = self.content.read(len(buffer))
        self.size += len(piece)
        if self.measured and self.size > max(SPARE, MAX_RATIO * self.file.tell()):
            raise UnreadableError(
                f"{self.path}: must unpack to at most {MAX_RATIO} times its size, got more: it may be made to fill the "
                "memory; unpack it first if you trust it"
            )
        for check in self.checks:
            check(piece)
        buffer[: len(piece)] = piece
        return len(piece)

    def close(self) -> None:
        self.content.close()
        self.file.close()
        super().close()


def open_bytes(path: Path, *checks: Check) -> io.BufferedReader:
    """Open a file that may be compressed, as its name says; ``checks`` see all bytes before the reader does."""
    return io.BufferedReader(_Checked(path.open("rb"), path, checks), PIECE)


def open_lines(path: Path) -> io.TextIOWrapper:
    """Open a text file, plain or compressed, to be read line by line; it may begin with a byte-order mark."""
    return io.TextIOWrapper(open_bytes(path, Lines(path)), encoding="utf-8-sig", newline="")


def kind_of(path: Path) -> str:
    """The suffix, in small letters, that tells what a file is once it is unpacked; empty if there is none."""
    suffixes = [suffix for suffix in path.suffixes if suffix not in COMPRESSIONS]
    return suffixes[-1].lower() if suffixes else ""


def slug(name: str) -> str:
    """Return a word for file names and anchors: small letters, digits, dots, hyphens and underscores.

    A name that is such a word stays as it is. All others end in a digest, so different names have different words, also
    where the file system does not tell small letters from capitals.
    """
    word = re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("._-")[:_LONGEST_NAME].rstrip("._-")
    if word == name and word:
        return word
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{word}-{digest}" if word else digest


def open_regular(path: str | PathLike[str]) -> IO[bytes]:
    """Open a regular file for reading; pipes, which may wait for ever, and devices are refused with an ``OSError``."""
    mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode):
        raise OSError(None, f"it must be a regular file, got {_kind(mode)}")
    return open(path, "rb")


def read_whole(path: str | PathLike[str], limit: int | None = None) -> bytes:
    """Return the content of a regular file; one of more than ``limit`` bytes is refused with an ``OSError``."""
    with open_regular(path) as file:
        content = file.read(-1 if limit is None else limit + 1)
    if limit is not None and len(content) > limit:
        raise OSError(None, f"it must have at most {limit:,} bytes, got more")
    return content


def _kind(mode: int) -> str:
    return "a folder" if stat.S_ISDIR(mode) else "a pipe, a device or a socket"


class WriteError(ValueError):
    """A file could not be written; the message says which one, why and what to do.

    Attributes:
        reason: why, in the words of the operating system.
    """

    def __init__(self, path: Path, error: OSError) -> None:
        self.reason = error.strerror or str(error)
        super().__init__(f"{path}: cannot be written: {self.reason}; make room, or choose another place")


class _Raw(io.FileIO):
    """A file of which a write that fails is a ``WriteError``; other errors of whoever writes stay what they are."""

    def __init__(self, handle: int, path: Path) -> None:
        super().__init__(handle, "wb")
        self.path = path

    def write(self, content: Any, /) -> int:
        with _write_errors(self.path):
            written: int = super().write(content)
        return written


@contextmanager
def replacing(path: str | PathLike[str]) -> Iterator[IO[bytes]]:
    """Open a temporary file beside ``path`` that takes its place when the block ends well, and vanishes otherwise.

    It is on the disk before it takes the place. Where the file system refuses, a ``WriteError`` says so.
    """
    path = Path(path)
    with _write_errors(path):
        if path.exists() and not path.is_file():
            raise OSError(None, f"it is {_kind(path.stat().st_mode)}")
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_litter(path.parent)
        handle, name = tempfile.mkstemp(prefix=f".rgat-{_host()}-{os.getpid()}-", suffix=".part", dir=path.parent)
    try:
        with io.BufferedWriter(_Raw(handle, path)) as file:
            yield file
            file.flush()
            with _write_errors(path):
                os.fsync(handle)
        with _write_errors(path):
            os.chmod(name, 0o666 & ~_MASK)  # as any new file: a temporary one is its owner's alone
            os.replace(name, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise
    _sync_folder(path.parent)


def write_atomically(path: str | PathLike[str], content: bytes) -> None:
    """Write a whole file or leave what was there."""
    with replacing(path) as file:
        file.write(content)


@contextmanager
def _write_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise WriteError(path, error) from error


def _sync_folder(folder: Path) -> None:
    """Make a rename last through a power failure, where a folder can be opened: on Windows it cannot."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _host() -> str:
    """A word for this machine or container: within it, a process id says which process is meant."""
    namespace = 0
    with suppress(OSError):
        namespace = os.stat("/proc/self/ns/pid").st_ino
    return hashlib.sha256(f"{platform.node()} {namespace}".encode()).hexdigest()[:8]


def _remove_litter(folder: Path) -> None:
    """Remove temporary files of processes that were killed, never one of a process that may be alive."""
    names: list[str] = []
    with suppress(OSError):  # a folder may be written to that must not be listed
        names = os.listdir(folder)
    for found in filter(None, map(_TEMPORARY.fullmatch, names)):
        with suppress(OSError):  # another process was faster, or the file is not ours to remove
            path = folder / found.string
            if found["host"] == _host() and sys.platform != "win32":  # there one cannot ask without harm
                is_left = not _is_alive(int(found["pid"]))
            else:
                is_left = time.time() - path.stat().st_mtime > _STALE_SECONDS
            if is_left:
                path.unlink()


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # alive, and of another user; or no process id at all
        return True
    return True
