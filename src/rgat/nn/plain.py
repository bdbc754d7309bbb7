"""Relational layers as plain tensor operations on bare edges, for programs that leave this package.

The operators of `rgat.ops` need sorted edges and are unknown to other runtimes. Here a layer is written with gathers,
matrix products and scatters alone, which ONNX has too. It forms a table of all (node, relation) pairs, ``N * R`` rows.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu

from rgat.graph import RelationalGraph
from rgat.nn.gather import GraphGather
from rgat.nn.relational import RelationalConv

AnyModule = TypeVar("AnyModule", bound=nn.Module)


@dataclass(frozen=True)
class PlainGraph:
    """What plain layers, and the models around them, ask of a graph; a tracer sees through it."""

    edge_index: Tensor  # [2, E]
    edge_type: Tensor  # [E]
    num_nodes: int
    batch: Tensor | None = None  # [N]; None: one graph
    num_graphs: int = 1
    graph_attr: Tensor | None = None  # [G, D]
    counted: None = None
    node_ids: None = None

    @property
    def device(self) -> torch.device:
        return self.edge_index.device

    def graph_ids(self) -> Tensor:
        """Return the graph id of each node, ``[N]``."""
        return self.edge_type.new_zeros(self.num_nodes) if self.batch is None else self.batch

    @property
    def graph_sizes(self) -> Tensor:
        """The number of nodes of each graph, ``[G]``."""
        ids = self.graph_ids()
        return ids.new_zeros(self.num_graphs).scatter_add(0, ids, torch.ones_like(ids))


class PlainConv(nn.Module):
    """A relational layer in evaluation mode, in plain operations.

    Args:
        conv: the layer; its parameters are folded into constants.
        graph: of a layer that has rows of nodes, as one-hot input needs: rows that no edge of it uses read as zero.
        with_features: whether the layer gets features; False for one-hot input alone.
    """

    weight: Tensor | None  # [F, R * H * C]: values, keys and queries from features, C = D + 2 A
    rows: Tensor | None  # [U + 1, H, C]: the same of rows of nodes, and a row of zeros
    place: Tensor | None  # [(N + 1) * R]: where the row of (node, relation) stands; those of node N are zero
    score_kernel: Tensor | None  # [R, H, A]

    def __init__(self, conv: RelationalConv, graph: RelationalGraph | None, with_features: bool) -> None:
        super().__init__()
        if conv.members is not None or getattr(conv, "edge_dim", None) is not None:
            raise ValueError("an exported layer must be a single one without edge features, got a stack or `edge_dim`")
        self.conv: Any = conv
        self.in_channels = conv.in_channels
        weight = rows = place = None
        with torch.no_grad():
            if with_features:
                kernels = conv.kernel.compose(conv.rows)  # [R, H, F, D]
                weight = self._fold(kernels).permute(2, 0, 1, 3).flatten(1)
            kernel = conv.node_kernel if with_features else conv.kernel
            if kernel is not None:
                assert graph is not None
                rows, place = self._rows(kernel, graph)
        for name, tensor in (("weight", weight), ("rows", rows), ("place", place)):
            self.register_buffer(name, tensor)
        self.register_buffer("score_kernel", getattr(conv, "score_kernel", None))
        self.conv = copy.copy(conv)  # for its options and what `finish` needs
        self.conv._modules = {}

    def _fold(self, values: Tensor) -> Tensor:
        """Append keys and queries to values ``[R, H, n, D]``, which are linear in them."""
        if self.conv.score is None:
            return values
        query, key = self.conv.attention_kernels()
        return torch.cat([values, values @ key, values @ query], dim=-1)

    def _rows(self, kernel: Any, graph: RelationalGraph) -> tuple[Tensor, Tensor]:
        """Return the rows of nodes, and where each (node, relation) stands among them."""
        size, relations = kernel.in_channels, self.conv.num_relations
        source, target = graph.edge_index
        keys = torch.unique(torch.cat([source, target]) * relations + graph.edge_type.repeat(2))
        dense = self._fold(kernel.compose(self.conv.rows)).permute(2, 0, 1, 3).flatten(0, 1)  # [N * R, H, C]
        rows = torch.cat([dense.index_select(0, keys), dense.new_zeros(1, *dense.shape[1:])])
        place = torch.full(((size + 1) * relations,), len(keys))
        return rows, place.index_copy(0, keys, torch.arange(len(keys)))

    def _at(self, nodes: Tensor, table: Tensor | None, graph: PlainGraph) -> Tensor:
        """Return values, keys and queries at one end of the edges, ``[E, H, C]``."""
        relations, out = self.conv.num_relations, None
        if table is not None:
            out = table.index_select(0, nodes * relations + graph.edge_type)
        if self.rows is not None and self.place is not None:
            known = nodes.clamp(max=len(self.place) // relations - 1)
            rows = self.rows.index_select(0, self.place.index_select(0, known * relations + graph.edge_type))
            out = rows if out is None else out + rows
        assert out is not None
        return out

    def forward(self, x: Tensor | None, graph: PlainGraph, constant_attention: bool = False) -> Tensor:
        """Return the output of all nodes, as the layer itself gives it in evaluation mode."""
        conv, (source, target), table = self.conv, graph.edge_index, None
        if self.weight is not None:
            assert x is not None
            table = (x @ self.weight).view(graph.num_nodes * conv.num_relations, conv.heads, -1)
        at_source, channels = self._at(source, table, graph), conv.out_channels
        values = at_source[..., :channels]
        logits = values.new_zeros(values.shape[:2])
        if conv.score is not None and not constant_attention:
            end = channels + conv.attention_channels
            logits = self._logits(at_source[..., channels:end], self._at(target, table, graph)[..., end:], graph)
        messages = values * self._softmax(logits, graph).unsqueeze(-1)
        index = target.view(-1, 1, 1).expand_as(messages)
        out = messages.new_zeros(graph.num_nodes, conv.heads, channels).scatter_add(0, index, messages)
        merged: Tensor = conv.finish(out)
        return merged

    def _logits(self, keys: Tensor, queries: Tensor, graph: PlainGraph) -> Tensor:
        if self.conv.score == "multiplicative":
            return (queries * keys).sum(-1)
        logits = leaky_relu(queries + keys, self.conv.negative_slope)
        if self.score_kernel is None:
            return logits.squeeze(-1)
        return (logits * self.score_kernel.index_select(0, graph.edge_type)).sum(-1)

    def _softmax(self, logits: Tensor, graph: PlainGraph) -> Tensor:
        """Return the attention ``[E, H]``.

        One more edge stands in a group of its own, because ONNX's maximum of groups needs an entry.
        """
        target, relations = graph.edge_index[1], self.conv.num_relations
        groups = {  # of each scope: the softmax group of each edge, and the number of groups
            "within": (target * relations + graph.edge_type, graph.num_nodes * relations),
            "across": (target, graph.num_nodes),
        }
        padded = {
            word: (torch.cat([group.new_zeros(1), group + 1]), size + 1) for word, (group, size) in groups.items()
        }
        logits = torch.cat([logits.new_zeros(1, logits.shape[1]), logits])
        return scoped_softmax(logits, self.conv.scope, padded)[1:]


def scoped_softmax(logits: Tensor, scope: Sequence[str], groups: dict[str, tuple[Tensor, int]]) -> Tensor:
    """Return the attention of logits ``[E, H]``, given each head's scope and, by scope, groups and their number."""
    parts, order = list[Tensor](), list[int]()
    for word in sorted(set(scope)):
        heads = [head for head, other in enumerate(scope) if other == word]
        part = logits[:, heads] if len(heads) < logits.shape[1] else logits
        parts.append(_grouped_softmax(part, *groups[word]))
        order += heads
    if len(parts) == 1:
        return parts[0]
    return torch.cat(parts, dim=1)[:, sorted(range(len(order)), key=order.__getitem__)]


def _grouped_softmax(logits: Tensor, group: Tensor, num_groups: int) -> Tensor:
    """Return the softmax of logits ``[E, H]`` over the entries that share a ``group``."""
    index, shape = group.unsqueeze(1).expand_as(logits), (num_groups, logits.shape[1])
    maximum = logits.new_full(shape, torch.finfo(logits.dtype).min).scatter_reduce(0, index, logits, "amax")
    numerator = (logits - maximum.index_select(0, group)).exp()
    return numerator / logits.new_zeros(shape).scatter_add(0, index, numerator).index_select(0, group)


class PlainGather(nn.Module):
    """`GraphGather` in plain operations; a graph without nodes gathers to zero."""

    def forward(self, x: Tensor, graph: PlainGraph) -> Tensor:
        """Return the mean and the maximum of each graph's nodes, ``[G, 2 F]``."""
        index, shape = graph.graph_ids().unsqueeze(1).expand_as(x), (graph.num_graphs, x.shape[1])
        count = graph.graph_sizes.to(x.dtype).unsqueeze(1)
        mean = x.new_zeros(shape).scatter_add(0, index, x) / count.clamp(min=1)
        maximum = x.new_full(shape, torch.finfo(x.dtype).min).scatter_reduce(0, index, x, "amax")
        return torch.cat([mean, torch.where(count > 0, maximum, 0.0)], dim=1)


def as_plain(model: AnyModule, graph: RelationalGraph | None = None, with_features: bool = True) -> AnyModule:
    """Return a copy of a model whose relational layers and gathers are plain operations; it takes a `PlainGraph`.

    Args:
        model: a model whose first relational layer gets the model's input; it is not changed.
        graph: of a model with rows of nodes, as one-hot input needs.
        with_features: whether the model's first relational layer gets features; False for one-hot input alone.
    """
    new = copy.copy(model)
    new._modules = dict(model._modules)
    for name, module in model._modules.items():
        if isinstance(module, RelationalConv):
            new._modules[name] = PlainConv(module, graph, with_features)
            with_features = True  # those after it get the outputs of others
        elif isinstance(module, GraphGather):
            new._modules[name] = PlainGather()
    return new.eval()
