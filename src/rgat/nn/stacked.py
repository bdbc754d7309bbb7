"""Layers of several models of one architecture as one computation, which many seeds and folds are trained by.

Parameters and buffers have the names of the single layer's and one more axis in front, that of the members ``S``;
features are ``[N, S, F]``. With features that all members share, and without any, a stack of layers with ``H`` heads is
a layer with ``S * H``; with features of their own, kernels are applied member by member, block-diagonally.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import batch_norm

from rgat import ops
from rgat.graph import RelationalGraph, Rows
from rgat.nn.gather import GraphGather
from rgat.nn.kernels import BasisKernel, RowKernel
from rgat.nn.relational import RelationalConv, as_autocast, check_features, find_rows, row_places
from rgat.nn.rgat import RGATConv, project_edges

Layer = TypeVar("Layer", bound=nn.Module)

SHARED = "rows"  # the one buffer that has no axis of members: all hold the same rows


class Stacked(nn.Module, Generic[Layer]):
    """What stacked layers share: the members' tensors, stacked, and an empty layer that knows their options."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        super().__init__()
        self.members = len(layers)
        self._like = (copy.deepcopy(layers[0]).to("meta"),)  # in a tuple: it is no part of the module
        _stack_tensors(self, layers)

    @property
    def like(self) -> Layer:
        """A layer with the members' options, without values; in the dtype that the stack has by now."""
        return self._like[0].to(next(self.parameters()).dtype).train(self.training)

    def select(self, members: list[int]) -> None:
        """Keep some members only, in place; parameters stay the same objects."""
        self.members = len(members)
        for module in self.modules():
            for name, buffer in module._buffers.items():
                if buffer is not None and name != SHARED:
                    module._buffers[name] = take_members(buffer, members)
        for parameter in self.parameters():
            parameter.data, parameter.grad = take_members(parameter.data, members), None


def _stack_tensors(shell: nn.Module, modules: Sequence[nn.Module]) -> None:
    """Give ``shell`` the parameters and buffers of the modules, stacked, and those of their children."""
    for name, parameter in modules[0]._parameters.items():
        if parameter is None:
            shell.register_parameter(name, None)
            continue
        # Rows are looked up for all members at once, so they are laid out side by side in memory.
        axis = 1 if isinstance(modules[0], RowKernel) else 0
        values = torch.stack([getattr(module, name).detach() for module in modules], dim=axis).movedim(axis, 0)
        shell.register_parameter(name, nn.Parameter(values))
    for name, buffer in modules[0]._buffers.items():
        parts = [getattr(module, name) for module in modules]
        if buffer is not None:
            buffer = buffer.clone() if name == SHARED else torch.stack(parts)
        shell.register_buffer(name, buffer)
    for name, _ in modules[0].named_children():
        child = nn.Module()
        _stack_tensors(child, [getattr(module, name) for module in modules])
        setattr(shell, name, child)


def take_members(stacked: Tensor, members: list[int]) -> Tensor:
    """The given entries of the first axis, laid out in memory as before."""
    axes = sorted(range(stacked.dim()), key=stacked.stride, reverse=True)
    taken = stacked.permute(axes).index_select(axes.index(0), torch.tensor(members, device=stacked.device))
    return taken.permute([axes.index(axis) for axis in range(stacked.dim())])


class StackedConv(Stacked[RelationalConv]):
    """Relational layers that share everything but their parameters, dropout seeds and dropout rates."""

    kernel: Any
    attention_kernel: Any
    bias: Tensor | None
    projection: Tensor
    dropout_state: Tensor  # [S, 2]
    rows: Tensor | None
    rates: Tensor  # [S, 4], see ops.member_rates
    counted: Tensor  # [S], 1 where a member has any dropout

    def __init__(self, layers: Sequence[RelationalConv]) -> None:
        super().__init__(layers)
        if layers[0].bias is None:
            self.register_parameter("bias", None)
        self.dropout = [(layer.feature_dropout, layer.edge_dropout) for layer in layers]
        device, counted = self.dropout_state.device, [int(max(pair) > 0) for pair in self.dropout]
        self.register_buffer("rates", ops.member_rates(*zip(*self.dropout, strict=True)).to(device), persistent=False)
        self.register_buffer("counted", torch.tensor(counted, device=device), persistent=False)

    def select(self, members: list[int]) -> None:
        super().select(members)
        self.dropout = [self.dropout[member] for member in members]

    def forward(self, x: Tensor | None, graph: RelationalGraph, constant_attention: bool = False) -> Tensor:
        """Map ``[N, S, F]``, or an input that all members share, to ``[N, S, C]``."""
        like = self.like
        like._as_graph(None, graph, None, None)
        constant_attention = constant_attention or not isinstance(like, RGATConv)
        if ops.requested_backend() == "reference":
            return self._one_by_one(x, graph, constant_attention)
        own = x is not None and x.dim() == 3
        if x is not None and own:
            if x.shape[1] != self.members:
                raise ValueError(f"`x` must have one entry per member, [N, {self.members}, F], got {list(x.shape)}")
            like._split_input(x[:, 0], graph)
            check_features("x", x, graph)
        dense, index = (x, None) if own else like._split_input(x, graph)
        scores = None if constant_attention else self._attention_kernels()
        edge_logits = None
        if isinstance(like, RGATConv):
            edge_attr = like._check_edge_attr(graph.edge_attr, graph)
            if not constant_attention:
                edge_logits = project_edges(edge_attr, self._edge_kernels(), graph.structure)
        if dense is None:
            out = self._attend(index, scores, edge_logits, graph)
        else:
            dense = as_autocast(dense)
            kernels, attention = (None if k is None else k.flatten(1, 2) for k in (_compose(self.kernel), scores))
            assert kernels is not None
            structure, how = graph.structure, self._attention
            out, _ = ops.convolve(dense, kernels, attention, edge_logits, structure, how, self._next_dropout_state())
        return self._merge(out.view(len(out), self.members, like.heads, out.shape[2]))

    def _one_by_one(self, x: Tensor | None, graph: RelationalGraph, constant_attention: bool) -> Tensor:
        """Each member by the reference."""
        like, outputs = self.like, []
        options = {"constant_attention": constant_attention} if isinstance(like, RGATConv) else {}
        for member, tensors in enumerate(member_tensors(self)):
            like.feature_dropout, like.edge_dropout = self.dropout[member]
            own = x[:, member] if x is not None and x.dim() == 3 else x
            outputs.append(functional_call(like, tensors, (own, graph), options))
        return torch.stack(outputs, dim=1)

    def _attention_kernels(self) -> Tensor:
        """``[Q; K]`` of all members, ``[R, S, H, 2 D, A]``."""
        return _compose(self.attention_kernel)

    def _edge_kernels(self) -> Tensor | None:
        kernel: Tensor | None = getattr(self, "edge_kernel", None)
        return None if kernel is None else kernel.transpose(0, 1).flatten(1, 2)  # [R, S * H, edge_dim]

    def _attend(
        self,
        index: Tensor | None,
        scores: Tensor | None,
        edge_logits: Tensor | None,
        graph: RelationalGraph,
    ) -> Tensor:
        """Outputs ``[N, S * H, D]`` for one-hot inputs."""
        s, queries, keys, how, state = graph.structure, None, None, self._attention, self._next_dropout_state()
        if self.rows is not None and ops.can_attend_rows(self.kernel.weight, how):
            self.like._check_held(self.rows, graph)
            table = self.kernel.weight.transpose(0, 1).flatten(1, 2)  # [rows held, S * H, D]
            query_kernel, key_kernel = (None, None) if scores is None else scores.flatten(1, 2).chunk(2, dim=2)
            kernels = None if query_kernel is None or key_kernel is None else (query_kernel, key_kernel)
            places = row_places(self.rows, graph, kernels is not None)
            return ops.attend_rows(table, kernels, edge_logits, *places, s, how, state)[0]
        if scores is None:
            self.like._check_held(self.rows, graph)
            (g,) = self._values(index, [s.sources], graph)
        else:
            g, targets = self._values(index, [s.sources, s.targets], graph)
            with torch.autocast(g.device.type, enabled=False):
                query_kernel, key_kernel = scores.flatten(1, 2).chunk(2, dim=2)
                queries = ops.project(targets, query_kernel, s.targets, one_to_one=True)
                keys = ops.project(g, key_kernel, s.sources, one_to_one=True)
        out, _ = ops.attend(g, queries, keys, edge_logits, s, how, state)
        return out

    def _values(self, index: Tensor | None, ends: Sequence[Rows], graph: RelationalGraph) -> list[Tensor]:
        """The values of the rows of each end, ``[U, S * H, D]``."""
        kind, heads = self.like.kernel, self.like.heads
        if isinstance(kind, RowKernel):
            held: Tensor = self.kernel.weight.transpose(0, 1)  # [rows held, S, H, D]
            places = [find_rows(self.rows, rows, graph) for rows in ends]
            return [values.flatten(1, 2) for values in ops.look_up(held, *places)]
        indices = [None if index is None else index.index_select(0, rows.node) for rows in ends]
        if isinstance(kind, BasisKernel):
            bases = self.kernel.bases.permute(2, 0, 1, 3).repeat_interleave(heads, 1)  # [F, S * H, B, D]
            coefficients = self.kernel.coefficients.transpose(0, 1).flatten(1, 2)
            return [ops.spread(bases, coefficients, rows, own) for rows, own in zip(ends, indices, strict=True)]
        table: Tensor = self.kernel.weight.permute(1, 3, 0, 2, 4).flatten(0, 1).flatten(1, 2)  # [R * F, S * H, D]
        return [
            table.index_select(0, rows.relation.long() * kind.in_channels + (rows.node if own is None else own))
            for rows, own in zip(ends, indices, strict=True)
        ]

    @property
    def _attention(self) -> ops.Attention:
        like = self.like
        scope, slope = (like.scope, like._slope) if isinstance(like, RGATConv) else (("within",), None)
        across = [word == "across" for word in scope] * self.members
        features, edges = (max(rates) for rates in zip(*self.dropout, strict=True))
        return ops.Attention(across, slope, features, edges, ops.requested_backend())

    def _next_dropout_state(self) -> Tensor | None:
        """One row per member, ``[S, 6]``."""
        if not self.training or not any(map(any, self.dropout)):
            return None
        return torch.cat([ops.count_call(self.dropout_state, self.counted), self.rates], dim=1)

    def _merge(self, out: Tensor) -> Tensor:
        """From ``[N, S, H, D]``, as the members do."""
        like = self.like
        how = like.head_merge if isinstance(like, RGATConv) else "concat"
        out = {"mean": lambda: out.mean(2), "sum": lambda: out.sum(2)}.get(how, lambda: out.flatten(2))()
        if how == "projection":
            out = torch.einsum("nsi,sid->nsd", out, self.projection)
        return out if self.bias is None else out + self.bias.to(out.dtype)


def _compose(kernel: Any) -> Tensor:
    """The kernels ``[R, S, H, F, D]`` of a stacked kernel."""
    if hasattr(kernel, "bases"):
        return torch.einsum("srkb,sbfd->rskfd", kernel.coefficients, kernel.bases)
    weight: Tensor = kernel.weight
    return weight.transpose(0, 1)


class StackedBatchNorm(Stacked[nn.BatchNorm1d]):
    """Batch normalisation with statistics of each member's own."""

    weight: Tensor
    bias: Tensor
    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def forward(self, x: Tensor) -> Tensor:
        """Normalise ``[N, S, C]``."""
        if self.training:
            self.num_batches_tracked += 1
        like = self.like
        statistics = (self.running_mean.view(-1), self.running_var.view(-1))
        weights = (self.weight.flatten(), self.bias.flatten())
        assert like.momentum is not None
        flat = batch_norm(x.flatten(1), *statistics, *weights, self.training, like.momentum, like.eps)
        return flat.view(x.shape)


class StackedLinear(Stacked[nn.Linear]):
    """Dense layers."""

    weight: Tensor
    bias: Tensor

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[G, S, F]`` to ``[G, S, C]``."""
        return torch.baddbmm(self.bias.unsqueeze(1), x.transpose(0, 1), self.weight.transpose(1, 2)).transpose(0, 1)


class StackedGather(nn.Module):
    """The gather of each member."""

    def forward(self, x: Tensor, graph: RelationalGraph) -> Tensor:
        """Map ``[N, S, F]`` to ``[G, S, 2 F]``."""
        both: Tensor = GraphGather()(x.flatten(1), graph)  # mean and maximum
        return both.view(-1, 2, *x.shape[1:]).transpose(1, 2).flatten(2)


def stack_layers(layers: Sequence[nn.Module]) -> nn.Module:
    """The stacked layer of some layers of one kind."""
    first = layers[0]
    if isinstance(first, RelationalConv):
        return StackedConv(layers)  # type: ignore[arg-type]
    if isinstance(first, nn.BatchNorm1d):
        return StackedBatchNorm(layers)  # type: ignore[arg-type]
    if isinstance(first, nn.Linear):
        return StackedLinear(layers)  # type: ignore[arg-type]
    return StackedGather() if isinstance(first, GraphGather) else nn.Identity()


def member_tensors(module: nn.Module) -> list[dict[str, Tensor]]:
    """For each member the parameters and buffers by the names of a single module: views, differentiable."""
    persistent = module.state_dict(keep_vars=True)
    sizes = {len(tensor) for name, tensor in persistent.items() if name.rpartition(".")[2] != SHARED}
    return [
        {name: tensor if name.rpartition(".")[2] == SHARED else tensor[member] for name, tensor in persistent.items()}
        for member in range(sizes.pop())
    ]
