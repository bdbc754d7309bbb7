"""Predict a node in variants of a large receptive field, recomputing only what a change reaches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from rgat.data import NodeData
from rgat.predictor.near_field import Edge
from rgat.predictor.variants import LEAST_REST
from rgat.sampling import NeighborSampler
from rgat.sampling.blocks import PART, Inputs, activated, edge_ranges, edges_into, layer_outputs, most_edges
from rgat.sampling.hubs import Conv, Sums, hub_output, hub_sums, is_across


class Change(NamedTuple):
    """What is different in a variant."""

    removed: dict[int, list[int]] = {}  # noqa: RUF012  (never changed); positions of edges by their target
    equal: Edge | None = None  # gets its equal share of attention in all layers
    columns: tuple[int, slice] | None = None  # features of a node that are zero


def with_inverse(sampler: NeighborSampler, edge: Edge, data: NodeData) -> dict[int, list[int]]:
    """Return the positions of an edge and its inverse among all sorted edges, by their targets."""
    incoming, base = sampler.incoming, data.base_relation
    removed = {edge.target: [edge.number]}
    first, last = incoming.node_ptr[edge.source : edge.source + 2].tolist()
    for group, relation in enumerate(incoming.group_relation[first:last].tolist(), start=first):
        if relation != edge.relation and base[relation] == base[edge.relation]:
            begin, end = incoming.group_ptr[group : group + 2].tolist()
            places = incoming.source[begin:end] == edge.target
            removed.setdefault(edge.source, []).extend((begin + places.nonzero().squeeze(1)).tolist())
    return removed


def predict_changed(chain: Sequence[Inputs], needed: Sequence[Tensor], change: Change, block_numbers: int) -> Tensor:
    """Return the logits of the explained node, ``[1, classes]``.

    Args:
        chain: the inputs of every layer, and the logits.
        needed: the nodes whose output each layer computes; those of the last are the explained ones.
        change: what is different.
        block_numbers: the size of a block.
    """
    device = needed[-1].device
    at = list(change.removed) if change.equal is None else [change.equal.target]
    edges_of = torch.tensor(sorted(at), dtype=torch.int64, device=device)
    nodes, rows = edges_of[:0], torch.empty(0)
    if change.columns is not None:
        node, place = change.columns
        nodes = torch.tensor([node], device=device)
        given = chain[0].rows(nodes)
        assert given is not None
        rows = given.clone()
        rows[:, place] = 0.0
    for number, targets in enumerate(needed, start=1):
        inputs = chain[number - 1].changed_to(nodes, rows)
        special = edges_of[torch.isin(edges_of, targets)]
        reached = _reached(inputs.sampler, nodes, targets, number == len(needed))
        others = reached[~torch.isin(reached, special)]
        parts = [layer_outputs(inputs, number, others, block_numbers=block_numbers)] if len(others) else []
        parts += [_special(inputs, number, target, change, block_numbers) for target in special.tolist()]
        nodes, order = torch.cat([others, special]).sort()
        rows = torch.cat(parts)[order.to(parts[0].device)] if parts else rows
    logits = chain[-1].changed_to(nodes, rows).rows(needed[-1])
    assert logits is not None
    return logits


def _reached(sampler: NeighborSampler, nodes: Tensor, targets: Tensor, is_last: bool) -> Tensor:
    """Return those of some targets whose output may depend on changed nodes, by an edge or directly; sorted."""
    if not len(nodes) or is_last:
        return targets if len(nodes) else nodes
    is_changed = torch.zeros(sampler.num_nodes, dtype=torch.bool, device=nodes.device)
    is_changed[nodes] = True
    found = [nodes[torch.isin(nodes, targets)]]
    found += [torch.unique(target[is_changed[source]]) for source, target in edges_into(sampler, targets)]
    reached: Tensor = torch.unique(torch.cat(found))
    return reached


def _special(inputs: Inputs, number: int, target: int, change: Change, block_numbers: int) -> Tensor:
    """Return the output of a layer for a target without some edges, or with one of them at its equal share."""
    sampler, conv = inputs.sampler, inputs.layers.convs[number - 1]
    most = max(1, most_edges(inputs, number, block_numbers) // PART)
    without = change.removed.get(target, []) if change.equal is None else [change.equal.number]

    def sums(constant: bool) -> Sums:
        return hub_sums(conv, inputs.parts(number, target, edge_ranges(sampler, target, most, without)), constant)

    rest = sums(False)
    if change.equal is None:
        return activated(inputs, number, target, hub_output(conv, rest))
    place = change.equal.number
    own = hub_sums(conv, inputs.parts(number, target, iter([(place, place + 1)])), False)
    share = _equal_share(sampler, conv, change.equal)
    out = _at_equal_share(conv, rest, sums(True), own, share, change.equal.relation)
    return activated(inputs, number, target, conv.finish(out.unsqueeze(0).to(rest.dtype)))


def _equal_share(sampler: NeighborSampler, conv: Conv, edge: Edge) -> Tensor:
    """Return the equal share of an edge in the softmax of each head, ``[H]``."""
    incoming = sampler.incoming
    first, last = incoming.node_ptr[edge.target : edge.target + 2].tolist()
    ends = incoming.group_ptr[first : last + 1]
    is_own = incoming.group_relation[first:last] == edge.relation
    within, across = int(ends.diff()[is_own].sum()), int(ends[-1] - ends[0])
    where = is_across(conv)
    return torch.where(where, 1 / across, 1 / within).double()


def _at_equal_share(conv: Conv, rest: Sums, plain: Sums, own: Sums, share: Tensor, relation: int) -> Tensor:
    """Return the output ``[H, D]`` with an edge at its share and the others of its softmax group in proportion.

    Where the edge has all attention, the others share the rest equally.

    Args:
        conv: the layer.
        rest: sums over the other edges into its target.
        plain: the same under constant attention.
        own: sums over the edge alone.
        share: of the edge, ``[H]``.
        relation: of the edge.
    """
    across = is_across(conv)
    shift, divisor = (each[relation] for each in rest.softmax(across))
    logit = own.largest[relation]
    largest = torch.where(divisor > 0, torch.maximum(logit, shift), logit)
    mass, others = (logit - largest).exp(), divisor * (shift - largest).exp()
    is_rest = others / (mass + others) > LEAST_REST  # [H]
    number = torch.arange(len(rest.largest), device=across.device).unsqueeze(1)
    in_group = across | (number == relation)  # [R, H]
    uniform = (in_group & ~is_rest).unsqueeze(-1)
    shares = torch.where(uniform, plain.shares(across), rest.shares(across))
    shares = torch.where(in_group.unsqueeze(-1), (1 - share).unsqueeze(-1) * shares, shares)
    return shares.sum(0) + share.unsqueeze(-1) * own.weighted[relation]
