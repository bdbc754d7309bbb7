"""Kernels for the CPU: compiled loops with BLAS inside, on the threads of PyTorch.

Gradients of values live only in a buffer of a few thousand rows: the loop over source rows fills it, and the gradients
of inputs and kernels are taken from it at once, while it is in the cache. Attention ``[E, H]`` is the only thing kept
per edge between forward and backward.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rgat.ops.backend import Call, Operands, Saved
from rgat.ops.numba import blas, projection_loops, row_loops
from rgat.ops.numba.arrays import as_array, indices
from rgat.ops.numba.edges import EdgeLoops
from rgat.ops.numba.projection import (
    fold,
    fold_backward,
    project,
    project_backward,
    project_input_grad,
    project_sums,
    project_weight_grad,
    scores_backward,
    sums_grad,
)
from rgat.ops.numba.threads import cut, even, run
from rgat.ops.torch.backend import sum_rows
from rgat.structure import Rows, pointers

__all__ = [
    "attend",
    "attend_backward",
    "attend_table",
    "attend_table_backward",
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
    "why_not",
]

TAKES_HALF = False
KEYS_BEHIND_VALUES = True
READS_TABLES = True


def why_not() -> str | None:
    """Say why these kernels cannot be used on this machine; None if they can."""
    return None if blas.address(torch.float32) else "this build of PyTorch does not let its BLAS be called"


def attend(
    values: Tensor, queries: Tensor | None, keys: Tensor | None, edge_logits: Tensor | None, call: Call
) -> tuple[Tensor, Tensor]:
    """Return the outputs ``[N, H, D]`` and the attention ``[E, H]``."""
    edge_loops = _attend_loops(values, queries, keys, edge_logits, call)
    return edge_loops.forward(values.new_empty(0, 0), values.shape[2], values.new_empty(0, values.shape[1], 0))


def _attend_loops(
    values: Tensor, queries: Tensor | None, keys: Tensor | None, edge_logits: Tensor | None, call: Call
) -> EdgeLoops:
    edge_loops = EdgeLoops(call, queries, edge_logits, values)
    rows = values.flatten(1).unsqueeze(1)
    edge_loops.read(rows, keys)
    if len(edge_loops.feature_mask[1]):
        rows = rows.clone()
        edge_loops.mask_features(rows[:, 0], values.shape[2])
        edge_loops.read(rows, keys)
    return edge_loops


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
    """Return the gradients of values, queries, keys and edge logits."""
    edge_loops = _attend_loops(values, queries, keys, edge_logits, call)
    dvalues, dkeys = torch.empty_like(values), values.new_empty((0, 0, 0) if keys is None else keys.shape)
    dlogits, dqueries = edge_loops.backward_by_edge(attention, grad, grad_attention, dvalues.flatten(1), dkeys, None)
    return dvalues, dqueries, dkeys, dlogits


def attend_table(
    table: Tensor,
    query_kernel: Tensor | None,
    key_kernel: Tensor | None,
    edge_logits: Tensor | None,
    places: list[Tensor],
    call: Call,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Attend to rows of a table where they are; return also the queries and keys made of them."""
    (source, _, target, _, _), s = places, call.structure
    queries = keys = None
    if query_kernel is not None and key_kernel is not None:
        queries = project(table, query_kernel, s.targets, target)
        keys = project(table, key_kernel, s.sources, source)
    edge_loops = _table_loops(table, queries, keys, edge_logits, places, call)
    out, attention = edge_loops.forward(table.new_empty(0, 0), table.shape[2], table.new_empty(0, table.shape[1], 0))
    if queries is None or keys is None:
        queries, keys = table.new_empty(0), table.new_empty(0)
    return out, attention, queries, keys


def _table_loops(
    table: Tensor,
    queries: Tensor | None,
    keys: Tensor | None,
    edge_logits: Tensor | None,
    places: list[Tensor],
    call: Call,
) -> EdgeLoops:
    edge_loops = EdgeLoops(call, queries, edge_logits, table)
    if len(edge_loops.feature_mask[1]):
        values = table.index_select(0, places[0]).flatten(1)
        edge_loops.read(values.unsqueeze(1), keys)
        edge_loops.mask_features(values, table.shape[2])
    else:
        edge_loops.read(table.flatten(1).unsqueeze(1), keys)
        edge_loops.value_row = indices(places[4])
    return edge_loops


def attend_table_backward(
    grad: Tensor,
    grad_attention: Tensor | None,
    saved: tuple[Tensor, Tensor, Tensor],
    inputs: tuple[Tensor, Tensor | None, Tensor | None, Tensor | None],
    places: list[Tensor],
    call: Call,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of the table, both kernels and the edge logits."""
    (attention, queries, keys), (table, query_kernel, key_kernel, edge_logits) = saved, inputs
    query_rows, key_rows = (None, None) if query_kernel is None else (queries, keys)
    edge_loops, s = _table_loops(table, query_rows, key_rows, edge_logits, places, call), call.structure
    source, source_back, target, _, _ = places
    dtable, dkeys = torch.empty_like(table), torch.empty_like(keys if query_kernel is not None else keys.view(0, 0, 0))
    flat = dtable.flatten(1)
    run(row_loops.clear_rows, even(0, len(flat), flat.shape[1]), indices(source_back), as_array(flat))
    dlogits, dqueries = edge_loops.backward_by_edge(attention, grad, grad_attention, flat, dkeys, source)
    dquery_kernel = dkey_kernel = table.new_empty(0)
    if query_kernel is not None and key_kernel is not None:
        dquery_kernel = scores_backward(table, query_kernel, dqueries, s.targets, target, flat)
        dkey_kernel = scores_backward(table, key_kernel, dkeys, s.sources, source, flat)
    return dtable, dquery_kernel, dkey_kernel, dlogits


def convolve(operands: Operands, bias: Tensor | None, call: Call) -> tuple[Tensor, Saved]:
    """Return the outputs ``[N, H, D]``, and what the backward pass needs; feature dropout is applied to the values."""
    (x, weight, query_weight, edge_logits), s = operands, call.structure
    heads, (_, batch, _, columns), queries = len(call.attention.across), weight.shape, None
    if query_weight is not None:
        queries = project(x, query_weight, s.targets, s.targets.node)
        queries = queries.view(len(queries), heads, batch * query_weight.shape[3] // heads)
    edge_loops = EdgeLoops(call, queries, edge_logits, x)
    channels = batch * columns // heads - edge_loops.queries.shape[2]
    first_key = heads // batch * channels
    values = project(x, weight, s.sources, s.sources.node, edge_loops.aggregated, first_key)
    keys = values[:, :, first_key:].contiguous() if queries is not None else values.new_empty(len(values), batch, 0)
    sums = x.new_empty(len(s.targets.node) if any(call.aggregated) else 0, heads, x.shape[2])
    edge_loops.read(values, keys)
    edge_loops.mask_features(values.flatten(1), channels)
    out, attention = edge_loops.forward(x.flatten(1), channels, sums)
    if any(call.aggregated):
        out += project_sums(sums, weight, edge_loops.aggregated, s, heads, channels).view(out.shape)
    if bias is not None:
        out += bias.view(out.shape[1:])
    return out, Saved(attention, x.new_empty(0, heads, 0) if queries is None else queries, values, keys, sums)


def convolve_backward(
    grad: Tensor, grad_attention: Tensor | None, saved: Saved, operands: Operands, call: Call, with_x: bool
) -> tuple[Tensor | None, ...]:
    """Return the gradients of the operands; None for ``x`` unless ``with_x``."""
    (x, weight, query_weight, edge_logits), s, sums = operands, call.structure, saved.sums
    edge_loops = EdgeLoops(call, None if query_weight is None else saved.queries, edge_logits, x)
    edge_loops.read(saved.values, saved.keys)
    attention, grad_attention = edge_loops.split_sign(saved.attention, grad_attention)
    dsums = torch.empty_like(sums)
    dsums_weight = sums_grad(dsums, grad, sums, weight, edge_loops.aggregated, s) if any(call.aggregated) else None
    dlogits, dqueries = edge_loops.backward_by_target(x.flatten(1), attention, grad, dsums, grad_attention)
    dx, dweight = edge_loops.table_backward(x, weight, attention, grad, dlogits, dsums, with_x)
    if dsums_weight is not None:
        dweight += dsums_weight
    dquery_weight = None
    if query_weight is not None:
        drows = dqueries.view(len(dqueries), query_weight.shape[1], query_weight.shape[3])
        dquery_weight = project_backward(drows, x, query_weight, s.targets, s.targets.node, dx)
    return dx.total() if with_x else None, dweight, dquery_weight, dlogits


def spread(table: Tensor, coefficients: Tensor, rows: Rows, node: Tensor) -> Tensor:
    """Combine the bases ``table`` ``[N, G, B, D]`` for each row; see `rgat.ops.bases`."""
    (_, _, bases, channels), heads = table.shape, coefficients.shape[1]
    out = table.new_empty(len(rows.relation), heads, channels)
    arrays = (as_array(t) for t in (node, rows.relation, table, coefficients, out))
    run(projection_loops.spread, even(0, len(out), heads * bases * channels), *arrays)
    return out


def collect(values: Tensor, coefficients: Tensor, rows: Rows, node: Tensor, num_nodes: int, groups: int) -> Tensor:
    """Apply the transpose of ``spread``: from rows ``[U, H, D]`` to nodes and bases ``[N, G, B, D]``."""
    (_, heads, channels), bases = values.shape, coefficients.shape[2]
    if node is rows.node:
        by_node, node_ptr = rows.by_node, rows.node_ptr
    else:
        by_node, node_ptr = node.argsort(stable=True).int(), pointers(node.bincount(minlength=num_nodes))
    out = values.new_empty(num_nodes, groups, bases, channels)
    arrays = (as_array(t) for t in (by_node, node_ptr, rows.relation, values, coefficients, out))
    run(projection_loops.collect, cut(indices(node_ptr), 0, num_nodes, heads * bases * channels), *arrays)
    return out


def pair(table: Tensor, values: Tensor, rows: Rows, node: Tensor) -> Tensor:
    """Return the gradient of the coefficients of ``spread``, ``[R, H, B]``."""
    (_, _, bases, channels), heads = table.shape, values.shape[1]
    out = values.new_empty(len(rows.relation_ptr) - 1, heads, bases)
    arrays = (as_array(t) for t in (node, rows.relation_ptr, table, values, out))
    run(projection_loops.pair, cut(indices(rows.relation_ptr), 0, len(out), heads * bases * channels), *arrays)
    return out


def gather_back(grads: list[Tensor], backs: list[Tensor]) -> Tensor:
    """Return the gradient of a table whose rows were looked up at one or two ends."""
    out = grads[0].new_empty(len(backs[0]), *grads[0].shape[1:])
    flat = [as_array(t).reshape(len(t), out[0].numel() if len(out) else 0) for t in (out, grads[0], grads[-1])]
    bounds = even(0, len(out), 3 * flat[0].shape[1])
    run(row_loops.gather_back, bounds, *flat, *(as_array(t) for t in (backs[0], backs[-1])), len(grads) == 2)
    return out
