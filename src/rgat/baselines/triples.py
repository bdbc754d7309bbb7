"""The triples of a knowledge graph without added relations."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rgat.data import NodeData

Ids = NDArray[np.int64]


def original_triples(data: NodeData) -> Ids:
    """Return subject, relation and object ``[E, 3]``, without the inverse relations and self-loops added for layers."""
    edge_index, relation = data.graph.edge_index.numpy(), data.graph.edge_type.numpy()
    is_original = relation < data.provenance.get("relations", data.graph.num_relations)
    return np.stack([edge_index[0, is_original], relation[is_original], edge_index[1, is_original]], axis=1)
