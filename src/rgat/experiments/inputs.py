"""What a trial of the extended space reads: node features, relations and degrees of a knowledge graph, or descriptors.

Descriptors stand beside the graph of a molecule.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rgat.data import GraphData, NodeData
from rgat.data.molecules.descriptors import Descriptors, all_properties, describe_smiles
from rgat.data.molecules.smiles import BONDS
from rgat.experiments.folds import FoldedData
from rgat.experiments.neighbours import neighbour_columns
from rgat.graph import RelationalGraph
from rgat.training.space import NO_FEATURES

# Keys of a configuration that are read here.
OPTIONS = ("features", "neighbours", "max_degree", "num_pruned", "pruned_relations", "descriptors")


def without_inputs(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of model and training alone."""
    return {name: value for name, value in config.items() if name not in OPTIONS}


def select_inputs(data: NodeData | GraphData, config: Mapping[str, Any]) -> NodeData | GraphData:
    """Return the data as the configuration wants to see them; the same object if it has no option of inputs."""
    if isinstance(data, GraphData):
        return _select_descriptors(data, config.get("descriptors", "none"))
    if config.get("features") is not None:
        data = dataclasses.replace(data, x=_select_features(data, config["features"]))
    kept = torch.ones(data.graph.num_edges, dtype=torch.bool)
    if config.get("pruned_relations"):
        kept &= ~torch.isin(data.graph.edge_type, _numbers(data, config["pruned_relations"]))
    if config.get("max_degree") is not None:
        kept &= _is_below(data.graph, config["max_degree"])
    if not bool(kept.all()):
        data = dataclasses.replace(data, graph=_keep_edges(data.graph, kept))
    if config.get("neighbours") and data.x is not None:
        data = dataclasses.replace(data, x=torch.cat([data.x, neighbour_columns(data)], dim=1))
    return data


def with_descriptors(folded: FoldedData) -> FoldedData:
    """Return molecules with RDKit descriptors and a fingerprint beside each, and any other data as they are.

    They are standardised by the molecules of the folds, which are in no test part.
    """
    data = folded.data
    if not isinstance(data, GraphData) or data.relation_names[: len(BONDS)] != BONDS:
        return folded
    properties = all_properties()
    values, bits = describe_smiles(data.graph_names, properties)
    columns = torch.cat([values, bits.float()], 1)
    descriptors = Descriptors.learn("both", properties, columns[torch.cat(folded.fold_ids(0))])
    store = dataclasses.replace(data.graphs, graph_attr=descriptors.standardise(columns))
    about = data.provenance | {"num_descriptors": values.shape[1]}
    return dataclasses.replace(folded, data=dataclasses.replace(data, graphs=store, provenance=about))


def _select_descriptors(data: GraphData, kind: str) -> GraphData:
    """Return molecules with no descriptors, RDKit's, or both RDKit's and the fingerprint."""
    columns = data.graphs.graph_attr
    if columns is None or kind == "both":
        return data
    kept = columns[:, : data.provenance["num_descriptors"]] if kind == "rdkit" else None
    return dataclasses.replace(data, graphs=dataclasses.replace(data.graphs, graph_attr=kept))


def feature_groups(data: NodeData | GraphData) -> dict[str, slice]:
    """Return the columns of each group of node features: types, then degrees, then literals."""
    vocabulary = data.provenance.get("vocabulary")
    if isinstance(data, GraphData) or data.x is None or vocabulary is None:
        return {}
    types, degrees = vocabulary.get("types"), vocabulary.get("degrees")
    first = 0 if types is None else len(types) + 1
    second = first + (0 if degrees is None else 2 * len(degrees))
    groups = {"types": slice(0, first), "degrees": slice(first, second), "literals": slice(second, data.x.shape[1])}
    return {name: columns for name, columns in groups.items() if columns.start < columns.stop}


def _select_features(data: NodeData, names: str) -> Tensor | None:
    groups = feature_groups(data)
    if names == NO_FEATURES:
        return None
    assert data.x is not None
    columns = torch.arange(data.x.shape[1])
    return data.x[:, torch.cat([columns[groups[name]] for name in names.split(",")])]


def base_relations(data: NodeData) -> list[str]:
    """Return the relations that can be pruned with their inverses, those with most edges first; no self-loops."""
    source, target = data.graph.edge_index
    sizes = data.graph.edge_type[source != target].bincount(minlength=data.graph.num_relations).tolist()
    chosen = [number for number, base in enumerate(data.base_relation) if base == number and sizes[number]]
    return [data.relation_names[number] for number in sorted(chosen, key=lambda number: (-sizes[number], number))]


def _numbers(data: NodeData, names: Sequence[str]) -> Tensor:
    """Return the numbers of relations and of their inverses."""
    bases = {data.relation_names.index(name) for name in names}
    return torch.tensor([number for number, base in enumerate(data.base_relation) if base in bases])


def _is_below(graph: RelationalGraph, most: int) -> Tensor:
    """Return a mask of the edges whose two ends have at most so many edges of the relation, in the same direction."""
    kept = torch.ones(graph.num_edges, dtype=torch.bool)
    for ends in graph.edge_index:
        _, group, degree = torch.unique(
            graph.edge_type * graph.num_nodes + ends, return_inverse=True, return_counts=True
        )
        kept &= degree[group] <= most
    return kept


def _keep_edges(graph: RelationalGraph, kept: Tensor) -> RelationalGraph:
    attributes = None if graph.edge_attr is None else graph.edge_attr[kept]
    return RelationalGraph(
        graph.edge_index[:, kept],
        graph.edge_type[kept],
        num_nodes=graph.num_nodes,
        num_relations=graph.num_relations,
        edge_attr=attributes,
    )
