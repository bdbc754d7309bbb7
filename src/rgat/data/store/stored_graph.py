"""Open a store: a graph whose arrays stay on the disk until they are used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rgat.data.rdf.graph import all_relation_names, relational_graph
from rgat.data.rdf.labels import NodeLabels
from rgat.data.rdf.reader import Triples, sort_triples
from rgat.data.store.arrays import as_tensor, map_array
from rgat.data.store.manifest import FEATURE_TYPES, Manifest, check_contents, read_manifest
from rgat.data.store.names import NodeNames, NumberedNames
from rgat.graph import RelationalGraph
from rgat.incoming import IncomingEdges


@dataclass(frozen=True, eq=False)
class StoredGraph:
    """A graph in memory-mapped files, which a sampler reads without loading them.

    Its tensors must not be written to. A pickled store is opened again by its path.

    Attributes:
        path: the folder.
        mapped: the incoming edges of every node as the files have them, with inverses and self-loops where the store
            has them. Loops read ids without checking each, so use ``incoming``, which is verified.
        node_names: names of the nodes, decoded on demand; ``find(name)`` returns a node's id.
        relation_names: names of the relations, with inverses and self-loops.
        x: node features ``[N, F]``, or None.
        labels: labels, or None.
        manifest: sizes, options and provenance.

    Examples:
        >>> import numpy as np
        >>> import torch
        >>> from rgat.data import StoreWriter, open_store
        >>> from rgat.sampling import NeighborSampler
        >>> with StoreWriter("store", nodes=4, relation_names=["cites"]) as store:
        ...     store.add(np.array([0, 1]), np.array([0, 0]), np.array([2, 3]))
        >>> NeighborSampler(open_store("store"), fanouts=[5]).sample(torch.tensor([2])).nodes
        tensor([2, 0])
    """

    path: Path
    mapped: IncomingEdges = field(repr=False)
    node_names: NodeNames | NumberedNames = field(repr=False)
    relation_names: tuple[str, ...] = field(repr=False)
    x: Tensor | None = field(repr=False)
    labels: NodeLabels | None = field(repr=False)
    manifest: Manifest = field(repr=False)
    _verified: list[bool] = field(default_factory=list, repr=False, init=False)

    @property
    def incoming(self) -> IncomingEdges:
        """The incoming edges of every node; the first use reads all files and raises if one has changed."""
        if not self._verified:
            self.verify()
        return self.mapped

    @property
    def num_nodes(self) -> int:
        return self.manifest.num_nodes

    @property
    def num_edges(self) -> int:
        return self.manifest.num_edges

    @property
    def num_relations(self) -> int:
        return len(self.relation_names)

    @property
    def num_bytes(self) -> int:
        """Size of all arrays on the disk."""
        return sum(file.bytes for file in self.manifest.files.values())

    @property
    def provenance(self) -> dict[str, Any]:
        """Where the data come from."""
        return self.manifest.provenance

    def to_triples(self) -> Triples:
        """Return the edges without inverses and self-loops, and all names, in memory."""
        incoming = self.incoming
        num_groups = incoming.node_ptr.diff()
        target = torch.arange(self.num_nodes).repeat_interleave(num_groups)
        sizes = incoming.group_ptr.diff()
        relation = incoming.group_relation.long()
        own = relation < len(self.manifest.relation_names)
        edges = torch.stack(
            [
                incoming.source[own.repeat_interleave(sizes)].long(),
                relation[own].repeat_interleave(sizes[own]),
                target[own].repeat_interleave(sizes[own]),
            ],
            dim=1,
        ).numpy()
        names = list(self.manifest.relation_names)
        return Triples(list(self.node_names), names, sort_triples(edges, self.num_nodes, len(names)))

    def to_graph(self) -> RelationalGraph:
        """Return the graph in memory; it is prepared at its first use."""
        return relational_graph(self.to_triples(), self.manifest.inverses, self.manifest.self_loops)

    def verify(self) -> None:
        """Read all files; raise a ValueError if one has changed since it was written."""
        self._verified.clear()
        check_contents(self.path, self.manifest)
        self._verified.append(True)

    def __reduce__(self) -> tuple[Any, ...]:
        return open_store, (self.path,)


def open_store(path: str | PathLike[str]) -> StoredGraph:
    r"""Open a store that `rgat data convert` or `rgat.data.StoreWriter` wrote; this takes milliseconds.

    Only the manifest is read. Its version and the sizes of all files are checked, their contents when edges are first
    used, or by `StoredGraph.verify`.

    Examples:
        >>> import rgat
        >>> triple = "<http://x.example/a> <http://x.example/cites> <http://x.example/b> .\n"
        >>> with open("dump.nt", "w") as file:
        ...     _ = file.write(triple)
        >>> _ = rgat.data.convert("dump.nt", "store")
        >>> rgat.data.open_store("store").node_names.find("<http://x.example/b>")
        1
    """
    path = Path(path).absolute()
    manifest = read_manifest(path)
    return _Opening(path, manifest).open()


def find_store(files: str | PathLike[str] | Sequence[str | PathLike[str]]) -> StoredGraph | None:
    """Open the store among some files, which must be alone; None if all are files."""
    paths = [Path(files)] if isinstance(files, (str, PathLike)) else [Path(file) for file in files]
    stores = [path for path in paths if path.is_dir()]
    if stores and len(paths) > 1:
        raise ValueError(f"a store must be given alone, got {stores[0]} and {len(paths) - 1} more; convert all to one")
    return open_store(stores[0]) if stores else None


class _Opening:
    """The arrays of a store whose manifest is read."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path, self.manifest = path, manifest

    def array(self, name: str, dtype: Any, *shape: int) -> np.ndarray[Any, Any]:
        file = self.path / f"{name}.npy"
        try:
            if file.name not in self.manifest.files:
                raise ValueError("the manifest does not list it")
            return map_array(file, dtype, shape)
        except ValueError as error:
            raise ValueError(f"{file}: is damaged: {error}; write it again with `rgat data convert`") from error

    def tensor(self, name: str, dtype: Any, *shape: int) -> Tensor:
        return as_tensor(self.array(name, dtype, *shape))

    def open(self) -> StoredGraph:
        m = self.manifest
        incoming = IncomingEdges(
            node_ptr=self.tensor("node_ptr", np.int64, m.num_nodes + 1),
            group_ptr=self.tensor("group_ptr", np.int64, m.num_groups + 1),
            group_relation=self.tensor("group_relation", np.int32, m.num_groups),
            source=self.tensor("source", np.int32, m.num_edges),
        )
        x = None
        if m.num_features is not None:
            x = self.tensor("x", FEATURE_TYPES[m.feature_type], m.num_nodes, m.num_features)
            x = x.view(torch.bfloat16) if m.feature_type == "bfloat16" else x
        names = all_relation_names(m.relation_names, m.inverses, m.self_loops)
        return StoredGraph(self.path, incoming, self.node_names(), names, x, self.labels(), m)

    def node_names(self) -> NodeNames | NumberedNames:
        m = self.manifest
        if m.name_bytes is None:
            return NumberedNames(m.num_nodes)
        return NodeNames(
            self.array("node_names", np.uint8, m.name_bytes), self.array("name_ptr", np.int64, m.num_nodes + 1)
        )

    def labels(self) -> NodeLabels | None:
        m = self.manifest
        if m.classes is None:
            return None
        return NodeLabels(
            nodes=self.tensor("label_node", np.int64, m.num_labels),
            classes=self.tensor("label_class", np.int64, m.num_labels),
            class_names=tuple(m.classes),
            parts=self.tensor("label_part", np.int8, m.num_labels),
        )
