"""Turn a knowledge graph whose literals are nodes into one whose nodes have features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rgat.data.dataset import MISSING, NodeData
from rgat.data.rdf.features import AUTO, encode, learn_vocabulary
from rgat.data.rdf.graph import assemble
from rgat.data.rdf.labels import RDFS_LABEL, choose_titles
from rgat.data.rdf.leaks import literal_leaks
from rgat.data.rdf.literals import is_literal, literal_edges
from rgat.data.rdf.reader import Triples, sort_triples, split_literal

MOST_VALUES = 1 << 18  # literals that are kept beside the features, so that explanations can name them
MOST_CHARACTERS = 80  # of each


def is_open(data: NodeData) -> bool:
    """Whether a fit is to choose between one-hot input and features, which are not made yet."""
    return data.provenance.get("features") == AUTO


def featurise(data: NodeData, features: Sequence[str]) -> NodeData:
    """Return the same graph, labels and split with node features, for which literals leave the graph on request.

    Args:
        data: a graph in memory, without features.
        features: any of "types", "degrees" and "literals".
    """
    triples = triples_of(data)
    vocabulary = learn_vocabulary(triples, features)
    kept, x = encode(triples, vocabulary)
    is_node: NDArray[np.bool_] = np.ones(len(triples.node_names), dtype=bool)
    if vocabulary.reads_literals:
        is_node = ~is_literal(triples.node_names)
    nodes, new_id = torch.from_numpy(is_node), torch.from_numpy(np.cumsum(is_node) - 1)
    parts = [new_id[part[nodes[part]]] for part in (data.train, data.valid, data.test)]
    has_inverses = any(base != relation for relation, base in enumerate(data.base_relation))
    options = (has_inverses, "self" in data.relation_names, data.name)
    described = assemble(kept, x, data.labels[nodes], data.classes, parts, *options)
    provenance = data.provenance | described.provenance | {"vocabulary": asdict(vocabulary)}
    provenance.pop("features", None)
    if vocabulary.reads_literals:
        provenance |= _describe(triples, data, new_id.numpy())
    fields = data.labels_of(nodes) | {"targets": data.targets}
    return replace(described, provenance=provenance, **fields)  # type: ignore[arg-type]


def triples_of(data: NodeData) -> Triples:
    """Return the triples of a graph in memory, without the inverses and self-loops that layers get."""
    (subject, target), relation = data.graph.edge_index.numpy(), data.graph.edge_type.numpy()
    names = list(data.relation_names[: data.provenance["relations"]])
    edges = np.stack([subject, relation, target], axis=1)[relation < len(names)]
    return Triples(list(data.node_names), names, sort_triples(edges, len(data.node_names), len(names)))


def _describe(triples: Triples, data: NodeData, new_id: NDArray[np.int64]) -> dict[str, Any]:
    """Return what the literals say, which are no more in the graph: titles, leaks of classes, and their values."""
    labels: NDArray[np.int64] = np.full(len(triples.node_names), MISSING)
    labels[data.train.numpy()] = data.labels[data.train].numpy()
    relation = triples.relation_names.index(RDFS_LABEL) if RDFS_LABEL in triples.relation_names else -1
    names = triples.node_names
    pairs = ((names[s], names[o]) for s, _, o in triples.edges[triples.edges[:, 1] == relation].tolist())
    subjects, predicates, literals = literal_edges(triples)
    described: dict[str, Any] = {
        "titles": choose_titles(pairs),
        "literal_leaks": [leak._asdict() for leak in literal_leaks(triples, labels, data.classes)]
        if data.values is None
        else [],
    }
    if len(subjects) <= MOST_VALUES:
        described["literal_values"] = {
            "node": new_id[subjects].tolist(),
            "predicate": [triples.relation_names[number] for number in predicates.tolist()],
            "value": [_cut(split_literal(names[literal])[0]) for literal in literals.tolist()],
        }
    return described


def _cut(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS - 1]}…"
