"""Sums by node of what several threads of the CPU backend make for rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from rgat.ops.numba import product_loops as products
from rgat.ops.numba.threads import even, run

COPIES = 4  # of the sums at most: to zero and to add one costs as much as a round of as many rows
ROUND = 1 << 20  # numbers in a round at least, so that a few nodes with many rows do not make many rounds


class NodeSums:
    """Sums ``[N, C]`` to which every row adds for one node.

    A few threads have a copy each. More of them fill a buffer, one round of rows after the other, and after each round
    every thread adds what belongs to its own nodes. So memory does not grow with the number of threads.
    """

    def __init__(self, like: Tensor, num_nodes: int, channels: int, ranges: int) -> None:
        """Begin with zeros, for so many ranges of rows side by side; 0: nothing is to be summed."""
        self._in_rounds = ranges > COPIES
        self.copies = like.new_zeros(1 if self._in_rounds else ranges, num_nodes, channels)

    def add(
        self,
        node: NDArray[Any],
        divide: Callable[[int, int], list[int]],
        make: Callable[[list[int], NDArray[Any], Tensor], None],
    ) -> None:
        """Let ``make(bounds, into, out)`` add, for each row ``u`` in some ranges, to ``out[..., into[u], :]``.

        Args:
            node: of each row.
            divide: gives the bounds of the ranges of the rows between two.
            make: is called once or, each time with other rows, several times.
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
            run(products.add_rows, even(0, num_nodes, channels), first, last, *arrays)

    def total(self) -> Tensor:
        """Return the sums; copies are added in their order."""
        for other in self.copies[1:]:
            self.copies[0].add_(other)
        return self.copies[0]
