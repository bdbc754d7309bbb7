"""Basis decomposition (equation 12) as an operator on rows.

With coefficients ``c`` and a table ``t`` of what each basis contributes to each node, shared by the heads (``G = 1``)
or one per head (``G = H``)::

    spread:   row[u, h]       = sum over b: c[r, h, b] * t[node of u, h or 0, b]

Backward, with ``collect`` and ``pair`` of the backends::

    dt[j, h or 0, b] = sum over the rows u of j: c[r, h, b] * drow[u, h]
    dc[r, h, b]      = sum over the rows u of r: t[node of u, h or 0, b] . drow[u, h]
"""

from __future__ import annotations

from torch import Tensor

from rgat.ops.dispatch import get_backend
from rgat.ops.registration import like_inputs, operator, widen
from rgat.structure import Rows


@operator("rgat::spread")
def _spread(table: Tensor, coefficients: Tensor, rows: Rows, index: Tensor | None) -> Tensor:
    node = rows.node if index is None else index
    wide_table, wide_coefficients = widen((table, coefficients))
    return get_backend(table.device).spread(wide_table, wide_coefficients, rows, node).to(table.dtype)


@_spread.register_fake
def _(table: Tensor, coefficients: Tensor, rows: Rows, index: Tensor | None) -> Tensor:
    return table.new_empty(rows.node.shape[0], coefficients.shape[1], table.shape[3])


@operator("rgat::spread_backward")
def _spread_backward(
    grad: Tensor, table: Tensor, coefficients: Tensor, rows: Rows, index: Tensor | None, needs: list[bool]
) -> tuple[Tensor, Tensor]:
    backend, node = get_backend(table.device), rows.node if index is None else index
    wide_grad, wide_table, wide_coefficients = widen((grad, table, coefficients))
    dtable = backend.collect(wide_grad, wide_coefficients, rows, node, table.shape[0], table.shape[1])
    dcoefficients = backend.pair(wide_table, wide_grad, rows, node)
    return like_inputs((dtable, dcoefficients), (table, coefficients), needs, grad)


_spread.register_backward(_spread_backward, differentiable=2)


def spread(table: Tensor, coefficients: Tensor, rows: Rows, index: Tensor | None = None) -> Tensor:
    """Combine bases ``[N, G, B, D]`` by coefficients ``[R, H, B]`` to values ``[U, H, D]``.

    Row ``u`` reads the bases of ``rows.node[u]``, or of ``index[u]`` where an index is given.

    Examples:
        >>> import torch
        >>> from rgat import RelationalGraph, ops
        >>> edges, types = torch.tensor([[0, 1, 2], [1, 2, 1]]), torch.tensor([0, 0, 1])
        >>> graph = RelationalGraph(edges, types, num_nodes=3, num_relations=2)
        >>> bases, coefficients = torch.randn(3, 1, 5, 4), torch.randn(2, 6, 5)
        >>> ops.spread(bases, coefficients, graph.structure.sources).shape
        torch.Size([3, 6, 4])
    """
    out: Tensor = _spread(table, coefficients, rows, index)
    return out
