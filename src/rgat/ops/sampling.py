"""Sample the incoming edges of nodes, one layer at a time.

At most ``fanout`` edges of each (target, relation) are drawn, uniformly and without replacement, by Floyd's algorithm.
The random numbers are those of ``ops/dropout.py``: a pure function of (seed, step, layer, relation, target, draw). So a
sample is the same on every device and with any number of threads.

New nodes are numbered in the order in which the edges first name them. On the CPU compiled loops do this and sort the
edges in time linear in their number; without Numba, and on a GPU, PyTorch's operations do.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rgat.incoming import IncomingEdges
from rgat.ops.dispatch import active_backend
from rgat.ops.dropout import id_keys, mask_stream, random_bits
from rgat.structure import Rows, Structure

FIRST_STREAM = 2  # the streams before it are those of dropout masks


class Numbering:
    """The local ids of the nodes of a sample, and the nodes by local id.

    The table has one entry per node of the graph, so that looking up a node costs one read; `clear` resets only the
    entries that were used.
    """

    def __init__(self, num_nodes: int, device: torch.device) -> None:
        # One entry more, for writes that PyTorch's operations must not skip.
        self.local = torch.full((num_nodes + 1,), -1, dtype=torch.int32, device=device)
        self._first: Tensor | None = None
        self.nodes = torch.empty(0, dtype=torch.int64, device=device)

    @property
    def first(self) -> Tensor:
        """The first edge that names each node, for PyTorch's operations; loops do without."""
        if self._first is None:
            self._first = torch.full_like(self.local, NEVER)
        return self._first

    def begin(self, nodes: Tensor) -> None:
        """Number these nodes first."""
        self.nodes = nodes
        self.local[nodes] = torch.arange(len(nodes), dtype=torch.int32, device=nodes.device)

    def clear(self) -> None:
        """Forget all nodes."""
        self.local.index_fill_(0, self.nodes, -1)  # as a captured graph must


NEVER = 2**31 - 1


def _has_loops(device: torch.device) -> bool:
    return device.type == "cpu" and active_backend(device) == "numba"


class Fanout(NamedTuple):
    """How many edges of each (target, relation) to take."""

    table: Tensor  # [R] int64; the largest number for each relation, or -1 for all
    most: int  # the largest entry; -1 if all edges are taken


class SampledEdges(NamedTuple):
    """The sampled edges of one layer, sorted by (target, relation, source of the whole graph)."""

    source: Tensor  # [E] int32, local
    relation: Tensor  # [E] int32
    edge_id: Tensor  # [E] int64, position among the edges of the whole graph
    structure: Structure


def stream_of(seed: int, step: int, layer: int) -> int:
    """Return the random stream of one layer of one step, a signed 64-bit integer."""
    return int(mask_stream(torch.tensor([seed, step]), FIRST_STREAM + layer))


def sample_edges(incoming: IncomingEdges, fanout: Fanout, stream: int, numbering: Numbering) -> SampledEdges:
    """Sample the edges into all nodes that are numbered, and number their sources.

    Args:
        incoming: all edges of the graph.
        fanout: on the device of the edges.
        stream: of the random numbers.
        numbering: the targets; the sources are appended.
    """
    sample = _sample_by_loops if _has_loops(incoming.source.device) else _sample_by_operations
    return sample(incoming, fanout, stream, numbering)


def _sample_by_loops(incoming: IncomingEdges, fanout: Fanout, stream: int, numbering: Numbering) -> SampledEdges:
    from rgat.ops.numba import sampling_loops as loops
    from rgat.ops.numba.compile import announce

    announce()
    graph = [each.numpy() for each in incoming[:3]]
    targets = numbering.nodes
    num_targets, limits = len(targets), fanout.table.numpy()
    num_groups, num_edges = loops.count_edges(targets.numpy(), *graph, limits)
    ints, longs = _empty(torch.int32), _empty(torch.int64)
    target, group, target_ptr, group_ptr = ints(num_edges), ints(num_edges), ints(num_targets + 1), ints(num_groups + 1)
    edge_id, group_relation, node_groups = longs(num_edges), ints(num_groups), ints(num_targets + 1)
    drawn = (target, group, edge_id, target_ptr, group_ptr, group_relation, node_groups)
    loops.draw_edges(
        targets.numpy(),
        *graph,
        limits,
        np.uint64(stream % 2**64),
        incoming.num_nodes,
        *(each.numpy() for each in drawn),
    )
    source, nodes = ints(num_edges), longs(num_targets + num_edges)
    nodes[:num_targets] = targets
    arrays = (edge_id, incoming.source, numbering.local, nodes)
    num_nodes = loops.number_sources(*(each.numpy() for each in arrays), num_targets, source.numpy())
    numbering.nodes = nodes[:num_nodes].clone()
    num_relations = len(fanout.table)
    sources, source_row, by_source, source_ptr = _source_rows(source, group, group_relation, num_nodes, num_relations)
    targets_rows = _empty_rows(num_groups, num_nodes, num_relations)
    loops.sort_targets(
        group_relation.numpy(), node_groups.numpy(), targets_rows.relation_ptr.numpy(), targets_rows.node_ptr.numpy(),
        targets_rows.node.numpy(), targets_rows.relation.numpy(), targets_rows.by_node.numpy(),
    )  # fmt: skip
    structure = Structure(
        order=torch.arange(num_edges, dtype=torch.int32),
        target=target,
        group=group,
        source_row=source_row,
        target_ptr=target_ptr,
        group_ptr=group_ptr,
        by_source=by_source,
        source_ptr=source_ptr,
        sources=sources,
        targets=targets_rows,
        graph_sizes=torch.tensor([num_nodes]),
    )
    return _with_ids(source, group_relation.index_select(0, group), edge_id, structure, incoming, numbering)


def _source_rows(
    source: Tensor, group: Tensor, group_relation: Tensor, num_nodes: int, num_relations: int
) -> tuple[Rows, Tensor, Tensor, Tensor]:
    """Return the source rows, each edge's row, the edges by row, and where each row's edges begin."""
    from rgat.ops.numba import sampling_loops as loops

    size, ints = len(source), _empty(torch.int32)
    rows = _empty_rows(size, num_nodes, num_relations)
    by_source, source_row, source_ptr = ints(size), ints(size), ints(size + 1)
    arrays = (
        source, group, group_relation, rows.relation_ptr, rows.node_ptr, by_source, source_row, source_ptr, rows.node,
        rows.relation, rows.by_node, ints(size),
    )  # fmt: skip
    number = loops.sort_sources(*(each.numpy() for each in arrays))
    kept = (rows.node[:number], rows.relation[:number], rows.relation_ptr, rows.by_node[:number], rows.node_ptr)
    return Rows(*(each.contiguous() for each in kept)), source_row, by_source, source_ptr[: number + 1]


def _empty(dtype: torch.dtype) -> Any:
    return lambda size: torch.empty(size, dtype=dtype)


def _empty_rows(size: int, num_nodes: int, num_relations: int) -> Rows:
    ints = _empty(torch.int32)
    pointers_of = [torch.zeros(number + 1, dtype=torch.int32) for number in (num_relations, num_nodes)]
    return Rows(ints(size), ints(size), pointers_of[0], ints(size), pointers_of[1])


def _sample_by_operations(incoming: IncomingEdges, fanout: Fanout, stream: int, numbering: Numbering) -> SampledEdges:
    device, targets = incoming.source.device, numbering.nodes
    first_group = incoming.node_ptr[targets]
    groups_per_node = incoming.node_ptr[targets + 1] - first_group
    node_groups = _offsets(groups_per_node)
    num_groups = int(node_groups[-1])
    target_of_group = _repeat(groups_per_node, num_groups)
    chosen = torch.arange(num_groups, device=device) + (first_group - node_groups[:-1])[target_of_group]
    relation = incoming.group_relation[chosen].long()
    begin = incoming.group_ptr[chosen]
    degree, most = incoming.group_ptr[chosen + 1] - begin, fanout.table[relation]
    sizes = torch.where(most < 0, degree, torch.minimum(degree, most))
    group_ptr = _offsets(sizes)
    num_edges = int(group_ptr[-1])
    group = _repeat(sizes, num_edges)
    edge_id = torch.arange(num_edges, device=device).add_((begin - group_ptr[:-1])[group])
    if fanout.most > 0:
        keys = id_keys(stream, relation * incoming.num_nodes + targets[target_of_group])
        draw(edge_id, keys, begin, degree, sizes, group_ptr, fanout.most)
    source = _number_sources(incoming.source[edge_id], numbering)
    num_nodes, num_relations = len(numbering.nodes), len(fanout.table)
    # Keys are int32 where they fit, which sorts twice as fast.
    dtype = torch.int32 if num_nodes * max(num_relations, 1) < 2**31 else torch.int64
    relation_of_edge = relation.int()[group]
    sorted_key, by_source = (relation_of_edge.to(dtype) * num_nodes + source).sort(stable=True)
    is_first = torch.ones_like(by_source, dtype=torch.bool)
    torch.ne(sorted_key[1:], sorted_key[:-1], out=is_first[1:])
    row = is_first.cumsum(0, dtype=torch.int32) - 1
    source_row = torch.empty_like(row).scatter_(0, by_source, row)
    begins = is_first.nonzero().squeeze(1)
    group_key, by_relation = (relation.to(dtype) * num_nodes + target_of_group).sort()
    by_node = torch.empty_like(by_relation).scatter_(0, by_relation, torch.arange(num_groups, device=device))
    node_ptr = torch.cat([node_groups, node_groups[-1:].expand(num_nodes - len(targets))]).int()
    structure = Structure(
        order=torch.arange(num_edges, dtype=torch.int32, device=device),
        target=target_of_group.int()[group],
        group=group,
        source_row=source_row,
        target_ptr=group_ptr[node_groups].int(),
        group_ptr=group_ptr.int(),
        by_source=by_source.int(),
        source_ptr=torch.cat([begins, begins.new_tensor([num_edges])]).int(),
        sources=_rows(sorted_key[begins], num_nodes, num_relations),
        targets=_rows(group_key, num_nodes, num_relations, by_node, node_ptr),
        graph_sizes=torch.tensor([num_nodes], device=device),
    )
    return _with_ids(source, relation_of_edge, edge_id, structure, incoming, numbering)


def _offsets(counts: Tensor) -> Tensor:
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)])


def _repeat(counts: Tensor, size: int) -> Tensor:
    """Return the number of each entry as often as it counts, [size] int32."""
    numbers = torch.arange(len(counts), dtype=torch.int32, device=counts.device)
    return torch.repeat_interleave(numbers, counts, output_size=size)


def _rows(
    key: Tensor, num_nodes: int, num_relations: int, by_node: Tensor | None = None, node_ptr: Tensor | None = None
) -> Rows:
    """Return the rows of sorted keys ``relation * num_nodes + node``."""
    bounds = torch.arange(num_relations + 1, dtype=key.dtype, device=key.device) * num_nodes
    relation_ptr = torch.searchsorted(key, bounds, out_int32=True)
    relation = torch.div(key, max(num_nodes, 1), rounding_mode="floor").int()
    node = (key - relation * num_nodes).int()
    if by_node is None or node_ptr is None:
        sorted_node, by_node = node.sort(stable=True)
        node_ptr = torch.searchsorted(
            sorted_node, torch.arange(num_nodes + 1, dtype=torch.int32, device=key.device), out_int32=True
        )
    return Rows(node, relation, relation_ptr, by_node.int(), node_ptr)


def draw(
    edge_id: Tensor, keys: Tensor, begin: Tensor, degree: Tensor, sizes: Tensor, group_ptr: Tensor, most: int
) -> None:
    """Overwrite the edges of groups of which not all are taken; see `ops/numba/sampling_loops.py`."""
    if edge_id.is_cuda and active_backend(edge_id.device) == "triton":
        from rgat.ops.triton.sampling_kernels import MOST, draw_edges

        if most <= MOST:
            draw_edges(edge_id, keys, begin, degree, sizes, group_ptr, most)
            return
    some = (sizes < degree).nonzero().squeeze(1)
    most = int(sizes[some].max()) if len(some) else 0
    drawn = torch.full((len(some), most), 2**62, device=edge_id.device)
    for j in range(most):
        last = degree[some] - sizes[some] + j
        candidate = random_bits(keys[some], torch.tensor(j, device=edge_id.device)) * (last + 1) >> 32
        is_repeated = (drawn == candidate.unsqueeze(1)).any(1)
        value = torch.where(is_repeated, last, candidate)
        drawn[:, j] = torch.where(j < sizes[some], value, 2**62)
    drawn = drawn.sort(1)[0]
    is_drawn = drawn < 2**62
    place = group_ptr[some].unsqueeze(1) + torch.arange(most, device=edge_id.device)
    edge_id[place[is_drawn]] = (begin[some].unsqueeze(1) + drawn)[is_drawn]


def _number_sources(source: Tensor, numbering: Numbering) -> Tensor:
    """Return the local ids of sources, int32, after numbering those that have none in the order of their first edge."""
    local, first, device = numbering.local, numbering.first, source.device
    position, nobody = torch.arange(len(source), dtype=torch.int32, device=device), len(local) - 1
    node = source.long()
    first.scatter_reduce_(0, node, position, "amin")
    is_new = (local[node] < 0).logical_and_(first[node] == position)
    number = is_new.cumsum(0, dtype=torch.int32).add_(len(numbering.nodes) - 1)
    local.scatter_(0, torch.where(is_new, node, nobody), number)
    first[node] = NEVER
    numbering.nodes = torch.cat([numbering.nodes, node[is_new]])
    return local[node]


def _with_ids(
    source: Tensor,
    relation: Tensor,
    edge_id: Tensor,
    structure: Structure,
    incoming: IncomingEdges,
    numbering: Numbering,
) -> SampledEdges:
    """Give a sample the ids that dropout masks of the whole graph depend on."""
    rows = structure.sources
    row_id = numbering.nodes[rows.node].add_(rows.relation, alpha=incoming.num_nodes)
    return SampledEdges(source, relation, edge_id, structure._replace(row_id=row_id, edge_id=edge_id))
