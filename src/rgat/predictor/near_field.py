"""The receptive field of a node in memory: attention of its edges, and predictions without some of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from rgat.data import NodeData
from rgat.graph import RelationalGraph
from rgat.predictor.attention_flow import flow, layer_attention
from rgat.predictor.ensemble import Ensemble
from rgat.predictor.variants import Variants
from rgat.sampling import NeighborSampler

Columns = tuple[str, str, slice]  # kind, predicate and feature columns of literals


class Edge(NamedTuple):
    """An edge in a receptive field, and its share of the attention that reaches the explained node."""

    number: int  # among the edges of the field
    source: int
    target: int
    relation: int
    attention: float
    equal_share: float  # under constant attention


class Shares(NamedTuple):
    """Where the attention that reaches some nodes comes from; edges, relations and their own input sum to one."""

    edges: list[Edge]  # the largest, or farthest from an equal share, first
    relations: Tensor  # [R]
    own: float  # of the nodes' own input
    choice: float  # distance between attention and equal shares, from 0 to 1


class Field(Protocol):
    """The receptive field of a node, in memory or, if it is large, in blocks (`rgat.predictor.large_field`)."""

    ensemble: Ensemble
    num_edges: int

    @property
    def before(self) -> Tensor:
        """The prediction, ``[outputs]``."""

    def shares(self, most: int) -> Shares:
        """Return the shares of all edges, and ``most`` of them one by one."""

    def without_edges(self, edges: Sequence[Edge]) -> Tensor:
        """Return the prediction without each edge and its inverse, ``[n, outputs]``."""

    def at_equal_share(self, edges: Sequence[Edge]) -> Tensor:
        """Return the prediction with the attention of each edge at its equal share, ``[n, outputs]``."""

    def without_columns(self, places: Sequence[tuple[int, slice]]) -> Tensor:
        """Return the prediction with some features of one node at zero, ``[n, outputs]``."""

    def gradients(self, predicted: int, places: Sequence[Columns]) -> Tensor:
        """Return the sum of gradient times feature over each of some columns, for every node, ``[N, places]``."""


class NearField:
    """A receptive field that is held whole.

    Args:
        ensemble: the models.
        data: the graph that has the node.
        node: the node to explain.
    """

    def __init__(self, ensemble: Ensemble, data: NodeData, node: int) -> None:
        self.ensemble, self.data, self.node = ensemble, data, node
        fields = data.graph.receptive_fields(torch.tensor([node]), ensemble.num_layers)
        self.graph = fields[0].prepare()  # once, for all forward passes
        self.num_edges = self.graph.num_edges
        self.before = ensemble.probabilities(ensemble.member_logits(data.x, self.graph)[:, node])
        self.variants = Variants(ensemble, data.x, self.graph, node)

    def shares(self, most: int) -> Shares:
        graph, nodes = self.graph, torch.tensor([self.node])
        attention, equal = (
            flow(layer_attention(self.ensemble, self.data.x, graph, constant), graph, nodes)
            for constant in (False, True)
        )
        score = torch.maximum(attention.edges, (attention.edges - equal.edges).abs())
        order = score.argsort(descending=True, stable=True)
        edges = []
        for edge in order[score[order] > 0][:most].tolist():
            source, target = graph.edge_index[:, edge].tolist()
            shares = float(attention.edges[edge]), float(equal.edges[edge])
            edges.append(Edge(edge, source, target, int(graph.edge_type[edge]), *shares))
        relations = sum_by_relation(attention.edges, graph)
        choice = float((attention.edges - equal.edges).abs().sum() / 2)
        return Shares(edges, relations, float(attention.own.sum()), choice)

    def without_edges(self, edges: Sequence[Edge]) -> Tensor:
        return self.variants.without_edges([self._with_inverse(edge) for edge in edges])

    def _with_inverse(self, edge: Edge) -> Tensor:
        """Return the ids of an edge and its inverse."""
        graph, base = self.graph, torch.tensor(self.data.base_relation)
        found = (base[graph.edge_type] == base[edge.relation]) & (graph.edge_type != edge.relation)
        found &= (graph.edge_index[0] == edge.target) & (graph.edge_index[1] == edge.source)
        found[edge.number] = True
        return found.nonzero().squeeze(1)

    def at_equal_share(self, edges: Sequence[Edge]) -> Tensor:
        return self.variants.at_equal_share([edge.number for edge in edges])

    def without_columns(self, places: Sequence[tuple[int, slice]]) -> Tensor:
        return self.variants.without_columns(places)

    def gradients(self, predicted: int, places: Sequence[Columns]) -> Tensor:
        assert self.data.x is not None
        x, graph = self.ensemble.on_device(self.data.x, self.graph)
        assert x is not None
        leaf = x.detach().clone().requires_grad_()
        logits = torch.stack([member(leaf, graph)[self.node].float() for member in self.ensemble.members]).mean(0)
        (gradient,) = torch.autograd.grad(margin(self.ensemble, logits, predicted), leaf)
        product = (gradient * x).cpu()
        return torch.stack([product[:, place].sum(1) for _, _, place in places], dim=1)


def margin(ensemble: Ensemble, logits: Tensor, predicted: int) -> Tensor:
    """Return the distance of an output's logit from those it competes with."""
    place = ensemble.competitors(predicted, len(logits))
    others = torch.cat([logits[place.start : predicted], logits[predicted + 1 : place.stop]])
    return logits[predicted] - others.logsumexp(0) if len(others) else logits[predicted]


def sum_by_relation(shares: Tensor, graph: RelationalGraph) -> Tensor:
    """Return the sum of the edges' shares of each relation, ``[R]``."""
    return torch.zeros(graph.num_relations, dtype=torch.float64).index_add_(0, graph.edge_type, shares)


def receptive_data(data: NodeData, node: int, num_layers: int) -> NodeData:
    """Return the receptive field of a node of a graph in a store, as a data set in memory whose node 0 it is."""
    batch = NeighborSampler(data.graph, [-1] * num_layers).sample(torch.tensor([node]))
    sampled, nodes = batch.graphs[0], batch.nodes
    graph = RelationalGraph(
        sampled.edge_index, sampled.edge_type, num_nodes=len(nodes), num_relations=data.graph.num_relations
    )
    graph.node_ids = nodes
    names = tuple(data.node_names[i] for i in nodes.tolist())
    none = torch.empty(0, dtype=torch.long)
    x = None if data.x is None else data.x[nodes].float()
    fields: dict[str, Any] = {"graph": graph, "x": x, "node_names": names, **data.labels_of(nodes)}
    return dataclasses.replace(data, **fields, train=none, valid=none, test=none)
