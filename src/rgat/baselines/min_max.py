r"""Min-max kernel: logistic regression on how alike the surroundings of two nodes are.

Labels of Weisfeiler and Lehman are refined over all edges, in both directions where the graph has inverse relations;
before the first iteration they are the nodes' features. After each iteration $t$, the edges to a node are counted by
relation and by the label of their source, and so are the names of the sources and the node's own features. Two nodes
with the counts $n_a$ and $n_b$ have the similarity (Ralaivola et al., 2005)

$$
k(a, b) = \frac{\sum_f \min(n_a(f), n_b(f))}{\sum_f \max(n_a(f), n_b(f))},
$$

which is a kernel. What a single node has is not counted, so $k(a, a)$ is 1, or 0 for a node that shares nothing. All
nodes to be classified share one label, so that none finds itself in its neighbours' labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rgat.baselines.outcome import Outcome
from rgat.baselines.svm import Array, Ids, classify, labelled, scipy_sparse, sklearn_svm
from rgat.checks import check_count
from rgat.data import NodeData
from rgat.data.rdf.blank_nodes import mix
from rgat.memory import require

Labels = NDArray[np.uint64]
ITERATIONS = (0, 1, 2, 3)
COSTS = (3.0, 10.0, 30.0)
INSTANCE = np.uint64(2**64 - 1)  # label of all nodes to be classified
MOST_NODES = 2_000  # to be classified; eigenvectors take time in the cube of their number
COPIES = 6  # of the kernel that are alive while the eigenvectors of a second one are computed
LEAST = 1e-9  # of the largest eigenvalue; below are rounding errors


def run(
    data: NodeData, seed: int = 0, *, iterations: Sequence[int] = ITERATIONS, costs: Sequence[float] = COSTS
) -> Outcome:
    """Train logistic regression with the kernel; ignore the seed. Candidates are all pairs of iterations and `C`."""
    sklearn_svm()
    instances = labelled(data).numpy()
    if len(instances) > MOST_NODES:
        raise ValueError(
            f"the min-max kernel is for at most {MOST_NODES:,} labelled nodes, got {len(instances):,}; use WL"
        )

    def kernel(count: int) -> Any:
        return min_max(surroundings(data, instances, count))

    kernels = [({"iterations": count}, lambda count=count: kernel(count)) for count in iterations]
    return classify(data, kernels, costs, {}, lambda cost, kernel: _KernelRegression(cost))


class _KernelRegression:
    """Logistic regression with a kernel, by the methods of a support vector machine with inner products."""

    def __init__(self, cost: float) -> None:
        from sklearn.linear_model import LogisticRegression

        self.model = LogisticRegression(C=cost, max_iter=1000)

    def fit(self, kernel: Array, labels: Ids) -> _KernelRegression:
        """Train on columns whose inner products are the kernel; on zeros if no two nodes share anything."""
        values, vectors = np.linalg.eigh(kernel)
        kept = values > LEAST * values[-1]
        self.columns = vectors[:, kept] / np.sqrt(values[kept]) if kept.any() else np.zeros((len(kernel), 1))
        self.model.fit(kernel @ self.columns, labels)
        self.classes_ = self.model.classes_
        return self

    def decision_function(self, kernel: Array) -> Array:
        """Return the log-probability of each class."""
        return np.asarray(self.model.predict_log_proba(kernel @ self.columns))


def surroundings(data: NodeData, instances: Ids, iterations: int) -> Any:
    """Return what surrounds each instance, a sparse matrix of ones ``[instances, what and how many times]``.

    The second occurrence of a label has another column than the first, so that inner products are sums of minima.
    """
    check_count("iterations", iterations, 0)
    (source, target), relation = data.graph.edge_index.numpy(), data.graph.edge_type.numpy().astype(np.uint64)
    kept = source != target
    source, target, relation = source[kept], target[kept], relation[kept]
    row_of = np.full(data.graph.num_nodes, -1)
    row_of[instances] = np.arange(len(instances))
    is_around = row_of[target] >= 0
    around = row_of[target[is_around]]
    rows, keys = [around], [_pair(relation, _number(source))[is_around]]
    label = _features(data)
    label[instances] = INSTANCE
    for iteration in range(iterations + 1):
        sent = _pair(relation, label[source])
        rows.append(around)
        keys.append(_pair(_number(iteration), sent[is_around]))
        if iteration < iterations:
            received = np.zeros_like(label)
            np.add.at(received, target, mix(sent))  # the same for any order of the edges
            label = _pair(label, received)
            label[instances] = INSTANCE
    if data.x is not None:
        own = _dense(data.x)[instances].astype(np.float64)
        row, feature = np.nonzero(own)
        rows.append(row)
        keys.append(_pair(_number(feature), own[row, feature].view(np.uint64)))
    return _occurrences(np.concatenate(rows), np.concatenate(keys), len(instances))


def _features(data: NodeData) -> Labels:
    """Return one label for each distinct row of features."""
    if data.x is None:
        return np.zeros(data.graph.num_nodes, dtype=np.uint64)
    numbers = np.unique(_dense(data.x), axis=0, return_inverse=True)[1]
    return mix(_number(numbers.ravel()))


def _dense(x: torch.Tensor) -> Array:
    dense = x.to_dense() if x.layout != torch.strided else x
    return np.asarray((dense.float() if dense.dtype == torch.bfloat16 else dense).numpy())


def _occurrences(row: Ids, key: Labels, num_rows: int) -> Any:
    """Return a sparse matrix with a one for the first, second, ... occurrence of a key in a row."""
    order = np.lexsort((key, row))
    row, key = row[order], key[order]
    is_first = np.ones(len(row), dtype=bool)
    is_first[1:] = (row[1:] != row[:-1]) | (key[1:] != key[:-1])
    first = np.flatnonzero(is_first)
    occurrence = np.arange(len(row)) - first[np.cumsum(is_first) - 1]
    found, column = np.unique(_pair(key, _number(occurrence)), return_inverse=True)
    return scipy_sparse().csr_matrix((np.ones(len(row)), (row, column)), shape=(num_rows, len(found)))


def min_max(ones: Any) -> Array:
    """Return the min-max similarity of all rows of `surroundings`, without columns that a single row has."""
    require(COPIES * 8 * ones.shape[0] ** 2)
    ones = ones[:, np.asarray(ones.sum(0)).ravel() > 1]
    minima: Array = (ones @ ones.T).toarray()
    sizes = minima.diagonal()
    return np.asarray(minima / np.maximum(sizes[:, None] + sizes - minima, 1))


def _number(number: Any) -> Labels:
    return np.asarray(number, dtype=np.int64).astype(np.uint64)


def _pair(first: Labels, second: Labels) -> Labels:
    """Return a label for each pair of labels."""
    return mix(mix(first) ^ second)
