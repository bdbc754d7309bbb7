"""The operations of a relational layer as PyTorch operators: differentiable, compilable, the same on every backend.

``project``: rows of one relation share a kernel, ``out[u] = x[node[u]] @ weight[relation(u)]``. Backward::

    dx[j]      = sum over rows u of node j: dout[u] @ weight[relation(u)].T
    dweight[r] = x[rows of r].T @ dout[rows of r]

``attend``: logits, softmax and weighted sum over the edges of each target. With ``a`` the attention, ``m`` the scaled
dropout masks, per edge and head::

    da        = m_edge * (dout[target] . (m_feature * value[source row])) + dattention
    dlogit    = a * (da - sum of a * da over the edge's softmax group)     (times LeakyReLU' where there is one)
    dvalue    = m_feature * sum over the row's edges: a * m_edge * dout[target]
    additive: dquery = sum over the group's edges: dlogit;       dkey = sum over the row's edges: dlogit
    multiplicative: dquery = sum ...: dlogit * key[source row];  dkey = sum ...: dlogit * query[group]

``convolve``: ``attend`` to values that are projections of ``x``, as one operation from the layer's kernels to its
output, so that a backend may choose for each relation whether it multiplies the inputs or their weighted sums by the
kernel, and need not keep gradients of values.

No implementation forms a weight per edge, a tensor of edges times channels per head on a compiled backend, or one of
all nodes times all relations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from rgat.graph import Rows, Structure
from rgat.ops.attention import Attention
from rgat.ops.dispatch import implementation
from rgat.ops.folding import fold_kernels, fold_kernels_backward
from rgat.ops.registration import as_given, forbid_double_backward, operator, wide, widen


def _node(rows: Rows, index: Tensor | None, one_to_one: bool) -> Tensor | None:
    return None if one_to_one else rows.node if index is None else index


@operator("rgat::project")
def _project(x: Tensor, weight: Tensor, rows: list[Tensor], index: Tensor | None, one_to_one: bool) -> Tensor:
    r, module = Rows(*rows), implementation(x.device)
    with as_given(x):
        out: Tensor = module.project(*widen((x, weight), module), r, _node(r, index, one_to_one))
        return out.to(x.dtype)


@_project.register_fake
def _(x: Tensor, weight: Tensor, rows: list[Tensor], index: Tensor | None, one_to_one: bool) -> Tensor:
    return x.new_empty(rows[0].shape[0], weight.shape[1], weight.shape[3])


@operator("rgat::project_input_grad")
def _project_input_grad(
    grad: Tensor, weight: Tensor, rows: list[Tensor], index: Tensor | None, one_to_one: bool, num_nodes: int
) -> Tensor:
    r, module = Rows(*rows), implementation(grad.device)
    with as_given(grad):
        node = _node(r, index, one_to_one)
        out: Tensor = module.project_input_grad(*widen((grad, weight), module), r, node, num_nodes)
        return out.to(grad.dtype)


@_project_input_grad.register_fake
def _(
    grad: Tensor, weight: Tensor, rows: list[Tensor], index: Tensor | None, one_to_one: bool, num_nodes: int
) -> Tensor:
    return grad.new_empty(num_nodes, weight.shape[1], weight.shape[2])


@operator("rgat::project_weight_grad")
def _project_weight_grad(grad: Tensor, x: Tensor, rows: list[Tensor], index: Tensor | None, one_to_one: bool) -> Tensor:
    r, module = Rows(*rows), implementation(grad.device)
    with as_given(grad):
        out: Tensor = module.project_weight_grad(*widen((grad, x), module), r, _node(r, index, one_to_one))
        return out.to(grad.dtype).contiguous()


@_project_weight_grad.register_fake
def _(grad: Tensor, x: Tensor, rows: list[Tensor], index: Tensor | None, one_to_one: bool) -> Tensor:
    return grad.new_empty(rows[2].shape[0] - 1, x.shape[1], x.shape[2], grad.shape[2])


def _project_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, rows, index, ctx.one_to_one = inputs
    ctx.save_for_backward(x, weight, index, *rows)


def _project_backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    x, weight, index, *rows = ctx.saved_tensors
    where = (rows, index, ctx.one_to_one)
    grad = grad.contiguous()
    dx = _project_input_grad(grad, weight, *where, x.shape[0]) if ctx.needs_input_grad[0] else None
    dweight = _project_weight_grad(grad, x, *where) if ctx.needs_input_grad[1] else None
    return dx, dweight, [None] * len(rows), None, None


_project.register_autograd(_project_backward, setup_context=_project_context)


@operator("rgat::attend")
def _attend(
    values: Tensor,
    queries: Tensor | None,
    keys: Tensor | None,
    edge_logits: Tensor | None,
    structure: list[Tensor],
    state: Tensor | None,
    across: list[bool],
    negative_slope: float | None,
    feature_dropout: float,
    edge_dropout: float,
    backend: str,
) -> tuple[Tensor, Tensor]:
    how = Attention(across, negative_slope, feature_dropout, edge_dropout, backend)
    module = implementation(values.device, backend)
    with as_given(values):
        tensors = widen((values, queries, keys, edge_logits), module)
        out, attention = module.attend(*tensors, Structure.from_leaves(structure), how, state)
    return out.to(values.dtype), attention


@_attend.register_fake
def _(
    values: Tensor,
    queries: Tensor | None,
    keys: Tensor | None,
    edge_logits: Tensor | None,
    structure: list[Tensor],
    *_: Any,
) -> tuple[Tensor, Tensor]:
    s = Structure.from_leaves(structure)
    heads = values.shape[1]
    out = values.new_empty(s.target_ptr.shape[0] - 1, heads, values.shape[2])
    return out, values.new_empty(s.target.shape[0], heads, dtype=wide(values.dtype))


@operator("rgat::attend_backward")
def _attend_grads(
    grad: Tensor,
    grad_attention: Tensor | None,
    attention: Tensor,
    values: Tensor,
    queries: Tensor | None,
    keys: Tensor | None,
    edge_logits: Tensor | None,
    structure: list[Tensor],
    state: Tensor | None,
    across: list[bool],
    negative_slope: float | None,
    feature_dropout: float,
    edge_dropout: float,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of values, queries, keys and edge logits; empty for those that are not given."""
    how = Attention(across, negative_slope, feature_dropout, edge_dropout, backend)
    module = implementation(values.device, backend)
    with as_given(values):
        tensors = widen((grad, grad_attention, attention, values, queries, keys, edge_logits), module)
        grads = module.attend_backward(*tensors, Structure.from_leaves(structure), how, state)
    return _like_inputs(grads, (values, queries, keys, edge_logits), attention)  # type: ignore[return-value]


def _like_inputs(grads: tuple[Any, ...], inputs: tuple[Tensor | None, ...], like: Tensor) -> tuple[Tensor, ...]:
    """The gradients in the dtypes of their inputs; new and empty for inputs that are not given."""
    return tuple(
        like.new_empty(0) if t is None else g.to(t.dtype).contiguous() for g, t in zip(grads, inputs, strict=True)
    )


def _fake_grads(inputs: tuple[Tensor | None, ...], like: Tensor) -> tuple[Tensor, ...]:
    return tuple(like.new_empty(0) if t is None else t.new_empty(t.shape) for t in inputs)


@_attend_grads.register_fake
def _(
    grad: Tensor,
    grad_attention: Tensor | None,
    attention: Tensor,
    values: Tensor,
    queries: Tensor | None,
    keys: Tensor | None,
    edge_logits: Tensor | None,
    *_: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return _fake_grads((values, queries, keys, edge_logits), attention)  # type: ignore[return-value]


def _attend_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    values, queries, keys, edge_logits, structure, state, *ctx.settings = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(values, queries, keys, edge_logits, output[1], state, *structure)


def _attend_backward(ctx: Any, grad: Tensor | None, grad_attention: Tensor | None) -> tuple[Any, ...]:
    values, queries, keys, edge_logits, attention, state, *structure = ctx.saved_tensors
    inputs = (values, queries, keys, edge_logits)
    if grad is None:
        grad = values.new_zeros(Structure.from_leaves(structure).target_ptr.shape[0] - 1, *values.shape[1:])
    grads = _attend_grads(grad.contiguous(), grad_attention, attention, *inputs, structure, state, *ctx.settings)
    return (*_given(grads, inputs), [None] * len(structure), *[None] * 6)


def _given(grads: Sequence[Tensor], inputs: tuple[Tensor | None, ...]) -> list[Tensor | None]:
    return [None if t is None else g for g, t in zip(grads, inputs, strict=True)]


_attend.register_autograd(_attend_backward, setup_context=_attend_context)


def _if_any(flags: list[bool]) -> list[bool]:
    return flags if any(flags) else []


@operator("rgat::convolve", repeated=True)
def _convolve(
    x: Tensor,
    kernels: Tensor,
    attention_kernels: Tensor | None,
    edge_logits: Tensor | None,
    bias: Tensor | None,
    structure: list[Tensor],
    state: Tensor | None,
    aggregated: list[bool],
    across: list[bool],
    negative_slope: float | None,
    feature_dropout: float,
    edge_dropout: float,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return also what backward needs: queries, on a GPU values and keys, and the folded kernels of all.

    Elsewhere one table of values and keys, and sums of inputs where they are aggregated first.
    """
    how = Attention(across, negative_slope, feature_dropout, edge_dropout, backend)
    module = implementation(x.device, backend)
    with as_given(x):
        rows = x if x.dim() == 3 else x.unsqueeze(1)
        weight, query_weight = fold_kernels(module, kernels, attention_kernels, x.dtype, rows.shape[1])
        *tensors, bias = widen((rows, weight, query_weight, edge_logits, bias), module)
        arguments = (*tensors, _if_any(aggregated), Structure.from_leaves(structure), how, state)
        if getattr(module, "TAKES_BIAS", False):
            out, *saved = module.convolve(*arguments, bias)
        else:
            out, *saved = module.convolve(*arguments)
            out = out if bias is None else out.add_(bias.view(out.shape[1:]))
    if query_weight is None:  # then the folded kernels may be the kernels themselves, which an operator must not return
        weight, query_weight = x.new_empty(0), x.new_empty(0)
    return out.to(x.dtype), *saved, weight, query_weight


@_convolve.register_fake
def _(
    x: Tensor,
    kernels: Tensor,
    attention_kernels: Tensor | None,
    edge_logits: Tensor | None,
    bias: Tensor | None,
    structure: list[Tensor],
    state: Tensor | None,
    aggregated: list[bool],
    *_: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    s, dtype = Structure.from_leaves(structure), wide(x.dtype)
    relations, heads, inputs, channels = kernels.shape
    width = 0 if attention_kernels is None else attention_kernels.shape[3]
    out = x.new_empty(s.target_ptr.shape[0] - 1, heads, channels)
    attention = x.new_empty(s.target.shape[0], heads, dtype=dtype)
    rows, others = s.sources.node.shape[0], s.targets.node.shape[0]
    queries = attention.new_empty(others if width else 0, heads, width)
    folded = (x.new_empty(0), x.new_empty(0))
    batch = x.shape[1] if x.dim() == 3 else 1
    share = heads // batch
    if width:
        sizes = (relations, batch, inputs)
        folded = (x.new_empty(*sizes, share * (channels + width)), x.new_empty(*sizes, share * width))
    if x.device.type == "cuda":
        values, keys = x.new_empty(rows, batch, share * channels), x.new_empty(rows, batch, share * width)
        return out, attention, queries.to(x.dtype), values, keys, *folded
    table = x.new_empty(rows, batch, share * (channels + width), dtype=dtype)
    sums = x.new_empty(others if any(aggregated) else 0, heads, inputs, dtype=dtype)
    return out, attention, queries, table, sums, *folded


@operator("rgat::convolve_backward", repeated=True)
def _convolve_grads(
    grad: Tensor,
    grad_attention: Tensor | None,
    attention: Tensor,
    queries: Tensor,
    table: Tensor,
    sums: Tensor,
    weight: Tensor,
    query_weight: Tensor,
    x: Tensor,
    kernels: Tensor,
    attention_kernels: Tensor | None,
    edge_logits: Tensor | None,
    structure: list[Tensor],
    state: Tensor | None,
    aggregated: list[bool],
    across: list[bool],
    negative_slope: float | None,
    feature_dropout: float,
    edge_dropout: float,
    backend: str,
    with_bias: bool,
    with_x: bool = True,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of inputs, kernels, attention kernels, edge logits and bias; empty where there is none."""
    how = Attention(across, negative_slope, feature_dropout, edge_dropout, backend)
    module = implementation(x.device, backend)
    with as_given(x):
        folded: tuple[Tensor, Tensor | None] = (weight, query_weight)
        if attention_kernels is None:
            folded = fold_kernels(module, kernels, None, x.dtype, x.shape[1] if x.dim() == 3 else 1)
        made = (attention, queries, table, sums)
        rows = x if x.dim() == 3 else x.unsqueeze(1)
        tensors = widen((grad, grad_attention, *made, rows, *folded, edge_logits), module)
        dbias = grad.new_empty(0)
        if with_bias:
            received = tensors[0].flatten(1)
            dbias = module.sum_rows(received) if getattr(module, "TAKES_BIAS", False) else received.sum(0)
        dx, dweight, dquery_weight, dlogits = module.convolve_backward(
            *tensors, _if_any(aggregated), Structure.from_leaves(structure), how, state, with_x
        )
        dkernels, dattention = fold_kernels_backward(module, dweight, dquery_weight, kernels, attention_kernels)
    grads = (dx.view(x.shape) if with_x else None, dkernels, dattention, dlogits)
    inputs = (x if with_x else None, kernels, attention_kernels, edge_logits)
    return *_like_inputs(grads, inputs, attention), dbias.to(x.dtype)  # type: ignore[return-value]


@_convolve_grads.register_fake
def _(
    grad: Tensor,
    grad_attention: Tensor | None,
    attention: Tensor,
    queries: Tensor,
    table: Tensor,
    sums: Tensor,
    weight: Tensor,
    query_weight: Tensor,
    x: Tensor,
    kernels: Tensor,
    attention_kernels: Tensor | None,
    edge_logits: Tensor | None,
    *others: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    with_bias, with_x = (*others, True)[8:10]  # the dispatcher leaves out what is as by default
    dbias = x.new_empty(grad.shape[1] * grad.shape[2] if with_bias else 0)
    inputs = (x if with_x else None, kernels, attention_kernels, edge_logits)
    return *_fake_grads(inputs, attention), dbias  # type: ignore[return-value]


def _convolve_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, kernels, attention_kernels, edge_logits, _, structure, state, *ctx.settings = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, kernels, attention_kernels, edge_logits, state, *output[1:], *structure)


def _convolve_backward(ctx: Any, grad: Tensor | None, grad_attention: Tensor | None, *_: Any) -> tuple[Any, ...]:
    x, kernels, attention_kernels, edge_logits, state, *others = ctx.saved_tensors
    inputs, made, structure = (x, kernels, attention_kernels, edge_logits), others[:6], others[6:]
    if grad is None:
        num_nodes = Structure.from_leaves(structure).target_ptr.shape[0] - 1
        grad = x.new_zeros(num_nodes, kernels.shape[1], kernels.shape[3])
    with_x, with_bias = ctx.needs_input_grad[0], ctx.needs_input_grad[4]  # features that are given need none
    *grads, dbias = _convolve_grads(
        grad.contiguous(), grad_attention, *made, *inputs, structure, state, *ctx.settings, with_bias, with_x
    )
    needed = (x if with_x else None, *inputs[1:])
    return (*_given(grads, needed), dbias if with_bias else None, [None] * len(structure), *[None] * 7)


_convolve.register_autograd(_convolve_backward, setup_context=_convolve_context)


@operator("rgat::sum_inputs")
def _sum_inputs(
    x: Tensor,
    queries: Tensor | None,
    keys: Tensor | None,
    edge_logits: Tensor | None,
    structure: list[Tensor],
    state: Tensor | None,
    across: list[bool],
    negative_slope: float | None,
    edge_dropout: float,
    backend: str,
) -> tuple[Tensor, Tensor]:
    how = Attention(across, negative_slope, 0.0, edge_dropout, backend)
    module = implementation(x.device, backend)
    with as_given(x):
        tensors = widen((x, queries, keys, edge_logits), module)
        sums, attention = module.sum_inputs(*tensors, Structure.from_leaves(structure), how, state)
    return sums.to(x.dtype), attention


@_sum_inputs.register_fake
def _(
    x: Tensor,
    queries: Tensor | None,
    keys: Tensor | None,
    edge_logits: Tensor | None,
    structure: list[Tensor],
    state: Tensor | None,
    across: list[bool],
    *_: Any,
) -> tuple[Tensor, Tensor]:
    s, heads = Structure.from_leaves(structure), len(across)
    sums = x.new_empty(s.targets.node.shape[0], heads, x.shape[1])
    return sums, x.new_empty(s.target.shape[0], heads, dtype=wide(x.dtype))


@operator("rgat::sum_inputs_backward")
def _sum_inputs_grads(
    grad: Tensor,
    grad_attention: Tensor | None,
    attention: Tensor,
    x: Tensor,
    queries: Tensor | None,
    keys: Tensor | None,
    edge_logits: Tensor | None,
    structure: list[Tensor],
    state: Tensor | None,
    across: list[bool],
    negative_slope: float | None,
    edge_dropout: float,
    backend: str,
    with_x: bool = True,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    how = Attention(across, negative_slope, 0.0, edge_dropout, backend)
    module = implementation(x.device, backend)
    with as_given(x):
        tensors = widen((grad, grad_attention, attention, x, queries, keys, edge_logits), module)
        grads = module.sum_inputs_backward(*tensors, Structure.from_leaves(structure), how, state, with_x)
    inputs = (x if with_x else None, queries, keys, edge_logits)
    return _like_inputs(grads, inputs, attention)  # type: ignore[return-value]


@_sum_inputs_grads.register_fake
def _(
    grad: Tensor,
    grad_attention: Tensor | None,
    attention: Tensor,
    x: Tensor,
    queries: Tensor | None,
    keys: Tensor | None,
    edge_logits: Tensor | None,
    *others: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    with_x = (*others, True)[6]
    return _fake_grads((x if with_x else None, queries, keys, edge_logits), attention)  # type: ignore[return-value]


def _sum_inputs_backward(ctx: Any, grad: Tensor | None, grad_attention: Tensor | None) -> tuple[Any, ...]:
    x, queries, keys, edge_logits, attention, state, *structure = ctx.saved_tensors
    inputs = (x, queries, keys, edge_logits)
    if grad is None:
        grad = x.new_zeros(Structure.from_leaves(structure).targets.node.shape[0], attention.shape[1], x.shape[1])
    with_x = ctx.needs_input_grad[0]
    grads = _sum_inputs_grads(
        grad.contiguous(), grad_attention, attention, *inputs, structure, state, *ctx.settings, with_x
    )
    return (*_given(grads, (x if with_x else None, *inputs[1:])), [None] * len(structure), *[None] * 5)


_sum_inputs.register_autograd(_sum_inputs_backward, setup_context=_attend_context)


forbid_double_backward(_project_input_grad, _project_weight_grad, _attend_grads, _convolve_grads, _sum_inputs_grads)


def project(x: Tensor, weight: Tensor, rows: Rows, index: Tensor | None = None, one_to_one: bool = False) -> Tensor:
    """Multiply rows, sorted by relation, by the kernel of their relation.

    ``x`` is ``[N, P, F]``, and row ``u`` reads its entry ``rows.node[u]``, or ``index[u]`` where an index is given, or
    ``u`` itself (``one_to_one``); ``weight`` is ``[R, P, F, M]``; the result is ``[U, P, M]``. The axis ``P`` is a
    batch: each entry has kernels of its own.
    """
    out: Tensor = _project(x, weight, list(rows), index, one_to_one)
    return out


def attend(
    values: Tensor,  # [U, H, D], one per source row
    queries: Tensor | None,  # [V, H, A], one per target row; None: constant attention
    keys: Tensor | None,  # [U, H, A]
    edge_logits: Tensor | None,  # [E, H], sorted edges
    structure: Structure,
    attention: Attention,
    state: Tensor | None,  # (seed, call number) of the dropout masks; None: no dropout
) -> tuple[Tensor, Tensor]:
    """Return the heads' outputs ``[N, H, D]`` and the attention of the sorted edges ``[E, H]``.

    A backend may give the attention the sign of its score, which backward needs; its absolute value is the attention.
    """
    out: tuple[Tensor, Tensor] = _attend(values, queries, keys, edge_logits, structure.leaves(), state, *attention)
    return out


def convolve(
    x: Tensor,  # [N, F], or [N, P, F]: a batch, each entry with its own share of the heads
    kernels: Tensor,  # [R, H, F, D], of the values
    attention_kernels: Tensor | None,  # [R, H, 2 D, A], of queries and then keys, from values; None: constant attention
    edge_logits: Tensor | None,
    structure: Structure,
    attention: Attention,
    state: Tensor | None,
    aggregated: tuple[bool, ...] = (),  # per relation: sum the inputs first, then project; empty: none
    bias: Tensor | None = None,  # [H * D], added to each node's outputs
) -> tuple[Tensor, Tensor]:
    """``attend`` with values, keys and queries that are projections of ``x``; ``aggregated`` is not for batches."""
    flags = list(aggregated) or [False]
    inputs = (x, kernels, attention_kernels, edge_logits, bias)
    out, weights, *_ = _convolve(*inputs, structure.leaves(), state, flags, *attention)
    return out, weights


def sum_inputs(
    x: Tensor,  # [N, F]
    queries: Tensor | None,
    keys: Tensor | None,
    edge_logits: Tensor | None,
    structure: Structure,
    attention: Attention,
    state: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Return the weighted sums of inputs per target row ``[V, H, F]``, and the attention; no feature dropout."""
    across, negative_slope, _, edge_dropout, backend = attention
    out: tuple[Tensor, Tensor] = _sum_inputs(
        x, queries, keys, edge_logits, structure.leaves(), state, across, negative_slope, edge_dropout, backend
    )
    return out
