"""Tiles of consecutive rows of one relation, and matrix products of them, for the kernels of projections.

The first tile of relation ``r`` has the number ``relation_ptr[r] // tile size + r``, so no table of tiles is needed.
"""

# ruff: noqa: N803
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from rgat.ops.cache import cached
from rgat.ops.triton.launch import LARGE
from rgat.ops.triton.recording import allows_tf32


@triton.jit
def tile(number, order, relation_ptr, num_relations, ROWS: tl.constexpr, RP: tl.constexpr):
    """Return the number of a tile, its relation and its range of rows, which may be empty."""
    if order is not None:
        number = tl.load(order + number)
    count = number * 0  # relations whose tiles begin at or before this one
    for start in range(0, num_relations, RP):
        lane = start + tl.arange(0, RP)
        begins = tl.load(relation_ptr + lane, lane < num_relations, 0) // ROWS + lane
        count += tl.sum(((begins <= number) & (lane < num_relations)).to(tl.int32))
    relation = count - 1
    begin = tl.load(relation_ptr + relation)
    begin += (number - begin // ROWS - relation) * ROWS
    end = tl.minimum(begin + ROWS, tl.load(relation_ptr + relation + 1))
    return number.to(tl.int64), relation.to(tl.int64), begin, end


@triton.jit
def load_rows(x, row, live, p, column, P: tl.constexpr, C: tl.constexpr):
    """Return ``x[row, p, column]`` of ``x`` ``[rows, P, C]``."""
    at = ((row.to(tl.int64) * P + p) * C)[:, None] + column[None, :]
    return tl.load(x + at, live[:, None] & (column < C)[None, :], 0.0)


@triton.jit
def rows_to_read(node, row, end):
    """Return the rows of ``x`` that some rows read: their nodes, or without ``node`` the rows themselves."""
    return row if node is None else tl.load(node + row, row < end, 0)


@triton.jit
def dot(a, b, total, PRECISION: tl.constexpr):
    """Return ``total + a @ b``; float64 (``PRECISION`` None) does not use tensor cores."""
    if PRECISION is None:
        total += tl.sum(a[:, :, None] * b[None, :, :], 1)
    else:
        total = tl.dot(a, b, total, input_precision=PRECISION)
    return total


@triton.jit
def halves(x, top):
    """Return two float16 numbers whose sum is ``x`` times a power of two, and the inverse of that power.

    Together they have the 22 bits of two tf32 numbers, but multiply at twice the speed and can be transposed. ``top``
    is the largest ``|x|``. Numbers more than 2^17 times smaller keep fewer bits, so gradients of kernels use one
    ``top`` per feature, and products of rows one per row.
    """
    bits = tl.minimum(tl.maximum(267 - (top.to(tl.int32, bitcast=True) >> 23), 1), 253)
    x = x * (bits << 23).to(tl.float32, bitcast=True)
    high = x.to(tl.float16)
    return high, (x - high.to(tl.float32)).to(tl.float16), ((254 - bits) << 23).to(tl.float32, bitcast=True)


@triton.jit
def dot_halves(a, a_low, b, b_low, total):
    """Return ``total + a @ b`` for numbers split by ``halves``."""
    total = tl.dot(a_low, b, total)
    total = tl.dot(a, b_low, total)
    return tl.dot(a, b, total)


@triton.jit
def split(x, BY_ROW: tl.constexpr, SPLIT: tl.constexpr):
    """Return ``halves(x)`` with one scale, or one per row; without ``SPLIT`` return ``x`` three times."""
    high, low, undo = x, x, x
    if SPLIT:
        high, low, undo = halves(x, tl.max(tl.abs(x), 1)[:, None] if BY_ROW else tl.max(tl.abs(x)))
    return high, low, undo


@triton.jit
def split_product(a, a_low, a_undo, b, b_low, b_undo, zeros, PRECISION: tl.constexpr, SPLIT: tl.constexpr):
    """Return ``a @ b`` for matrices from ``split``."""
    return dot_halves(a, a_low, b, b_low, zeros) * a_undo * b_undo if SPLIT else dot(a, b, zeros, PRECISION)


def precision(dtype: torch.dtype) -> str | None:
    """Return the ``PRECISION`` of products; "tf32x3" keeps single precision."""
    if dtype == torch.float64:
        return None
    return "tf32x3" if dtype == torch.float32 and not allows_tf32() else "tf32"


def tiles_by_node(node: Tensor | None, relation_ptr: Tensor, num_tiles: int, rows: int) -> Tensor | None:
    """Return an order of the tiles by their first node, so that the L2 cache holds their inputs; None: not cached."""
    if node is None or node.shape[0] <= LARGE:
        return None

    def sort_tiles() -> Tensor:
        begins = relation_ptr[:-1] // rows + torch.arange(relation_ptr.shape[0] - 1, device=node.device)
        tile = torch.arange(num_tiles, device=node.device)
        relation = torch.searchsorted(begins, tile, right=True) - 1
        first = relation_ptr[relation] + (tile - begins[relation]) * rows
        return node[first.clamp(max=node.shape[0] - 1)].sort(stable=True).indices.int()

    order: Tensor | None = cached(node, ("tiles by node", num_tiles, rows), sort_tiles)
    return order


def rows_per_tile(num_rows: int, most: int) -> int:
    """Return a power of two so that, on a small graph, there is about one tile per program."""
    return min(max(1 << (num_rows // 400).bit_length() >> 1, 64), most)


def fit_one_launch(weight: Tensor, widths: Sequence[int]) -> bool:
    """Tell whether one launch serves both parts of a kernel's columns: the second is narrow, both fit into a tile."""
    _, batch, inputs, _ = weight.shape
    fits = batch == 1 and max(inputs, widths[0]) <= 64 and widths[-1] <= 16
    return len(widths) == 2 and fits and weight.dtype != torch.float64
