"""Cache index tables that follow from a graph's tensors, for as long as the memory of these tensors lives."""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

_CALLS_BEFORE_CACHING = 12  # a layer asks for the same table up to three times in a step, a few layers share a batch
_SWEPT_PER_NEW_ENTRY = 8  # more than one, so that the cache shrinks after graphs are deleted

_entries: dict[tuple[Any, ...], tuple[StorageWeakRef, int, Any]] = {}  # memory, number of calls, value


def cached(tensor: Tensor, name: tuple[Any, ...], compute: Callable[[], Any]) -> Any:
    """Return ``compute()``, cached for as long as the memory of ``tensor`` lives unchanged; None: not cached yet.

    The value is computed in the twelfth call with the same tensor and name, so a batch that is used once neither pays
    nor waits for it. During a CUDA-graph capture no kernel runs, so nothing is computed.
    """
    memory = StorageWeakRef(tensor.untyped_storage())
    version = -1 if tensor.is_inference() else tensor._version
    key = (memory.cdata, tensor.storage_offset(), tensor.shape[0], version, *name)
    _, calls, value = _entries.get(key, (None, 0, None))
    if value is not None or torch.cuda.is_current_stream_capturing():
        return value
    if calls == 0:
        _remove_expired()
    if calls + 1 == _CALLS_BEFORE_CACHING:
        with torch.inference_mode(False):
            value = compute()
        torch.cuda.current_stream(tensor.device).synchronize()  # other streams may use it next
    _entries[key] = memory, calls + 1, value
    return value


def _remove_expired() -> None:
    """Remove entries of freed memory among the few swept longest ago, so that a new entry costs a constant time."""
    for key in list(itertools.islice(_entries, _SWEPT_PER_NEW_ENTRY)):
        entry = _entries.pop(key, None)
        if entry is not None and not entry[0].expired():
            _entries[key] = entry  # at the end
