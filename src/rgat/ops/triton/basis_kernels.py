"""Combine bases for rows, and the gradients of that, in Triton; see ``ops/bases.py``."""

# ruff: noqa: N803
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from rgat.ops.torch import backend as vectorised
from rgat.ops.triton.launch import MAX_CHANNELS, launch, num_blocks, power_of_two, sum_dtype
from rgat.ops.triton.segment_kernels import Segments, segment_sum
from rgat.structure import Rows


@triton.jit(do_not_specialize=["size"])
def _row_kernel(
    out, table, coefficients, values, node, relation, size, H: tl.constexpr, G: tl.constexpr, B: tl.constexpr,
    D: tl.constexpr, T: tl.constexpr, DP: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Write the sum over the bases for some rows and heads; or, with ``values``, their dot product with each basis."""
    number = tl.program_id(0).to(tl.int64) * T + tl.arange(0, T)
    live = number < size
    row, head = number // H, number % H
    d = tl.arange(0, DP)
    inside = live[:, None] & (d < D)[None, :]
    group = head if G == H else head * 0
    at = (tl.load(node + row, live, 0).to(tl.int64) * G + group) * (B * D)
    if values is None:
        weight = coefficients + (tl.load(relation + row, live, 0).to(tl.int64) * H + head) * B
        total = tl.zeros([T, DP], ACC)
        for b in range(B):
            basis = tl.load(table + (at + b * D)[:, None] + d[None, :], inside, 0.0).to(ACC)
            total += tl.load(weight + b, live, 0.0).to(ACC)[:, None] * basis
        tl.store(out + (number * D)[:, None] + d[None, :], total, inside)
    else:
        value = tl.load(values + (number * D)[:, None] + d[None, :], inside, 0.0).to(ACC)
        for b in range(B):
            basis = tl.load(table + (at + b * D)[:, None] + d[None, :], inside, 0.0).to(ACC)
            tl.store(out + number * B + b, tl.sum(value * basis, 1), live)


@triton.jit
def _collect_kernel(
    out, values, coefficients, relation, by_node, node_ptr, H: tl.constexpr, G: tl.constexpr, B: tl.constexpr,
    D: tl.constexpr, BP: tl.constexpr, DP: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Write the sum of outer products of coefficients and values over the rows of one node, for one group of heads."""
    node = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1)
    b = tl.arange(0, BP)
    d = tl.arange(0, DP)
    total = tl.zeros([BP, DP], ACC)
    for position in range(tl.load(node_ptr + node), tl.load(node_ptr + node + 1)):
        row = tl.load(by_node + position).to(tl.int64)
        weight = coefficients + tl.load(relation + row).to(tl.int64) * (H * B)
        for k in range(H // G):
            head = group * (H // G) + k
            value = tl.load(values + (row * H + head) * D + d, d < D, 0.0).to(ACC)
            total += tl.load(weight + head * B + b, b < B, 0.0).to(ACC)[:, None] * value[None, :]
    at = ((node * G + group) * B + b)[:, None] * D + d[None, :]
    tl.store(out + at, total, (b < B)[:, None] & (d < D)[None, :])


def _fill_rows(
    out: Tensor, table: Tensor, coefficients: Tensor | None, values: Tensor | None, rows: Rows, node: Tensor, heads: int
) -> None:
    """Fill ``out`` by ``_row_kernel``."""
    groups, bases, channels = table.shape[1:]
    padded, size = power_of_two(channels), rows.node.shape[0] * heads
    together = power_of_two(max(1, 512 // padded), 1, 128)
    if out.numel() > 0:
        launch(
            _row_kernel, (num_blocks(size, together), 1, 1),
            (out, table.contiguous(), coefficients, values, node, rows.relation), (size,), 4, H=heads, G=groups,
            B=bases, D=channels, T=together, DP=padded, ACC=sum_dtype(table.dtype)[1],
        )  # fmt: skip


def spread(table: Tensor, coefficients: Tensor, rows: Rows, node: Tensor) -> Tensor:
    """Return the bases ``table`` ``[N, G, B, D]`` combined for each row, ``[U, H, D]``."""
    if table.shape[3] > MAX_CHANNELS:
        return vectorised.spread(table, coefficients, rows, node)
    heads = coefficients.shape[1]
    out = table.new_empty(rows.node.shape[0], heads, table.shape[3])
    _fill_rows(out, table, coefficients.contiguous(), None, rows, node, heads)
    return out


def pair(table: Tensor, values: Tensor, rows: Rows, node: Tensor) -> Tensor:
    """Return the gradient of the coefficients of ``spread`` and ``collect``, ``[R, H, B]``."""
    if table.shape[3] > MAX_CHANNELS:
        return vectorised.pair(table, values, rows, node)
    num_relations, heads, bases = rows.relation_ptr.shape[0] - 1, values.shape[1], table.shape[2]
    per_row = table.new_empty(rows.node.shape[0], heads * bases, 1)
    out = table.new_empty(num_relations, heads * bases, 1)
    if per_row.numel() == 0 or values.numel() == 0:
        return out.zero_().view(num_relations, heads, bases)
    _fill_rows(per_row, table, None, values.contiguous(), rows, node, heads)
    segment_sum(out, per_row, Segments(rows.relation_ptr, rows.relation), index=None)
    return out.view(num_relations, heads, bases)


def collect(values: Tensor, coefficients: Tensor, rows: Rows, node: Tensor, num_nodes: int, groups: int) -> Tensor:
    """Apply the transpose of ``spread``: from rows ``[U, H, D]`` to nodes and bases ``[N, G, B, D]``."""
    (_, heads, channels), bases = values.shape, coefficients.shape[2]
    fits_tile = power_of_two(bases) * power_of_two(channels) <= 4 * MAX_CHANNELS
    if not fits_tile:
        return vectorised.collect(values, coefficients, rows, node, num_nodes, groups)
    by_node, node_ptr = rows.by_node, rows.node_ptr
    if node is not rows.node:
        in_order, by_node = node.sort(stable=True)
        nodes = torch.arange(num_nodes + 1, dtype=node.dtype, device=node.device)
        by_node, node_ptr = by_node.int(), torch.searchsorted(in_order, nodes, out_int32=True)
    out = values.new_empty(num_nodes, groups, bases, channels)
    if out.numel() > 0:
        launch(
            _collect_kernel, (num_nodes, groups, 1),
            (out, values.contiguous(), coefficients.contiguous(), rows.relation, by_node, node_ptr), (), 1,
            H=heads, G=groups, B=bases, D=channels, BP=power_of_two(bases), DP=power_of_two(channels),
            ACC=sum_dtype(values.dtype)[1],
        )  # fmt: skip
    return out
