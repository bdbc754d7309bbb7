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
from rgat.sampling.hubs import Part, hub_output
from rgat.sampling.sampler import NeighborSampler

BLOCK_NUMBERS = 2**26  # values, queries, outputs and inputs of one block: 256 MiB in single precision
PART = 4  # a part of a hub's edges is so much smaller than a block, for its sums are in double precision


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
    if nodes is None:
        nodes = torch.arange(sampler.num_nodes)
    nodes = nodes.to(sampler.device, torch.int64)
    check_ids("nodes", nodes, sampler.num_nodes, "num_nodes")
    layers: Any = model.model if isinstance(model, Stack) else model
    inputs = _Inputs(layers, x, sampler)
    for number, targets in enumerate(_needed(sampler, nodes, layers.num_layers), start=1):
        most = max(1, block_numbers // _width(layers, number, x is None or not x.is_floating_point()))
        outputs, done = None, 0
        for chosen in _runs(sampler, targets, most):
            part = _layer(layers, number, inputs, chosen, most, constant_attention)
            if outputs is None:
                outputs = part.new_empty(len(targets), *part.shape[1:])
            outputs[done : done + len(part)] = part
            done += len(part)
            if advance is not None:
                advance(len(part))
        assert outputs is not None
        inputs.replace(outputs, targets)
    logits = inputs.hidden_of(nodes)
    return logits.transpose(0, 1) if isinstance(model, Stack) else logits


class _Inputs:
    """The inputs of a layer: features or embeddings, and then the output of the layer before."""

    def __init__(self, layers: NodeClassifier, x: Tensor | None, sampler: NeighborSampler) -> None:
        self.layers, self.x, self.sampler = layers, x, sampler
        self.like = next(layers.parameters())
        self.hidden: Tensor | None = None
        self.position: Tensor | None = None  # in `hidden`, of each node of the graph

    def replace(self, hidden: Tensor, nodes: Tensor) -> None:
        """Take the output of a layer for some nodes as input of the next one."""
        device = self.sampler.device
        self.hidden = hidden
        self.position = torch.full((self.sampler.num_nodes,), -1, dtype=torch.int32, device=device)
        self.position[nodes] = torch.arange(len(nodes), dtype=torch.int32, device=device)

    def hidden_of(self, nodes: Tensor) -> Tensor:
        """Return the output of the layer before for some nodes."""
        assert self.hidden is not None
        assert self.position is not None
        return self.hidden.index_select(0, self.position[nodes].to(self.hidden.device))

    def of(self, block: RelationalGraph) -> Part:
        """Return the input of a layer for the nodes of a block, and the block on the device of the model."""
        like, ids = self.like, block.node_ids
        graph = block if block.device == like.device else block.to(like.device)
        assert ids is not None
        if self.hidden is not None:
            return self.hidden_of(ids), graph
        given = None if self.x is None else gather_features(self.x, ids, like.device, like.dtype)
        return self.layers.inputs(given, graph), graph


def _layer(
    layers: NodeClassifier, number: int, inputs: _Inputs, targets: Tensor, most: int, constant_attention: bool
) -> Tensor:
    """Return the output of a layer for some targets, computed at once or, for a single one, in parts of its edges."""
    sampler = inputs.sampler
    if len(targets) != 1 or int(sampler.degrees(targets)) < most:
        return layers.layer(number, *inputs.of(sampler.block(targets)), constant_attention)
    hub = int(targets)
    parts = (inputs.of(sampler.part(hub, *edges)) for edges in _edge_ranges(sampler, hub, max(1, most // PART)))
    read = ((layers.conv_input(number, x), graph) for x, graph in parts)
    own, _ = inputs.of(sampler.part(hub, 0, 0))  # of the hub alone
    return layers.activate(number, hub_output(layers.convs[number - 1], read, constant_attention), x=own)


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
    needed, most = [is_needed.nonzero().squeeze(1)], BLOCK_NUMBERS // 16
    for _ in range(num_layers - 1):
        for targets in _runs(sampler, needed[0], most) if len(needed[0]) < sampler.num_nodes else ():
            if len(targets) > 1:
                is_needed[sampler.incoming.into(targets)[0]] = True
            for first, last in _edge_ranges(sampler, int(targets), most) if len(targets) == 1 else ():
                is_needed[sampler.incoming.source[first:last].long()] = True
        needed.insert(0, is_needed.nonzero().squeeze(1))
    return needed


def _runs(sampler: NeighborSampler, targets: Tensor, most: int) -> Iterator[Tensor]:
    """Yield consecutive targets that with all their edges are at most ``most``; a target with more of them is alone."""
    ends = (sampler.degrees(targets) + 1).cumsum(0)
    start = 0
    while start < max(len(targets), 1):  # no targets have a run, too, whose output has the right shape
        before = int(ends[start - 1]) if start else 0
        end = max(int(torch.searchsorted(ends, before + most, right=True)), start + 1)
        yield targets[start:end]
        start = end


def _edge_ranges(sampler: NeighborSampler, target: int, most: int) -> Iterator[tuple[int, int]]:
    """Yield the positions of the edges into a target, so many at once."""
    first, last = sampler.edge_range(target)
    for start in range(first, last, most):
        yield start, min(start + most, last)
