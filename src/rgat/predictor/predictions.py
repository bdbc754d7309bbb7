"""Predictions for nodes or molecules: probabilities, their spread over the ensemble, and files of both."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rgat.checks import check_word
from rgat.data import Target
from rgat.data.files import write_atomically
from rgat.data.tables import csv_cell
from rgat.data.targets import places
from rgat.predictor.provenance import ModelRecord

Array = NDArray[np.float64]
PREDICTED = "urn:rgat:predicted-class"  # default predicate of the triples
# Terms of N-Triples; a class name that is not a valid term becomes a plain literal.
_IRI = r"""<[A-Za-z][A-Za-z0-9+.-]*:(?:[^\x00-\x20<>"{}|^`\\\[\]%]|%[0-9A-Fa-f]{2})*>"""
_BLANK = r"_:[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_-])?"
_STRING = r'''"(?:[^"\\\n\r]|\\[tbnrf"'\\]|\\u(?!D[89A-Fa-f])[0-9A-Fa-f]{4}|\\U000[0-9A-Fa-f]{5})*"'''
_SUBJECT = re.compile(f"{_IRI}|{_BLANK}")
_OBJECT = re.compile(rf"{_IRI}|{_STRING}(?:@[A-Za-z]{{1,8}}(?:-[A-Za-z0-9]{{1,8}})*|\^\^{_IRI})?")


@dataclass(frozen=True)
class Predictions:
    """Calibrated probabilities ``[n, columns]``: of each class, or of a positive result in each task.

    Invalid SMILES have NaN. ``spread`` is the standard deviation over the members of the ensemble; 0 for one member.

    Examples:
        >>> import rgat
        >>> model = rgat.fit("molecules", comparison=False, max_epochs=2)
        >>> predictions = model.predict(["CCO", "not a molecule"])
        >>> predictions.probabilities[1].tolist()[:2]
        [nan, nan]
        >>> predictions.save("predictions.csv")
    """

    names: tuple[str, ...]  # of the nodes, or SMILES
    columns: tuple[str, ...]  # classes of nodes, or tasks of molecules
    probabilities: Array = field(repr=False)
    spread: Array = field(repr=False)
    exclusive: bool = True  # whether the columns are mutually exclusive classes, or independent tasks
    notes: tuple[str, ...] = ()  # remarks for the reader, such as how many nodes could not be predicted
    titles: Mapping[str, str] = field(default_factory=dict, repr=False)  # `rdfs:label` of nodes and classes
    targets: tuple[Target, ...] = ()  # of the columns; none for one class per node and for 0/1 tasks of molecules

    def __len__(self) -> int:
        return len(self.names)

    @property
    def labels(self) -> NDArray[Any]:
        """The most probable class of each node; or 1, 0 or -1 (invalid SMILES) for each molecule and task.

        With ``targets``, those of the first one; see `of`.
        """
        if self.targets:
            return self.of(self.targets[0].name)
        if self.exclusive:
            return np.array([self.columns[best] for best in self.probabilities.argmax(1)], dtype=np.str_)
        return np.where(np.isnan(self.probabilities), -1, self.probabilities >= 0.5).astype(np.int64)

    def of(self, name: str) -> NDArray[Any]:
        """Return the predictions of a target, by the name of its column.

        These are numbers in their unit (NaN for an invalid SMILES), names of classes (empty), or 1, 0 and -1 (invalid)
        for a binary target and, ``[n, labels]``, for several labels.
        """
        check_word("target", name, [target.name for target in self.targets])
        target, place = next(found for found in places(self.targets) if found[0].name == name)
        values = self.probabilities[:, place]
        if target.kind == "regression":
            return values[:, 0]
        if target.kind == "multi-class":
            best = np.array(target.classes)[np.nan_to_num(values).argmax(1)]
            return np.where(np.isnan(values).any(1), "", best)
        labels = np.where(np.isnan(values), -1, values >= 0.5).astype(np.int64)
        return labels[:, 0] if target.kind == "binary" else labels

    def header(self) -> list[str]:
        """Return the column names of the table."""
        if self.targets:
            classes = [target.name for target in self.targets if target.kind == "multi-class"]
            names = [f"p({name})" if self._is_class(k) else name for k, name in enumerate(self.columns)]
            first, last = ("node", []) if self.exclusive else ("smiles", ["problem"])
            return [first, *classes, *names, *(f"{name} spread" for name in self.columns), *last]
        if self.exclusive:
            titles = ["node label", "class label"] if self.titles else []
            return ["node", "class", "probability", "spread", *(f"p({name})" for name in self.columns), *titles]
        return ["smiles", *self.columns, *(f"{task} spread" for task in self.columns), "problem"]

    def _is_class(self, column: int) -> bool:
        return any(t.kind == "multi-class" and p.start <= column < p.stop for t, p in places(self.targets))

    def _target_cells(self) -> list[list[str | float]]:
        classes = [self.of(target.name).tolist() for target in self.targets if target.kind == "multi-class"]
        table: list[list[str | float]] = []
        for row, (name, values, spread) in enumerate(zip(self.names, self.probabilities, self.spread, strict=True)):
            problem = [] if self.exclusive else ["cannot be read as SMILES" if np.isnan(values).any() else ""]
            table.append([name, *(each[row] for each in classes), *map(float, (*values, *spread)), *problem])
        return table

    def rows(self) -> list[list[str]]:
        """Return the rows of the table."""
        return [[cell if isinstance(cell, str) else _number(cell) for cell in row] for row in self._cells()]

    def _cells(self) -> list[list[str | float]]:
        """Return the rows of the table with numbers as numbers."""
        if self.targets:
            return self._target_cells()
        table = []
        for name, probability, spread in zip(self.names, self.probabilities, self.spread, strict=True):
            cells: list[str | float]
            if self.exclusive:
                best = int(probability.argmax())
                cells = [self.columns[best], *map(float, (probability[best], spread[best], *probability))]
                if self.titles:
                    cells += [self._title(name), self._title(self.columns[best])]
            else:
                problem = "cannot be read as SMILES" if np.isnan(probability).any() else ""
                cells = [*map(float, (*probability, *spread)), problem]
            table.append([name, *cells])
        return table

    def to_pandas(self) -> Any:
        """Return the table as a pandas data frame, with numbers as numbers."""
        try:
            import pandas
        except ImportError as error:
            raise ImportError("a data frame needs pandas; install it with `pip install pandas`") from error
        return pandas.DataFrame(self._cells(), columns=self.header())

    def to_polars(self) -> Any:
        """Return the table as a Polars data frame, with numbers as numbers."""
        try:
            import polars
        except ImportError as error:
            raise ImportError("a data frame needs Polars; install it with `pip install polars`") from error
        return polars.DataFrame(self._cells(), schema=self.header(), orient="row")

    def _title(self, name: str) -> str:
        return self.titles.get(name) or self.titles.get(f"<{name}>") or ""

    def save(self, path: str | PathLike[str], predicate: str = PREDICTED, model: ModelRecord | None = None) -> None:
        """Write a table (.csv, .tsv) or, for nodes, triples (.nt); with ``model`` also what `triples` adds for it."""
        path = Path(path)
        if path.suffix == ".nt":
            write_atomically(path, self.triples(predicate, model).encode())
        elif path.suffix in (".csv", ".tsv"):
            write_atomically(path, table_text([self.header(), *self.rows()], path).encode())
        else:
            raise ValueError(f"{path}: predictions must go to a file that ends in .csv, .tsv or .nt")

    def triples(self, predicate: str = PREDICTED, model: ModelRecord | None = None) -> str:
        """Return N-Triples: the class of each node and, with ``model``, its probability, spread and provenance."""
        if not self.exclusive:
            raise ValueError("triples (.nt) must be about nodes of a graph, got molecules; write .csv or .tsv")
        lines, relation = [], f"<{predicate.removeprefix('<').removesuffix('>')}>"
        if not re.fullmatch(_IRI, relation):
            raise ValueError(f'a predicate must be an IRI, such as http://example.org/group, got "{predicate}"')
        if len(self.targets) > 1:
            raise ValueError("triples (.nt) must be of one target, got several; write .csv or .tsv")
        for node, objects in zip(self.names, self._objects(), strict=True):
            if not _SUBJECT.fullmatch(node):
                raise ValueError(f"triples (.nt) must be about IRIs, got {node}; write .csv or .tsv")
            for term, probability, spread in objects:
                lines.append(f"{node} {relation} {term} .\n")
                if model is not None:
                    lines.append(model.statement(node, relation, term, probability, spread))
        return "".join([*lines, *([] if model is None else [model.triples()])])

    def _objects(self) -> Iterator[list[tuple[str, float | None, float]]]:
        """Yield the objects of each node's triples, with their probabilities and spreads.

        These are its class, a number, which has no probability, or each label of probability 1/2 or more.
        """
        kind = self.targets[0].kind if self.targets else "multi-class"
        for values, spread in zip(self.probabilities, self.spread, strict=True):
            if kind == "regression":
                yield [(f'"{float(values[0])!r}"^^<http://www.w3.org/2001/XMLSchema#double>', None, spread[0])]
                continue
            chosen = [int(values.argmax())] if kind == "multi-class" else (values >= 0.5).nonzero()[0].tolist()
            yield [(_term(self.columns[best]), values[best], spread[best]) for best in chosen]


def _number(value: float) -> str:
    return "" if np.isnan(value) else f"{value:.6f}" if abs(value) < 1e6 else f"{value:.6e}"


def _term(name: str) -> str:
    """Return a class as the object of a triple: as it is if it is an IRI or a literal, else as a plain literal."""
    if _OBJECT.fullmatch(name):
        return name
    if "://" in name and re.fullmatch(_IRI, f"<{name}>"):
        return f"<{name}>"
    escaped = name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{escaped}"'


def table_text(rows: Sequence[Sequence[str]], path: Path) -> str:
    """Return rows as TSV if the file's name ends in .tsv, else as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, delimiter="\t" if path.suffix == ".tsv" else ",", lineterminator="\n")
    writer.writerows([csv_cell(cell) for cell in row] for row in rows)
    return text.getvalue()
