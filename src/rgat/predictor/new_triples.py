"""A graph that has grown since a model was trained: new triples, read with the model's own vocabulary."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch

from rgat.baselines.triples import original_triples
from rgat.data import MISSING, NodeData
from rgat.data.rdf.features import Vocabulary, count_degrees, encode
from rgat.data.rdf.knowledge_graph import assemble
from rgat.data.rdf.reader import Triples, read_triples

_UNUSED = (
    "a model with one-hot input judges the graph that it was trained on: the triples of the files only say which nodes "
    "to judge; train with --features types,literals to use new triples"
)


def extend(data: NodeData, files: Any) -> tuple[NodeData, list[str], list[str]]:
    """The data with the triples of some files added; the files' own nodes; and what could not be used.

    A model whose input is one-hot knows nothing of new nodes, so the data stay as they are: then the nodes returned are
    all that the files name.
    """
    vocabulary = data.provenance.get("vocabulary")
    triples = read_triples(files)
    known = {name: place for place, name in enumerate(data.node_names)}
    if data.x is None or vocabulary is None:
        mine = [name for name in triples.node_names if name[0] != '"']
        strangers = [name for name in mine if name not in known]
        if strangers:
            sentence = (
                f"{len(strangers):,} of {len(mine):,} nodes (such as {strangers[0]}) were not there in training, and a "
                "model with one-hot input cannot judge them; train with --features types,literals to judge new nodes"
            )
            if len(strangers) == len(mine):
                raise ValueError(sentence)
            return data, mine, [sentence, _UNUSED]
        return data, mine, [_UNUSED]
    triples, x = encode(triples, Vocabulary(**vocabulary))
    added = [place for place, name in enumerate(triples.node_names) if name not in known]
    names = [*data.node_names, *(triples.node_names[place] for place in added)]
    old = original_triples(data)
    new, notes = _in_ids_of(triples, dict(zip(names, range(len(names)), strict=True)), data)
    edges = np.unique(np.concatenate([old, new]), axis=0)
    inverses, self_loops = with_inverses(data), "self" in data.relation_names
    given = data.provenance.get("relations", data.graph.num_relations)
    union = Triples(names, list(data.relation_names[:given]), edges)
    features = torch.cat([data.x, x[added]])
    count_degrees(features, union, Vocabulary(**vocabulary))  # known nodes may have more edges now
    grown = assemble(
        union,
        features,
        torch.cat([data.labels, torch.full((len(added),), MISSING)]),
        data.classes,
        (data.train, data.valid, data.test),
        inverses,
        self_loops,
        data.name,
    )
    grown = dataclasses.replace(grown, provenance=data.provenance)
    return grown, [triples.node_names[place] for place in added], notes


def with_inverses(data: NodeData) -> bool:
    """Whether relations were given inverses."""
    return any(base != relation for relation, base in enumerate(data.base_relation))


def _in_ids_of(triples: Triples, place: dict[str, int], data: NodeData) -> tuple[Any, list[str]]:
    """The triples in the ids of the grown graph; those of relations that the model does not know are left out."""
    relation = {name: number for number, name in enumerate(data.relation_names)}
    strangers = [name for name in triples.relation_names if name not in relation]
    node_id = np.array([place[name] for name in triples.node_names], dtype=np.int64)
    relation_id = np.array([relation.get(name, -1) for name in triples.relation_names], dtype=np.int64)
    edges = np.stack(
        [node_id[triples.edges[:, 0]], relation_id[triples.edges[:, 1]], node_id[triples.edges[:, 2]]], axis=1
    )
    kept = edges[edges[:, 1] >= 0]
    notes = []
    if strangers:
        lost = len(edges) - len(kept)
        notes.append(
            f"{lost:,} triples of {len(strangers)} relations unknown to the model are left out: {strangers[0]}"
        )
    return kept.reshape(-1, 3), notes
