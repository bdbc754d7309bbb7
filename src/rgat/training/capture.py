"""CUDA-graph capture of training steps, which are launch-bound on small graphs."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from rgat import ops
from rgat.memory import kept_freed_memory

WARM_UP = 3  # calls before the capture: they compile and tune kernels and allocate memory

_gpu_lock = threading.RLock()  # reentrant: a callback of one training may train another model


@contextmanager
def training_on(device: torch.device) -> Iterator[None]:
    """Make a GPU the current device, after waiting until no other thread of this process trains on a GPU.

    Kernels and captures run on the current device, wherever the tensors are, and two captures at once fail. On the CPU
    freed memory is kept for the next step.
    """
    if device.type != "cuda":
        with kept_freed_memory():
            yield
        return
    with _gpu_lock, torch.cuda.device(device):
        yield


def why_not_capture(why_not_pad: str | None, device: torch.device) -> str | None:
    """Return why a step cannot be captured; None if it can. Its batches must be padded, if they differ in size."""
    if device.type != "cuda":
        return f"it runs on the {device.type.upper()}"
    if why_not_pad is not None:
        return why_not_pad
    backend = ops.active_backend(device)
    return None if backend == "triton" else f'the backend "{backend}" reads numbers on the host'


@contextmanager
def _no_collection() -> Iterator[None]:
    """Suspend Python's garbage collector, which could free an older CUDA graph and so invalidate the new capture."""
    gc.collect()
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class Captured:
    """A function that is captured in a CUDA graph after a few calls, and then replayed.

    The first calls run eagerly, so no work is added. Each call overwrites the result of the one before. The function is
    passed to each call and not stored: its owner also owns this object, and a reference cycle would keep models alive
    until Python's garbage collector runs.
    """

    def __init__(self) -> None:
        self.result: Tensor
        self.stream: torch.cuda.Stream | None = None
        self.forget()

    def forget(self) -> None:
        """Capture again, because a tensor's address has changed."""
        self.calls = 0
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, work: Callable[[], Tensor]) -> Tensor:
        """Run the function, or replay its capture."""
        self.calls += 1
        if self.stream is None:  # PyTorch's own capture stream belongs to the first device used
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
                _no_collection(),
                torch.cuda.graph(
                    self.graph,
                    stream=self.stream,
                    capture_error_mode="thread_local",  # other threads may allocate memory meanwhile
                ),
            ):
                self.result = work()
        self.graph.replay()
        return self.result
