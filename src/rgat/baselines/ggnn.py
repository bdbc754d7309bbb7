"""GGNN (Li et al., 2016) for nodes and for graphs, with the options that the paper's models share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rgat.checks import check_count
from rgat.graph import RelationalGraph
from rgat.nn import GGNNConv
from rgat.nn.kernels import glorot_uniform_
from rgat.nn.normalisation import normalise


class Readout(nn.Module):
    """A dense layer on the states; its matrix is named ``kernel`` so that the second L2 coefficient applies to it."""

    def __init__(self, in_channels: int, out_channels: int, bias: bool) -> None:
        super().__init__()
        self.kernel = nn.Linear(in_channels, out_channels, bias=False)
        self.bias = nn.Parameter(torch.zeros(out_channels)) if bias else None
        glorot_uniform_(self.kernel.weight, in_channels + out_channels)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[N, F]`` to ``[N, D]``."""
        out: Tensor = self.kernel(x)
        return out if self.bias is None else out + self.bias


class GGNNNodeClassifier(nn.Module):
    r"""A gated graph network that classifies nodes: $\text{logits}_i = [h^{(0)}_i \oplus h^{(T)}_i] V$.

    The arguments are those of `rgat.models.NodeClassifier` and of `GGNNConv`; for featureless input,
    ``in_channels`` is the number of nodes.
    """

    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        num_relations: int,
        hidden_channels: int = 16,
        batch_norm: bool = False,
        bias: bool = True,
        **options: Any,
    ) -> None:
        super().__init__()
        check_count("num_classes", num_classes)
        self.conv1 = GGNNConv(in_channels, hidden_channels, num_relations, bias=bias, **options)
        self.norm1 = nn.BatchNorm1d(2 * hidden_channels) if batch_norm else nn.Identity()
        self.conv2 = Readout(2 * hidden_channels, num_classes, bias)

    def forward(self, x: Tensor | None, graph: RelationalGraph, constant_attention: bool = False) -> Tensor:
        """Return class logits ``[N, num_classes]``; ``constant_attention`` has no effect."""
        logits: Tensor = self.conv2(normalise(self.norm1, self.conv1(x, graph), graph.counted))
        return logits


class GGNNGraphClassifier(nn.Module):
    r"""A gated graph network, a gated sum over the nodes of a graph, and two dense layers.

    $$
    z = \tanh \Big( \sum_i \sigma(s_i V_1) \odot \tanh(s_i V_2) \Big), \quad s_i = h^{(0)}_i \oplus h^{(T)}_i,
    \qquad \text{logits} = \mathrm{Dense}(\mathrm{ReLU}(\mathrm{Dense}(z))).
    $$

    The arguments are those of `rgat.models.GraphClassifier` and of `GGNNConv`.
    """

    def __init__(
        self,
        in_channels: int,
        num_tasks: int,
        num_relations: int,
        num_classes: int = 2,
        hidden_channels: int = 64,
        dense_channels: int = 64,
        batch_norm: bool = False,
        bias: bool = True,
        **options: Any,
    ) -> None:
        super().__init__()
        for name, value in (("num_tasks", num_tasks), ("num_classes", num_classes), ("dense_channels", dense_channels)):
            check_count(name, value)
        self.num_tasks = num_tasks
        self.num_classes = num_classes
        self.conv1 = GGNNConv(in_channels, hidden_channels, num_relations, bias=bias, **options)
        self.norm1 = nn.BatchNorm1d(2 * hidden_channels) if batch_norm else nn.Identity()
        self.conv2 = Readout(2 * hidden_channels, 2 * hidden_channels, bias)
        self.dense1 = nn.Linear(hidden_channels, dense_channels)
        self.dense2 = nn.Linear(dense_channels, num_tasks * num_classes)

    def forward(self, x: Tensor | None, graph: RelationalGraph, constant_attention: bool = False) -> Tensor:
        """Return class logits ``[G, num_tasks, num_classes]``; ``constant_attention`` has no effect."""
        gate, value = self.conv2(normalise(self.norm1, self.conv1(x, graph), graph.counted)).chunk(2, dim=1)
        message = torch.sigmoid(gate) * torch.tanh(value)
        total = message.new_zeros(graph.num_graphs, message.shape[1]).index_add(0, graph.graph_ids(), message)
        logits: Tensor = self.dense2(torch.relu(self.dense1(torch.tanh(total))))
        return logits.view(-1, self.num_tasks, self.num_classes)
