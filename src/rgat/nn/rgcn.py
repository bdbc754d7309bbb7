"""The relational graph convolution that the paper compares with (section 2.1, "Comparison to RGCN")."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rgat import ops
from rgat.graph import RelationalGraph
from rgat.nn.inputs import FeatureRows
from rgat.nn.relational import RelationalConv


class RGCNConv(RelationalConv):
    r"""Relational graph convolution: attention within a relation that is constant.

    $$
    h'_i = \sum_r \sum_{j \in \mathcal{N}_i^{(r)}} \frac{1}{|\mathcal{N}_i^{(r)}|}\, h_j W^{(r)} + b,
    \qquad W^{(r)} \in \mathbb{R}^{F \times D}.
    $$

    With ``num_nodes`` a learned row of the node is added to $h_j W^{(r)}$.
    There is no kernel of its own for a node's own features: add a self-loop relation to the graph. Edge features of the
    graph are ignored, as by every constant attention.

    Args:
        in_channels: $F$; for featureless input the number of nodes.
        out_channels: $D$.
        num_relations: $R$.
        num_bases: number of bases of $W$; None for full kernels.
        feature_dropout: rate at which elements of the values $h_j W$ are dropped from the sum, in training.
        edge_dropout: rate at which edges are dropped, in training.
        bias: add a learned bias.
        graph: for featureless input, hold only the kernel rows that the edges of this graph use; with ``num_nodes``,
            only these rows of nodes.
        num_nodes: add a learned row per node and relation to the projected features. With bases these rows have as many
            bases and coefficients of their own.

    Examples:
        >>> import torch
        >>> from rgat import RelationalGraph
        >>> from rgat.nn import RGCNConv
        >>> edges, types = torch.tensor([[0, 1, 2], [1, 2, 1]]), torch.tensor([0, 0, 1])
        >>> graph = RelationalGraph(edges, types, num_nodes=3, num_relations=2)
        >>> RGCNConv(8, 16, num_relations=2, num_bases=1)(torch.randn(3, 8), graph).shape
        torch.Size([3, 16])
    """

    row_ends = ("sources",)
    projection = None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        num_relations: int,
        num_bases: int | None = None,
        feature_dropout: float = 0.0,
        edge_dropout: float = 0.0,
        bias: bool = True,
        graph: RelationalGraph | None = None,
        num_nodes: int | None = None,
    ) -> None:
        channels, dropout = (in_channels, out_channels), (feature_dropout, edge_dropout)
        super().__init__(channels, num_relations, 1, num_bases, dropout, graph, num_nodes)
        self.bias = nn.Parameter(torch.empty(out_channels)) if bias else None
        self.reset_parameters()

    def kernels(self) -> Tensor:
        """Return the kernels ``W``, ``[R, F, D]``, composed from bases where there are any; rows not held are zero."""
        return self.kernel.compose(self.rows).squeeze(1)

    def forward(
        self,
        x: Tensor | FeatureRows | None,
        edge_index: RelationalGraph | Tensor,
        edge_type: Tensor | None = None,
        constant_attention: bool = True,
        plan: ops.Plan | None = None,
    ) -> Tensor:
        """Return the output ``[N, D]`` for the inputs that `RGATConv` takes; attention is constant anyway."""
        graph = self._check_graph(x, edge_index, edge_type, None)
        out, _ = self._compute(self._check_input(x, graph), None, graph, plan)
        return self._merge(out)

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}, num_relations={self.num_relations}{self._shown}"
