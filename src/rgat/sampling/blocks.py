"""The layers of a model over many nodes, in blocks of targets with all their edges."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from rgat.graph import RelationalGraph
from rgat.models import NodeClassifier
from rgat.sampling.features import gather_features
from rgat.sampling.hubs import Part, hub_output, hub_sums
from rgat.sampling.sampler import NeighborSampler

BLOCK_NUMBERS = 2**26  # values, queries, outputs and inputs of one block: 256 MiB in single precision
PART = 4  # a part of a hub's edges is so much smaller than a block, for its sums are in double precision


class Inputs:
    """The inputs of a layer: features or embeddings, or the output of the layer before for some nodes.

    Args:
        layers: the model.
        x: features of all nodes, or None.
        sampler: of the graph.
        hidden_columns: features that are read as zero.
    """

    def __init__(
        self, layers: NodeClassifier, x: Tensor | None, sampler: NeighborSampler, hidden_columns: slice | None = None
    ) -> None:
        self.layers, self.x, self.sampler, self.hidden_columns = layers, x, sampler, hidden_columns
        self.like = next(layers.parameters())
        self.hidden: Tensor | None = None
        self.position: Tensor | None = None  # in `hidden`, of each node of the graph
        self.changed: tuple[Tensor, Tensor] | None = None  # sorted nodes, and their rows

    def after(self, hidden: Tensor, nodes: Tensor) -> Inputs:
        """Return the inputs of the next layer, given the output of this one for some nodes."""
        new, device = copy.copy(self), self.sampler.device
        new.hidden, new.changed = hidden, None
        new.position = torch.full((self.sampler.num_nodes,), -1, dtype=torch.int32, device=device)
        new.position[nodes] = torch.arange(len(nodes), dtype=torch.int32, device=device)
        return new

    def changed_to(self, nodes: Tensor, rows: Tensor) -> Inputs:
        """Return these inputs with other rows of some nodes, whose ids are sorted."""
        new = copy.copy(self)
        new.changed = (nodes, rows) if len(nodes) else None
        return new

    def rows(self, nodes: Tensor) -> Tensor | None:
        """Return the features of some nodes, or the output of the layer before; None without features."""
        if self.hidden is not None:
            assert self.position is not None
            rows = self.hidden.index_select(0, self.position[nodes].to(self.hidden.device))
        elif self.x is None:
            return None
        else:
            rows = gather_features(self.x, nodes, self.like.device, self.like.dtype)
            if self.hidden_columns is not None:
                rows[:, self.hidden_columns] = 0.0
        if self.changed is not None:
            known, others = self.changed
            place = torch.searchsorted(known, nodes).clamp(max=len(known) - 1)
            is_changed = (known[place] == nodes).nonzero().squeeze(1)
            rows[is_changed.to(rows.device)] = others[place[is_changed].to(others.device)]
        return rows

    def of(self, block: RelationalGraph) -> tuple[Tensor | None, RelationalGraph]:
        """Return the input of a layer for the nodes of a block, and the block on the device of the model."""
        graph = block if block.device == self.like.device else block.to(self.like.device)
        assert block.node_ids is not None
        rows = self.rows(block.node_ids)
        return (rows if self.hidden is not None else self.layers.inputs(rows, graph)), graph  # type: ignore[return-value]

    def parts(self, number: int, target: int, ranges: Iterator[tuple[int, int]]) -> Iterator[Part]:
        """Yield what the convolution of a layer reads for some of the edges into a target, so many at once."""
        for first, last in ranges:
            x, graph = self.of(self.sampler.part(target, first, last))
            yield self.layers.conv_input(number, x), graph


def layer_outputs(
    inputs: Inputs,
    number: int,
    targets: Tensor,
    constant_attention: bool = False,
    block_numbers: int = BLOCK_NUMBERS,
    advance: Callable[[int], None] | None = None,
) -> Tensor:
    """Return the output of a layer, counted from 1, for some targets with all their edges."""
    most = most_edges(inputs, number, block_numbers)
    outputs, done = None, 0
    for chosen in runs(inputs.sampler, targets, most):
        part = _layer(inputs, number, chosen, most, constant_attention)
        if outputs is None:
            outputs = part.new_empty(len(targets), *part.shape[1:])
        outputs[done : done + len(part)] = part
        done += len(part)
        if advance is not None:
            advance(len(part))
    assert outputs is not None
    return outputs


def _layer(inputs: Inputs, number: int, targets: Tensor, most: int, constant_attention: bool) -> Tensor:
    """Return the output of a layer for some targets, computed at once or, for a single one, in parts of its edges."""
    sampler, layers = inputs.sampler, inputs.layers
    if not is_hub(sampler, targets, most):
        return layers.layer(number, *inputs.of(sampler.block(targets)), constant_attention)
    parts = inputs.parts(number, int(targets), edge_ranges(sampler, int(targets), max(1, most // PART)))
    conv = layers.convs[number - 1]
    return activated(inputs, number, int(targets), hub_output(conv, hub_sums(conv, parts, constant_attention)))


def activated(inputs: Inputs, number: int, target: int, out: Tensor) -> Tensor:
    """Return the output of a layer for one target from its convolution's."""
    own, _ = inputs.of(inputs.sampler.part(target, 0, 0))  # of the target alone
    return inputs.layers.activate(number, out, x=own)


def most_edges(inputs: Inputs, number: int, block_numbers: int) -> int:
    """Return how many nodes and edges a block of a layer may have."""
    x = inputs.x
    return max(1, block_numbers // width(inputs.layers, number, x is None or not x.is_floating_point()))


def width(layers: NodeClassifier, number: int, is_featureless: bool) -> int:
    """Return how many numbers a layer holds for each node and edge."""
    conv = layers.convs[number - 1]
    is_lookup = number == 1 and is_featureless and getattr(layers, "embedding", None) is None
    inputs = 0 if is_lookup else conv.in_channels
    return conv.heads * (conv.out_channels + inputs) * (conv.members or 1)


def needed_nodes(sampler: NeighborSampler, nodes: Tensor, num_layers: int) -> list[Tensor]:
    """Return the sorted ids of the nodes whose output each layer must compute, first layer first."""
    is_needed = torch.zeros(sampler.num_nodes, dtype=torch.bool, device=sampler.device)
    is_needed[nodes] = True
    needed = [is_needed.nonzero().squeeze(1)]
    for _ in range(num_layers - 1):
        for source, _ in edges_into(sampler, needed[0]) if len(needed[0]) < sampler.num_nodes else ():
            is_needed[source] = True
        needed.insert(0, is_needed.nonzero().squeeze(1))
    return needed


def edges_into(sampler: NeighborSampler, targets: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield source and target of all edges into some targets, block by block, int64."""
    most = BLOCK_NUMBERS // 16
    for chosen in runs(sampler, targets, most):
        if len(chosen) != 1:
            yield sampler.incoming.into(chosen)[:2]
            continue
        for first, last in edge_ranges(sampler, int(chosen), most):
            yield sampler.incoming.source[first:last].long(), chosen.expand(last - first)


def runs(sampler: NeighborSampler, targets: Tensor, most: int) -> Iterator[Tensor]:
    """Yield consecutive targets that with all their edges are at most ``most``; a target with more of them is alone."""
    ends = (sampler.degrees(targets) + 1).cumsum(0)
    start = 0
    while start < max(len(targets), 1):  # no targets have a run, too, whose output has the right shape
        before = int(ends[start - 1]) if start else 0
        end = max(int(torch.searchsorted(ends, before + most, right=True)), start + 1)
        yield targets[start:end]
        start = end


def is_hub(sampler: NeighborSampler, targets: Tensor, most: int) -> bool:
    """Tell whether a run is one target with more edges than a block may have."""
    return len(targets) == 1 and int(sampler.degrees(targets)) >= most


def edge_ranges(
    sampler: NeighborSampler, target: int, most: int, without: Sequence[int] = ()
) -> Iterator[tuple[int, int]]:
    """Yield the positions of the edges into a target but for some, so many at once; none give an empty range."""
    is_empty = True
    for start, end in sampler.edge_spans(target):
        bounds = [start, *(bound for place in sorted(without) if start <= place < end for bound in (place, place + 1))]
        for left, right in zip(bounds[::2], [*bounds[1::2], end], strict=True):
            for first in range(left, right, most):
                is_empty = False
                yield first, min(first + most, right)
    if is_empty:
        yield 0, 0
