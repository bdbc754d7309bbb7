"""The receptive field of nodes that is too large for memory: exact, block by block, never sampled.

Memory holds the output of every layer for the nodes of the field, some numbers per node, and one block of edges. The
attention of an edge is computed when its block is read: once to follow it from the explained nodes back to their
inputs, once to add up the shares.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from functools import cached_property

import torch
from torch import Tensor

from rgat.data import NodeData
from rgat.nn import RGATConv
from rgat.predictor.ensemble import Ensemble
from rgat.predictor.large_gradients import literal_gradients
from rgat.predictor.large_variants import Change, predict_changed, with_inverse
from rgat.predictor.near_field import Columns, Edge, Shares, margin
from rgat.sampling import NeighborSampler
from rgat.sampling.blocks import (
    BLOCK_NUMBERS,
    PART,
    Inputs,
    edge_ranges,
    is_hub,
    layer_outputs,
    most_edges,
    needed_nodes,
    runs,
    width,
)
from rgat.sampling.hubs import Sums, hub_sums, is_across, relation_of_edges


def numbers_per_edge(ensemble: Ensemble, data: NodeData) -> int:
    """Return how many numbers a member's widest layer holds for each node and edge."""
    member, is_featureless = ensemble.members[0], data.x is None
    return max(width(member, number, is_featureless) for number in range(1, ensemble.num_layers + 1))  # type: ignore[arg-type]


class LargeField:
    """The receptive field of some nodes, in blocks.

    Args:
        ensemble: the models.
        data: the graph that has the nodes, in memory or in a store.
        nodes: the nodes to explain; effects can be computed for a single one.
        block_numbers: the size of a block, as a number of floating-point values.
    """

    def __init__(self, ensemble: Ensemble, data: NodeData, nodes: Tensor, block_numbers: int | None = None) -> None:
        self.ensemble, self.data, self.nodes = ensemble, data, nodes
        self.block_numbers = BLOCK_NUMBERS if block_numbers is None else block_numbers
        self.sampler = NeighborSampler(data.graph, [-1])
        self.needed = needed_nodes(self.sampler, nodes, ensemble.num_layers)
        self.num_edges = int(self.sampler.degrees(self.needed[0]).sum())

    @cached_property
    def is_needed(self) -> list[Tensor]:
        """Whether each layer computes the output of each node, ``[N]``."""
        none = torch.zeros(self.sampler.num_nodes, dtype=torch.bool)
        return [none.index_fill(0, targets.cpu(), True) for targets in self.needed]

    @cached_property
    def chains(self) -> list[list[Inputs]]:
        """For each member the inputs of every layer, and last its logits."""
        return [list(self._chain(Inputs(member, self.data.x, self.sampler))) for member in self.ensemble.members]  # type: ignore[arg-type]

    @torch.no_grad()
    def _chain(self, inputs: Inputs) -> Iterator[Inputs]:
        """Yield the inputs of every layer, and the logits."""
        inputs.layers.eval()
        for number, targets in enumerate(self.needed, start=1):
            yield inputs
            inputs = inputs.after(layer_outputs(inputs, number, targets, False, self.block_numbers), targets)
        yield inputs

    @cached_property
    def logits(self) -> Tensor:
        """Logits of each member for the nodes, ``[S, n, classes]``."""
        return torch.stack([chain[-1].rows(self.nodes).float().cpu() for chain in self.chains])  # type: ignore[union-attr]

    @cached_property
    def before(self) -> Tensor:
        return self.ensemble.probabilities(self.logits[:, 0])

    @torch.no_grad()
    def logits_without(self, relations: Sequence[int] = (), columns: slice | None = None) -> Tensor:
        """Return the members' logits without some relations, or with some features at zero, ``[S, n, classes]``."""
        if not relations and columns is None:
            return self.logits
        sampler, logits = self.sampler.without(relations), []
        for member in self.ensemble.members:
            inputs = Inputs(member, self.data.x, sampler, columns)  # type: ignore[arg-type]
            last = deque(self._chain(inputs), maxlen=1).pop()
            logits.append(last.rows(self.nodes).float().cpu())  # type: ignore[union-attr]
        return torch.stack(logits)

    @torch.no_grad()
    def shares(self, most: int) -> Shares:
        end = torch.zeros(self.sampler.num_nodes, dtype=torch.float64).index_fill_(0, self.nodes.cpu(), 1)
        walks = [_Walks(self, chain, end) for chain in self.chains]
        equal = _Walks(self, None, end)
        total = max(sum(each.total for each in walks), 1e-300)
        relations, choice = torch.zeros(self.sampler.num_relations, dtype=torch.float64), 0.0
        best: list[Tensor] = []  # score, number, source, target, relation, attention and equal share
        for piece in self.pieces(1):
            attention, constant = torch.zeros(2, len(piece.source), dtype=torch.float64)
            for number, is_needed in enumerate(self.is_needed, start=1):
                part, place = piece.of(is_needed)
                if len(place):
                    attention[place] += torch.stack([each.credit(part, number) for each in walks]).sum(0) / total
                    constant[place] += equal.credit(part, number) / max(equal.total, 1e-300)
            relations.index_add_(0, piece.relation, attention)
            choice += float((attention - constant).abs().sum()) / 2
            score = torch.maximum(attention, (attention - constant).abs())
            columns = [score, piece.edges, piece.source, piece.target, piece.relation, attention, constant]
            joined = [torch.cat(pair) for pair in zip(best, columns, strict=True)] if best else columns
            order = joined[0].argsort(descending=True, stable=True)
            order = order[joined[0][order] > 0][:most]
            best = [column[order] for column in joined]
        edges = [Edge(*row) for row in zip(*(column.tolist() for column in best[1:]), strict=True)]
        return Shares(edges, relations, sum(each.own for each in walks) / total, choice)

    def pieces(self, number: int) -> Iterator[_Piece]:
        """Yield all edges into the nodes whose output a layer computes, in blocks that fit for all layers."""
        inputs = self.chains[0][0]
        layers = range(1, self.ensemble.num_layers + 1)
        most = min(most_edges(inputs, layer, self.block_numbers) for layer in layers)
        for targets in runs(self.sampler, self.needed[number - 1], most):
            if not is_hub(self.sampler, targets, most):
                yield _Block(self.sampler, targets)
                continue
            hub = _Hub(self, int(targets), max(1, most // PART))
            for first, last in hub.ranges():
                yield _HubPart(hub, first, last)

    def without_edges(self, edges: Sequence[Edge]) -> Tensor:
        return self._predict([Change(removed=with_inverse(self.sampler, edge, self.data)) for edge in edges])

    def at_equal_share(self, edges: Sequence[Edge]) -> Tensor:
        return self._predict([Change(equal=edge) for edge in edges])

    def without_columns(self, places: Sequence[tuple[int, slice]]) -> Tensor:
        return self._predict([Change(columns=place) for place in places])

    @torch.no_grad()
    def _predict(self, changes: Sequence[Change]) -> Tensor:
        found = []
        for change in changes:
            logits = [predict_changed(chain, self.needed, change, self.block_numbers) for chain in self.chains]
            found.append(self.ensemble.probabilities(torch.stack(logits).float().cpu()[:, 0]))
        return torch.stack(found) if found else torch.empty(0)

    def gradients(self, predicted: int, places: Sequence[Columns]) -> Tensor:
        leaf = self.logits[:, 0].clone().requires_grad_()
        (gradient,) = torch.autograd.grad(margin(self.ensemble, leaf.mean(0), predicted), leaf)
        columns = [place for _, _, place in places]
        parts = [
            literal_gradients(chain, self.needed, row.unsqueeze(0), columns, self.block_numbers)
            for chain, row in zip(self.chains, gradient, strict=True)
        ]
        return torch.stack(parts).sum(0)


class _Block:
    """All edges into some nodes, in sorted order."""

    def __init__(self, sampler: NeighborSampler, targets: Tensor) -> None:
        self.sampler, self.targets = sampler, targets
        self.graph = sampler.block(targets)
        ids = self.graph.node_ids
        assert ids is not None
        self.source, self.target = (ids[end].cpu() for end in self.graph.edge_index)
        self.relation = self.graph.edge_type.cpu()

    @property
    def edges(self) -> Tensor:
        """Position of each edge among all sorted edges."""
        return self.sampler.incoming.positions(self.targets).cpu()

    def attention(self, inputs: Inputs | None, number: int, conv: RGATConv) -> Tensor:
        """Return the attention of each edge in a layer, averaged over heads; without inputs its equal share."""
        if inputs is not None:
            x, graph = inputs.of(self.graph)
            _, (_, attention) = conv(inputs.layers.conv_input(number, x), graph, return_attention_weights=True)
            averaged: Tensor = attention.float().mean(1).cpu().double()
            return averaged
        s = self.graph.structure
        within, across = s.group_ptr.diff()[s.group.long()], s.target_ptr.diff()[s.target.long()]
        return _equal_share(conv, within.cpu(), across.cpu())

    def of(self, is_target: Tensor) -> tuple[_Block, Tensor]:
        """Return the edges into some of the targets, and where they are among these."""
        kept = is_target[self.targets.cpu()]
        if bool(kept.all()):
            return self, torch.arange(len(self.target))
        place = is_target[self.target].nonzero().squeeze(1)
        return _Block(self.sampler, self.targets[kept.to(self.targets.device)]), place


class _Hub:
    """A node with more edges than a block may have."""

    def __init__(self, field: LargeField, target: int, most: int) -> None:
        self.sampler, self.target, self.most = field.sampler, target, most
        self._softmax: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        first, last = self.sampler.incoming.node_ptr[target : target + 2].tolist()
        incoming = self.sampler.incoming
        self.sizes = torch.zeros(self.sampler.num_relations, dtype=torch.int64)  # of its groups
        self.sizes[incoming.group_relation[first:last].long().cpu()] = incoming.group_ptr[first : last + 1].diff().cpu()

    def ranges(self) -> Iterator[tuple[int, int]]:
        return edge_ranges(self.sampler, self.target, self.most)

    def softmax(self, inputs: Inputs, number: int, conv: RGATConv) -> tuple[Tensor, Tensor]:
        """Return shift and divisor of the softmax of a layer, kept for the other parts."""
        key = id(inputs), number
        if key not in self._softmax:
            sums: Sums = hub_sums(conv, inputs.parts(number, self.target, self.ranges()), False)
            self._softmax[key] = sums.softmax(is_across(conv))
        return self._softmax[key]


class _HubPart:
    """Some of the edges into one node, in sorted order."""

    def __init__(self, hub: _Hub, first: int, last: int) -> None:
        self.hub, self.first, self.last = hub, first, last
        self.edges = torch.arange(first, last)
        self.graph = hub.sampler.part(hub.target, first, last)
        self.source = hub.sampler.incoming.source[first:last].long().cpu()
        self.target = torch.full_like(self.source, hub.target)
        self.relation = self.graph.edge_type.cpu()

    def attention(self, inputs: Inputs | None, number: int, conv: RGATConv) -> Tensor:
        """Return the attention of each edge in a layer, averaged over heads; without inputs its equal share."""
        if inputs is None:
            return _equal_share(conv, self.hub.sizes[self.relation], self.hub.sizes.sum())
        shift, divisor = self.hub.softmax(inputs, number, conv)
        x, graph = inputs.of(self.graph)
        logits, _ = conv.logits_and_values(inputs.layers.conv_input(number, x), graph)
        relation = relation_of_edges(graph)
        attention = ((logits.double() - shift[relation]).exp() / divisor[relation]).mean(1)
        in_order = torch.empty_like(attention)
        in_order[graph.structure.order.long()] = attention
        return in_order.cpu()

    def of(self, is_target: Tensor) -> tuple[_HubPart, Tensor]:
        """Return the edges into some of the targets, and where they are among these."""
        place = torch.arange(len(self.target))
        return self, place if bool(is_target[self.hub.target]) else place[:0]


_Piece = _Block | _HubPart


def _equal_share(conv: RGATConv, within: Tensor, across: Tensor) -> Tensor:
    """Return the equal share of edges, averaged over heads, given the sizes of their softmax groups."""
    share = sum(word == "across" for word in conv.scope) / len(conv.scope)
    shares: Tensor = share / across.double() + (1 - share) / within.double()
    return shares


class _Walks:
    """Walks along all layers that end in the explained nodes, weighted by their attention; see `attention_flow.flow`.

    Args:
        field: the receptive field.
        chain: the inputs of the layers of a member; None for constant attention.
        end: 1 for the explained nodes, or 0, ``[N]``.
    """

    def __init__(self, field: LargeField, chain: list[Inputs] | None, end: Tensor) -> None:
        self.convs: list[RGATConv] = (field.chains[0] if chain is None else chain)[0].layers.convs  # type: ignore[assignment]
        self.chain, self.total = chain, 0.0
        self.reach, loops = [end], list[Tensor]()  # from a layer's output to the end, and through its self-loops
        for number in range(len(self.convs), 0, -1):
            reach, loop = torch.zeros_like(end), torch.zeros_like(end)
            for piece in field.pieces(number):
                attention = self._attention(piece, number)
                through = attention * self.reach[0][piece.target]
                if number > 1:
                    reach.index_add_(0, piece.source, through)
                self.total += float(through.sum())
                is_loop = piece.source == piece.target
                loop.index_add_(0, piece.target[is_loop], attention[is_loop])
            loops.insert(0, loop)
            if number > 1:
                self.reach.insert(0, reach)
                self.total = 0.0  # that of the first layer counts: of whole walks
        self.looped = [torch.ones((), dtype=torch.float64).expand_as(end)]  # of self-loops alone, up to a layer's input
        for loop in loops:
            self.looped.append(loop.mul_(self.looped[-1]))
        self.own = float((self.looped.pop() * end).sum())

    def credit(self, piece: _Piece, number: int) -> Tensor:
        """Return the weight of the walks that leave self-loops by each edge in a layer."""
        through = self._attention(piece, number) * self.reach[number - 1][piece.target]
        return torch.where(piece.source == piece.target, 0, self.looped[number - 1][piece.source] * through)

    def _attention(self, piece: _Piece, number: int) -> Tensor:
        conv = self.convs[number - 1]
        has_attention = self.chain is not None and isinstance(conv, RGATConv)
        return piece.attention(self.chain[number - 1] if has_attention else None, number, conv)  # type: ignore[index]
