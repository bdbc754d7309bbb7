r"""WL: the Weisfeiler-Lehman subtree kernel for RDF (de Vries and de Rooij, 2015).

A vertex has one label for each remaining depth $j$, so that no label depends on edges beyond the depth. With
$l_0$ the name of a vertex or predicate (all instances share one name),

$$
l_{t+1}(e, j) = \big(l_t(e, j),\, l_t(\mathrm{target}(e), j)\big), \qquad
l_{t+1}(v, j) = \big(l_t(v, j),\, \mathrm{sorted}\{ l_t(e, j-1) : e \text{ leaves } v \}\big),
$$

each pair compressed to a number. A label whose second part did not change is kept and not counted again. The features
of an instance are the counts of each label among the vertices and edges within $d$ steps, each at the depth of
its first encounter, over the iterations $t = 0, \dots, 2d$: two iterations cover one step.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rgat.baselines.outcome import Outcome
from rgat.baselines.svm import Ids, classify, labelled, linear_kernel, normalised, original_triples, scipy_sparse
from rgat.checks import check_count
from rgat.data import NodeData
from rgat.data.rdf.blank_nodes import mix

Flags = NDArray[np.bool_]
DEPTHS = (1, 2, 3)
COSTS = (1.0, 10.0, 100.0, 1000.0)


class _Reached(NamedTuple):
    """Vertices or edges first reached at one remaining depth: row of the instance, id of the vertex or edge."""

    instance: Ids
    item: Ids


class _Labels(NamedTuple):
    """Labels of all vertices or edges at one remaining depth, and which of them the last iteration changed."""

    label: Ids
    changed: Flags


def run(
    data: NodeData,
    seed: int = 0,
    *,
    depths: tuple[int, ...] = DEPTHS,
    costs: tuple[float, ...] = COSTS,
    num_features: int | None = None,
) -> Outcome:
    """Train a support vector machine on L2-normalised subtree counts; ignore the seed.

    Candidates are all pairs of a depth ``d`` and a cost `C`. For large graphs, labels can be hashed to ``num_features``
    columns; None is exact.
    """
    triples, instances = original_triples(data), labelled(data).numpy()

    def kernel(depth: int) -> Any:
        features = subtree_counts(triples, instances, data.graph.num_nodes, depth, num_features)
        return linear_kernel(normalised(features))

    kernels = [({"depth": depth, "iterations": 2 * depth}, lambda depth=depth: kernel(depth)) for depth in depths]
    return classify(data, kernels, costs, {"num_features": num_features})


def subtree_counts(triples: Ids, instances: Ids, num_nodes: int, depth: int, num_features: int | None = None) -> Any:
    """Return the features of the instances, sparse ``[instances, labels]``."""
    check_count("depth", depth)
    if num_features is not None:
        check_count("num_features", num_features)
    triples = triples[np.argsort(triples[:, 0], kind="stable")]
    ptr = np.searchsorted(triples[:, 0], np.arange(num_nodes + 1))
    vertices, edges = _neighbourhoods(triples, ptr, instances, depth)
    compress = _Dictionary() if num_features is None else _Hashes()
    rows, columns = [], []
    for vertex_labels, edge_labels in _iterate(triples, ptr, instances, num_nodes, depth, compress):
        for (instance, item), labels in zip([*vertices, *edges], [*vertex_labels, *edge_labels], strict=True):
            new = labels.changed[item]
            rows.append(instance[new])
            columns.append(labels.label[item[new]])
    row, column = np.concatenate(rows), np.concatenate(columns)
    if num_features is not None:
        column = (column.view(np.uint64) % np.uint64(num_features)).astype(np.int64)
    reached, column = np.unique(column, return_inverse=True)  # labels that no instance reaches have no column
    return scipy_sparse().coo_matrix((np.ones(len(row)), (row, column)), shape=(len(instances), len(reached))).tocsr()


def _neighbourhoods(triples: Ids, ptr: Ids, instances: Ids, depth: int) -> tuple[list[_Reached], list[_Reached]]:
    """Return the vertices of all instances at remaining depths 0 to ``depth``, and the edges at 0 to ``depth - 1``."""
    num_nodes = len(ptr) - 1
    front = _Reached(np.arange(len(instances)), instances)
    seen = front.instance * num_nodes + front.item
    vertices, edges = [front], []
    for _ in range(depth):
        sizes = ptr[front.item + 1] - ptr[front.item]
        edge = np.arange(sizes.sum()) + np.repeat(ptr[front.item] - (np.cumsum(sizes) - sizes), sizes)
        instance = np.repeat(front.instance, sizes)
        edges.append(_Reached(instance, edge))
        new = np.setdiff1d(instance * num_nodes + triples[edge, 2], seen)
        seen = np.concatenate([seen, new])
        front = _Reached(*np.divmod(new, num_nodes))
        vertices.append(front)
    return vertices[::-1], edges[::-1]


def _iterate(
    triples: Ids, ptr: Ids, instances: Ids, num_nodes: int, depth: int, compress: _Dictionary | _Hashes
) -> Iterator[tuple[list[_Labels], list[_Labels]]]:
    """Yield the labels of vertices and edges by remaining depth, after each of the iterations 0 to ``2 depth``."""
    names = np.arange(num_nodes)
    names[instances] = num_nodes  # one name for all instances
    start, predicates = compress.names(names), compress.names(num_nodes + 1 + triples[:, 1])
    vertices = [_Labels(start, np.ones(num_nodes, dtype=bool)) for _ in range(depth + 1)]
    edges = [_Labels(predicates, np.ones(len(triples), dtype=bool)) for _ in range(depth)]
    needed = _needed(triples, instances, num_nodes, depth)
    yield vertices, edges
    for _ in range(2 * depth):
        new_vertices = [_Labels(start, np.zeros(num_nodes, dtype=bool))]  # no edges are left at depth 0
        for j in range(1, depth + 1):
            below = edges[j - 1]
            changed = np.zeros(num_nodes, dtype=bool)
            changed[triples[below.changed, 0]] = True
            changed &= needed[j]
            label = compress.vertices(vertices[j].label, below.label, ptr, np.flatnonzero(changed))
            new_vertices.append(_Labels(label, changed))
        new_edges = []
        for j, (label, _changed) in enumerate(edges):
            ends = vertices[j]
            changed = ends.changed[triples[:, 2]] & needed[j + 1][triples[:, 0]]
            new_edges.append(_Labels(compress.edges(label, ends.label[triples[:, 2]], changed), changed))
        vertices, edges = new_vertices, new_edges
        yield vertices, edges


def _needed(triples: Ids, instances: Ids, num_nodes: int, depth: int) -> list[Flags]:
    """Return for each remaining depth the vertices that an instance reaches with it; others need no label."""
    at_depth = np.zeros(num_nodes, dtype=bool)
    at_depth[instances] = True
    needed = [at_depth]
    for _ in range(depth):
        at_depth = np.zeros(num_nodes, dtype=bool)
        at_depth[triples[needed[-1][triples[:, 0]], 2]] = True
        needed.append(at_depth)
    return needed[::-1]


class _Dictionary:
    """Exact compression: each new pair gets the next number."""

    def __init__(self) -> None:
        self.numbers: dict[bytes, int] = {}

    def _number(self, key: bytes) -> int:
        return self.numbers.setdefault(key, len(self.numbers))

    def names(self, names: Ids) -> Ids:
        return np.array([self._number(b"name" + name.tobytes()) for name in names], dtype=np.int64)

    def vertices(self, own: Ids, edge_labels: Ids, ptr: Ids, chosen: Ids) -> Ids:
        label = own.copy()
        for vertex in chosen.tolist():
            around = np.sort(edge_labels[ptr[vertex] : ptr[vertex + 1]])
            label[vertex] = self._number(b"vertex" + own[vertex].tobytes() + around.tobytes())
        return label

    def edges(self, own: Ids, target: Ids, changed: Flags) -> Ids:
        label = own.copy()
        pairs, inverse = np.unique(np.stack([own[changed], target[changed]], axis=1), axis=0, return_inverse=True)
        numbers = [self._number(b"edge" + pair.tobytes()) for pair in pairs]
        label[changed] = np.array(numbers, dtype=np.int64)[inverse.ravel()]
        return label


class _Hashes:
    """Compression by 64-bit hashes, without a dictionary or a loop; a set of edges is the sum of their hashes."""

    def names(self, names: Ids) -> Ids:
        return _mixed(names)

    def vertices(self, own: Ids, edge_labels: Ids, ptr: Ids, chosen: Ids) -> Ids:
        total = np.concatenate(
            [[0], np.cumsum(_mixed(edge_labels))]
        )  # overflow is harmless: differences wrap around too
        label = own.copy()
        label[chosen] = _mixed(_mixed(own[chosen]) + total[ptr[chosen + 1]] - total[ptr[chosen]])
        return label

    def edges(self, own: Ids, target: Ids, changed: Flags) -> Ids:
        return np.where(changed, _mixed(_mixed(own) ^ target), own)


def _mixed(label: Ids) -> Ids:
    return mix(label.view(np.uint64)).view(np.int64)
