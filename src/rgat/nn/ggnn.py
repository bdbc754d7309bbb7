"""Gated graph networks with relation types (Li et al., 2016), a comparison that the paper leaves to future work."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rgat.checks import check_count
from rgat.graph import RelationalGraph
from rgat.nn.kernels import BasisKernel, FullKernel, RowKernel, glorot_uniform_
from rgat.nn.rgcn import RGCNConv


class _SumConv(RGCNConv):
    """``sum over r, j of h_j W[r]``: the mean over all edges of a node, times its degree."""

    scope = ("across",)

    def forward(self, x: Tensor, graph: RelationalGraph) -> Tensor:  # type: ignore[override]
        degree = graph.structure.target_ptr.diff().unsqueeze(1)
        return super().forward(x, graph) * degree.to(x.dtype)


class GGNNConv(nn.Module):
    r"""Update node states with messages along typed edges by a gated recurrent unit, $T$ times.

    $$
    h^{(0)}_i = x_i P, \qquad
    m^{(t)}_i = \sum_r \sum_{j \in \mathcal{N}_i^{(r)}} h^{(t-1)}_j W^{(r)}, \qquad
    h^{(t)}_i = \mathrm{GRU}(m^{(t)}_i, h^{(t-1)}_i), \quad t = 1, \dots, T.
    $$

    All steps share their weights. Messages are summed, not averaged, so they grow with the degree. A learned $P$
    projects the features; for featureless input its rows are the nodes' embeddings. Dropout is that of
    `RGCNConv`, with a new mask in every step.

    Args:
        in_channels: number of node features; for featureless input the number of nodes.
        out_channels: size of the state $h$.
        num_relations: number of relations.
        num_steps: $T$.
        num_bases: number of bases of $W$; None for full kernels.
        feature_dropout: rate at which elements of $h_j W^{(r)}$ are dropped from the sum, in training.
        edge_dropout: rate at which edges are dropped, in training.
        bias: biases in the gated unit.

    Examples:
        >>> import torch
        >>> from rgat import RelationalGraph
        >>> from rgat.nn import GGNNConv
        >>> edges, types = torch.tensor([[0, 1, 2], [1, 2, 1]]), torch.tensor([0, 0, 1])
        >>> graph = RelationalGraph(edges, types, num_nodes=3, num_relations=2)
        >>> GGNNConv(8, 16, num_relations=2, num_steps=3)(torch.randn(3, 8), graph).shape
        torch.Size([3, 32])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        num_relations: int,
        num_steps: int = 4,
        num_bases: int | None = None,
        feature_dropout: float = 0.0,
        edge_dropout: float = 0.0,
        bias: bool = True,
    ) -> None:
        super().__init__()
        check_count("num_steps", num_steps)
        check_count("in_channels", in_channels, least=0)
        self.in_channels = in_channels
        self.num_steps = num_steps
        self.messages = _SumConv(
            out_channels, out_channels, num_relations, num_bases, feature_dropout, edge_dropout, bias=False
        )
        self.embedding = nn.Parameter(torch.empty(in_channels, out_channels))  # P
        self.cell = nn.GRUCell(out_channels, out_channels, bias=bias)
        glorot_uniform_(self.embedding, in_channels + out_channels)

    @property
    def kernel(self) -> FullKernel | BasisKernel | RowKernel:
        """The module that holds or composes ``W``."""
        return self.messages.kernel

    def embed(self, x: Tensor | None, graph: RelationalGraph) -> Tensor:
        """Return the first state ``[N, D]`` for features ``[N, F]``, indices ``[N]``, or None for featureless input."""
        if x is None:
            if graph.num_nodes != self.in_channels:
                raise ValueError(
                    f"without features, `in_channels` must be the number of nodes, {graph.num_nodes}, "
                    f"got {self.in_channels}"
                )
            return self.embedding
        if x.dim() == 1 and not x.is_floating_point():
            return self.embedding.index_select(0, x)
        if x.dim() != 2 or x.shape[1] != self.in_channels:
            raise ValueError(f"`x` must have shape [num_nodes, {self.in_channels}], got {list(x.shape)}")
        return x @ self.embedding

    def forward(self, x: Tensor | None, graph: RelationalGraph) -> Tensor:
        """Return the first and the last state side by side, ``[N, 2 D]``."""
        first = h = self.embed(x, graph)
        for _ in range(self.num_steps):
            h = self.cell(self.messages(h, graph), h)
        return torch.cat([first, h], dim=1)

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.cell.hidden_size}, num_steps={self.num_steps}"
