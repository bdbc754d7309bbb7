"""The triples of a knowledge graph as they were read."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rgat.data import NodeData

Ids = NDArray[np.int64]


def original_triples(data: NodeData) -> Ids:
    """Subject, relation and object ``[E, 3]``, without the inverse relations and self-loops that layers want added."""
    edge_index, relation = data.graph.edge_index.numpy(), data.graph.edge_type.numpy()
    given = relation < data.provenance.get("relations", data.graph.num_relations)
    return np.stack([edge_index[0, given], relation[given], edge_index[1, given]], axis=1)
