"""Layers of several models of one architecture as one computation, to train many seeds and folds together.

Parameters and buffers have the names of the single layer's and one more axis in front, that of the members ``S``;
features are ``[N, S, F]``.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm, layer_norm

from rgat import ops
from rgat.graph import RelationalGraph
from rgat.nn.gather import GraphGather
from rgat.nn.inputs import FeatureRows
from rgat.nn.kernels import RowKernel
from rgat.nn.relational import RelationalConv
from rgat.nn.rgat import RGATConv
from rgat.nn.rgcn import RGCNConv

SHARED = "rows"  # the one buffer that has no axis of members: all hold the same rows


class Stacked(nn.Module):
    """A layer whose parameters and buffers have an axis of members in front."""

    members: int | None

    def select(self, members: list[int]) -> None:
        """Keep some members only, in place; parameters stay the same objects."""
        self.members = len(members)
        for module in self.modules():
            for name, buffer in module._buffers.items():
                if buffer is not None and name != SHARED:
                    module._buffers[name] = take_members(buffer, members)
        for parameter in self.parameters():
            parameter.data, parameter.grad = take_members(parameter.data, members), None


def _stack_tensors(stack: nn.Module, modules: Sequence[nn.Module]) -> None:
    """Give ``stack`` the parameters and buffers of the modules, stacked, and its children those of theirs."""
    for name, parameter in modules[0]._parameters.items():
        if parameter is None:
            stack.register_parameter(name, None)
            continue
        # Rows are looked up for all members at once, so they are laid out side by side in memory.
        axis = 1 if isinstance(modules[0], RowKernel) else 0
        values = torch.stack([getattr(module, name).detach() for module in modules], dim=axis).movedim(axis, 0)
        stack.register_parameter(name, nn.Parameter(values, requires_grad=parameter.requires_grad))
    for name, buffer in modules[0]._buffers.items():
        parts = [getattr(module, name) for module in modules]
        if buffer is not None:
            buffer = buffer.clone() if name == SHARED else torch.stack(parts)
        stack.register_buffer(name, buffer)
    for name, child in stack.named_children():
        _stack_tensors(child, [getattr(module, name) for module in modules])


def take_members(stacked: Tensor, members: list[int]) -> Tensor:
    """Return the given entries of the first axis, laid out in memory as before."""
    axes = sorted(range(stacked.dim()), key=stacked.stride, reverse=True)
    taken = stacked.permute(axes).index_select(axes.index(0), torch.tensor(members, device=stacked.device))
    return taken.permute([axes.index(axis) for axis in range(stacked.dim())])


class _StackedConv(Stacked, RelationalConv):
    """Relational layers that share everything but their parameters, dropout seeds and dropout rates."""

    dropout: list[tuple[float, float]]  # rates of features and edges, per member
    rates: Tensor  # [S, 4], see ops.member_rates
    counted: Tensor  # [S], 1 where a member has any dropout

    def reset_parameters(self) -> None:
        """Refuse: each member keeps the parameters and the dropout seed that it came with."""
        raise RuntimeError("a stack cannot draw new parameters; reset the models, then stack them")

    def plan(self, graph: RelationalGraph, alternative: str | None = None) -> ops.Plan:
        """Return the one plan of a stack: inputs are projected first."""
        return ops.Plan()

    def extra_repr(self) -> str:
        return f"members={self.members}, {super().extra_repr()}"

    def select(self, members: list[int]) -> None:
        super().select(members)
        self.dropout = [self.dropout[member] for member in members]

    @property
    def _dropout_rates(self) -> tuple[float, float]:
        features, edges = (max(rates) for rates in zip(*self.dropout, strict=True))
        return features, edges

    def _next_dropout_state(self) -> Tensor | None:
        """Return one row per member, ``[S, 6]``."""
        if not self.training or not any(self._dropout_rates):
            return None
        return torch.cat([ops.count_call(self.dropout_state, self.counted), self.rates], dim=1)


class StackedRGATConv(_StackedConv, RGATConv):
    """Relational graph attention for each member."""


class StackedRGCNConv(_StackedConv, RGCNConv):
    """Relational graph convolution for each member."""


def _stack_convs(layers: Sequence[RGATConv | RGCNConv]) -> StackedRGATConv | StackedRGCNConv:
    stack = copy.deepcopy(layers[0])
    for module in stack.modules():  # hooks stay with the member
        for hooks in (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks):
            hooks.clear()
    stack.__class__ = StackedRGATConv if isinstance(stack, RGATConv) else StackedRGCNConv
    assert isinstance(stack, _StackedConv)
    stack.members, stack.dropout = len(layers), [(layer.feature_dropout, layer.edge_dropout) for layer in layers]
    _stack_tensors(stack, layers)
    device, counted = stack.dropout_state.device, [int(max(pair) > 0) for pair in stack.dropout]
    stack.register_buffer("rates", ops.member_rates(*zip(*stack.dropout, strict=True)).to(device), persistent=False)
    stack.register_buffer("counted", torch.tensor(counted, device=device), persistent=False)
    return stack  # type: ignore[return-value]


class StackedBatchNorm(Stacked):
    """Batch normalisation with statistics of each member's own."""

    weight: Tensor
    bias: Tensor
    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def __init__(self, layers: Sequence[nn.BatchNorm1d]) -> None:
        super().__init__()
        self.members, self.eps = len(layers), layers[0].eps
        assert layers[0].momentum is not None
        self.momentum = layers[0].momentum
        _stack_tensors(self, layers)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise ``[N, S, C]``."""
        if self.training:
            self.num_batches_tracked += 1
        statistics = (self.running_mean.view(-1), self.running_var.view(-1))
        weights = (self.weight.flatten(), self.bias.flatten())
        flat = batch_norm(x.flatten(1), *statistics, *weights, self.training, self.momentum, self.eps)
        return flat.view(x.shape)


class StackedLayerNorm(Stacked):
    """Layer normalisation with scales and shifts of each member's own."""

    weight: Tensor
    bias: Tensor

    def __init__(self, layers: Sequence[nn.LayerNorm]) -> None:
        super().__init__()
        self.members, self.eps = len(layers), layers[0].eps
        _stack_tensors(self, layers)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise ``[N, S, C]``."""
        return layer_norm(x, x.shape[-1:], eps=self.eps) * self.weight + self.bias


class StackedLinear(Stacked):
    """Dense layers."""

    weight: Tensor
    bias: Tensor | None

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        super().__init__()
        self.members = len(layers)
        _stack_tensors(self, layers)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[G, S, F]``, or ``[G, F]`` that all members share, to ``[G, S, C]``."""
        x = x.transpose(0, 1) if x.dim() == 3 else x.unsqueeze(0).expand(len(self.weight), -1, -1)
        weight = self.weight.transpose(1, 2)
        out = torch.bmm(x, weight) if self.bias is None else torch.baddbmm(self.bias.unsqueeze(1), x, weight)
        return out.transpose(0, 1)


class StackedGather(nn.Module):
    """The gather of each member."""

    def forward(self, x: Tensor, graph: RelationalGraph) -> Tensor:
        """Map ``[N, S, F]`` to ``[G, S, 2 F]``."""
        both: Tensor = GraphGather()(x.flatten(1), graph)  # mean and maximum
        return both.view(-1, 2, *x.shape[1:]).transpose(1, 2).flatten(2)


def stack_layers(layers: Sequence[nn.Module]) -> nn.Module:
    """Return one layer that computes several of one kind."""
    first = layers[0]
    if isinstance(first, RelationalConv):
        return _stack_convs(layers)  # type: ignore[arg-type]
    if isinstance(first, nn.BatchNorm1d):
        return StackedBatchNorm(layers)  # type: ignore[arg-type]
    if isinstance(first, nn.LayerNorm):
        return StackedLayerNorm(layers)  # type: ignore[arg-type]
    if isinstance(first, nn.Linear):
        return StackedLinear(layers)  # type: ignore[arg-type]
    return StackedGather() if isinstance(first, GraphGather) else nn.Identity()


def member_tensors(module: nn.Module) -> list[dict[str, Tensor]]:
    """Return for each member its parameters and buffers by the names of a single module: views, differentiable."""
    persistent = module.state_dict(keep_vars=True)
    sizes = {len(tensor) for name, tensor in persistent.items() if name.rpartition(".")[2] != SHARED}
    return [
        {name: tensor if name.rpartition(".")[2] == SHARED else tensor[member] for name, tensor in persistent.items()}
        for member in range(sizes.pop())
    ]


def dropout_rates(conv: nn.Module) -> list[tuple[float, float]]:
    """Return the rates of features and edges, for each member of a stack."""
    rates: list[tuple[float, float]] = getattr(conv, "dropout", [(conv.feature_dropout, conv.edge_dropout)])
    return rates


class Stack(nn.Module):
    """Several models of one architecture, ``S`` members, as one computation over one graph.

    `rgat.models.stack` makes one. Each member is what it would be alone: parameters, dropout seed and rates, dropout
    masks and batch-norm statistics are its own. ``stack.model`` has the layers of a single model, with one more axis
    ``S`` in front of each tensor.

    Examples:
        >>> import torch
        >>> from rgat import RelationalGraph
        >>> from rgat.models import NodeClassifier, stack
        >>> edges, types = torch.tensor([[0, 1, 2], [1, 2, 1]]), torch.tensor([0, 0, 1])
        >>> graph = RelationalGraph(edges, types, num_nodes=3, num_relations=2)
        >>> models = stack([NodeClassifier(8, num_classes=4, num_relations=2) for _ in range(10)])
        >>> models(torch.randn(3, 8), graph).shape
        torch.Size([10, 3, 4])
        >>> models.select([0, 7])
        >>> len(models)
        2
    """

    def __init__(self, models: Sequence[Any]) -> None:
        super().__init__()
        self._like = (copy.deepcopy(models[0]).to("meta"),)  # in a tuple: it is no part of the module
        self.model = copy.deepcopy(self._like[0])
        for name, _ in models[0].named_children():
            setattr(self.model, name, stack_layers([getattr(model, name) for model in models]))
        self.train(models[0].training)

    def __len__(self) -> int:
        return len(self.model.convs[0].dropout_state)

    def forward(self, x: Tensor | FeatureRows | None, graph: Any, constant_attention: bool = False) -> Tensor:
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

    def unstack(self) -> list[Any]:
        """Return the members as ordinary models, new and independent."""
        device, models = next(self.parameters()).device, []
        for member, tensors in enumerate(member_tensors(self.model)):
            model = copy.deepcopy(self._like[0]).to(next(self.parameters()).dtype).to_empty(device=device)
            for name, tensor in (*model.named_parameters(), *model.named_buffers()):
                tensor.data.copy_(tensors[name])
            for conv, stacked in zip(model.convs, self.model.convs, strict=True):
                conv.feature_dropout, conv.edge_dropout = dropout_rates(stacked)[member]
            models.append(model.train(self.training))
        return models
