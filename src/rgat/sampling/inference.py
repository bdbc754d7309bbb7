"""Exact inference in bounded memory: layer by layer, over blocks of targets, with all their edges."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from rgat.models import NodeClassifier, Stack
from rgat.sampling.blocks import BLOCK_NUMBERS, Inputs, layer_outputs, needed_nodes
from rgat.sampling.sampler import NeighborSampler


@torch.no_grad()
def exact_logits(
    model: NodeClassifier | Stack,
    x: Tensor | None,
    sampler: NeighborSampler,
    nodes: Tensor | Sequence[int] | None = None,
    constant_attention: bool = False,
    block_numbers: int = BLOCK_NUMBERS,
    advance: Callable[[int], None] | None = None,
) -> Tensor:
    """Return the logits of nodes, computed with all edges: ``[n, classes]``, of a stack ``[S, n, classes]``.

    Each layer is computed for the nodes that the next one needs, in blocks of bounded memory; besides a block, memory
    holds the output of one layer for these nodes. A node with more edges than a block may have is computed in parts.

    Args:
        model: in evaluation mode, on the device to compute on.
        x: features of all nodes, wherever they are kept, or None for featureless input.
        sampler: of the graph; its fan-outs are not used.
        nodes: ids of the nodes; by default all.
        constant_attention: give all edges of a softmax group the same attention.
        block_numbers: the size of a block, as a number of floating-point values.
        advance: called with the number of nodes after each block, for a progress bar.

    Examples:
        >>> import torch
        >>> import rgat
        >>> data = rgat.data.load("institute")
        >>> model = rgat.training.build_model(data).eval()
        >>> sampler = rgat.sampling.NeighborSampler(data.graph, fanouts=[5, 5])
        >>> logits = rgat.sampling.exact_logits(model, data.x, sampler, nodes=data.test)
        >>> torch.allclose(logits, model(data.x, data.graph)[data.test], atol=1e-5)
        True
    """
    if model.training:
        raise ValueError("exact logits must be of a model in evaluation mode, got one in training; call `model.eval()`")
    if x is not None and x.shape[0] != sampler.num_nodes:
        raise ValueError(f"`x` must have one row per node of the graph, {sampler.num_nodes}, got {x.shape[0]}")
    ids = sampler.check_nodes(torch.arange(sampler.num_nodes) if nodes is None else nodes)
    layers: Any = model.model if isinstance(model, Stack) else model
    inputs = Inputs(layers, x, sampler)
    for number, targets in enumerate(needed_nodes(sampler, ids, layers.num_layers), start=1):
        outputs = layer_outputs(inputs, number, targets, constant_attention, block_numbers, advance)
        inputs = inputs.after(outputs, targets)
    logits = inputs.rows(ids)
    assert logits is not None
    return logits.transpose(0, 1) if isinstance(model, Stack) else logits
