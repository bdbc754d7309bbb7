"""Extend a predictor's graph by triples added after training, encoded with the training vocabulary."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from rgat.baselines.svm import original_triples
from rgat.data import MISSING, NodeData
from rgat.data.rdf.features import Vocabulary, count_degrees, encode, read_vocabulary
from rgat.data.rdf.graph import assemble
from rgat.data.rdf.knowledge_graph import load_triples
from rgat.data.rdf.literals import literal_edges
from rgat.data.rdf.reader import Triples
from rgat.predictor.words import counted

_UNUSED = (
    "a model with one-hot input predicts only nodes of its training graph: the triples of the files only select the "
    "nodes to predict; train with --features types,literals to use new triples"
)


def extend(data: NodeData, files: Any, rdf_format: str | None = None) -> tuple[NodeData, set[str], list[str]]:
    """Add the triples of some files to the data, as `extend_by` does."""
    return extend_by(data, load_triples(files, rdf_format))


def extend_by(data: NodeData, triples: Triples) -> tuple[NodeData, set[str], list[str]]:
    """Add triples to the data.

    Returns:
        the extended data, the names of the new nodes, and notes on what was left out. Data with one-hot input cannot be
        extended: then the same data, and the names of all nodes in the triples.
    """
    vocabulary = read_vocabulary(data.provenance)
    known = set(data.node_names)
    if data.x is None or vocabulary is None:
        return data, *select_known(triples, known)
    literals = unknown_literals(triples, vocabulary)
    triples, x = encode(triples, vocabulary)
    added = [node for node, name in enumerate(triples.node_names) if name not in known]
    added_names = [triples.node_names[node] for node in added]
    names = [*data.node_names, *added_names]
    node_ids = {name: node for node, name in enumerate(names)}
    edges, notes = translate(triples, [node_ids[name] for name in triples.node_names], data.relation_names)
    num_given = data.provenance.get("relations", data.graph.num_relations)  # without inverses and self-loops
    union = Triples(
        names, list(data.relation_names[:num_given]), np.unique(np.concatenate([original_triples(data), edges]), axis=0)
    )
    features = torch.cat([data.x, x[added]])
    count_degrees(features, union, vocabulary)  # new triples also change the degrees of known nodes
    extended = assemble(
        union,
        features,
        torch.cat([data.labels, torch.full((len(added),), MISSING)]),
        data.classes,
        (data.train, data.valid, data.test),
        any(base != relation for relation, base in enumerate(data.base_relation)),  # with inverses
        "self" in data.relation_names,
        data.name,
    )
    fields: dict[str, Any] = {"provenance": data.provenance}
    if data.values is not None:
        unknown = data.values.new_full((len(added), data.values.shape[1]), torch.nan)
        fields |= {"values": torch.cat([data.values, unknown]), "targets": data.targets}
    return dataclasses.replace(extended, **fields), set(added_names), notes + literals


def select_known(triples: Triples, known: set[str]) -> tuple[set[str], list[str]]:
    """Return the nodes of the triples, without literals, and notes; raise if none is known."""
    names = [name for name in triples.node_names if name[0] != '"']
    unknown = [name for name in names if name not in known]
    if not unknown:
        return set(names), [_UNUSED]
    note = (
        f"{len(unknown):,} of {len(names):,} nodes (such as {unknown[0]}) were not in the training graph, and a model "
        "with one-hot input cannot predict them; train with --features types,literals to predict new nodes"
    )
    if len(unknown) == len(names):
        raise ValueError(note)
    return set(names), [note, _UNUSED]


def unknown_literals(triples: Triples, vocabulary: Vocabulary) -> list[str]:
    """Return a note on the literals of predicates for which there are no columns."""
    if vocabulary.literals is None:
        return []
    _, predicates, _ = literal_edges(triples)
    names = [triples.relation_names[number] for number in np.unique(predicates).tolist()]
    unknown = [name for name in names if name not in vocabulary.literals]
    if not unknown:
        return []
    return [f"literals of {counted(len(unknown), 'predicate')} unknown to the model are left out: {unknown[0]}"]


def translate(triples: Triples, node_ids: Sequence[int], relation_names: Sequence[str]) -> tuple[Any, list[str]]:
    """Return the triples in the ids of a graph, without those of unknown relations, and a note on these.

    ``node_ids`` are the ids of the nodes of the triples.
    """
    relation_ids = {name: i for i, name in enumerate(relation_names)}
    nodes = np.array(node_ids, dtype=np.int64)
    relations = np.array([relation_ids.get(name, -1) for name in triples.relation_names], dtype=np.int64)
    subject, relation, object_ = triples.edges.T
    edges = np.stack([nodes[subject], relations[relation], nodes[object_]], axis=1)
    is_known = edges[:, 1] >= 0
    names = [triples.relation_names[number] for number in relation[~is_known].tolist()]
    return edges[is_known], unknown_relations(names)


def unknown_relations(names: Sequence[str]) -> list[str]:
    """Return a note on triples whose relations, one name for each triple, are unknown to the model."""
    kinds = sorted(set(names))
    if not kinds:
        return []
    return [f"{len(names):,} triples of {len(kinds)} relations unknown to the model are left out: {kinds[0]}"]
