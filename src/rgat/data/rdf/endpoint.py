"""Speak the SPARQL 1.1 protocol to an endpoint that may be slow, fail half-way or answer wrongly."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable, Sequence
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from socket import SHUT_RDWR, socket
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode, urlsplit
from urllib.request import HTTPErrorProcessor, HTTPHandler, HTTPSHandler, Request, build_opener

from rgat.checks import check_count
from rgat.data.files import PIECE
from rgat.data.rdf.reader import oxigraph
from rgat.version import __version__

Row = tuple[Any, ...]  # terms of pyoxigraph
RESULTS = "application/sparql-results+json"
MAX_BYTES = 1 << 28  # of one answer
BUSY = (429, 502, 503, 504)  # statuses that ask to come again
ATTEMPTS, PAUSE = 3, 1.0  # of a request that met a busy endpoint or lost its connection; seconds, growing
ENDING = 1.0  # seconds for a thread to notice that its connection was ended


class EndpointError(ValueError):
    """An endpoint did not do what it was asked; the message says which one, what and what to do."""


class _LostError(Exception):
    """A request that may be sent again: the connection broke, or the endpoint was busy."""


class _AnyStatus(HTTPErrorProcessor):
    """Hand over each answer as it came, so that no redirect is followed: an update that was redirected is not done."""

    def http_response(self, request: Request, response: Any) -> Any:
        return response

    https_response = http_response


class _Lines:
    """The connections of a request, which another thread can end."""

    def __init__(self) -> None:
        self.sockets, self.is_over = list[socket](), False

    def handlers(self) -> tuple[HTTPHandler, HTTPSHandler]:
        """Return handlers that open connections and remember them."""
        lines = self

        class Plain(HTTPConnection):
            def connect(self) -> None:
                super().connect()
                lines.add(self.sock)

        class Secure(HTTPSConnection):
            def connect(self) -> None:
                super().connect()
                lines.add(self.sock)

        class PlainHandler(HTTPHandler):
            def http_open(self, request: Request) -> Any:
                return self.do_open(Plain, request)

        class SecureHandler(HTTPSHandler):
            def https_open(self, request: Request) -> Any:
                return self.do_open(Secure, request)

        return PlainHandler(), SecureHandler()

    def add(self, line: socket) -> None:
        self.sockets.append(line)
        if self.is_over:
            self.end()

    def end(self) -> None:
        """End all connections, so that whoever waits for one goes on."""
        self.is_over = True
        for line in self.sockets:
            with contextlib.suppress(OSError):  # it is closed
                line.shutdown(SHUT_RDWR)


class Endpoint:
    """A SPARQL endpoint.

    Args:
        url: address of the endpoint, http or https.
        page: largest number of rows to ask for at once.
        timeout: seconds within which each answer must be complete.
    """

    def __init__(self, url: str, page: int = 10_000, timeout: float = 60.0) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f'an endpoint must be an address such as http://localhost:7878/query, got "{url}"')
        check_count("page", page)
        if not timeout > 0:
            raise ValueError(f"`timeout` (--timeout) must be a positive number of seconds, got {timeout}")
        self.url, self.page, self.timeout = url, page, timeout

    def select(self, variables: str, pattern: str) -> set[Row]:
        """Return all distinct solutions of a graph pattern, read page by page.

        The endpoint is first asked for their number, so that missing, repeated and surplus rows are noticed.
        """
        distinct = f"SELECT DISTINCT {variables} WHERE {{ {pattern} }}"
        counted = self._rows(f"SELECT (COUNT(*) AS ?n) WHERE {{ {distinct} }}", ["n"])
        try:
            ((number,),) = counted
            expected = int(number.value)
        except (TypeError, ValueError, AttributeError) as error:
            raise self._error("must count its rows when asked to, got no single number") from error
        if expected < 0:
            raise self._error(f"must count its rows when asked to, got {expected:,}")
        rows, names = set[Row](), variables.replace("?", "").split()
        while True:
            limit = min(self.page, expected - len(rows) + 1)  # one row more shows a count that is too small
            page = self._rows(f"{distinct} ORDER BY {variables} LIMIT {limit} OFFSET {len(rows)}", names)
            if len(page) > limit:
                raise self._error(f"must give at most the {limit:,} rows that it was asked for, got {len(page):,}")
            before = len(rows)
            rows.update(page)
            if len(rows) < before + len(page):
                raise self._error("must give each row once, got some of them repeatedly; its data may be changing")
            if len(rows) > expected:
                raise self._error(f"must give the {expected:,} rows that it counted, got more; its data may change")
            if len(rows) == expected and len(page) < limit:
                return rows
            if not page:
                raise self._error(f"must give the {expected:,} rows that it counted, got {len(rows):,}")

    def update(self, text: str) -> None:
        """Send one SPARQL update, which an endpoint applies as a whole or not at all."""
        self._send({"update": text}, "*/*", attempts=1)  # an update that was lost may have been applied

    def _rows(self, query: str, names: Sequence[str]) -> list[Row]:
        """Return the solutions of a query; each binds all variables ``names``."""
        ox = oxigraph()
        content, kind = self._send({"query": query}, RESULTS)
        if kind not in (RESULTS, "application/json"):
            raise self._error(f"must answer with {RESULTS}, got {kind or 'no content type'}; is it a SPARQL endpoint?")
        problem = None
        try:
            rows = [
                tuple(solution[name] for name in names)
                for solution in ox.parse_query_results(content, format=ox.QueryResultsFormat.JSON)
            ]
        except (SyntaxError, ValueError, KeyError, TypeError, OSError) as error:
            # A traceback would keep the iterator, which must end in the thread that made it, so none is chained.
            problem = _line(error)
        if problem is not None:
            raise self._error(f"must answer with valid JSON results, got others: {problem}")
        if any(term is None for row in rows for term in row):
            raise self._error(f"must bind {', '.join(names)} in each row, got rows without one of them")
        return rows

    def _send(self, form: dict[str, str], accept: str, attempts: int = ATTEMPTS) -> tuple[bytes, str]:
        """Return the body and the media type of an answer."""
        for attempt in range(1, attempts + 1):
            try:
                return self._send_in_time(form, accept)
            except _LostError as error:
                if attempt == attempts:
                    raise self._error(f"must answer completely, but {error}") from error
                time.sleep(PAUSE * attempt)
        raise AssertionError

    def _send_in_time(self, form: dict[str, str], accept: str) -> tuple[bytes, str]:
        """Send a request in a thread of its own, whose connection is ended at the deadline.

        The timeout of a socket is for each piece that arrives, so headers that drip would never end.
        """
        answers, errors, lines = list[tuple[bytes, str]](), list[BaseException](), _Lines()

        def send() -> None:
            try:
                answers.append(self._send_once(form, accept, lines))
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=send, name="SPARQL request", daemon=True)
        thread.start()
        thread.join(self.timeout)
        if thread.is_alive():
            lines.end()
            thread.join(ENDING)  # only the lookup of a name, which has a limit of its own, can take longer
            raise self._slow()
        if errors:
            raise errors[0]
        return answers[0]

    def _send_once(self, form: dict[str, str], accept: str, lines: _Lines) -> tuple[bytes, str]:
        deadline = time.monotonic() + self.timeout
        headers = {"Accept": accept, "User-Agent": f"rgat/{__version__}"}
        request = Request(self.url, data=urlencode(form).encode(), headers=headers)
        try:
            with build_opener(_AnyStatus, *lines.handlers()).open(request, timeout=self.timeout) as response:
                if not 200 <= response.status < 300:
                    raise self._refused(response)
                return self._read(response, deadline), response.headers.get_content_type()
        except TimeoutError as error:
            raise self._slow() from error
        except URLError as error:
            if isinstance(error.reason, TimeoutError):
                raise self._slow() from error
            raise _LostError(f"it cannot be reached: {error.reason}") from error
        except (OSError, HTTPException) as error:
            raise _LostError(f"the connection broke: {_line(error)}") from error

    def _read(self, response: Any, deadline: float) -> bytes:
        pieces, size = list[bytes](), 0
        while piece := response.read1(PIECE):
            pieces.append(piece)
            size += len(piece)
            if time.monotonic() > deadline:
                raise self._slow()
            if size > MAX_BYTES:
                raise self._error(f"must answer with at most {MAX_BYTES:,} bytes, got more; ask for smaller pages")
        promised = response.headers.get("Content-Length")
        if promised is not None and promised.isdecimal() and size < int(promised):
            raise _LostError(f"the connection broke: {size:,} of {int(promised):,} bytes arrived")
        return b"".join(pieces)

    def _refused(self, response: Any) -> Exception:
        """Return the error for an answer whose status is not one of success."""
        try:
            text = _line(response.read(500).decode(errors="replace"))
        except (OSError, HTTPException):
            text = ""  # the status says enough
        reason = f"it answered {response.status} {response.reason}: {text}".rstrip(": ")
        if response.status in BUSY:
            return _LostError(reason)
        address = response.headers.get("Location")
        if 300 <= response.status < 400 and address:
            reason += f"; redirects are not followed, so give the address itself, perhaps {_line(address)}"
        return self._error(f"must answer with status 200, but {reason}")

    def _slow(self) -> EndpointError:
        return self._error(
            f"must answer within {self.timeout:g} s, but did not; allow more time (--timeout) or smaller pages (--page)"
        )

    def _error(self, text: str) -> EndpointError:
        return EndpointError(f"{self.url} {text}")


def values(terms: Iterable[Any]) -> str:
    """Return terms as the data of a VALUES block."""
    return " ".join(map(str, terms))


def _line(text: object) -> str:
    """Return the first line of a message, cut to a sentence's length."""
    lines = str(text).strip().splitlines()
    return lines[0][:200] if lines else ""
