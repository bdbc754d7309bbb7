"""Node features of a knowledge graph: types, degrees, and literals, which are then removed from the graph.

A vocabulary defines the columns, so that files read later, with other nodes, get the same columns.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rgat.checks import check_word
from rgat.data.rdf.earlier import NUM_HASHED, encode_numbers
from rgat.data.rdf.literals import Encoder, LiteralReader, encode_literals, is_literal
from rgat.data.rdf.reader import Triples

FEATURES = ("types", "degrees", "literals")
AUTO = "auto"  # features that a fit chooses
MAX_TYPES = 256  # columns; rarer types carry little information

Array = NDArray[np.float32]


@dataclass(frozen=True)
class Vocabulary:
    """The meaning of the feature columns; None where a group of features is not used.

    Attributes:
        types: node types with one column each, followed by a column of ones.
        numbers: of a model that an earlier version wrote (`rgat.data.rdf.earlier`).
        degrees: predicates with two columns each: log1p of the out-degree and of the in-degree, which a mean over
            neighbours cannot compute.
        literals: predicates with literals, and how these become columns.
    """

    types: list[str] | None = None
    numbers: dict[str, list[float]] | None = None
    degrees: list[str] | None = None
    literals: dict[str, Encoder] | None = None

    @property
    def reads_literals(self) -> bool:
        """Whether literals are features, and no nodes."""
        return self.literals is not None or self.numbers is not None

    def columns(self) -> list[tuple[str, str, slice]]:
        """Return a group of features, the predicate (or "") and the place of its columns, for all columns in order."""
        widths: list[tuple[str, str, int]] = []
        if self.types is not None:
            widths.append(("types", "", len(self.types) + 1))
        widths += [("degrees", name, 2) for name in self.degrees or ()]
        if self.numbers is not None:
            widths += [("text", "", NUM_HASHED), *(("number", name, 2) for name in self.numbers)]
        widths += [(encoder.kind, name, encoder.width) for name, encoder in (self.literals or {}).items()]
        places, start = [], 0
        for group, name, width in widths:
            places.append((group, name, slice(start, start + width)))
            start += width
        return places


def read_vocabulary(provenance: Mapping[str, Any]) -> Vocabulary | None:
    """Return the vocabulary that the provenance of a data set has as plain values; None if there are no features."""
    record = provenance.get("vocabulary")
    if record is None:
        return None
    literals = record.get("literals")
    if literals is not None:
        literals = {name: Encoder(**fields) for name, fields in literals.items()}
    return Vocabulary(**{**record, "literals": literals})


def is_type(relation: str) -> bool:
    """Whether a predicate names the type of its subject: rdf:type, or another IRI whose last part is "type"."""
    return relation.startswith("<") and re.split(r"[/#]", relation[1:-1])[-1] == "type"


def learn_vocabulary(triples: Triples, features: Sequence[str]) -> Vocabulary:
    """Return the columns that describe the given triples.

    Args:
        triples: triples in which literals are nodes.
        features: any of "types", "degrees" and "literals".
    """
    for word in features:
        check_word("features", word, FEATURES)
    types, literals, degrees = None, None, None
    if "types" in features:
        types = most_frequent(count_types(triples))
    if "literals" in features:
        reader = LiteralReader()
        reader.add(triples)
        literals = reader.encoders()
    if "degrees" in features:
        linked = triples.edges if literals is None else triples.edges[~_ends_in_literal(triples)]
        degrees = sorted(triples.relation_names[relation] for relation in np.unique(linked[:, 1]).tolist())
    return Vocabulary(types, None, degrees, literals)


def count_types(triples: Triples) -> Counter[str]:
    """Return how many nodes have each type."""
    return Counter(triples.node_names[node_type] for _, node_type in _types(triples))


def most_frequent(counts: Counter[str]) -> list[str]:
    """Return the types that get a column, the most frequent first."""
    return sorted(counts, key=lambda name: (-counts[name], name))[:MAX_TYPES]


def encode(triples: Triples, vocabulary: Vocabulary) -> tuple[Triples, Tensor]:
    """Return the triples without the literals that became features, and node features ``[N, F]``."""
    kept, nodes = triples, np.arange(len(triples.node_names))
    if vocabulary.reads_literals:
        kept, nodes = triples.keep(~_ends_in_literal(triples), ~is_literal(triples.node_names))
    columns: list[Any] = []
    if vocabulary.types is not None:
        column = {name: number for number, name in enumerate(vocabulary.types)}
        types: Array = np.zeros((len(triples.node_names), len(column) + 1), dtype=np.float32)
        types[:, -1] = 1.0
        for node, node_type in _types(triples):
            if triples.node_names[node_type] in column:
                types[node, column[triples.node_names[node_type]]] = 1.0
        columns.append(types[nodes])
    if vocabulary.degrees is not None:
        columns.append(np.zeros((len(nodes), 2 * len(vocabulary.degrees)), dtype=np.float32))
    if vocabulary.numbers is not None:
        columns += [each[nodes] for each in encode_numbers(triples, vocabulary.numbers)]
    if vocabulary.literals is not None:
        columns += encode_literals(triples, vocabulary.literals)
    x = torch.from_numpy(np.concatenate(columns, axis=1)).float() if columns else torch.zeros(len(nodes), 0)
    count_degrees(x, kept, vocabulary)
    return kept, x


def count_degrees(x: Tensor, triples: Triples, vocabulary: Vocabulary) -> None:
    """Fill the degree columns with log1p of each relation's out- and in-degree."""
    if vocabulary.degrees is None:
        return
    first = 0 if vocabulary.types is None else len(vocabulary.types) + 1
    subject, relation, value = triples.edges.T
    relation_ids = {name: number for number, name in enumerate(triples.relation_names)}
    for number, name in enumerate(vocabulary.degrees):
        if name not in relation_ids:
            x[:, first + 2 * number : first + 2 * number + 2] = 0.0
            continue
        chosen = relation == relation_ids[name]
        for side, ends in enumerate((subject, value)):
            degree = np.bincount(ends[chosen], minlength=len(x))
            x[:, first + 2 * number + side] = torch.from_numpy(np.log1p(degree))


def _ends_in_literal(triples: Triples) -> NDArray[np.bool_]:
    """Return a mask of the triples whose object is a literal."""
    return is_literal(triples.node_names)[triples.edges[:, 2]]


def _types(triples: Triples) -> list[tuple[int, int]]:
    """Return pairs of a node and its type."""
    relations = [relation for relation, name in enumerate(triples.relation_names) if is_type(name)]
    return [(s, o) for s, p, o in triples.edges[np.isin(triples.edges[:, 1], relations)].tolist()]
