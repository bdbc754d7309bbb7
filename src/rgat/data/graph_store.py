"""Many small graphs, prepared once and stored flat, so that a batch of them is assembled without sorting."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rgat.checks import INT32_LIMIT, check_ids
from rgat.graph import RelationalGraph
from rgat.structure import Rows, Structure

Array = NDArray[Any]

# Nodes and edges of one batch without gradients: some hundred MB, which keeps a GPU busy.
AT_ONCE = 2**17


@dataclass(frozen=True)
class GraphStore:
    """Many graphs, stored flat: the nodes of all graphs are numbered one graph after the other, and so are the edges.

    A store is on the CPU; its batches may be moved.

    Examples:
        >>> import torch
        >>> from rgat.data import GraphStore
        >>> store = GraphStore(
        ...     x=torch.randn(5, 8),
        ...     edge_index=torch.tensor([[0, 2, 3], [1, 3, 4]]),
        ...     edge_type=torch.tensor([0, 0, 1]),
        ...     node_ptr=torch.tensor([0, 2, 5]),
        ...     edge_ptr=torch.tensor([0, 1, 3]),
        ...     num_relations=2,
        ... )
        >>> x, batch = store.batch(torch.tensor([1, 0]))
        >>> batch
        RelationalGraph(num_nodes=5, num_edges=3, num_relations=2, num_graphs=2, prepared)
    """

    x: Tensor  # [nodes, F]; int8, for small integers, becomes float32 in a batch
    edge_index: Tensor  # [2, edges], flat node ids
    edge_type: Tensor  # [edges]
    node_ptr: Tensor  # [G + 1]
    edge_ptr: Tensor  # [G + 1]
    num_relations: int
    edge_attr: Tensor | None = None  # [edges, edge_dim]
    graph_attr: Tensor | None = None  # [G, D], descriptors of each graph

    def __post_init__(self) -> None:
        for name in ("edge_index", "edge_type", "node_ptr", "edge_ptr"):  # protect it from later changes by the caller
            object.__setattr__(self, name, getattr(self, name).clone())

    def __len__(self) -> int:
        return len(self.node_ptr) - 1

    def __getitem__(self, graph: int) -> RelationalGraph:
        """Return one graph."""
        if not -len(self) <= graph < len(self):
            raise IndexError(f"graph {graph} of {len(self)}")
        return self.batch(torch.tensor([graph % len(self)]))[1]

    def select(self, graphs: Tensor) -> GraphStore:
        """Return a store of the given graphs."""
        nodes, node_ptr, shift = _selected(self.node_ptr, graphs)
        edges, edge_ptr, _ = _selected(self.edge_ptr, graphs)
        edge_index = self.edge_index[:, edges] + shift.repeat_interleave(edge_ptr.diff())
        edge_attr = None if self.edge_attr is None else self.edge_attr[edges]
        fields = (self.x[nodes], edge_index, self.edge_type[edges], node_ptr, edge_ptr, self.num_relations, edge_attr)
        return GraphStore(*fields, None if self.graph_attr is None else self.graph_attr[graphs])

    @property
    def sizes(self) -> Tensor:
        """The number of nodes and edges of each graph, ``[G]``."""
        return self.node_ptr.diff() + self.edge_ptr.diff()

    def split(self, graphs: Tensor, most: int = AT_ONCE) -> Iterator[Tensor]:
        """Yield consecutive graphs with at most ``most`` nodes and edges together, but at least one graph.

        An empty list yields one empty list, so that there is always a batch.
        """
        ends, start = self.sizes[graphs].cumsum(0), 0
        while start < len(graphs) or start == 0:
            before = int(ends[start - 1]) if start else 0
            end = max(int(torch.searchsorted(ends, before + most, right=True)), start + 1)
            yield graphs[start:end]
            start = end

    def batch(self, graphs: Tensor) -> tuple[Tensor, RelationalGraph]:
        """Return node features and one prepared graph of the given graphs, in the given order.

        The first batch prepares the whole store; later batches only copy slices, which costs less than the layers of a
        training step.

        Args:
            graphs: ids of the graphs, in any order; an id may occur several times.
        """
        check_ids("graphs", graphs, len(self), "the number of graphs")
        with torch.inference_mode(False):  # a batch made in inference mode may be used in training later
            parts = self.prepared.assemble(graphs.long().numpy())
            edge_type = self.edge_type.index_select(0, parts.edges)
        batch = RelationalGraph(
            parts.edge_index,
            edge_type,
            num_nodes=len(parts.nodes),
            num_relations=self.num_relations,
            edge_attr=None if self.edge_attr is None else self.edge_attr.index_select(0, parts.edges),
            batch=parts.batch,
            num_graphs=len(graphs),
            validate=False,  # the store was checked when it was prepared
        )
        batch._structure = parts.structure
        if self.graph_attr is not None:
            batch.graph_attr = self.graph_attr.index_select(0, graphs).float()
        x = self.x.index_select(0, parts.nodes)
        return x if x.is_floating_point() else x.float(), batch

    @cached_property
    def prepared(self) -> PreparedStore:
        """The structure of all graphs, derived at the first use."""
        return _prepare(self)


def concatenate(stores: Sequence[GraphStore]) -> GraphStore:
    """Return one store of the graphs of several with the same relations and features."""
    nodes = np.cumsum([0, *(len(store.x) for store in stores)]).tolist()
    edges = np.cumsum([0, *(len(store.edge_type) for store in stores)]).tolist()
    first, attributes = stores[0], [store.edge_attr for store in stores if store.edge_attr is not None]
    return GraphStore(
        x=torch.cat([store.x for store in stores]),
        edge_index=torch.cat([store.edge_index + shift for store, shift in zip(stores, nodes, strict=False)], 1),
        edge_type=torch.cat([store.edge_type for store in stores]),
        node_ptr=torch.cat(
            [nodes_of.node_ptr[:-1] + shift for nodes_of, shift in zip(stores, nodes, strict=False)]
            + [torch.tensor(nodes[-1:])]
        ),
        edge_ptr=torch.cat(
            [edges_of.edge_ptr[:-1] + shift for edges_of, shift in zip(stores, edges, strict=False)]
            + [torch.tensor(edges[-1:])]
        ),
        num_relations=first.num_relations,
        edge_attr=torch.cat(attributes) if attributes else None,
    )


def _selected(ptr: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the entries of the chosen segments in order, pointers to these, and the shift of each segment."""
    start, sizes = ptr[chosen], ptr[chosen + 1] - ptr[chosen]
    new_ptr = torch.cat([ptr.new_zeros(1), sizes.cumsum(0)])
    shift = new_ptr[:-1] - start
    return torch.arange(int(new_ptr[-1])) - shift.repeat_interleave(sizes), new_ptr, shift


class _Field(NamedTuple):
    """An array over all graphs, cut into slices: one per graph, or one per graph and relation."""

    values: Tensor
    ptr: Tensor  # slice k is ptr[k]:ptr[k + 1], graph after graph; a pointer field has one more entry after the last
    counts: str  # the field that the values index; they shift with its slices
    by_relation: bool = False


class _Parts(NamedTuple):
    """The parts of a batch that are assembled from slices."""

    nodes: Tensor  # [N] indices in the store
    edges: Tensor  # [E] indices in the store
    edge_index: Tensor  # [2, E]
    batch: Tensor  # [N]
    structure: Structure


def _prepare(store: GraphStore) -> PreparedStore:
    """Derive the structure of all graphs at once.

    Each graph gets separate relation ids, so that rows, which are sorted by relation first, are in the order of graphs.
    """
    num_graphs, num_lines = len(store), max(store.num_relations, 1)
    check_ids("edge_type", store.edge_type, store.num_relations, "num_relations")
    graph_of_node, graph_of_edge = (
        torch.arange(num_graphs).repeat_interleave(ptr.diff()) for ptr in (store.node_ptr, store.edge_ptr)
    )
    graph = RelationalGraph(
        store.edge_index,
        graph_of_edge * num_lines + store.edge_type,
        num_nodes=len(graph_of_node),
        num_relations=num_graphs * num_lines,
        edge_attr=store.edge_attr,
    )
    if (graph_of_node[graph.edge_index] != graph_of_edge).any():
        raise ValueError(
            "the edges `edge_ptr[g]:edge_ptr[g + 1]` of a store must join the nodes `node_ptr[g]:node_ptr[g + 1]`, got "
            "an edge that leaves its graph; add `node_ptr[g]` to node ids that start at 0 in every graph"
        )
    return PreparedStore(_fields(graph, store.node_ptr, store.edge_ptr, num_lines), store.num_relations)


def _fields(graph: RelationalGraph, nodes: Tensor, edges: Tensor, num_lines: int) -> dict[str, _Field]:
    """Return the sliced fields, in the order of a batch's memory."""
    s = graph.structure
    source, target = graph.edge_index
    sources, targets = s.sources.relation_ptr, s.targets.relation_ptr
    source_rows, groups = sources[::num_lines], targets[::num_lines]
    return {
        "edge_source": _Field(source, edges, counts="target_ptr"),
        "edge_target": _Field(target, edges, counts="target_ptr"),
        "order": _Field(s.order, edges, counts="order"),
        "target": _Field(s.target, edges, counts="target_ptr"),
        "group": _Field(s.group, edges, counts="targets.by_node"),
        "source_row": _Field(s.source_row, edges, counts="sources.by_node"),
        "sources.by_node": _Field(s.sources.by_node, source_rows, counts="sources.by_node"),
        "targets.by_node": _Field(s.targets.by_node, groups, counts="targets.by_node"),
        "target_ptr": _Field(s.target_ptr, nodes, counts="order"),
        "sources.node_ptr": _Field(s.sources.node_ptr, nodes, counts="sources.by_node"),
        "targets.node_ptr": _Field(s.targets.node_ptr, nodes, counts="targets.by_node"),
        "group_ptr": _Field(s.group_ptr, groups, counts="order"),
        "sources.node": _Field(s.sources.node, sources, counts="target_ptr", by_relation=True),
        "targets.node": _Field(s.targets.node, targets, counts="target_ptr", by_relation=True),
        "source_ptr": _Field(s.source_ptr, sources, counts="by_source", by_relation=True),
        "by_source": _Field(s.by_source, s.source_ptr[sources.long()], counts="order", by_relation=True),
    }


class PreparedStore:
    """All fields of all graphs in one array, and a table with the start and size of each slice.

    The table has one line per field, or per relation of a field that is sliced by relation, and one column per graph,
    then a column for the last entries of pointers. A batch takes some columns; its memory is their slices, line by
    line. So a field is in the order of relations, and within a relation in the order of graphs, as rows are sorted. An
    exclusive sum over the table gives the new start of every slice, and so the shift of every value that indexes nodes,
    edges or rows.
    """

    def __init__(self, fields: dict[str, _Field], num_relations: int) -> None:
        self.num_relations = num_relations
        lines = [max(num_relations, 1) if field.by_relation else 1 for field in fields.values()]
        first = np.cumsum(lines) - lines
        self.line = dict(zip(fields, first.tolist(), strict=True))  # the first line of each field
        self.first: Array = first.repeat(lines)  # per line: the first line of its field
        self.counts = np.concatenate(  # per line: the line whose slices the values index
            [
                self.line[field.counts] + np.arange(count) * fields[field.counts].by_relation
                for field, count in zip(fields.values(), lines, strict=True)
            ]
        )
        tables = [_table(field, count) for field, count in zip(fields.values(), lines, strict=True)]
        size, start = (np.concatenate(parts, axis=1) for parts in zip(*tables, strict=True))  # [G + 1, lines]
        per_graph = ("target_ptr", "order", "sources.by_node", "targets.by_node")
        self.sizes = size[:-1, [self.line[name] for name in per_graph]]  # nodes, edges, rows of sources and targets
        lengths = [len(field.values) for field in fields.values()]
        base = (np.cumsum(lengths) - lengths).repeat(lines)
        # All slices of a graph are adjacent in memory, and so are its table entries, so a batch reads few cache lines.
        offset = _exclusive_sum(size)
        order = _entries((start + base).ravel(), size.ravel())
        self.flat = torch.cat([field.values.int() for field in fields.values()])[order]
        self.table = np.stack([size, start, offset], axis=1)  # [G + 1, 3, lines]
        self.index_type = np.int32 if len(self.flat) < INT32_LIMIT else np.int64

    def assemble(self, graphs: Array) -> _Parts:
        """Copy the slices of the given graphs and shift their values."""
        chosen = np.concatenate([graphs, [len(self.table) - 1]])
        size, start, offset = self.table.take(chosen, axis=0).transpose(1, 2, 0).copy()  # [lines, G + 1]
        begin = _exclusive_sum(size)
        copies = size.ravel()
        index = np.arange(begin[-1, -1] + size[-1, -1], dtype=self.index_type)
        index += (offset - begin).ravel().astype(self.index_type).repeat(copies)
        memory = self.flat.index_select(0, torch.from_numpy(index))
        shift = begin - begin[:, 0].take(self.first)[:, None] - start  # of each slice within its field
        values = memory.numpy()  # shares memory
        values += shift.take(self.counts, axis=0).ravel().astype(np.int32).repeat(copies)
        self._renumber_rows(values, begin, size)
        return self._parts(memory, begin, size, start)

    def _renumber_rows(self, values: Array, begin: Array, size: Array) -> None:
        """Renumber rows, which are numbered by graph and then by relation, by relation and then by graph."""
        lines = slice(self.line["sources.node"], self.line["source_ptr"])
        shape = (2, -1, size.shape[1])  # sides, relations, graphs
        counts, begins = (table[lines].reshape(shape).swapaxes(1, 2) for table in (size, begin))
        shift = (begins - begins[:, :1, :1] - _exclusive_sum(counts)).ravel().astype(np.int32)
        new_id = shift.repeat(counts.ravel())  # of the source rows, then of the target rows
        new_id += np.arange(len(new_id), dtype=np.int32)
        first, middle, last = (
            int(begin[self.line[name], 0]) for name in ("source_row", "targets.by_node", "target_ptr")
        )
        num_targets = last - middle
        num_sources = len(new_id) - num_targets
        for rows, ids in ((values[first:middle], new_id[:num_sources]), (values[middle:last], new_id[num_sources:])):
            rows[:] = ids.take(rows)

    def _parts(self, memory: Tensor, begin: Array, size: Array, start: Array) -> _Parts:
        """Return a batch's memory as named fields, with those that follow from the table alone."""
        begins = [*begin[list(self.line.values()), 0].tolist(), len(memory)]
        lengths = [after - before for before, after in pairwise(begins)]
        field = dict(zip(self.line, memory.split_with_sizes(lengths), strict=True))
        sources, targets = self._rows(field, size)
        nodes, edges = self.line["target_ptr"], self.line["order"]
        graph_sizes = size[nodes, :-1].copy()
        structure = Structure(
            **{name: field[name] for name in Structure._fields if name in field},
            sources=sources,
            targets=targets,
            graph_sizes=torch.from_numpy(graph_sizes),
        )
        return _Parts(
            nodes=_entries(start[nodes, :-1], graph_sizes),
            edges=_entries(start[edges, :-1], size[edges, :-1]),
            edge_index=memory[: 2 * lengths[0]].view(2, lengths[0]).long(),
            batch=torch.from_numpy(np.arange(len(graph_sizes)).repeat(graph_sizes)),
            structure=structure,
        )

    def _rows(self, field: dict[str, Tensor], size: Array) -> list[Rows]:
        counts = size[self.line["sources.node"] : self.line["source_ptr"]].sum(axis=1).reshape(2, -1)
        relation_ptr = np.zeros((2, self.num_relations + 1), dtype=np.int32)
        counts[:, : self.num_relations].cumsum(axis=1, out=relation_ptr[:, 1:])
        relations = np.arange(counts.shape[1], dtype=np.int32)
        return [
            Rows(
                node=field[f"{side}.node"],
                relation=torch.from_numpy(relations.repeat(counts[number])),
                relation_ptr=torch.from_numpy(relation_ptr[number]),
                by_node=field[f"{side}.by_node"],
                node_ptr=field[f"{side}.node_ptr"],
            )
            for number, side in enumerate(("sources", "targets"))
        ]


def _table(field: _Field, lines: int) -> tuple[Array, Array]:
    """Return size and start of each slice of one field, [G + 1, lines]; the last slice holds the last pointer."""
    ptr = field.ptr.long().numpy()
    ends = np.full(lines - 1, ptr[-1])
    start = np.concatenate([ptr, ends]).reshape(-1, lines)
    size = np.concatenate([np.diff(ptr), ends * 0, [len(field.values) - ptr[-1]]]).reshape(-1, lines)
    return size, start


def _exclusive_sum(size: Array) -> Array:
    """Return where each slice begins if all are adjacent."""
    return size.cumsum().reshape(size.shape) - size


def _entries(start: Array, size: Array) -> Tensor:
    """Return the indices of all entries of the slices, one slice after the other."""
    entries = (start - _exclusive_sum(size)).repeat(size)
    entries += np.arange(len(entries))
    return torch.from_numpy(entries)
