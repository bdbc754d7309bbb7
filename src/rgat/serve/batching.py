"""Run the model in one thread; requests that arrive while it runs are answered together in its next pass."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import torch
from starlette.requests import Request

from rgat.serve.limits import RefusedError

WAITED = 0.1  # seconds in a queue after which a caller may have gone
STEP = 0.0005  # seconds between looks at a queue
Job = Callable[[list[Any]], list[Any]]  # returns an answer or an exception for each item


class Entry(NamedTuple):
    """An item that waits in a queue."""

    item: Any
    future: asyncio.Future[Any]  # its answer
    since: float
    request: Request


class Batcher:
    """Queues of items by job, in the order of their priority; a job takes all items that wait, up to its limit.

    Args:
        jobs: name, function and largest batch of each job; those named first come first.
        observe: is called with the name of a job and the size of each batch.
    """

    def __init__(self, jobs: Mapping[str, tuple[Job, int]], observe: Callable[[str, int], None]) -> None:
        self.jobs, self.observe = jobs, observe
        self.queues: dict[str, deque[Entry]] = {name: deque() for name in jobs}
        self.worker: asyncio.Task[None] | None = None
        self.expected = dict.fromkeys(jobs, 1)  # items of the next batch, if all callers ask again
        self.seconds = dict.fromkeys(jobs, 0.0)  # of the last pass
        # One thread: parallel loops inside a pass would take the processor from the thread that answers.
        self.thread = ThreadPoolExecutor(1, "model", torch.set_num_threads, (1,))

    def waiting(self) -> int:
        """Return the number of items that wait."""
        return sum(map(len, self.queues.values()))

    async def ask(self, job: str, item: Any, request: Request) -> Any:
        """Return the answer to an item, or raise its exception; an item whose caller has gone is not computed."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self.queues[job].append(Entry(item, future, loop.time(), request))
        if self.worker is None:
            self.worker = asyncio.create_task(self._work())
        return await future

    def close(self) -> None:
        """Wait for the pass that runs, and end the thread."""
        self.thread.shutdown(cancel_futures=True)

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while name := next((name for name, queue in self.queues.items() if queue), None):
                await self._linger(name)
                entries = await self._take(name)
                items = [entry.item for entry in entries]
                start = loop.time()
                answers = await loop.run_in_executor(self.thread, self._run, name, items) if items else []
                for entry, answer in zip(entries, answers, strict=True):
                    settle(entry.future, answer)
                self.expected[name] = min(len(entries) + len(self.queues[name]), self.jobs[name][1])
                self.seconds[name] = loop.time() - start
        finally:
            self.worker = None

    async def _linger(self, name: str) -> None:
        """Give the callers of the last pass, if it was shared, time to ask again, but not longer than that pass took.

        Otherwise half of them would wait for the other half: two passes of half the size, which cost almost twice.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.seconds[name]
        while len(self.queues[name]) < self.expected[name] and loop.time() < deadline:
            await asyncio.sleep(STEP)

    async def _take(self, name: str) -> list[Entry]:
        """Take the items of the next batch, without those whose callers have gone."""
        queue, loop = self.queues[name], asyncio.get_running_loop()
        entries: list[Entry] = []
        while queue and len(entries) < self.jobs[name][1]:
            entry = queue.popleft()
            if entry.future.done():  # it took too long
                continue
            if loop.time() - entry.since > WAITED and await entry.request.is_disconnected():
                settle(entry.future, RefusedError(499, "the caller has gone"))
            else:
                entries.append(entry)
        return entries

    def _run(self, name: str, items: list[Any]) -> list[Any]:
        """Return the answers to a batch; if it fails, to each item alone, so that none fails for another's sake."""
        self.observe(name, len(items))
        job = self.jobs[name][0]
        try:
            return job(items)
        except Exception as error:
            return [error] if len(items) == 1 else [self._run(name, [item])[0] for item in items]


def settle(future: asyncio.Future[Any], answer: Any) -> None:
    """Give a caller its answer or exception, unless it stopped waiting."""
    if not future.done():
        future.set_exception(answer) if isinstance(answer, Exception) else future.set_result(answer)
