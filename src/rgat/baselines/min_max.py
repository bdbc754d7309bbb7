r"""Min-max kernel: logistic regression on how alike the surroundings of two nodes are.

Labels of Weisfeiler and Lehman are refined over all edges, in both directions; before the first iteration they are the
nodes' features. After each iteration $t$, the edges at a node are counted by relation and by the label of their other
end, and so are the names of the neighbours and the node's own features. Two nodes with the counts $n_a$ and $n_b$ have
the similarity (Ralaivola et al., 2005)

$$
k(a, b) = \frac{\sum_f \min(n_a(f), n_b(f))}{\sum_f \max(n_a(f), n_b(f))},
$$

which is a kernel. All nodes to be classified share one label, so that none finds itself in its neighbours' labels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rgat.baselines.outcome import Outcome
from rgat.baselines.svm import NUM_FOLDS, Ids, labelled, scipy_sparse, sklearn_svm
from rgat.checks import check_count
from rgat.data import NodeData
from rgat.data.dataset import PARTS
from rgat.data.rdf.blank_nodes import mix
from rgat.data.splits import stratified_folds
from rgat.memory import require
from rgat.training import check_parts

Labels = NDArray[np.uint64]
Array = NDArray[np.float64]
ITERATIONS = (0, 1, 2, 3)
COSTS = (10.0, 30.0, 100.0)
INSTANCE = np.uint64(2**64 - 1)  # label of all nodes to be classified
COPIES = 4  # of the kernel that are alive while its eigenvectors are computed
LEAST = 1e-9  # of the largest eigenvalue; below are rounding errors
LEAST_LOG = -30.0  # of a probability; classes without a training node have it


def run(
    data: NodeData, seed: int = 0, *, iterations: tuple[int, ...] = ITERATIONS, costs: tuple[float, ...] = COSTS
) -> Outcome:
    """Train kernel logistic regression; ignore the seed. Candidates are all pairs of iterations and a cost `C`."""
    sklearn_svm()
    check_parts(data, selects=False)
    labels, train = data.labels[labelled(data)].numpy(), np.arange(len(data.train))
    if len(np.unique(labels[train])) < 2:
        raise ValueError(f"{data.name} must have two classes to learn from, got one or none in its training part")
    best: tuple[float, dict[str, Any], Array] | None = None
    for count in iterations:
        kernel = min_max(surroundings(data, labelled(data).numpy(), count))
        scores = _cross_validate(kernel, labels[train], costs)
        for cost, score in zip(costs, scores, strict=True):
            if best is None or score > best[0] + 1e-12:
                best = (score, {"iterations": count, "C": cost}, kernel)
    assert best is not None
    score, chosen, kernel = best
    columns = kernel_columns(kernel, train)
    logits = _logits(_fit(columns[train], labels[train], chosen["C"]), columns, len(data.classes))
    candidates = len(iterations) * len(costs)
    return Outcome(
        config=chosen | {"cross_validation_accuracy": score},
        selected_on=f"{NUM_FOLDS}-fold cross-validation on the training part, {candidates} candidates"
        if candidates > 1
        else "nothing: the settings are given",
        logits=dict(zip(PARTS, torch.split(logits, [len(getattr(data, part)) for part in PARTS]), strict=True)),
    )


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
    for iteration in range(iterations + 1):
        label[instances] = INSTANCE
        received = _pair(relation, label[source])
        rows.append(around)
        keys.append(_pair(_number(iteration), received[is_around]))
        total = np.zeros_like(label)
        np.add.at(total, target, mix(received))  # the same for any order of the edges
        label = _pair(label, total)
    if data.x is not None:
        own = data.x[torch.from_numpy(instances)].double().numpy()
        row, feature = np.nonzero(own)
        rows.append(row)
        keys.append(_pair(_number(feature), own[row, feature].view(np.uint64)))
    return _occurrences(np.concatenate(rows), np.concatenate(keys), len(instances))


def _features(data: NodeData) -> Labels:
    """Return one label for each distinct row of features."""
    if data.x is None:
        return np.zeros(data.graph.num_nodes, dtype=np.uint64)
    numbers = np.unique(data.x.numpy(), axis=0, return_inverse=True)[1]
    return mix(_number(numbers.ravel()))


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


def kernel_columns(kernel: Array, rows: Ids) -> Array:
    """Return columns of all nodes whose inner products with those of the given rows are the kernel."""
    values, vectors = np.linalg.eigh(kernel[np.ix_(rows, rows)])
    kept = values > LEAST * values[-1]
    return np.asarray(kernel[:, rows] @ (vectors[:, kept] / np.sqrt(values[kept])))


def _fit(columns: Array, labels: Ids, cost: float) -> Any:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(C=cost, max_iter=1000).fit(columns, labels)


def _cross_validate(kernel: Array, labels: Ids, costs: tuple[float, ...]) -> list[float]:
    """Return the mean accuracy over the folds with each cost."""
    scores = []
    for fold in stratified_folds(labels.tolist(), NUM_FOLDS, seed=0):
        valid = fold.numpy()
        train = np.setdiff1d(np.arange(len(labels)), valid)
        columns = kernel_columns(kernel, train)
        scores.append(
            [_fit(columns[train], labels[train], cost).score(columns[valid], labels[valid]) for cost in costs]
        )
    return np.mean(scores, axis=0).tolist()  # type: ignore[no-any-return]


def _logits(model: Any, columns: Array, num_classes: int) -> torch.Tensor:
    logits = np.full((len(columns), num_classes), LEAST_LOG)
    logits[:, model.classes_] = model.predict_log_proba(columns).clip(min=LEAST_LOG)
    return torch.from_numpy(logits).float()


def _number(number: Any) -> Labels:
    return np.asarray(number, dtype=np.int64).astype(np.uint64)


def _pair(first: Labels, second: Labels) -> Labels:
    """Return a label for each pair of labels."""
    return mix(mix(first) ^ second)
