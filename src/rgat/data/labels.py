"""Label tables: TSV or CSV files that give classes, or values of several tasks, to named things."""

from __future__ import annotations

import csv
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from rgat.checks import check_word
from rgat.data.dataset import PARTS
from rgat.data.files import kind_of, open_lines


@dataclass(frozen=True)
class Table:
    """Rows of a table with a header; ``lines[i]`` is the line of the file that row ``i`` starts at."""

    path: Path
    header: tuple[str, ...]
    rows: list[list[str]]
    lines: list[int]

    def column(self, name: str) -> list[str]:
        """The values of one column."""
        check_word(f"column of {self.path}", name, self.header)
        place = self.header.index(name)
        return [row[place] for row in self.rows]


def read_table(path: str | PathLike[str], delimiter: str | None = None) -> Table:
    """Read a TSV or CSV file, plain or compressed; the separator is told by the name, or else by the header."""
    path = Path(path)
    rows, lines, line = [], [], 0
    try:
        with open_lines(path) as file:
            first = file.readline()
            delimiter = delimiter or _delimiter(path, first)
            header = tuple(name.strip() for name in next(csv.reader([first], delimiter=delimiter), []))
            reader = csv.reader(file, delimiter=delimiter, strict=True)
            line = 1
            for row in reader:
                start, line = line + 1, reader.line_num + 1
                if row and len(row) != len(header):
                    raise ValueError(
                        f"{path}, line {start}: must have {len(header)} fields as the header has, got {len(row)}"
                    )
                if row:
                    rows.append(row)
                    lines.append(start)
    except csv.Error as error:
        raise ValueError(f"{path}, line {line + 1}: not a valid table: {error}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: must be UTF-8 text, got other bytes near byte {error.start}") from error
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path}: cannot be read: {error}") from error
    if not any(header):
        raise ValueError(f"{path}: must begin with a line of column names, got an empty file or line")
    if len(set(header)) != len(header):
        raise ValueError(f"{path}: column names must differ, got {', '.join(header)}")
    return Table(path, header, rows, lines)


def _delimiter(path: Path, header: str) -> str:
    known = {".tsv": "\t", ".csv": ","}
    return known.get(kind_of(path)) or ("\t" if "\t" in header else ",")


@dataclass(frozen=True)
class Label:
    """One line of a label table."""

    node: str
    name: str  # of the class
    part: str | None
    place: str  # file and line, for messages


def separator_hint(header: Sequence[str]) -> str:
    """Words for a header that looks as if it was cut in the wrong places."""
    if len(header) != 1:
        return ""
    signs = {"semicolons": ";", "tabs": "\t", "commas": ",", "bars": "|"}
    found = [name for name, sign in signs.items() if sign in header[0]]
    return f"; its fields seem to be separated by {found[0]}: .csv means commas, .tsv tabs" if found else ""


def read_labels(
    path: str | PathLike[str],
    node_column: str | None = None,
    label_column: str | None = None,
    split_column: str | None = None,
) -> list[Label]:
    """Read which node has which class; by default the first column names the node and the last other one the class."""
    table = read_table(path)
    node_column = table.header[0] if node_column is None else node_column
    if label_column is None:
        others = [name for name in table.header if name not in (node_column, split_column)]
        if not others:
            hint = separator_hint(table.header)
            raise ValueError(f"{table.path}: a column of classes must stand beside {node_column}, got none{hint}")
        label_column = others[-1]
    nodes, names = table.column(node_column), table.column(label_column)
    parts: Sequence[str | None] = [None] * len(nodes) if split_column is None else table.column(split_column)
    labels: dict[str, Label] = {}
    for node, name, part, line in zip(nodes, names, parts, table.lines, strict=True):
        place = f"{table.path}, line {line}"
        node, name = node.strip(), name.strip()
        if not node or not name:
            raise ValueError(f"{place}: node and class must not be empty")
        if part is not None and part not in PARTS:
            raise ValueError(f'{place}: the part must be "train", "valid" or "test", got "{part}"')
        known = labels.get(node)
        if known is not None and (known.name, known.part) != (name, part):
            raise ValueError(f'{place}: {node} is "{name}" here but "{known.name}" in {known.place}; keep one of them')
        labels.setdefault(node, Label(node, name, part, place))
    return list(labels.values())
