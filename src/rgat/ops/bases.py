"""Basis decomposition (equation 12) as operations on rows: bases of nodes spread over rows, rows collected by node.

With coefficients ``c`` and a table ``t`` of the bases' contributions of each node, shared by the heads (``G = 1``) or
one per head (``G = H``)::

    spread:   row[u, h]      = sum over b: c[r, h, b] * t[node of u, h or 0, b]
    collect:  t[j, h or 0, b] = sum over the rows u of j: c[r, h, b] * row[u, h]

Each is the other's transpose, so each is the other's gradient; that of the coefficients is ``pair`` for both::

    dc[r, h, b] = sum over the rows u of r: t[node of u, h or 0, b] . row[u, h]
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from rgat.graph import Rows
from rgat.ops.dispatch import implementation
from rgat.ops.registration import as_given, forbid_double_backward, operator, widen


def _node(rows: Rows, index: Tensor | None) -> Tensor:
    return rows.node if index is None else index


@operator("rgat::spread")
def _spread(table: Tensor, coefficients: Tensor, rows: list[Tensor], index: Tensor | None) -> Tensor:
    r, module = Rows(*rows), implementation(table.device)
    with as_given(table):
        out: Tensor = module.spread(*widen((table, coefficients)), r, _node(r, index))
    return out.to(table.dtype)


@_spread.register_fake
def _(table: Tensor, coefficients: Tensor, rows: list[Tensor], index: Tensor | None) -> Tensor:
    return table.new_empty(rows[0].shape[0], coefficients.shape[1], table.shape[3])


@operator("rgat::collect")
def _collect(
    values: Tensor, coefficients: Tensor, rows: list[Tensor], index: Tensor | None, num_nodes: int, groups: int
) -> Tensor:
    r, module = Rows(*rows), implementation(values.device)
    with as_given(values):
        wide = widen((values, coefficients))
        out: Tensor = module.collect(*wide, r, _node(r, index), num_nodes, groups)
    return out.to(values.dtype)


@_collect.register_fake
def _(
    values: Tensor, coefficients: Tensor, rows: list[Tensor], index: Tensor | None, num_nodes: int, groups: int
) -> Tensor:
    return values.new_empty(num_nodes, groups, coefficients.shape[2], values.shape[2])


@operator("rgat::pair")
def _pair(table: Tensor, values: Tensor, rows: list[Tensor], index: Tensor | None) -> Tensor:
    r, module = Rows(*rows), implementation(table.device)
    with as_given(table):
        out: Tensor = module.pair(*widen((table, values)), r, _node(r, index))
    return out.to(values.dtype)


@_pair.register_fake
def _(table: Tensor, values: Tensor, rows: list[Tensor], index: Tensor | None) -> Tensor:
    return values.new_empty(rows[2].shape[0] - 1, values.shape[1], table.shape[2])


# Gradients are taken by copies without gradients of their own, so that a second derivative is refused.
@operator("rgat::spread_grads")
def _spread_grads(
    grad: Tensor, table: Tensor, coefficients: Tensor, rows: list[Tensor], index: Tensor | None
) -> tuple[Tensor, Tensor]:
    dtable = _collect(grad, coefficients, rows, index, table.shape[0], table.shape[1])
    return dtable, _pair(table, grad, rows, index)


@_spread_grads.register_fake
def _(
    grad: Tensor, table: Tensor, coefficients: Tensor, rows: list[Tensor], index: Tensor | None
) -> tuple[Tensor, Tensor]:
    return table.new_empty(table.shape), coefficients.new_empty(coefficients.shape)


@operator("rgat::collect_grads")
def _collect_grads(
    grad: Tensor, values: Tensor, coefficients: Tensor, rows: list[Tensor], index: Tensor | None
) -> tuple[Tensor, Tensor]:
    return _spread(grad, coefficients, rows, index), _pair(grad, values, rows, index)


@_collect_grads.register_fake
def _(
    grad: Tensor, values: Tensor, coefficients: Tensor, rows: list[Tensor], index: Tensor | None
) -> tuple[Tensor, Tensor]:
    return values.new_empty(values.shape), coefficients.new_empty(coefficients.shape)


def _context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    first, coefficients, rows, index = inputs[:4]
    ctx.save_for_backward(first, coefficients, index, *rows)


def _spread_backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    table, coefficients, index, *rows = ctx.saved_tensors
    return *_spread_grads(grad, table, coefficients, rows, index), [None] * len(rows), None


def _collect_backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    values, coefficients, index, *rows = ctx.saved_tensors
    return *_collect_grads(grad, values, coefficients, rows, index), [None] * len(rows), None, None, None


_spread.register_autograd(_spread_backward, setup_context=_context)
_collect.register_autograd(_collect_backward, setup_context=_context)
forbid_double_backward(_spread_grads, _collect_grads, _pair)


def spread(table: Tensor, coefficients: Tensor, rows: Rows, index: Tensor | None = None) -> Tensor:
    """From ``[N, G, B, D]`` and ``[R, H, B]`` to ``[U, H, D]``; row ``u`` reads ``rows.node[u]`` or ``index[u]``."""
    out: Tensor = _spread(table, coefficients, list(rows), index)
    return out


def collect(values: Tensor, coefficients: Tensor, rows: Rows, num_nodes: int) -> Tensor:
    """From ``[U, H, D]`` and ``[R, H, B]`` to ``[N, H, B, D]``."""
    out: Tensor = _collect(values, coefficients, list(rows), None, num_nodes, values.shape[1])
    return out
