"""Classifiers on ECFP4 fingerprints, one with RDKit's descriptors beside: logistic regression, forests, kernel SVM.

Each learns one task at a time from the molecules with a known label; class weights balance positives and negatives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rgat.baselines.molecules import FINGERPRINTS, fingerprints
from rgat.baselines.outcome import Outcome
from rgat.baselines.svm import sklearn_svm
from rgat.data import MISSING, GraphData
from rgat.data.dataset import PARTS
from rgat.data.molecules.descriptors import all_properties, describe_smiles
from rgat.memory import require
from rgat.training import mean_roc_auc

Array = NDArray[np.float32]
# Maps ids of training graphs, their labels and a cost to the scores of all graphs.
Learn = Callable[[NDArray[np.int64], NDArray[np.int64], float], Array]

LOGISTIC_COSTS = (0.001, 0.01, 0.1, 1.0)
SVM_COSTS = (0.1, 1.0, 10.0)
NUM_TREES = 500
# Many correlated columns, few of which matter; the leaves of rare positives need more than one molecule.
DESCRIPTOR_FOREST = {"max_features": 0.05, "min_samples_leaf": 2, "class_weight": "balanced_subsample"}
LEAST = 1e-6  # of a probability whose log odds are taken


def logistic_regression(data: GraphData, seed: int = 0, *, costs: Sequence[float] = LOGISTIC_COSTS) -> Outcome:
    """Train logistic regression, with `C` by the mean ROC-AUC of the validation part; ignore the seed."""
    sklearn_svm()
    from sklearn.linear_model import LogisticRegression

    bits = fingerprints(data).numpy()

    def learn(rows: NDArray[np.int64], labels: NDArray[np.int64], cost: float) -> Array:
        model = LogisticRegression(C=cost, class_weight="balanced", max_iter=1000)
        return np.asarray(model.fit(bits[rows], labels).decision_function(bits))

    return _select(data, learn, [{"C": cost} for cost in costs], {})


def random_forest(data: GraphData, seed: int = 0, *, num_trees: int = NUM_TREES) -> Outcome:
    """Train a random forest; nothing is selected."""
    sklearn_svm()
    from sklearn.ensemble import RandomForestClassifier

    bits = fingerprints(data).numpy()

    def learn(rows: NDArray[np.int64], labels: NDArray[np.int64], cost: float) -> Array:
        model = RandomForestClassifier(num_trees, class_weight="balanced", random_state=seed)
        return np.asarray(model.fit(bits[rows], labels).predict_proba(bits)[:, 1])

    return _select(data, learn, [{}], {"num_trees": num_trees})


def descriptor_forest(data: GraphData, seed: int = 0, *, num_trees: int = NUM_TREES) -> Outcome:
    """Train a random forest on RDKit's descriptors and a fingerprint; nothing is selected. Its outputs are log odds."""
    sklearn_svm()
    from sklearn.ensemble import RandomForestClassifier

    columns = _descriptors(data)

    def learn(rows: NDArray[np.int64], labels: NDArray[np.int64], cost: float) -> Array:
        model = RandomForestClassifier(num_trees, random_state=seed, **DESCRIPTOR_FOREST)
        positive = model.fit(columns[rows], labels).predict_proba(columns)[:, 1].clip(LEAST, 1 - LEAST)
        return np.asarray(np.log(positive / (1 - positive)))

    return _select(data, learn, [{}], {"num_trees": num_trees} | DESCRIPTOR_FOREST)


def _descriptors(data: GraphData) -> Array:
    """Return RDKit's descriptors and the bits of each molecule, which the data may have; 0 where RDKit has none."""
    if data.graphs.graph_attr is not None and "num_descriptors" in data.provenance:
        return data.graphs.graph_attr.float().numpy()
    values, bits = describe_smiles(data.graph_names, all_properties())
    return torch.cat([values.nan_to_num(0.0, 0.0, 0.0), bits.float()], 1).numpy()


def kernel_svm(data: GraphData, seed: int = 0, *, costs: Sequence[float] = SVM_COSTS) -> Outcome:
    """Train an SVM on Tanimoto similarities, with `C` by the mean ROC-AUC of the validation part; ignore the seed."""
    machines = sklearn_svm()
    kernel = tanimoto(fingerprints(data).numpy())

    def learn(rows: NDArray[np.int64], labels: NDArray[np.int64], cost: float) -> Array:
        machine = machines.SVC(C=cost, kernel="precomputed", class_weight="balanced")
        return np.asarray(machine.fit(kernel[np.ix_(rows, rows)], labels).decision_function(kernel[:, rows]))

    return _select(data, learn, [{"C": cost} for cost in costs], {"kernel": "Tanimoto"})


def tanimoto(bits: Array) -> Array:
    """Return the Tanimoto similarity of all pairs of rows: common bits over bits in either; 1 for two empty rows."""
    require(4 * 4 * len(bits) ** 2)
    both = bits @ bits.T
    either = bits.sum(1)[:, None] + bits.sum(1) - both
    return np.where(either > 0, both / np.maximum(either, 1), np.float32(1))


def _select(data: GraphData, learn: Learn, settings: list[dict[str, Any]], config: dict[str, Any]) -> Outcome:
    """Learn all tasks with each setting; return the outputs of the best by the validation part's mean ROC-AUC."""
    best: tuple[float, dict[str, Any], Tensor] | None = None
    for setting in settings:
        logits = torch.zeros(*data.labels.shape, 2)  # stay zero for a task with a single class in training
        for task, labels in enumerate(data.labels.t()):
            rows = data.train[labels[data.train] != MISSING]
            if len(labels[rows].unique()) > 1:
                scores = learn(rows.numpy(), labels[rows].numpy(), setting.get("C", 0.0))
                logits[:, task, 1] = torch.from_numpy(scores)
        score = mean_roc_auc(logits[data.valid], data.labels[data.valid]) if len(settings) > 1 else 0.0
        if best is None or score > best[0]:
            best = (score, setting, logits)
    assert best is not None
    _, chosen, logits = best
    return Outcome(
        config=FINGERPRINTS | config | chosen,
        selected_on=f"mean ROC-AUC of the validation part, {len(settings)} candidates"
        if len(settings) > 1
        else "nothing: the settings are given",
        logits={part: logits[getattr(data, part)] for part in PARTS},
    )
