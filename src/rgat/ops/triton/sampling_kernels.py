"""Draw the edges of sampled groups on a GPU; see `ops/sampling.py` for what is drawn."""

# ruff: noqa: N803
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from rgat.ops.triton.launch import launch, num_blocks, power_of_two

MOST = 1024  # edges per group that one program can sort


@triton.jit(do_not_specialize=["num_groups", "most"])
def _draw_kernel(edge_id, keys, begin, degree, sizes, group_ptr, num_groups, most, G: tl.constexpr, K: tl.constexpr):
    """Draw by Floyd's algorithm for ``G`` groups at once: ``K`` columns hold what each group has drawn so far."""
    group = tl.program_id(0).to(tl.int64) * G + tl.arange(0, G)
    live = group < num_groups
    available = tl.load(degree + group, live, 0)
    wanted = tl.load(sizes + group, live, 0)
    is_sampled = wanted < available
    key = tl.load(keys + group, live, 0).to(tl.uint64)
    low, high = key.to(tl.uint32), (key >> 32).to(tl.uint32)
    column = tl.arange(0, K)
    drawn = tl.full([G, K], 0x7FFFFFFF, tl.int32)
    for j in range(most):
        last = available - wanted + j
        bits = (low + tl.cast(j, tl.uint32) * 0x9E3779B9) ^ high
        bits = (bits ^ (bits >> 16)) * 0x85EBCA6B
        bits = (bits ^ (bits >> 13)) * 0xC2B2AE35
        bits = bits ^ (bits >> 16)
        candidate = ((bits.to(tl.uint64) * (last + 1).to(tl.uint64)) >> 32).to(tl.int32)
        is_repeated = tl.max((drawn == candidate[:, None]).to(tl.int32), 1) > 0
        value = tl.where(is_repeated, last.to(tl.int32), candidate)
        is_next = (column[None, :] == j) & (is_sampled & (j < wanted))[:, None]
        drawn = tl.where(is_next, value[:, None], drawn)
    drawn = tl.sort(drawn, 1)
    first = tl.load(begin + group, live, 0)
    at = tl.load(group_ptr + group, live, 0)
    exists = is_sampled[:, None] & (column[None, :] < wanted[:, None])
    tl.store(edge_id + at[:, None] + column[None, :], first[:, None] + drawn, exists)


def draw_edges(
    edge_id: Tensor, keys: Tensor, begin: Tensor, degree: Tensor, sizes: Tensor, group_ptr: Tensor, most: int
) -> None:
    """Overwrite the edges of groups of which not all are taken."""
    columns = power_of_two(most, 2, MOST)
    together = max(1, 2048 // columns)
    tensors = (edge_id, keys, begin, degree, sizes, group_ptr)
    if len(sizes):
        grid = (num_blocks(len(sizes), together), 1, 1)
        launch(_draw_kernel, grid, tensors, (len(sizes), most), G=together, K=columns)
