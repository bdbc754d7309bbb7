"""Attention over the edges of each target, as operators.

``attend``: logits, softmax and weighted sum over the edges of each target. With ``a`` the attention, ``m`` the scaled
dropout masks, per edge and head, backward is::

    da        = m_edge * (dout[target] . (m_feature * value[source row])) + dattention
    dlogit    = a * (da - sum of a * da over the edge's softmax group)     (times LeakyReLU' where there is one)
    dvalue    = m_feature * sum over the row's edges: a * m_edge * dout[target]
    additive: dquery = sum over the group's edges: dlogit;       dkey = sum over the row's edges: dlogit
    multiplicative: dquery = sum ...: dlogit * key[source row];  dkey = sum ...: dlogit * query[group]

The values may also be rows of a table, the compact kernel of a featureless layer; queries and keys are then projections
of these rows.

``convolve``: ``attend`` to values that are projections of ``x``, as one operation from the layer's kernels to its
output, so that a backend may choose for each relation whether it multiplies the inputs or their weighted sums by the
kernel, and need not keep gradients of values.

No implementation forms a weight per edge, a tensor of edges times channels per head on a compiled backend, or one of
all nodes times all relations.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from rgat.ops.backend import Backend, Call, Operands, Saved, TableBackend, TablePlaces
from rgat.ops.dispatch import get_backend
from rgat.ops.projection import fold_kernels, fold_kernels_backward
from rgat.ops.registration import like_inputs, operator, wide, widen

_Tensors = tuple[Any, Any, Any, Any]  # the first four of `_AttendInputs`


class _AttendInputs(NamedTuple):
    """The arguments of `attend`."""

    values: Tensor
    queries: Tensor | None
    keys: Tensor | None
    edge_logits: Tensor | None
    places: list[Tensor]  # the fields of `TablePlaces`, or nothing
    call: Call


class _ConvolveInputs(NamedTuple):
    """The arguments of `convolve`."""

    x: Tensor
    kernels: Tensor
    attention_kernels: Tensor | None
    edge_logits: Tensor | None
    bias: Tensor | None
    call: Call


def _backend(tensor: Tensor, call: Call) -> Backend:
    return get_backend(tensor.device, call.attention.backend)


def _num_nodes(call: Call) -> int:
    return call.structure.target_ptr.shape[0] - 1


@operator("rgat::attention")
def _attend(inputs: _AttendInputs) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return outputs, attention and, of a table, the queries and keys that were made of its rows."""
    values, _, _, _, places, call = inputs
    backend = _backend(values, call)
    tensors: _Tensors = tuple(widen(inputs[:4], backend))
    if places:
        out, attention, made_queries, made_keys = _attend_table(backend, *tensors, TablePlaces(*places), call)
    else:
        out, attention = backend.attend(*tensors, call)
        made_queries, made_keys = attention.new_empty(0), attention.new_empty(0)
    return out.to(values.dtype), attention, made_queries, made_keys


@_attend.register_fake
def _(inputs: _AttendInputs) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    values, queries, _, _, places, call = inputs
    heads = values.shape[1]
    out = values.new_empty(_num_nodes(call), heads, values.shape[2])
    attention = values.new_empty(call.structure.target.shape[0], heads, dtype=wide(values.dtype))
    made_queries, made_keys = attention.new_empty(0), attention.new_empty(0)
    if places and queries is not None:
        dtype = values.dtype if _backend(values, call).TAKES_HALF else attention.dtype
        source, _, target, _, _ = TablePlaces(*places)
        made_queries, made_keys = (
            attention.new_empty(end.shape[0], heads, queries.shape[3], dtype=dtype) for end in (target, source)
        )
    return out, attention, made_queries, made_keys


@operator("rgat::attention_backward")
def _attend_backward(
    grad: Tensor,
    grad_attention: Tensor | None,
    attention: Tensor,
    made_queries: Tensor,
    made_keys: Tensor,
    inputs: _AttendInputs,
    needs: list[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    values, _, _, _, places, call = inputs
    backend = _backend(values, call)
    wide_grad, wide_grad_attention, *saved = widen((grad, grad_attention, attention, made_queries, made_keys), backend)
    tensors: _Tensors = tuple(widen(inputs[:4], backend))
    if places:
        output_grads = (wide_grad, wide_grad_attention)
        grads = _attend_table_backward(backend, *output_grads, tuple(saved), tensors, TablePlaces(*places), call)
    else:
        grads = backend.attend_backward(wide_grad, wide_grad_attention, saved[0], *tensors, call)
    return like_inputs(grads, inputs[:4], needs, grad)


_attend.register_backward(_attend_backward, differentiable=4, grads=2, saves_outputs=True)


def _attend_table(
    backend: Backend,
    table: Tensor,
    query_kernel: Tensor | None,
    key_kernel: Tensor | None,
    edge_logits: Tensor | None,
    places: TablePlaces,
    call: Call,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Attend to rows of a table; gather them first where the backend cannot read them where they are."""
    if backend.READS_TABLES:
        return cast(TableBackend, backend).attend_table(table, query_kernel, key_kernel, edge_logits, places, call)
    s, values = call.structure, table.index_select(0, places.source)
    if query_kernel is None or key_kernel is None:
        out, attention = backend.attend(values, None, None, edge_logits, call)
        return out, attention, attention.new_empty(0), attention.new_empty(0)
    queries = backend.project(table.index_select(0, places.target), query_kernel, s.targets, None)
    keys = backend.project(values, key_kernel, s.sources, None)
    return *backend.attend(values, queries, keys, edge_logits, call), queries, keys


def _attend_table_backward(
    backend: Backend,
    grad: Tensor,
    grad_attention: Tensor | None,
    saved: tuple[Tensor, Tensor, Tensor],
    inputs: tuple[Tensor, Tensor | None, Tensor | None, Tensor | None],
    places: TablePlaces,
    call: Call,
) -> tuple[Tensor | None, ...]:
    """Return the gradients of the table, both kernels and the edge logits."""
    if backend.READS_TABLES:
        return cast(TableBackend, backend).attend_table_backward(grad, grad_attention, saved, inputs, places, call)
    (attention, queries, keys), (table, query_kernel, key_kernel, edge_logits), s = saved, inputs, call.structure
    values = table.index_select(0, places.source)
    query_rows, key_rows = (None, None) if query_kernel is None else (queries, keys)
    tensors = (grad, grad_attention, attention, values, query_rows, key_rows, edge_logits)
    dvalues, dqueries, dkeys, dlogits = backend.attend_backward(*tensors, call)
    assert dvalues is not None
    if query_kernel is None or key_kernel is None or dqueries is None or dkeys is None:
        return backend.gather_back([dvalues], [places.source_back]), None, None, dlogits
    targets = table.index_select(0, places.target)
    dquery_kernel = backend.project_weight_grad(dqueries, targets, s.targets, None)
    dkey_kernel = backend.project_weight_grad(dkeys, values, s.sources, None)
    dvalues = dvalues + backend.project_input_grad(dkeys, key_kernel, s.sources, None, len(values))
    dtargets = backend.project_input_grad(dqueries, query_kernel, s.targets, None, len(targets))
    dtable = backend.gather_back([dvalues, dtargets], [places.source_back, places.target_back])
    return dtable, dquery_kernel, dkey_kernel, dlogits


def attend(
    values: Tensor,
    queries: Tensor | None,
    keys: Tensor | None,
    edge_logits: Tensor | None,
    call: Call,
    places: TablePlaces | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the heads' outputs ``[N, H, D]`` and the attention of the sorted edges ``[E, H]``.

    A backend may give the attention the sign of its score, which backward needs; its absolute value is the attention.

    Args:
        values: ``[U, H, D]``, one per source row; with ``places`` a table ``[T, H, D]`` of rows.
        queries: ``[V, H, A]``, one per target row; with ``places`` the kernels ``[R, H, D, A]`` that make queries of
            rows of the table. None: constant attention.
        keys: ``[U, H, A]``, or their kernels likewise.
        edge_logits: ``[E, H]`` of the sorted edges, if any.
        call: the graph, the settings and the dropout state.
        places: of the graph's rows in the table.

    Examples:
        >>> import torch
        >>> from rgat import RelationalGraph, ops
        >>> edges, types = torch.tensor([[0, 1, 2], [1, 2, 1]]), torch.tensor([0, 0, 1])
        >>> graph = RelationalGraph(edges, types, num_nodes=3, num_relations=2)
        >>> call = ops.Call(graph.structure, ops.Attention(across=[False], negative_slope=None))
        >>> values = torch.randn(len(graph.structure.sources.node), 1, 4)
        >>> out, attention = ops.attend(values, None, None, None, call)
        >>> attention.abs().flatten()  # constant attention within a relation
        tensor([1., 1., 1.])
    """
    out, attention, _, _ = _attend(_AttendInputs(values, queries, keys, edge_logits, list(places or ()), call))
    return out, attention


def _operands(
    backend: Backend, x: Tensor, weight: Tensor, query_weight: Tensor | None, edge_logits: Tensor | None
) -> Operands:
    return Operands(*widen((x if x.dim() == 3 else x.unsqueeze(1), weight, query_weight, edge_logits), backend))


@operator("rgat::convolve_graph", record=True)
def _convolve(inputs: _ConvolveInputs) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the outputs, the fields of `Saved`, and the folded kernels."""
    x, kernels, attention_kernels, edge_logits, bias, call = inputs
    backend = _backend(x, call)
    weight, query_weight = fold_kernels(backend, kernels, attention_kernels, x)
    operands = _operands(backend, x, weight, query_weight, edge_logits)
    (wide_bias,) = widen((bias,), backend)
    out, saved = backend.convolve(operands, wide_bias, call)
    if query_weight is None:  # then the folded kernels may be the kernels themselves, which an operator must not return
        weight, query_weight = x.new_empty(0), x.new_empty(0)
    return out.to(x.dtype), *saved, weight, query_weight


@_convolve.register_fake
def _(inputs: _ConvolveInputs) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    x, kernels, attention_kernels, _, _, call = inputs
    s, backend = call.structure, _backend(x, call)
    relations, heads, in_channels, channels = kernels.shape
    width = 0 if attention_kernels is None else attention_kernels.shape[3]
    dtype = x.dtype if backend.TAKES_HALF else wide(x.dtype)
    sources, targets = s.sources.node.shape[0], s.targets.node.shape[0]
    batch = x.shape[1] if x.dim() == 3 else 1
    share = heads // batch
    saved = Saved(
        attention=x.new_empty(s.target.shape[0], heads, dtype=wide(x.dtype)),
        queries=x.new_empty(targets if width else 0, heads, width, dtype=dtype),
        values=x.new_empty(sources, batch, share * channels, dtype=dtype),
        keys=x.new_empty(sources, batch, share * width, dtype=dtype),
        sums=x.new_empty(targets if any(call.aggregated) else 0, heads, in_channels, dtype=dtype),
    )
    folded = (x.new_empty(0), x.new_empty(0))
    if width:
        sizes = (relations, batch, in_channels)
        folded = (x.new_empty(*sizes, share * (channels + width)), x.new_empty(*sizes, share * width))
    return x.new_empty(_num_nodes(call), heads, channels), *saved, *folded


@operator("rgat::convolve_graph_backward", record=True)
def _convolve_backward(
    grad: Tensor,
    grad_attention: Tensor | None,
    saved: Saved,
    weight: Tensor,
    query_weight: Tensor,
    inputs: _ConvolveInputs,
    needs: list[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    x, kernels, attention_kernels, edge_logits, _, call = inputs
    backend = _backend(x, call)
    folded: tuple[Tensor, Tensor | None] = (weight, query_weight)
    if attention_kernels is None:
        folded = fold_kernels(backend, kernels, None, x)
    wide_grad, wide_grad_attention = widen((grad, grad_attention), backend)
    wide_saved = Saved(*widen(saved, backend))
    operands = _operands(backend, x, *folded, edge_logits)
    dbias = backend.sum_rows(wide_grad.flatten(1)) if needs[4] else None
    dx, dweight, dquery_weight, dlogits = backend.convolve_backward(
        wide_grad, wide_grad_attention, wide_saved, operands, call, needs[0]
    )
    assert dweight is not None
    dkernels, dattention = fold_kernels_backward(backend, dweight, dquery_weight, kernels, attention_kernels)
    grads = (None if dx is None else dx.view(x.shape), dkernels, dattention, dlogits, dbias)
    return like_inputs(grads, inputs[:5], needs, grad)


_convolve.register_backward(_convolve_backward, differentiable=5, grads=2, saves_outputs=True)


def convolve(
    x: Tensor,  # [N, F], or [N, P, F]: a batch, each entry with its own share of the heads
    kernels: Tensor,  # [R, H, F, D], of the values
    attention_kernels: Tensor | None,  # [R, H, 2 D, A], of queries and then keys, from values; None: constant attention
    edge_logits: Tensor | None,  # [E, H], sorted edges
    call: Call,
    bias: Tensor | None = None,  # [H * D], added to each node's outputs
) -> tuple[Tensor, Tensor]:
    """Attend to projections of ``x``; relations are not aggregated first in a batch.

    Examples:
        >>> import torch
        >>> from rgat import RelationalGraph, ops
        >>> edges, types = torch.tensor([[0, 1, 2], [1, 2, 1]]), torch.tensor([0, 0, 1])
        >>> graph = RelationalGraph(edges, types, num_nodes=3, num_relations=2)
        >>> call = ops.Call(graph.structure, ops.Attention(across=[True], negative_slope=None))
        >>> out, attention = ops.convolve(torch.randn(3, 8), torch.randn(2, 1, 8, 4), None, None, call)
        >>> out.shape
        torch.Size([3, 1, 4])
    """
    out, attention, *_ = _convolve(_ConvolveInputs(x, kernels, attention_kernels, edge_logits, bias, call))
    return out, attention


def dynamic_logits(
    queries: Tensor, keys: Tensor, score_kernels: Tensor, negative_slope: float, edge_logits: Tensor | None, call: Call
) -> Tensor:
    """Return ``a[r, k] . LeakyReLU(q_i + k_j)`` of the sorted edges, plus what edge features add, ``[E, H]``."""
    s = call.structure
    query = queries.index_select(0, s.targets.by_node).index_select(0, s.group)  # [E, H, A]
    hidden = torch.nn.functional.leaky_relu(query + keys.index_select(0, s.source_row), negative_slope)
    relation = s.sources.relation.index_select(0, s.source_row)
    logits = (hidden * score_kernels.index_select(0, relation)).sum(-1)
    return logits if edge_logits is None else logits + edge_logits
