"""Worker processes that never outlive the process that started them, however it ends."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any


class WorkerPool(ProcessPoolExecutor):
    """A pool of processes whose workers leave at once when their parent is killed, or an error ends the block.

    Each worker listens to a pipe on which nothing is ever sent: its end is closed by :meth:`end`, or by the system when
    the parent is gone. The workers of a plain pool would wait for work for ever, because each of them holds the pipe
    that the work comes by open itself.

    Args:
        workers: how many.
        start: called with ``arguments`` in each worker before its work.
        arguments: of ``start``.
    """

    def __init__(self, workers: int, start: Callable[..., Any] | None = None, *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")  # a forked child of a threaded parent may hang
        line, self._line = context.Pipe(duplex=False)
        super().__init__(workers, context, initializer=_start_worker, initargs=(line, start, arguments))

    def end(self) -> None:
        """Let the workers go at once, whatever is under way."""
        self._line.close()
        self.shutdown(cancel_futures=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.shutdown()
        self.end()


def _start_worker(line: Connection, start: Callable[..., Any] | None, arguments: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who is interrupted is the parent; it lets its workers go
    threading.Thread(target=_leave_with_parent, args=(line,), daemon=True).start()
    if start is not None:
        start(*arguments)


def _leave_with_parent(line: Connection) -> None:
    try:
        line.recv_bytes()
    except (EOFError, OSError):
        os._exit(1)
