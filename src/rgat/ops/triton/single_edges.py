"""Find the source rows with one edge, whose value gradients need not be written.

``dvalue[u] = sum over the edges of source row u: a * m_edge * dout[target]``. On knowledge graphs nine tenths of the
source rows have one edge, so their gradient is ``dout[target]``, each head times a factor. The products that need it,
``projection_kernels.row_grads`` and ``weight_grad_kernels``, read ``dout`` and the factors instead, and only the sums
of the other rows are written. The products are of the same numbers, to the last bit.
"""

from __future__ import annotations

import weakref
from typing import NamedTuple

import torch
from torch import Tensor

from rgat.ops.cache import cached
from rgat.structure import Structure

_MIN_ROWS = 1 << 18  # smaller gradients stay in the L2 cache


class SingleEdges(NamedTuple):
    """Which source rows have one edge, and where the sums of the others are."""

    row: Tensor  # [U] int32; the target of the only edge, or -1 - k for the k-th row of several edges
    edge: Tensor  # [U] int32; the only edge e, or -1 - e where it is also alone in its (target, relation)
    several: Tensor  # [K] int32; the rows of several edges, or of none
    place: Tensor  # [U] int32; k of the k-th row of several edges


class ValueGrads(NamedTuple):
    """Gradients of values, ``[U, 1, C]``.

    Row ``u`` is row ``row[u]`` of ``grad``, each head times ``factor[u]``; or row ``-1 - row[u]`` of ``sums``.
    """

    grad: Tensor  # [N, 1, C]
    sums: Tensor  # [K, 1, C]
    row: Tensor  # [U] int32
    factor: Tensor  # [U, H]

    @property
    def shape(self) -> torch.Size:
        """The shape of the gradients."""
        return torch.Size((len(self.row), *self.grad.shape[1:]))


def single_edges(s: Structure) -> SingleEdges | None:
    """Return the table of a large graph; None before it is cached, or where most rows have several edges."""
    if len(s.sources.node) < _MIN_ROWS:
        return None
    others = (s.target, s.group, s.by_source)
    found = cached(s.source_ptr, ("single edges",), lambda: (tuple(map(weakref.ref, others)), find_single_edges(s)))
    if found is None or any(ref() is not tensor for ref, tensor in zip(found[0], others, strict=True)):
        return None
    return found[1] or None


def find_single_edges(s: Structure) -> tuple[()] | SingleEdges:
    """Return the table of a graph, or nothing where most rows have several edges."""
    is_single = s.source_ptr.diff() == 1
    if 2 * int(is_single.sum()) < len(is_single):
        return ()
    place = (~is_single).cumsum(0) - 1
    edge = s.by_source.index_select(0, s.source_ptr[:-1].clamp(max=len(s.by_source) - 1))
    row = torch.where(is_single, s.target.index_select(0, edge), -1 - place)
    is_alone = (s.group_ptr.diff() == 1).index_select(0, s.group.index_select(0, edge))
    several = (~is_single).nonzero().flatten()
    return SingleEdges(row.int(), torch.where(is_alone, -1 - edge, edge).int(), several.int(), place.int())
