"""Node features of a graph beyond memory, block by block; see `rgat.data.rdf.features`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rgat.data.rdf.features import Vocabulary, count_types, encode, most_frequent
from rgat.data.rdf.literals import LiteralReader, is_literal
from rgat.data.rdf.reader import Triples
from rgat.data.store.arrays import ArrayWriter, map_array
from rgat.data.store.sorting import TripleSorter
from rgat.data.store.writer import StoreWriter

_BLOCK_TRIPLES = 100_000  # encoded at once; each needs some hundred bytes for names and Python objects
_BLOCK_VALUES = 1 << 24  # features encoded at once


class Block(NamedTuple):
    """The triples whose subjects have ids from ``first`` to ``end - 1``."""

    first: int
    end: int
    nodes: NDArray[np.int64]  # id of each name of the triples
    triples: Triples


class SortedTriples:
    """Distinct triples on the disk, sorted by subject, predicate and object.

    Args:
        folder: an existing folder for their files.
        sorter: the triples.
        name: returns the name of a node; names must be in the order of ids.
        relation_names: names of the predicates.
    """

    def __init__(
        self, folder: Path, sorter: TripleSorter, name: Callable[[int], str], relation_names: list[str]
    ) -> None:
        self.num_nodes, self.name, self.relation_names = sorter.sizes[0], name, relation_names
        paths = [folder / f"{column}.npy" for column in ("subject", "predicate", "object")]
        with (
            ArrayWriter(paths[0], np.int32) as subjects,
            ArrayWriter(paths[1], np.int32) as predicates,
            ArrayWriter(paths[2], np.int32) as objects,
        ):
            for block in sorter.blocks():
                for file, column in zip((subjects, predicates, objects), block, strict=True):
                    file.append(column)
        self.columns = [map_array(path, np.int32, (subjects.rows,)) for path in paths]

    def count_names(self, sign: str) -> int:
        """Return the number of names that begin with a sign; no name may begin with a smaller one."""
        low, high = 0, self.num_nodes
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if self.name(middle)[0] <= sign else (low, middle)
        return low

    def blocks(self, first: int = 0, most_nodes: int = 1 << 20) -> Iterator[Block]:
        """Yield the triples of all subjects from ``first`` on, in order; a subject's triples are in one block."""
        subject = self.columns[0]
        while first < self.num_nodes:
            start = int(np.searchsorted(subject, np.int32(first)))
            end = min(first + most_nodes, self.num_nodes)
            if start + _BLOCK_TRIPLES < len(subject):
                end = max(first + 1, min(end, int(subject[start + _BLOCK_TRIPLES])))
            stop = int(np.searchsorted(subject, np.int32(end - 1), side="right"))
            rows = np.stack([column[start:stop] for column in self.columns], axis=1).astype(np.int64)
            nodes, local = np.unique(rows[:, [0, 2]], return_inverse=True)
            rows[:, 0], rows[:, 2] = local.reshape(-1, 2).T
            names = [self.name(node) for node in nodes.tolist()]
            yield Block(first, end, nodes, Triples(names, self.relation_names, rows))
            first = end


def learn_vocabulary(triples: SortedTriples, features: Sequence[str]) -> Vocabulary:
    """Return the columns that describe the triples, as `rgat.data.rdf.features.learn_vocabulary` does."""
    types: Counter[str] = Counter()
    linking = np.zeros(len(triples.relation_names), dtype=bool)
    literals = LiteralReader() if "literals" in features else None
    for block in triples.blocks():
        if "types" in features:
            types += count_types(block.triples)
        edges = block.triples.edges
        if literals is not None:
            literals.add(block.triples)
            edges = edges[~is_literal(block.triples.node_names)[edges[:, 2]]]
        linking[edges[:, 1]] = True
    degrees = [name for name, links in zip(triples.relation_names, linking, strict=True) if links]
    return Vocabulary(
        types=most_frequent(types) if "types" in features else None,
        degrees=sorted(degrees) if "degrees" in features else None,
        literals=None if literals is None else literals.encoders(),
    )


def feature_width(triples: SortedTriples, vocabulary: Vocabulary) -> int:
    """Return the number of features of each node."""
    return encode(Triples([], triples.relation_names, np.empty((0, 3), dtype=np.int64)), vocabulary)[1].shape[1]


def feature_rows(
    triples: SortedTriples, vocabulary: Vocabulary, writer: StoreWriter
) -> Iterator[tuple[NDArray[np.float32], float]]:
    """Yield blocks of the feature matrix of a store whose edges are sorted, and the share of nodes that is done."""
    num_types = 0 if vocabulary.types is None else len(vocabulary.types) + 1
    first = triples.count_names('"') if vocabulary.reads_literals else 0  # names of literals sort first
    width = feature_width(triples, vocabulary)
    for block in triples.blocks(first, most_nodes=max(_BLOCK_VALUES // max(width, 1), 1)):
        x = np.zeros((block.end - block.first, width), dtype=np.float32)
        if num_types:
            x[:, num_types - 1] = 1.0
        encoded = encode(block.triples, vocabulary)[1].numpy()
        nodes = block.nodes[block.nodes >= first]  # literals have no row
        here = (nodes >= block.first) & (nodes < block.end)
        x[nodes[here] - block.first] = encoded[here]
        if vocabulary.degrees is not None:
            _count_in_degrees(x[:, num_types:], block.first - first, vocabulary.degrees, writer)
        yield x, (block.end - first) / (triples.num_nodes - first)
    if first == triples.num_nodes:
        yield np.zeros((0, width), dtype=np.float32), 1.0


def _count_in_degrees(x: NDArray[np.float32], first: int, degrees: list[str], writer: StoreWriter) -> None:
    """Fill the in-degree columns, every second one, for the nodes of a store from ``first`` on."""
    node_ptr, group_ptr, group_relation = writer.groups()
    ptr = node_ptr[first : first + len(x) + 1]
    groups = slice(int(ptr[0]), int(ptr[-1]))
    column = np.full(writer.num_relations, -1)
    for relation, name in enumerate(writer.relation_names):
        column[relation] = 2 * degrees.index(name) + 1 if name in degrees else -1
    columns: NDArray[Any] = column[group_relation[groups]]
    sizes = np.diff(group_ptr[groups.start : groups.stop + 1])
    rows = np.repeat(np.arange(len(x)), np.diff(ptr))
    x[:, 1 : 2 * len(degrees) : 2] = 0.0
    counted = columns >= 0
    x[rows[counted], columns[counted]] = np.log1p(sizes[counted])
