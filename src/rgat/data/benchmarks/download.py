"""Downloads: the right file, whole and verified, or a clear error; never half a file."""

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
from pathlib import Path, PurePosixPath
from typing import IO, Any

from filelock import FileLock, Timeout

from rgat.data.files import replacing

CHUNK = 1 << 16
TRIES = 3
LOCK_SECONDS = 600  # another process may be downloading the same large file
TIME_LIMIT = 3600.0  # seconds for a whole file, all tries together
LEAST_SPEED = 1000  # bytes per second, once a connection is older than its timeout
_HINT = "try again later, or put the files into the folder that RGAT_DATA names"

Progress = Callable[[int, int | None], None]  # bytes so far, bytes in all if known


class DownloadError(ValueError):
    """A file could not be had; the message says why and what to do."""


def sha256(path: Path) -> str:
    """The SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


@contextmanager
def lock(path: Path) -> Iterator[None]:
    """One process at a time."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock", timeout=LOCK_SECONDS):
            yield
    except Timeout as error:
        raise DownloadError(f"{path}: another process holds it for over {LOCK_SECONDS} s; try later") from error
    except PermissionError as error:
        raise DownloadError(f"{path}: cannot be written ({error.strerror}); make the folder writable") from error


class _Deadline:
    """Break the connections of a download when its time is up; only that ends a wait for headers that trickle in."""

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

        def connect_and_keep() -> None:
            connect()
            self.sockets.append(connection.sock)
            self.check()

        connection.connect = connect_and_keep  # type: ignore[method-assign]
        return connection

    def check(self) -> None:
        if self.expired:
            raise DownloadError(f"{self.url}: must arrive within {self.seconds:g} s, got no end of it; {_HINT}")

    def _expire(self) -> None:
        self.expired = True
        for open_socket in self.sockets:
            with suppress(OSError):  # it is closed already
                open_socket.shutdown(socket.SHUT_RDWR)

    def opener(self) -> urllib.request.OpenerDirector:
        deadline = self

        class Watched:
            def do_open(self, kind: Any, request: Any, **options: Any) -> Any:
                return super().do_open(lambda *a, **k: deadline.watch(kind(*a, **k)), request, **options)  # type: ignore[misc]

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
    """Bring ``url`` to ``path``, checking its SHA-256 where one is known.

    A second process waits for the first and finds its file. A connection that breaks is tried again from the start.

    Args:
        url: what to bring.
        path: where to.
        expected: its SHA-256.
        max_bytes: limit of its size.
        on_progress: called with the bytes so far and in all.
        timeout: seconds without a byte after which a connection counts as broken.
        time_limit: seconds for everything.
    """
    try:
        with lock(path):
            if path.exists() and (expected is None or sha256(path) == expected):
                return None
            with _Deadline(url, time_limit) as deadline:
                for attempt in range(1, TRIES + 1):
                    try:
                        return _download_once(url, path, expected, max_bytes, on_progress, timeout, deadline)
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


def _download_once(
    url: str,
    path: Path,
    expected: str | None,
    max_bytes: int,
    on_progress: Progress | None,
    timeout: float,
    deadline: _Deadline,
) -> None:
    request = urllib.request.Request(url, headers={"User-Agent": "rgat"})
    start = time.monotonic()
    with deadline.opener().open(request, timeout=timeout) as response, replacing(path) as file:
        length = response.headers.get("Content-Length")
        total = int(length) if length and length.isdigit() else None
        digest, received = hashlib.sha256(), 0
        while chunk := response.read1(CHUNK):  # whatever has come, so that slowness is seen
            received += len(chunk)
            if max(received, total or 0) > max_bytes:
                raise DownloadError(f"{url}: must be at most {max_bytes:,} bytes, got {max(received, total or 0):,}")
            digest.update(chunk)
            file.write(chunk)
            if on_progress is not None:
                on_progress(received, total)
            spent = time.monotonic() - start
            if spent > timeout and received < LEAST_SPEED * spent:
                raise DownloadError(
                    f"{url}: must arrive at {LEAST_SPEED:,} bytes per second or faster, got {received:,} bytes in "
                    f"{spent:.0f} s; {_HINT}"
                )
        deadline.check()
        if total is not None and received != total:
            raise http.client.IncompleteRead(b"", total - received)
        if expected is not None and digest.hexdigest() != expected:
            raise DownloadError(
                f"{url}: must have the SHA-256 {expected}, got {digest.hexdigest()}; the file has changed"
            )


def extract(archive: Path, members: Mapping[str, tuple[Path, str | None]], max_bytes: int) -> None:
    """Take the named files, and nothing else, out of a .tgz archive.

    Args:
        archive: the archive.
        members: for the last part of a member's name the path to write and its SHA-256, if known.
        max_bytes: limit of what the archive may unpack to.
    """
    wanted = dict(members)
    total = 0
    try:
        with (
            gzip.open(archive) as content,
            tarfile.open(fileobj=_limited(content, archive, max_bytes), mode="r|") as tar,
        ):
            for member in tar:
                name = PurePosixPath(member.name)
                if name.is_absolute() or ".." in name.parts:
                    raise DownloadError(f"{archive}: names in it must stay inside, got {member.name}: not used")
                total += member.size
                if total > max_bytes:
                    raise DownloadError(_too_large(archive, max_bytes))
                if member.isfile() and name.name in wanted:
                    path, expected = wanted.pop(name.name)
                    source = tar.extractfile(member)
                    assert source is not None
                    _copy_verified(source, path, expected, f"{archive}: {member.name}")
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise DownloadError(f"{archive}: cannot be unpacked ({error}); delete it and try again") from error
    if wanted:
        raise DownloadError(f"{archive}: must hold {', '.join(sorted(wanted))}, got an archive without")


def _too_large(archive: Path, max_bytes: int) -> str:
    return f"{archive}: must unpack to at most {max_bytes:,} bytes, got more: not used"


class _Limited:
    """A file that can be read up to a number of bytes: what an archive unpacks to, with some room for headers."""

    def __init__(self, file: IO[bytes], archive: Path, max_bytes: int) -> None:
        self.file, self.left, self.message = file, max_bytes + 2**20, _too_large(archive, max_bytes)

    def read(self, size: int) -> bytes:
        content = self.file.read(min(size, self.left + 1))
        self.left -= len(content)
        if self.left < 0:
            raise DownloadError(self.message)
        return content


def _limited(file: Any, archive: Path, max_bytes: int) -> Any:
    return _Limited(file, archive, max_bytes)


def _copy_verified(source: IO[bytes], path: Path, expected: str | None, what: str) -> None:
    digest = hashlib.sha256()
    with replacing(path) as file:
        while chunk := source.read(CHUNK):
            digest.update(chunk)
            file.write(chunk)
        if expected is not None and digest.hexdigest() != expected:
            raise DownloadError(f"{what} must have the SHA-256 {expected}, got {digest.hexdigest()}")
