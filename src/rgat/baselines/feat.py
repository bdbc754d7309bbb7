"""FEAT (Paulheim and Fürnkranz, 2012): out- and in-degree of an entity in each relation."""

from __future__ import annotations

import numpy as np

from rgat.baselines.outcome import Outcome
from rgat.baselines.svm import Array, Ids, classify, labelled, linear_kernel, normalised, original_triples
from rgat.data import NodeData

COSTS = (0.1, 1.0, 10.0, 100.0, 1000.0)


def relation_counts(triples: Ids, entities: Ids, num_relations: int) -> Array:
    """Return the out-degree of each entity in each relation, then the in-degree, ``[entities, 2 R]``."""
    row_of = np.full(max(int(triples[:, [0, 2]].max(initial=-1)), int(entities.max(initial=-1))) + 1, -1)
    row_of[entities] = np.arange(len(entities))
    counts = np.zeros((len(entities), 2 * num_relations))
    for end, first in ((0, 0), (2, num_relations)):
        row = row_of[triples[:, end]]
        np.add.at(counts, (row[row >= 0], first + triples[row >= 0, 1]), 1)
    return counts


def run(data: NodeData, seed: int = 0, *, costs: tuple[float, ...] = COSTS) -> Outcome:
    """Train a linear support vector machine on L2-normalised degrees; ignore the seed."""
    triples = original_triples(data)
    counts = relation_counts(triples, labelled(data).numpy(), int(triples[:, 1].max(initial=-1)) + 1)
    kernel = linear_kernel(normalised(counts))
    return classify(data, [({"directions": "out and in"}, lambda: kernel)], costs, {})
