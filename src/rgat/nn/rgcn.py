"""The relational graph convolution that the paper compares with (section 2.1, "Comparison to RGCN")."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rgat import ops
from rgat.graph import RelationalGraph
from rgat.nn.relational import RelationalConv


class RGCNConv(RelationalConv):
    r"""Relational graph convolution: attention within a relation that is constant.

    .. math::
        h'_i = \sum_r \sum_{j \in \mathcal{N}_i^{(r)}} \frac{1}{|\mathcal{N}_i^{(r)}|}\, h_j W^{(r)} + b,
        \qquad W^{(r)} \in \mathbb{R}^{F \times D}.

    There is no kernel of its own for a node's own features: add a self-loop relation to the graph. Edge features of the
    graph are ignored, as by every constant attention.

    Args:
        in_channels: :math:`F`; for featureless input the number of nodes.
        out_channels: :math:`D`.
        num_relations: :math:`R`.
        num_bases: number of bases of :math:`W`; None for full kernels.
        feature_dropout: rate at which elements of the values :math:`h_j W` are dropped from the sum, in training.
        edge_dropout: rate at which edges are dropped, in training.
        bias: add a learned bias.
        graph: for featureless input, hold only the kernel rows that the edges of this graph use.
    """

    row_ends = ("sources",)
    _scope = "within"

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
    ) -> None:
        super().__init__(in_channels, out_channels, num_relations, 1, num_bases, feature_dropout, edge_dropout, graph)
        self.bias = nn.Parameter(torch.empty(out_channels)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.bias is not None:
            nn.init.zeros_(self.bias)
        super().reset_parameters()

    def kernels(self) -> Tensor:
        """The kernels ``W``, ``[R, F, D]``, composed from the bases where there are any; rows not held are zero."""
        return self._kernels().squeeze(1)

    def forward(
        self,
        x: Tensor | None,
        edge_index: RelationalGraph | Tensor,
        edge_type: Tensor | None = None,
        plan: ops.Plan | None = None,
    ) -> Tensor:
        """Return the output ``[N, D]`` for the inputs that :class:`RGATConv` takes."""
        graph = self._as_graph(x, edge_index, edge_type, None)
        x, index = self._split_input(x, graph)
        state = self._next_dropout_state()
        bias = self.bias
        if ops.requested_backend() == "reference":
            self._check_rows(graph)
            with torch.autocast(graph.device.type, enabled=False):
                out, _ = ops.relational_attention(
                    self._dense(x, index),
                    self._kernels(),
                    None,
                    graph,
                    scope=(self._scope,),
                    dropout_state=state,
                    feature_dropout=self.feature_dropout,
                    edge_dropout=self.edge_dropout,
                )
        else:
            across = [self._scope == "across"]
            how = ops.Attention(across, None, self.feature_dropout, self.edge_dropout, ops.requested_backend())
            if x is None:
                found = self._attend_rows(None, None, graph, how, state)
                if found is None:
                    g = self._values(x, index, graph.structure.sources, graph)
                    found = ops.attend(g, None, None, None, graph.structure, how, state)
                out = found[0]
            else:
                plan = plan or self._plan(graph, constant_attention=True)
                out, _ = self._convolve(x, None, None, graph, plan, how, state, bias)
                bias = None
        out = out.squeeze(1)
        return out if bias is None else out + bias.to(out.dtype)

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}, num_relations={self.num_relations}{self._shown_dropout}"
