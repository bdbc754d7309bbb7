"""Find relations whose target rows are the source rows of another relation, as with inverses and self-loops.

Then one product of a row's inputs makes its values, its keys and the queries of the paired relation: in a graph with
inverse relations, the targets of a relation are the sources of its inverse, in the same order.
"""

from __future__ import annotations

import weakref
from contextlib import nullcontext
from typing import NamedTuple

import torch
from torch import Tensor

from rgat.ops.cache import at_once, cached, is_compiled_code, kept_with
from rgat.structure import Rows, Structure

_MIN_ROWS = 1 << 17  # finding pairs waits for the device, which smaller batches of every step must not


class Pairs(NamedTuple):
    """For each relation, the one whose target rows are its source rows: ``target row = source row + shift``."""

    relation: Tensor  # [R] int32
    shift: Tensor  # [R] int32


def paired_rows(s: Structure) -> Pairs | None:
    """Return the pairs of all relations of a large graph; None where some relation has none.

    They are found in the first call, so that all steps round alike; but not in that of compiled code, and not again for
    other nodes in the same rows, as `Structure.reading_at` makes in every call.
    """
    if len(s.targets.node) < max(_MIN_ROWS, len(s.sources.node)):
        return None
    first = kept_with(s.targets.by_node).setdefault("first nodes", weakref.ref(s.targets.node))
    if first() is not s.targets.node:
        return None
    with nullcontext() if is_compiled_code() else at_once():
        found = cached(s.targets.node, ("pairs",), lambda: (weakref.ref(s.sources.node), find_pairs(s)))
    if found is None or found[0]() is not s.sources.node:  # while a step is captured, or with other sources
        return None
    return found[1] or None


def find_pairs(s: Structure) -> tuple[()] | Pairs:
    """Return the pairs of all relations, or nothing where some relation has none."""
    sources, targets = s.sources, s.targets
    if len(sources.node) != len(targets.node):
        return ()
    of_sources, of_targets = _by_signature(sources), _by_signature(targets)
    other = torch.empty_like(of_sources)
    other[of_sources] = of_targets
    shift = targets.relation_ptr[:-1].index_select(0, other) - sources.relation_ptr[:-1]
    row = torch.arange(len(sources.node), device=sources.node.device) + shift.index_select(0, sources.relation)
    if len(row) == 0 or int(row.min()) < 0 or int(row.max()) >= len(row):
        return ()
    same_nodes = torch.equal(targets.node.index_select(0, row), sources.node)
    same_relations = torch.equal(targets.relation.index_select(0, row), other.int().index_select(0, sources.relation))
    return Pairs(other.int(), shift.int()) if same_nodes and same_relations else ()


def _by_signature(rows: Rows) -> Tensor:
    """Return the relations in an order that depends only on the nodes of each, ``[R]``."""
    mixed = (rows.node.long() * 0x9E3779B97F4A7C1 + 1) * (rows.node.long() | 1)  # sums wrap
    total = torch.cat([mixed.new_zeros(1), mixed.cumsum(0)]).index_select(0, rows.relation_ptr.long())
    order = total.diff().argsort(stable=True)
    return order[rows.relation_ptr.diff().index_select(0, order).argsort(stable=True)]
