"""Features of nodes: their types, their numbers of edges, and literals instead of nodes for these.

A vocabulary says what each column means, so that files read later, with other nodes, get the same columns.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import date, datetime
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rgat.checks import check_word
from rgat.data.rdf.reader import Triples, split_literal

FEATURES = ("types", "degrees", "literals")
NUM_HASHED = 32  # columns that all strings share
MAX_TYPES = 256  # rarer ones say little, and cost a column each

Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
_NUMBERS = re.compile(
    r".*#(integer|int|long|short|byte|decimal|double|float|nonNegativeInteger|positiveInteger|"
    r"nonPositiveInteger|negativeInteger|unsigned(Int|Long|Short|Byte))"
)


@dataclass(frozen=True)
class Vocabulary:
    """What the columns mean.

    Attributes:
        types: classes of nodes with a column each, before a column of ones; None where types are no features.
        numbers: for each predicate with numbers how they are scaled: divisor, mean, spread; None where literals are no
            features. Strings have their hashed columns in any case.
        degrees: predicates with two columns each: the logarithm of one plus the number of triples that a node is the
            subject of, and the object of. A mean over neighbours does not know them. None where they are no features.
    """

    types: list[str] | None = None
    numbers: dict[str, list[float]] | None = None
    degrees: list[str] | None = None

    def as_json(self) -> dict[str, Any]:
        """Plain values; ``Vocabulary(**values)`` makes it again."""
        return asdict(self)


def is_type(relation: str) -> bool:
    """Whether a predicate says of what kind its subject is: rdf:type, or another whose name is "type"."""
    return relation.startswith("<") and re.split(r"[/#]", relation[1:-1])[-1] == "type"


def learn_vocabulary(triples: Triples, features: Sequence[str]) -> Vocabulary:
    """The columns that the given triples ask for.

    Args:
        triples: literals are still nodes.
        features: of "types", "degrees" and "literals".
    """
    for word in features:
        check_word("features", word, FEATURES)
    types, numbers = None, None
    if "types" in features:
        counts = Counter(triples.node_names[kind] for _, kind in _typed(triples))
        types = sorted(counts, key=lambda name: (-counts[name], name))[:MAX_TYPES]
    if "literals" in features:
        values: dict[int, list[float]] = {}
        for _, predicate, value in _literals(triples):
            if isinstance(value, float):
                values.setdefault(predicate, []).append(value)
        numbers = {triples.relation_names[predicate]: _scale(values[predicate]) for predicate in sorted(values)}
    degrees = None
    if "degrees" in features:
        linked = triples.edges[~_ends_in_literal(triples)] if numbers is not None else triples.edges
        degrees = sorted(triples.relation_names[place] for place in np.unique(linked[:, 1]).tolist())
    return Vocabulary(types, numbers, degrees)


def encode(triples: Triples, vocabulary: Vocabulary) -> tuple[Triples, Tensor]:
    """Features ``[N, F]`` of the nodes, and the triples without the literals that became features.

    Each predicate with numbers, dates or booleans gets two columns: the standardised value (the mean of several) and
    whether there is one. Strings are hashed, word by word, into shared columns. Values that are no numbers although
    their datatype says so count as strings, and so do numbers of predicates that had none when the vocabulary was made.
    """
    columns: list[Array] = []
    if vocabulary.types is not None:
        place = {name: column for column, name in enumerate(vocabulary.types)}
        kinds = np.zeros((len(triples.node_names), len(place) + 1))
        kinds[:, -1] = 1.0
        for node, kind in _typed(triples):
            if triples.node_names[kind] in place:
                kinds[node, place[triples.node_names[kind]]] = 1.0
        columns.append(kinds)
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
    """Fill the columns of numbers of edges with those of the triples: logarithms of one more."""
    if vocabulary.degrees is None:
        return
    first = 0 if vocabulary.types is None else len(vocabulary.types) + 1
    subject, relation, value = triples.edges.T
    for place, name in enumerate(vocabulary.degrees):
        chosen = relation == (triples.relation_names.index(name) if name in triples.relation_names else -1)
        for column, ends in enumerate((subject, value)):
            counts = np.bincount(ends[chosen], minlength=len(x))
            x[:, first + 2 * place + column] = torch.from_numpy(np.log1p(counts))


def literal_features(triples: Triples) -> tuple[Triples, Tensor]:
    """Take literals out of the graph and return features ``[N, F]`` of the nodes that remain."""
    return encode(triples, learn_vocabulary(triples, ("literals",)))


def _is_literal(triples: Triples) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """Of each node."""
    return np.array([name[0] == '"' for name in triples.node_names], dtype=bool)


def _ends_in_literal(triples: Triples) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """Of each triple."""
    return _is_literal(triples)[triples.edges[:, 2]]


def _typed(triples: Triples) -> list[tuple[int, int]]:
    """Nodes and their types."""
    relations = [place for place, name in enumerate(triples.relation_names) if is_type(name)]
    return [(s, o) for s, p, o in triples.edges[np.isin(triples.edges[:, 1], relations)].tolist()]


def _literals(triples: Triples) -> list[tuple[int, int, float | str]]:
    """Subject, predicate and value of each triple that ends in a literal."""
    found: list[tuple[int, int, float | str]] = []
    for subject, predicate, literal in triples.edges[_ends_in_literal(triples)].tolist():
        name = triples.node_names[literal]
        number = _as_number(name)
        found.append((subject, predicate, split_literal(name)[0] if number is None else number))
    return found


def _scale(entries: list[float]) -> list[float]:
    """Divisor, mean and spread; sums of huge numbers would overflow without the first."""
    values = np.array(entries)
    divisor = max(float(np.abs(values).max()), 1e-300)
    spread = float((values / divisor).std())
    return [divisor, float((values / divisor).mean()), spread if spread > 0 else 1.0]


def _encode_literals(triples: Triples, numbers: dict[str, list[float]]) -> list[Array]:
    num_nodes = len(triples.node_names)
    hashed = np.zeros((num_nodes, NUM_HASHED))
    sums = {name: np.zeros((num_nodes, 2)) for name in numbers}
    for subject, predicate, value in _literals(triples):
        name = triples.relation_names[predicate]
        if isinstance(value, float) and name in sums:
            divisor, mean, spread = numbers[name]
            sums[name][subject] += ((value / divisor - mean) / spread, 1)
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
    """A column for a word, the same on every machine and in every process."""
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=4).digest(), "little") % NUM_HASHED
