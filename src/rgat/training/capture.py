"""Steps captured in a CUDA graph: small graphs on a GPU are bound by the launches of their kernels, not by the work."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from rgat import ops
from rgat.training.task import GraphTask, Task

WARM_UP = 3  # calls before recording: kernels are compiled and chosen, memory is found

_one_at_a_time = threading.RLock()  # reentrant: a callback of one training may train another model


@contextmanager
def training_on(device: torch.device) -> Iterator[None]:
    """Make a GPU the current device, and wait until no other thread of this process trains on any GPU.

    Kernels and captures go to the current device, wherever the tensors are, and two captures at once fail. For the CPU
    this does nothing.
    """
    if device.type != "cuda":
        yield
        return
    with _one_at_a_time, torch.cuda.device(device):
        yield


def why_not_capture(task: Task, device: torch.device) -> str | None:
    """Why a step cannot be captured; None if it can."""
    if device.type != "cuda":
        return f"it runs on the {device.type.upper()}"
    if isinstance(task, GraphTask) and task.processes.number > 1:
        return "several processes share its batches"
    backend = ops.active_backend(device)
    return None if backend == "triton" else f'the backend "{backend}" looks at numbers on the host'


@contextmanager
def _nothing_freed() -> Iterator[None]:
    """Python's collector may come upon an older recording, and to free its memory would spoil the new one."""
    gc.collect()
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class Captured:
    """Work that is the same each time, recorded once and then replayed.

    The first calls run as they are, so nothing is done that would not have been done anyway. The result is overwritten
    by the next call. The work is given with each call and not kept: it belongs to what owns this object, and a
    reference back would keep models alive until Python's collector runs.
    """

    def __init__(self) -> None:
        self.result: Tensor
        self.stream: torch.cuda.Stream | None = None
        self.forget()

    def forget(self) -> None:
        """Record anew, for the work has changed its place."""
        self.calls = 0
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, work: Callable[[], Tensor]) -> Tensor:
        """Do the work, or replay what was recorded of it."""
        self.calls += 1
        if self.stream is None:  # of the current device; the one that PyTorch captures on is of the first device ever
            self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        if self.calls <= WARM_UP:
            main = torch.cuda.current_stream()
            self.stream.wait_stream(main)
            with torch.cuda.stream(self.stream):
                result = work()
            main.wait_stream(self.stream)
            return result
        if self.graph is None:
            self.graph = torch.cuda.CUDAGraph()
            with (
                _nothing_freed(),
                torch.cuda.graph(
                    self.graph,
                    stream=self.stream,
                    capture_error_mode="thread_local",  # others may take memory meanwhile
                ),
            ):
                self.result = work()
        self.graph.replay()
        return self.result
