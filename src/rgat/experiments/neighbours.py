"""Columns that say how much of each feature a node has among its neighbours: sums, cut at several thresholds.

Attention gives means, from which a layer cannot tell how many neighbours are of a kind, and a rule such as "at least
two of this type" needs a threshold. Columns are chosen by the training nodes, without their labels.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rgat.data import NodeData
from rgat.graph import RelationalGraph

MOST_CUTS = 6  # thresholds of a sum, at its quantiles; at every step of a sum with fewer
FEWEST = 5  # training nodes on each side of a threshold
MOST_COLUMNS = 512  # those that divide the training nodes most evenly
BOUND = 3.0  # of a standardised column, so that what few nodes have does not outweigh all else

Array = NDArray[np.float32]


class _Cut(NamedTuple):
    """Whether the sum of a feature over the neighbours by a relation is above a threshold."""

    relation: int
    feature: int
    threshold: float
    above: NDArray[np.bool_]  # of the training nodes


def neighbour_columns(data: NodeData) -> Tensor:
    """Return columns ``[N, K]`` of the neighbours of each node, standardised by the nodes to learn from."""
    assert data.x is not None
    nodes = torch.cat([data.train, data.valid])
    cuts = _choose_cuts(data, nodes)
    columns = torch.zeros(data.x.shape[0], len(cuts))
    for relation in sorted({cut.relation for cut in cuts}):
        places = [place for place, cut in enumerate(cuts) if cut.relation == relation]
        features = torch.tensor([cuts[place].feature for place in places])
        thresholds = torch.tensor([cuts[place].threshold for place in places])
        columns[:, places] = (_sums(data.graph, data.x[:, features], relation) > thresholds).float()
    deviation, mean = torch.std_mean(columns[nodes], dim=0)
    return ((columns - mean) / deviation).clamp(-BOUND, BOUND)


def _sums(graph: RelationalGraph, x: Tensor, relation: int) -> Tensor:
    """Return the sum of the neighbours' features by one relation, ``[N, F]``."""
    source, target = graph.edge_index[:, graph.edge_type == relation]
    sums = torch.zeros(graph.num_nodes, x.shape[1], dtype=torch.float64)
    return sums.index_add_(0, target, x[source].double()).float()


def _choose_cuts(data: NodeData, nodes: Tensor) -> list[_Cut]:
    """Return the thresholds that divide the given nodes, one of those that divide them in the same way."""
    assert data.x is not None
    cuts: dict[bytes, _Cut] = {}
    loops = data.graph.edge_index[0] == data.graph.edge_index[1]
    for relation in np.unique(data.graph.edge_type[~loops].numpy()).tolist():
        sums = _sums(data.graph, data.x, relation)[nodes].numpy()
        for feature in np.flatnonzero(sums.min(0) < sums.max(0)).tolist():
            for threshold in _thresholds(sums[:, feature]):
                above = sums[:, feature] > threshold
                if FEWEST <= above.sum() <= len(nodes) - FEWEST:
                    cuts.setdefault(above.tobytes(), _Cut(relation, feature, threshold, above))
    evenness = {key: -min(cut.above.sum(), (~cut.above).sum()) for key, cut in cuts.items()}
    kept = sorted(cuts, key=evenness.__getitem__)[:MOST_COLUMNS]
    return [cuts[key] for key in kept]


def _thresholds(values: Array) -> list[float]:
    steps = np.unique(values)
    if len(steps) <= MOST_CUTS + 1:
        return ((steps[1:] + steps[:-1]) / 2).tolist()  # type: ignore[no-any-return]
    return np.unique(np.quantile(values, np.linspace(0, 1, MOST_CUTS + 2)[1:-1])).tolist()  # type: ignore[no-any-return]
