"""Tables of the edges of source and target rows: the edge of a row that has one, and which rows have several."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from rgat.ops.cache import cached
from rgat.ops.triton.segment_kernels import Chosen
from rgat.structure import Structure


class RowEdges(NamedTuple):
    """What a kernel reads of the edges of each row."""

    edge: Tensor  # [rows], the edge of a row with a single one; of others -1 - the row of its sums
    read: Tensor  # [rows], what its first edge reads: a target, or a source row
    several: Chosen  # the segments of rows with several edges

    @property
    def num_sums(self) -> int:
        """The number of rows that sums of several edges need."""
        return (self.edge if self.several.segments is None else self.several.segments).shape[0]


def _tables(name: str, ptr: Tensor, make: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> RowEdges:
    """Return the tables for segments; ``make`` gets which are of several edges and where their sums are."""

    def listed() -> RowEdges:
        several = ptr.diff() > 1
        slot = several.cumsum(0, dtype=torch.int32) - 1
        return RowEdges(*make(several, slot), Chosen(1, several.nonzero().flatten().int(), slot))

    tables: RowEdges | None = cached(ptr, (name,), listed)
    if tables is not None:
        return tables
    number = torch.arange(ptr.shape[0] - 1, dtype=torch.int32, device=ptr.device)
    return RowEdges(*make(ptr.diff() > 1, number), Chosen(1))


def edges_of_sources(s: Structure) -> RowEdges:
    """Return the edges of the source rows, which read targets."""

    def make(several: Tensor, slot: Tensor) -> tuple[Tensor, Tensor]:
        edge = s.by_source.index_select(0, s.source_ptr[:-1])
        return torch.where(several, -1 - slot, edge), s.target.index_select(0, edge)

    return _tables("edges of sources", s.source_ptr, make)


def edges_of_targets(s: Structure) -> RowEdges:
    """Return the edges of the target rows, which read source rows; segments are groups."""

    def make(several: Tensor, slot: Tensor) -> tuple[Tensor, Tensor]:
        first, by_node = s.group_ptr[:-1], s.targets.by_node.long()
        edge, read = torch.empty_like(first), torch.empty_like(first)
        edge[by_node] = torch.where(several, -1 - slot, first)
        read[by_node] = s.source_row.index_select(0, first)
        return edge, read

    return _tables("edges of targets", s.group_ptr, make)


def query_rows_of_sources(s: Structure) -> Tensor:
    """Return the target row of the first edge of each source row, ``[U]``."""

    def make() -> Tensor:
        edge = s.by_source.index_select(0, s.source_ptr[:-1])
        return s.targets.by_node.index_select(0, s.group.index_select(0, edge))

    rows: Tensor | None = cached(s.source_ptr, ("target rows of source rows",), make)
    return make() if rows is None else rows
