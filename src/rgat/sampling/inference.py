"""Exact inference in bounded memory: layer by layer, over blocks of targets, with all their edges."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from rgat.checks import check_ids
from rgat.graph import RelationalGraph
from rgat.models import NodeClassifier, Stack
from rgat.sampling.features import gather_features
from rgat.sampling.sampler import NeighborSampler

BLOCK_NUMBERS = 2**26  # values, queries, outputs and inputs of one block: 256 MiB in single precision


@torch.no_grad()
def exact_logits(
    model: NodeClassifier | Stack,
    x: Tensor | None,
    sampler: NeighborSampler,
    nodes: Tensor | None = None,
    constant_attention: bool = False,
    block_numbers: int = BLOCK_NUMBERS,
    advance: Callable[[int], None] | None = None,
) -> Tensor:
    """Return the logits of nodes, computed with all edges: ``[n, classes]``, of a stack ``[S, n, classes]``.

    Each layer is computed for the nodes that the next one needs, in blocks of bounded memory; besides a block, memory
    holds the output of one layer for these nodes.

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
    layers: Any = model.model if isinstance(model, Stack) else model
    like = next(model.parameters())
    if nodes is None:
        nodes = torch.arange(sampler.num_nodes)
    nodes = nodes.to(sampler.device, torch.int64)
    check_ids("nodes", nodes, sampler.num_nodes, "num_nodes")
    needed = _needed(sampler, nodes, layers.num_layers)
    is_featureless = x is None or not x.is_floating_point()
    hidden: Tensor | None = None
    position: Tensor | None = None  # in `hidden`, of each node of the graph
    for number, targets in enumerate(needed, start=1):
        outputs, done = None, 0
        for block in _blocks(sampler, targets, max(1, block_numbers // _width(layers, number, is_featureless))):
            graph, ids = block if block.device == like.device else block.to(like.device), block.node_ids
            assert ids is not None
            if number == 1:
                given = None if x is None else gather_features(x, ids, like.device, like.dtype)
                inputs = layers.inputs(given, graph)
            else:
                assert hidden is not None
                assert position is not None
                inputs = hidden.index_select(0, position[ids].to(hidden.device))
            part = layers.layer(number, inputs, graph, constant_attention)
            if outputs is None:
                outputs = part.new_empty(len(targets), *part.shape[1:])
            outputs[done : done + len(part)] = part
            done += len(part)
            if advance is not None:
                advance(len(part))
        assert outputs is not None
        hidden = outputs
        position = torch.full((sampler.num_nodes,), -1, dtype=torch.int32, device=sampler.device)
        position[targets] = torch.arange(len(targets), dtype=torch.int32, device=sampler.device)
    assert hidden is not None
    assert position is not None
    logits = hidden.index_select(0, position[nodes].to(hidden.device))
    return logits.transpose(0, 1) if isinstance(model, Stack) else logits


def _width(layers: NodeClassifier, number: int, is_featureless: bool) -> int:
    """Return how many numbers a layer holds for each node and edge."""
    conv = layers.convs[number - 1]
    is_lookup = number == 1 and is_featureless and getattr(layers, "embedding", None) is None
    inputs = 0 if is_lookup else conv.in_channels
    return conv.heads * (conv.out_channels + inputs) * (conv.members or 1)


def _needed(sampler: NeighborSampler, nodes: Tensor, num_layers: int) -> list[Tensor]:
    """Return the sorted ids of the nodes whose output each layer must compute, first layer first."""
    is_needed = torch.zeros(sampler.num_nodes, dtype=torch.bool, device=sampler.device)
    is_needed[nodes] = True
    needed = [is_needed.nonzero().squeeze(1)]
    for _ in range(num_layers - 1):
        if len(needed[0]) < sampler.num_nodes:
            for graph in _blocks(sampler, needed[0], BLOCK_NUMBERS // 16):
                is_needed[graph.node_ids] = True
        needed.insert(0, is_needed.nonzero().squeeze(1))
    return needed


def _blocks(sampler: NeighborSampler, targets: Tensor, most: int) -> Iterator[RelationalGraph]:
    """Yield graphs of consecutive targets with all their edges, at most ``most`` of both, but at least one target."""
    if len(targets) == 0:
        yield sampler.block(targets)
    sizes = sampler.degrees(targets) + 1
    ends = sizes.cumsum(0)
    start = 0
    if len(targets) == 0:
        yield sampler.block(targets)
    while start < len(targets):
        before = int(ends[start - 1]) if start else 0
        end = max(int(torch.searchsorted(ends, before + most, right=True)), start + 1)
        yield sampler.block(targets[start:end])
        start = end
