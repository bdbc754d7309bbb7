"""Apply the limits of a service to every request, add headers for browsers, and count."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from rgat.serve.limits import Limits, RefusedError
from rgat.serve.metrics import Metrics

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]
UNLIMITED = ("/health", "/metrics")  # answered also while the service is busy
LOOPBACK = ("127.0.0.1", "localhost", "::1")
HEADERS = {
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}


class Guard:
    """Refuse requests that are too large, too many or meant for another host; end those that take too long.

    Args:
        app: the application behind it.
        limits: the limits.
        metrics: the counters.
        hosts: accepted values of the header Host, without port; None accepts all. On a loopback address, this keeps
            out web pages that point a name of theirs at this machine.
    """

    def __init__(
        self, app: Application, limits: Limits, metrics: Metrics, hosts: tuple[str, ...] | None = None
    ) -> None:
        self.app, self.limits, self.metrics, self.hosts = app, limits, metrics, hosts

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status = time.perf_counter(), 0

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                present = {name for name, _ in message["headers"]}
                extra = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message["headers"], *(pair for pair in extra if pair[0] not in present)]
            await send(message)

        self.metrics.in_flight += 1
        try:
            await self._answer(scope, receive, answer)
        except RefusedError as error:
            if not status:
                await refuse(answer, error)
        except Exception:
            status = status or 500  # which the server answers
            raise
        finally:
            self.metrics.in_flight -= 1
            path = getattr(scope.get("route"), "path", "other")
            self.metrics.count(path, status or 499, time.perf_counter() - start)  # 499: the caller has gone

    async def _answer(self, scope: Message, receive: Receive, send: Send) -> None:
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        host = re.sub(r":\d*$", "", headers.get(b"host", "")).strip("[]")
        if self.hosts is not None and host not in self.hosts:
            raise RefusedError(421, f"the header Host must be one of {', '.join(self.hosts)}; got another one")
        if self.metrics.in_flight > self.limits.num_requests and scope["path"] not in UNLIMITED:
            raise RefusedError(
                429, f"at most {self.limits.num_requests} requests are answered at a time; try again in a second"
            )
        deadline = asyncio.get_running_loop().time() + self.limits.seconds
        try:
            async with asyncio.timeout_at(deadline):
                body = await self._read(headers.get(b"content-length", ""), receive)
        except TimeoutError:
            raise RefusedError(
                408, f"a request must arrive within {self.limits.seconds} seconds; send it faster"
            ) from None
        if body is None:
            return
        sent = False

        async def replay() -> Message:
            nonlocal sent
            if sent:
                return await receive()
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}

        try:
            async with asyncio.timeout_at(deadline):
                await self.app(scope, replay, send)
        except TimeoutError:
            raise RefusedError(
                504,
                f"an answer must take at most {self.limits.seconds} seconds, and this one takes longer; ask for less",
            ) from None

    async def _read(self, length: str, receive: Receive) -> bytes | None:
        """Return the body; None if the caller has gone."""
        most = self.limits.num_bytes
        too_large = RefusedError(413, f"the body of a request must have at most {most:,} bytes, got more; send less")
        if length.isdigit() and int(length[:20]) > most:
            raise too_large
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
            if len(body) > most:
                raise too_large
            if not message.get("more_body"):
                return bytes(body)


async def refuse(send: Send, error: RefusedError) -> None:
    """Send an error."""
    body = json.dumps({"error": error.sentence}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers += [(b"retry-after", b"1")] if error.status == 429 else []
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
