"""Support vector machines for the labelled nodes of a knowledge graph; cross-validation selects settings and `C`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rgat.baselines.outcome import Outcome
from rgat.data import NodeData
from rgat.data.dataset import PARTS
from rgat.data.splits import stratified_folds
from rgat.memory import require
from rgat.training import check_parts

Array = NDArray[np.float64]
Ids = NDArray[np.int64]
NUM_FOLDS = 5
COPIES = 4  # of the inner products or features that are alive while a machine is trained on a fold of them
MOST_PRODUCTS = 5_000  # rows whose inner products are computed, 200 MB; the paper's data sets have at most 1,000


def sklearn_svm() -> Any:
    """Import scikit-learn's support vector machines, or raise an error with the command that installs them."""
    try:
        from sklearn import svm
    except ImportError as error:
        raise ImportError("baselines need scikit-learn; install it with `pip install 'rgat[baselines]'`") from error
    return svm


def scipy_sparse() -> Any:
    """Import SciPy's sparse matrices, or raise an error with the command that installs them."""
    try:
        from scipy import sparse
    except ImportError as error:
        raise ImportError("baselines need SciPy; install it with `pip install 'rgat[baselines]'`") from error
    return sparse


def original_triples(data: NodeData) -> Ids:
    """Return subject, relation and object ``[E, 3]``, without the inverse relations and self-loops added for layers."""
    edge_index, relation = data.graph.edge_index.numpy(), data.graph.edge_type.numpy()
    is_original = relation < data.provenance.get("relations", data.graph.num_relations)
    return np.stack([edge_index[0, is_original], relation[is_original], edge_index[1, is_original]], axis=1)


def labelled(data: NodeData) -> Tensor:
    """Return the ids of the training, validation and test nodes, in this order."""
    return torch.cat([data.train, data.valid, data.test])


def normalised(features: Any) -> Any:
    """Return the L2-normalised rows of a dense or sparse matrix, as a sparse matrix; a row of zeros stays zero."""
    sparse = scipy_sparse()
    features = sparse.csr_matrix(features, dtype=np.float64)
    norm = np.sqrt(np.asarray(features.multiply(features).sum(1)).ravel())
    return sparse.diags_array(1 / np.where(norm > 0, norm, 1)) @ features


def linear_kernel(features: Any) -> Any:
    """Return the inner products of all rows or, for more than ``MOST_PRODUCTS`` rows, the features themselves.

    The features are returned as a sparse matrix, on which a linear machine is trained by another solver, in memory
    linear in the number of rows. Raise if memory is short.
    """
    count = features.shape[0]
    if count > MOST_PRODUCTS:
        features = scipy_sparse().csr_matrix(features, dtype=np.float64)
        require(COPIES * (features.data.nbytes + features.indices.nbytes + features.indptr.nbytes))
        return features
    require(COPIES * 8 * count**2)
    product = features @ features.T
    return np.asarray(product.toarray() if hasattr(product, "toarray") else product, dtype=np.float64)


def classify(
    data: NodeData,
    kernels: Sequence[tuple[dict[str, Any], Callable[[], Any]]],
    costs: Sequence[float],
    config: dict[str, Any],
    machine: Callable[[float, Any], Any] | None = None,
) -> Outcome:
    """Select a kernel and `C` by the mean accuracy of 5-fold cross-validation on the training part, then train on it.

    A candidate in ``kernels`` has settings and a function that returns the `linear_kernel` of the labelled nodes,
    in the order of `labelled`. The first of equally good candidates is selected. ``config`` has further settings,
    for the record. ``machine`` returns an untrained machine for a cost and a kernel; by default it is an SVM.
    """
    check_parts(data, selects=False)
    machine = machine or _machine
    labels = data.labels[labelled(data)].numpy()
    train = np.arange(len(data.train))
    if len(np.unique(labels[train])) < 2:
        raise ValueError(f"{data.name} must have two classes to learn from, got one or none in its training part")
    best: tuple[float, dict[str, Any], Any] | None = None
    for setting, make in kernels:
        kernel = make()
        for cost in costs:
            score = _cross_validate(_inputs(kernel, train, train), labels[train], partial(machine, cost, kernel))
            if best is None or score > best[0] + 1e-12:
                best = (score, setting | {"C": cost}, kernel)
    assert best is not None
    score, chosen, kernel = best
    trained = machine(chosen["C"], kernel).fit(_inputs(kernel, train, train), labels[train])
    logits = _logits(trained, _inputs(kernel, np.arange(len(labels)), train), len(data.classes))
    sizes = [len(getattr(data, part)) for part in PARTS]
    candidates = len(kernels) * len(costs)
    return Outcome(
        config=config | chosen | {"cross_validation_accuracy": score},
        selected_on=f"{min(NUM_FOLDS, len(train))}-fold cross-validation on the training part, {candidates} candidates"
        if candidates > 1
        else "nothing: the settings are given",
        logits=dict(zip(PARTS, torch.split(logits, sizes), strict=True)),
    )


def _machine(cost: float, kernel: Any) -> Any:
    """Return an SVM for inner products, or for features: the latter one-against-rest with squared hinge loss."""
    if isinstance(kernel, np.ndarray):
        return sklearn_svm().SVC(C=cost, kernel="precomputed", decision_function_shape="ovr")
    return sklearn_svm().LinearSVC(C=cost, dual=False, max_iter=10_000)


def _inputs(kernel: Any, rows: Ids, train: Ids) -> Any:
    """Return the input of an SVM for some rows: their products with the training rows, or their features."""
    return kernel[np.ix_(rows, train)] if isinstance(kernel, np.ndarray) else kernel[rows]


def _cross_validate(kernel: Any, labels: Ids, make: Callable[[], Any]) -> float:
    """Return the mean accuracy over the folds, of which few nodes have fewer."""
    scores = []
    for fold in stratified_folds(labels.tolist(), min(NUM_FOLDS, len(labels)), seed=0):
        valid = fold.numpy()
        train = np.setdiff1d(np.arange(len(labels)), valid)
        if len(np.unique(labels[train])) > 1:
            machine = make().fit(_inputs(kernel, train, train), labels[train])
            predicted = _logits(machine, _inputs(kernel, valid, train), int(labels.max()) + 1).argmax(1).numpy()
        else:  # there is nothing to tell apart
            predicted = labels[train[:1]]
        scores.append(float((predicted == labels[valid]).mean()))
    return float(np.mean(scores))


def _logits(machine: Any, kernel: Any, num_classes: int) -> Tensor:
    """Return the logits of each row; classes without a training example have the smallest."""
    count = kernel.shape[0]
    decision = machine.decision_function(kernel) if count else np.zeros((0, len(machine.classes_)))
    if decision.ndim == 1:
        decision = np.stack([-decision, decision], axis=1)
    logits = np.full((count, num_classes), decision.min(initial=0) - 1)
    logits[:, machine.classes_] = decision
    return torch.from_numpy(logits).float()
