"""Encode literals as models of earlier versions expect: two columns per number, hashed words in shared ones."""

from __future__ import annotations

import hashlib
import re
from datetime import date, datetime

import numpy as np
from numpy.typing import NDArray

from rgat.data.rdf.literals import literal_edges
from rgat.data.rdf.reader import Triples, split_literal

NUM_HASHED = 32  # columns into which the words of all strings are hashed
_NUMBERS = re.compile(
    r".*#(integer|int|long|short|byte|decimal|double|float|nonNegativeInteger|positiveInteger|"
    r"nonPositiveInteger|negativeInteger|unsigned(Int|Long|Short|Byte))"
)


def encode_numbers(triples: Triples, numbers: dict[str, list[float]]) -> list[NDArray[np.float64]]:
    """Return the columns of all nodes, given how the numbers of each predicate are standardised.

    That is by a divisor, a mean and a standard deviation. Each predicate with numbers, dates or booleans has two
    columns: the standardised value (the mean of several) and whether there is one. Other values are hashed, word by
    word, into shared columns.
    """
    num_nodes = len(triples.node_names)
    hashed = np.zeros((num_nodes, NUM_HASHED))
    sums = {name: np.zeros((num_nodes, 2)) for name in numbers}
    for subject, predicate, literal in zip(*(column.tolist() for column in literal_edges(triples)), strict=True):
        name, text = triples.relation_names[predicate], triples.node_names[literal]
        value = _as_number(text)
        if value is not None and name in sums:
            divisor, mean, deviation = numbers[name]
            sums[name][subject] += ((value / divisor - mean) / deviation, 1)
        else:
            words = split_literal(text)[0] if value is None else str(value)
            for word in re.split(r"(?:\\[nrt]|\s)+", words.lower()):
                hashed[subject, _bucket(word)] += 1
    columns = [np.log1p(hashed)]
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
