"""Which implementation of the operations runs: `RGAT_BACKEND`, `rgat.ops.backend(...)`, or what is best here."""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import torch

from rgat.checks import check_word

WORDS = ("auto", "reference", "torch", "numba", "triton")

# Where the tensors of a compiled backend live.
_DEVICES = {"numba": "cpu", "triton": "cuda"}

_requested: str | None = None  # set by `backend`; applies to the whole process


@functools.cache
def why_not(word: str) -> str | None:
    """Why a backend cannot be used on this machine; None if it can."""
    if word not in _DEVICES:
        return None
    if word == "triton" and not torch.cuda.is_available():
        return "it needs a CUDA device, and PyTorch sees none"
    try:
        _module(word)
    except ImportError as error:
        return f"{error}; `pip install {word}` adds it"
    if word == "numba" and not importlib.import_module("rgat.ops.numba.blas").address(torch.float32):
        return "this build of PyTorch does not let its BLAS be called"
    return None


def _check(word: str, name: str) -> str:
    check_word(name, word, WORDS)
    reason = why_not(word)
    if reason is not None:
        raise ValueError(f'the backend "{word}" cannot be used here: {reason}; "auto" takes the best that can')
    return word


def requested_backend() -> str:
    """The word that was asked for; without looking at what is installed, so that it can be traced."""
    return _requested or os.environ.get("RGAT_BACKEND") or "auto"


def active_backend(device: torch.device | str = "cpu", word: str | None = None) -> str:
    """The backend that a layer called now, with tensors on ``device``, would use; or one called with ``word``."""
    word = word or _requested or _check(os.environ.get("RGAT_BACKEND") or "auto", "RGAT_BACKEND")
    kind = (torch.device(device) if isinstance(device, str) else device).type
    if word == "auto":
        return next((best for best, where in _DEVICES.items() if where == kind and why_not(best) is None), "torch")
    if _DEVICES.get(word, kind) != kind:
        raise ValueError(
            f'the backend "{word}" must be given tensors on {_DEVICES[word]}, got {kind}; move them, or use "auto"'
        )
    return word


def implementation(device: torch.device, word: str | None = None) -> ModuleType:
    """The module whose functions carry out the operations on ``device``."""
    name = active_backend(device, word)
    if name == "reference":  # a backward pass of what another backend began
        name = active_backend(device, "auto")
    return _module(name)


@functools.cache  # the import system takes longer to find what is there
def _module(name: str) -> ModuleType:
    return importlib.import_module(f"rgat.ops.{name}.backend")


@contextmanager
def backend(word: str) -> Iterator[None]:
    """Use one backend inside a ``with`` block: "auto", "reference", "torch", "numba" or "triton"."""
    global _requested
    before, _requested = _requested, _check(word, "backend")
    try:
        yield
    finally:
        _requested = before
