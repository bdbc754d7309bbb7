"""The two models of the paper (sections 2.2 and 2.3), with either family of layers, and stacks of them."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rgat.checks import check_count, check_word
from rgat.graph import RelationalGraph
from rgat.nn import FeatureRows, GraphGather, RGATConv, RGCNConv
from rgat.nn.normalisation import normalise
from rgat.nn.stacked import SHARED, Stacked, member_tensors, stack_layers

LAYERS = ("rgat", "rgcn")
Graphs = RelationalGraph | Sequence[RelationalGraph]  # of all layers, or one for each
RGCN_OPTIONS = ("num_bases", "feature_dropout", "edge_dropout", "bias", "graph", "num_nodes")


def _layer(
    family: str,
    in_channels: int,
    out_channels: int,
    num_relations: int,
    heads: int,
    head_merge: str,
    options: dict[str, Any],
) -> RGATConv | RGCNConv:
    """One relational layer of ``out_channels`` per head, heads merged as told."""
    check_word("layer", family, LAYERS)
    if family == "rgat":
        return RGATConv(in_channels, out_channels, num_relations, heads=heads, head_merge=head_merge, **options)
    if heads != 1:
        raise ValueError(f'`heads` must be 1 for layer="rgcn", which has no heads, got {heads}')
    for name in options:
        if name not in RGCN_OPTIONS:
            raise ValueError(f'`{name}` must not be given for layer="rgcn", which has no attention; leave it out')
    return RGCNConv(in_channels, out_channels, num_relations, **options)


def _units_per_head(hidden_channels: int, heads: int) -> int:
    check_count("hidden_channels", hidden_channels)
    check_count("heads", heads)
    if hidden_channels % heads:
        raise ValueError(f"`hidden_channels` must be divisible by `heads`, got {hidden_channels} and {heads}")
    return hidden_channels // heads


def _node_options(graph: RelationalGraph | None, identity: bool, embedding_channels: int | None) -> dict[str, Any]:
    """Return what the first layer of a node classifier is to know about nodes."""
    if identity and embedding_channels is not None:
        raise ValueError("`identity` must not be given with `embedding_channels`, which is featureless; leave one out")
    if identity and graph is None:
        raise ValueError("`identity` needs the graph whose nodes get rows of their own; pass `graph=`")
    if identity and not isinstance(graph, RelationalGraph):
        raise ValueError("`identity` needs a graph in memory, got one in a store; leave `identity` out")
    if graph is None or embedding_channels is not None:
        return {}
    return {"graph": graph, "num_nodes": graph.num_nodes} if identity else {"graph": graph}


def _normalisation(channels: int, batch_norm: bool) -> nn.Module:
    return nn.BatchNorm1d(channels) if batch_norm else nn.Identity()


class NodeClassifier(nn.Module):
    r"""Relational layers that classify nodes; by default two (figure 3a).

    .. math::
        H^{(1)} = \mathrm{ReLU}(\mathrm{RGAT}_{\text{concat}}(X)), \qquad
        \text{logits} = \mathrm{RGAT}_{\text{mean}}(H^{(1)}) \in \mathbb{R}^{N \times \text{classes}}.

    All layers have ``heads`` heads. All but the last have ``hidden_channels / heads`` units per head, so that the total
    stays what was asked; the last has one unit per class and head. Batch normalisation, if on, stands before each ReLU.

    Args:
        in_channels: number of node features; for featureless input the number of nodes.
        num_classes: number of classes.
        num_relations: number of relations.
        layer: "rgat" or "rgcn".
        hidden_channels: units of each layer but the last, over all heads.
        heads: number of heads of all layers.
        batch_norm: normalise the output of each layer but the last.
        graph: for featureless input, let the first layer hold only the kernel rows that the edges of this graph use.
            With ``identity``, only these rows of its nodes.
        num_layers: number of layers.
        embedding_channels: for featureless input, learn an embedding of this size for each node, and give it to the
            first layer instead of a one-hot vector. Its gradients are sparse: a step costs what its batch touches.
        identity: in the first layer, add to the projected features of each node a learned row of its own per relation,
            as a one-hot vector beside the features would; needs ``graph``.
        **options: further options of all layers, such as ``scope``, ``score`` or ``feature_dropout``.
    """

    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        num_relations: int,
        layer: str = "rgat",
        hidden_channels: int = 16,
        heads: int = 1,
        batch_norm: bool = False,
        graph: RelationalGraph | None = None,
        num_layers: int = 2,
        embedding_channels: int | None = None,
        identity: bool = False,
        **options: Any,
    ) -> None:
        super().__init__()
        check_count("num_classes", num_classes)
        check_count("num_layers", num_layers)
        units = _units_per_head(hidden_channels, heads)
        if "num_nodes" in options:
            raise ValueError("`num_nodes` must not be given: it follows from `graph` where `identity` is true")
        first = options | _node_options(graph, identity, embedding_channels)
        if embedding_channels is not None:
            check_count("embedding_channels", embedding_channels)
            self.embedding = nn.Embedding(in_channels, embedding_channels, sparse=True)
            bound = (3 / embedding_channels) ** 0.5  # rows have length one on average
            nn.init.uniform_(self.embedding.weight, -bound, bound)
            in_channels = embedding_channels
        for number in range(1, num_layers):
            conv = _layer(layer, in_channels, units, num_relations, heads, "concat", first if number == 1 else options)
            setattr(self, f"conv{number}", conv)
            setattr(self, f"norm{number}", _normalisation(hidden_channels, batch_norm))
            in_channels = hidden_channels
        last = first if num_layers == 1 else options
        setattr(self, f"conv{num_layers}", _layer(layer, in_channels, num_classes, num_relations, heads, "mean", last))

    @property
    def num_layers(self) -> int:
        """The number of relational layers."""
        return sum(name.startswith("conv") for name in self._modules)

    @property
    def convs(self) -> list[RGATConv | RGCNConv]:
        """The relational layers, the first one first."""
        return [getattr(self, f"conv{number}") for number in range(1, self.num_layers + 1)]

    def forward(self, x: Tensor | FeatureRows | None, graph: Graphs, constant_attention: bool = False) -> Tensor:
        """Return class logits, ``[N, num_classes]``.

        Args:
            x: features (of a sampled batch also as `rgat.nn.FeatureRows`), or None for featureless input.
            graph: of all layers, or one for each: those of ``graph.receptive_fields(nodes)`` give ``nodes`` the same
                logits with less work, those of a sampled batch (`rgat.sampling`) give the logits of its seed nodes.
            constant_attention: give all edges of a softmax group the same attention.
        """
        graphs = (graph,) * self.num_layers if isinstance(graph, RelationalGraph) else tuple(graph)
        if len(graphs) != self.num_layers:
            raise ValueError(
                f"a model of {self.num_layers} layers needs one graph, or one for each layer, got {len(graphs)}; "
                "sample with one fan-out per layer"
            )
        x = self.inputs(x, graphs[0])
        for number, each in enumerate(graphs, start=1):
            x = self.layer(number, x, each, constant_attention)
        assert isinstance(x, Tensor)
        return x

    def inputs(self, x: Tensor | FeatureRows | None, graph: RelationalGraph) -> Tensor | FeatureRows | None:
        """Return the input of the first layer: the features, or the embeddings of the nodes of its graph."""
        embedding: nn.Embedding | None = getattr(self, "embedding", None)
        if embedding is None:
            return x
        if x is not None:
            raise ValueError("a model with `embedding_channels` is featureless and takes only `x=None`")
        nodes = graph.node_ids
        if nodes is None:
            nodes = torch.arange(graph.num_nodes, device=graph.device)
        embedded: Tensor = embedding(nodes)
        return embedded

    def layer(
        self, number: int, x: Tensor | FeatureRows | None, graph: RelationalGraph, constant_attention: bool = False
    ) -> Tensor:
        """Return the output of one layer, counted from 1, with its normalisation and ReLU."""
        out: Tensor = getattr(self, f"conv{number}")(x, graph, constant_attention=constant_attention)
        if number == self.num_layers:
            return out
        return torch.relu(normalise(getattr(self, f"norm{number}"), out, graph.counted))

    @property
    def depends_on_edges_alone(self) -> bool:
        """Whether a node's logits now depend on others by edges alone, and not on how the edges are numbered."""
        drops = any(rate > 0 for conv in self.convs for _, rate in _dropout_rates(conv))
        norms = (getattr(self, f"norm{number}") for number in range(1, self.num_layers))
        return not self.training or (all(isinstance(norm, nn.Identity) for norm in norms) and not drops)


def _dropout_rates(conv: nn.Module) -> list[tuple[float, float]]:
    """Return the rates of features and edges, for each member of a stack."""
    rates: list[tuple[float, float]] = getattr(conv, "dropout", [(conv.feature_dropout, conv.edge_dropout)])
    return rates


class GraphClassifier(nn.Module):
    r"""Two relational layers, a gather and two dense layers that classify whole graphs for several tasks (figure 3b).

    .. math::
        H^{(l)} = \mathrm{ReLU}(\mathrm{RGAT}_{\text{concat}}(H^{(l-1)})), \quad l = 1, 2, \qquad
        z = \tanh(\mathrm{GraphGather}(H^{(2)})), \qquad
        \text{logits} = \mathrm{Dense}(\mathrm{ReLU}(\mathrm{Dense}(z))).

    Both relational layers have ``heads`` heads of ``hidden_channels / heads`` units. Batch normalisation, if on, stands
    before the ReLU of each relational layer.

    Args:
        in_channels: number of node features.
        num_tasks: number of tasks.
        num_relations: number of relations.
        num_classes: number of classes of each task.
        layer: "rgat" or "rgcn".
        hidden_channels: units of each relational layer, over all heads.
        dense_channels: units of the first dense layer.
        heads: number of heads of both relational layers.
        batch_norm: normalise the output of both relational layers.
        **options: further options of both relational layers, such as ``scope``, ``score`` or ``edge_dim``.
    """

    def __init__(
        self,
        in_channels: int,
        num_tasks: int,
        num_relations: int,
        num_classes: int = 2,
        layer: str = "rgat",
        hidden_channels: int = 64,
        dense_channels: int = 64,
        heads: int = 1,
        batch_norm: bool = False,
        **options: Any,
    ) -> None:
        super().__init__()
        for name, value in (("num_tasks", num_tasks), ("num_classes", num_classes), ("dense_channels", dense_channels)):
            check_count(name, value)
        for name in ("graph", "num_nodes"):
            if name in options:
                raise ValueError(
                    f"`{name}` must not be given: a graph classifier is for many graphs, with node features"
                )
        units = _units_per_head(hidden_channels, heads)
        self.num_tasks = num_tasks
        self.num_classes = num_classes
        self.conv1 = _layer(layer, in_channels, units, num_relations, heads, "concat", options)
        self.norm1 = _normalisation(hidden_channels, batch_norm)
        self.conv2 = _layer(layer, hidden_channels, units, num_relations, heads, "concat", options)
        self.norm2 = _normalisation(hidden_channels, batch_norm)
        self.gather = GraphGather()
        self.dense1 = nn.Linear(2 * hidden_channels, dense_channels)
        self.dense2 = nn.Linear(dense_channels, num_tasks * num_classes)

    @property
    def convs(self) -> list[RGATConv | RGCNConv]:
        """The relational layers."""
        return [self.conv1, self.conv2]

    def forward(self, x: Tensor | None, graph: RelationalGraph, constant_attention: bool = False) -> Tensor:
        """Return class logits ``[G, num_tasks, num_classes]``."""
        h = self.conv1(x, graph, constant_attention=constant_attention)
        h = torch.relu(normalise(self.norm1, h, graph.counted))
        h = self.conv2(h, graph, constant_attention=constant_attention)
        h = torch.relu(normalise(self.norm2, h, graph.counted))
        z = torch.tanh(self.gather(h, graph))
        logits: Tensor = self.dense2(torch.relu(self.dense1(z)))
        return logits.reshape(*logits.shape[:-1], self.num_tasks, self.num_classes)


Model = NodeClassifier | GraphClassifier


class Stack(nn.Module):
    """Several models of one architecture, ``S`` members, as one computation over one graph; made by :func:`stack`.

    Each member is what it would be alone: parameters, dropout seed and rates, dropout masks and batch-norm statistics
    are its own. ``stack.model`` has the layers of a single model, with one more axis ``S`` in front of each tensor.
    """

    def __init__(self, models: Sequence[Model]) -> None:
        super().__init__()
        self._like = (copy.deepcopy(models[0]).to("meta"),)  # in a tuple: it is no part of the module
        self.model = copy.deepcopy(self._like[0])
        for name, _ in models[0].named_children():
            setattr(self.model, name, stack_layers([getattr(model, name) for model in models]))
        self.train(models[0].training)

    def __len__(self) -> int:
        return len(self.model.convs[0].dropout_state)

    def forward(self, x: Tensor | FeatureRows | None, graph: Graphs, constant_attention: bool = False) -> Tensor:
        """Return the logits of all members, ``[S, N, num_classes]`` or ``[S, G, num_tasks, num_classes]``.

        Args:
            x: an input that all members share, as a single model takes it, or features ``[N, S, F]`` of their own.
            graph: of all members; of node classifiers also one for each layer.
            constant_attention: give all edges of a softmax group the same attention.
        """
        logits: Tensor = self.model(x, graph, constant_attention)
        return logits.transpose(0, 1)

    def select(self, members: Sequence[int]) -> None:
        """Keep some members only, in place; an optimiser of the stack must forget the others too."""
        for layer in self.model.children():
            if isinstance(layer, Stacked):
                layer.select(list(members))

    def unstack(self) -> list[Model]:
        """Return the members as ordinary models, new and independent."""
        device, models = next(self.parameters()).device, []
        for member, tensors in enumerate(member_tensors(self.model)):
            model = copy.deepcopy(self._like[0]).to(next(self.parameters()).dtype).to_empty(device=device)
            for name, tensor in (*model.named_parameters(), *model.named_buffers()):
                tensor.data.copy_(tensors[name])
            for conv, stacked in zip(model.convs, self.model.convs, strict=True):
                conv.feature_dropout, conv.edge_dropout = _dropout_rates(stacked)[member]
            models.append(model.train(self.training))
        return models


def stack(models: Sequence[Model]) -> Stack:
    """Put models of one architecture together: many seeds, folds or dropout rates as one computation.

    Members may differ in their parameters, dropout seeds and dropout rates, in nothing else. The stack has copies.
    """
    if len(models) == 0:
        raise ValueError("`stack` needs at least one model, got an empty list")
    for model in models:
        if not isinstance(model, NodeClassifier | GraphClassifier):
            raise TypeError(f"`stack` takes NodeClassifiers or GraphClassifiers, got a {type(model).__name__}")
        reason = difference(models[0], model)
        if reason is not None:
            raise ValueError(f"models of a stack must differ in parameters and dropout alone, got {reason}")
    return Stack(models)


def difference(first: nn.Module, other: nn.Module) -> str | None:
    """How two models differ in what a stack shares, or why there is no stack of them; None: not at all."""
    if not isinstance(first, NodeClassifier | GraphClassifier):
        return f"a {type(first).__name__}, of which there are no stacks"
    if getattr(first.convs[0], "score", None) == "dynamic":
        return 'the score "dynamic", of which there are no stacks'
    if getattr(first, "embedding", None) is not None:
        return "node embeddings, of which there are no stacks"
    if type(first) is not type(other):
        return f"a {type(first).__name__} and a {type(other).__name__}"
    states = [model.state_dict() for model in (first, other)]
    kinds = [{name: (t.shape, t.dtype, t.device) for name, t in state.items()} for state in states]
    for name in sorted(kinds[0].keys() | kinds[1].keys()):
        if kinds[0].get(name) != kinds[1].get(name):
            return f"different `{name}`"
        if name.endswith(SHARED) and not torch.equal(states[0][name], states[1][name]):
            return f"different `{name}`: models built with different graphs"
    for layers in zip(first.convs, other.convs, strict=True):
        for option in ("heads", "scope", "score", "head_merge", "negative_slope"):
            values = [getattr(layer, option, None) for layer in layers]
            if values[0] != values[1]:
                return f"`{option}` {values[0]!r} and {values[1]!r}"
    return None
