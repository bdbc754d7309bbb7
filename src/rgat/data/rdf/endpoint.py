"""Speak the SPARQL 1.1 protocol to an endpoint that may be slow, fail half-way or answer wrongly."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode, urlsplit
from urllib.request import Request, urlopen

from rgat.checks import check_count
from rgat.data.files import PIECE
from rgat.data.rdf.reader import oxigraph
from rgat.version import __version__

Row = tuple[Any, ...]  # terms of pyoxigraph
RESULTS = "application/sparql-results+json"
MAX_BYTES = 1 << 28  # of one answer
BUSY = (429, 502, 503, 504)  # statuses that ask to come again
ATTEMPTS, PAUSE = 3, 1.0  # of a request that met a busy endpoint or lost its connection; seconds, growing


class EndpointError(ValueError):
    """An endpoint did not do what it was asked; the message says which one, what and what to do."""


class _LostError(Exception):
    """A request that may be sent again: the connection broke, or the endpoint was busy."""


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
        rows, names = set[Row](), variables.replace("?", "").split()
        while len(rows) < expected:
            limit = min(self.page, expected - len(rows))
            page = self._rows(f"{distinct} ORDER BY {variables} LIMIT {limit} OFFSET {len(rows)}", names)
            if len(page) > limit:
                raise self._error(f"must give at most the {limit:,} rows that it was asked for, got {len(page):,}")
            if not page:
                raise self._error(f"must give the {expected:,} rows that it counted, got {len(rows):,}")
            before = len(rows)
            rows.update(page)
            if len(rows) < before + len(page):
                raise self._error("must give each row once, got some of them repeatedly; its data may be changing")
        return rows

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
                return self._send_once(form, accept)
            except _LostError as error:
                if attempt == attempts:
                    raise self._error(f"must answer completely, but {error}") from error
                time.sleep(PAUSE * attempt)
        raise AssertionError

    def _send_once(self, form: dict[str, str], accept: str) -> tuple[bytes, str]:
        deadline = time.monotonic() + self.timeout
        headers = {"Accept": accept, "User-Agent": f"rgat/{__version__}"}
        request = Request(self.url, data=urlencode(form).encode(), headers=headers)
        try:
            with urlopen(request, timeout=self.timeout) as response:
                return self._read(response, deadline), response.headers.get_content_type()
        except HTTPError as error:
            with error:
                reason = f"it answered {error.code} {error.reason}: {_line(error.read(500).decode(errors='replace'))}"
            if error.code in BUSY:
                raise _LostError(reason) from error
            raise self._error(f"must answer with status 200, but {reason.rstrip(': ')}") from error
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
