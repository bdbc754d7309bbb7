"""Rows of a table read at one end of the edges or at both, for kernels of one-hot inputs, which are such tables.

A row is read at most once at each end, so its gradient is a sum of at most two terms, gathered, never scattered::

    values[u]  = table[place[u]]                            for each end
    dtable[t] = sum over the ends that read t: dvalues[back[t]]

``attend_rows`` is ``attend`` to such values, with queries and keys that are products of them, as one operation: on the
CPU no row is copied, unless features are dropped.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from rgat.graph import Structure
from rgat.ops.attention import Attention
from rgat.ops.dispatch import active_backend, implementation
from rgat.ops.registration import forbid_double_backward, operator


class Places(NamedTuple):
    """Where the rows of one end stand in a table."""

    place: Tensor  # [U] int32
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


@operator("rgat::attend_rows")
def _attend_rows(
    table: Tensor,
    query_kernel: Tensor | None,
    key_kernel: Tensor | None,
    edge_logits: Tensor | None,
    places: list[Tensor],
    structure: list[Tensor],
    state: Tensor | None,
    across: list[bool],
    negative_slope: float | None,
    feature_dropout: float,
    edge_dropout: float,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return also the queries and keys, which backward needs."""
    how = Attention(across, negative_slope, feature_dropout, edge_dropout, backend)
    module = implementation(table.device, backend)
    tensors = [None if t is None else t.contiguous() for t in (table, query_kernel, key_kernel, edge_logits)]
    found: tuple[Tensor, Tensor, Tensor, Tensor] = module.attend_rows(
        *tensors, places, Structure.from_leaves(structure), how, state
    )
    return found


@_attend_rows.register_fake
def _(
    table: Tensor,
    query_kernel: Tensor | None,
    key_kernel: Tensor | None,
    edge_logits: Tensor | None,
    places: list[Tensor],
    structure: list[Tensor],
    *_: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    s, heads, channels = Structure.from_leaves(structure), table.shape[1], table.shape[2]
    out = table.new_empty(s.target_ptr.shape[0] - 1, heads, channels)
    attention = table.new_empty(s.target.shape[0], heads)
    if query_kernel is None:
        return out, attention, table.new_empty(0, 0, 0), table.new_empty(0, 0, 0)
    width = query_kernel.shape[3]
    queries, keys = (table.new_empty(places[end].shape[0], heads, width) for end in (2, 0))
    return out, attention, queries, keys


@operator("rgat::attend_rows_backward")
def _attend_rows_grads(
    grad: Tensor,
    grad_attention: Tensor | None,
    attention: Tensor,
    queries: Tensor,
    keys: Tensor,
    table: Tensor,
    query_kernel: Tensor | None,
    key_kernel: Tensor | None,
    edge_logits: Tensor | None,
    places: list[Tensor],
    structure: list[Tensor],
    state: Tensor | None,
    across: list[bool],
    negative_slope: float | None,
    feature_dropout: float,
    edge_dropout: float,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    how = Attention(across, negative_slope, feature_dropout, edge_dropout, backend)
    module = implementation(table.device, backend)
    inputs = (table, query_kernel, key_kernel, edge_logits)
    tensors = [None if t is None else t.contiguous() for t in inputs]
    given = (grad, None if grad_attention is None else grad_attention.contiguous(), attention, queries, keys)
    grads = module.attend_rows_backward(*given, *tensors, places, Structure.from_leaves(structure), how, state)
    return tuple(table.new_empty(0) if t is None else g for g, t in zip(grads, inputs, strict=True))  # type: ignore[return-value]


@_attend_rows_grads.register_fake
def _(
    grad: Tensor,
    grad_attention: Tensor | None,
    attention: Tensor,
    queries: Tensor,
    keys: Tensor,
    *inputs: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return tuple(grad.new_empty(0) if t is None else t.new_empty(t.shape) for t in inputs[:4])  # type: ignore[return-value]


def _attend_rows_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, places, structure, state = inputs[:7]
    ctx.settings, ctx.num_places = inputs[7:], len(places)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors, *output[1:], state, *places, *structure)


def _attend_rows_backward(ctx: Any, grad: Tensor | None, grad_attention: Tensor | None, *_: None) -> tuple[Any, ...]:
    saved = ctx.saved_tensors  # once: a checkpoint gives them out once
    *tensors, attention, queries, keys, state = saved[:8]
    places, structure = list(saved[8:][: ctx.num_places]), list(saved[8 + ctx.num_places :])
    if grad is None:
        grad = tensors[0].new_zeros(Structure.from_leaves(structure).target_ptr.shape[0] - 1, *tensors[0].shape[1:])
    grads = _attend_rows_grads(
        grad.contiguous(), grad_attention, attention, queries, keys, *tensors, places, structure, state, *ctx.settings
    )
    found = [None if t is None else g for g, t in zip(grads, tensors, strict=True)]
    return (*found, [None] * len(places), [None] * len(structure), *[None] * 6)


_attend_rows.register_autograd(_attend_rows_backward, setup_context=_attend_rows_context)
forbid_double_backward(_attend_rows_grads)


def can_attend_rows(table: Tensor, how: Attention) -> bool:
    """Whether ``attend_rows`` is there for such a call; where not, ``look_up`` and ``attend`` do the same."""
    if torch.compiler.is_compiling() or torch.is_autocast_enabled(table.device.type):
        return False
    return table.dtype in (torch.float32, torch.float64) and active_backend(table.device, how.backend) == "numba"


def attend_rows(
    table: Tensor,
    kernels: tuple[Tensor, Tensor] | None,
    edge_logits: Tensor | None,
    sources: Places,
    targets: Places,
    edge_place: Tensor,
    s: Structure,
    how: Attention,
    state: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Return outputs ``[N, H, D]`` and attention ``[E, H]`` of values that are rows of ``table`` ``[T, H, D]``.

    Args:
        table: rows of values.
        kernels: from values to queries and to keys, ``[R, H, D, A]`` each; None: constant attention.
        edge_logits: ``[E, H]``, if any.
        sources: where the source rows stand in the table.
        targets: where the target rows do.
        edge_place: of the source row of each edge, ``[E]`` int32.
        s: of the graph.
        how: the kind of attention.
        state: of dropout.
    """
    places = [*sources, *targets, edge_place]
    query_kernel, key_kernel = kernels or (None, None)
    out, attention, _, _ = _attend_rows(table, query_kernel, key_kernel, edge_logits, places, s.leaves(), state, *how)
    return out, attention
