"""Predictions for nodes or molecules: probabilities, their spread over the ensemble, and files of both."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from ipaddress import IPv6Address
from itertools import chain
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
from rgat.predictor.conformal import Region
from rgat.predictor.provenance import ModelRecord

Array = NDArray[np.float64]
PREDICTED = "urn:rgat:predicted-class"  # default predicate of the triples
# Terms of N-Triples; a class name that is not a valid term becomes a plain literal.
_IRI = r"""<[A-Za-z][A-Za-z0-9+.-]*:(?:[^\x00-\x20<>"{}|^`\\\[\]%]|%[0-9A-Fa-f]{2})*>"""
_BLANK = r"_:[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_-])?"
_CODE = r"\\(?:u|U0000)(?![Dd][89A-Fa-f])[0-9A-Fa-f]{4}|\\U000[1-9A-Fa-f][0-9A-Fa-f]{4}"  # no surrogates
_STRING = rf'''"(?:[^"\\\n\r]|\\[tbnrf"'\\]|{_CODE})*"'''
_ADDRESS = re.compile(r"(?<=//)((?:[^/?#\[\]@]*@)?)\[([0-9A-Fa-f:.]+)\](?=[:/?#>])")  # of IPv6, as a host
_LITERAL = re.compile(rf"({_STRING})(@[A-Za-z]{{1,8}}(?:-[A-Za-z0-9]{{1,8}})*|\^\^{_IRI})?")
_ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))")
_SHORT = {"t": "\t", "b": "\b", "n": "\n", "r": "\r", "f": "\f"}  # escapes that do not stand for themselves


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
    coverage: float | None = None  # of sets and intervals; None without these
    regions: tuple[Region, ...] = field(default=(), repr=False)  # the sets and intervals
    distance: Array | None = field(default=None, repr=False)  # [n] to the training data; above 1 is unusual
    unlike: tuple[str, ...] = field(default=(), repr=False)  # what no training example has, "" where there is nothing

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

    @property
    def warnings(self) -> list[str]:
        """Why an example is unlike the training data, "" where it is not or where nothing is known about it."""
        if self.distance is None:
            return [""] * len(self)
        far = [f"{d:.1f} times as far as usual" if d > 1 else "" for d in self.distance.tolist()]
        return ["; ".join(filter(None, pair)) for pair in zip(far, self.unlike, strict=True)]

    @property
    def sets(self) -> dict[str, NDArray[np.bool_]]:
        """Which classes belong to the set of each example, ``[n, classes]``.

        The key is "class" for one class per node, whose classes are the columns, or the name of a task or label, whose
        classes are 0 and 1 or those of the target.
        """
        return {region.name: region.inside for region in self.regions if region.classes}

    @property
    def intervals(self) -> dict[str, Array]:
        """The lower and upper bounds of each number, ``[n, 2]``, by its name."""
        return {region.name: region.inside for region in self.regions if not region.classes}

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
        added = [title for region in self.regions for title in self.region_titles(region)]
        added += [] if self.distance is None else ["distance", "unlike training"]
        if self.targets:
            classes = [target.name for target in self.targets if target.kind == "multi-class"]
            names = [f"p({name})" if self._is_class(k) else name for k, name in enumerate(self.columns)]
            first, last = ("node", []) if self.exclusive else ("smiles", ["problem"])
            return [first, *classes, *names, *(f"{name} spread" for name in self.columns), *last, *added]
        if self.exclusive:
            titles = ["node label", "class label"] if self.titles else []
            names = [f"p({name})" for name in self.columns]
            return ["node", "class", "probability", "spread", *names, *titles, *added]
        return ["smiles", *self.columns, *(f"{task} spread" for task in self.columns), "problem", *added]

    def region_titles(self, region: Region) -> list[str]:
        """Return the names of the columns of a set or an interval, which state the coverage."""
        share, name = f"{100 * (self.coverage or 0):g} %", f" of {region.name}" if len(self.regions) > 1 else ""
        return [f"{share} {word}{name}" for word in (["set"] if region.classes else ["low", "high"])]

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
            return self._with_added(self._target_cells())
        table: list[list[str | float]] = []
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
        return self._with_added(table)

    def _with_added(self, table: list[list[str | float]]) -> list[list[str | float]]:
        """Append the cells of sets, intervals and distances, as far as there are any; invalid SMILES have none."""
        is_known = [not np.isnan(row).any() for row in self.probabilities]
        for region in self.regions:
            for row, cells, known in zip(table, region.cells(), is_known, strict=True):
                row += cells if known or not region.classes else [""]
        if self.distance is not None:
            for row, distance, warning in zip(table, self.distance.tolist(), self.warnings, strict=True):
                row += [distance, warning]
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
        if not _is_iri(relation):
            raise ValueError(f'a predicate must be an IRI, such as http://example.org/group, got "{predicate}"')
        if len(self.targets) > 1:
            raise ValueError("triples (.nt) must be of one target, got several; write .csv or .tsv")
        for node, objects in zip(self.names, self._objects(), strict=True):
            if not _is_iri(node) and not re.fullmatch(_BLANK, node):
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


def take(predictions: Predictions, rows: slice) -> Predictions:
    """Return some rows of predictions, as `concatenate` joins them."""
    p = predictions
    return replace(
        p,
        names=p.names[rows],
        probabilities=p.probabilities[rows],
        spread=p.spread[rows],
        regions=tuple(region._replace(inside=region.inside[rows]) for region in p.regions),
        distance=None if p.distance is None else p.distance[rows],
        unlike=p.unlike[rows],
    )


def concatenate(parts: Sequence[Predictions]) -> Predictions:
    """Return the predictions of batches as one."""
    first = parts[0]

    def joined(name: str) -> Any:
        arrays = [getattr(part, name) for part in parts]
        return None if arrays[0] is None else np.concatenate(arrays)

    arrays = {name: joined(name) for name in ("probabilities", "spread", "distance")}
    names, unlike = (tuple(chain.from_iterable(getattr(part, name) for part in parts)) for name in ("names", "unlike"))
    regions = tuple(
        region._replace(inside=np.concatenate([part.regions[number].inside for part in parts]))
        for number, region in enumerate(first.regions)
    )
    return replace(first, names=names, unlike=unlike, regions=regions, **arrays)


def _number(value: float) -> str:
    return "" if np.isnan(value) else f"{value:.6f}" if abs(value) < 1e6 else f"{value:.6e}"


def _term(name: str) -> str:
    """Return a class as the object of a triple: an IRI or a literal if it is written as one, else a plain literal."""
    if _is_iri(name):
        return name
    if literal := _LITERAL.fullmatch(name):
        return _quoted(_ESCAPE.sub(_character, literal[1][1:-1])) + (literal[2] or "")
    if "://" in name and _is_iri(f"<{name}>"):
        return f"<{name}>"
    return _quoted(name)


def _is_iri(term: str) -> bool:
    """Tell whether a term is an IRI in angle brackets; square brackets are only around the IPv6 address of a host."""
    address = _ADDRESS.search(term)
    if address is not None and term.find("//") == address.start() - 2:
        try:
            IPv6Address(address[2])
        except ValueError:
            return False
        term = _ADDRESS.sub(r"\1host", term, count=1)
    return re.fullmatch(_IRI, term) is not None


def _character(escape: re.Match[str]) -> str:
    """Return the character that an escape of N-Triples stands for."""
    code = escape[1] or escape[2]
    return chr(int(code, 16)) if code else _SHORT.get(escape[3], escape[3])


def _quoted(text: str) -> str:
    r"""Return a text as a literal that N-Triples and SPARQL read alike.

    SPARQL may replace ``\uXXXX`` before it looks for the end of a literal, also after a backslash; so no such escape is
    left in a text, and a ``u`` after a backslash is written as an escape.
    """
    text = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return '"' + re.sub(r"(?<=\\)[uU](?=[0-9A-Fa-f]{4})", lambda found: f"\\u{ord(found[0]):04X}", text) + '"'


def table_text(rows: Sequence[Sequence[str]], path: Path) -> str:
    """Return rows as TSV if the file's name ends in .tsv, else as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, delimiter="\t" if path.suffix == ".tsv" else ",", lineterminator="\n")
    writer.writerows([csv_cell(cell) for cell in row] for row in rows)
    return text.getvalue()
