"""Triples of a dump on the disk, in the order in which they were read, and a selection of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rgat.data.rdf.reader import Batch, sort_triples

Rows = NDArray[np.int32]  # [n, 3]: subject, predicate, object
Mask = NDArray[np.bool_]
_CHUNK = 1 << 20  # triples read at once


class Spool:
    """A file to which triples are appended, and from which they are read several times, chunk by chunk."""

    def __init__(self, path: Path) -> None:
        self.path, self.rows = path, 0
        self.file = path.open("wb")

    def append(self, batch: Batch) -> None:
        """Write triples, given as three columns."""
        rows = np.stack([np.frombuffer(column, dtype=np.int32) for column in batch], axis=1)
        self.file.write(rows.data)
        self.rows += len(rows)

    def __enter__(self) -> Spool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.file.close()

    def __iter__(self) -> Iterator[Rows]:
        for start in range(0, self.rows, _CHUNK):
            count = min(_CHUNK, self.rows - start)
            yield np.fromfile(self.path, np.int32, 3 * count, offset=12 * start).reshape(-1, 3)


class Selection:
    """The triples of a spool that become the graph.

    Args:
        spool: all triples.
        nodes: mask of the nodes whose triples are kept.
        relations: mask of the predicates whose triples are kept.
    """

    def __init__(self, spool: Spool, nodes: Mask, relations: Mask) -> None:
        self.spool, self.nodes, self.relations = spool, nodes, relations
        self.removed_pairs: NDArray[np.int64] = np.empty(0, dtype=np.int64)

    def __iter__(self) -> Iterator[Rows]:
        for rows in self.spool:
            keep = self.nodes[rows[:, 0]] & self.nodes[rows[:, 2]] & self.relations[rows[:, 1]]
            if len(self.removed_pairs):
                keep &= ~np.isin(self._pair(rows[:, 0], rows[:, 2]), self.removed_pairs)
            yield rows[keep]

    def remove_labels(self, rows: NDArray[np.int64], predicate: int) -> None:
        """Leave out the triples of a label predicate, of which ``rows`` are the distinct ones, and their inverses."""
        self.relations = self.relations.copy()
        self.relations[predicate] = False
        self.removed_pairs = np.unique(self._pair(rows[:, 2], rows[:, 0]))

    def used(self, without_objects: Mask | None = None) -> tuple[Mask, Mask, Mask]:
        """Return masks of the nodes and of the predicates that occur.

        The third mask is that of the predicates of triples whose objects are not among ``without_objects``.
        """
        nodes, relations = np.zeros_like(self.nodes), np.zeros_like(self.relations)
        linking = relations if without_objects is None else np.zeros_like(relations)
        for rows in self:
            nodes[rows[:, 0]] = nodes[rows[:, 2]] = True
            relations[rows[:, 1]] = True
            if without_objects is not None:
                linking[rows[~without_objects[rows[:, 2]], 1]] = True
        return nodes, relations, linking

    def collect(self, choose: Callable[[Rows], Mask]) -> NDArray[np.int64]:
        """Return the distinct triples for which ``choose(rows)`` is true, in memory."""
        found = [np.empty((0, 3), dtype=np.int64)]
        pending = 0
        for rows in self:
            found.append(rows[choose(rows)].astype(np.int64))
            pending += len(found[-1])
            if pending > max(_CHUNK, len(found[0])):  # so that each triple is sorted a few times only
                found, pending = [self._distinct(found)], 0
        return self._distinct(found)

    def _distinct(self, parts: list[NDArray[np.int64]]) -> NDArray[np.int64]:
        return sort_triples(np.concatenate(parts), len(self.nodes), len(self.relations))

    def _pair(self, first: NDArray[Any], second: NDArray[Any]) -> NDArray[np.int64]:
        pair: NDArray[np.int64] = first.astype(np.int64) * len(self.nodes) + second
        return pair
