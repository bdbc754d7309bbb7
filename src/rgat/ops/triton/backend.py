"""The backend for CUDA devices, in Triton."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from rgat.ops.backend import Call, Operands, Saved
from rgat.ops.cache import cached
from rgat.ops.torch.backend import gather_back
from rgat.ops.triton import node_sum_kernels, projection_kernels, weight_grad_kernels
from rgat.ops.triton.attention_kernels import (
    attend,
    attend_backward,
    query_grads,
    row_ids,
    score_grads,
    without_feature_dropout,
)
from rgat.ops.triton.basis_kernels import collect, pair, spread
from rgat.ops.triton.dropout_kernels import Dropout
from rgat.ops.triton.folding_kernels import fold, fold_backward
from rgat.ops.triton.launch import LARGE
from rgat.ops.triton.node_sum_kernels import column_sum as sum_rows
from rgat.ops.triton.source_grad_kernels import fits, source_grads, target_grads
from rgat.structure import Rows, Structure, pointers

__all__ = ["attend", "attend_backward", "convolve", "convolve_backward"]
__all__ += ["collect", "fold", "fold_backward", "gather_back", "pair", "spread", "sum_rows", "why_not"]
__all__ += ["project", "project_input_grad", "project_weight_grad"]

TAKES_HALF = True
READS_TABLES = False


def why_not() -> str | None:
    """Say why this backend cannot be used on this machine; None if it can."""
    return None


def project(x: Tensor, weight: Tensor, rows: Rows, node: Tensor | None) -> Tensor:
    """Multiply the rows ``x[node]`` (or ``x`` itself) by the kernels of their relations."""
    return projection_kernels.project(x, weight, node, rows.relation_ptr)[0]


def project_input_grad(grad: Tensor, weight: Tensor, rows: Rows, node: Tensor | None, num_nodes: int) -> Tensor:
    """Return the gradient of ``x``."""
    per_row = projection_kernels.row_grads([grad], weight, rows.relation_ptr)
    if node is None:
        return per_row
    if node is rows.node:
        return node_sum_kernels.sum_by_node(per_row, rows, num_nodes, dtype=grad.dtype)
    return per_row.new_zeros(num_nodes, *per_row.shape[1:]).index_add_(0, node, per_row)


def project_weight_grad(grad: Tensor, x: Tensor, rows: Rows, node: Tensor | None) -> Tensor:
    """Return the gradient of ``weight``."""
    return weight_grad_kernels.weight_grad([grad], x, node, rows.relation_ptr)


def _per_head(rows: Tensor, heads: int) -> Tensor:
    return rows.view(rows.shape[0], heads, rows.shape[1] * rows.shape[2] // heads)


def convolve(operands: Operands, bias: Tensor | None, call: Call) -> tuple[Tensor, Saved]:
    """Project and drop features, then attend; the bias is added where outputs are written."""
    assert not any(call.aggregated), "only the Numba backend aggregates inputs"
    (x, weight, query_weight, edge_logits), s = operands, call.structure
    heads, rows = len(call.attention.across), s.sources
    nothing, dropped = x.new_empty(0, heads, x.shape[2]), without_feature_dropout(call)
    dropout = Dropout.of(call.state, call.attention.feature_dropout)
    drop = None if dropout.state is None else projection_kernels.FeatureDropout(heads, row_ids(call), dropout)
    if query_weight is None:
        values = projection_kernels.project(x, weight, rows.node, rows.relation_ptr, drop=drop)[0]
        out, attention = attend(_per_head(values, heads), None, None, edge_logits, dropped, bias)
        no_keys = x.new_empty(values.shape[0], values.shape[1], 0)
        return out, Saved(attention, x.new_empty(0, heads, 0), values, no_keys, nothing)
    width = query_weight.shape[3]
    widths = (weight.shape[3] - width, width)
    values, keys = projection_kernels.project(x, weight, rows.node, rows.relation_ptr, widths, drop)
    queries = _per_head(projection_kernels.project(x, query_weight, s.targets.node, s.targets.relation_ptr)[0], heads)
    out, attention = attend(_per_head(values, heads), queries, _per_head(keys, heads), edge_logits, dropped, bias)
    return out, Saved(attention, queries, values, keys, nothing)


_Inputs = tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]  # attention, then those of `attend`


def _with_gradient(drows: Tensor, s: Structure) -> tuple[Tensor, Rows]:
    """Return the gradients of the queries that may have one, and their rows: those of groups of several edges.

    Most groups of a knowledge graph have one edge, whose attention is one whatever the query. Small graphs are bound by
    launches, and samples are used once: they keep all rows. The rows are listed in the first call, because another list
    rounds sums differently.
    """
    if s.target.shape[0] <= LARGE or s.edge_id is not None:
        return drows, s.targets
    listed = cached(s.group_ptr, ("rows of several edges",), lambda: _of_several_edges(s), after=1)
    if listed is None:
        return drows, s.targets
    places, rows, nodes = listed
    if nodes is not s.targets.node:  # an input of another order
        rows = rows._replace(node=s.targets.node.index_select(0, places))
    return drows.index_select(0, places), rows


def _of_several_edges(s: Structure) -> tuple[Tensor, Rows, Tensor]:
    """Return which of the target rows have several edges, these rows, and the nodes of all."""
    groups = (s.group_ptr.diff() > 1).nonzero().squeeze(1)
    places, by_node = s.targets.by_node.index_select(0, groups).sort()  # by relation, then node
    relation = s.targets.relation.index_select(0, places)
    num_relations, num_nodes = s.targets.relation_ptr.shape[0] - 1, s.targets.node_ptr.shape[0] - 1
    rows = Rows(
        node=s.targets.node.index_select(0, places),
        relation=relation,
        relation_ptr=pointers(relation.bincount(minlength=num_relations)),
        by_node=by_node.argsort().int(),
        node_ptr=pointers(s.target.index_select(0, s.group_ptr.index_select(0, groups)).bincount(minlength=num_nodes)),
    )
    return places, rows, s.targets.node


def convolve_backward(
    grad: Tensor, grad_attention: Tensor | None, saved: Saved, operands: Operands, call: Call, with_x: bool
) -> tuple[Tensor | None, ...]:
    """Return the gradients of the operands; None for ``x`` unless ``with_x``."""
    (x, weight, query_weight, edge_logits), rows = operands, call.structure.sources
    heads = len(call.attention.across)
    queries, keys = (None, None) if query_weight is None else (saved.queries, _per_head(saved.keys, heads))
    inputs = (saved.attention, _per_head(saved.values, heads), queries, keys, edge_logits)
    if fits(weight, heads, 0 if keys is None else keys.shape[2], call.structure.target.shape[0]):
        return _fused_backward(grad, grad_attention, inputs, operands, call, with_x)
    dvalues, dqueries, dkeys, dlogits = attend_backward(grad, grad_attention, *inputs, call, were_dropped=True)
    parts = ((dvalues, saved.values), (dkeys, saved.keys))
    grads = [part.view(like.shape) for part, like in parts if part is not None]
    dweight = weight_grad_kernels.weight_grad(grads, x, rows.node, rows.relation_ptr)
    per_row = projection_kernels.row_grads(grads, weight, rows.relation_ptr) if with_x else None
    dx, dquery_weight = _join_sides(per_row, dqueries, operands, call)
    return dx, dweight, dquery_weight, dlogits


def _fused_backward(
    grad: Tensor, grad_attention: Tensor | None, inputs: _Inputs, operands: Operands, call: Call, with_x: bool
) -> tuple[Tensor | None, ...]:
    """Do the same without storing the gradients of values, keys and wide queries."""
    (attention, values, queries, keys, edge_logits), (x, _, query_weight, _), s = inputs, operands, call.structure
    if query_weight is None or queries is None or keys is None:
        per_row, dweight = source_grads(grad, attention, None, None, operands, call, with_x)
        return _join_sides(per_row, None, operands, call)[0], dweight, None, None
    dlogits = score_grads(grad, grad_attention, attention, values, without_feature_dropout(call))
    multiplied = queries if call.attention.negative_slope is None else None
    per_row, dweight = source_grads(grad, attention, dlogits, multiplied, operands, call, with_x)
    is_wide = any(call.attention.across) and multiplied is not None and not node_sum_kernels.is_narrow(query_weight)
    if is_wide and fits(query_weight, queries.shape[1], 0, s.target.shape[0]):
        per_target, dquery_weight = target_grads(dlogits, keys, x, query_weight, call, with_x)
        dx = _join_sides(per_row, None, operands, call)[0]
        if per_target is not None:
            dx = node_sum_kernels.sum_by_node(per_target, s.targets, x.shape[0], into=dx)
    else:
        dx, dquery_weight = _join_sides(per_row, query_grads(dlogits, queries, keys, call), operands, call)
    return dx, dweight, dquery_weight, None if edge_logits is None else dlogits.to(edge_logits.dtype)


def _join_sides(
    per_row: Tensor | None, dqueries: Tensor | None, operands: Operands, call: Call
) -> tuple[Tensor | None, Any]:
    """Return the gradients of ``x``, if those of the inputs of source rows are given, and of the kernels of queries."""
    (x, _, query_weight, _), rows, others = operands, call.structure.sources, call.structure.targets
    num_nodes = x.shape[0]
    if query_weight is None or dqueries is None:
        return None if per_row is None else node_sum_kernels.sum_by_node(per_row, rows, num_nodes, dtype=x.dtype), None
    drows = dqueries.view(dqueries.shape[0], query_weight.shape[1], query_weight.shape[3])
    if not any(call.attention.across):
        drows, others = _with_gradient(drows, call.structure)
    dquery_weight = weight_grad_kernels.weight_grad([drows], x, others.node, others.relation_ptr)
    if per_row is None:
        return None, dquery_weight
    narrow = (drows, query_weight, others) if node_sum_kernels.is_narrow(query_weight) else None
    dx = node_sum_kernels.sum_by_node(per_row, rows, num_nodes, also=narrow, dtype=x.dtype)
    if narrow is None:
        per_row = projection_kernels.row_grads([drows], query_weight, others.relation_ptr)
        dx = node_sum_kernels.sum_by_node(per_row, others, num_nodes, into=dx)
    return dx, dquery_weight
