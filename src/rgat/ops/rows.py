"""Rows of a table read at one end of the edges or at both, for kernels of one-hot inputs, which are such tables.

A row is read at most once at each end, so its gradient is a sum of at most two terms, gathered, never scattered::

    values[u]  = table[place[u]]                            for each end
    dtable[t] = sum over the ends that read t: dvalues[back[t]]
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from rgat.ops.dispatch import implementation
from rgat.ops.operator import forbid_double_backward, operator


class Places(NamedTuple):
    """Where the rows of one end stand in a table."""

    place: Tensor  # [U] int64
    back: Tensor  # [T] int32; which of the rows reads each entry of the table, -1: none


@operator("rgat::look_up")
def _look_up(table: Tensor, places: list[Tensor]) -> tuple[Tensor, Tensor]:
    """The rows of the one or two ends; the second are empty if there is one."""
    first = table.index_select(0, places[0])
    return first, table.index_select(0, places[2]) if len(places) > 2 else table.new_empty(0, *table.shape[1:])


@_look_up.register_fake
def _(table: Tensor, places: list[Tensor]) -> tuple[Tensor, Tensor]:
    sizes = (places[0].shape[0], places[2].shape[0] if len(places) > 2 else 0)
    return table.new_empty(sizes[0], *table.shape[1:]), table.new_empty(sizes[1], *table.shape[1:])


@operator("rgat::look_up_backward")
def _look_up_grad(first: Tensor, second: Tensor, places: list[Tensor]) -> Tensor:
    grads = [first.contiguous(), second.contiguous()][: len(places) // 2]
    out: Tensor = implementation(first.device).gather_back(grads, places[1::2])
    return out


@_look_up_grad.register_fake
def _(first: Tensor, second: Tensor, places: list[Tensor]) -> Tensor:
    return first.new_empty(places[1].shape[0], *first.shape[1:])


def _context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[1])


def _backward(ctx: Any, first: Tensor, second: Tensor) -> tuple[Any, ...]:
    places = list(ctx.saved_tensors)
    return _look_up_grad(first, second, places), [None] * len(places)


_look_up.register_autograd(_backward, setup_context=_context)
forbid_double_backward(_look_up_grad)


def look_up(table: Tensor, *ends: Places) -> tuple[Tensor, ...]:
    """The rows of ``table`` ``[T, ...]`` that each end reads."""
    rows: tuple[Tensor, Tensor] = _look_up(table, [tensor for end in ends for tensor in end])
    return rows[: len(ends)]
