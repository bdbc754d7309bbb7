"""Write a graph as a store, in memory that does not grow with the number of edges."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rgat.checks import INT32_LIMIT, check_count
from rgat.data.dataset import PARTS
from rgat.data.files import NewFolder
from rgat.data.store.arrays import ArrayWriter, map_array, write_array
from rgat.data.store.manifest import FEATURE_TYPES, NAME, Manifest, describe_files
from rgat.data.store.names import NodeNames, NumberedNames, write_names
from rgat.data.store.sorting import Ids, TripleSorter

MEMORY = 1 << 28  # bytes for sorting edges
_CHUNK = 1 << 20  # edges checked and packed at once


class StoreWriter:
    """Write a graph, given chunk by chunk in any order, as a store; duplicate edges are removed.

    Use it in a `with` block, or call `finish`. The store appears under its name when it is complete; an error or
    an interruption leaves nothing behind.

    Args:
        path: the folder of the store, which must be new or empty.
        nodes: the number of nodes, or their names, sorted and distinct.
        relation_names: names of the relations.
        inverses: add an inverse of every relation.
        self_loops: add a relation from every node to itself.
        memory: bytes for sorting; besides, some arrays have an element per node.
        provenance: where the data come from, to be kept in the store.
        needed: bytes that are needed on the disk, if known, to be named when it is full.

    Examples:
        >>> import numpy as np
        >>> from rgat.data import StoreWriter, open_store
        >>> with StoreWriter("store", nodes=4, relation_names=["cites"], self_loops=False) as store:
        ...     store.add(np.array([0, 1]), np.array([0, 0]), np.array([2, 3]))
        >>> open_store("store").relation_names
        ('cites', 'inverse of cites')
    """

    def __init__(
        self,
        path: str | PathLike[str],
        nodes: int | Iterable[str | bytes],
        relation_names: Sequence[str],
        *,
        inverses: bool = True,
        self_loops: bool = True,
        memory: int = MEMORY,
        provenance: dict[str, Any] | None = None,
        needed: int | None = None,
    ) -> None:
        self._folder = NewFolder(path)
        self.path, self.folder = self._folder.path, self._folder.temporary
        self.relation_names = list(relation_names)
        self.inverses, self.self_loops, self.memory = inverses, self_loops, memory
        self.provenance = provenance or {}
        self._features: ArrayWriter | None = None
        self._feature_type = ""
        self._classes: list[str] | None = None
        self._num_labels = 0
        self._name_bytes: int | None = None
        self._sizes: tuple[int, int] | None = None  # numbers of edges and groups, once they are sorted
        self.needed = needed
        with self._discarding():
            if isinstance(nodes, int):
                check_count("nodes", nodes, least=0)
                self.num_nodes = nodes
            else:
                files = (self._file("node_names"), self._file("name_ptr"))
                self.num_nodes, self._name_bytes = write_names(*files, nodes)
            if max(self.num_nodes, self.num_relations) > INT32_LIMIT:
                raise ValueError(
                    f"a store must have at most {INT32_LIMIT:,} nodes and relations, got {self.num_nodes:,} nodes and "
                    f"{self.num_relations:,} relations"
                )
            sizes = (self.num_nodes, self.num_relations, self.num_nodes)
            self._edges = TripleSorter(self.folder, sizes, memory)

    @property
    def num_relations(self) -> int:
        """Number of relations, with inverses and self-loops."""
        return len(self.relation_names) * (1 + self.inverses) + self.self_loops

    def add(self, source: Ids, relation: Ids, target: Ids) -> None:
        """Add edges, given as arrays of node and relation ids of one length."""
        columns = [np.asarray(column) for column in (source, relation, target)]
        sizes = [self.num_nodes, len(self.relation_names), self.num_nodes]
        with self._discarding():
            for name, column, size in zip(("source", "relation", "target"), columns, sizes, strict=True):
                if column.shape != columns[0].shape or column.ndim != 1 or column.dtype.kind not in "iu":
                    raise ValueError(f"`{name}` must be integers [E], got {column.dtype} {list(column.shape)}")
                if len(column) and (int(column.min()) < 0 or int(column.max()) >= size):
                    raise ValueError(
                        f"`{name}` must be from 0 to {size - 1}, got {int(column.min())} to {int(column.max())}"
                    )
            for start in range(0, len(columns[0]), _CHUNK):
                source, relation, target = (column[start : start + _CHUNK] for column in columns)
                self._edges.add(target, relation, source)
                if self.inverses:
                    self._edges.add(source, relation.astype(np.int64) + len(self.relation_names), target)

    def add_features(self, rows: NDArray[Any] | Tensor) -> None:
        """Add the features of the next nodes, ``[n, F]`` in float16, bfloat16 or float32, in the order of their ids.

        They are an array or a tensor; bfloat16 is kept as words of 16 bits.
        """
        with self._discarding():
            kind, shape = str(rows.dtype).removeprefix("torch."), list(rows.shape)
            if len(shape) != 2 or kind not in FEATURE_TYPES:
                raise ValueError(f"features must be float16, bfloat16 or float32 [n, F], got {kind} {shape}")
            if self._features is None:
                self._features = ArrayWriter(self._file("x"), FEATURE_TYPES[kind], shape[1])
                self._feature_type = kind
            if (kind, shape[1]) != (self._feature_type, self._features.columns):
                raise ValueError(
                    f"all rows of features must be {self._feature_type} [n, {self._features.columns}], "
                    f"got {kind} {shape}"
                )
            if isinstance(rows, Tensor):
                rows = rows.detach().cpu().contiguous()
                rows = (rows.view(torch.int16) if kind == "bfloat16" else rows).numpy()
            self._features.append(rows.view(FEATURE_TYPES[kind]))

    def set_labels(self, nodes: Ids, classes: Ids, class_names: Sequence[str], parts: Ids | None = None) -> None:
        """Set the classes of some nodes, and the part of each: 0 train, 1 valid, 2 test, -1 to be split later."""
        parts = np.full(len(nodes), -1) if parts is None else parts
        bounds = {"nodes": (0, self.num_nodes), "classes": (0, len(class_names)), "parts": (-1, len(PARTS))}
        with self._discarding():
            for (name, (least, end)), column in zip(bounds.items(), (nodes, classes, parts), strict=True):
                if len(column) != len(nodes) or (len(column) and not least <= column.min() <= column.max() < end):
                    raise ValueError(f"`{name}` must be {len(nodes)} integers from {least} to {end - 1}")
            write_array(self._file("label_node"), nodes.astype(np.int64))
            write_array(self._file("label_class"), classes.astype(np.int64))
            write_array(self._file("label_part"), parts.astype(np.int8))
            self._classes, self._num_labels = list(class_names), len(nodes)

    def node_names(self) -> NodeNames | NumberedNames:
        """Return the names of the nodes, as the store will have them."""
        if self._name_bytes is None:
            return NumberedNames(self.num_nodes)
        text = map_array(self._file("node_names"), np.uint8, (self._name_bytes,))
        return NodeNames(text, map_array(self._file("name_ptr"), np.int64, (self.num_nodes + 1,)))

    def sort_edges(self) -> tuple[int, int]:
        """Write the sorted edges, unless that is done; no more can be added. Return the numbers of edges and groups."""
        if self._sizes is None:
            with self._discarding():
                self._sizes = self._write_edges()
        return self._sizes

    def groups(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int32]]:
        """Return ``node_ptr``, ``group_ptr`` and ``group_relation`` of the sorted edges, mapped into memory."""
        _, num_groups = self.sort_edges()
        return (
            map_array(self._file("node_ptr"), np.int64, (self.num_nodes + 1,)),
            map_array(self._file("group_ptr"), np.int64, (num_groups + 1,)),
            map_array(self._file("group_relation"), np.int32, (num_groups,)),
        )

    def finish(self) -> None:
        """Write the sorted edges and the manifest, and give the store its name."""
        with self._discarding():
            features = {}
            if self._features is not None:
                self._features.__exit__(None, None, None)
                if self._features.rows != self.num_nodes:
                    raise ValueError(f"features must have {self.num_nodes} rows, got {self._features.rows}")
                features = {"num_features": self._features.columns, "feature_type": self._feature_type}
            num_edges, num_groups = self.sort_edges()
            own_edges = num_edges - self.self_loops * self.num_nodes
            manifest = Manifest(
                num_nodes=self.num_nodes,
                num_edges=num_edges,
                num_groups=num_groups,
                num_triples=own_edges // (1 + self.inverses),
                relation_names=self.relation_names,
                inverses=self.inverses,
                self_loops=self.self_loops,
                name_bytes=self._name_bytes,
                classes=self._classes,
                num_labels=self._num_labels,
                **features,  # type: ignore[arg-type]
                provenance=self.provenance,
                files=describe_files(self.folder),
            )
            (self.folder / NAME).write_bytes(manifest.to_json())
            self._folder.finish()

    def _write_edges(self) -> tuple[int, int]:
        """Write the arrays of `rgat.incoming.IncomingEdges`; return the number of edges and of groups."""
        num_relations, last_group = max(self.num_relations, 1), -1
        groups_of_node = np.zeros(self.num_nodes + 1, dtype=np.int64)
        with (
            ArrayWriter(self._file("source"), np.int32) as sources,
            ArrayWriter(self._file("group_ptr"), np.int64) as group_ptr,
            ArrayWriter(self._file("group_relation"), np.int32) as group_relation,
        ):
            for target, relation, source in self._sorted_edges():
                group = target * num_relations + relation
                starts = np.flatnonzero(np.concatenate([[group[0] != last_group], group[1:] != group[:-1]]))
                group_ptr.append(sources.rows + starts)
                group_relation.append(relation[starts])
                first = int(target[0])
                counts = np.bincount(target[starts] - first)
                groups_of_node[first + 1 : first + 1 + len(counts)] += counts
                sources.append(source)
                last_group = int(group[-1])
            num_edges, num_groups = sources.rows, group_ptr.rows
            group_ptr.append(np.array([num_edges]))
        write_array(self._file("node_ptr"), np.cumsum(groups_of_node))
        return num_edges, num_groups

    def _sorted_edges(self) -> Iterator[tuple[Ids, Ids, Ids]]:
        if self.self_loops:
            for start in range(0, self.num_nodes, _CHUNK):
                nodes = np.arange(start, min(start + _CHUNK, self.num_nodes))
                self._edges.add(nodes, np.full_like(nodes, self.num_relations - 1), nodes)
        return self._edges.blocks()

    def discard(self) -> None:
        """Remove all that was written."""
        if self._features is not None:
            with suppress(OSError):  # the disk is full
                self._features.file.close()
        self._folder.discard()

    def __enter__(self) -> StoreWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.finish()
        else:
            self.discard()

    @contextmanager
    def _discarding(self) -> Iterator[None]:
        """Remove all that was written if the block raises; say what to do about a file system that refuses a write."""
        try:
            yield
        except BaseException as error:
            self.discard()
            if isinstance(error, OSError):
                raise disk_error(self.path, error, self.needed) from error
            raise

    def _file(self, name: str) -> Path:
        return self.folder / f"{name}.npy"


def disk_error(path: Path, error: OSError, needed: int | None = None) -> ValueError:
    """Return an error that says why a store cannot be written, how many bytes it needs, and what to do."""
    size = "" if needed is None else f" (it needs about {show_bytes(needed)} on this disk, some of them temporary)"
    reason = "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else error.strerror or str(error)
    return ValueError(f"{path}: cannot be written: {reason}{size}; make room, or choose another place")


def show_bytes(count: float) -> str:
    """Return a size for people, such as "1.2 GB"."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if count >= 10 or unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
