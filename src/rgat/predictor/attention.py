"""Attention of fitted models, followed through both layers.

Two layers pass a node's features along walks of two edges, each weighted by the product of its attention. A walk is
credited to the edge it starts with; an edge from a node to itself is no step, so a walk that starts with one is
credited to its other edge or, where both are such, to the node itself. Heads and members are averaged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from rgat.graph import RelationalGraph
from rgat.models import Model
from rgat.nn import RGATConv, RGCNConv


class Flow(NamedTuple):
    """Where the information that reaches some nodes comes from; edges and own input together make one."""

    edges: Tensor  # [E]
    own: float


def layer_attention(
    models: Sequence[Model], x: Tensor | None, graph: RelationalGraph, constant: bool = False
) -> list[tuple[Tensor, Tensor]]:
    """Of each model the attention of both layers, ``[E]`` each, the mean over heads, on the CPU.

    Args:
        models: of one ensemble.
        x: their input.
        graph: of which they attend to the edges.
        constant: ask for constant attention instead: what each edge would have if the model did not choose.
    """
    device = next(models[0].parameters()).device
    x, graph = None if x is None else x.to(device), graph.to(device)
    found = []
    with torch.no_grad():
        for model in models:
            first, hidden = _attend(model.conv1, x, graph, constant)
            second, _ = _attend(model.conv2, torch.relu(model.norm1(hidden)), graph, constant)
            found.append((first.cpu(), second.cpu()))
    return found


def _attend(
    conv: RGATConv | RGCNConv, x: Tensor | None, graph: RelationalGraph, constant: bool
) -> tuple[Tensor, Tensor]:
    if isinstance(conv, RGATConv):
        out, (_, attention) = conv(x, graph, return_attention_weights=True, constant_attention=constant)
        return attention.float().mean(1), out
    key = graph.edge_type * graph.num_nodes + graph.edge_index[1]
    _, group, sizes = torch.unique(key, return_inverse=True, return_counts=True)
    return 1 / sizes[group].float(), conv(x, graph)  # the mean of each relation


def logits_at_equal_share(model: Model, x: Tensor | None, graph: RelationalGraph, edge: int) -> Tensor:
    """The logits ``[N, classes]`` if the model gave one edge its equal share of attention, in both layers.

    The other edges of its softmax group keep their proportions. What the model chooses by shutting an edge out does not
    show when the edge is taken away; it shows here.
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
    rivals = (target == target[edge]).unsqueeze(1).repeat(1, conv.heads)  # [E, H]
    within = torch.tensor([scope == "within" for scope in conv.scope], device=rivals.device)
    rivals &= (relation == relation[edge]).unsqueeze(1) | ~within
    rest, own = 1 - attention[edge], equal[edge]
    kept = torch.where(rest > 1e-6, attention / rest.clamp(min=1e-6), 1 / (rivals.sum(0) - 1).clamp(min=1))
    attention = torch.where(rivals, kept * (1 - own), attention)
    attention[edge] = own
    return conv.combine(x, graph, attention)


def flow(attentions: Sequence[tuple[Tensor, Tensor]], graph: RelationalGraph, nodes: Tensor) -> Flow:
    """What share of the information that reaches ``nodes`` starts at each edge."""
    source, target = graph.edge_index.cpu()
    wanted = torch.zeros(graph.num_nodes, dtype=torch.bool).index_fill_(0, nodes, True)
    is_self, into = source == target, wanted[target]
    edges, own = torch.zeros(graph.num_edges, dtype=torch.float64), 0.0
    for first, second in attentions:
        last = torch.where(into, second.double(), 0)
        reach = torch.zeros(graph.num_nodes, dtype=torch.float64).index_add_(0, source, last)
        edges += torch.where(is_self, 0, first.double() * reach[target])
        stays = torch.zeros(graph.num_nodes, dtype=torch.float64)
        stays.index_add_(0, target, torch.where(is_self, first.double(), 0))
        edges += torch.where(is_self, 0, last * stays[source])
        own += float(torch.where(is_self, last * stays[source], 0).sum())
    total = float(edges.sum()) + own
    return Flow(edges / total, own / total) if total > 0 else Flow(edges, 0.0)


def receptive_field(graph: RelationalGraph, node: int) -> Tensor:
    """Ids of the edges that can change what two layers say of a node."""
    source, target = graph.edge_index
    heard = torch.zeros(graph.num_nodes, dtype=torch.bool)
    heard[source[target == node]] = True
    heard[node] = True
    return heard[target].nonzero().squeeze(1)
