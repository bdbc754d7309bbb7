"""Node features of a knowledge graph: types, degrees, and literals, which are then removed from the graph.

A vocabulary defines the columns, so that files read later, with other nodes, get the same columns.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime

import numpy as np
import torch
from torch import Tensor

from rgat.checks import check_word
from rgat.data.rdf.reader import Triples, split_literal

FEATURES = ("types", "degrees", "literals")
NUM_HASHED = 32  # columns into which the words of all strings are hashed
MAX_TYPES = 256  # columns; rarer types carry little information

Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
_NUMBERS = re.compile(
    r".*#(integer|int|long|short|byte|decimal|double|float|nonNegativeInteger|positiveInteger|"
    r"nonPositiveInteger|negativeInteger|unsigned(Int|Long|Short|Byte))"
)


@dataclass(frozen=True)
class Vocabulary:
    """The meaning of the feature columns; None where a group of features is not used.

    Attributes:
        types: node types with one column each, followed by a column of ones.
        numbers: predicates with numbers, and how these are standardised: divisor, mean, standard deviation. Strings
            share the hashed columns.
        degrees: predicates with two columns each: log1p of the out-degree and of the in-degree, which a mean over
            neighbours cannot compute.
    """

    types: list[str] | None = None
    numbers: dict[str, list[float]] | None = None
    degrees: list[str] | None = None


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
    types, numbers = None, None
    if "types" in features:
        types = most_frequent(count_types(triples))
    if "literals" in features:
        values: dict[int, list[float]] = {}
        for _, predicate, value in literal_values(triples):
            if isinstance(value, float):
                values.setdefault(predicate, []).append(value)
        numbers = {triples.relation_names[predicate]: _scale(values[predicate]) for predicate in sorted(values)}
    degrees = None
    if "degrees" in features:
        linked = triples.edges[~_ends_in_literal(triples)] if numbers is not None else triples.edges
        degrees = sorted(triples.relation_names[relation] for relation in np.unique(linked[:, 1]).tolist())
    return Vocabulary(types, numbers, degrees)


def count_types(triples: Triples) -> Counter[str]:
    """Return how many nodes have each type."""
    return Counter(triples.node_names[node_type] for _, node_type in _types(triples))


def most_frequent(counts: Counter[str]) -> list[str]:
    """Return the types that get a column, the most frequent first."""
    return sorted(counts, key=lambda name: (-counts[name], name))[:MAX_TYPES]


def encode(triples: Triples, vocabulary: Vocabulary) -> tuple[Triples, Tensor]:
    """Return the triples without the literals that became features, and node features ``[N, F]``.

    Each predicate with numbers, dates or booleans gets two columns: the standardised value (the mean of several) and
    whether there is one. Strings are hashed, word by word, into shared columns. A value that does not parse as its
    datatype counts as a string, and so does a number of a predicate for which the vocabulary has no column.
    """
    columns: list[Array] = []
    if vocabulary.types is not None:
        column = {name: number for number, name in enumerate(vocabulary.types)}
        types = np.zeros((len(triples.node_names), len(column) + 1))
        types[:, -1] = 1.0
        for node, node_type in _types(triples):
            if triples.node_names[node_type] in column:
                types[node, column[triples.node_names[node_type]]] = 1.0
        columns.append(types)
    if vocabulary.degrees is not None:
        columns.append(np.zeros((len(triples.node_names), 2 * len(vocabulary.degrees))))
    kept, nodes = triples, np.arange(len(triples.node_names))
    if vocabulary.numbers is not None:
        columns += _encode_literals(triples, vocabulary.numbers)
        kept, nodes = triples.keep(~_ends_in_literal(triples), ~_is_literal(triples))
    x = torch.from_numpy(np.concatenate(columns, axis=1)[nodes]).float()
    count_degrees(x, kept, vocabulary)
    return kept, x


def count_degrees(x: Tensor, triples: Triples, vocabulary: Vocabulary) -> None:
    """Fill the degree columns with log1p of each relation's out- and in-degree."""
    if vocabulary.degrees is None:
        return
    first = 0 if vocabulary.types is None else len(vocabulary.types) + 1
    subject, relation, value = triples.edges.T
    for number, name in enumerate(vocabulary.degrees):
        chosen = relation == (triples.relation_names.index(name) if name in triples.relation_names else -1)
        for side, ends in enumerate((subject, value)):
            degree = np.bincount(ends[chosen], minlength=len(x))
            x[:, first + 2 * number + side] = torch.from_numpy(np.log1p(degree))


def _is_literal(triples: Triples) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """Return a mask of the nodes that are literals."""
    return np.array([name[0] == '"' for name in triples.node_names], dtype=bool)


def _ends_in_literal(triples: Triples) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """Return a mask of the triples whose object is a literal."""
    return _is_literal(triples)[triples.edges[:, 2]]


def _types(triples: Triples) -> list[tuple[int, int]]:
    """Return pairs of a node and its type."""
    relations = [relation for relation, name in enumerate(triples.relation_names) if is_type(name)]
    return [(s, o) for s, p, o in triples.edges[np.isin(triples.edges[:, 1], relations)].tolist()]


def literal_values(triples: Triples) -> list[tuple[int, int, float | str]]:
    """Return subject, predicate and value of each triple that ends in a literal."""
    values: list[tuple[int, int, float | str]] = []
    for subject, predicate, literal in triples.edges[_ends_in_literal(triples)].tolist():
        name = triples.node_names[literal]
        number = _as_number(name)
        values.append((subject, predicate, split_literal(name)[0] if number is None else number))
    return values


def _scale(entries: list[float]) -> list[float]:
    """Return divisor, mean and standard deviation; without the divisor sums of huge numbers would overflow."""
    values = np.array(entries)
    divisor = max(float(np.abs(values).max()), 1e-300)
    deviation = float((values / divisor).std())
    return [divisor, float((values / divisor).mean()), deviation if deviation > 0 else 1.0]


def _encode_literals(triples: Triples, numbers: dict[str, list[float]]) -> list[Array]:
    num_nodes = len(triples.node_names)
    hashed = np.zeros((num_nodes, NUM_HASHED))
    sums = {name: np.zeros((num_nodes, 2)) for name in numbers}
    for subject, predicate, value in literal_values(triples):
        name = triples.relation_names[predicate]
        if isinstance(value, float) and name in sums:
            divisor, mean, deviation = numbers[name]
            sums[name][subject] += ((value / divisor - mean) / deviation, 1)
        else:
            for word in re.split(r"(?:\\[nrt]|\s)+", str(value).lower()):
                hashed[subject, _bucket(word)] += 1
    columns: list[Array] = [np.log1p(hashed)]
    for total in sums.values():
        average = total[:, 0] / np.maximum(total[:, 1], 1)
        columns.append(np.stack([average, (total[:, 1] > 0).astype(float)], axis=1))
    return columns


def _as_number(literal: str) -> float | None:
    value, datatype = split_literal(literal)
    try:
        if _NUMBERS.fullmatch(datatype):
            return _finite(float(value))
        if datatype.endswith("#boolean"):
            return {"true": 1.0, "1": 1.0, "false": 0.0, "0": 0.0}[value]
        if datatype.endswith("#date"):
            return float(date.fromisoformat(value[:10]).toordinal())  # a time zone may follow
        if datatype.endswith("#dateTime"):
            return float(datetime.fromisoformat(value).toordinal())
        if datatype.endswith("#gYear"):
            return _finite(float(re.match(r"-?\d+", value)[0]))  # type: ignore[index]
    except (ValueError, KeyError, TypeError):
        return None
    return None


def _finite(number: float) -> float | None:
    return number if np.isfinite(number) else None


def _bucket(word: str) -> int:
    """Return the hashed column of a word, the same on every machine and in every process."""
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=4).digest(), "little") % NUM_HASHED
