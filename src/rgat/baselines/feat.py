"""FEAT (Paulheim and Fürnkranz, 2012): out- and in-degree of an entity in each relation."""

from __future__ import annotations

from typing import Any

import numpy as np

from rgat.baselines.outcome import Outcome
from rgat.baselines.svm import Ids, classify, labelled, linear_kernel, normalised, original_triples, scipy_sparse
from rgat.data import NodeData

COSTS = (0.1, 1.0, 10.0, 100.0, 1000.0)


def relation_counts(triples: Ids, entities: Ids, num_relations: int) -> Any:
    """Return the out-degree of each entity in each relation, then the in-degree, sparse ``[entities, 2 R]``."""
    row_of = np.full(max(int(triples[:, [0, 2]].max(initial=-1)), int(entities.max(initial=-1))) + 1, -1)
    row_of[entities] = np.arange(len(entities))
    row = row_of[triples[:, [0, 2]]]  # [E, 2]
    column = triples[:, [1]] + np.array([0, num_relations])
    is_counted = row >= 0
    row, column = row[is_counted], column[is_counted]
    shape = (len(entities), 2 * num_relations)
    return scipy_sparse().coo_matrix((np.ones(len(row)), (row, column)), shape=shape).tocsr()  # sums repeated entries


def run(data: NodeData, seed: int = 0, *, costs: tuple[float, ...] = COSTS) -> Outcome:
    """Train a linear support vector machine on L2-normalised degrees; ignore the seed."""
    triples = original_triples(data)
    counts = relation_counts(triples, labelled(data).numpy(), int(triples[:, 1].max(initial=-1)) + 1)
    kernel = linear_kernel(normalised(counts))
    return classify(data, [({"directions": "out and in"}, lambda: kernel)], costs, {})
