"""The exact output of a layer for one node with more edges than a block may have.

The edges come in parts. For each relation and head this keeps the largest logit ``m`` so far, the sum ``z`` of
``exp(logit - m)`` and the sum ``y`` of ``exp(logit - m) * value``. A part with a larger logit rescales the sums of the
parts before it. In the end

    within relations:  output = sum over r of y_r / z_r
    across relations:  output = sum over r of w_r y_r / sum over r of w_r z_r,   w_r = exp(m_r - largest m)

The sums are in double precision, so their error does not grow with the number of edges.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from rgat.graph import RelationalGraph
from rgat.nn import FeatureRows, RGATConv, RGCNConv

Part = tuple[Tensor | FeatureRows | None, RelationalGraph]
Conv = RGATConv | RGCNConv


class Sums(NamedTuple):
    """The sums over the edges into one node, for each relation and head, in double precision."""

    largest: Tensor  # [R, H], m
    total: Tensor  # [R, H], z
    weighted: Tensor  # [R, H, D], y
    dtype: torch.dtype  # of the values

    def softmax(self, across: Tensor) -> tuple[Tensor, Tensor]:
        """Return the shift and the divisor of the softmax of each relation and head, ``[R, H]``.

        Heads that are ``across`` relations have the same for all relations. Attention is ``exp(logit - shift) /
        divisor``.
        """
        shift = torch.where(across, self.largest.amax(0), self.largest)
        shift = torch.where(shift == -torch.inf, 0, shift)  # no edges
        total = self.total * (self.largest - shift).exp()
        return shift, torch.where(across, total.sum(0), total)

    def shares(self, across: Tensor) -> Tensor:
        """Return what each relation adds to the output, ``[R, H, D]``."""
        shift, divisor = self.softmax(across)
        divisor = torch.where(divisor > 0, divisor, 1)
        return self.weighted * ((self.largest - shift).exp() / divisor).unsqueeze(-1)


def is_across(conv: Conv) -> Tensor:
    """Return for each head, of all members, whether its softmax is across relations."""
    across = [word == "across" for word in conv.scope] * (conv.members or 1)
    return torch.tensor(across, device=next(conv.parameters()).device)


def relation_of_edges(graph: RelationalGraph) -> Tensor:
    """Return the relation of each edge of a graph, in sorted order, int64."""
    s = graph.structure
    return s.sources.relation.index_select(0, s.source_row).long()


def hub_sums(conv: Conv, parts: Iterable[Part], constant_attention: bool) -> Sums:
    """Return the sums over the edges of all parts.

    Args:
        conv: the layer.
        parts: inputs and graphs, each with some of the edges into the node, which is the first of each graph. There is
            at least one, which may be without edges.
        constant_attention: give all edges of a softmax group the same attention.
    """
    sums: Sums | None = None
    for x, graph in parts:
        logits, values = conv.logits_and_values(x, graph, constant_attention)
        relation, logits = relation_of_edges(graph), logits.double()
        if sums is None:
            none = logits.new_zeros(graph.num_relations, *values.shape[1:])
            sums = Sums(none[..., 0] - torch.inf, none[..., 0], none, values.dtype)
        before, total, weighted, dtype = sums
        largest = before.scatter_reduce(0, relation.unsqueeze(1).expand_as(logits), logits, "amax")
        scale = torch.where(before == -torch.inf, 0, (before - largest).exp())
        weight = (logits - largest.index_select(0, relation)).exp()
        message = values.index_select(0, graph.structure.source_row).double().mul_(weight.unsqueeze(-1))
        total = (total * scale).index_add_(0, relation, weight)
        sums = Sums(largest, total, (weighted * scale.unsqueeze(-1)).index_add_(0, relation, message), dtype)
    assert sums is not None
    return sums


def hub_output(conv: Conv, sums: Sums) -> Tensor:
    """Return a relational layer's output for one node, ``[1, C]`` or, of a stack, ``[1, S, C]``."""
    return conv.finish(sums.shares(is_across(conv)).sum(0, keepdim=True).to(sums.dtype))
