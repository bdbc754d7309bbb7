"""Literals as feature columns: decide once what the values of each predicate are, and encode them accordingly.

All columns of a node without a literal of the predicate are zero, which stands for "missing".
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rgat.data.rdf.reader import Triples, split_literal

SAMPLE = 4096  # literals of a predicate that decide how it is used; quantiles of so many are right within a percent
SHOWN = 128  # characters of each of them
MOST_OWN = 64  # values or words of a predicate with a column of their own
HASHED = 32  # columns for the rarer words and the character n-grams of a text
TEXT_COLUMNS = 1024  # of all texts together
AGREEMENT = 0.95  # share of the values that must be of a kind
FEW = 12  # distinct numbers that may be codes: each also gets a column
SEGMENTS = 8  # of the piecewise linear columns of a number, with as many values each
SKEWED = 2.0  # long side of the middle 90 % in interquartile ranges; 0.9 of uniform, 1.2 of normal numbers
LARGEST = 1e150  # of a number: squares must stay finite
BOUND = 5.0  # of a scaled number, so that an outlier cannot outweigh all else
HARMONICS = {"year": 1, "week": 3, "day": 2}  # sines and cosines of each cycle; three tell all days of a week apart
MONTHS = 12  # columns beside the cycle of the year, as many rules follow months
_CHUNK = 1 << 14  # literals encoded at once

Array = NDArray[np.float32]
_XSD = "http://www.w3.org/2001/XMLSchema#"
_NUMERIC = re.compile(
    r".*#(integer|int|long|short|byte|decimal|double|float|nonNegativeInteger|positiveInteger|"
    r"nonPositiveInteger|negativeInteger|unsigned(Int|Long|Short|Byte))"
)
_PLAIN_NUMBER = re.compile(r"[+-]?(0|[1-9]\d{0,17})(\.\d+)?([eE][+-]?\d{1,3})?")  # 007 is a code
_MOMENT = re.compile(
    r"(?P<year>-?\d{4,})(-(?P<month>\d\d)(-(?P<day>\d\d)([T ](?P<clock>\d\d:\d\d.*))?)?)?(Z|[+-]\d\d:\d\d)?"
)
_CLOCK = re.compile(r"(\d\d):(\d\d)(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)?")
_TRUTH = {"true": 1.0, "1": 1.0, "false": -1.0, "0": -1.0}
_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class Encoder:
    """How the literals of one predicate become columns; the fields are plain values, for the model folder.

    Attributes:
        kind: "number", "date", "boolean", "category" or "text".
        values: number of literals that it was learned from.
        nodes: number of nodes that had them.
        several: whether some node had several, so that a column counts them.
        logarithm: unit of a signed logarithm of numbers whose distribution is skewed; 0 for none.
        centre: median of the numbers, or of the years of dates, after the logarithm.
        scale: their interquartile range, as the standard deviation of a normal distribution.
        knots: ends of the segments of the piecewise linear columns.
        cycles: cycles of dates that the values tell: of the "year", the "week" and the "day".
        own: values of a category or words of a text with a column each; of numbers, where these are few.
        hashed: columns for the other words of a text and for character n-grams.
    """

    kind: str
    values: int = 0
    nodes: int = 0
    several: bool = False
    logarithm: float = 0.0
    centre: float = 0.0
    scale: float = 1.0
    knots: list[float] = field(default_factory=list)
    cycles: list[str] = field(default_factory=list)
    own: list[str] = field(default_factory=list)
    hashed: int = 0

    @property
    def width(self) -> int:
        """The number of columns."""
        return self._num_values + 1 + self.several

    @property
    def _num_values(self) -> int:
        if self.kind == "boolean":
            return 1
        position = 1 + max(len(self.knots) - 1, 0) if self.kind in ("number", "date") else 0
        cycles = 2 * sum(HARMONICS[cycle] for cycle in self.cycles) + MONTHS * ("year" in self.cycles)
        return position + cycles + len(self.own) + self.hashed

    def encode(self, subjects: NDArray[np.int64], literals: Sequence[str], num_nodes: int) -> Array:
        """Return the columns of all nodes, given the literals of some: means of what the values of a node say.

        The last columns say whether a node has a value and, if some have several, log1p of their number.
        """
        sums: Array = np.zeros((num_nodes, self._num_values), dtype=np.float32)
        counts = np.zeros(num_nodes)
        for start in range(0, len(literals), _CHUNK):
            rows = [self._row(literal) for literal in literals[start : start + _CHUNK]]
            known = np.array([row is not None for row in rows], dtype=bool)
            if known.any():
                nodes = subjects[start : start + _CHUNK][known]
                np.add.at(sums, nodes, np.array([row for row in rows if row is not None], dtype=np.float32))
                np.add.at(counts, nodes, 1)
        if self.kind in ("number", "date", "boolean"):
            sums /= np.maximum(counts, 1)[:, None]
        elif self.kind == "category":
            np.minimum(sums, 1, out=sums)
        else:
            own, hashed = sums[:, : len(self.own)], sums[:, len(self.own) :]
            np.log1p(own, out=own)
            hashed /= np.maximum(np.linalg.norm(hashed, axis=1, keepdims=True), 1e-6)
        last = [counts > 0, np.log1p(counts)][: 1 + self.several]
        return np.concatenate([sums, np.stack(last, axis=1)], axis=1, dtype=np.float32)

    def _row(self, literal: str) -> list[float] | None:
        """Return what one literal adds to the columns; None if it is not of the predicate's kind."""
        value, datatype = split_literal(literal)
        if self.kind == "boolean":
            truth = _TRUTH.get(value.lower())
            return None if truth is None else [truth]
        if self.kind == "number":
            number = as_number(value, datatype)
            return None if number is None else [*self._position(number), *self._indicators(f"{number:g}")]
        if self.kind == "date":
            moment = as_moment(value, datatype)
            if moment is None:
                return None
            return [*self._position(moment["position"]), *self._cycles(moment)]
        if self.kind == "category":
            return self._indicators(value[:SHOWN].strip())
        return self._words(value)

    def _position(self, number: float) -> list[float]:
        """Return the scaled number, and the share of each segment that is below it."""
        number = _signed_log(number, self.logarithm)
        scaled = min(max((number - self.centre) / self.scale, -BOUND), BOUND)
        pairs = zip(self.knots, self.knots[1:], strict=False)
        return [scaled, *(min(max((number - low) / (high - low), 0.0), 1.0) for low, high in pairs)]

    def _cycles(self, moment: dict[str, float]) -> list[float]:
        """Return sines and cosines of the phase in each cycle, and the month; zero where a date does not tell it."""
        columns = []
        for cycle in self.cycles:
            phase = moment.get(cycle)
            for harmonic in range(1, HARMONICS[cycle] + 1):
                angle = 2 * math.pi * harmonic * (phase or 0.0)
                columns += [0.0, 0.0] if phase is None else [math.sin(angle), math.cos(angle)]
            if cycle == "year":
                columns += [float(phase is not None and int(MONTHS * phase) == month) for month in range(MONTHS)]
        return columns

    def _indicators(self, value: str) -> list[float]:
        return [float(value == other) for other in self.own]

    def _words(self, text: str) -> list[float]:
        """Count the words with a column; hash the others, and the character n-grams of all, with a sign each."""
        row = [0.0] * (len(self.own) + self.hashed)
        column = {word: number for number, word in enumerate(self.own)}
        for word in words_of(text):
            if word in column:
                row[column[word]] += 1
            marked = f"^{word}$"
            grams = [marked[i : i + 3] for i in range(len(marked) - 2)]
            for token in grams if word in column else [word, *grams]:
                number = _hash(token)
                row[len(self.own) + (number >> 1) % self.hashed] += 1 if number & 1 else -1
        return row


def words_of(text: str) -> list[str]:
    """Return the words of a literal, in lower case; its line breaks and quotes are escaped as in N-Triples."""
    return _WORD.findall(re.sub(r"\\.", " ", text).lower())


def as_number(value: str, datatype: str) -> float | None:
    """Return a number of a numeric datatype, or one that is written as text or with a unit of its own, else None."""
    is_free = not datatype.startswith(("@", _XSD)) or datatype == f"{_XSD}string"
    if not _NUMERIC.fullmatch(datatype) and not (is_free and _PLAIN_NUMBER.fullmatch(value)):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return min(max(number, -LARGEST), LARGEST) if math.isfinite(number) else None


def as_moment(value: str, datatype: str) -> dict[str, float] | None:
    """Return the position of a date or time on a line, in years, and in the cycles that it tells, from 0 to 1.

    Text counts if it is an ISO date, which a year alone is not.
    """
    kind = datatype.rpartition("#")[2]
    if kind == "time":
        clock = _CLOCK.fullmatch(value)
        share = None if clock is None else (int(clock[1]) * 60 + int(clock[2])) / 1440
        return None if share is None else {"position": share, "day": share}
    found = _MOMENT.fullmatch(value)
    if found is None or kind not in ("date", "dateTime", "dateTimeStamp", "gYear", "gYearMonth", "string"):
        return None
    if kind == "string" and found["day"] is None:
        return None
    year, month, day = (int(found[part] or 1) for part in ("year", "month", "day"))
    if not (1 <= month <= 12 and 1 <= day <= 31) or abs(year) > 10**9:
        return None
    in_year = (month - 1 + (day - 0.5) / 31) / MONTHS  # within the month, so that rounding cannot leave it
    moment = {"position": year + in_year}
    if found["month"] is not None:
        moment["year"] = in_year
    if found["day"] is not None and 1 <= year <= 9999:
        try:
            moment["week"] = date(year, month, day).weekday() / 7
        except ValueError:
            return None  # the 30th of February
    clock = _CLOCK.fullmatch(found["clock"] or "")
    if clock is not None:
        moment["day"] = (int(clock[1]) * 60 + int(clock[2])) / 1440
        moment["position"] += moment["day"] / 365.25
    return moment


def _signed_log(number: float, unit: float) -> float:
    return math.copysign(math.log1p(abs(number) / unit), number) if unit else number


def _hash(token: str) -> int:
    """Return a number for a text, the same on every machine and in every process."""
    return int.from_bytes(hashlib.blake2b(token.encode(), digest_size=4).digest(), "little")


class _Sample:
    """Counts of a predicate's literals, and every k-th of them, k doubling as they become many."""

    def __init__(self) -> None:
        self.values = self.nodes = 0
        self.step = 1
        self.kept: list[tuple[str, str]] = []  # value and datatype

    def add(self, literals: Sequence[str], nodes: int) -> None:
        before = self.values
        self.values, self.nodes = before + len(literals), self.nodes + nodes
        while self.values > SAMPLE * self.step:
            self.kept, self.step = self.kept[::2], 2 * self.step
        for literal in literals[-before % self.step :: self.step]:
            value, datatype = split_literal(literal)
            self.kept.append((value[:SHOWN], datatype))

    def encoder(self) -> Encoder:
        """Return the encoder of the kind that nearly all values are of; of text without its columns."""
        counts: dict[str, Any] = {"values": self.values, "nodes": self.nodes, "several": self.values > self.nodes}
        least = AGREEMENT * len(self.kept)
        truths = [value for value, kind in self.kept if value.lower() in _TRUTH and _may_be_boolean(value, kind)]
        if len(truths) >= least:
            return Encoder("boolean", **counts)
        numbers = [number for value, kind in self.kept if (number := as_number(value, kind)) is not None]
        if len(numbers) >= least:
            names = Counter(f"{number:g}" for number in numbers)
            own = sorted(name for name in names if names[name] > 1) if len(names) <= FEW else []
            return _with_scale(Encoder("number", own=own, **counts), numbers)
        moments = [moment for value, kind in self.kept if (moment := as_moment(value, kind)) is not None]
        if len(moments) >= least:
            cycles = [cycle for cycle in HARMONICS if len({moment.get(cycle) for moment in moments} - {None}) > 1]
            return _with_scale(Encoder("date", cycles=cycles, **counts), [moment["position"] for moment in moments])
        values = Counter(value.strip() for value, _ in self.kept)
        words = {word for value in values for word in words_of(value)}
        is_short = max(map(len, values)) < SHOWN and len(words) >= len(values)
        if is_short and len(values) <= MOST_OWN and len(self.kept) >= 2 * len(values):
            return Encoder("category", own=sorted(values), **counts)
        return Encoder("text", **counts)

    def words(self, most: int) -> list[str]:
        """Return the words that most values have; those of a single one only if all words fit."""
        counts = Counter(word for value, _ in self.kept for word in set(words_of(value)))
        repeated = [word for word in counts if counts[word] > 1 or len(counts) <= most]
        return sorted(sorted(repeated, key=lambda word: (-counts[word], word))[:most])


def _may_be_boolean(value: str, datatype: str) -> bool:
    return datatype.endswith("#boolean") or (datatype.endswith("#string") and not value.isdigit())


def _with_scale(encoder: Encoder, entries: Sequence[float]) -> Encoder:
    """Return the encoder with the logarithm, median, quartiles and segments of its numbers."""
    numbers = np.array(entries)
    low, first, middle, third, high = np.quantile(numbers, [0.05, 0.25, 0.5, 0.75, 0.95])
    logarithm = 0.0
    if encoder.kind == "number" and max(high - middle, middle - low) > SKEWED * (third - first):
        sizes = np.abs(numbers[numbers != 0])
        logarithm = max(float(np.median(sizes)), 1e-300) if len(sizes) else 0.0
        numbers = np.array([_signed_log(number, logarithm) for number in entries])
    quantiles = np.quantile(numbers, np.linspace(0, 1, SEGMENTS + 1))
    first, middle, third = quantiles[SEGMENTS // 4], quantiles[SEGMENTS // 2], quantiles[3 * SEGMENTS // 4]
    scale = float(third - first) / 1.349 or float(numbers.std()) or 1.0
    knots = np.unique(quantiles)
    knots = knots[np.concatenate([[True], np.diff(knots) > 1e-9 * max(abs(knots).max(), 1e-300)])]
    return replace(encoder, logarithm=logarithm, centre=float(middle), scale=scale, knots=knots.tolist())


class LiteralReader:
    """Learn the encoders of all predicates from triples, which may come in blocks, sorted by subject."""

    def __init__(self) -> None:
        self.samples: dict[str, _Sample] = {}

    def add(self, triples: Triples) -> None:
        """Count and sample the literals of a block that has all triples of its subjects."""
        subjects, predicates, literals = literal_edges(triples)
        for number in np.unique(predicates).tolist():
            chosen = predicates == number
            names = [triples.node_names[literal] for literal in literals[chosen].tolist()]
            sample = self.samples.setdefault(triples.relation_names[number], _Sample())
            sample.add(names, len(np.unique(subjects[chosen])))

    def encoders(self) -> dict[str, Encoder]:
        """Return an encoder for each predicate, by name; texts share a limited number of columns."""
        found = {name: self.samples[name].encoder() for name in sorted(self.samples)}
        texts = [name for name, encoder in found.items() if encoder.kind == "text"]
        share = min(1.0, TEXT_COLUMNS / max(len(texts) * (MOST_OWN + HASHED), 1))
        own, hashed = max(int(share * MOST_OWN), 4), max(int(share * HASHED), 4)
        for name in texts:
            found[name] = replace(found[name], own=self.samples[name].words(own), hashed=hashed)
        return found


def literal_edges(triples: Triples) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return subject, predicate and object of the triples whose object is a literal, in their order."""
    subject, predicate, literal = triples.edges[is_literal(triples.node_names)[triples.edges[:, 2]]].T
    return subject, predicate, literal


def is_literal(node_names: Sequence[str]) -> NDArray[np.bool_]:
    """Return a mask of the nodes that are literals."""
    return np.array([name[0] == '"' for name in node_names], dtype=bool)


def encode_literals(triples: Triples, encoders: dict[str, Encoder]) -> list[Array]:
    """Return the columns of each predicate with an encoder, for the nodes that are no literals."""
    subjects, predicates, literals = literal_edges(triples)
    is_node = ~is_literal(triples.node_names)
    row = np.cumsum(is_node) - 1
    columns = []
    for name, encoder in encoders.items():
        chosen = predicates == (triples.relation_names.index(name) if name in triples.relation_names else -1)
        names = [triples.node_names[literal] for literal in literals[chosen].tolist()]
        columns.append(encoder.encode(row[subjects[chosen]], names, int(is_node.sum())))
    return columns
