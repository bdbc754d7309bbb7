"""The two models of the paper (sections 2.2 and 2.3), with either family of layers, and stacks of them.

Examples:
    >>> from rgat.models import NodeClassifier
    >>> NodeClassifier(8, num_classes=4, num_relations=2).num_layers
    2
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rgat.checks import check_count
from rgat.graph import RelationalGraph
from rgat.nn import FeatureRows, GraphGather, RGATConv, RGCNConv
from rgat.nn.families import make_layer, units_per_head
from rgat.nn.gather import join_descriptors, sum_of_mean
from rgat.nn.inputs import dense_rows
from rgat.nn.normalisation import normalise
from rgat.nn.stacked import SHARED, Stack, dropout_rates

__all__ = ["GraphClassifier", "NodeClassifier", "Stack", "stack"]

Graphs = RelationalGraph | Sequence[RelationalGraph]  # of all layers, or one for each


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


def embedding_bound(channels: int) -> float:
    """Return the bound of uniform numbers by which rows of embeddings have length one on average."""
    return float((3 / channels) ** 0.5)


def node_embedding(num_nodes: int, channels: int) -> nn.Embedding:
    """Return a table of embeddings with sparse gradients."""
    table = nn.Embedding(num_nodes, channels, sparse=True)
    bound = embedding_bound(channels)
    nn.init.uniform_(table.weight, -bound, bound)
    return table


class _Layered(nn.Module):
    """Relational layers ``conv1``, ``conv2``, ..., and what stands between them: normalisation, ReLU and residuals."""

    residual: bool = False

    @property
    def num_layers(self) -> int:
        """The number of relational layers."""
        return sum(name.startswith("conv") for name in self._modules)

    @property
    def convs(self) -> list[RGATConv | RGCNConv]:
        """The relational layers, the first one first."""
        return [getattr(self, f"conv{number}") for number in range(1, self.num_layers + 1)]

    def _add_hidden(self, conv: nn.Module, channels: int, batch_norm: bool, layer_norm: bool) -> None:
        """Add a layer whose outputs, ``channels`` of each node, are normalised."""
        number = self.num_layers + 1
        setattr(self, f"conv{number}", conv)
        setattr(self, f"norm{number}", nn.BatchNorm1d(channels) if batch_norm else nn.Identity())
        if layer_norm:
            setattr(self, f"layer_norm{number}", nn.LayerNorm(channels))

    def _activate_hidden(self, number: int, out: Tensor, counted: Tensor | None) -> Tensor:
        """Return the output of a hidden layer from its convolution's, without the residual connection."""
        out = normalise(getattr(self, f"norm{number}"), out, counted)
        if hasattr(self, f"layer_norm{number}"):
            out = getattr(self, f"layer_norm{number}")(out)
        return torch.relu(out)


class NodeClassifier(_Layered):
    r"""Relational layers that classify nodes; by default two (figure 3a).

    $$
    H^{(1)} = \mathrm{ReLU}(\mathrm{RGAT}_{\text{concat}}(X)), \qquad
    \text{logits} = \mathrm{RGAT}_{\text{mean}}(H^{(1)}) \in \mathbb{R}^{N \times \text{classes}}.
    $$

    All layers have ``heads`` heads. All but the last have ``hidden_channels / heads`` units per head, so that the total
    stays what was asked; the last has one unit per class and head. Normalisation, if on, stands before each ReLU.

    With residual connections the output of a hidden layer is $H^{(l)} = \mathrm{ReLU}(\dots) + H^{(l-1)}$. With
    jumping knowledge $\text{logits} = \mathrm{RGAT}_{\text{mean}}(H^{(L-1)}) + \sum_{l < L} H^{(l)} J^{(l)}$,
    where $J^{(l)}$ are learned matrices: the logits see the outputs of all $L$ layers. A wide model adds $X J^{(0)}$.

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
        make_embedding: makes the table of these embeddings, given the numbers of nodes and channels.
        identity: in the first layer, add to the projected features of each node a learned row of its own per relation,
            as a one-hot vector beside the features would; needs ``graph``.
        residual: add the input of each layer but the last to its output; that of the first through a learned matrix,
            and none where the input is featureless, for which the model must be built with ``graph``.
        layer_norm: normalise the outputs of each node, by layer normalisation, in each layer but the last.
        jumping_knowledge: add a learned linear map of each layer's output to the logits.
        wide: add a learned linear map of the features to the logits, zero at first; none for featureless input.
        **options: further options of all layers, such as ``scope``, ``score`` or ``feature_dropout``.

    Examples:
        >>> import rgat
        >>> data = rgat.data.load("institute")
        >>> model = rgat.models.NodeClassifier(data.in_channels, 4, data.graph.num_relations, graph=data.graph)
        >>> model(data.x, data.graph).shape[1]
        4
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
        make_embedding: Callable[[int, int], nn.Embedding] = node_embedding,
        identity: bool = False,
        residual: bool = False,
        layer_norm: bool = False,
        jumping_knowledge: bool = False,
        wide: bool = False,
        **options: Any,
    ) -> None:
        super().__init__()
        check_count("num_classes", num_classes)
        check_count("num_layers", num_layers)
        units = units_per_head(hidden_channels, heads)
        if "num_nodes" in options:
            raise ValueError("`num_nodes` must not be given: it follows from `graph` where `identity` is true")
        first = options | _node_options(graph, identity, embedding_channels)
        if embedding_channels is not None:
            check_count("embedding_channels", embedding_channels)
            self.embedding = make_embedding(in_channels, embedding_channels)
            in_channels = embedding_channels
        has_features = "graph" not in first or identity
        if wide and has_features and embedding_channels is None:
            self.jump0 = nn.Linear(in_channels, num_classes, bias=False)
            nn.init.zeros_(self.jump0.weight)
        for number in range(1, num_layers):
            conv = make_layer(
                layer, in_channels, units, num_relations, heads, "concat", first if number == 1 else options
            )
            self._add_hidden(conv, hidden_channels, batch_norm, layer_norm)
            if jumping_knowledge:
                setattr(self, f"jump{number}", nn.Linear(hidden_channels, num_classes, bias=False))
            if residual and number == 1 and has_features:
                self.residual1 = nn.Linear(in_channels, hidden_channels, bias=False)
            in_channels = hidden_channels
        if residual:  # no attribute without it: checkpoints of earlier versions have none
            self.residual = True
        last = first if num_layers == 1 else options
        setattr(
            self, f"conv{num_layers}", make_layer(layer, in_channels, num_classes, num_relations, heads, "mean", last)
        )

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
        """Return the output of one layer, counted from 1: the input of the next, or the logits.

        With jumping knowledge or a wide map, the columns behind those of a hidden layer are its share of the logits and
        that of the layers before.
        """
        conv = getattr(self, f"conv{number}")
        out = conv(self.conv_input(number, x), graph, constant_attention=constant_attention)
        return self.activate(number, out, graph.counted, x)

    def conv_input(self, number: int, x: Tensor | FeatureRows | None) -> Tensor | FeatureRows | None:
        """Return what the convolution of a layer reads of the layer's input."""
        if number == 1 or not isinstance(x, Tensor) or not self._jumps:
            return x
        return x[..., : self.convs[number - 1].in_channels].contiguous()

    def activate(
        self, number: int, out: Tensor, counted: Tensor | None = None, x: Tensor | FeatureRows | None = None
    ) -> Tensor:
        """Return the output of a layer from its convolution's: normalised, with ReLU, residual and jumping knowledge.

        The input ``x`` of the layer is needed with residual connections, jumping knowledge and a wide map alone.
        """
        is_last, num_targets = number == self.num_layers, out.shape[0]
        if not is_last:
            out = self._activate_hidden(number, out, counted)
            if self.residual:
                out = out + self._shortcut(number, x, num_targets)
        if not self._jumps:
            return out
        shares = [out] if is_last else [getattr(self, f"jump{number}")(out)] if hasattr(self, "jump1") else []
        if number > 1:
            assert isinstance(x, Tensor)
            shares.append(x[:num_targets, ..., self.convs[number - 1].in_channels :])
        elif hasattr(self, "jump0"):
            shares.append(self.jump0(dense_rows("wide", x, num_targets, "such features; leave it out")))
        logits = shares[0] if len(shares) == 1 else shares[0] + shares[1]
        return logits if is_last else torch.cat([out, logits], dim=-1)

    @property
    def _jumps(self) -> bool:
        """Whether hidden layers or features add to the logits."""
        return hasattr(self, "jump0") or hasattr(self, "jump1")

    def _shortcut(self, number: int, x: Tensor | FeatureRows | None, num_targets: int) -> Tensor | float:
        """Return what a residual connection adds to the output of a hidden layer."""
        if number > 1:
            hidden = self.conv_input(number, x)
            assert isinstance(hidden, Tensor)
            return hidden[:num_targets]
        if not hasattr(self, "residual1"):
            return 0.0
        otherwise = "a model built with `graph=`; pass the graph"
        added: Tensor = self.residual1(dense_rows("residual", x, num_targets, otherwise))
        return added

    @property
    def depends_on_edges_alone(self) -> bool:
        """Whether a node's logits now depend on others by edges alone, and not on how the edges are numbered."""
        drops = any(rate > 0 for conv in self.convs for _, rate in dropout_rates(conv))
        norms = (getattr(self, f"norm{number}") for number in range(1, self.num_layers))
        return not self.training or (all(isinstance(norm, nn.Identity) for norm in norms) and not drops)


class GraphClassifier(_Layered):
    r"""Relational layers, a gather and two dense layers that classify whole graphs for several tasks (figure 3b).

    $$
    H^{(l)} = \mathrm{ReLU}(\mathrm{RGAT}_{\text{concat}}(H^{(l-1)})), \quad l = 1, \dots, L, \qquad
    z = \tanh(\mathrm{GraphGather}(H^{(L)})), \qquad
    \text{logits} = \mathrm{Dense}(\mathrm{ReLU}(\mathrm{Dense}(z))).
    $$

    The paper has $L = 2$. All relational layers have ``heads`` heads of ``hidden_channels / heads`` units.
    Normalisation, if on, stands before each of their ReLUs. With residual connections the output of a layer is
    $H^{(l)} = \mathrm{ReLU}(\dots) + H^{(l-1)}$; with jumping knowledge $H^{(1)} \oplus \dots \oplus H^{(L)}$ is
    gathered instead of $H^{(L)}$.

    Args:
        in_channels: number of node features.
        num_tasks: number of tasks.
        num_relations: number of relations.
        num_classes: number of classes of each task.
        layer: "rgat" or "rgcn".
        hidden_channels: units of each relational layer, over all heads.
        dense_channels: units of the first dense layer.
        heads: number of heads of all relational layers.
        batch_norm: normalise the output of all relational layers.
        descriptor_channels: number of descriptors of each graph, ``graph.graph_attr``, that stand beside $z$.
        gather_sum: let the sum of the node representations stand beside $z$ too, which mean and maximum do not tell:
            what a property counts or adds up.
        num_layers: number of relational layers.
        residual: add the input of each relational layer to its output, that of the first through a learned matrix.
        layer_norm: normalise the outputs of each node, by layer normalisation, in all relational layers.
        jumping_knowledge: gather the outputs of all relational layers, not only of the last.
        **options: further options of all relational layers, such as ``scope``, ``score`` or ``edge_dim``.

    Examples:
        >>> import rgat
        >>> data = rgat.data.load("molecules")
        >>> model = rgat.models.GraphClassifier(data.in_channels, len(data.tasks), data.graphs.num_relations)
        >>> model(*data.graphs.batch(data.test[:5])).shape
        torch.Size([5, 6, 2])
    """

    descriptor_channels: int = 0
    gather_sum: bool = False
    jumping_knowledge: bool = False

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
        descriptor_channels: int = 0,
        gather_sum: bool = False,
        num_layers: int = 2,
        residual: bool = False,
        layer_norm: bool = False,
        jumping_knowledge: bool = False,
        **options: Any,
    ) -> None:
        super().__init__()
        check_count("descriptor_channels", descriptor_channels, least=0)
        counts = {"num_tasks": num_tasks, "num_classes": num_classes, "dense_channels": dense_channels}
        for name, value in (counts | {"num_layers": num_layers}).items():
            check_count(name, value)
        for name in ("graph", "num_nodes"):
            if name in options:
                raise ValueError(
                    f"`{name}` must not be given: a graph classifier is for many graphs, with node features"
                )
        units = units_per_head(hidden_channels, heads)
        self.num_tasks = num_tasks
        self.num_classes = num_classes
        for number in range(1, num_layers + 1):
            channels = in_channels if number == 1 else hidden_channels
            conv = make_layer(layer, channels, units, num_relations, heads, "concat", options)
            self._add_hidden(conv, hidden_channels, batch_norm, layer_norm)
        if residual:
            self.residual = True
            self.residual1 = nn.Linear(in_channels, hidden_channels, bias=False)
        if jumping_knowledge:  # no attribute without it: checkpoints of earlier versions have none
            self.jumping_knowledge = True
        self.gather = GraphGather()
        self.descriptor_channels = descriptor_channels
        self.gather_sum = gather_sum
        gathered = (2 + gather_sum) * hidden_channels * (num_layers if jumping_knowledge else 1)
        self.dense1 = nn.Linear(gathered + descriptor_channels, dense_channels)
        self.dense2 = nn.Linear(dense_channels, num_tasks * num_classes)

    def forward(self, x: Tensor | None, graph: RelationalGraph, constant_attention: bool = False) -> Tensor:
        """Return class logits ``[G, num_tasks, num_classes]``."""
        outputs: list[Tensor] = []
        for number, conv in enumerate(self.convs, start=1):
            x = self.activate(number, conv(x, graph, constant_attention=constant_attention), graph.counted, x)
            outputs.append(x)
        h = torch.cat(outputs, dim=-1) if self.jumping_knowledge else outputs[-1]
        gathered = self.gather(h, graph)
        z = torch.tanh(gathered)
        if self.gather_sum:
            z = torch.cat([z, sum_of_mean(gathered[..., : h.shape[-1]], graph)], dim=-1)
        if self.descriptor_channels:
            z = join_descriptors(z, graph, self.descriptor_channels)
        logits: Tensor = self.dense2(torch.relu(self.dense1(z)))
        return logits.reshape(*logits.shape[:-1], self.num_tasks, self.num_classes)

    def activate(self, number: int, out: Tensor, counted: Tensor | None = None, x: Tensor | None = None) -> Tensor:
        """Return the output of a relational layer from its convolution's, and its input ``x`` where that is added."""
        out = self._activate_hidden(number, out, counted)
        if not self.residual:
            return out
        if number == 1:
            x = self.residual1(dense_rows("residual", x, out.shape[0], "them; leave it out"))
        assert x is not None
        return out + x


Model = NodeClassifier | GraphClassifier


def stack(models: Sequence[Model]) -> Stack:
    """Put models of one architecture together: many seeds, folds or dropout rates as one computation.

    Members may differ in their parameters, dropout seeds and dropout rates, in nothing else. The stack has copies.

    Examples:
        >>> import rgat
        >>> data = rgat.data.load("institute")
        >>> models = [rgat.training.build_model(data, seed) for seed in range(3)]
        >>> rgat.models.stack(models)(data.x, data.graph).shape[0]
        3
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
    if getattr(first, "embedding", None) is not None:
        return "node embeddings, of which there are no stacks"
    if type(first) is not type(other):
        return f"a {type(first).__name__} and a {type(other).__name__}"
    if getattr(first, "residual", False) != getattr(other, "residual", False):
        return "models with and without `residual`"
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
