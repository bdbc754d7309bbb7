"""Statistics of a store, computed block by block."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from rgat.data.dataset import PARTS
from rgat.data.store.stored_graph import StoredGraph

_BLOCK = 1 << 22  # elements read at once


def store_statistics(store: StoredGraph) -> dict[str, Any]:
    """Count nodes, edges and labels, as `rgat.data.statistics` does for a data set in memory."""
    m = store.manifest
    numbers: dict[str, Any] = {"name": store.path.name, "nodes": m.num_nodes}
    if store.labels is not None:
        labels = store.labels
        counts = labels.classes.bincount(minlength=len(labels.class_names)).tolist()
        numbers |= {"classes": len(counts), "labelled": len(labels.nodes)}
        numbers["label_counts"] = dict(zip(labels.class_names, counts, strict=True))
        numbers |= {part: int((labels.parts == position).sum()) for position, part in enumerate(PARTS)}
    numbers |= {"edges": m.num_triples, "relations": len(m.relation_names), "features": m.num_features or 0}
    numbers |= {"model_edges": m.num_edges, "model_relations": store.num_relations}
    return numbers | _degrees(store) | {"bytes": store.num_bytes}


def _degrees(store: StoredGraph) -> dict[str, Any]:
    node_ptr, group_ptr = store.mapped.node_ptr, store.mapped.group_ptr
    num_groups = len(group_ptr) - 1
    max_degree = max((int(group_ptr[block].diff().max()) for block in _blocks(node_ptr)), default=0)
    max_group, singles = 0, 0
    for sizes in (block.diff() for block in _blocks(group_ptr)):
        max_group = max(max_group, int(sizes.max()))
        singles += int((sizes == 1).sum())
    return {
        "mean_degree": store.num_edges / max(store.num_nodes, 1),
        "max_degree": max_degree,
        "mean_group": store.num_edges / max(num_groups, 1),
        "max_group": max_group,
        "single_groups": singles / max(num_groups, 1),
    }


def _blocks(pointers: Tensor) -> Iterator[Tensor]:
    """Yield pieces of pointers that overlap in one element, so that all their differences are seen once."""
    for start in range(0, len(pointers) - 1, _BLOCK):
        yield torch.clone(pointers[start : start + _BLOCK + 1])
