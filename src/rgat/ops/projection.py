"""Projections of rows: operators that turn inputs into values, queries and keys.

``project``: rows of one relation share a kernel, ``out[u] = x[node[u]] @ weight[relation(u)]``. Backward::

    dx[j]      = sum over rows u of node j: dout[u] @ weight[relation(u)].T
    dweight[r] = x[rows of r].T @ dout[rows of r]

``look_up``: the values of one-hot inputs are rows of a table, ``values[u] = table[place[u]]``. A row is read at most
once at each end of the edges, so its gradient is a sum of at most two terms, gathered and never scattered::

    dtable[t] = sum over the ends that read t: dvalues[back[t]]

Folding (equations 3 and 4) makes queries and keys straight from inputs: ``q = (h W) Q = h (W Q)``. With ``W``
``[R, H, F, D]`` and ``[Q; K]`` stacked, ``[R, H, 2 D, A]``, each relation has one matrix for its source rows, the
values of all heads and then their keys, and one for its target rows, their queries::

    weight[r] = [W[r, 1] ... W[r, H]  W[r, 1] K[r, 1] ... W[r, H] K[r, H]]        F x H (D + A)
    query[r]  = [W[r, 1] Q[r, 1] ... W[r, H] Q[r, H]]                             F x H A

Each backend folds in one pass: a chain of products, transpositions and copies would cost as much as the edges.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rgat.ops.backend import Backend, Places
from rgat.ops.dispatch import get_backend
from rgat.ops.registration import like_inputs, operator, widen
from rgat.ops.torch.backend import fold_heads, unfold_heads
from rgat.structure import Rows, Structure


def _node(rows: Rows, index: Tensor | None, one_to_one: bool) -> Tensor | None:
    return None if one_to_one else rows.node if index is None else index


@operator("rgat::project")
def _project(x: Tensor, weight: Tensor, rows: Rows, index: Tensor | None, one_to_one: bool) -> Tensor:
    backend = get_backend(x.device)
    wide_x, wide_weight = widen((x, weight), backend)
    return backend.project(wide_x, wide_weight, rows, _node(rows, index, one_to_one)).to(x.dtype)


@_project.register_fake
def _(x: Tensor, weight: Tensor, rows: Rows, index: Tensor | None, one_to_one: bool) -> Tensor:
    return x.new_empty(rows.node.shape[0], weight.shape[1], weight.shape[3])


@operator("rgat::project_backward")
def _project_backward(
    grad: Tensor, x: Tensor, weight: Tensor, rows: Rows, index: Tensor | None, one_to_one: bool, needs: list[bool]
) -> tuple[Tensor, Tensor]:
    backend, node = get_backend(grad.device), _node(rows, index, one_to_one)
    wide_grad, wide_x, wide_weight = widen((grad, x, weight), backend)
    dx = backend.project_input_grad(wide_grad, wide_weight, rows, node, x.shape[0]) if needs[0] else None
    dweight = backend.project_weight_grad(wide_grad, wide_x, rows, node) if needs[1] else None
    return like_inputs((dx, dweight), (x, weight), needs, grad)


_project.register_backward(_project_backward, differentiable=2)


def project(x: Tensor, weight: Tensor, rows: Rows, index: Tensor | None = None, one_to_one: bool = False) -> Tensor:
    """Multiply rows, sorted by relation, by the kernel of their relation.

    ``x`` is ``[N, P, F]``, and row ``u`` reads its entry ``rows.node[u]``, or ``index[u]`` where an index is given, or
    ``u`` itself (``one_to_one``); ``weight`` is ``[R, P, F, M]``; the result is ``[U, P, M]``. The axis ``P`` is a
    batch: each entry has kernels of its own.

    Examples:
        >>> import torch
        >>> from rgat import RelationalGraph, ops
        >>> edges, types = torch.tensor([[0, 1, 2], [1, 2, 1]]), torch.tensor([0, 0, 1])
        >>> graph = RelationalGraph(edges, types, num_nodes=3, num_relations=2)
        >>> x, weight = torch.randn(3, 1, 8), torch.randn(2, 1, 8, 4)
        >>> rows = graph.structure.sources
        >>> values = ops.project(x, weight, rows)
        >>> torch.allclose(values[0], x[rows.node[0]] @ weight[rows.relation[0], 0], atol=1e-5)
        True
    """
    out: Tensor = _project(x, weight, rows, index, one_to_one)
    return out


def project_edges(edge_attr: Tensor | None, kernels: Tensor | None, s: Structure) -> Tensor | None:
    """Return ``e . u[r, k]`` of the sorted edges, ``[E, H]``, with kernels ``[R, H, edge_dim]``; None without any."""
    if edge_attr is None or kernels is None:
        return None
    # In the order of their source rows, edges are sorted by relation.
    edge = s.order.index_select(0, s.by_source)
    relation = s.sources.relation.index_select(0, s.source_row).index_select(0, s.by_source)
    relation_ptr = s.source_ptr.index_select(0, s.sources.relation_ptr)
    rows = Rows(relation, relation, relation_ptr, relation, relation_ptr)  # with an index only relations are read
    weight = kernels.transpose(1, 2).unsqueeze(1)  # [R, 1, edge_dim, H]
    by_relation = project(edge_attr.unsqueeze(1), weight, rows, index=edge).squeeze(1)
    return torch.zeros_like(by_relation).index_copy(0, s.by_source.long(), by_relation)


def _ends(places: list[Tensor]) -> list[Places]:
    return [Places(*places[at : at + 2]) for at in range(0, len(places), 2)]


@operator("rgat::look_up")
def _look_up(table: Tensor, places: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Return the rows of one or two ends; the second are empty if there is one."""
    first, *second = (table.index_select(0, end.place) for end in _ends(places))
    return first, second[0] if second else table.new_empty(0, *table.shape[1:])


@_look_up.register_fake
def _(table: Tensor, places: list[Tensor]) -> tuple[Tensor, Tensor]:
    first, second = [*(end.place.shape[0] for end in _ends(places)), 0][:2]
    return table.new_empty(first, *table.shape[1:]), table.new_empty(second, *table.shape[1:])


@operator("rgat::look_up_grad")
def _look_up_grad(
    first: Tensor, second: Tensor | None, table: Tensor, places: list[Tensor], needs: list[bool]
) -> Tensor:
    backend, ends, grads = get_backend(first.device), _ends(places), [first]
    if len(ends) == 2:
        grads.append(first.new_zeros(len(ends[1].place), *table.shape[1:]) if second is None else second)
    return backend.gather_back(widen(tuple(grads), backend), [end.back for end in ends]).to(table.dtype)


_look_up.register_backward(_look_up_grad, differentiable=1, grads=2)


def look_up(table: Tensor, *ends: Places) -> tuple[Tensor, ...]:
    """Return the rows of ``table`` ``[T, ...]`` that each end reads.

    Examples:
        >>> import torch
        >>> from rgat import ops
        >>> places = ops.Places(place=torch.tensor([1]).int(), back=torch.tensor([-1, 0]).int())
        >>> ops.look_up(torch.tensor([[10.0], [11.0]]), places)
        (tensor([[11.]]),)
    """
    rows: tuple[Tensor, Tensor] = _look_up(table, [tensor for end in ends for tensor in end])
    return rows[: len(ends)]


def _swap_halves(stacked: Tensor, size: int) -> Tensor:
    """Transpose both halves of the third axis, each ``size`` long; without a copy where they are single columns."""
    relations, heads, _, columns = stacked.shape
    halves = stacked.reshape(relations, heads, 2, size, columns).transpose(3, 4)
    return halves.reshape(relations, heads, 2 * columns, size)


def _split_batch(kernels: Tensor, batch: int) -> Tensor:
    """``[R, P * H, F, D] -> [R * P, H, F, D]``."""
    return kernels if batch == 1 else kernels.reshape(-1, kernels.shape[1] // batch, *kernels.shape[2:])


def _join_batch(matrices: Tensor, batch: int) -> Tensor:
    """``[R * P, 1, F, M] -> [R, P, F, M]``."""
    return matrices.contiguous().view(-1, batch, *matrices.shape[2:])


def fold_values(kernels: Tensor, x: Tensor) -> Tensor:
    """Return the matrices ``[R, P, F, H / P * D]`` of kernels ``[R, H, F, D]``, in the dtype of the inputs ``x``."""
    batch = x.shape[1] if x.dim() == 3 else 1
    return _join_batch(fold_heads(_split_batch(kernels, batch)).to(x.dtype), batch)


def fold_kernels(
    backend: Backend, kernels: Tensor, attention: Tensor | None, x: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Return the matrices ``[R, P, F, M]`` of source and target rows for inputs ``x``, ``[N, F]`` or ``[N, P, F]``.

    Without attention there are only those of values. The heads of each entry of a batch follow one another.
    """
    if attention is None:
        return fold_values(kernels, x), None
    dtype, batch = x.dtype, x.shape[1] if x.dim() == 3 else 1
    kernels = _split_batch(kernels, batch)
    attention = _swap_halves(_split_batch(attention, batch), kernels.shape[3])
    weight, query = backend.fold(*widen((kernels, attention)))
    return _join_batch(weight.to(dtype), batch), _join_batch(query.to(dtype), batch)


def fold_kernels_backward(
    backend: Backend, dweight: Tensor, dquery: Tensor | None, kernels: Tensor, attention: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Return the gradients of kernels and attention kernels from those of the folded matrices."""
    batch = dweight.shape[1]
    dweight, split = dweight.reshape(-1, 1, *dweight.shape[2:]), _split_batch(kernels, batch)
    if attention is None or dquery is None:
        return unfold_heads(dweight, split.shape[1]).reshape(kernels.shape), None
    dquery = dquery.reshape(-1, 1, *dquery.shape[2:])
    tensors = widen((dweight, dquery, split, _swap_halves(_split_batch(attention, batch), split.shape[3])))
    dkernels, dattention = backend.fold_backward(*tensors)
    return dkernels.reshape(kernels.shape), _swap_halves(dattention, attention.shape[3]).reshape(attention.shape)
