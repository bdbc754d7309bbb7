"""Execute units of work in this process, in processes on this machine, or on a Ray cluster; replace lost workers.

Each executor yields records in the order in which units finish. Only the caller writes them, so workers share no disk.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import torch

from rgat.checks import check_count, check_word
from rgat.data import GraphData
from rgat.experiments.folds import FoldedData, encode
from rgat.experiments.joint import run_groups
from rgat.experiments.records import Record, record_name
from rgat.experiments.units import Unit, group_by_stack, run_encoded, train_units
from rgat.workers import WorkerPool

EXECUTORS = ("local", "processes", "ray")
RETRIES = 3  # workers lost in a row without a finished unit between them; with Ray, for one unit
ANSWER_SECONDS = 3.0  # time for an address to answer
# The start of an HTTP/2 connection, which Ray's gRPC uses: the preface and an empty SETTINGS frame (type 4). A server
# answers with a SETTINGS frame.
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])


class Execute(Protocol):
    """A function that runs units and yields their records.

    At ``until``, a time of ``time.monotonic``, it stops; units without a record then may have begun.
    """

    def __call__(self, units: Sequence[Unit], until: float | None = None) -> Iterator[Record]: ...


@contextmanager
def open_executor(
    executor: str,
    data: FoldedData,
    workers: int | None = None,
    address: str | None = None,
    device: str = "cpu",
    processes_per_run: int = 1,
) -> Iterator[Execute]:
    """Yield a function that runs units and yields their records; its workers end with the block.

    With ``processes_per_run``, so many workers of a Ray cluster train each node classifier together.
    """
    check_word("executor", executor, EXECUTORS)
    check_word("device", device.partition(":")[0], ("cpu", "cuda"))
    # The devices of a cluster are not known here.
    if device.startswith("cuda") and executor != "ray" and not torch.cuda.is_available():
        raise ValueError('`device` must be "cpu" where PyTorch sees no CUDA device, got "cuda"')
    if workers is not None:
        check_count("workers", workers)
    if address is not None and executor != "ray":
        raise ValueError(f'`address` must be left out with the executor "{executor}"; or ask for "ray"')
    check_count("processes_per_run", processes_per_run)
    if processes_per_run > 1 and executor != "ray":
        raise ValueError(f'`processes_per_run` must be 1 with the executor "{executor}"; or ask for "ray"')
    if processes_per_run > 1 and isinstance(data.data, GraphData):
        raise ValueError("`processes_per_run` must be 1 for graphs; several processes train one node classifier")
    if executor == "local":
        yield lambda units, until=None: train_units(units, data, device, until)
    elif executor == "processes":
        with _process_executor(encode(data), device, workers or os.cpu_count() or 1) as execute:
            yield execute
    else:
        with _ray_executor(encode(data), device, workers, address, processes_per_run) as execute:
            yield execute


def _seconds_left(until: float | None) -> float | None:
    return None if until is None else max(0.0, until - time.monotonic())


_worker: dict[str, Any] = {}  # the content and device that this worker process was started with


def _start_worker(content: bytes, device: str) -> None:
    _worker.update(content=content, device=device)


def _run_stack_in_process(group: Sequence[Unit]) -> list[Record]:
    return run_encoded(group, **_worker)


@contextmanager
def _process_executor(content: bytes, device: str, workers: int) -> Iterator[Execute]:
    """Yield a function that runs units in a pool of processes, which is replaced when one of them is lost."""
    start_pool = partial(WorkerPool, workers, _start_worker, content, device)
    pool = start_pool()

    def execute(units: Sequence[Unit], until: float | None = None) -> Iterator[Record]:
        nonlocal pool
        remaining = {record_name(group[0]): group for group in group_by_stack(units)}
        num_lost = 0
        while remaining:
            futures: dict[Future[list[Record]], str] = {}
            is_broken = False
            try:
                for name, group in remaining.items():
                    futures[pool.submit(_run_stack_in_process, group)] = name
            except BrokenProcessPool:
                is_broken = True
            try:
                for future in as_completed(futures, _seconds_left(until)):
                    try:
                        records = future.result()
                    except BrokenProcessPool:
                        is_broken = True  # all unfinished futures raise this at once
                        continue
                    del remaining[futures[future]]
                    num_lost = 0
                    yield from records
            except TimeoutError:
                pool.end()
                pool = start_pool()
                return
            if is_broken:
                pool.end()
                pool = start_pool()
                num_lost += 1
                if num_lost > RETRIES:
                    raise ValueError(
                        f"workers must survive their work, got {num_lost} that died in a row while these units were "
                        f"running or waiting: {', '.join([*remaining][:4])}; if memory ran out, give fewer --workers"
                    )

    try:
        yield execute
    finally:
        pool.end()


@contextmanager
def _ray_executor(
    content: bytes, device: str, workers: int | None, address: str | None, processes_per_run: int
) -> Iterator[Execute]:
    """Yield a function that runs units as Ray tasks; Ray itself repeats those of a lost worker or node."""
    try:
        import ray
    except ImportError as error:
        raise ImportError("the executor \"ray\" needs Ray; install it with `pip install 'rgat[ray]'`") from error
    if address is not None and workers is not None:
        raise ValueError("`workers` must be left out with an address: the cluster knows how many it has")
    _connect(ray, address, workers)
    try:
        data = ray.put(content)
        task = ray.remote(num_cpus=1, num_gpus=int(device != "cpu"), max_retries=RETRIES)(run_encoded)

        def run_alone(groups: Sequence[Sequence[Unit]], until: float | None) -> Iterator[list[Record]]:
            waiting = [task.remote(group, data, device) for group in groups]
            while waiting:
                finished, waiting = ray.wait(waiting, num_returns=1, timeout=_seconds_left(until))
                if not finished:
                    for late in waiting:
                        ray.cancel(late, force=True)
                    return
                yield ray.get(finished[0])

        def execute(units: Sequence[Unit], until: float | None = None) -> Iterator[Record]:
            groups = group_by_stack(units)
            together = processes_per_run > 1
            try:
                for records in (
                    run_groups(groups, data, device, processes_per_run, RETRIES)
                    if together
                    else run_alone(groups, until)
                ):
                    yield from records
            except (ray.exceptions.RaySystemError, ray.exceptions.RayActorError) as error:
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
        raise ValueError(_no_cluster(address, str(error).split("\n")[0])) from error


def _check_answer(address: str) -> None:
    """Raise unless an HTTP/2 server answers: Ray itself waits for minutes if nothing does, or another service."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(f'`address` must be "auto" or a host and port such as "10.0.0.1:6379", got "{address}"')
    try:
        with socket.create_connection((host, int(port)), ANSWER_SECONDS) as connection:
            connection.sendall(PREFACE)
            answer = connection.recv(9)
    except (OSError, OverflowError) as error:
        raise ValueError(_no_cluster(address, str(error))) from error
    if answer[3:4] != PREFACE[-6:-5]:
        raise ValueError(_no_cluster(address, "something else listens there"))


def _no_cluster(address: str, reason: str) -> str:
    return (
        f'`address` must be that of a running Ray cluster, got "{address}" where none answers ({reason}); '
        "start one with `ray start --head --port 6379`"
    )
