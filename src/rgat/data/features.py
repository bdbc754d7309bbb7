"""Literals as features of their subjects, instead of as nodes."""

from __future__ import annotations

import hashlib
import re
from datetime import date, datetime

import numpy as np
import torch
from torch import Tensor

from rgat.data.rdf import Triples, split_literal

NUM_HASHED = 32  # columns that all strings share

_NUMBERS = re.compile(
    r".*#(integer|int|long|short|byte|decimal|double|float|nonNegativeInteger|positiveInteger|"
    r"nonPositiveInteger|negativeInteger|unsigned(Int|Long|Short|Byte))"
)


def literal_features(triples: Triples) -> tuple[Triples, Tensor]:
    """Take literals out of the graph and return features ``[N, F]`` of the nodes that remain.

    Each predicate with numbers, dates or booleans gets two columns: the standardised value (the mean of several) and
    whether there is one. Strings are hashed, word by word, into shared columns. Values that are no numbers although
    their datatype says so count as strings.
    """
    is_literal = np.array([name[0] == '"' for name in triples.node_names], dtype=bool)
    kept = np.flatnonzero(~is_literal)
    new_id = np.cumsum(~is_literal) - 1
    literal_edges = triples.edges[is_literal[triples.edges[:, 2]]]
    graph_edges = triples.edges[~is_literal[triples.edges[:, 2]]]
    numbers: dict[int, list[tuple[int, float]]] = {}
    hashed = np.zeros((len(kept), NUM_HASHED))
    for subject, predicate, literal in literal_edges.tolist():
        row = int(new_id[subject])
        value = _as_number(triples.node_names[literal])
        if value is not None:
            numbers.setdefault(predicate, []).append((row, value))
        else:
            text = split_literal(triples.node_names[literal])[0]
            for word in re.split(r"(?:\\[nrt]|\s)+", text.lower()):
                hashed[row, _bucket(word)] += 1
    columns = [np.log1p(hashed)]
    for predicate in sorted(numbers):
        columns.append(_standardised(numbers[predicate], len(kept)))
    relation_kept = np.unique(graph_edges[:, 1])
    relation_id = np.full(len(triples.relation_names), -1, dtype=np.int64)
    relation_id[relation_kept] = np.arange(len(relation_kept))
    edges = np.stack([new_id[graph_edges[:, 0]], relation_id[graph_edges[:, 1]], new_id[graph_edges[:, 2]]], axis=1)
    names = [triples.node_names[place] for place in kept.tolist()]
    relations = [triples.relation_names[place] for place in relation_kept.tolist()]
    return Triples(names, relations, edges), torch.from_numpy(np.concatenate(columns, axis=1)).float()


def _standardised(entries: list[tuple[int, float]], num_rows: int) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    rows = np.array([row for row, _ in entries])
    values = np.array([value for _, value in entries])
    values = values / max(np.abs(values).max(), 1e-300)  # sums of huge numbers would overflow
    spread = values.std()
    values = (values - values.mean()) / (spread if spread > 0 else 1.0)
    count = np.bincount(rows, minlength=num_rows)
    mean = np.bincount(rows, weights=values, minlength=num_rows) / np.maximum(count, 1)
    return np.stack([mean, (count > 0).astype(float)], axis=1)


def _as_number(literal: str) -> float | None:
    value, datatype = split_literal(literal)
    try:
        if _NUMBERS.fullmatch(datatype):
            number = float(value)
            return number if np.isfinite(number) else None
        if datatype.endswith("#boolean"):
            return {"true": 1.0, "1": 1.0, "false": 0.0, "0": 0.0}[value]
        if datatype.endswith("#date"):
            return float(date.fromisoformat(value[:10]).toordinal())  # a time zone may follow
        if datatype.endswith("#dateTime"):
            return float(datetime.fromisoformat(value).toordinal())
        if datatype.endswith("#gYear"):
            return float(re.match(r"-?\d+", value)[0])  # type: ignore[index]
    except (ValueError, KeyError, TypeError):
        return None
    return None


def _bucket(word: str) -> int:
    """A column for a word, the same on every machine and in every process."""
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=4).digest(), "little") % NUM_HASHED
