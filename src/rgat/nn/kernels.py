r"""Where a layer's kernels come from: full, decomposed into bases (equation 12), or only the rows that edges use.

The parameters of a stack of layers have one more axis in front, that of the members ``S``. The kernels that come out
have the heads of all members side by side, ``S * H`` of them.
"""

from __future__ import annotations

import math
import weakref
from typing import Any

import torch
from torch import Tensor, nn

from rgat import ops
from rgat.graph import RelationalGraph
from rgat.ops import cache
from rgat.structure import Rows, outside


def glorot_uniform_(parameter: Tensor, fan: int) -> None:
    """Draw from Glorot's uniform distribution for the given fan-in plus fan-out."""
    bound = math.sqrt(6 / max(fan, 1))
    nn.init.uniform_(parameter, -bound, bound)


def join_members(parameter: Tensor, dims: int) -> Tensor:
    """Lay the heads of all members side by side: ``[S, R, H, ...] -> [R, S * H, ...]``.

    A parameter of a single layer, with ``dims`` axes, is returned as it is.
    """
    return parameter if parameter.dim() == dims else parameter.transpose(0, 1).flatten(1, 2)


class Kernel(nn.Module):
    """Kernels ``[R, H, F, D]``, one per relation and head."""

    def __init__(self, num_relations: int, heads: int, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.num_relations = num_relations
        self.heads = heads
        self.in_channels = in_channels
        self.out_channels = out_channels

    def held_rows(self, with_targets: bool) -> tuple[Tensor, ops.TablePlaces] | None:
        """Return None: only a compact kernel holds rows of its own."""
        return None


class FullKernel(Kernel):
    """A free matrix per relation and head."""

    def __init__(self, num_relations: int, heads: int, in_channels: int, out_channels: int) -> None:
        super().__init__(num_relations, heads, in_channels, out_channels)
        self.weight = nn.Parameter(torch.empty(num_relations, heads, in_channels, out_channels))

    def reset(self, fan: int) -> None:
        glorot_uniform_(self.weight, fan)

    def compose(self, rows: Tensor | None = None) -> Tensor:
        """Return the kernels, ``[R, H, F, D]``."""
        return join_members(self.weight, 4)

    def look_up(self, index: Tensor | None, *ends: Rows) -> tuple[Tensor, ...]:
        """Return the values ``[U, H, D]`` of one-hot inputs, for the rows of each end of the edges."""
        table = self.compose().transpose(1, 2).flatten(0, 1)  # [R * F, H, D]
        positions = (rows.node if index is None else index.index_select(0, rows.node) for rows in ends)
        return tuple(
            table.index_select(0, rows.relation.long() * self.in_channels + position)
            for rows, position in zip(ends, positions, strict=True)
        )


class BasisKernel(Kernel):
    """``W[r, k] = sum_b c[r, k, b] V[b]``, with bases ``V`` shared by relations and heads."""

    def __init__(self, num_relations: int, heads: int, in_channels: int, out_channels: int, num_bases: int) -> None:
        super().__init__(num_relations, heads, in_channels, out_channels)
        self.bases = nn.Parameter(torch.empty(num_bases, in_channels, out_channels))
        self.coefficients = nn.Parameter(torch.empty(num_relations, heads, num_bases))

    def reset(self, fan: int) -> None:
        glorot_uniform_(self.bases, fan)
        # Variance 1 / B, so that the composed kernels have Glorot's variance.
        bound = math.sqrt(3 / self.bases.shape[0])
        nn.init.uniform_(self.coefficients, -bound, bound)

    def compose(self, rows: Tensor | None = None) -> Tensor:
        """Return the kernels, ``[R, H, F, D]``."""
        if self.bases.dim() == 3:
            return torch.einsum("rkb,bfd->rkfd", self.coefficients, self.bases)
        return torch.einsum("srkb,sbfd->rskfd", self.coefficients, self.bases).flatten(1, 2)

    def look_up(self, index: Tensor | None, *ends: Rows) -> tuple[Tensor, ...]:
        """Return the values ``[U, H, D]`` of one-hot inputs, for the rows of each end of the edges."""
        if self.bases.dim() == 3:
            table = self.bases.transpose(0, 1).unsqueeze(1)  # [F, 1, B, D], shared by the heads
        else:
            table = self.bases.permute(2, 0, 1, 3).repeat_interleave(self.heads, 1)  # [F, S * H, B, D]
        coefficients = join_members(self.coefficients, 3)
        positions = (None if index is None else index.index_select(0, rows.node) for rows in ends)
        return tuple(
            ops.spread(table, coefficients, rows, position) for rows, position in zip(ends, positions, strict=True)
        )


class RowKernel(Kernel):
    """Only some rows of the kernels of a featureless layer: those an edge uses. All others are zero and stay so."""

    def __init__(self, num_relations: int, heads: int, in_channels: int, out_channels: int, num_rows: int) -> None:
        super().__init__(num_relations, heads, in_channels, out_channels)
        self.weight = nn.Parameter(torch.empty(num_rows, heads, out_channels))

    def reset(self, fan: int) -> None:
        glorot_uniform_(self.weight, fan)

    def compose(self, rows: Tensor | None) -> Tensor:
        """Return the kernels ``[R, H, F, D]`` with the held ``rows``, ``r * F + node``, in their places."""
        assert rows is not None
        table = join_members(self.weight, 3)
        dense = table.new_zeros(self.num_relations * self.in_channels, *table.shape[1:]).index_copy(0, rows, table)
        return dense.view(self.num_relations, self.in_channels, *table.shape[1:]).transpose(1, 2)


class RowsOfGraph:
    """The rows of a compact kernel as the edges of one graph read them."""

    def __init__(
        self, kernel: RowKernel, held: Tensor, graph: RelationalGraph, ends: tuple[str, ...], or_zero: bool = False
    ) -> None:
        """Look up where the graph's rows stand among those ``held``, which are sorted ``r * N + node``.

        A graph with other rows at one of the ``ends`` is refused, also where a call does not read them; or with
        ``or_zero`` these other rows are zero.
        """
        self.kernel, self.held, self.graph, self.table = kernel, held, graph, join_members(kernel.weight, 3)
        self.or_zero = or_zero
        self._places = {end: self._find(getattr(graph.structure, end)) for end in ends}

    def _find(self, rows: Rows) -> ops.Places:
        return find_rows(self.held, rows, self.graph, self.kernel.in_channels, self.or_zero)

    def compose(self) -> Tensor:
        """Return the kernels, ``[R, H, F, D]``."""
        return self.kernel.compose(self.held)

    def look_up(self, index: Tensor | None, *ends: Rows) -> tuple[Tensor, ...]:
        """Return the values ``[U, H, D]`` of the rows of each end of the edges."""
        places, table = [self._find(rows) for rows in ends], self.table
        if any(len(end.back) > len(table) for end in places):  # the rows that are not held read a row of zeros
            table = nn.functional.pad(table, (0, 0, 0, 0, 0, 1))
            places = [
                end._replace(back=nn.functional.pad(end.back, (0, len(table) - len(end.back)), value=-1))
                for end in places
            ]
        return ops.look_up(table, *places)

    def held_rows(self, with_targets: bool) -> tuple[Tensor, ops.TablePlaces]:
        """Return the rows held, ``[T, H, D]``, and where the graph's rows stand among them."""
        s, sources = self.graph.structure, self._places["sources"]
        targets = self._places["targets"] if with_targets else sources
        if torch.compiler.is_compiling():
            of_edges = sources.place.index_select(0, s.source_row)
        else:
            kept = cache.kept_with(sources.place)
            if "of edges" not in kept:
                with outside():
                    kept["of edges"] = sources.place.index_select(0, s.source_row)
            of_edges = kept["of edges"]
        return self.table, ops.TablePlaces(*sources, *targets, of_edges)


def find_rows(held: Tensor, rows: Rows, graph: RelationalGraph, num_inputs: int, or_zero: bool = False) -> ops.Places:
    """Return where rows of the graph stand among those that a compact layer holds.

    A missing row is an error; or with ``or_zero`` its place is one past those held, except in compiled code.
    ``num_inputs`` is the number of nodes of the graph, or of the whole graph that it is a sample of; with ``or_zero``
    a graph may have more nodes.
    """

    def keys() -> Tensor:
        nodes = rows.node.long() if graph.node_ids is None else graph.node_ids.index_select(0, rows.node)
        keys = rows.relation.long() * num_inputs + nodes
        if or_zero:
            keys = torch.where(nodes < num_inputs, keys, _ABSENT)
        return keys if graph.padding is None else torch.where(graph.padding[rows.node], _ABSENT, keys)

    padded = graph.padding is not None
    if torch.compiler.is_compiling():
        return ops.Places(*_find_rows(held, keys(), padded))
    known: dict[int, tuple[weakref.ref[Tensor], int, ops.Places]]  # by layer
    known = cache.kept_with(rows.node).setdefault("places", {})
    version, entry = -1 if held.is_inference() else held._version, known.get(id(held))
    if entry is None or entry[0]() is not held or entry[1] != version:
        with outside():
            places = ops.Places(*_find_rows(held, keys(), padded, or_zero))
        for number in [number for number, (other, _, _) in known.items() if other() is None]:
            known.pop(number, None)
        entry = known[id(held)] = (weakref.ref(held), version, places)
    return entry[2]


_ABSENT = -1  # the key of a row of no node that the layer knows


@torch.library.custom_op("rgat::find_rows", mutates_args=())
def _find_rows(held: Tensor, keys: Tensor, padded: bool, or_zero: bool = False) -> tuple[Tensor, Tensor]:
    """Return the places of ``keys`` among the sorted ``held``, and back; an operator, to check in compiled code too.

    With ``padded``, absent keys are those of padding: these read the first place, and no place leads back to them.
    """
    places = torch.searchsorted(held, keys)
    number, size = torch.arange(len(keys), dtype=torch.int32, device=keys.device), len(held)
    if padded:
        back = number.new_full((size + 1,), -1)
        back.index_copy_(0, torch.where(keys == _ABSENT, size, places.clamp(max=size)), number)
        return places.int(), back[:-1].clone()
    found: Any = slice(None)
    if may_read_values():
        is_missing = torch.ones_like(keys, dtype=torch.bool)
        if len(held):
            is_missing = held[places.clamp(max=len(held) - 1)] != keys
        missing = int(is_missing.sum())
        if missing and not or_zero:
            raise ValueError(
                "the graph must use only rows (relation, node) of the graph this layer was built with, "
                f"got {missing} others; build the layer with this graph, or without `graph=`"
            )
        if missing:
            places[is_missing] = len(held)
            found, size = ~is_missing, len(held) + 1
    back = number.new_full((size,), -1).index_copy_(0, places[found], number[found])
    if may_read_values() and not torch.equal(back[places[found]], number[found]):
        raise ValueError(
            "a layer built with `graph=` must get each node of its graph once, got one several times; build the layer "
            "without `graph=`"
        )
    return places.int(), back


@_find_rows.register_fake
def _(held: Tensor, keys: Tensor, padded: bool, or_zero: bool = False) -> tuple[Tensor, Tensor]:
    return keys.new_empty(keys.shape, dtype=torch.int32), held.new_empty(held.shape, dtype=torch.int32)


def may_read_values() -> bool:
    """Whether Python may branch on the contents of a tensor: not while tracing or capturing."""
    return not torch.compiler.is_compiling() and not (
        torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
    )
