"""The backend for CUDA devices, in Triton."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rgat.ops.backend import Call, Operands, Saved
from rgat.ops.torch.backend import gather_back
from rgat.ops.triton import node_sum_kernels, projection_kernels, weight_grad_kernels
from rgat.ops.triton.attention_kernels import attend, attend_backward, row_ids
from rgat.ops.triton.basis_kernels import collect, pair, spread
from rgat.ops.triton.dropout_kernels import Dropout
from rgat.ops.triton.folding_kernels import (
    fold,
    fold_backward,
    fold_queries,
    fold_queries_backward,
    join_scores,
    join_scores_backward,
)
from rgat.ops.triton.node_sum_kernels import column_sum as sum_rows
from rgat.ops.triton.paired_rows import Pairs, paired_rows
from rgat.ops.triton.projection_kernels import PairedQueries, reads_value_grads
from rgat.ops.triton.single_edges import ValueGrads, single_edges
from rgat.structure import Rows, Structure

__all__ = ["attend", "attend_backward", "convolve", "convolve_backward"]
__all__ += ["collect", "fold", "fold_backward", "gather_back", "pair", "spread", "sum_rows", "why_not"]
__all__ += ["fold_queries", "fold_queries_backward", "join_scores", "join_scores_backward"]
__all__ += ["project", "project_input_grad", "project_weight_grad"]

TAKES_HALF = True
READS_TABLES = False
VALUES_AS_KEYS = True


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
    """Project, then attend; the bias is added where outputs are written."""
    assert not any(call.aggregated), "only the Numba backend aggregates inputs"
    (x, weight, query_weight, edge_logits), s = operands, call.structure
    heads, rows = len(call.attention.across), s.sources
    nothing, drop = x.new_empty(0, heads, x.shape[2]), Dropout.of(call.state, call.attention.feature_dropout)
    masks: dict[str, Any] = {"row_id": row_ids(call), "drop": drop, "heads": heads}
    if query_weight is None:
        values = projection_kernels.project(x, weight, rows.node, rows.relation_ptr, **masks)[0]
        out, attention = attend(_per_head(values, heads), None, None, edge_logits, call, bias, dropped=True)
        no_keys = x.new_empty(values.shape[0], values.shape[1], 0)
        return out, Saved(attention, x.new_empty(0, heads, 0), values, no_keys, nothing)
    width, pairs = query_weight.shape[3], _pairs(operands, s)
    paired = None
    if _has_keys(operands):
        if pairs is not None:
            paired = PairedQueries(x.new_empty(len(s.targets.node), 1, width), query_weight, pairs)
        widths = (weight.shape[3] - width, width)
        values, keys = projection_kernels.project(x, weight, rows.node, rows.relation_ptr, widths, paired, **masks)
        saved_keys = keys
    else:
        keys = values = projection_kernels.project(x, weight, rows.node, rows.relation_ptr)[0]
        saved_keys = keys.new_empty(*keys.shape[:2], 0)
    if paired is None:
        queries = projection_kernels.project(x, query_weight, s.targets.node, s.targets.relation_ptr)[0]
    else:
        queries = paired.rows
    queries, per_head = _per_head(queries, heads), _per_head(values, heads)
    out, attention = attend(per_head, queries, _per_head(keys, heads), edge_logits, call, bias, dropped=True)
    return out, Saved(attention, queries, values, saved_keys, nothing)


def _has_keys(operands: Operands) -> bool:
    """Tell whether there are keys; else values are read in their place, with queries as wide."""
    weight, query_weight = operands.weight, operands.query_weight
    return query_weight is None or weight.shape[3] > query_weight.shape[3]


def _pairs(operands: Operands, s: Structure) -> Pairs | None:
    """Return the pairs of relations where one launch can work on paired rows; else None."""
    x, weight, query_weight, _ = operands
    if query_weight is None or x.numel() == 0 or not projection_kernels.can_pair(weight, query_weight):
        return None
    return paired_rows(s)


def convolve_backward(
    grad: Tensor, grad_attention: Tensor | None, saved: Saved, operands: Operands, call: Call, with_x: bool
) -> tuple[Tensor | None, ...]:
    """Return the gradients of the operands; None for ``x`` unless ``with_x``."""
    (x, weight, query_weight, edge_logits), s = operands, call.structure
    heads, rows, others, num_nodes = len(call.attention.across), s.sources, s.targets, x.shape[0]
    values, has_keys = _per_head(saved.values, heads), _has_keys(operands)
    queries = None if query_weight is None else saved.queries
    keys = None if query_weight is None else _per_head(saved.keys, heads) if has_keys else values
    inputs = (saved.attention, values, queries, keys, edge_logits)
    single = None
    if has_keys and not call.attention.feature_dropout and reads_value_grads(weight, saved.values.shape[2], heads):
        single = single_edges(s)
    dvalues, dqueries, dkeys, dlogits = attend_backward(grad, grad_attention, *inputs, call, True, not has_keys, single)
    grads: list[Tensor | ValueGrads] = [dvalues if isinstance(dvalues, ValueGrads) else dvalues.view_as(saved.values)]
    if dkeys is not None:
        grads.append(dkeys.view_as(saved.keys))
    dweight, dquery_weight, paired = None, None, None
    if query_weight is not None and dqueries is not None:
        drows = dqueries.view(dqueries.shape[0], query_weight.shape[1], query_weight.shape[3])
        if (pairs := _pairs(operands, s)) is not None:
            paired = PairedQueries(drows, query_weight, pairs)
        if paired is not None and has_keys:
            dquery_weight = torch.empty_like(query_weight)
            to_fill = paired._replace(weight=dquery_weight)
            dweight = weight_grad_kernels.weight_grad(grads, x, rows.node, rows.relation_ptr, to_fill)
        else:
            dquery_weight = weight_grad_kernels.weight_grad([drows], x, others.node, others.relation_ptr)
    if dweight is None:
        dweight = weight_grad_kernels.weight_grad(grads, x, rows.node, rows.relation_ptr)
    if not with_x:
        return None, dweight, dquery_weight, dlogits
    per_row = projection_kernels.row_grads(grads, weight, rows.relation_ptr, paired)
    if query_weight is None or paired is not None:
        return node_sum_kernels.sum_by_node(per_row, rows, num_nodes, dtype=x.dtype), dweight, dquery_weight, dlogits
    narrow = (drows, query_weight, others) if node_sum_kernels.is_narrow(query_weight) else None
    dx = node_sum_kernels.sum_by_node(per_row, rows, num_nodes, also=narrow, dtype=x.dtype)
    if narrow is None:
        per_row = projection_kernels.row_grads([drows], query_weight, others.relation_ptr)
        dx = node_sum_kernels.sum_by_node(per_row, others, num_nodes, into=dx)
    return dx, dweight, dquery_weight, dlogits
