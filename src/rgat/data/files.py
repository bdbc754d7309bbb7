"""Read files with limits, write them atomically, and turn any name into a file name.

A file or folder is written under a temporary name and then renamed, so no reader sees half of it. The next write to a
folder removes what killed processes left there.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import lzma
import os
import platform
import re
import shutil
import stat
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from os import PathLike
from pathlib import Path
from typing import IO, Any

_MASK = os.umask(0o077)  # the umask can be read only by setting it
os.umask(_MASK)
_TEMPORARY = re.compile(r"\.rgat-(?P<host>[0-9a-f]{8})-(?P<pid>\d+)-\w+\.part")
_STALE_SECONDS = 86_400  # a temporary file unchanged for a day belongs to a dead process
_MAX_SLUG = 80  # characters before the digest; file systems allow 255, and suffixes follow
PIECE = 1 << 18  # bytes read and checked at a time
MAX_LINE_BYTES = 15 << 20  # of a line or an RDF term; the RDF parser fails at 16 MiB without naming a line
MAX_RATIO = 200  # unpacked bytes per packed byte, beyond SPARE; text has 5 to 50, a decompression bomb 1,000
SPARE = 1 << 24


def _open_zstd(file: IO[bytes]) -> IO[bytes]:
    try:
        from compression import zstd  # in Python 3.14 and later
    except ImportError:
        try:
            from backports import zstd  # type: ignore[attr-defined,unused-ignore]  # for earlier versions
        except ImportError as error:
            raise ImportError(
                "files compressed by Zstandard need backports.zstd; install it with `pip install backports.zstd`, or "
                "unpack the file first"
            ) from error
    opened: IO[bytes] = zstd.open(file)
    return opened


COMPRESSIONS: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open, ".zst": _open_zstd}
_MAGIC = {  # first bytes of a compressed file; that of bzip2 has its block size between
    re.compile(rb"\x1f\x8b\x08"): ".gz",
    re.compile(rb"BZh[1-9]1AY&SY"): ".bz2",
    re.compile(rb"\xfd7zXZ\x00"): ".xz",
    re.compile(rb"\x28\xb5\x2f\xfd"): ".zst",
}
_PEEK = 512  # bytes that tell text from compressed data
_BINARY = re.compile(rb"[\x00-\x08\x0e-\x1f\x7f]")  # bytes that text has not
Check = Callable[[bytes], None]  # receives the next bytes of a file, and raises to refuse the file


class UnreadableError(ValueError):
    """A file exceeds a limit; the message names the file and, where known, the line."""


class LineLimit:
    """Refuse a file with a line longer than ``MAX_LINE_BYTES``."""

    def __init__(self, path: Path) -> None:
        self.path, self.line, self.length = path, 1, 0

    def __call__(self, piece: bytes) -> None:
        """Check the next bytes."""
        end = max(piece.rfind(b"\n"), piece.rfind(b"\r"))
        self.length = len(piece) - 1 - end + (self.length if end < 0 else 0)
        self.line += piece.count(b"\n")
        if self.length > MAX_LINE_BYTES:
            raise UnreadableError(
                f"{self.path}, line {self.line}: a line must be at most {MAX_LINE_BYTES:,} bytes long, got more"
            )


class _Checked(io.RawIOBase):
    """The bytes of a file, decompressed as its first bytes or else its suffix tell, and checked piece by piece."""

    def __init__(self, file: io.BufferedReader, path: Path, checks: tuple[Check, ...]) -> None:
        self.file, self.path, self.checks, self.size = file, path, checks, 0
        suffix = _compression(file.peek(_PEEK), path)
        try:
            self.content: IO[bytes] = COMPRESSIONS.get(suffix, lambda file: file)(file)
        except ImportError:
            file.close()
            raise
        self.measured = self.content is not self.file and self.file.seekable()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            piece = self.content.read(len(buffer))
        except (OSError, MemoryError):
            raise
        except Exception as error:  # each decompressor has its own classes
            raise OSError(None, f"the compressed data are damaged: {error}") from error
        self.size += len(piece)
        if self.measured and self.size > max(SPARE, MAX_RATIO * self.file.tell()):
            raise UnreadableError(
                f"{self.path}: must unpack to at most {MAX_RATIO} times its size, got more: it may be a "
                "decompression bomb; unpack it first if you trust it"
            )
        for check in self.checks:
            check(piece)
        buffer[: len(piece)] = piece
        return len(piece)

    def close(self) -> None:
        self.content.close()
        self.file.close()
        super().close()


def _compression(first: bytes, path: Path) -> str:
    """Return the suffix of a file's compression, by its first bytes or else its name; empty for text of any name."""
    known = next((suffix for magic, suffix in _MAGIC.items() if magic.match(first)), None)
    if known is None and first and not _BINARY.search(first[:_PEEK]):
        return ""
    return path.suffix if known is None else known


def is_plain_text(path: Path) -> bool:
    """Whether a file is named as compressed and is not: its text is read as it is."""
    if path.suffix not in COMPRESSIONS or not path.is_file():
        return False
    with path.open("rb") as file:
        return not _compression(file.peek(_PEEK), path)


def open_bytes(path: Path, *checks: Check) -> io.BufferedReader:
    """Open a file, decompressed if need be, whatever its name; ``checks`` receive all bytes before the reader does."""
    return io.BufferedReader(_Checked(path.open("rb"), path, checks), PIECE)


def open_lines(path: Path) -> io.TextIOWrapper:
    """Open a text file, plain or compressed, to read line by line; a byte-order mark is skipped."""
    return io.TextIOWrapper(open_bytes(path, LineLimit(path)), encoding="utf-8-sig", newline="")


def kind_of(path: Path) -> str:
    """Return the lower-case suffix of a file's name without the suffix of a compression; empty if there is none."""
    suffixes = [suffix for suffix in path.suffixes if suffix not in COMPRESSIONS]
    return suffixes[-1].lower() if suffixes else ""


def slug(name: str) -> str:
    """Return a word for file names and anchors: lower-case letters, digits, dots, hyphens and underscores.

    A name that is such a word is returned unchanged. Any other gets a digest at its end, so different names give
    different words even on a file system that ignores case.
    """
    word = re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("._-")[:_MAX_SLUG].rstrip("._-")
    if word == name and word:
        return word
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{word}-{digest}" if word else digest


def open_regular(path: str | PathLike[str]) -> IO[bytes]:
    """Open a regular file for reading; pipes, which may block forever, and devices raise an ``OSError``."""
    mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode):
        raise OSError(None, f"it must be a regular file, got {_kind(mode)}")
    return open(path, "rb")


def read_whole(path: str | PathLike[str], limit: int | None = None) -> bytes:
    """Return the content of a regular file; more than ``limit`` bytes raise an ``OSError``."""
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
        reason: the operating system's message.
    """

    def __init__(self, path: Path, error: OSError) -> None:
        self.reason = error.strerror or str(error)
        super().__init__(f"{path}: cannot be written: {self.reason}; make room, or choose another place")


class _OutputFile(io.FileIO):
    """A file whose failed writes raise ``WriteError``; the caller's own errors pass unchanged."""

    def __init__(self, handle: int, path: Path) -> None:
        super().__init__(handle, "wb")
        self.path = path

    def write(self, content: Any, /) -> int:
        with _write_errors(self.path):
            written: int = super().write(content)
        return written


@contextmanager
def replacing(path: str | PathLike[str]) -> Iterator[IO[bytes]]:
    """Open a temporary file that replaces ``path`` when the block ends, and is removed if the block raises.

    Its content is on the disk before the rename. An error of the file system raises ``WriteError``.
    """
    path = Path(path)
    with _write_errors(path):
        if path.exists() and not path.is_file():
            raise OSError(None, f"it is {_kind(path.stat().st_mode)}")
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_stale_files(path.parent)
        handle, name = tempfile.mkstemp(prefix=f".rgat-{_host()}-{os.getpid()}-", suffix=".part", dir=path.parent)
    try:
        with io.BufferedWriter(_OutputFile(handle, path)) as file:
            yield file
            file.flush()
            with _write_errors(path):
                os.fsync(handle)
        with _write_errors(path):
            os.chmod(name, 0o666 & ~_MASK)  # as any new file; a temporary file is private to its owner
            move_into_place(Path(name), path)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise


def move_into_place(finished: Path, path: Path) -> None:
    """Rename a finished file or folder of the same folder to ``path``, replacing what is there."""
    os.replace(finished, path)
    with suppress(OSError):  # a folder cannot be opened on Windows
        handle = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(handle)  # makes the rename survive a power failure
        finally:
            os.close(handle)


def write_atomically(path: str | PathLike[str], content: bytes) -> None:
    """Write a whole file, or leave the old one unchanged."""
    with replacing(path) as file:
        file.write(content)


class NewFolder:
    """A folder that appears under its name once it is complete.

    Args:
        path: its name, under which there must be nothing or an empty folder.

    Attributes:
        temporary: the folder to write to. It is removed unless `finish` renames it: by `discard`, or when
            this object is deleted or the interpreter exits.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = Path(path)
        with _write_errors(self.path):
            if self.path.exists() and not (self.path.is_dir() and not any(self.path.iterdir())):
                found = "holds files" if self.path.is_dir() else "is a file"
                raise ValueError(f"{self.path} must be a new or empty folder, but {found}; choose another")
            self.path.parent.mkdir(parents=True, exist_ok=True)
            _remove_stale_files(self.path.parent)
            prefix = f".rgat-{_host()}-{os.getpid()}-"
            self.temporary = Path(tempfile.mkdtemp(prefix=prefix, suffix=".part", dir=self.path.parent))
        self.discard = weakref.finalize(self, _remove_own_folder, self.temporary, os.getpid())

    def finish(self) -> None:
        """Rename the temporary folder to its final name."""
        with _write_errors(self.path):
            os.chmod(self.temporary, 0o777 & ~_MASK)
            if self.path.exists():
                self.path.rmdir()  # it is empty; Windows cannot rename over it
            move_into_place(self.temporary, self.path)
        self.discard.detach()


def _remove_own_folder(folder: Path, pid: int) -> None:
    """Remove a folder, unless this is a forked process, whose parent still writes to it."""
    if os.getpid() == pid:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _write_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise WriteError(path, error) from error


def _host() -> str:
    """Return a word for this machine or container, within which process ids are unique."""
    namespace = 0
    with suppress(OSError):
        namespace = os.stat("/proc/self/ns/pid").st_ino
    return hashlib.sha256(f"{platform.node()} {namespace}".encode()).hexdigest()[:8]


def _remove_stale_files(folder: Path) -> None:
    """Remove temporary files and folders of killed processes, never one of a process that may be alive."""
    names: list[str] = []
    with suppress(OSError):  # a folder may be writable but not listable
        names = os.listdir(folder)
    for match in filter(None, map(_TEMPORARY.fullmatch, names)):
        with suppress(OSError):  # another process removed it first, or we may not
            path = folder / match.string
            if match["host"] == _host() and sys.platform != "win32":  # there os.kill would end the process
                is_stale = not _is_alive(int(match["pid"]))
            else:  # a folder keeps its date while its files grow
                is_stale = path.is_file() and time.time() - path.stat().st_mtime > _STALE_SECONDS
            if is_stale:
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # alive and of another user, or not a valid process id
        return True
    return True
