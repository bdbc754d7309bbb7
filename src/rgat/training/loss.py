"""The losses of the paper (the last equations of sections 2.2 and 2.3), and L2 penalties."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from rgat.data.dataset import MISSING
from rgat.data.targets import Target, places


def negative_log_likelihood(logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
    """Return the loss of each label ``[...]``, given logits ``[..., classes]``.

    A share ``smoothing`` of a label is spread evenly over all classes.
    """
    log_probability = torch.log_softmax(logits, dim=-1)
    nll = -log_probability.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    return nll if smoothing == 0 else (1 - smoothing) * nll - smoothing * log_probability.mean(-1)


def summed_cross_entropy(logits: Tensor, labels: Tensor, class_weights: Tensor | None, smoothing: float) -> Tensor:
    """Return the sum of the losses of labels ``[n]``, each times the weight of its class ``[classes]``."""
    if smoothing == 0:
        return cross_entropy(logits, labels, class_weights, reduction="sum")
    nll = negative_log_likelihood(logits, labels, smoothing)
    return nll.sum() if class_weights is None else (nll * class_weights[labels]).sum()


def node_cross_entropy(logits: Tensor, labels: Tensor, nodes: Tensor, weight: Tensor, smoothing: float = 0.0) -> Tensor:
    """Return the weighted mean cross-entropy over labelled nodes for each member of a stack, ``[S]``; zero without any.

    The paper prints the sum over these nodes, all of weight 1.

    Args:
        logits: ``[S, N, classes]``.
        labels: ``[S, N]``.
        nodes: ``[S, n]`` ids of the nodes to learn from, padded with any others.
        weight: ``[S, n]`` weights of the nodes, 0 for those without a label and the padding.
        smoothing: share of each label that is spread evenly over all classes.

    Examples:
        >>> import torch
        >>> from rgat.training import node_cross_entropy
        >>> logits = torch.zeros(1, 5, 2)  # one model, five nodes, two classes
        >>> labels = torch.tensor([[0, 1, 0, -1, -1]])
        >>> node_cross_entropy(logits, labels, nodes=torch.tensor([[0, 1, 2]]), weight=torch.ones(1, 3))
        tensor([0.6931])
    """
    chosen = logits.gather(1, nodes.unsqueeze(-1).expand(-1, -1, logits.shape[2]))
    nll = negative_log_likelihood(chosen, labels.gather(1, nodes).clamp(min=0), smoothing)
    weight = weight.to(nll.dtype)
    total = weight.sum(1)
    return torch.where(weight > 0, nll * weight, 0).sum(1) / torch.where(total > 0, total, 1)


def multi_task_cross_entropy(
    logits: Tensor,
    labels: Tensor,
    class_weights: Tensor | None = None,
    num_graphs: int | None = None,
    smoothing: float = 0.0,
) -> Tensor:
    """Return the weighted softmax cross-entropy, summed over a batch's labels and divided by its number of graphs.

    Args:
        logits: ``[G, tasks, classes]``.
        labels: ``[G, tasks]`` classes; -1 where a label is missing.
        class_weights: ``[tasks, classes]``; 1 by default.
        num_graphs: number of graphs of the whole batch if this is one process's share of it; ``G`` by default.
        smoothing: share of each label that is spread evenly over all classes.

    Examples:
        >>> import torch
        >>> from rgat.training import multi_task_cross_entropy
        >>> multi_task_cross_entropy(torch.zeros(2, 1, 2), labels=torch.tensor([[1], [-1]]))
        tensor(0.3466)
    """
    if labels.shape != logits.shape[:2]:
        raise ValueError(f"`labels` must have shape {list(logits.shape[:2])}, got {list(labels.shape)}")
    if class_weights is not None and class_weights.shape != logits.shape[1:]:
        raise ValueError(f"`class_weights` must have shape {list(logits.shape[1:])}, got {list(class_weights.shape)}")
    wide = torch.promote_types(logits.dtype, torch.float32)
    target = labels.clamp(min=0)
    nll = negative_log_likelihood(logits.to(wide), target, smoothing)  # [G, tasks]
    if class_weights is not None:
        nll = nll * class_weights.to(wide).gather(1, target.t()).t()
    total = torch.where(labels != MISSING, nll, 0).sum()
    return total / max(labels.shape[0] if num_graphs is None else num_graphs, 1)


def target_losses(
    outputs: Tensor, goals: Tensor, bounds: Tensor | None, targets: Sequence[Target], smoothing: float = 0.0
) -> Tensor:
    """Return the loss of each output, all ``[..., outputs]``: cross-entropies, and squared errors of numbers.

    Args:
        outputs: logits, and standardised numbers.
        goals: 0 or 1 for classes and labels, standardised numbers; any number where a value is missing.
        bounds: 1 where only outputs below the goal are wrong, -1 where only those above are, else 0.
        targets: what the outputs belong to.
        smoothing: share of each class or label that is spread evenly over all.
    """
    losses: list[Tensor] = []
    for kind, place in _runs(targets):
        out, goal = outputs[..., place], goals[..., place].to(outputs.dtype)
        if kind == "regression":
            error = out - goal
            if bounds is not None:
                side = bounds[..., place].to(out.dtype)
                error = torch.where(side == 0, error, torch.relu(-error * side))
            losses.append(error.square())
        elif kind == "multi-class":
            goal = (1 - smoothing) * goal + smoothing / out.shape[-1]
            losses.append(-goal * torch.log_softmax(out, dim=-1))
        else:
            goal = (1 - smoothing) * goal + smoothing / 2
            losses.append(binary_cross_entropy_with_logits(out, goal.expand_as(out), reduction="none"))
    return torch.cat(losses, dim=-1)


def _runs(targets: Sequence[Target]) -> list[tuple[str, slice]]:
    """Return the kinds and places of outputs whose losses are computed together; each softmax stands alone."""
    runs: list[tuple[str, slice]] = []
    for target, place in places(targets):
        kind = "binary" if target.kind == "multi-label" else target.kind
        if runs and runs[-1][0] == kind != "multi-class":
            runs[-1] = kind, slice(runs[-1][1].start, place.stop)
        else:
            runs.append((kind, place))
    return runs


def balanced_class_weights(labels: Tensor) -> Tensor:
    """Return class weights ``[tasks, 2]``: 1 for negatives, the ratio of negatives to positives for positives.

    A task without positives or without negatives has weight 1 for both.

    Examples:
        >>> import torch
        >>> from rgat.training import balanced_class_weights
        >>> balanced_class_weights(torch.tensor([[1], [0], [0], [0], [-1]]))
        tensor([[1., 3.]])
    """
    negatives, positives = (labels == 0).sum(0), (labels == 1).sum(0)
    ratio = torch.where((negatives > 0) & (positives > 0), negatives / positives.clamp(min=1), 1.0)
    return torch.stack([torch.ones_like(ratio), ratio], dim=1)


def balanced_node_weights(labels: Tensor, num_classes: int) -> Tensor:
    """Return class weights ``[classes]`` by which all classes of the labels count equally; their mean over labels is 1.

    A class without labels has weight 1.
    """
    counts = labels[labels != MISSING].bincount(minlength=num_classes).double()
    present = (counts > 0).sum()
    return torch.where(counts > 0, counts.sum() / (present * counts), 1.0).float()


def l2_penalty(model: nn.Module, kernel: Sequence[float], attention: Sequence[float]) -> Tensor:
    """Return ``coefficient * sum(p ** 2)`` over the kernels' parameters: the full kernel, or bases and coefficients.

    Args:
        model: a model with relational layers.
        kernel: coefficients of ``W``, one per layer.
        attention: coefficients of the attention kernels, one per layer; an RGCN has no such kernels.

    Examples:
        >>> from rgat.models import NodeClassifier
        >>> from rgat.training import l2_penalty
        >>> model = NodeClassifier(8, num_classes=4, num_relations=2)
        >>> l2_penalty(model, kernel=(5e-4, 0.0), attention=(0.0, 0.0)) > 0
        tensor(True)
    """
    penalty = next(model.parameters()).new_zeros(())
    for parts, layer in zip(zip(kernel, attention, strict=True), relational_layers(model), strict=False):
        for coefficient, parameters in zip(parts, _kernel_parameters(layer), strict=True):
            if coefficient:
                for parameter in parameters:
                    penalty = penalty + coefficient * _SumOfSquares.apply(parameter)  # type: ignore[no-untyped-call]
    return penalty


class _SumOfSquares(torch.autograd.Function):
    """The sum of the squares of a parameter's entries, whose gradient alone takes memory.

    PyTorch's operations take the size of the parameter four times, which for one-hot kernels is that of the graph.
    """

    @staticmethod
    def forward(context: Any, parameter: Tensor) -> Tensor:
        context.save_for_backward(parameter)
        norm: Tensor = torch.linalg.vector_norm(parameter)
        return norm.square()

    @staticmethod
    def backward(context: Any, grad: Tensor) -> Tensor:
        (parameter,) = context.saved_tensors
        return parameter * (2 * grad)  # type: ignore[no-any-return]


def member_l2_penalties(model: nn.Module, kernel: Tensor, attention: Tensor) -> Tensor:
    """Return the penalty of each member of a stack, ``[S]``; coefficients are ``[S, 2]``, per member and layer."""
    penalties = kernel.new_zeros(len(kernel))
    for number, layer in enumerate(relational_layers(model)[: kernel.shape[1]]):
        for coefficients, parameters in zip((kernel, attention), _kernel_parameters(layer), strict=True):
            for parameter in parameters:
                squares = parameter.square().sum(dim=tuple(range(1, parameter.dim())))
                penalties = penalties + coefficients[:, number] * squares
    return penalties


def relational_layers(model: Any) -> list[Any]:
    """Return the relational layers of a model; baselines have two layers and no list of them."""
    layers: list[Any] = getattr(model, "convs", None) or [model.conv1, model.conv2]
    return layers


def _kernel_parameters(layer: Any) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Return the parameters of ``W`` and of the rows of nodes, and those of the attention kernels."""
    parts = [getattr(layer, name, None) for name in ("kernel", "node_kernel", "attention_kernel")]
    kernel, nodes, attention = ([] if part is None else list(part.parameters()) for part in parts)
    return kernel + nodes, attention
