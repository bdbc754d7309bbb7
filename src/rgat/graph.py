"""A graph with typed edges (section 2.1, "Layer input and output") and everything derived from its edges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from rgat.checks import check_graph_shapes, check_ids, check_stored
from rgat.structure import Rows, Structure, derive, outside


class RelationalGraph:
    r"""A graph of ``N`` nodes whose ``E`` edges each have one of ``R`` relation types.

    ``edge_index[0]`` holds the sources $j$, ``edge_index[1]`` the targets $i$; messages flow from source to target.
    Parallel edges count separately. Nothing computed from a graph depends on the order of its edges.

    Args:
        edge_index: ``[2, E]`` integer node ids.
        edge_type: ``[E]`` integer relation ids.
        num_nodes: ``N``.
        num_relations: ``R``.
        edge_attr: optional ``[E, edge_dim]`` edge features.
        batch: optional ``[N]`` graph id of each node, for several graphs in one.
        num_graphs: number of graphs of the batch; by default up to the last one that has a node.
        num_targets: edges end in the first ``num_targets`` nodes, and layers return outputs of these alone; by default
            all nodes. Samples of a larger graph are such graphs (`rgat.sampling`).
        validate: check ids here, and features for NaN here and in every eager call of a layer (on a GPU the first one
            with these features).

    The graph copies its edges and graph ids; changing or replacing its own is an error at the next use in eager mode.
    Edge features are not copied: they may be learned.

    Attributes:
        graph_attr: descriptors of each graph of a batch, ``[G, D]``, which a model may read beside the graph.
        counted: in a padded batch, 1 for each of its nodes and 0 for padding, which batch statistics leave out.
        node_ids: in a sample of a larger graph, the id of each node there.
        padding: in a padded sample, whether each node is padding and its id without meaning.
        plans: how layers of some sizes are best computed on this graph, as eager calls found out.

    Examples:
        >>> import torch
        >>> from rgat import RelationalGraph
        >>> RelationalGraph(torch.tensor([[0, 1], [1, 2]]), torch.tensor([0, 1]), num_nodes=3, num_relations=2)
        RelationalGraph(num_nodes=3, num_edges=2, num_relations=2)
    """

    padding: Tensor | None = None
    graph_attr: Tensor | None = None

    def __init__(
        self,
        edge_index: Tensor,
        edge_type: Tensor,
        *,
        num_nodes: int,
        num_relations: int,
        edge_attr: Tensor | None = None,
        batch: Tensor | None = None,
        num_graphs: int | None = None,
        num_targets: int | None = None,
        validate: bool = True,
    ) -> None:
        num_targets = num_nodes if num_targets is None else num_targets
        check_graph_shapes(edge_index, edge_type, num_nodes, num_relations, edge_attr, batch, num_graphs, num_targets)
        with outside():
            self.edge_index = edge_index.to(torch.int64, copy=True)
            self.edge_type = edge_type.to(torch.int64, copy=True)
            self.batch = None if batch is None else batch.to(torch.int64, copy=True)
        self.edge_attr = edge_attr
        self.validate = validate
        self._structure: Structure | None = None
        self.counted: Tensor | None = None
        self.node_ids: Tensor | None = None
        self.plans: dict[Any, Any] = {}
        self._num_nodes = num_nodes
        self._num_relations = num_relations
        self._num_targets = num_targets
        if num_graphs is None:
            num_graphs = 1 if batch is None else int(batch.max()) + 1 if len(batch) else 0
        self._num_graphs = num_graphs
        if validate:
            self._check_all_ids()
            if edge_attr is not None and edge_attr.isnan().any():
                raise ValueError("`edge_attr` must not contain NaN; clean the edge features first")
        self._seal()

    def _check_all_ids(self) -> None:
        check_ids("edge_index", self.edge_index, self._num_nodes, "num_nodes")
        check_ids("edge_index[1]", self.edge_index[1], self._num_targets, "num_targets")
        check_ids("edge_type", self.edge_type, self._num_relations, "num_relations")
        check_ids("batch", self.graph_ids(), self._num_graphs, "num_graphs")

    def _seal(self) -> None:
        """Note the tensors that determine the structure, and their versions."""
        self._sealed: list[tuple[Tensor | None, int]] | None = None
        if not torch.compiler.is_compiling():
            tensors = (self.edge_index, self.edge_type, self.batch)
            # PyTorch has no version of tensors made in inference mode.
            self._sealed = [(t, -1 if t is None or t.is_inference() else t._version) for t in tensors]

    def check_unchanged(self) -> None:
        """Raise if `edge_index`, `edge_type` or `batch` is not what it was when the graph was built."""
        if self._sealed is None or torch.compiler.is_compiling():
            return
        for now, (then, version) in zip((self.edge_index, self.edge_type, self.batch), self._sealed, strict=True):
            if now is not then or (now is not None and version >= 0 and now._version != version):
                raise RuntimeError(
                    "a graph's `edge_index`, `edge_type` and `batch` must not be changed, and one of them was; "
                    "build a new RelationalGraph instead"
                )

    @property
    def num_nodes(self) -> int:
        # Once prepared, sizes come from shapes, so that an exported program is not pinned to one graph.
        return self._num_nodes if self._structure is None else self._structure.num_nodes

    @property
    def num_targets(self) -> int:
        return self._num_targets if self._structure is None else self._structure.num_targets

    @property
    def num_edges(self) -> int:
        return self.edge_type.shape[0]

    @property
    def num_relations(self) -> int:
        return self._num_relations if self._structure is None else self._structure.sources.relation_ptr.shape[0] - 1

    @property
    def num_graphs(self) -> int:
        return self._num_graphs if self._structure is None else self._structure.graph_sizes.shape[0]

    @property
    def device(self) -> torch.device:
        return self.edge_index.device

    @property
    def is_prepared(self) -> bool:
        return self._structure is not None

    @property
    def structure(self) -> Structure:
        """Return the derived structure, which is computed on first use."""
        self.check_unchanged()
        if self._structure is None:
            if torch.compiler.is_compiling():
                raise RuntimeError(
                    "a graph must be prepared before it enters compiled code; call `graph.prepare()` first"
                )
            with outside():
                sizes = (self.num_nodes, self.num_relations, self.num_targets)
                graph_sizes = self.graph_ids().bincount(minlength=self.num_graphs)
                self._structure = derive(self.edge_index, self.edge_type, self.edge_attr, sizes, graph_sizes)
        return self._structure

    def prepare(self) -> RelationalGraph:
        """Compute the derived structure now, once, and return the graph."""
        _ = self.structure
        return self

    def to(self, device: torch.device | str) -> RelationalGraph:
        """Return the graph on another device; a prepared graph stays prepared."""
        with outside():
            return self._map(lambda tensor: tensor.to(torch.device(device)))

    def with_inverses(self) -> RelationalGraph:
        """Add for every edge the reverse edge, under relation ``r + R``; the result has ``2 R`` relations."""
        if self.num_targets < self.num_nodes:
            raise ValueError(
                f"a graph whose edges end in {self.num_targets} of {self.num_nodes} nodes, such as a sample, must not "
                "get inverse edges; add them to the whole graph, then sample"
            )
        edge_attr = None if self.edge_attr is None else torch.cat([self.edge_attr, self.edge_attr])
        edge_index = torch.cat([self.edge_index, self.edge_index.flip(0)], dim=1)
        edge_type = torch.cat([self.edge_type, self.edge_type + self.num_relations])
        return self._with(edge_index, edge_type, edge_attr, 2 * self.num_relations)

    def with_self_loops(self) -> RelationalGraph:
        """Add one edge from every target to itself, under a new relation ``R``, with zero edge features."""
        loop = torch.arange(self.num_targets, device=self.device)
        edge_attr = self.edge_attr
        if edge_attr is not None:
            edge_attr = torch.cat([edge_attr, edge_attr.new_zeros(self.num_targets, edge_attr.shape[1])])
        edge_index = torch.cat([self.edge_index, loop.expand(2, -1)], dim=1)
        edge_type = torch.cat([self.edge_type, torch.full_like(loop, self.num_relations)])
        return self._with(edge_index, edge_type, edge_attr, self.num_relations + 1)

    def receptive_fields(self, nodes: Tensor, layers: int = 2) -> tuple[RelationalGraph, ...]:
        """Return the receptive fields of some nodes, one graph for each of so many layers.

        The last has the edges into ``nodes``, the one before it those into ``nodes`` and their sources, and so on; all
        have all nodes. Layers that see these instead of the whole graph give ``nodes`` the same outputs, and the same
        gradients, with less work. Where nodes depend on one another in other ways, by batch normalisation in training,
        this does not hold; nor with edge dropout, whose masks depend on an edge's position among all edges.
        """
        needed = torch.zeros(self.num_nodes, dtype=torch.bool, device=self.device)
        needed[nodes.flatten()] = True
        graphs: list[RelationalGraph] = []
        for _ in range(layers):
            kept = needed[self.edge_index[1]].nonzero().squeeze(1)
            graphs.insert(0, self.with_edges(kept))
            needed[self.edge_index[0, kept]] = True
        return tuple(graphs)

    def with_edges(self, kept: Tensor) -> RelationalGraph:
        """Return a graph with the same nodes and some of the edges."""
        edge_attr = None if self.edge_attr is None else self.edge_attr[kept]
        return self._with(self.edge_index[:, kept], self.edge_type[kept], edge_attr, self.num_relations)

    @staticmethod
    def from_structure(
        edge_index: Tensor, edge_type: Tensor, structure: Structure, edge_attr: Tensor | None, node_ids: Tensor | None
    ) -> RelationalGraph:
        """Return a prepared graph of sorted edges whose structure is known; nothing is checked."""
        graph = _unflatten([edge_index, edge_type, *structure.leaves()], ())
        graph.edge_attr, graph.node_ids = edge_attr, node_ids
        graph._seal()
        return graph

    @staticmethod
    def collate(graphs: Sequence[RelationalGraph]) -> RelationalGraph:
        """Put graphs of the same relations side by side into one graph that remembers which node came from which.

        All nodes are targets, also those that were not in a graph with fewer targets than nodes.
        """
        if len(graphs) == 0:
            raise ValueError("`collate` needs at least one graph, got an empty list")
        relations = {graph.num_relations for graph in graphs}
        if len(relations) > 1:
            raise ValueError(f"all graphs of a batch must have the same `num_relations`, got {sorted(relations)}")
        attributes = [graph.edge_attr for graph in graphs if graph.edge_attr is not None]
        widths = sorted({attribute.shape[1] for attribute in attributes})
        if len(widths) > 1:
            raise ValueError(f"all graphs of a batch must have the same number of edge features, got {widths}")
        if len(attributes) not in (0, len(graphs)):
            raise ValueError(
                f"all graphs of a batch or none must have `edge_attr`, got {len(attributes)} of {len(graphs)}"
            )
        num_nodes = num_graphs = 0
        edges, batches = [], []
        for graph in graphs:
            graph.check_unchanged()
            edges.append(graph.edge_index + num_nodes)
            batches.append(graph.graph_ids() + num_graphs)
            num_nodes += graph.num_nodes
            num_graphs += graph.num_graphs
        batch = RelationalGraph(
            torch.cat(edges, dim=1),
            torch.cat([graph.edge_type for graph in graphs]),
            num_nodes=num_nodes,
            num_relations=graphs[0].num_relations,
            edge_attr=torch.cat(attributes) if attributes else None,
            batch=torch.cat(batches),
            num_graphs=num_graphs,
            validate=False,  # the parts were checked
        )
        batch.validate = all(graph.validate for graph in graphs)
        described = [graph.graph_attr for graph in graphs if graph.graph_attr is not None]
        batch.graph_attr = torch.cat(described) if len(described) == len(graphs) else None
        if any(graph.node_ids is not None for graph in graphs):
            numbers = [torch.arange(graph.num_nodes, device=graph.device) for graph in graphs]
            pairs = zip((graph.node_ids for graph in graphs), numbers, strict=True)
            batch.node_ids = torch.cat([number if own is None else own for own, number in pairs])
        return batch

    def __copy__(self) -> RelationalGraph:
        new: RelationalGraph = object.__new__(type(self))
        new.__dict__ = self.__dict__ | {"plans": {}}
        return new

    def __getstate__(self) -> dict[str, Any]:
        self.check_unchanged()
        own = {name: value for name, value in self.__dict__.items() if name not in _INTERNAL}  # set by the caller
        state = own | {name: getattr(self, name) for name in _STATE} | {"prepared": self.is_prepared}
        s = self._structure
        if s is not None and s.row_id is not None and s.edge_id is not None:
            state |= {"row_id": s.row_id, "edge_id": s.edge_id[s.order.long().argsort()]}  # in the order of the edges
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        # A file may say anything, so ids are checked and the structure is derived again, never taken from it.
        # Earlier versions stored `_num_nodes` and the like.
        stored: dict[str, Any] = {name: state.get(name, state.get(f"_{name}")) for name in _STATE}
        names = ("counted", "node_ids", "graph_attr", "validate")
        counted, node_ids, described, validate = (stored.pop(name) for name in names)
        if not all(isinstance(stored[name], Tensor) for name in _FIXED):
            raise ValueError("a stored graph must have the tensors `edge_index` and `edge_type`; build the graph again")
        RelationalGraph.__init__(self, **stored, validate=bool(validate))
        self._check_all_ids()
        self.__dict__ |= {name: state[name] for name in state.keys() - _INTERNAL if not hasattr(RelationalGraph, name)}
        self.counted = check_stored(counted, "counted", self.num_targets)
        ids = check_stored(node_ids, "node_ids", self.num_nodes)
        self.node_ids = None if ids is None else ids.long()
        self.graph_attr = check_stored(described, "graph_attr", self.num_graphs, dims=2)
        if state.get("prepared") or state.get("_structure") is not None:
            rows = self.structure.sources.node.shape[0]
            row_id = check_stored(state.get("row_id"), "row_id", rows)
            edge_id = check_stored(state.get("edge_id"), "edge_id", self.num_edges)
            if row_id is not None and edge_id is not None:
                edge_id = edge_id[self.structure.order.long()]
                self._structure = self.structure._replace(row_id=row_id.long(), edge_id=edge_id.long())

    def __repr__(self) -> str:
        parts = [f"num_{name}={getattr(self, f'num_{name}'):,}" for name in ("nodes", "edges", "relations")]
        if self.batch is not None:
            parts.append(f"num_graphs={self.num_graphs:,}")
        if self.edge_attr is not None:
            parts.append(f"edge_dim={self.edge_attr.shape[1]}")
        if self.is_prepared:
            parts.append("prepared")
        return f"RelationalGraph({', '.join(parts)})"

    @property
    def graph_sizes(self) -> Tensor:
        """The number of nodes of each graph, [G]."""
        return self.structure.graph_sizes

    def graph_ids(self) -> Tensor:
        """Return the graph id of each node, [N]."""
        return torch.zeros(self.num_nodes, dtype=torch.long, device=self.device) if self.batch is None else self.batch

    def _with(
        self, edge_index: Tensor, edge_type: Tensor, edge_attr: Tensor | None, num_relations: int
    ) -> RelationalGraph:
        """Return a graph with the same nodes and other edges, which follow from checked ones."""
        self.check_unchanged()
        new = RelationalGraph(
            edge_index,
            edge_type,
            num_nodes=self.num_nodes,
            num_relations=num_relations,
            edge_attr=edge_attr,
            batch=self.batch,
            num_graphs=self.num_graphs,
            num_targets=self.num_targets,
            validate=False,
        )
        new.validate, new.counted, new.node_ids = self.validate, self.counted, self.node_ids
        new.graph_attr = self.graph_attr
        return new

    def _map(self, function: Any) -> RelationalGraph:
        self.check_unchanged()
        new: RelationalGraph = object.__new__(RelationalGraph)
        new.edge_index = function(self.edge_index)
        new.edge_type = function(self.edge_type)
        new.edge_attr = None if self.edge_attr is None else function(self.edge_attr)
        new.batch = None if self.batch is None else function(self.batch)
        new.validate = self.validate
        new._num_nodes, new._num_relations = self.num_nodes, self.num_relations
        new._num_graphs, new._num_targets = self.num_graphs, self.num_targets
        new.counted = None if self.counted is None else function(self.counted)
        new.node_ids = None if self.node_ids is None else function(self.node_ids)
        new.graph_attr = None if self.graph_attr is None else function(self.graph_attr)
        new.plans = {}
        new._structure = None
        if self._structure is not None:
            new._structure = Structure.from_leaves([function(leaf) for leaf in self._structure.leaves()])
        new._seal()
        return new


_FIXED = ("edge_index", "edge_type")
_OPTIONAL = ("edge_attr", "batch", "node_ids", "graph_attr")
_SIZES = ("num_nodes", "num_relations", "num_graphs", "num_targets")
_STATE = (*_FIXED, *_OPTIONAL, *_SIZES, "counted", "validate")  # what a file holds
_INTERNAL = {
    *_STATE, *(f"_{size}" for size in _SIZES), "row_id", "edge_id", "prepared", "plans", "_structure", "_complete",
    "_sealed",
}  # fmt: skip


def _flatten(graph: RelationalGraph) -> tuple[list[Tensor], tuple[str, ...]]:
    present = tuple(name for name in _OPTIONAL if getattr(graph, name) is not None)
    tensors = [getattr(graph, name) for name in _FIXED + present]
    return tensors + graph.structure.leaves(), present


def _flatten_with_keys(graph: RelationalGraph) -> tuple[list[tuple[Any, Any]], tuple[str, ...]]:
    # Numbers, not names: the guards of `torch.export` mistake a name for another that begins with it.
    leaves, present = _flatten(graph)
    return [(pytree.SequenceKey(place), leaf) for place, leaf in enumerate(leaves)], present


def _unflatten(leaves: Any, present: tuple[str, ...]) -> RelationalGraph:
    leaves = list(leaves)
    graph: RelationalGraph = object.__new__(RelationalGraph)
    graph.edge_attr = graph.batch = graph.node_ids = graph.counted = None
    for name in (*_FIXED, *present):
        setattr(graph, name, leaves.pop(0))
    graph._structure = Structure.from_leaves(leaves)
    graph.plans = {}
    graph._num_nodes = graph._num_relations = graph._num_graphs = graph._num_targets = -1  # sizes come from shapes
    graph.validate, graph._sealed = False, None
    return graph


pytree.register_pytree_node(
    RelationalGraph,
    _flatten,
    _unflatten,
    serialized_type_name="rgat.RelationalGraph",
    to_dumpable_context=list,
    from_dumpable_context=tuple,
    flatten_with_keys_fn=_flatten_with_keys,
)

# Plain containers of tensors: `torch.load` may build them without running anybody's code.
# Files of earlier versions name them by the module that they were in.
_OLD_NAMES = [(Structure, "rgat.graph.Structure"), (Rows, "rgat.graph.Rows")]
torch.serialization.add_safe_globals([RelationalGraph, Structure, Rows, *_OLD_NAMES])
