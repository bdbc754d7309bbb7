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

import torch
from torch import Tensor

from rgat.graph import RelationalGraph
from rgat.nn import FeatureRows, RGATConv, RGCNConv

Part = tuple[Tensor | FeatureRows | None, RelationalGraph]


def hub_output(conv: RGATConv | RGCNConv, parts: Iterable[Part], constant_attention: bool) -> Tensor:
    """Return a relational layer's output for one node, ``[1, C]`` or, of a stack, ``[1, S, C]``.

    Args:
        conv: the layer.
        parts: inputs and graphs, each with some of the edges into the node, which is the first of each graph.
        constant_attention: give all edges of a softmax group the same attention.
    """
    sums: tuple[Tensor, Tensor, Tensor] | None = None  # m and z [R, H], y [R, H, D]
    for x, graph in parts:
        logits, values = conv.logits_and_values(x, graph, constant_attention)
        s, dtype = graph.structure, values.dtype
        relation = s.sources.relation.index_select(0, s.source_row)  # [E]
        logits = logits.double()
        if sums is None:
            none = logits.new_zeros(graph.num_relations, *values.shape[1:])
            sums = none[..., 0] - torch.inf, none[..., 0], none
        before, total, weighted = sums
        largest = before.scatter_reduce(0, relation.long().unsqueeze(1).expand_as(logits), logits, "amax")
        scale = torch.where(before == -torch.inf, 0, (before - largest).exp())
        weight = (logits - largest.index_select(0, relation)).exp()
        message = values.index_select(0, s.source_row).double().mul_(weight.unsqueeze(-1))
        total = (total * scale).index_add_(0, relation, weight)
        sums = largest, total, (weighted * scale.unsqueeze(-1)).index_add_(0, relation, message)
    assert sums is not None
    largest, total, weighted = sums
    across = torch.tensor([word == "across" for word in conv.scope] * (conv.members or 1), device=largest.device)
    share = torch.where(across, (largest - largest.amax(0)).exp(), 1)
    total, weighted = total * share, weighted * share.unsqueeze(-1)
    total = torch.where(across, total.sum(0), total).clamp(min=1)  # 1: the largest logit's own term; 0: no edges
    return conv.finish((weighted / total.unsqueeze(-1)).sum(0, keepdim=True).to(dtype))
