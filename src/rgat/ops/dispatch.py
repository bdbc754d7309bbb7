"""Choose the backend: `RGAT_BACKEND`, `rgat.ops.backend(...)`, or the best one for the device."""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from rgat.checks import check_word
from rgat.ops.backend import Backend

WORDS = ("auto", "reference", "torch", "numba", "triton")
_DEVICES = {"numba": "cpu", "triton": "cuda"}  # of the compiled backends

_requested: str | None = None  # set by `backend`; applies to the whole process


@functools.cache  # the import system takes longer to find a module that is loaded
def _load(name: str) -> Backend:
    module: Backend = importlib.import_module(f"rgat.ops.{name}.backend")
    return module


@functools.cache
def why_not(word: str) -> str | None:
    """Say why a backend cannot be used on this machine; None if it can.

    Examples:
        >>> from rgat import ops
        >>> ops.why_not("torch") is None
        True
    """
    if word not in _DEVICES:
        return None
    if word == "triton" and not torch.cuda.is_available():
        return "it needs a CUDA device, and PyTorch sees none"
    try:
        return _load(word).why_not()
    except ImportError as error:
        return f"{error}; `pip install {word}` adds it"


def _check(word: str, name: str) -> str:
    check_word(name, word, WORDS)
    reason = why_not(word)
    if reason is not None:
        raise ValueError(f'the backend "{word}" cannot be used here: {reason}; "auto" takes the best that can')
    return word


def requested_backend() -> str:
    """Return the requested word as it is, without looking at what is installed, so that it can be traced.

    Examples:
        >>> from rgat import ops
        >>> with ops.backend("auto"):
        ...     ops.requested_backend()
        'auto'
    """
    return _requested or os.environ.get("RGAT_BACKEND") or "auto"


def active_backend(device: torch.device | str = "cpu", word: str | None = None) -> str:
    """Return the name of the backend for tensors on ``device``, by default the one that was requested.

    Examples:
        >>> from rgat import ops
        >>> with ops.backend("reference"):
        ...     ops.active_backend("cpu")
        'reference'
    """
    word = word or _requested or _check(os.environ.get("RGAT_BACKEND") or "auto", "RGAT_BACKEND")
    kind = (torch.device(device) if isinstance(device, str) else device).type
    if word == "auto":
        return next((best for best, where in _DEVICES.items() if where == kind and why_not(best) is None), "torch")
    if _DEVICES.get(word, kind) != kind:
        raise ValueError(
            f'the backend "{word}" must be given tensors on {_DEVICES[word]}, got {kind}; move them, or use "auto"'
        )
    return word


def get_backend(device: torch.device, word: str | None = None) -> Backend:
    """Return the backend that runs the operators on tensors on ``device``."""
    name = active_backend(device, word)
    # The reference has no operators: this is the backward pass of what another backend began.
    return _load(active_backend(device, "auto") if name == "reference" else name)


@contextmanager
def backend(word: str) -> Iterator[None]:
    """Use one backend inside a ``with`` block: "auto", "reference", "torch", "numba" or "triton".

    Examples:
        >>> import torch
        >>> from rgat import RelationalGraph
        >>> from rgat import nn, ops
        >>> edges, types = torch.tensor([[0, 1, 2], [1, 2, 1]]), torch.tensor([0, 0, 1])
        >>> graph = RelationalGraph(edges, types, num_nodes=3, num_relations=2)
        >>> conv, x = nn.RGATConv(8, 16, num_relations=2), torch.randn(3, 8)
        >>> with ops.backend("reference"):
        ...     expected = conv(x, graph)
        >>> torch.allclose(conv(x, graph), expected, atol=1e-5)
        True
    """
    global _requested
    before, _requested = _requested, _check(word, "backend")
    try:
        yield
    finally:
        _requested = before
