"""The backend in vectorised PyTorch, for any device: the fallback of the compiled ones.

The formulas are in `rgat.ops.attention` and `rgat.ops.projection`. All sums run over contiguous segments, so they are
deterministic on every device.
Unlike the compiled backends it forms the messages ``[E, H, D]``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rgat.ops.backend import Attention, Call, Operands, Saved
from rgat.ops.dropout import EDGES, FEATURES, scaled_mask
from rgat.structure import Rows, Structure

TAKES_HALF = False
READS_TABLES = False


def why_not() -> str | None:
    """Say why this backend cannot be used on this machine: it always can."""
    return None


def fold_heads(per_head: Tensor) -> Tensor:
    """Lay the heads of each relation side by side: ``[R, H, F, D] -> [R, 1, F, H * D]``."""
    return per_head.transpose(1, 2).flatten(2).unsqueeze(1)


def unfold_heads(side_by_side: Tensor, heads: int) -> Tensor:
    """Invert `fold_heads`."""
    relations, _, inputs, columns = side_by_side.shape
    return side_by_side.reshape(relations, inputs, heads, columns // heads).transpose(1, 2)


def _relation_slices(ptr: Tensor) -> list[tuple[int, slice]]:
    ends = ptr.tolist()
    return [(r, slice(ends[r], ends[r + 1])) for r in range(len(ends) - 1) if ends[r] < ends[r + 1]]


def _gather(x: Tensor, node: Tensor | None, rows: slice) -> Tensor:
    return x[rows] if node is None else x.index_select(0, node[rows])


def _batched_mm(left: Tensor, right: Tensor) -> Tensor:
    """``[n, P, F] x [P, F, M] -> [n, P, M]``."""
    if left.shape[1] == 1:
        return (left[:, 0] @ right[0]).unsqueeze(1)
    return torch.bmm(left.transpose(0, 1), right).transpose(0, 1)


def project(x: Tensor, weight: Tensor, rows: Rows, node: Tensor | None) -> Tensor:
    """Multiply the rows ``x[node]`` (or ``x`` itself) by the kernels of their relations."""
    out = x.new_empty(rows.node.shape[0], weight.shape[1], weight.shape[3])
    for r, part in _relation_slices(rows.relation_ptr):
        out[part] = _batched_mm(_gather(x, node, part), weight[r])
    return out


def project_input_grad(grad: Tensor, weight: Tensor, rows: Rows, node: Tensor | None, num_nodes: int) -> Tensor:
    """Return the gradient of ``x``."""
    out = grad.new_zeros(num_nodes, weight.shape[1], weight.shape[2])
    for r, part in _relation_slices(rows.relation_ptr):
        back = _batched_mm(grad[part], weight[r].transpose(1, 2))
        if node is None:
            out[part] = back
        else:
            out.index_add_(0, node[part], back)
    return out


def project_weight_grad(grad: Tensor, x: Tensor, rows: Rows, node: Tensor | None) -> Tensor:
    """Return the gradient of ``weight``."""
    out = grad.new_zeros(rows.relation_ptr.shape[0] - 1, x.shape[1], x.shape[2], grad.shape[2])
    for r, part in _relation_slices(rows.relation_ptr):
        left = _gather(x, node, part)
        if left.shape[1] == 1:
            torch.mm(left[:, 0].t(), grad[part][:, 0], out=out[r, 0])
        else:
            torch.bmm(left.permute(1, 2, 0), grad[part].transpose(0, 1), out=out[r])
    return out


def _segment(data: Tensor, ptr: Tensor, reduce: str) -> Tensor:
    initial = 0 if reduce == "sum" else None
    return torch.segment_reduce(data, reduce, offsets=ptr.long(), axis=0, initial=initial)


def _sum_by_source(per_edge: Tensor, s: Structure) -> Tensor:
    return _segment(per_edge.index_select(0, s.by_source), s.source_ptr, "sum")


def _sum_by_target_row(per_edge: Tensor, s: Structure) -> Tensor:
    sums = _segment(per_edge, s.group_ptr, "sum")
    return torch.empty_like(sums).index_copy_(0, s.targets.by_node.long(), sums)


def _per_scope(across: list[bool], s: Structure) -> list[tuple[list[int], Tensor, Tensor]]:
    """Return for each scope in use its heads, the pointers of its softmax groups, and the group of each edge."""
    scopes = ((False, s.group_ptr, s.group), (True, s.target_ptr, s.target))
    heads = [([h for h, flag in enumerate(across) if flag is wide], ptr, of) for wide, ptr, of in scopes]
    return [entry for entry in heads if entry[0]]


def _scores(
    queries: Tensor, keys: Tensor, edge_logits: Tensor | None, s: Structure, negative_slope: float | None
) -> Tensor:
    """Return the logits ``[E, H]``, before LeakyReLU for the additive score."""
    q = queries.index_select(0, s.targets.by_node).index_select(0, s.group)
    k = keys.index_select(0, s.source_row)
    scores = (q * k).sum(-1) if negative_slope is None else (q + k).squeeze(-1)
    return scores if edge_logits is None else scores + edge_logits


def _softmax(scores: Tensor | None, like: Tensor, s: Structure, settings: Attention) -> Tensor:
    """Attention ``[E, H]``; constant where there are no scores."""
    out = like.new_empty(s.target.shape[0], like.shape[1])
    if scores is not None and settings.negative_slope is not None:
        scores = torch.nn.functional.leaky_relu(scores, settings.negative_slope)
    for heads, ptr, of in _per_scope(settings.across, s):
        if scores is None:
            size = (ptr[1:] - ptr[:-1]).to(out.dtype)
            out[:, heads] = size.reciprocal().index_select(0, of)[:, None].expand(-1, len(heads))
        else:
            part = scores[:, heads]
            numerator = (part - _segment(part, ptr, "max").index_select(0, of)).exp()
            out[:, heads] = numerator / _segment(numerator, ptr, "sum").index_select(0, of)
    return out


def _masks(call: Call, values: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Return the scaled masks of the features ``[U, H, D]`` and of the edges ``[E, H]``."""
    s, state, (_, num_heads, channels), features, edges = call.structure, call.state, values.shape, None, None
    feature_rate, edge_rate = call.attention.feature_dropout, call.attention.edge_dropout
    if state is not None and feature_rate:
        features = scaled_mask(state, FEATURES, s.source_ids(), num_heads * channels, feature_rate, values.dtype)
        features = features.view(values.shape)
    if state is not None and edge_rate:
        edges = scaled_mask(state, EDGES, s.edge_ids(), num_heads, edge_rate, values.dtype)
    return features, edges


def _times(tensor: Tensor, mask: Tensor | None) -> Tensor:
    return tensor if mask is None else tensor * mask


def attend(
    values: Tensor, queries: Tensor | None, keys: Tensor | None, edge_logits: Tensor | None, call: Call
) -> tuple[Tensor, Tensor]:
    """Return the outputs ``[N, H, D]`` and the attention ``[E, H]`` of the sorted edges."""
    s, settings = call.structure, call.attention
    scores = None
    if queries is not None and keys is not None:
        scores = _scores(queries, keys, edge_logits, s, settings.negative_slope)
    weights = _softmax(scores, values, s, settings)
    feature_mask, edge_mask = _masks(call, values)
    messages = _times(values, feature_mask).index_select(0, s.source_row) * _times(weights, edge_mask).unsqueeze(-1)
    return _segment(messages.flatten(1), s.target_ptr, "sum").view(-1, *values.shape[1:]), weights


def attend_backward(
    grad: Tensor,
    grad_attention: Tensor | None,
    attention: Tensor,
    values: Tensor,
    queries: Tensor | None,
    keys: Tensor | None,
    edge_logits: Tensor | None,
    call: Call,
) -> tuple[Tensor | None, ...]:
    """Return the gradients of values, queries, keys and edge logits; None for the last three without queries."""
    s, slope = call.structure, call.attention.negative_slope
    feature_mask, edge_mask = _masks(call, values)
    grad_edge = grad.index_select(0, s.target)  # [E, H, D]
    received = (grad_edge * _times(attention, edge_mask).unsqueeze(-1)).flatten(1)
    dvalues = _times(_sum_by_source(received, s).view(values.shape), feature_mask)
    if queries is None or keys is None:
        return dvalues, None, None, None

    dweights = (grad_edge * _times(values, feature_mask).index_select(0, s.source_row)).sum(-1)
    dweights = _times(dweights, edge_mask)
    if grad_attention is not None:
        dweights = dweights + grad_attention
    dscores = attention * dweights
    for heads, ptr, group in _per_scope(call.attention.across, s):
        dscores[:, heads] -= attention[:, heads] * _segment(dscores[:, heads], ptr, "sum").index_select(0, group)
    if slope is not None:
        scores = _scores(queries, keys, edge_logits, s, slope)
        dscores = torch.where(scores > 0, dscores, dscores * slope)
        dqueries = _sum_by_target_row(dscores, s).unsqueeze(-1)
        dkeys = _sum_by_source(dscores, s).unsqueeze(-1)
    else:
        dqueries = dscores.unsqueeze(-1) * keys.index_select(0, s.source_row)
        dqueries = _sum_by_target_row(dqueries.flatten(1), s).view(queries.shape)
        dkeys = dscores.unsqueeze(-1) * queries.index_select(0, s.targets.by_node).index_select(0, s.group)
        dkeys = _sum_by_source(dkeys.flatten(1), s).view(keys.shape)
    return dvalues, dqueries, dkeys, dscores


def _per_head(rows: Tensor, heads: int) -> Tensor:
    """``[U, P, H / P * D] -> [U, H, D]``."""
    return rows.reshape(rows.shape[0], heads, rows.shape[1] * rows.shape[2] // heads)


def convolve(operands: Operands, bias: Tensor | None, call: Call) -> tuple[Tensor, Saved]:
    """Project, then attend."""
    assert not any(call.aggregated), "only the Numba backend aggregates inputs"
    (x, weight, query_weight, edge_logits), s = operands, call.structure
    heads, queries = len(call.attention.across), x.new_empty(0, len(call.attention.across), 0)
    if query_weight is not None:
        queries = _per_head(project(x, query_weight, s.targets, s.targets.node), heads)
    table = project(x, weight, s.sources, s.sources.node)
    width = 0 if query_weight is None else query_weight.shape[3]
    first_key = table.shape[2] - width
    values, keys = table[..., :first_key].contiguous(), table[..., first_key:].clone()
    query_rows, key_rows = (None, None) if query_weight is None else (queries, _per_head(keys, heads))
    out, attention = attend(_per_head(values, heads), query_rows, key_rows, edge_logits, call)
    if bias is not None:
        out += bias.view(out.shape[1:])
    return out, Saved(attention, queries, values, keys, x.new_empty(0, heads, x.shape[2]))


def convolve_backward(
    grad: Tensor, grad_attention: Tensor | None, saved: Saved, operands: Operands, call: Call, with_x: bool
) -> tuple[Tensor | None, ...]:
    """Return the gradients of the operands; None for ``x`` unless ``with_x``."""
    (x, weight, query_weight, edge_logits), s = operands, call.structure
    heads = len(call.attention.across)
    queries, keys = (None, None) if query_weight is None else (saved.queries, _per_head(saved.keys, heads))
    inputs = (saved.attention, _per_head(saved.values, heads), queries, keys, edge_logits)
    dvalues, dqueries, dkeys, dlogits = attend_backward(grad, grad_attention, *inputs, call)
    parts = [
        part.reshape(like.shape) for part, like in ((dvalues, saved.values), (dkeys, saved.keys)) if part is not None
    ]
    dtable = torch.cat(parts, dim=2)
    dx = project_input_grad(dtable, weight, s.sources, s.sources.node, x.shape[0]) if with_x else None
    dweight = project_weight_grad(dtable, x, s.sources, s.sources.node)
    if query_weight is None or dqueries is None:
        return dx, dweight, None, dlogits
    drows = dqueries.view(len(dqueries), query_weight.shape[1], query_weight.shape[3])
    if dx is not None:
        dx += project_input_grad(drows, query_weight, s.targets, s.targets.node, x.shape[0])
    return dx, dweight, project_weight_grad(drows, x, s.targets, s.targets.node), dlogits


def sum_rows(rows: Tensor) -> Tensor:
    """Add up the rows of a matrix."""
    return rows.sum(0)


def spread(table: Tensor, coefficients: Tensor, rows: Rows, node: Tensor) -> Tensor:
    """Combine the bases ``table`` ``[N, G, B, D]`` for each row, ``[U, H, D]``."""
    out = table.new_empty(rows.relation.shape[0], coefficients.shape[1], table.shape[3])
    for r, part in _relation_slices(rows.relation_ptr):
        out[part] = torch.einsum("hb,uhbd->uhd", coefficients[r], _bases(table, node[part], out.shape[1]))
    return out


def _bases(table: Tensor, node: Tensor, heads: int) -> Tensor:
    """Return the bases ``[u, H, B, D]`` of some nodes."""
    return table.index_select(0, node).expand(-1, heads, -1, -1)


def collect(values: Tensor, coefficients: Tensor, rows: Rows, node: Tensor, num_nodes: int, groups: int) -> Tensor:
    """Apply the transpose of ``spread``: from rows ``[U, H, D]`` to nodes and bases ``[N, G, B, D]``."""
    heads, bases = coefficients.shape[1:]
    out = values.new_zeros(num_nodes, groups, bases, values.shape[2])
    for r, part in _relation_slices(rows.relation_ptr):
        per_head = torch.einsum("hb,uhd->uhbd", coefficients[r], values[part])
        out.index_add_(0, node[part], per_head if groups == heads else per_head.sum(1, keepdim=True))
    return out


def pair(table: Tensor, values: Tensor, rows: Rows, node: Tensor) -> Tensor:
    """Return the gradient of the coefficients of ``spread``, ``[R, H, B]``."""
    out = values.new_zeros(rows.relation_ptr.shape[0] - 1, values.shape[1], table.shape[2])
    for r, part in _relation_slices(rows.relation_ptr):
        out[r] = torch.einsum("uhbd,uhd->hb", _bases(table, node[part], values.shape[1]), values[part])
    return out


def fold(kernels: Tensor, attention: Tensor) -> tuple[Tensor, Tensor]:
    """Return the folded kernels of source and target rows."""
    scores = kernels @ attention.transpose(2, 3)  # [R, H, F, 2 A]
    query, key = (fold_heads(part) for part in scores.chunk(2, dim=3))
    return torch.cat([fold_heads(kernels), key], dim=3), query


def fold_backward(dweight: Tensor, dquery: Tensor, kernels: Tensor, attention: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of kernels and attention kernels."""
    heads, channels = kernels.shape[1], kernels.shape[3]
    dvalues, dkeys = dweight[..., : heads * channels], dweight[..., heads * channels :]
    dkernels, *scores = (unfold_heads(part, heads) for part in (dvalues, dquery, dkeys))
    dscores = torch.cat(scores, dim=3)
    return dkernels + dscores @ attention, dscores.transpose(2, 3) @ kernels


def gather_back(grads: list[Tensor], backs: list[Tensor]) -> Tensor:
    """Return the gradient of a table whose rows were looked up at one or two ends."""
    nothing = grads[0].new_zeros(1, *grads[0].shape[1:])  # what entries that no row reads are given
    terms = [torch.cat([nothing, grad]).index_select(0, back + 1) for grad, back in zip(grads, backs, strict=True)]
    return terms[0] if len(terms) == 1 else terms[0] + terms[1]
