"""The two operations of a relational layer in vectorised PyTorch, on distinct (relation, node) rows.

``project``: rows of one relation share a kernel, ``out[u] = x[node[u]] @ weight[relation(u)]``. Backward::

    dx[j]     = sum over rows u of node j: dout[u] @ weight[relation(u)].T
    dweight[r] = x[rows of r].T @ dout[rows of r]

``attend``: logits, softmax and weighted sum over the edges of each target. With ``a`` the attention, ``m`` the scaled
dropout masks, backward recomputes ``a`` from queries and keys and then, per edge and head::

    da        = m_edge * (dout[target] . (m_feature * value[source row])) + dattention
    dlogit    = a * (da - sum of a * da over the edge's softmax group)     (times LeakyReLU' where there is one)
    dvalue    = m_feature * sum over the row's edges: a * m_edge * dout[target]
    additive: dquery = sum over the group's edges: dlogit;       dkey = sum over the row's edges: dlogit
    multiplicative: dquery = sum ...: dlogit * key[source row];  dkey = sum ...: dlogit * query[group]

Neither forms a weight per edge or a tensor of all nodes times all relations. All sums run over contiguous segments, so
they are deterministic on every device.
"""

from __future__ import annotations

from typing import Any, NamedTuple, NoReturn, TypeVar

import torch
from torch import Tensor

from rgat.graph import Structure
from rgat.ops.dropout import EDGES, FEATURES, keep_mask

T = TypeVar("T", Tensor, Tensor | None)


class Attention(NamedTuple):
    """How a layer attends: everything about ``attend`` that is not a tensor."""

    across: list[bool]  # per head: softmax over all edges of a target, not only those of one relation
    negative_slope: float | None  # of the additive score; None: the multiplicative score
    feature_dropout: float = 0.0
    edge_dropout: float = 0.0


def _as_given(tensor: Tensor) -> torch.autocast:
    """Inside an operator the dtypes are settled; autocast must not change them again."""
    return torch.autocast(tensor.device.type, enabled=False)


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


@torch.library.custom_op("rgat::project", mutates_args=())
def _project(x: Tensor, weight: Tensor, node: Tensor | None, ptr: Tensor) -> Tensor:
    num_rows = x.shape[0] if node is None else node.shape[0]
    out = x.new_empty(num_rows, weight.shape[1], weight.shape[3])
    with _as_given(x):
        for r, rows in _relation_slices(ptr):
            out[rows] = _batched_mm(_gather(x, node, rows), weight[r])
    return out


@_project.register_fake
def _(x: Tensor, weight: Tensor, node: Tensor | None, ptr: Tensor) -> Tensor:
    return x.new_empty((x if node is None else node).shape[0], weight.shape[1], weight.shape[3])


@torch.library.custom_op("rgat::project_input_grad", mutates_args=())
def _project_input_grad(grad: Tensor, weight: Tensor, node: Tensor | None, ptr: Tensor, num_nodes: int) -> Tensor:
    out = grad.new_zeros(num_nodes, weight.shape[1], weight.shape[2])
    with _as_given(grad):
        for r, rows in _relation_slices(ptr):
            part = _batched_mm(grad[rows], weight[r].transpose(1, 2))
            if node is None:
                out[rows] = part
            else:
                out.index_add_(0, node[rows], part)
    return out


@_project_input_grad.register_fake
def _(grad: Tensor, weight: Tensor, node: Tensor | None, ptr: Tensor, num_nodes: int) -> Tensor:
    return grad.new_empty(num_nodes, weight.shape[1], weight.shape[2])


@torch.library.custom_op("rgat::project_weight_grad", mutates_args=())
def _project_weight_grad(grad: Tensor, x: Tensor, node: Tensor | None, ptr: Tensor) -> Tensor:
    out = grad.new_zeros(ptr.shape[0] - 1, x.shape[1], x.shape[2], grad.shape[2])
    with _as_given(grad):
        for r, rows in _relation_slices(ptr):
            left = _gather(x, node, rows)
            if left.shape[1] == 1:
                torch.mm(left[:, 0].t(), grad[rows][:, 0], out=out[r, 0])
            else:
                torch.bmm(left.permute(1, 2, 0), grad[rows].transpose(0, 1), out=out[r])
    return out


@_project_weight_grad.register_fake
def _(grad: Tensor, x: Tensor, node: Tensor | None, ptr: Tensor) -> Tensor:
    return grad.new_empty(ptr.shape[0] - 1, x.shape[1], x.shape[2], grad.shape[2])


def _project_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _project_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, node, ptr = ctx.saved_tensors
    grad = grad.contiguous()
    dx = _project_input_grad(grad, weight, node, ptr, x.shape[0]) if ctx.needs_input_grad[0] else None
    dweight = _project_weight_grad(grad, x, node, ptr) if ctx.needs_input_grad[1] else None
    return dx, dweight, None, None


_project.register_autograd(_project_backward, setup_context=_project_context)


def _segment(data: Tensor, ptr: Tensor, reduce: str) -> Tensor:
    initial = 0 if reduce == "sum" else None
    return torch.segment_reduce(data, reduce, offsets=ptr.long(), axis=0, initial=initial)


def _widen(tensor: T) -> T:
    return tensor.float() if tensor is not None and tensor.dtype in (torch.bfloat16, torch.float16) else tensor


class _Edges(NamedTuple):
    """The derived structure as far as ``attend`` reads it; the fields are those of ``Structure``."""

    target: Tensor
    group: Tensor
    source_row: Tensor
    target_ptr: Tensor
    group_ptr: Tensor
    group_row: Tensor
    by_source: Tensor
    source_ptr: Tensor
    row_id: Tensor  # [U] int64, relation * N + node

    def sum_by_source(self, per_edge: Tensor) -> Tensor:
        return _segment(per_edge.index_select(0, self.by_source), self.source_ptr, "sum")

    def sum_by_target_row(self, per_edge: Tensor) -> Tensor:
        sums = _segment(per_edge, self.group_ptr, "sum")
        return torch.empty_like(sums).index_copy_(0, self.group_row.long(), sums)

    def per_scope(self, across: list[bool]) -> list[tuple[list[int], Tensor, Tensor]]:
        """For each scope in use: its heads, the pointers of its softmax groups, and the group of each edge."""
        scopes = ((False, self.group_ptr, self.group), (True, self.target_ptr, self.target))
        heads = [([h for h, flag in enumerate(across) if flag is wide], ptr, of) for wide, ptr, of in scopes]
        return [entry for entry in heads if entry[0]]


def _scores(
    edges: _Edges, queries: Tensor, keys: Tensor, edge_logits: Tensor | None, negative_slope: float | None
) -> Tensor:
    """The logits ``[E, H]``, before LeakyReLU for the additive score."""
    q = queries.index_select(0, edges.group_row).index_select(0, edges.group)
    k = keys.index_select(0, edges.source_row)
    scores = (q * k).sum(-1) if negative_slope is None else (q + k).squeeze(-1)
    return scores if edge_logits is None else scores + edge_logits


def _softmax(edges: _Edges, scores: Tensor | None, like: Tensor, attention: Attention) -> Tensor:
    """Attention ``[E, H]``; constant where there are no scores."""
    out = like.new_empty(edges.target.shape[0], like.shape[1])
    if scores is not None and attention.negative_slope is not None:
        scores = torch.nn.functional.leaky_relu(scores, attention.negative_slope)
    for heads, ptr, of in edges.per_scope(attention.across):
        if scores is None:
            size = (ptr[1:] - ptr[:-1]).to(out.dtype)
            out[:, heads] = size.reciprocal().index_select(0, of)[:, None].expand(-1, len(heads))
        else:
            part = scores[:, heads]
            numerator = (part - _segment(part, ptr, "max").index_select(0, of)).exp()
            out[:, heads] = numerator / _segment(numerator, ptr, "sum").index_select(0, of)
    return out


def _masks(
    edges: _Edges, state: Tensor | None, values: Tensor, attention: Attention
) -> tuple[Tensor | None, Tensor | None]:
    """The scaled masks of the features ``[U, H, D]`` and of the edges ``[E, H]``."""

    def scaled(kind: int, ids: Tensor, columns: int, rate: float) -> Tensor | None:
        if state is None or rate == 0:
            return None
        return keep_mask(state, kind, ids, columns, rate).to(values.dtype) / (1 - rate)

    num_heads, channels = values.shape[1:]
    features = scaled(FEATURES, edges.row_id, num_heads * channels, attention.feature_dropout)
    number = torch.arange(edges.target.shape[0], device=values.device)
    return (
        None if features is None else features.view(values.shape),
        scaled(EDGES, number, num_heads, attention.edge_dropout),
    )


def _times(tensor: Tensor, mask: Tensor | None) -> Tensor:
    return tensor if mask is None else tensor * mask


@torch.library.custom_op("rgat::attend", mutates_args=())
def _attend(
    values: Tensor,
    queries: Tensor | None,
    keys: Tensor | None,
    edge_logits: Tensor | None,
    edges: list[Tensor],
    state: Tensor | None,
    across: list[bool],
    negative_slope: float | None,
    feature_dropout: float,
    edge_dropout: float,
    want_attention: bool,
) -> tuple[Tensor, Tensor]:
    """Return the output ``[N, H, D]`` and the attention ``[E, H]`` of the sorted edges (empty unless wanted)."""
    e, how = _Edges(*edges), Attention(across, negative_slope, feature_dropout, edge_dropout)
    dtype = values.dtype
    values, queries, keys, edge_logits = _widen(values), _widen(queries), _widen(keys), _widen(edge_logits)
    scores = None
    if queries is not None and keys is not None:
        scores = _scores(e, queries, keys, edge_logits, negative_slope)
    weights = _softmax(e, scores, values, how)
    feature_mask, edge_mask = _masks(e, state, values, how)
    messages = _times(values, feature_mask).index_select(0, e.source_row) * _times(weights, edge_mask).unsqueeze(-1)
    out = _segment(messages.flatten(1), e.target_ptr, "sum").view(-1, *values.shape[1:]).to(dtype)
    return out, weights.to(dtype) if want_attention else out.new_empty(0, out.shape[1])


@_attend.register_fake
def _(
    values: Tensor,
    queries: Tensor | None,
    keys: Tensor | None,
    edge_logits: Tensor | None,
    edges: list[Tensor],
    state: Tensor | None,
    across: list[bool],
    negative_slope: float | None,
    feature_dropout: float,
    edge_dropout: float,
    want_attention: bool,
) -> tuple[Tensor, Tensor]:
    e = _Edges(*edges)
    num_heads = values.shape[1]
    out = values.new_empty(e.target_ptr.shape[0] - 1, num_heads, values.shape[2])
    return out, values.new_empty(e.target.shape[0] if want_attention else 0, num_heads)


@torch.library.custom_op("rgat::attend_backward", mutates_args=())
def _attend_grads(
    grad: Tensor,
    grad_attention: Tensor | None,
    values: Tensor,
    queries: Tensor | None,
    keys: Tensor | None,
    edge_logits: Tensor | None,
    edges: list[Tensor],
    state: Tensor | None,
    across: list[bool],
    negative_slope: float | None,
    feature_dropout: float,
    edge_dropout: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of values, queries, keys and edge logits; the last three empty under constant attention."""
    e, how = _Edges(*edges), Attention(across, negative_slope, feature_dropout, edge_dropout)
    dtype, logit_dtype = values.dtype, values.dtype if queries is None else queries.dtype
    values, queries, keys, edge_logits = _widen(values), _widen(queries), _widen(keys), _widen(edge_logits)
    grad, grad_attention = _widen(grad), _widen(grad_attention)
    scores = None
    if queries is not None and keys is not None:
        scores = _scores(e, queries, keys, edge_logits, negative_slope)
    weights = _softmax(e, scores, values, how)
    feature_mask, edge_mask = _masks(e, state, values, how)
    grad_edge = grad.index_select(0, e.target)  # [E, H, D]
    received = (grad_edge * _times(weights, edge_mask).unsqueeze(-1)).flatten(1)
    dvalues = _times(e.sum_by_source(received).view(values.shape), feature_mask).to(dtype)
    if scores is None or queries is None or keys is None:
        return dvalues, values.new_empty(0), values.new_empty(0), values.new_empty(0)

    dweights = (grad_edge * _times(values, feature_mask).index_select(0, e.source_row)).sum(-1)
    dweights = _times(dweights, edge_mask)
    if grad_attention is not None:
        dweights = dweights + grad_attention
    dscores = weights * dweights
    for heads, ptr, of in e.per_scope(across):
        dscores[:, heads] -= weights[:, heads] * _segment(dscores[:, heads], ptr, "sum").index_select(0, of)
    if negative_slope is not None:
        dscores = torch.where(scores > 0, dscores, dscores * negative_slope)
        dqueries = e.sum_by_target_row(dscores).unsqueeze(-1)
        dkeys = e.sum_by_source(dscores).unsqueeze(-1)
    else:
        dqueries = dscores.unsqueeze(-1) * keys.index_select(0, e.source_row)
        dqueries = e.sum_by_target_row(dqueries.flatten(1)).view(queries.shape)
        dkeys = dscores.unsqueeze(-1) * queries.index_select(0, e.group_row).index_select(0, e.group)
        dkeys = e.sum_by_source(dkeys.flatten(1)).view(keys.shape)
    dedge_logits = values.new_empty(0) if edge_logits is None else dscores
    return dvalues, dqueries.to(logit_dtype), dkeys.to(logit_dtype), dedge_logits.to(logit_dtype)


@_attend_grads.register_fake
def _(
    grad: Tensor,
    grad_attention: Tensor | None,
    values: Tensor,
    queries: Tensor | None,
    keys: Tensor | None,
    edge_logits: Tensor | None,
    edges: list[Tensor],
    state: Tensor | None,
    across: list[bool],
    negative_slope: float | None,
    feature_dropout: float,
    edge_dropout: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    def like(tensor: Tensor | None) -> Tensor:
        return values.new_empty(0) if tensor is None else tensor.new_empty(tensor.shape)  # contiguous

    return like(values), like(queries), like(keys), like(edge_logits)


def _attend_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    values, queries, keys, edge_logits, edges, state, *ctx.settings, ctx.want_attention = inputs
    ctx.save_for_backward(values, queries, keys, edge_logits, state, *edges)


def _attend_backward(ctx: Any, grad: Tensor, grad_attention: Tensor) -> tuple[Any, ...]:
    values, queries, keys, edge_logits, state, *edges = ctx.saved_tensors
    extra = grad_attention if ctx.want_attention else None
    grads = _attend_grads(grad.contiguous(), extra, values, queries, keys, edge_logits, edges, state, *ctx.settings)
    kept = [g if t is not None else None for g, t in zip(grads, (values, queries, keys, edge_logits), strict=True)]
    return (*kept, [None] * len(edges), *[None] * 6)


_attend.register_autograd(_attend_backward, setup_context=_attend_context)


def _no_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    pass


def _no_double_backward(ctx: Any, *grads: Any) -> NoReturn:
    raise RuntimeError(
        "relational layers have first derivatives only; for double backward use the differentiable reference, "
        'with `rgat.ops.backend("reference"):`'
    )


for _op in (_project_input_grad, _project_weight_grad, _attend_grads):
    _op.register_autograd(_no_double_backward, setup_context=_no_context)


def project(x: Tensor, weight: Tensor, relation_ptr: Tensor, node: Tensor | None = None) -> Tensor:
    """Multiply rows, sorted by relation, by the kernel of their relation.

    ``x`` is ``[N, P, F]`` and ``node[u]`` picks the entry of row ``u``, or ``[U, P, F]`` without ``node``; ``weight``
    is ``[R, P, F, M]``; the result is ``[U, P, M]``. The axis ``P`` is a batch: each entry has kernels of its own.
    """
    out: Tensor = _project(x, weight, node, relation_ptr)
    return out


def attend(
    values: Tensor,  # [U, H, D], one per source row
    queries: Tensor | None,  # [V, H, A], one per target row; None: constant attention
    keys: Tensor | None,  # [U, H, A]
    edge_logits: Tensor | None,  # [E, H], sorted edges
    structure: Structure,
    attention: Attention,
    state: Tensor | None,  # (seed, call number) of the dropout masks; None: no dropout
    want_attention: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return the heads' outputs ``[N, H, D]`` and, if wanted, the attention of the sorted edges ``[E, H]``."""
    s = structure
    row_id = s.sources.keys(s.target_ptr.shape[0] - 1)
    edges = [s.target, s.group, s.source_row, s.target_ptr, s.group_ptr, s.group_row, s.by_source, s.source_ptr, row_id]
    out: tuple[Tensor, Tensor] = _attend(values, queries, keys, edge_logits, edges, state, *attention, want_attention)
    return out
