"""Run the service until a signal ends it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from ipaddress import ip_address
from types import FrameType

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from rgat.predictor import MoleculePredictor, NodePredictor
from rgat.serve.app import make_app
from rgat.serve.guard import LOOPBACK
from rgat.serve.limits import Limits

GRACE = 10  # seconds for requests that are not answered when the service is stopped


class _Server(uvicorn.Server):
    """A server that ends at a signal as if it had nothing more to do."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        self._captured_signals.clear()  # uvicorn would raise the signal again after its end


def protocol(seconds: float) -> type[H11Protocol]:
    """Return a protocol that closes connections which send no whole request for so long; it limits headers too."""

    class Protocol(H11Protocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self.seen, self.timer = self.cycle, self.loop.call_later(seconds, self.check)

        def check(self) -> None:
            is_busy = self.cycle is not None and not self.cycle.response_complete
            if not is_busy and self.cycle is self.seen:
                self.transport.close()
                return
            self.seen, self.timer = self.cycle, self.loop.call_later(seconds, self.check)

        def connection_lost(self, exc: Exception | None) -> None:
            self.timer.cancel()
            super().connection_lost(exc)

    return Protocol


def is_loopback(host: str) -> bool:
    """Tell whether an address can be reached from this machine only."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def run(
    predictor: NodePredictor | MoleculePredictor,
    host: str = "127.0.0.1",
    port: int = 8000,
    limits: Limits | None = None,
    started: Callable[[str], None] | None = None,
) -> None:
    """Serve a model over HTTP until the process gets SIGINT (Ctrl-C) or SIGTERM; requests at work are still answered.

    Args:
        predictor: the model, from `rgat.fit` or `rgat.load`.
        host: address to listen at; others than loopback addresses can be reached from elsewhere, without a password.
        port: number of the port; 0 takes a free one.
        limits: limits of a request; by default ``Limits()``.
        started: is called with the address of the service before the first request.

    Examples:
        >>> import rgat
        >>> from rgat.serve import run
        >>> run(rgat.load("model"))  # doctest: +SKIP
        >>> try:
        ...     run(rgat.fit("institute", comparison=False, max_epochs=2), host="256.0.0.1")
        ... except ValueError as error:
        ...     print(str(error)[:45])
        256.0.0.1, port 8000: cannot be listened at:
    """
    limits = limits or Limits()
    listening = listen(host, port)
    app = make_app(predictor, limits, (*LOOPBACK, host) if is_loopback(host) else None)
    config = uvicorn.Config(
        app,
        http=protocol(limits.seconds),
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE,
        limit_concurrency=4 * limits.num_requests,  # connections, many of them idle
    )
    if started is not None:
        shown = f"[{host}]" if ":" in host else host
        started(f"http://{shown}:{listening.getsockname()[1]}")
    with listening:
        _Server(config).run(sockets=[listening])


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens; raise a sentence if that is impossible."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)  # asyncio sends at once only where the protocol is named
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen(1024)
        except BaseException:
            listening.close()
            raise
        return listening
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ValueError(
            f"{host}, port {port}: cannot be listened at: {reason}; choose another --host or --port"
        ) from error
