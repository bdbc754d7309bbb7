"""The operations of a relational layer on a GPU: Triton kernels, called as the operators ask."""

from __future__ import annotations

from torch import Tensor

from rgat.graph import Rows, Structure
from rgat.ops.attention import Attention
from rgat.ops.torch.backend import gather_back
from rgat.ops.triton import attention_kernels, node_sum_kernels, projection_kernels, weight_grad_kernels
from rgat.ops.triton.basis_kernels import collect, pair, spread
from rgat.ops.triton.cache import cached
from rgat.ops.triton.folding_kernels import fold, fold_backward
from rgat.ops.triton.node_sum_kernels import column_sum as sum_rows

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
    "sum_rows",
]

TAKES_HALF = True  # sums are made in single precision
TAKES_BIAS = True  # it is added where the outputs are written


def _edges(s: Structure, how: Attention) -> attention_kernels.Edges:
    """A structure as the kernels read it."""
    row_id = s.source_ptr  # rows have ids only for the masks of feature dropout
    if how.feature_dropout:
        num_nodes = s.target_ptr.shape[0] - 1
        made = cached(s.sources.node, ("keys", num_nodes), lambda: s.sources.keys(num_nodes))
        row_id = s.sources.keys(num_nodes) if made is None else made
    fields = (s.target, s.group, s.source_row, s.target_ptr, s.group_ptr, s.targets.by_node, s.by_source, s.source_ptr)
    return attention_kernels.Edges(*fields, row_id)


def project(x: Tensor, weight: Tensor, rows: Rows, node: Tensor | None) -> Tensor:
    """Multiply the rows ``x[node]`` (or ``x`` itself) by the kernels of their relations."""
    return projection_kernels.project(x, weight, node, rows.relation_ptr)[0]


def project_input_grad(grad: Tensor, weight: Tensor, rows: Rows, node: Tensor | None, num_nodes: int) -> Tensor:
    """The gradient of ``x``."""
    per_row = projection_kernels.row_grads([grad], weight, rows.relation_ptr)
    if node is None:
        return per_row
    if node is rows.node:
        return node_sum_kernels.sum_by_node(per_row, rows, num_nodes, dtype=grad.dtype)
    return per_row.new_zeros(num_nodes, *per_row.shape[1:]).index_add_(0, node, per_row)


def project_weight_grad(grad: Tensor, x: Tensor, rows: Rows, node: Tensor | None) -> Tensor:
    """The gradient of ``weight``."""
    return weight_grad_kernels.weight_grad([grad], x, node, rows.relation_ptr)


def attend(
    values: Tensor,
    queries: Tensor | None,
    keys: Tensor | None,
    edge_logits: Tensor | None,
    s: Structure,
    how: Attention,
    state: Tensor | None,
    bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the outputs ``[N, H, D]`` and the attention ``[E, H]`` of the sorted edges."""
    return attention_kernels.attend(values, queries, keys, edge_logits, _edges(s, how), state, *how[:4], bias)


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
    return attention_kernels.attend_backward(*inputs, _edges(s, how), state, *how[:4])


def _per_head(rows: Tensor, heads: int) -> Tensor:
    return rows.view(rows.shape[0], heads, rows.shape[1] * rows.shape[2] // heads)


def convolve(
    x: Tensor,
    weight: Tensor,
    query_weight: Tensor | None,
    edge_logits: Tensor | None,
    aggregated: list[bool],
    s: Structure,
    how: Attention,
    state: Tensor | None,
    bias: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """Project, then attend; returns also queries, values and keys."""
    assert not any(aggregated), "the planner offers aggregation of inputs to the compiled CPU backend only"
    heads, rows = len(how.across), s.sources
    if query_weight is None:
        values = projection_kernels.project(x, weight, rows.node, rows.relation_ptr)[0]
        out, attention = attend(_per_head(values, heads), None, None, edge_logits, s, how, state, bias)
        return out, attention, x.new_empty(0, heads, 0), values, x.new_empty(values.shape[0], values.shape[1], 0)
    width = query_weight.shape[3]
    widths = (weight.shape[3] - width, width)
    values, keys = projection_kernels.project(x, weight, rows.node, rows.relation_ptr, widths)
    queries = _per_head(projection_kernels.project(x, query_weight, s.targets.node, s.targets.relation_ptr)[0], heads)
    inputs = (_per_head(values, heads), queries, _per_head(keys, heads), edge_logits)
    out, attention = attend(*inputs, s, how, state, bias)
    return out, attention, queries, values, keys


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
    with_x: bool,
) -> tuple[Tensor | None, ...]:
    """Return the gradients of inputs (None if they need none), kernels, those of queries, and edge logits."""
    heads, rows, others, num_nodes = len(how.across), s.sources, s.targets, x.shape[0]
    query_rows, key_rows = (None, None) if query_weight is None else (queries, _per_head(keys, heads))
    dvalues, dqueries, dkeys, dlogits = attend_backward(
        grad, grad_attention, attention, _per_head(values, heads), query_rows, key_rows, edge_logits, s, how, state
    )
    grads = [part.view(like.shape) for part, like in ((dvalues, values), (dkeys, keys)) if part is not None]
    dweight = weight_grad_kernels.weight_grad(grads, x, rows.node, rows.relation_ptr)
    per_row = projection_kernels.row_grads(grads, weight, rows.relation_ptr) if with_x else None
    if query_weight is None or dqueries is None:
        dx = None if per_row is None else node_sum_kernels.sum_by_node(per_row, rows, num_nodes, dtype=x.dtype)
        return dx, dweight, None, dlogits
    drows = dqueries.view(dqueries.shape[0], query_weight.shape[1], query_weight.shape[3])
    dquery_weight = weight_grad_kernels.weight_grad([drows], x, others.node, others.relation_ptr)
    if per_row is None:
        return None, dweight, dquery_weight, dlogits
    narrow = (drows, query_weight, others) if node_sum_kernels.is_narrow(query_weight) else None
    dx = node_sum_kernels.sum_by_node(per_row, rows, num_nodes, also=narrow, dtype=x.dtype)
    if narrow is None:
        per_row = projection_kernels.row_grads([drows], query_weight, others.relation_ptr)
        dx = node_sum_kernels.sum_by_node(per_row, others, num_nodes, into=dx)
    return dx, dweight, dquery_weight, dlogits
