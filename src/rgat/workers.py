"""Worker processes that end with the process that started them, even if it is killed."""

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
    """A pool of processes whose workers exit at once if their parent is killed or an error leaves the `with` block.

    Each worker reads from a pipe to which nothing is ever written. The parent's end is closed by `end`, or by the
    system when the parent is gone; the worker then exits. In a plain pool each worker keeps the task queue open itself,
    so that workers without a parent would wait for tasks for ever.

    Args:
        workers: the number of processes.
        start: a function that each worker calls first.
        arguments: its arguments.
    """

    def __init__(self, workers: int, start: Callable[..., Any] | None = None, *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")  # a forked child of a threaded parent may hang
        reader, self._writer = context.Pipe(duplex=False)
        super().__init__(workers, context, initializer=_start_worker, initargs=(reader, start, arguments))

    def end(self) -> None:
        """End the workers at once, without waiting for their tasks."""
        self._writer.close()
        self.shutdown(cancel_futures=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.shutdown()
        self.end()


def _start_worker(reader: Connection, start: Callable[..., Any] | None, arguments: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent too, which ends its workers
    threading.Thread(target=_exit_with_parent, args=(reader,), daemon=True).start()
    if start is not None:
        start(*arguments)


def _exit_with_parent(reader: Connection) -> None:
    try:
        reader.recv_bytes()
    except (EOFError, OSError):
        os._exit(1)
