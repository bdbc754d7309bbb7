"""The operations of a relational layer on a GPU: the kernels of ``triton_kernels``, called as the operators ask."""

from __future__ import annotations

import torch
from torch import Tensor

from rgat.graph import Rows, Structure
from rgat.ops import triton_kernels as kernels
from rgat.ops.attention import Attention
from rgat.ops.vectorised import collect, fold, fold_backward, gather_back, pair, spread

__all__ = [
    "attend",
    "attend_backward",
    "collect",
    "convolve",
    "convolve_backward",
    "fold",
    "fold_backward",
    "gather_back",
    "pair",
    "project",
    "project_input_grad",
    "project_weight_grad",
    "spread",
]

TAKES_HALF = True  # sums are made in single precision


def _edges(s: Structure, how: Attention, backward: bool = False) -> kernels.Edges:
    """A structure as the kernels read it."""
    # Rows have ids only for the masks of feature dropout.
    row_id = s.sources.keys(s.target_ptr.shape[0] - 1) if how.feature_dropout else s.source_ptr
    fields = (s.target, s.group, s.source_row, s.target_ptr, s.group_ptr, s.targets.by_node, s.by_source, s.source_ptr)
    return kernels.Edges(*fields, row_id, s.target.index_select(0, s.by_source) if backward else None)


def project(x: Tensor, weight: Tensor, rows: Rows, node: Tensor | None) -> Tensor:
    """Multiply the rows ``x[node]`` (or ``x`` itself) by the kernels of their relations."""
    return kernels.project(x, weight, node, rows.relation_ptr)


def project_input_grad(grad: Tensor, weight: Tensor, rows: Rows, node: Tensor | None, num_nodes: int) -> Tensor:
    """The gradient of ``x``."""
    if node is None or node is rows.node:
        by_node, node_ptr = (None, None) if node is None else (rows.by_node, rows.node_ptr)
        return kernels.project_input_grad(grad, weight, node, rows.relation_ptr, num_nodes, by_node, node_ptr)
    per_row = kernels.project_input_grad(grad, weight, None, rows.relation_ptr, grad.shape[0], None, None)
    return per_row.new_zeros(num_nodes, *per_row.shape[1:]).index_add_(0, node, per_row)


def project_weight_grad(grad: Tensor, x: Tensor, rows: Rows, node: Tensor | None) -> Tensor:
    """The gradient of ``weight``."""
    return kernels.project_weight_grad(grad, x, node, rows.relation_ptr)


def attend(
    values: Tensor,
    queries: Tensor | None,
    keys: Tensor | None,
    edge_logits: Tensor | None,
    s: Structure,
    how: Attention,
    state: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Return the outputs ``[N, H, D]`` and the attention ``[E, H]`` of the sorted edges."""
    return kernels.attend(values, queries, keys, edge_logits, _edges(s, how), state, *how[:4])


def attend_backward(
    grad: Tensor,
    grad_attention: Tensor | None,
    attention: Tensor,
    values: Tensor,
    queries: Tensor | None,
    keys: Tensor | None,
    edge_logits: Tensor | None,
    s: Structure,
    how: Attention,
    state: Tensor | None,
) -> tuple[Tensor | None, ...]:
    """Return the gradients of values, queries, keys and edge logits; None for those that are not given."""
    inputs = (grad, grad_attention, attention, values, queries, keys, edge_logits)
    return kernels.attend_backward(*inputs, _edges(s, how, backward=True), state, *how[:4])


def _per_head(rows: Tensor, heads: int) -> Tensor:
    return rows.view(rows.shape[0], heads, rows.shape[1] * rows.shape[2] // heads)


def _parts(weight: Tensor, query_weight: Tensor | None) -> list[Tensor]:
    """The kernels of values and, unless attention is constant, of keys."""
    if query_weight is None:
        return [weight]
    keys = query_weight.shape[3]
    return [part.contiguous() for part in weight.split_with_sizes([weight.shape[3] - keys, keys], dim=3)]


def convolve(
    x: Tensor,
    weight: Tensor,
    query_weight: Tensor | None,
    edge_logits: Tensor | None,
    aggregated: list[bool],
    s: Structure,
    how: Attention,
    state: Tensor | None,
) -> tuple[Tensor, ...]:
    """Project, then attend; returns also queries, values and keys."""
    assert not any(aggregated), "the planner offers aggregation of inputs to the compiled CPU backend only"
    heads = len(how.across)
    rows = kernels.project_many(x, _parts(weight, query_weight), s.sources.node, s.sources.relation_ptr)
    values = rows[0]
    if query_weight is None:
        out, attention = attend(_per_head(values, heads), None, None, edge_logits, s, how, state)
        return out, attention, x.new_empty(0, heads, 0), values, x.new_empty(values.shape[0], values.shape[1], 0)
    queries = _per_head(kernels.project(x, query_weight, s.targets.node, s.targets.relation_ptr), heads)
    keys = _per_head(rows[1], heads)
    out, attention = attend(_per_head(values, heads), queries, keys, edge_logits, s, how, state)
    return out, attention, queries, values, rows[1]


def convolve_backward(
    grad: Tensor,
    grad_attention: Tensor | None,
    attention: Tensor,
    queries: Tensor,
    values: Tensor,
    keys: Tensor,
    x: Tensor,
    weight: Tensor,
    query_weight: Tensor | None,
    edge_logits: Tensor | None,
    aggregated: list[bool],
    s: Structure,
    how: Attention,
    state: Tensor | None,
) -> tuple[Tensor | None, ...]:
    """Return the gradients of inputs, kernels, those of queries, and edge logits."""
    heads, rows, num_nodes = len(how.across), s.sources, x.shape[0]
    query_rows, key_rows = (None, None) if query_weight is None else (queries, _per_head(keys, heads))
    dvalues, dqueries, dkeys, dlogits = attend_backward(
        grad, grad_attention, attention, _per_head(values, heads), query_rows, key_rows, edge_logits, s, how, state
    )
    grads = [part.view(like.shape) for part, like in ((dvalues, values), (dkeys, keys)) if part is not None]
    node, ptr = rows.node, rows.relation_ptr
    dx = kernels.project_many_input_grad(
        grads, _parts(weight, query_weight), node, ptr, num_nodes, rows.by_node, rows.node_ptr
    )
    dweights = kernels.project_many_weight_grad(grads, x, node, ptr)
    dweight = dweights[0] if len(dweights) == 1 else torch.cat(dweights, dim=3)
    if query_weight is None or dqueries is None:
        return dx, dweight, None, dlogits
    rows = s.targets
    drows = dqueries.view(dqueries.shape[0], query_weight.shape[1], query_weight.shape[3])
    dx = kernels.project_many_input_grad(
        [drows], [query_weight], rows.node, rows.relation_ptr, num_nodes, rows.by_node, rows.node_ptr, into=dx
    )
    return dx, dweight, kernels.project_weight_grad(drows, x, rows.node, rows.relation_ptr), dlogits
