"""Compute one call of a layer on the requested backend: the reference, or the fused operators."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu

from rgat.ops import reference
from rgat.ops.attention import attend, convolve, dynamic_logits
from rgat.ops.backend import Call, Inputs, LayerCall, Scores
from rgat.ops.dispatch import requested_backend
from rgat.ops.projection import fold_values, project, project_edges
from rgat.structure import Rows, Structure


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
    if x is not None and not is_dynamic and call.node_kernel is None:
        if call.inputs.position is not None:
            has_masks = call.state is not None and call.attention.feature_dropout > 0
            shared = shared._replace(structure=s.reading_at(call.inputs.position, has_masks))
        x, kernels = as_autocast(x), None if scores is None else scores.kernels
        bias = None if call.bias is None else call.bias.to(x.dtype)
        return convolve(x, call.kernel.compose(), kernels, edge_logits, shared, bias)
    is_read_in_place = not is_dynamic and call.node_kernel is None
    held = call.kernel.held_rows(scores is not None) if is_read_in_place else None
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
    values, queries, keys = _rows_of_edges(call, s, scores)
    with torch.autocast(values.device.type, enabled=False):
        if scores.score_kernels is not None:
            assert scores.negative_slope is not None
            inputs = (queries, keys, scores.score_kernels, scores.negative_slope, edge_logits, shared)
            edge_logits = dynamic_logits(*inputs)
            # Queries and keys of zero leave the logits of the edges alone under the multiplicative score.
            queries, keys = (torch.zeros_like(rows[..., :1]) for rows in (queries, keys))
    return attend(values, queries, keys, edge_logits, shared)


def _rows_of_edges(call: LayerCall, s: Structure, scores: Scores) -> tuple[Tensor, Tensor, Tensor]:
    """Return the values ``[U, H, D]``, queries ``[V, H, A]`` and keys ``[U, H, A]`` of the rows at both ends."""
    query_kernel, key_kernel = scores.kernels.chunk(2, dim=2)
    # Logits go through an exponential and cost little: they stay in the parameters' precision under autocast.
    dtype = scores.kernels.dtype
    if call.node_kernel is not None and call.inputs.x is not None:
        values, queries = _values_and_queries(call, query_kernel, s)
    else:
        values, targets = row_values(call, s.sources, s.targets)
        with torch.autocast(values.device.type, enabled=False):
            queries = project(targets.to(dtype), query_kernel, s.targets, one_to_one=True)
    with torch.autocast(values.device.type, enabled=False):
        keys = project(values.to(dtype), key_kernel, s.sources, one_to_one=True)
    return values, queries, keys


def logits_and_values(call: LayerCall) -> tuple[Tensor, Tensor]:
    """Return the logits of the sorted edges ``[E, H]`` and the values of the source rows ``[U, H, D]``.

    A caller that sums over parts of the edges needs them; all others leave the softmax to `compute_layer`.

    Examples:
        >>> import torch
        >>> from rgat import RelationalGraph, nn, ops
        >>> graph = RelationalGraph(torch.tensor([[0, 1], [1, 2]]), torch.tensor([0, 1]), num_nodes=3, num_relations=2)
        >>> kernel = nn.RGCNConv(8, 4, num_relations=2).kernel
        >>> call = ops.LayerCall(ops.Inputs(torch.randn(3, 8)), kernel, None, graph, ops.Attention([False], None))
        >>> logits, values = ops.logits_and_values(call)
        >>> logits.shape, values.shape
        (torch.Size([2, 1]), torch.Size([2, 1, 4]))
    """
    s, scores = call.graph.structure, call.scores
    if scores is None:
        (values,) = row_values(call, s.sources)
        return values.new_zeros(len(s.target), values.shape[1]), values
    values, queries, keys = _rows_of_edges(call, s, scores)
    added = project_edges(scores.edge_attr, scores.edge_kernels, s)
    if scores.score_kernels is not None:
        assert scores.negative_slope is not None
        shared = Call(s, call.attention)
        return dynamic_logits(queries, keys, scores.score_kernels, scores.negative_slope, added, shared), values
    query = queries.index_select(0, s.targets.by_node).index_select(0, s.group)  # [E, H, A]
    key = keys.index_select(0, s.source_row)
    if scores.negative_slope is None:
        logits = (query * key).sum(-1)
        return logits if added is None else logits + added, values
    logits = (query + key).squeeze(-1)
    return leaky_relu(logits if added is None else logits + added, scores.negative_slope), values


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
    if call.inputs.x is None:
        values = call.kernel.look_up(call.inputs.position, *ends)
    else:
        kernels = call.kernel.compose()
        values = tuple(_project_inputs(call.inputs, kernels, rows) for rows in ends)
    if call.node_kernel is None:
        return values
    nodes = call.node_kernel.look_up(call.graph.node_ids, *ends)
    return tuple(value + node for value, node in zip(values, nodes, strict=True))


def _values_and_queries(call: LayerCall, query_kernel: Tensor, s: Structure) -> tuple[Tensor, Tensor]:
    """Return the values of source rows and the queries of target rows, both sums of rows of nodes and projected inputs.

    The queries ``(row + h W) Q`` are ``row Q + h (W Q)``, so inputs are projected to ``A`` columns and not to ``D``.
    """
    assert call.node_kernel is not None
    nodes, target_nodes = call.node_kernel.look_up(call.graph.node_ids, s.sources, s.targets)
    kernels = call.kernel.compose()
    values = _project_inputs(call.inputs, kernels, s.sources)
    queries = project(target_nodes.to(query_kernel.dtype), query_kernel, s.targets, one_to_one=True)
    with torch.autocast(values.device.type, enabled=False):
        folded = kernels @ query_kernel.to(kernels.dtype)
    queries = queries + _project_inputs(call.inputs, folded, s.targets)
    return values + nodes, queries


def _project_inputs(inputs: Inputs, kernels: Tensor, rows: Rows) -> Tensor:
    """Multiply the inputs of rows by kernels ``[R, H, F, C]``, ``[U, H, C]``."""
    assert inputs.x is not None
    x = as_autocast(inputs.x)
    weight = fold_values(kernels, x)
    index = None if inputs.position is None else inputs.position.index_select(0, rows.node).int()
    projected = project(x if x.dim() == 3 else x.unsqueeze(1), weight, rows, index)
    return projected.view(-1, *kernels.shape[1::2])


def as_autocast(x: Tensor) -> Tensor:
    """Cast features to the dtype that autocast asks for, if it is on."""
    device = x.device.type
    if torch.is_autocast_enabled(device) and x.dtype != torch.float64:
        return x.to(torch.get_autocast_dtype(device))
    return x
