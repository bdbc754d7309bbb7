"""Follow attention through the layers of a model: the share of each edge in what reaches a node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from rgat.graph import RelationalGraph
from rgat.models import Model, NodeClassifier
from rgat.nn import RGATConv, RGCNConv
from rgat.predictor.ensemble import Ensemble


class Flow(NamedTuple):
    """Shares of the attention that reaches some nodes; all shares sum to one."""

    edges: Tensor  # [E]
    own: Tensor  # [N], of each node's own input


def layer_attention(
    ensemble: Ensemble, x: Tensor | None, graph: RelationalGraph, constant: bool = False
) -> list[list[Tensor]]:
    """Return the attention of all layers of each member, ``[E]`` each, averaged over heads, on the CPU.

    With ``constant``, return constant attention instead: each edge's equal share of its softmax group.
    """
    x, graph = ensemble.on_device(x, graph)
    attentions = []
    with torch.no_grad():
        for model in ensemble.members:
            hidden, layers = first_input(model, x, graph), []
            for number, conv in enumerate(model.convs, start=1):
                attention, out = _attend(conv, conv_input(model, number, hidden), graph, constant)
                hidden = model.activate(number, out, x=hidden)
                layers.append(attention.cpu())
            attentions.append(layers)
    return attentions


def first_input(model: Model, x: Tensor | None, graph: RelationalGraph) -> Tensor | None:
    """Return the input of a model's first layer: features, or learned embeddings."""
    return model.inputs(x, graph) if isinstance(model, NodeClassifier) else x  # type: ignore[return-value]


def conv_input(model: Model, number: int, x: Tensor | None) -> Tensor | None:
    """Return what the convolution of a layer reads of the layer's input."""
    return model.conv_input(number, x) if isinstance(model, NodeClassifier) else x  # type: ignore[return-value]


def _attend(
    conv: RGATConv | RGCNConv, x: Tensor | None, graph: RelationalGraph, constant: bool
) -> tuple[Tensor, Tensor]:
    if isinstance(conv, RGATConv):
        out, (_, attention) = conv(x, graph, return_attention_weights=True, constant_attention=constant)
        return attention.float().mean(1), out
    key = graph.edge_type * graph.num_nodes + graph.edge_index[1]
    _, group, sizes = torch.unique(key, return_inverse=True, return_counts=True)
    return 1 / sizes[group].float(), conv(x, graph)  # RGCN averages each relation


def flow(attentions: Sequence[Sequence[Tensor]], graph: RelationalGraph, nodes: Tensor) -> Flow:
    """Return each edge's share of the attention that reaches ``nodes``, and the shares of their own input."""
    source, target = graph.edge_index.cpu()
    no_attention = torch.zeros(graph.num_nodes, dtype=torch.float64)
    is_loop, is_end = source == target, no_attention.index_fill(0, nodes, 1)
    edges, own = torch.zeros(graph.num_edges, dtype=torch.float64), no_attention.clone()
    for layers in attentions:
        reach, passing = is_end, list[Tensor]()  # of walks from a layer's output, and along its edges, to `nodes`
        for attention in reversed(layers):
            passing.insert(0, attention.double() * reach[target])
            reach = no_attention.index_add(0, source, passing[0])
        looped = torch.ones_like(no_attention)  # of walks of self-loops alone, up to a layer's input
        for attention, through in zip(layers, passing, strict=True):
            edges += torch.where(is_loop, 0, looped[source] * through)
            looped = looped * no_attention.index_add(0, target, torch.where(is_loop, attention.double(), 0))
        own += looped * is_end
    total = (edges.sum() + own.sum()).clamp(min=1e-300)
    return Flow(edges / total, own / total)
