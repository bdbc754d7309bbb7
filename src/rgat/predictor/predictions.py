"""What a model says of nodes or molecules: probabilities, how far the members of an ensemble agree, files of both."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rgat.data.files import write_atomically
from rgat.data.tables import csv_cell

Array = NDArray[np.float64]
PREDICTED = "urn:rgat:predicted-class"  # predicate of the triples, unless another is given
# Terms as N-Triples has them; what is written as such but is not valid becomes a plain literal.
_IRI = r"""<[A-Za-z][A-Za-z0-9+.-]*:(?:[^\x00-\x20<>"{}|^`\\\[\]%]|%[0-9A-Fa-f]{2})*>"""
_BLANK = r"_:[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_-])?"
_STRING = r'''"(?:[^"\\\n\r]|\\[tbnrf"'\\]|\\u(?!D[89A-Fa-f])[0-9A-Fa-f]{4}|\\U000[0-9A-Fa-f]{5})*"'''
_SUBJECT = re.compile(f"{_IRI}|{_BLANK}")
_OBJECT = re.compile(rf"{_IRI}|{_STRING}(?:@[A-Za-z]{{1,8}}(?:-[A-Za-z0-9]{{1,8}})*|\^\^{_IRI})?")


@dataclass(frozen=True)
class Predictions:
    """Calibrated probabilities.

    Attributes:
        names: of the nodes, or SMILES.
        columns: classes of nodes, or tasks of molecules.
        probabilities: of each class (they sum to one), or of a positive result in each task, ``[n, columns]``; NaN for
            what could not be read.
        spread: standard deviation of the same over the members of the ensemble; 0 for one member.
        exclusive: whether the columns are classes, of which one holds, or tasks of their own.
        notes: what the reader should know, such as how many nodes could not be judged.
    """

    names: tuple[str, ...]
    columns: tuple[str, ...]
    probabilities: Array = field(repr=False)
    spread: Array = field(repr=False)
    exclusive: bool = True
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.names)

    @property
    def labels(self) -> NDArray[np.str_] | NDArray[np.int64]:
        """The most probable class of each node; or 1, 0 or -1 (unreadable) for each molecule and task."""
        if self.exclusive:
            return np.array([self.columns[place] for place in self.probabilities.argmax(1)], dtype=np.str_)
        found: NDArray[np.int64] = np.where(np.isnan(self.probabilities), -1, self.probabilities >= 0.5).astype(
            np.int64
        )
        return found

    def header(self) -> list[str]:
        """Names of the columns of a table."""
        if self.exclusive:
            return ["node", "class", "probability", "spread", *(f"p({name})" for name in self.columns)]
        return ["smiles", *self.columns, *(f"{task} spread" for task in self.columns), "problem"]

    def rows(self) -> list[list[str]]:
        """The rows of a table."""
        found = []
        for name, chance, spread in zip(self.names, self.probabilities, self.spread, strict=True):
            if self.exclusive:
                best = int(chance.argmax())
                cells = [self.columns[best], _number(chance[best]), _number(spread[best]), *map(_number, chance)]
            else:
                problem = "cannot be read as SMILES" if np.isnan(chance).any() else ""
                cells = [*map(_number, chance), *map(_number, spread), problem]
            found.append([name, *cells])
        return found

    def save(self, path: str | PathLike[str], predicate: str = PREDICTED) -> None:
        """Write a table (.csv, .tsv) or, of nodes, triples (.nt)."""
        path = Path(path)
        if path.suffix == ".nt":
            write_atomically(path, self._triples(predicate).encode())
        elif path.suffix in (".csv", ".tsv"):
            write_atomically(path, table_text([self.header(), *self.rows()], path).encode())
        else:
            raise ValueError(f"{path}: predictions must go to a file that ends in .csv, .tsv or .nt")

    def _triples(self, predicate: str) -> str:
        if not self.exclusive:
            raise ValueError("triples (.nt) must be about nodes of a graph, got molecules; write .csv or .tsv")
        lines, relation = [], f"<{predicate.removeprefix('<').removesuffix('>')}>"
        if not re.fullmatch(_IRI, relation):
            raise ValueError(f'a predicate must be an IRI, such as http://example.org/group, got "{predicate}"')
        for node, label in zip(self.names, self.labels.tolist(), strict=True):
            if not _SUBJECT.fullmatch(node):
                raise ValueError(f"triples (.nt) must be about IRIs, got {node}; write .csv or .tsv")
            lines.append(f"{node} {relation} {_term(label)} .\n")
        return "".join(lines)


def _number(value: float) -> str:
    return "" if np.isnan(value) else f"{value:.6f}"


def _term(name: str) -> str:
    """A class as an object of a triple: an IRI or a literal if it is one, else its text as a literal."""
    if _OBJECT.fullmatch(name):
        return name
    if "://" in name and re.fullmatch(_IRI, f"<{name}>"):
        return f"<{name}>"
    escaped = name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{escaped}"'


def table_text(rows: Sequence[Sequence[str]], path: Path) -> str:
    """Rows as CSV or, by the name of the file, TSV."""
    text = io.StringIO()
    writer = csv.writer(text, delimiter="\t" if path.suffix == ".tsv" else ",", lineterminator="\n")
    writer.writerows([csv_cell(cell) for cell in row] for row in rows)
    return text.getvalue()
