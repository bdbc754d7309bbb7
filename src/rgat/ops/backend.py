"""The types of the operators: what a layer passes down, and what a backend implements.

A layer describes one call by a `LayerCall`. The `reference` computes it straight from the equations, `rgat.ops.layer`
by fused operators, which run on a `Backend`: PyTorch, Numba or Triton.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from torch import Tensor

from rgat.graph import RelationalGraph
from rgat.structure import Rows, Structure


class Attention(NamedTuple):
    """The settings of attention in one call.

    Examples:
        >>> from rgat import ops
        >>> ops.Attention(across=[False, True], negative_slope=0.2)  # one head of each scope, additive score
        Attention(across=[False, True], negative_slope=0.2, feature_dropout=0.0, edge_dropout=0.0, backend='auto')
    """

    across: list[bool]  # per head: softmax over all edges of a target, not only those of one relation
    negative_slope: float | None  # of the additive score; None: multiplicative, or dynamic (see `rgat.ops.layer`)
    feature_dropout: float = 0.0
    edge_dropout: float = 0.0
    backend: str = "auto"  # set by `compute_layer`; backward runs on the backend of forward


class Call(NamedTuple):
    """What the operators of one call share: the edges, the settings, and the state of the dropout masks.

    Examples:
        >>> import torch
        >>> from rgat import RelationalGraph, ops
        >>> edges, types = torch.tensor([[0, 1, 2], [1, 2, 1]]), torch.tensor([0, 0, 1])
        >>> graph = RelationalGraph(edges, types, num_nodes=3, num_relations=2)
        >>> call = ops.Call(graph.structure, ops.Attention(across=[False], negative_slope=None))
        >>> call.aggregated
        [False]
    """

    structure: Structure
    attention: Attention
    state: Tensor | None = (
        None  # (seed, call number) of the dropout masks, a row per member of a stack; None: no dropout
    )
    aggregated: list[bool] = [False]  # noqa: RUF012  per relation: sum inputs first, then project; [False]: none


class Operands(NamedTuple):
    """The inputs of a convolution, with kernels folded as in `rgat.ops.projection`."""

    x: Tensor  # [N, P, F]: a batch of P inputs, each with its own share of the heads
    weight: Tensor  # [R, P, F, M], of values and keys
    query_weight: Tensor | None  # [R, P, F, H * A / P]; None: constant attention
    edge_logits: Tensor | None  # [E, H], sorted edges


class Saved(NamedTuple):
    """What the forward pass of a convolution keeps for the backward pass, which runs on the same backend."""

    attention: Tensor  # [E, H]; on a compiled backend the sign bit of additive attention is the sign of the score
    queries: Tensor  # [V, H, A]
    values: Tensor  # [U, P, H * D / P]; Numba's are after dropout
    keys: Tensor  # [U, P, H * A / P]
    sums: Tensor  # [V, H, F] where inputs are aggregated first, else empty


class Places(NamedTuple):
    """Where the rows at one end of the edges stand in a table.

    Examples:
        >>> import torch
        >>> from rgat import ops
        >>> places = ops.Places(place=torch.tensor([2, 0]).int(), back=torch.tensor([1, -1, 0]).int())
        >>> ops.look_up(torch.tensor([[10.0], [11.0], [12.0]]), places)
        (tensor([[12.],
                [10.]]),)
    """

    place: Tensor  # [U] int32
    back: Tensor  # [T] int32; which of the rows reads each entry of the table, -1: none


class TablePlaces(NamedTuple):
    """Where the rows of a graph stand in the table of a compact kernel, ``[T, H, D]``.

    Examples:
        >>> from rgat import ops
        >>> ops.TablePlaces._fields
        ('source', 'source_back', 'target', 'target_back', 'edge')
    """

    source: Tensor  # [U] int32
    source_back: Tensor  # [T] int32, see `Places`
    target: Tensor  # [V] int32
    target_back: Tensor  # [T] int32
    edge: Tensor  # [E] int32: of the source row of each edge


class Kernel(Protocol):
    """Where the kernels ``W`` of a layer come from."""

    def compose(self) -> Tensor:
        """Return all kernels, ``[R, H, F, D]``."""

    def look_up(self, index: Tensor | None, *ends: Rows) -> tuple[Tensor, ...]:
        """Return the values ``[U, H, D]`` of one-hot inputs, for the rows of each end of the edges."""

    def held_rows(self, with_targets: bool) -> tuple[Tensor, TablePlaces] | None:
        """Return the rows that a compact kernel holds, ``[T, H, D]``, and where the graph's rows stand among them.

        None: the kernel is not compact.
        """


class Inputs(NamedTuple):
    """The input of a layer: features, or the position of the one in each node's one-hot vector.

    Examples:
        >>> import torch
        >>> from rgat import ops
        >>> ops.Inputs(torch.tensor([[1.0], [2.0], [3.0]]), position=torch.tensor([2, 0])).gathered()
        tensor([[3.],
                [1.]])
    """

    x: Tensor | None  # [N, F], or [N, S, F] for a stack of S layers
    position: Tensor | None = None  # [N], also of each node's row in `x`; None: each node's own number

    def gathered(self) -> Tensor | None:
        """Return the features of the nodes, in order."""
        return self.x if self.x is None or self.position is None else self.x.index_select(0, self.position)


class Scores(NamedTuple):
    """The parameters and features that logits are made of.

    Examples:
        >>> import torch
        >>> from rgat import ops
        >>> scores = ops.Scores(torch.randn(2, 1, 8, 1), score_kernels=None, negative_slope=0.2)
        >>> query, key = scores.kernels.chunk(2, dim=2)
        >>> query.shape
        torch.Size([2, 1, 4, 1])
    """

    kernels: Tensor  # [R, H, 2 D, A]: Q above K
    score_kernels: Tensor | None  # a: [R, H, A], of the dynamic score
    negative_slope: float | None  # of the LeakyReLU; None: the multiplicative score
    edge_attr: Tensor | None = None  # [E, edge_dim]
    edge_kernels: Tensor | None = None  # u: [R, H, edge_dim]


class LayerCall(NamedTuple):
    """One call of a layer. The heads of a stack of layers follow one another, ``H`` counts all of them.

    Examples:
        >>> import torch
        >>> from rgat import RelationalGraph, nn, ops
        >>> edges, types = torch.tensor([[0, 1, 2], [1, 2, 1]]), torch.tensor([0, 0, 1])
        >>> graph = RelationalGraph(edges, types, num_nodes=3, num_relations=2)
        >>> kernel = nn.RGCNConv(8, 4, num_relations=2).kernel
        >>> call = ops.LayerCall(ops.Inputs(torch.randn(3, 8)), kernel, None, graph, ops.Attention([False], None))
        >>> out, attention = ops.compute_layer(call)
        >>> out.shape
        torch.Size([3, 1, 4])
    """

    inputs: Inputs
    kernel: Kernel
    scores: Scores | None  # None: constant attention
    graph: RelationalGraph
    attention: Attention
    state: Tensor | None = None  # see `Call`
    bias: Tensor | None = None  # [H * D]
    aggregated: tuple[bool, ...] = ()  # see `Call`; empty: none
    node_kernel: Kernel | None = None  # of one-hot vectors of the nodes, whose values are added to those of the inputs


class Backend(Protocol):
    """What PyTorch, Numba and Triton each implement. Tensors are contiguous."""

    TAKES_HALF: bool  # accepts half precision, and accumulates in single precision
    READS_TABLES: bool  # also implements `TableBackend`

    def why_not(self) -> str | None:
        """Say why this backend cannot be used on this machine; None if it can."""

    def project(self, x: Tensor, weight: Tensor, rows: Rows, node: Tensor | None) -> Tensor:
        """Multiply the rows ``x[node]`` (or ``x`` itself) by the kernels of their relations, ``[U, P, M]``."""

    def project_input_grad(
        self, grad: Tensor, weight: Tensor, rows: Rows, node: Tensor | None, num_nodes: int
    ) -> Tensor:
        """Return the gradient of ``x``."""

    def project_weight_grad(self, grad: Tensor, x: Tensor, rows: Rows, node: Tensor | None) -> Tensor:
        """Return the gradient of ``weight``."""

    def attend(
        self, values: Tensor, queries: Tensor | None, keys: Tensor | None, edge_logits: Tensor | None, call: Call
    ) -> tuple[Tensor, Tensor]:
        """Return the outputs ``[N, H, D]`` and the attention ``[E, H]``."""

    def attend_backward(
        self,
        grad: Tensor,
        grad_attention: Tensor | None,
        attention: Tensor,
        values: Tensor,
        queries: Tensor | None,
        keys: Tensor | None,
        edge_logits: Tensor | None,
        call: Call,
    ) -> tuple[Tensor | None, ...]:
        """Return the gradients of values, queries, keys and edge logits."""

    def convolve(self, operands: Operands, bias: Tensor | None, call: Call) -> tuple[Tensor, Saved]:
        """Return the outputs ``[N, H, D]``, and what the backward pass needs."""

    def convolve_backward(
        self, grad: Tensor, grad_attention: Tensor | None, saved: Saved, operands: Operands, call: Call, with_x: bool
    ) -> tuple[Tensor | None, ...]:
        """Return the gradients of the operands; None for ``x`` unless ``with_x``."""

    def sum_rows(self, rows: Tensor) -> Tensor:
        """Add up the rows of a matrix."""

    def fold(self, kernels: Tensor, attention: Tensor) -> tuple[Tensor, Tensor]:
        """Return the folded kernels of source and target rows; see `rgat.ops.projection`."""

    def fold_backward(
        self, dweight: Tensor, dquery: Tensor, kernels: Tensor, attention: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the gradients of kernels and attention kernels."""

    def spread(self, table: Tensor, coefficients: Tensor, rows: Rows, node: Tensor) -> Tensor:
        """Combine the bases ``[N, G, B, D]`` of each row's node, ``[U, H, D]``; see `rgat.ops.bases`."""

    def collect(
        self, values: Tensor, coefficients: Tensor, rows: Rows, node: Tensor, num_nodes: int, groups: int
    ) -> Tensor:
        """Apply the transpose of `spread`: from rows ``[U, H, D]`` to nodes and bases ``[N, G, B, D]``."""

    def pair(self, table: Tensor, values: Tensor, rows: Rows, node: Tensor) -> Tensor:
        """Return the gradient of the coefficients of `spread`, ``[R, H, B]``."""

    def gather_back(self, grads: list[Tensor], backs: list[Tensor]) -> Tensor:
        """Return the gradient of a table whose rows were looked up at one or two ends."""


class TableBackend(Backend, Protocol):
    """A backend that reads the rows of a compact kernel where they are, without gathering them first."""

    def attend_table(
        self,
        table: Tensor,
        query_kernel: Tensor | None,
        key_kernel: Tensor | None,
        edge_logits: Tensor | None,
        places: TablePlaces,
        call: Call,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return outputs, attention, queries and keys."""

    def attend_table_backward(
        self,
        grad: Tensor,
        grad_attention: Tensor | None,
        saved: tuple[Tensor, Tensor, Tensor],
        inputs: tuple[Tensor, Tensor | None, Tensor | None, Tensor | None],
        places: TablePlaces,
        call: Call,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the gradients of the table, both kernels and the edge logits."""
