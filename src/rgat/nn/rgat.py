"""The relational graph attention layer (section 2.1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rgat import ops
from rgat.checks import check_count, check_number, check_word
from rgat.graph import RelationalGraph
from rgat.nn.inputs import FeatureRows, check_features
from rgat.nn.kernels import BasisKernel, FullKernel, glorot_uniform_, join_members
from rgat.nn.relational import RelationalConv

SCOPES = ("within", "across")
SCORES = ("additive", "multiplicative", "dynamic")
HEAD_MERGES = ("concat", "mean", "sum", "projection")


class RGATConv(RelationalConv):
    r"""Relational graph attention, within (WIRGAT) or across (ARGAT) relations.

    For head $k$ and relation $r$, values, queries and keys of a node with features
    $h_i \in \mathbb{R}^F$ are

    $$
    g_i = h_i W^{(r,k)} \in \mathbb{R}^D, \qquad q_i = g_i Q^{(r,k)}, \quad k_i = g_i K^{(r,k)} \in \mathbb{R}^A,
    $$

    where ``num_nodes`` adds a learned row of the node to $g_i$, and with it to its query and key:
    $g_i = w_i^{(r,k)} + h_i W^{(r,k)}$. The logit of an edge from $j$ to $i$ is

    $$
    E_{ij} = \mathrm{LeakyReLU}(q_i + k_j) \ \text{(additive, } A = 1\text{)} \quad\text{or}\quad
    E_{ij} = q_i \cdot k_j \ \text{(multiplicative)},
    $$

    plus $e_{ij} \cdot u^{(r,k)}$, before the LeakyReLU, where edges have features $e_{ij}$. A third score
    is not the paper's: with a learned vector $a^{(r,k)} \in \mathbb{R}^A$, the dynamic logit

    $$
    E_{ij} = a^{(r,k)} \cdot \mathrm{LeakyReLU}(q_i + k_j) + e_{ij} \cdot u^{(r,k)}
    $$

    can rank the neighbours differently for each $i$, which the additive one cannot (Brody et al., 2022).

    Attention $\alpha_{ij}$ is the softmax of the logits over all edges of one $(i, r)$ ("within") or of one
    $i$ ("across"), and the output is $h'_i = \sum_r \sum_j \alpha_{ij}\, g_j$ per head; heads are then
    merged and a bias is added. A node without incoming edges gets the bias alone. The layer applies no nonlinearity, no
    normalisation and no residual: these belong to the model.

    Args:
        in_channels: $F$; for featureless input the number of nodes.
        out_channels: $D$, per head.
        num_relations: $R$.
        heads: number of heads $H$.
        scope: "within" or "across", or one of these words per head; "mixed" is "within" for the first half of the heads
            and "across" for the others.
        score: "additive", "multiplicative" or "dynamic".
        attention_channels: $A$; by default 1 for the additive score (which allows nothing else) and
            ``out_channels`` for the others.
        head_merge: "concat", "mean", "sum" or "projection" (a learned $HD \times D$ matrix).
        num_bases: number of bases of $W$; None for full kernels.
        num_attention_bases: number of bases of the stacked $[Q; K]$; None for full kernels.
        edge_dim: number of edge features; None for none.
        negative_slope: of the LeakyReLU.
        feature_dropout: rate at which elements of the values $g_j$ are dropped from the sum, in training.
        edge_dropout: rate at which edges are dropped after the softmax, in training.
        bias: add a learned bias.
        graph: for featureless input, hold only the kernel rows that the edges of this graph use; with ``num_nodes``,
            only these rows of nodes.
        num_nodes: add a learned row per node and relation to the projected features. With bases these rows have as many
            bases and coefficients of their own.

    Examples:
        >>> import torch
        >>> from rgat import RelationalGraph
        >>> from rgat.nn import RGATConv
        >>> edges, types = torch.tensor([[0, 1, 2], [1, 2, 1]]), torch.tensor([0, 0, 1])
        >>> graph = RelationalGraph(edges, types, num_nodes=3, num_relations=2)
        >>> conv = RGATConv(8, 16, num_relations=2, heads=4, scope="across")
        >>> out, (edge_index, attention) = conv(torch.randn(3, 8), graph, return_attention_weights=True)
        >>> out.shape, attention.shape
        (torch.Size([3, 64]), torch.Size([3, 4]))
    """

    row_ends = ("sources", "targets")

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        num_relations: int,
        heads: int = 1,
        scope: str | Sequence[str] = "within",
        score: str = "additive",
        attention_channels: int | None = None,
        head_merge: str = "concat",
        num_bases: int | None = None,
        num_attention_bases: int | None = None,
        edge_dim: int | None = None,
        negative_slope: float = 0.2,
        feature_dropout: float = 0.0,
        edge_dropout: float = 0.0,
        bias: bool = True,
        graph: RelationalGraph | None = None,
        num_nodes: int | None = None,
    ) -> None:
        channels, dropout = (in_channels, out_channels), (feature_dropout, edge_dropout)
        super().__init__(channels, num_relations, heads, num_bases, dropout, graph, num_nodes)
        check_word("score", score, SCORES)
        check_word("head_merge", head_merge, HEAD_MERGES)
        self.scope = _scope_per_head(scope, heads)
        self.score = score
        self.attention_channels = _attention_channels(attention_channels, score, out_channels)
        self.head_merge = head_merge
        self.edge_dim = edge_dim
        check_number("negative_slope", negative_slope)
        self.negative_slope = negative_slope

        sizes = (num_relations, heads, 2 * out_channels, self.attention_channels)  # [Q; K] stacked, Q first
        self.attention_kernel: FullKernel | BasisKernel
        if num_attention_bases is None:
            self.attention_kernel = FullKernel(*sizes)
        else:
            check_count("num_attention_bases", num_attention_bases)
            self.attention_kernel = BasisKernel(*sizes, num_attention_bases)
        self.score_kernel: nn.Parameter | None = None  # a: [R, H, A]
        if score == "dynamic":
            self.score_kernel = nn.Parameter(torch.empty(num_relations, heads, self.attention_channels))
        self.edge_kernel: nn.Parameter | None = None
        if edge_dim is not None:
            check_count("edge_dim", edge_dim)
            self.edge_kernel = nn.Parameter(torch.empty(num_relations, heads, edge_dim))
        self.projection: nn.Parameter | None = None
        if head_merge == "projection":
            self.projection = nn.Parameter(torch.empty(heads * out_channels, out_channels))
        self.bias: nn.Parameter | None = None
        if bias:
            self.bias = nn.Parameter(torch.empty(heads * out_channels if head_merge == "concat" else out_channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.attention_kernel.reset(self.out_channels + self.attention_channels)
        for parameter, fan in (
            (self.score_kernel, self.attention_channels + 1),
            (self.edge_kernel, (self.edge_dim or 0) + 1),
            (self.projection, (self.heads + 1) * self.out_channels),
        ):
            if parameter is not None:
                glorot_uniform_(parameter, fan)
        super().reset_parameters()

    def kernels(self) -> Tensor:
        """Return the kernels ``W``, ``[R, H, F, D]``, composed from bases if there are any; rows not held are zero."""
        return self.kernel.compose(self.rows)

    def attention_kernels(self) -> tuple[Tensor, Tensor]:
        """Return the query and key kernels, ``[R, H, D, A]`` each."""
        query, key = torch.split(self.attention_kernel.compose(), self.out_channels, dim=2)
        return query, key

    def edge_kernels(self) -> Tensor:
        """Return the kernels ``u`` of the edge features, ``[R, H, edge_dim]``."""
        if self.edge_kernel is None:
            raise ValueError(
                "a layer has edge kernels only with `edge_dim`, got None; pass `edge_dim=` when you build it"
            )
        return self.edge_kernel

    def forward(
        self,
        x: Tensor | FeatureRows | None,
        edge_index: RelationalGraph | Tensor,
        edge_type: Tensor | None = None,
        edge_attr: Tensor | None = None,
        return_attention_weights: bool = False,
        constant_attention: bool = False,
        plan: ops.Plan | None = None,
    ) -> Any:
        """Return the output ``[N, H * D]`` (``[N, D]`` unless heads are concatenated).

        Args:
            x: features ``[N, F]``; None for featureless input; or indices ``[N]`` or a sparse matrix, one-hot.
            edge_index: a (prepared) graph, or its ``[2, E]`` edges.
            edge_type: ``[E]``, with bare edges only.
            edge_attr: ``[E, edge_dim]``, by default the graph's own. Parallel edges are told apart by the graph's own
                features, so with edge dropout only these make the result independent of the order of such edges.
            return_attention_weights: return also ``(edge_index, attention)``, with the attention before dropout
                ``[E, H]`` in the caller's edge order.
            constant_attention: give all edges of a softmax group the same attention.
            plan: how to compute the layer, from ``conv.plan(graph, ...)``; by default the cheapest way.
        """
        graph = self._check_graph(x, edge_index, edge_type, edge_attr)
        edge_attr = self._check_edge_attr(graph.edge_attr if edge_attr is None else edge_attr, graph)
        scores = None if constant_attention else self._scores(edge_attr)
        out, attention = self._compute(self._check_input(x, graph), scores, graph, plan)
        if not return_attention_weights:
            return self._merge(out)
        order = graph.structure.order.long()
        attention = torch.zeros_like(attention).index_copy(0, order, attention.abs()).to(out.dtype)
        return self._merge(out), (graph.edge_index, attention)

    def _scores(self, edge_attr: Tensor | None) -> ops.Scores:
        """Return what logits are made of; the heads of a stack's members side by side."""
        slope = None if self.score == "multiplicative" else self.negative_slope
        score_kernels, edge_kernels = (
            None if parameter is None else join_members(parameter, 3)
            for parameter in (self.score_kernel, self.edge_kernel)
        )
        return ops.Scores(self.attention_kernel.compose(), score_kernels, slope, edge_attr, edge_kernels)

    def _scores_of(self, graph: RelationalGraph) -> ops.Scores:
        return self._scores(self._check_edge_attr(graph.edge_attr, graph))

    def combine(self, x: Tensor | FeatureRows | None, graph: RelationalGraph, attention: Tensor) -> Tensor:
        """Return the output with a given attention ``[E, H]``, in the caller's order of edges; without dropout."""
        s = graph.structure
        (values,) = ops.row_values(self._call(self._check_input(x, graph), None, graph), s.sources)
        messages = values.index_select(0, s.source_row)
        messages = messages * attention.index_select(0, s.order.long()).unsqueeze(-1)
        out = messages.new_zeros(graph.num_targets, *messages.shape[1:]).index_add_(0, s.target, messages)
        return self.finish(out)

    def _check_edge_attr(self, edge_attr: Tensor | None, graph: RelationalGraph) -> Tensor | None:
        """Return the edge features in the layer's dtype, if it takes any."""
        if edge_attr is None:
            if self.edge_dim is None:
                return None
            raise ValueError(f"a layer with `edge_dim={self.edge_dim}` needs edge features, got None; pass `edge_attr`")
        if self.edge_dim is None:
            raise ValueError(
                "a layer without `edge_dim` takes no edge features, got some; pass `edge_dim=` when you build it"
            )
        if list(edge_attr.shape) != [graph.num_edges, self.edge_dim]:
            raise ValueError(
                f"`edge_attr` must have shape [{graph.num_edges}, {self.edge_dim}], got {list(edge_attr.shape)}"
            )
        check_features("edge_attr", edge_attr, graph)
        return edge_attr.to(self._dtype)

    def extra_repr(self) -> str:
        scope = self.scope[0] if len(set(self.scope)) == 1 else self.scope
        text = f"{self.in_channels}, {self.out_channels}, num_relations={self.num_relations}, heads={self.heads}"
        return f"{text}, scope={scope!r}, score={self.score!r}, head_merge={self.head_merge!r}{self._shown}"


def _scope_per_head(scope: str | Sequence[str], heads: int) -> tuple[str, ...]:
    if scope == "mixed":
        if heads % 2:
            raise ValueError(f'`scope="mixed"` needs an even number of heads, half of them of each scope, got {heads}')
        scope = ["within"] * (heads // 2) + ["across"] * (heads // 2)
    words = tuple(scope) if isinstance(scope, Sequence) and not isinstance(scope, str) else (scope,) * heads
    for word in words:
        check_word("scope", word, SCOPES)
    if len(words) != heads:
        raise ValueError(f"`scope` must be one word or one word per head, {heads}, got {len(words)}")
    return words


def _attention_channels(attention_channels: int | None, score: str, out_channels: int) -> int:
    if attention_channels is None:
        return 1 if score == "additive" else out_channels
    check_count("attention_channels", attention_channels)
    if score == "additive" and attention_channels != 1:
        raise ValueError(
            f"`attention_channels` must be 1 for the additive score, got {attention_channels}; leave it out"
        )
    return attention_channels
