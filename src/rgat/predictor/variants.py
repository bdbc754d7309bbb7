"""Predict a node in many variants of its receptive field: copies of it stand side by side in one graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from rgat.graph import RelationalGraph
from rgat.nn import RGATConv, RGCNConv
from rgat.predictor.attention_flow import conv_input, first_input
from rgat.predictor.ensemble import Ensemble

MOST_EDGES = 50_000  # of all copies in one forward pass: more would save no time
MOST_FEATURES = 1 << 24  # values of their input in one forward pass, which bounds the memory
LEAST_REST = 1e-6  # attention of the other edges of a softmax group, in proportion to which they take up what one gives


class Variants:
    """A node's receptive field, from which edges or features are left out.

    Args:
        ensemble: the models.
        x: features of the nodes.
        graph: the receptive field, with all nodes.
        node: the node to predict.
    """

    def __init__(self, ensemble: Ensemble, x: Tensor | None, graph: RelationalGraph, node: int) -> None:
        self.ensemble, self.x, self.graph, self.node = ensemble, x, graph, node
        self.most, self.nodes = 1, torch.arange(graph.num_nodes)
        self._made: tuple[int, Tensor | None, RelationalGraph] = (1, x, graph)
        has_rows = any(getattr(conv, "num_nodes", None) is not None for conv in ensemble.members[0].convs)
        if x is None or has_rows:  # layers with rows of nodes take each node once
            return
        self.nodes, ends = torch.unique(
            torch.cat([graph.edge_index.flatten(), torch.tensor([node])]), return_inverse=True
        )
        self.x, self.node = x[self.nodes], int(ends[-1])
        self.graph = _graph(ends[:-1].view(2, -1), graph, len(self.nodes), 1)
        self.most = max(1, min(MOST_EDGES // max(graph.num_edges, 1), MOST_FEATURES // max(self.x.numel(), 1)))
        self._made = (1, self.x, self.graph)

    def without_edges(self, removed: Sequence[Tensor]) -> Tensor:
        """Return the probabilities of the node, ``[n, outputs]``, without some edges, whose ids each variant has."""

        def logits(x: Tensor | None, graph: RelationalGraph, chosen: Sequence[Tensor]) -> Tensor:
            kept = torch.ones(graph.num_edges, dtype=torch.bool)
            for number, edges in enumerate(chosen):
                kept[edges + number * self.graph.num_edges] = False
            return self.ensemble.member_logits(x, graph.with_edges(kept))

        return self._predict(removed, logits)

    def at_equal_share(self, edges: Sequence[int]) -> Tensor:
        """Return the probabilities of the node, ``[n, outputs]``, with the attention of one edge at its equal share."""
        size = self.graph.num_edges
        return self._predict(
            edges,
            lambda x, graph, chosen: logits_at_equal_share(
                self.ensemble, x, graph, torch.tensor(chosen) + size * torch.arange(len(chosen))
            ),
        )

    def without_columns(self, places: Sequence[tuple[int, slice]]) -> Tensor:
        """Return the probabilities of the node, ``[n, outputs]``, with some features of one node at zero."""

        def logits(x: Tensor | None, graph: RelationalGraph, chosen: Sequence[tuple[int, slice]]) -> Tensor:
            assert x is not None
            x = x.clone()
            for number, (node, place) in enumerate(chosen):
                x[int(torch.searchsorted(self.nodes, node)) + number * len(self.nodes), place] = 0.0
            return self.ensemble.member_logits(x, graph)

        return self._predict(places, logits)

    def _predict(
        self, items: Sequence[Any], logits: Callable[[Tensor | None, RelationalGraph, Sequence[Any]], Tensor]
    ) -> Tensor:
        """Return the probabilities of the node for each item; ``logits`` takes the copies for some of them."""
        found = []
        for start in range(0, len(items), self.most):
            chosen = items[start : start + self.most]
            nodes = torch.arange(len(chosen)) * len(self.nodes) + self.node
            found.append(self.ensemble.probabilities(logits(*self._copies(len(chosen)), chosen)[:, nodes]))
        return torch.cat(found) if found else torch.empty(0)

    def _copies(self, count: int) -> tuple[Tensor | None, RelationalGraph]:
        """Return features and graph of so many copies, kept until another number is needed."""
        if self._made[0] != count:
            assert self.x is not None
            first = (torch.arange(count) * len(self.nodes)).repeat_interleave(self.graph.num_edges)
            ends = self.graph.edge_index.repeat(1, count) + first
            graph = _graph(ends, self.graph, count * len(self.nodes), count)
            self._made = count, self.x.repeat(count, 1), graph
        return self._made[1:]


def _graph(ends: Tensor, graph: RelationalGraph, num_nodes: int, count: int) -> RelationalGraph:
    """Return a graph with the relations and features of another one's edges, so many times."""
    attr = graph.edge_attr
    return RelationalGraph(
        ends,
        graph.edge_type.repeat(count),
        num_nodes=num_nodes,
        num_relations=graph.num_relations,
        edge_attr=None if attr is None else attr.repeat(count, *(1 for _ in attr.shape[1:])),
        validate=False,
    ).prepare()


def logits_at_equal_share(ensemble: Ensemble, x: Tensor | None, graph: RelationalGraph, edges: Tensor) -> Tensor:
    """Return the members' logits ``[S, N, classes]`` with the attention of one edge at its equal share, in all layers.

    The graph consists of equal copies, one for each of ``edges``.

    The other edges of its softmax group keep their proportions. This shows the effect of an edge that the model ignores
    by giving it little attention, which removing the edge does not show.
    """
    x, graph = ensemble.on_device(x, graph)
    logits = []
    with torch.no_grad():
        for model in ensemble.members:
            hidden = first_input(model, x, graph)
            for number, conv in enumerate(model.convs, start=1):
                out = _attend_equally(conv, conv_input(model, number, hidden), graph, edges)
                hidden = model.activate(number, out, x=hidden)
            assert hidden is not None
            logits.append(hidden.cpu())
    return torch.stack(logits)


def _attend_equally(conv: RGATConv | RGCNConv, x: Tensor | None, graph: RelationalGraph, edges: Tensor) -> Tensor:
    if not isinstance(conv, RGATConv):
        out: Tensor = conv(x, graph)
        return out
    attention, equal = (
        conv(x, graph, return_attention_weights=True, constant_attention=constant)[1][1] for constant in (False, True)
    )
    target, relation = graph.edge_index[1], graph.edge_type
    copy = torch.arange(graph.num_edges, device=graph.device) // (graph.num_edges // len(edges))
    edge = edges.to(graph.device)[copy]  # [E], the chosen edge of the same copy
    group = (target == target[edge]).unsqueeze(1).repeat(1, conv.heads)  # [E, H], the chosen edge's softmax group
    within = torch.tensor([scope == "within" for scope in conv.scope], device=group.device)
    group &= (relation == relation[edge]).unsqueeze(1) | ~within
    others = group.view(len(edges), -1, conv.heads).sum(1)[copy] - 1
    rest, share = 1 - attention[edge], equal[edge]
    proportions = torch.where(rest > LEAST_REST, attention / rest.clamp(min=LEAST_REST), 1 / others.clamp(min=1))
    attention = torch.where(group, proportions * (1 - share), attention)
    attention[edges] = equal[edges]
    return conv.combine(x, graph, attention)
