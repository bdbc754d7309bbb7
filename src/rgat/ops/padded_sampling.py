"""Sample the incoming edges of nodes into arrays of fixed sizes, without waiting for the device.

A sample is that of `ops/sampling.py`, followed by padding: further edges, spread evenly over further groups and source
rows, and these over further nodes. Padding comes last in every order of a structure and has the last relation, so it
moves no other entry. What does not fit is left out, and the sizes that come back tell.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rgat.incoming import IncomingEdges
from rgat.ops.dropout import id_keys
from rgat.ops.sampling import NEVER, Fanout, Numbering, SampledEdges, draw
from rgat.structure import Rows, Structure


class Capacity(NamedTuple):
    """The sizes of the padded sample of one layer; all must exceed those of the sample."""

    groups: int
    edges: int
    nodes: int
    rows: int  # of sources


class PaddedTargets(NamedTuple):
    """The nodes whose edges are sampled, with padding anywhere."""

    nodes: Tensor  # [T] int64; the number of nodes of the graph for padding
    end: Tensor  # [] int64; from here on all are padding, and there is some


class PaddedSample(NamedTuple):
    """The padded sample of one layer."""

    edges: SampledEdges
    sources: PaddedTargets  # the targets, then their sources: the targets of the layer before
    sizes: Tensor  # [4] int64, of what was sampled: groups, edges, new nodes, source rows


def sample_padded(
    incoming: IncomingEdges,
    fanout: Fanout,
    stream: Tensor,
    targets: PaddedTargets,
    numbering: Numbering,
    capacity: Capacity,
) -> PaddedSample:
    """Sample the edges into some nodes, all of them numbered, and number their sources.

    Args:
        incoming: all edges of the graph, at least one.
        fanout: on the device of the edges.
        stream: of the random numbers, ``[]`` int64.
        targets: numbered by their places.
        numbering: of the nodes so far.
        capacity: the sizes of the result.
    """
    device, num_targets, num_nodes, num_relations = (
        incoming.source.device, len(targets.nodes), incoming.num_nodes, len(fanout.table),
    )  # fmt: skip
    last = num_relations - 1
    group_at, edge_at = (torch.arange(size, device=device) for size in (capacity.groups, capacity.edges))

    known = targets.nodes.clamp(max=num_nodes - 1)
    first = incoming.node_ptr[known]
    counts = torch.where(targets.nodes < num_nodes, incoming.node_ptr[known + 1] - first, 0)
    ends = counts.cumsum(0)
    num_groups = ends[-1]
    is_group = group_at < num_groups
    target = torch.searchsorted(ends, group_at, right=True).clamp_(max=num_targets - 1)
    chosen = torch.where(is_group, group_at + (first - ends + counts)[target], 0)
    relation = torch.where(is_group, incoming.group_relation[chosen], last).long()
    begin = incoming.group_ptr[chosen]
    degree, most = torch.where(is_group, incoming.group_ptr[chosen + 1] - begin, 0), fanout.table[relation]
    sizes = torch.where(most < 0, degree, torch.minimum(degree, most))

    edge_ends = sizes.cumsum(0)
    num_edges = edge_ends[-1]
    is_edge, begins = edge_at < num_edges, edge_ends - sizes
    group = torch.searchsorted(edge_ends, edge_at, right=True).clamp_(max=capacity.groups - 1)
    edge_id = torch.where(is_edge, edge_at + (begin - begins)[group], 0)
    if fanout.most > 0:
        keys = id_keys(stream, relation * num_nodes + known[target])
        draw(edge_id, keys, begin, degree, torch.where(edge_ends <= capacity.edges, sizes, 0), begins, fanout.most)

    node = torch.where(is_edge, incoming.source[edge_id], num_nodes).long()
    nodes, end = _number_sources(node, edge_at, is_edge, targets.nodes, numbering, capacity.nodes)
    source = numbering.local[node].clamp(0, capacity.nodes - 1)

    target = _fill(target, num_groups, targets.end, num_targets)
    group = _fill(group, num_edges, num_groups, capacity.groups)
    sources, row, by_source = _source_rows(source, relation[group], num_edges, end, capacity, num_relations)
    num_rows = sources.num_rows
    by_relation = (relation * capacity.nodes + target).sort(stable=True)[1]
    target_rows = Rows(
        node=target[by_relation].int(),
        relation=relation[by_relation].int(),
        relation_ptr=_begins(relation[by_relation], num_relations),
        by_node=torch.empty_like(by_relation).scatter_(0, by_relation, group_at).int(),
        node_ptr=_begins(target, capacity.nodes),
    )
    target_of_edge = target[group]
    structure = Structure(
        order=edge_at.int(),
        target=target_of_edge.int(),
        group=group.int(),
        source_row=torch.empty_like(row).scatter_(0, by_source, row).int(),
        target_ptr=_begins(target_of_edge, num_targets),
        group_ptr=_begins(group, capacity.groups),
        by_source=by_source.int(),
        source_ptr=_begins(row, capacity.rows),
        sources=sources.rows,
        targets=target_rows,
        graph_sizes=torch.full((1,), capacity.nodes, device=device),
        row_id=nodes.clamp(max=num_nodes - 1)[sources.rows.node] + sources.rows.relation.long() * num_nodes,
        edge_id=edge_id,
    )
    source = structure.sources.node.index_select(0, structure.source_row)
    return PaddedSample(
        SampledEdges(source, relation[group].int(), edge_id, structure),
        PaddedTargets(nodes, end),
        torch.stack([num_groups, num_edges, end - num_targets, num_rows]),
    )


class _SourceRows(NamedTuple):
    rows: Rows
    num_rows: Tensor  # [] without padding


def _source_rows(
    source: Tensor, relation: Tensor, num_edges: Tensor, end: Tensor, capacity: Capacity, num_relations: int
) -> tuple[_SourceRows, Tensor, Tensor]:
    """Return the source rows, and of the edges in their order: the row, and the edge."""
    edge_at = torch.arange(len(source), device=source.device)
    is_edge, beyond = edge_at < num_edges, num_relations * capacity.nodes
    key = torch.where(is_edge, relation * capacity.nodes + source, beyond)
    if beyond < 2**31:
        key = key.int()  # sorts twice as fast
    key, by_source = key.sort(stable=True)
    is_first = is_edge.clone()
    is_first[1:] &= key[1:] != key[:-1]
    row = is_first.cumsum(0) - 1
    num_rows = is_first.sum()
    place = torch.where(is_first, row, capacity.rows).clamp_(max=capacity.rows)
    keys = torch.full((capacity.rows + 1,), beyond - 1, dtype=key.dtype, device=key.device).scatter_(0, place, key)[:-1]
    row_relation = torch.div(keys.clamp(max=beyond - 1), capacity.nodes, rounding_mode="floor")
    node = _fill(keys.long() % capacity.nodes, num_rows, end, capacity.nodes)
    sorted_node, by_node = node.sort(stable=True)
    rows = Rows(
        node=node.int(),
        relation=row_relation.int(),
        relation_ptr=_begins(row_relation.long(), num_relations),
        by_node=by_node.int(),
        node_ptr=_begins(sorted_node, capacity.nodes),
    )
    return _SourceRows(rows, num_rows), _fill(row, num_edges, num_rows, capacity.rows), by_source


def _number_sources(
    node: Tensor, edge_at: Tensor, is_edge: Tensor, targets: Tensor, numbering: Numbering, most: int
) -> tuple[Tensor, Tensor]:
    """Number the sources that have no number in the order of their first edge; return all nodes, and their number."""
    local, first, nobody = numbering.local, numbering.first, len(numbering.local) - 1
    position = edge_at.int()
    first.scatter_reduce_(0, node, position, "amin")
    is_new = is_edge & (local[node] < 0) & (first[node] == position)
    number = is_new.cumsum(0) + (len(targets) - 1)
    local.scatter_(0, torch.where(is_new, node, nobody), number.int())
    first.index_fill_(0, node, NEVER)
    nodes = torch.full((most + 1,), nobody, device=node.device)
    nodes[: len(targets)] = targets
    nodes.scatter_(0, torch.where(is_new, number, most).clamp_(max=most), torch.where(is_new, node, nobody))
    return nodes[:most], number[-1] + 1


def _fill(owner: Tensor, size: Tensor, first: Tensor, end: int) -> Tensor:
    """Spread the entries from ``size`` on evenly over the owners from ``first`` to ``end``."""
    at = torch.arange(len(owner), device=owner.device) - size
    padding = first + at * (end - first) // (len(owner) - size).clamp(min=1)
    return torch.where(at < 0, owner, padding).clamp_(0, end - 1)


def _begins(sorted_owner: Tensor, number: int) -> Tensor:
    """Return where the entries of each of so many owners begin, and where the last one's end, int32."""
    owners = torch.arange(number + 1, dtype=sorted_owner.dtype, device=sorted_owner.device)
    return torch.searchsorted(sorted_owner, owners, out_int32=True)
