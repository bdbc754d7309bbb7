"""How a layer attends: everything about the operations that is not a tensor."""

from __future__ import annotations

from typing import NamedTuple


class Attention(NamedTuple):
    """The settings of one call."""

    across: list[bool]  # per head: softmax over all edges of a target, not only those of one relation
    negative_slope: float | None  # of the additive score; None: the multiplicative score
    feature_dropout: float = 0.0
    edge_dropout: float = 0.0
    backend: str = "auto"  # backward runs on the backend of forward: each keeps what it likes
