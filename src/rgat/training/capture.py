"""Steps captured in a CUDA graph: small graphs on a GPU are bound by the launches of their kernels, not by the work."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from rgat import ops
from rgat.training.task import GraphTask, Task

WARM_UP = 3  # calls before recording: kernels are compiled and chosen, memory is found


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
    """A function without arguments that does the same work each time, recorded once and then replayed.

    Its first calls run as they are, so nothing is done that would not have been done anyway. The result is overwritten
    by the next call.
    """

    def __init__(self, function: Callable[[], Tensor]) -> None:
        self.function = function
        self.result: Tensor
        self.forget()

    def forget(self) -> None:
        """Record anew, for the work has changed its place."""
        self.calls = 0
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> Tensor:
        """Run the function, or what was recorded of it."""
        self.calls += 1
        if self.calls <= WARM_UP:
            stream, main = torch.cuda.Stream(), torch.cuda.current_stream()  # type: ignore[no-untyped-call]
            stream.wait_stream(main)
            with torch.cuda.stream(stream):
                result = self.function()
            main.wait_stream(stream)
            return result
        if self.graph is None:
            self.graph = torch.cuda.CUDAGraph()
            with _nothing_freed(), torch.cuda.graph(self.graph):
                self.result = self.function()
        self.graph.replay()
        return self.result
