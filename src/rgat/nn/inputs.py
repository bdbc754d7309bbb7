"""The inputs of the relational layers, and checks of them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rgat.checks import INT32_LIMIT, check_ids
from rgat.graph import RelationalGraph
from rgat.nn.kernels import may_read_values
from rgat.ops import cache


class FeatureRows(NamedTuple):
    """The features of a batch as rows of a table, which a layer reads where they are instead of from a copy.

    A layer gathers them first if it must: if the table needs a gradient, is on another device or of another dtype.

    Examples:
        >>> import torch
        >>> from rgat.nn import FeatureRows
        >>> FeatureRows(torch.randn(1000, 8), rows=torch.tensor([17, 900])).gathered().shape
        torch.Size([2, 8])
    """

    table: Tensor  # [N, F], of all nodes
    rows: Tensor  # [n] int64, the row of each node of the batch

    @property
    def shape(self) -> torch.Size:
        return torch.Size([len(self.rows), *self.table.shape[1:]])

    def can_stay(self, graph: RelationalGraph, dtype: torch.dtype) -> bool:
        """Tell whether a layer that computes in a dtype can read the table in place."""
        fits = self.table.dim() == 2 and self.table.dtype == dtype and len(self.table) < INT32_LIMIT
        is_here = self.table.device == graph.device and len(self.rows) == graph.num_nodes
        return fits and is_here and not self.table.requires_grad and not torch.compiler.is_compiling()

    def gathered(self) -> Tensor:
        """Return the features of the batch, ``[n, F]``."""
        return self.table.index_select(0, self.rows)


def dense_rows(option: str, x: Tensor | FeatureRows | None, count: int, otherwise: str) -> Tensor:
    """Return the features of the first nodes of a batch; an option of a model needs them, or else ``otherwise``."""
    given = FeatureRows(x.table, x.rows[:count]).gathered() if isinstance(x, FeatureRows) else x
    if given is None or given.layout != torch.strided or not given.is_floating_point():
        raise ValueError(f"`{option}` without dense features needs {otherwise}")
    return given[:count]


def check_nodes(what: str, name: str, number: int, graph: RelationalGraph) -> None:
    """Raise unless the graph, or the whole graph that it is a sample of, has so many nodes."""
    if graph.node_ids is not None:
        if may_read_values():
            check_ids("node_ids", graph.node_ids, number, name)
    elif graph.num_nodes != number:
        raise ValueError(f"{what} must be the number of nodes, {graph.num_nodes}, got {number}")


def check_num_nodes(x: Tensor, graph: RelationalGraph) -> None:
    """Raise unless ``x`` has a row for each node."""
    if x.shape[0] != graph.num_nodes:
        raise ValueError(f"`x` must have one row per node of the graph, {graph.num_nodes}, got {x.shape[0]}")


def check_features(name: str, features: Tensor, graph: RelationalGraph) -> None:
    """Raise unless ``features`` are numbers."""
    if not features.is_floating_point():
        raise TypeError(f"`{name}` must be floating point, got {features.dtype}; convert it with `.float()`")
    if not graph.validate or not may_read_values():
        return
    # To look at values waits for a GPU: there each input is checked once, computed ones never.
    checked_once = features.is_cuda and not features.is_inference()
    if checked_once and (features.grad_fn is not None or "has no NaN" in cache.derived(features)):
        return
    # A sum shows at once that there is no NaN; only if it does not, each number is looked at.
    if features.sum().isnan() and features.isnan().any():
        raise ValueError(
            f"`{name}` must not contain NaN; clean the features first, or build the graph with `validate=False`"
        )
    if checked_once:
        cache.derived(features)["has no NaN"] = True


def one_hot_index(x: Tensor, in_channels: int) -> Tensor:
    """Return the column of the one in each row of a sparse one-hot matrix."""
    if x.dim() != 2 or x.shape[1] != in_channels:
        raise ValueError(f"`x` must have shape [num_nodes, {in_channels}], got {list(x.shape)}")
    x = x.to_sparse(layout=torch.sparse_coo).coalesce()
    row: Tensor
    column: Tensor
    row, column = x.indices()[:, x.values() != 0]
    expected = torch.arange(x.shape[0], device=x.device)
    if not torch.equal(row, expected) or bool(((x.values() != 1) & (x.values() != 0)).any()):
        raise ValueError("a sparse `x` must be one-hot, a single 1 in each row; pass other features as `x.to_dense()`")
    return column
