"""Keep what follows from a tensor for as long as the tensor lives.

This is the one rule for what operators keep between calls, but for recorded launches: an entry belongs to a tensor
object and is dropped with it. Entries of `derived` are dropped earlier, when the tensor is changed in place or its
memory moves (as it does when it is shared with another process).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_CALLS_BEFORE_CACHING = 12  # a layer asks for the same table up to three times in a step, a few layers share a batch

_Entry = tuple[weakref.ref[Tensor], dict[Any, Any], list[Any]]  # what is kept with it, and what was derived
_entries: dict[int, _Entry] = {}


def _find(tensor: Tensor) -> _Entry:
    number, entries = id(tensor), _entries  # a local name lives on while the interpreter shuts down
    entry = entries.get(number)
    if entry is None or entry[0]() is not tensor:
        fresh: _Entry = (weakref.ref(tensor, lambda _: entries.pop(number, None)), {}, [None, {}])
        if entry is not None:
            entries.pop(number, None)
        entry = entries.setdefault(number, fresh)  # another thread may have been first
    return entry


def kept_with(tensor: Tensor) -> dict[Any, Any]:
    """Return the values that are kept until the tensor dies, by key; the caller adds to them."""
    return _find(tensor)[1]


def derived(tensor: Tensor) -> dict[Any, Any]:
    """Return the values that were derived from the tensor's contents, by key; empty once these have changed."""
    current = _find(tensor)[2]
    state = (tensor.data_ptr(), tensor.shape, -1 if tensor.is_inference() else tensor._version)
    if current[0] != state:
        current[:] = state, {}
    values: dict[Any, Any] = current[1]
    return values


def cached(tensor: Tensor, name: Any, compute: Callable[[], Any]) -> Any:
    """Return ``compute()``, which follows from a tensor on a GPU, once it was asked for often enough; None: not yet.

    The value is computed in the twelfth call with the same tensor and name, so a batch that is used once neither pays
    nor waits for it. During a CUDA-graph capture no kernel runs, so nothing is computed.
    """
    values = derived(tensor)
    calls, value = values.get(name, (0, None))
    if value is not None or torch.cuda.is_current_stream_capturing():
        return value
    if calls + 1 == _CALLS_BEFORE_CACHING:
        with torch.inference_mode(False):
            value = compute()
        torch.cuda.current_stream(tensor.device).synchronize()  # other streams may use it next
    values[name] = calls + 1, value
    return value
