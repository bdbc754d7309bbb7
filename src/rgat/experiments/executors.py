"""Who does the work: this process, processes on this machine, or a Ray cluster. Lost workers are replaced.

Each yields records in the order in which they are there; only the caller writes them, so workers need no common disk.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch

from rgat.checks import check_count, check_word
from rgat.experiments.folds import Division
from rgat.experiments.jobs import Unit, together, train_many
from rgat.experiments.records import Record, record_name
from rgat.experiments.transfer import decode, encode
from rgat.workers import WorkerPool

EXECUTORS = ("local", "processes", "ray")
RETRIES = 3  # workers lost in a row without anything done between, or with Ray by one unit
ANSWER_SECONDS = 3.0  # for an address to answer
# The first words of HTTP/2, which gRPC and so Ray speaks: a greeting and an empty frame of settings, type 4; the answer
# is such a frame too.
HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])

Execute = Callable[[Sequence[Unit]], Iterator[Record]]


def _check_device(device: str, executor: str) -> None:
    """Raise unless work can be done there; what a cluster has, only the cluster knows."""
    check_word("device", device.partition(":")[0], ("cpu", "cuda"))
    if device.startswith("cuda") and executor != "ray" and not torch.cuda.is_available():
        raise ValueError('`device` must be "cpu" where PyTorch sees no CUDA device, got "cuda"')


@contextmanager
def open_executor(
    executor: str, division: Division, workers: int | None = None, address: str | None = None, device: str = "cpu"
) -> Iterator[Execute]:
    """A function that does the work of units and yields their records; its workers live as long as the block."""
    check_word("executor", executor, EXECUTORS)
    _check_device(device, executor)
    if workers is not None:
        check_count("workers", workers)
    if address is not None and executor != "ray":
        raise ValueError(f'`address` must be left out with the executor "{executor}"; or ask for "ray"')
    if executor == "local":
        yield lambda units: train_many(units, division, device)
    elif executor == "processes":
        pool = _Processes(encode(division), device, workers or os.cpu_count() or 1)
        try:
            yield pool.execute
        finally:
            pool.close()
    else:
        with _ray_executor(encode(division), device, workers, address) as execute:
            yield execute


@lru_cache(maxsize=1)
def _division(content: bytes) -> Division:
    return decode(content)


def _work(group: Sequence[Unit], content: bytes, device: str) -> list[Record]:
    """Units that train as one stack, in a worker."""
    return list(train_many(group, _division(content), device))


class _Processes:
    """A pool of processes that is made anew when one of them is lost."""

    def __init__(self, content: bytes, device: str, workers: int) -> None:
        self.content, self.device, self.workers = content, device, workers
        self.pool: WorkerPool | None = None

    def execute(self, units: Sequence[Unit]) -> Iterator[Record]:
        left = {record_name(group[0]): group for group in together(units)}
        lost = 0
        while left:
            pool = self._open()
            futures: dict[Future[list[Record]], str] = {}
            broken = False
            try:
                for name, group in left.items():
                    futures[pool.submit(_work_here, group)] = name
            except BrokenProcessPool:
                broken = True
            for future in as_completed(futures):
                try:
                    records = future.result()
                except BrokenProcessPool:
                    broken = True  # all that was not done ends so, at once
                    continue
                del left[futures[future]]
                lost = 0
                yield from records
            if broken:
                self.close()
                lost += 1
                if lost > RETRIES:
                    raise ValueError(
                        f"workers must live to end their work, got {lost} that died in a row, while these were under "
                        f"way or waiting: {', '.join([*left][:4])}; if memory ran out, give fewer --workers"
                    )

    def _open(self) -> WorkerPool:
        if self.pool is None:
            self.pool = WorkerPool(self.workers, _start, self.content, self.device)
        return self.pool

    def close(self) -> None:
        if self.pool is not None:
            self.pool.end()
            self.pool = None


_here: dict[str, Any] = {}  # in a worker process: what it was started with


def _start(content: bytes, device: str) -> None:
    _here.update(content=content, device=device)


def _work_here(group: Sequence[Unit]) -> list[Record]:
    return _work(group, _here["content"], _here["device"])


@contextmanager
def _ray_executor(content: bytes, device: str, workers: int | None, address: str | None) -> Iterator[Execute]:
    """Units as Ray tasks: Ray itself runs again what a lost worker or node had under way."""
    ray = _ray()
    if address is not None and workers is not None:
        raise ValueError("`workers` must be left out with an address: the cluster knows how many it has")
    _connect(ray, address, workers)
    try:
        data = ray.put(content)
        task = ray.remote(num_cpus=1, num_gpus=int(device != "cpu"), max_retries=RETRIES)(_work)

        def execute(units: Sequence[Unit]) -> Iterator[Record]:
            waiting = [task.remote(group, data, device) for group in together(units)]
            while waiting:
                done, waiting = ray.wait(waiting, num_returns=1)
                try:
                    yield from ray.get(done[0])
                except ray.exceptions.RaySystemError as error:
                    raise ValueError(f"Ray must run each unit, got one whose workers were lost: {error}") from error

        yield execute
    finally:
        ray.shutdown()


def _connect(ray: Any, address: str | None, workers: int | None) -> None:
    options = {"log_to_driver": False, "logging_level": "error", "configure_logging": False}
    if address is None:
        ray.init(num_cpus=workers, include_dashboard=False, **options)
        return
    if address != "auto":
        _check_answer(address)
    try:
        ray.init(address=address, **options)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ValueError(_nobody(address, str(error).split("\n")[0])) from error


def _check_answer(address: str) -> None:
    """Ray itself waits for minutes where nobody listens, or somebody else; so say hello first, as its protocol does."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(f'`address` must be "auto" or a host and port such as "10.0.0.1:6379", got "{address}"')
    try:
        with socket.create_connection((host, int(port)), ANSWER_SECONDS) as connection:
            connection.sendall(HELLO)
            answer = connection.recv(9)
    except (OSError, OverflowError) as error:
        raise ValueError(_nobody(address, str(error))) from error
    if answer[3:4] != HELLO[-6:-5]:
        raise ValueError(_nobody(address, "something else listens there"))


def _nobody(address: str, why: str) -> str:
    return (
        f'`address` must be that of a running Ray cluster, got "{address}" where none answers ({why}); '
        "start one with `ray start --head --port 6379`"
    )


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise ImportError("the executor \"ray\" needs Ray; install it with `pip install 'rgat[ray]'`") from error
    return ray
