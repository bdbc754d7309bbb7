"""Which implementation of the operations runs: `RGAT_BACKEND`, `rgat.ops.backend(...)`, or what is best here."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from rgat.checks import check_word

WORDS = ("auto", "reference", "torch", "numba", "triton")
NOT_BUILT = ("numba", "triton")

_requested: str | None = None  # set by `backend`; applies to the whole process


def _check(word: str, name: str) -> str:
    check_word(name, word, WORDS)
    if word in NOT_BUILT:
        raise ValueError(f'the backend "{word}" is not part of this version; use "auto", "torch" or "reference"')
    return word


def _from_environment() -> str:
    return _check(os.environ.get("RGAT_BACKEND", "auto"), "RGAT_BACKEND")


def active_backend() -> str:
    """The backend that a layer called now would use."""
    word = _requested or _from_environment()
    return "torch" if word == "auto" else word


@contextmanager
def backend(word: str) -> Iterator[None]:
    """Use one backend inside a ``with`` block: "auto", "reference" or "torch"."""
    global _requested
    before, _requested = _requested, _check(word, "backend")
    try:
        yield
    finally:
        _requested = before
