"""Fan-outs in settings and configurations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Fanout = int | Mapping[int, int]  # of all relations, or of some


def check_fanouts(fanouts: Any, num_layers: int) -> None:
    """Raise unless there is a fan-out for each layer, or None; a layer may have a mapping of relations to fan-outs."""
    if fanouts is None:
        return
    if not isinstance(fanouts, list | tuple) or len(fanouts) != num_layers:
        raise ValueError(f"`fanouts` must be {num_layers} numbers, one for each layer of the model, got {fanouts!r}")
    for each in fanouts:
        for fanout in each.values() if isinstance(each, Mapping) else [each]:
            if isinstance(fanout, bool) or not isinstance(fanout, int) or (fanout < 1 and fanout != -1):
                raise ValueError(f"a fan-out must be a number of at least 1, or -1 for all edges, got {fanout!r}")
        for relation in each if isinstance(each, Mapping) else ():
            if isinstance(relation, bool) or not str(relation).isdecimal():
                raise ValueError(f"a fan-out must be for the number of a relation, got one for {relation!r}")


def read_fanouts(fanouts: Any) -> tuple[Fanout, ...]:
    """Return fan-outs of a configuration; in JSON, relations are texts."""
    return tuple({int(k): v for k, v in each.items()} if isinstance(each, Mapping) else each for each in fanouts)
