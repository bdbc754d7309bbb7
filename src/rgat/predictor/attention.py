"""Follow attention through both layers of an ensemble's members.

Two layers pass a node's features along walks of two edges, each weighted by the product of its attention. A walk is
credited to its first edge. A self-loop is no step: a walk that starts with one is credited to its second edge or, if
both are self-loops, to the node's own input. Heads and members are averaged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from rgat.graph import RelationalGraph
from rgat.models import Model
from rgat.nn import RGATConv, RGCNConv
from rgat.predictor.ensemble import Ensemble


class Flow(NamedTuple):
    """Shares of the attention that reaches some nodes; all shares sum to one."""

    edges: Tensor  # [E]
    own: Tensor  # [N], of each node's own input


def layer_attention(
    ensemble: Ensemble, x: Tensor | None, graph: RelationalGraph, constant: bool = False
) -> list[tuple[Tensor, Tensor]]:
    """Return the attention of both layers of each member, ``[E]`` each, averaged over heads, on the CPU.

    With ``constant``, return constant attention instead: each edge's equal share of its softmax group.
    """
    x, graph = ensemble.on_device(x, graph)
    attentions = []
    with torch.no_grad():
        for model in ensemble.members:
            first, hidden = _attend(model.conv1, x, graph, constant)
            second, _ = _attend(model.conv2, torch.relu(model.norm1(hidden)), graph, constant)
            attentions.append((first.cpu(), second.cpu()))
    return attentions


def _attend(
    conv: RGATConv | RGCNConv, x: Tensor | None, graph: RelationalGraph, constant: bool
) -> tuple[Tensor, Tensor]:
    if isinstance(conv, RGATConv):
        out, (_, attention) = conv(x, graph, return_attention_weights=True, constant_attention=constant)
        return attention.float().mean(1), out
    key = graph.edge_type * graph.num_nodes + graph.edge_index[1]
    _, group, sizes = torch.unique(key, return_inverse=True, return_counts=True)
    return 1 / sizes[group].float(), conv(x, graph)  # RGCN averages each relation


def logits_at_equal_share(model: Model, x: Tensor | None, graph: RelationalGraph, edge: int) -> Tensor:
    """Return the logits ``[N, classes]`` with one edge's attention set to its equal share, in both layers.

    The other edges of its softmax group keep their proportions. This shows the effect of an edge that the model ignores
    by giving it little attention, which removing the edge does not show.
    """
    with torch.no_grad():
        hidden = torch.relu(model.norm1(_attend_equally(model.conv1, x, graph, edge)))
        return _attend_equally(model.conv2, hidden, graph, edge)


def _attend_equally(conv: RGATConv | RGCNConv, x: Tensor | None, graph: RelationalGraph, edge: int) -> Tensor:
    if not isinstance(conv, RGATConv):
        out: Tensor = conv(x, graph)
        return out
    attention, equal = (
        conv(x, graph, return_attention_weights=True, constant_attention=constant)[1][1] for constant in (False, True)
    )
    target, relation = graph.edge_index[1], graph.edge_type
    group = (target == target[edge]).unsqueeze(1).repeat(1, conv.heads)  # [E, H], the edge's softmax group
    within = torch.tensor([scope == "within" for scope in conv.scope], device=group.device)
    group &= (relation == relation[edge]).unsqueeze(1) | ~within
    rest, share = 1 - attention[edge], equal[edge]
    proportions = torch.where(rest > 1e-6, attention / rest.clamp(min=1e-6), 1 / (group.sum(0) - 1).clamp(min=1))
    attention = torch.where(group, proportions * (1 - share), attention)
    attention[edge] = share
    return conv.combine(x, graph, attention)


def flow(attentions: Sequence[tuple[Tensor, Tensor]], graph: RelationalGraph, nodes: Tensor) -> Flow:
    """Return each edge's share of the attention that reaches ``nodes``, and the shares of their own input."""
    source, target = graph.edge_index.cpu()
    no_attention = torch.zeros(graph.num_nodes, dtype=torch.float64)
    is_end = torch.zeros(graph.num_nodes, dtype=torch.bool).index_fill_(0, nodes, True)[target]
    is_loop = source == target
    edges, own = torch.zeros(graph.num_edges, dtype=torch.float64), no_attention.clone()
    for first, second in attentions:
        last = torch.where(is_end, second.double(), 0)
        reach = no_attention.index_add(0, source, last)
        loop = no_attention.index_add(0, target, torch.where(is_loop, first.double(), 0))
        edges += torch.where(is_loop, 0, first.double() * reach[target])
        edges += torch.where(is_loop, 0, last * loop[source])
        own.index_add_(0, source, torch.where(is_loop, last * loop[source], 0))
    total = (edges.sum() + own.sum()).clamp(min=1e-300)
    return Flow(edges / total, own / total)


def receptive_field(graph: RelationalGraph, node: int) -> Tensor:
    """Return the ids of the edges in the receptive field of a node after two layers."""
    source, target = graph.edge_index
    reached = torch.zeros(graph.num_nodes, dtype=torch.bool)
    reached[source[target == node]] = True
    reached[node] = True
    return reached[target].nonzero().squeeze(1)
