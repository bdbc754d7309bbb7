"""Download files and unpack archives, verified by SHA-256; a failure leaves no partial file."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import socket
import tarfile
import threading
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from filelock import FileLock, Timeout

from rgat.data.files import replacing

CHUNK = 1 << 16
TRIES = 3
LOCK_SECONDS = 600  # another process may be downloading the same large file
TIME_LIMIT = 3600.0  # seconds for a whole file, all tries together
LEAST_SPEED = 1000  # bytes per second, once a connection is older than its timeout
_HINT = "try again later, or put the files into the folder that RGAT_DATA names"

Progress = Callable[[int, int | None], None]  # bytes so far, and in all if known


class DownloadError(ValueError):
    """A file could not be downloaded or unpacked; the message says why and what to do."""


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


@contextmanager
def lock(path: Path) -> Iterator[None]:
    """Let one process at a time into the block."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock", timeout=LOCK_SECONDS):
            yield
    except Timeout as error:
        raise DownloadError(f"{path}: another process holds it for over {LOCK_SECONDS} s; try later") from error
    except PermissionError as error:
        raise DownloadError(f"{path}: cannot be written ({error.strerror}); make the folder writable") from error


class _Deadline:
    """Shut down the sockets of a download after a time limit.

    A timeout of ``urllib`` restarts with every byte, so it never ends a response whose headers arrive byte by byte.
    """

    def __init__(self, url: str, seconds: float) -> None:
        self.url, self.seconds, self.expired = url, seconds, False
        self.sockets: list[socket.socket] = []
        self.timer = threading.Timer(seconds, self._expire)
        self.timer.daemon = True

    def __enter__(self) -> _Deadline:
        self.timer.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.timer.cancel()
        self.timer.join()

    def watch(self, connection: http.client.HTTPConnection) -> http.client.HTTPConnection:
        connect = connection.connect

        def connect_and_register() -> None:
            connect()
            self.sockets.append(connection.sock)
            self.check()

        connection.connect = connect_and_register  # type: ignore[method-assign]
        return connection

    def check(self) -> None:
        if self.expired:
            raise DownloadError(f"{self.url}: must arrive within {self.seconds:g} s, got no end of it; {_HINT}")

    def _expire(self) -> None:
        self.expired = True
        for open_socket in self.sockets:
            with suppress(OSError):  # it is already closed
                open_socket.shutdown(socket.SHUT_RDWR)

    def opener(self) -> urllib.request.OpenerDirector:
        deadline = self

        class Watched:
            def do_open(self, connect: Any, request: Any, **options: Any) -> Any:
                watched = lambda *args, **settings: deadline.watch(connect(*args, **settings))
                return super().do_open(watched, request, **options)  # type: ignore[misc]

        plain = type("Plain", (Watched, urllib.request.HTTPHandler), {})
        secure = type("Secure", (Watched, urllib.request.HTTPSHandler), {})
        return urllib.request.build_opener(plain, secure)


def download(
    url: str,
    path: Path,
    expected: str | None,
    max_bytes: int,
    on_progress: Progress | None = None,
    timeout: float = 60,
    time_limit: float = TIME_LIMIT,
) -> None:
    """Download ``url`` to ``path`` and check its SHA-256 if one is given.

    A second process waits for the first and uses its file. A broken connection is retried from the start.

    Args:
        url: the source.
        path: the file to write.
        expected: the SHA-256 of the file.
        max_bytes: the largest size to accept.
        on_progress: called with the number of bytes so far, and in all if known.
        timeout: seconds without a byte after which a connection counts as broken.
        time_limit: seconds for all attempts together.
    """
    try:
        with lock(path):
            if path.exists() and (expected is None or sha256(path) == expected):
                return None
            with _Deadline(url, time_limit) as deadline:
                for attempt in range(1, TRIES + 1):
                    try:
                        chunks = _receive(url, max_bytes, on_progress, timeout, deadline)
                        return _write_verified(chunks, path, expected, url)
                    except (ConnectionError, http.client.HTTPException, TimeoutError, urllib.error.URLError) as error:
                        deadline.check()
                        if isinstance(error, urllib.error.URLError):
                            raise
                        if attempt == TRIES:
                            raise DownloadError(
                                f"{url}: the connection broke {TRIES} times ({error}); try again later"
                            ) from error
    except urllib.error.URLError as error:
        hint = "check the network, or put the files into the folder that RGAT_DATA names"
        raise DownloadError(f"{url}: cannot be reached ({error.reason}); {hint}") from error
    except OSError as error:
        raise DownloadError(f"{path}: cannot be written ({error.strerror}); make the folder writable") from error


def _receive(
    url: str, max_bytes: int, on_progress: Progress | None, timeout: float, deadline: _Deadline
) -> Iterator[bytes]:
    """Yield the content of ``url``; raise if it is too large, too slow or incomplete."""
    request = urllib.request.Request(url, headers={"User-Agent": "rgat"})
    start = time.monotonic()
    with deadline.opener().open(request, timeout=timeout) as response:
        length = response.headers.get("Content-Length")
        total = int(length) if length and length.isdigit() else None
        received = 0
        while chunk := response.read1(CHUNK):  # `read` would wait for a whole chunk, and hide a slow connection
            received += len(chunk)
            if max(received, total or 0) > max_bytes:
                raise DownloadError(f"{url}: must be at most {max_bytes:,} bytes, got {max(received, total or 0):,}")
            yield chunk
            if on_progress is not None:
                on_progress(received, total)
            seconds = time.monotonic() - start
            if seconds > timeout and received < LEAST_SPEED * seconds:
                raise DownloadError(
                    f"{url}: must arrive at {LEAST_SPEED:,} bytes per second or faster, got {received:,} bytes in "
                    f"{seconds:.0f} s; {_HINT}"
                )
        deadline.check()
        if total is not None and received != total:
            raise http.client.IncompleteRead(b"", total - received)


def _write_verified(chunks: Iterator[bytes], path: Path, expected: str | None, source: str) -> None:
    """Write a file atomically; raise if its SHA-256 is not the expected one."""
    digest = hashlib.sha256()
    with replacing(path) as file:
        for chunk in chunks:
            digest.update(chunk)
            file.write(chunk)
        if expected is not None and digest.hexdigest() != expected:
            raise DownloadError(
                f"{source}: must have the SHA-256 {expected}, got {digest.hexdigest()}; the file has changed"
            )


def extract(archive: Path, members: Mapping[str, tuple[Path, str | None]], max_bytes: int) -> None:
    """Extract only the named files of a .tgz archive.

    Args:
        archive: the archive.
        members: file names, each with the path to write and the SHA-256 if it is known.
        max_bytes: the largest size to unpack to.
    """
    wanted = dict(members)
    try:
        with (
            gzip.open(archive) as unpacked,
            tarfile.open(fileobj=_Limited(unpacked, archive, max_bytes), mode="r|") as tar,  # type: ignore[call-overload]
        ):
            for member in tar:
                name = PurePosixPath(member.name)
                if name.is_absolute() or ".." in name.parts:
                    raise DownloadError(f"{archive}: names in it must stay inside, got {member.name}: not used")
                if member.isfile() and name.name in wanted:
                    path, expected = wanted.pop(name.name)
                    content = tar.extractfile(member)
                    assert content is not None
                    _write_verified(
                        iter(partial(content.read, CHUNK), b""), path, expected, f"{archive}: {member.name}"
                    )
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise DownloadError(f"{archive}: cannot be unpacked ({error}); delete it and try again") from error
    if wanted:
        raise DownloadError(f"{archive}: must hold {', '.join(sorted(wanted))}, got an archive without")


class _Limited:
    """A readable file that raises after ``max_bytes`` unpacked bytes, and 64 KiB for headers of members."""

    def __init__(self, file: gzip.GzipFile, archive: Path, max_bytes: int) -> None:
        self.file, self.left = file, max_bytes + 2**16
        self.message = f"{archive}: must unpack to at most {max_bytes:,} bytes, got more: not used"

    def read(self, size: int) -> bytes:
        content = self.file.read(min(size, self.left + 1))
        self.left -= len(content)
        if self.left < 0:
            raise DownloadError(self.message)
        return content
