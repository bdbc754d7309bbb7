"""Compute one call of a layer on the requested backend: the reference, or the fused operators."""

from __future__ import annotations

import torch
from torch import Tensor

from rgat.ops import reference
from rgat.ops.attention import attend, convolve, dynamic_logits
from rgat.ops.backend import Call, LayerCall, Scores
from rgat.ops.dispatch import requested_backend
from rgat.ops.projection import project, project_edges
from rgat.ops.torch.backend import fold_heads
from rgat.structure import Rows


def compute_layer(call: LayerCall) -> tuple[Tensor, Tensor]:
    """Return the outputs ``[N, H, D]``, bias included, and the attention of the sorted edges ``[E, H]``.

    Take the absolute value of the attention: a backend may keep the sign of the score in the sign bit.

    Examples:
        >>> import torch
        >>> from rgat import RelationalGraph, nn, ops
        >>> edges, types = torch.tensor([[0, 1, 2], [1, 2, 1]]), torch.tensor([0, 0, 1])
        >>> graph = RelationalGraph(edges, types, num_nodes=3, num_relations=2)
        >>> kernel = nn.RGCNConv(8, 4, num_relations=2).kernel
        >>> call = ops.LayerCall(ops.Inputs(torch.randn(3, 8)), kernel, None, graph, ops.Attention([True], None))
        >>> out, attention = ops.compute_layer(call)
        >>> out.shape, attention.abs().sum().item()
        (torch.Size([3, 1, 4]), 2.0)
    """
    word = requested_backend()
    if word == "reference":
        return reference.compute(call)
    s, scores, x = call.graph.structure, call.scores, call.inputs.x
    shared = Call(s, call.attention._replace(backend=word), call.state, list(call.aggregated) or [False])
    edge_logits = None if scores is None else project_edges(scores.edge_attr, scores.edge_kernels, s)
    is_dynamic = scores is not None and scores.score_kernels is not None  # not linear in queries and keys
    if x is not None and not is_dynamic:
        if call.inputs.position is not None:
            shared = shared._replace(structure=s.reading_at(call.inputs.position))
        x, kernels = as_autocast(x), None if scores is None else scores.kernels
        bias = None if call.bias is None else call.bias.to(x.dtype)
        return convolve(x, call.kernel.compose(), kernels, edge_logits, shared, bias)
    held = None if is_dynamic else call.kernel.held_rows(scores is not None)
    if held is not None:
        table, places = held
        query_kernel, key_kernel = (None, None) if scores is None else scores.kernels.chunk(2, dim=2)
        out, attention = attend(table, query_kernel, key_kernel, edge_logits, shared, places)
    else:
        out, attention = _attend_to_values(call, shared, scores, edge_logits)
    return out if call.bias is None else out + call.bias.view(out.shape[1:]).to(out.dtype), attention


def _attend_to_values(
    call: LayerCall, shared: Call, scores: Scores | None, edge_logits: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Make values of the rows at both ends of the edges, then queries and keys of these."""
    s = shared.structure
    if scores is None:
        (values,) = row_values(call, s.sources)
        return attend(values, None, None, None, shared)
    values, targets = row_values(call, s.sources, s.targets)
    # Logits go through an exponential and cost little: they stay in the parameters' precision under autocast.
    dtype = scores.kernels.dtype
    with torch.autocast(values.device.type, enabled=False):
        query_kernel, key_kernel = scores.kernels.chunk(2, dim=2)
        queries = project(targets.to(dtype), query_kernel, s.targets, one_to_one=True)
        keys = project(values.to(dtype), key_kernel, s.sources, one_to_one=True)
        if scores.score_kernels is not None:
            assert scores.negative_slope is not None
            inputs = (queries, keys, scores.score_kernels, scores.negative_slope, edge_logits, shared)
            edge_logits = dynamic_logits(*inputs)
            # Queries and keys of zero leave the logits of the edges alone under the multiplicative score.
            queries, keys = (torch.zeros_like(rows[..., :1]) for rows in (queries, keys))
    return attend(values, queries, keys, edge_logits, shared)


def row_values(call: LayerCall, *ends: Rows) -> tuple[Tensor, ...]:
    """Return the values ``g`` of the rows at each end, ``[U, H, D]``.

    Examples:
        >>> import torch
        >>> from rgat import RelationalGraph, nn, ops
        >>> edges, types = torch.tensor([[0, 1, 2], [1, 2, 1]]), torch.tensor([0, 0, 1])
        >>> graph = RelationalGraph(edges, types, num_nodes=3, num_relations=2)
        >>> kernel = nn.RGCNConv(8, 4, num_relations=2).kernel
        >>> call = ops.LayerCall(ops.Inputs(torch.randn(3, 8)), kernel, None, graph, ops.Attention([False], None))
        >>> (values,) = ops.row_values(call, graph.structure.sources)
        >>> values.shape  # three distinct pairs of relation and source
        torch.Size([3, 1, 4])
    """
    x, kernel = call.inputs.gathered(), call.kernel
    if x is None:
        return kernel.look_up(call.inputs.position, *ends)
    x, kernels = as_autocast(x), kernel.compose()
    folded = fold_heads(kernels).to(x.dtype)
    return tuple(project(x.unsqueeze(1), folded, rows).view(-1, *kernels.shape[1::2]) for rows in ends)


def as_autocast(x: Tensor) -> Tensor:
    """Cast features to the dtype that autocast asks for, if it is on."""
    device = x.device.type
    if torch.is_autocast_enabled(device) and x.dtype != torch.float64:
        return x.to(torch.get_autocast_dtype(device))
    return x
