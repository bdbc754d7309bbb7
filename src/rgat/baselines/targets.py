"""What models of any targets have to beat: the constant prediction, and a random forest on ECFP4 fingerprints."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rgat.baselines.molecules import fingerprints
from rgat.baselines.svm import sklearn_svm
from rgat.data import GraphData, NodeData
from rgat.data.dataset import PARTS
from rgat.data.targets import places
from rgat.training.metric import score_targets

NUM_TREES = 200


def constant(data: NodeData | GraphData) -> dict[str, float]:
    """Score the training part's mean of each output: of numbers the mean, of classes and labels their shares."""
    assert data.values is not None
    means = data.values[data.train].nanmean(0).nan_to_num()
    return score_parts(data, means.expand(len(data.values), -1))


def random_forest(data: GraphData, seed: int = 0, num_trees: int = NUM_TREES) -> dict[str, float]:
    """Score random forests, one per target, that learn from the molecules with a known value; bounds are left out."""
    sklearn_svm()
    from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

    assert data.values is not None
    bits, predictions = fingerprints(data).numpy(), torch.zeros_like(data.values)
    for target, place in places(data.targets):
        values = data.values[:, place]
        known = ~values.isnan().any(1)
        if data.bounds is not None:
            known &= (data.bounds[:, place] == 0).all(1)
        rows = data.train[known[data.train]]
        if target.kind == "regression":
            forest: Any = RandomForestRegressor(num_trees, random_state=seed)
            found = forest.fit(bits[rows], values[rows, 0].numpy()).predict(bits)
            predictions[:, place.start] = torch.from_numpy(found)
            continue
        for position in range(target.width):  # each class or label against the rest
            learned = values[rows, position].numpy()
            forest = RandomForestClassifier(num_trees, random_state=seed).fit(bits[rows], learned)
            if len(forest.classes_) == 2:
                predictions[:, place.start + position] = torch.from_numpy(forest.predict_proba(bits)[:, 1])
            else:
                predictions[:, place.start + position] = float(learned[0])
    return score_parts(data, predictions)


def score_parts(data: NodeData | GraphData, predictions: Tensor) -> dict[str, float]:
    """Return the score of each part that is not empty, from the predictions of all examples."""
    assert data.values is not None
    scores = {}
    for part in PARTS:
        ids = getattr(data, part)
        if len(ids):
            bounds = None if data.bounds is None else data.bounds[ids]
            scores[part] = score_targets(predictions[ids], data.values[ids], data.targets, bounds)
    return scores
