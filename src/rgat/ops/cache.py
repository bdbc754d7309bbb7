"""Keep what follows from a tensor for as long as the tensor lives.

This is the one rule for everything that operators keep between calls: an entry belongs to a tensor object and is
dropped with it. Entries of `derived` are dropped earlier, when the tensor is changed in place or its memory moves (as
it does when it is shared with another process).
"""

from __future__ import annotations

import weakref
from typing import Any

from torch import Tensor

_entries: dict[int, tuple[weakref.ref[Tensor], dict[Any, Any], list[Any]]] = {}


def _find(tensor: Tensor) -> tuple[weakref.ref[Tensor], dict[Any, Any], list[Any]]:
    number = id(tensor)
    entry = _entries.get(number)
    if entry is None or entry[0]() is not tensor:
        entry = _entries[number] = (weakref.ref(tensor, lambda _: _entries.pop(number, None)), {}, [None, {}])
    return entry


def kept_with(tensor: Tensor) -> dict[Any, Any]:
    """Return the values that are kept until the tensor dies, by key; the caller adds to them."""
    return _find(tensor)[1]


def derived(tensor: Tensor) -> dict[Any, Any]:
    """Return the values that were derived from the tensor's contents, by key; empty once these have changed."""
    current = _find(tensor)[2]
    state = (tensor.data_ptr(), -1 if tensor.is_inference() else tensor._version)
    if current[0] != state:
        current[:] = state, {}
    values: dict[Any, Any] = current[1]
    return values
