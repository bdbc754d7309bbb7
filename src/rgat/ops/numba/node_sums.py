"""Sum rows by node on several threads of the CPU backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from rgat.ops.numba.row_loops import add_rows
from rgat.ops.numba.threads import even, run

COPIES = 4  # at most: to zero and add a copy of the sums costs as much as a round of as many rows
ROUND = 1 << 20  # numbers in a round at least, so that few nodes with many rows do not need many rounds


class NodeSums:
    """Sums ``[N, C]`` to which every row adds for one node.

    Up to ``COPIES`` threads have a copy each. More threads fill a buffer, one round of rows after the other, and after
    each round every thread adds the rows of its own nodes. So memory does not grow with the number of threads.
    """

    def __init__(self, like: Tensor, num_nodes: int, channels: int, ranges: int) -> None:
        """Start with zeros, for this many ranges of rows in parallel; 0: there is nothing to sum."""
        self._in_rounds = ranges > COPIES
        self.copies = like.new_zeros(1 if self._in_rounds else ranges, num_nodes, channels)

    def add(
        self,
        node: NDArray[Any],
        divide: Callable[[int, int], list[int]],
        make: Callable[[list[int], NDArray[Any], Tensor], None],
    ) -> None:
        """Call ``make(bounds, into, out)``, which adds each row ``u`` of some ranges to ``out[..., into[u], :]``.

        Args:
            node: The node of each row.
            divide: Returns the bounds of ranges that cover the rows between its two arguments.
            make: Called once, or several times with different rows.
        """
        if self._in_rounds:
            self._add_in_rounds(node, divide, make)
            return
        bounds = divide(0, len(node))
        if 0 < len(self.copies) < len(bounds) - 1:
            bounds = [0, len(node)]
        make(bounds, node, self.copies)

    def _add_in_rounds(
        self,
        node: NDArray[Any],
        divide: Callable[[int, int], list[int]],
        make: Callable[[list[int], NDArray[Any], Tensor], None],
    ) -> None:
        _, num_nodes, channels = self.copies.shape
        step = min(max(num_nodes, ROUND // max(channels, 1)), max(len(node), 1))
        into, buffer = np.arange(len(node), dtype=np.int32) % step, self.copies.new_empty(1, step, channels)
        for first in range(0, len(node), step):
            last = min(first + step, len(node))
            make(divide(first, last), into, buffer.zero_())
            arrays = (node, buffer[0].numpy(), self.copies[0].numpy())
            run(add_rows, even(0, num_nodes, channels), first, last, *arrays)

    def total(self) -> Tensor:
        """Return the sums; copies are added in their order."""
        for other in self.copies[1:]:
            self.copies[0].add_(other)
        return self.copies[0]
