"""The backend for CUDA devices, in Triton."""

from __future__ import annotations

from torch import Tensor

from rgat.ops.backend import Call, Operands, Saved
from rgat.ops.torch.backend import gather_back
from rgat.ops.triton import node_sum_kernels, projection_kernels, weight_grad_kernels
from rgat.ops.triton.attention_kernels import attend, attend_backward
from rgat.ops.triton.basis_kernels import collect, pair, spread
from rgat.ops.triton.folding_kernels import fold, fold_backward
from rgat.ops.triton.node_sum_kernels import column_sum as sum_rows
from rgat.structure import Rows

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
    """Project, then attend; the bias is added where outputs are written."""
    assert not any(call.aggregated), "only the Numba backend aggregates inputs"
    (x, weight, query_weight, edge_logits), s = operands, call.structure
    heads, rows = len(call.attention.across), s.sources
    nothing = x.new_empty(0, heads, x.shape[2])
    if query_weight is None:
        values = projection_kernels.project(x, weight, rows.node, rows.relation_ptr)[0]
        out, attention = attend(_per_head(values, heads), None, None, edge_logits, call, bias)
        no_keys = x.new_empty(values.shape[0], values.shape[1], 0)
        return out, Saved(attention, x.new_empty(0, heads, 0), values, no_keys, nothing)
    width = query_weight.shape[3]
    values, keys = projection_kernels.project(x, weight, rows.node, rows.relation_ptr, (weight.shape[3] - width, width))
    queries = _per_head(projection_kernels.project(x, query_weight, s.targets.node, s.targets.relation_ptr)[0], heads)
    out, attention = attend(_per_head(values, heads), queries, _per_head(keys, heads), edge_logits, call, bias)
    return out, Saved(attention, queries, values, keys, nothing)


def convolve_backward(
    grad: Tensor, grad_attention: Tensor | None, saved: Saved, operands: Operands, call: Call, with_x: bool
) -> tuple[Tensor | None, ...]:
    """Return the gradients of the operands; None for ``x`` unless ``with_x``."""
    (x, weight, query_weight, edge_logits), s = operands, call.structure
    heads, rows, others, num_nodes = len(call.attention.across), s.sources, s.targets, x.shape[0]
    queries, keys = (None, None) if query_weight is None else (saved.queries, _per_head(saved.keys, heads))
    inputs = (saved.attention, _per_head(saved.values, heads), queries, keys, edge_logits)
    dvalues, dqueries, dkeys, dlogits = attend_backward(grad, grad_attention, *inputs, call)
    grads = [part.view(like.shape) for part, like in ((dvalues, saved.values), (dkeys, saved.keys)) if part is not None]
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
