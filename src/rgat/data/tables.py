"""CSV and TSV tables and data frames: read them with line numbers, and write cells that no spreadsheet executes."""

from __future__ import annotations

import csv
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from rgat.checks import check_word
from rgat.data.files import kind_of, open_lines

_FORMULA = ("=", "+", "-", "@", "\t", "\n")


@dataclass(frozen=True)
class Table:
    """Rows of a table with a header; row ``i`` starts at line ``lines[i]`` of the file, or of a data frame is row i."""

    path: Path
    header: tuple[str, ...]
    rows: list[list[str]]
    lines: list[int]

    def column(self, name: str) -> list[str]:
        """Return the values of one column."""
        check_word(f"column of {self.path}", name, self.header)
        position = self.header.index(name)
        return [row[position] for row in self.rows]


def read_table(path: Any) -> Table:
    """Read a TSV or CSV file, plain or compressed, or a data frame of pandas or Polars.

    The file name, or else the header, tells the separator.
    """
    if is_frame(path):
        return _from_frame(path)
    path = Path(path)
    rows, lines, line = [], [], 0
    try:
        with open_lines(path) as file:
            first = file.readline()
            delimiter = {".tsv": "\t", ".csv": ","}.get(kind_of(path)) or ("\t" if "\t" in first else ",")
            header = tuple(name.strip() for name in next(csv.reader([first], delimiter=delimiter), []))
            reader = csv.reader(file, delimiter=delimiter, strict=True)
            line = 1
            for row in reader:
                start, line = line + 1, reader.line_num + 1
                if row and len(row) != len(header):
                    hint = "; write decimal points instead of commas" * (delimiter == "," and len(row) > len(header))
                    raise ValueError(
                        f"{path}, line {start}: must have {len(header)} fields as the header has, got {len(row)}{hint}"
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
    _check_names(path, header)
    return Table(path, header, rows, lines)


def _check_names(path: Path, header: Sequence[str]) -> None:
    if len(set(header)) != len(header):
        raise ValueError(f"{path}: column names must differ, got {', '.join(header)}")


def is_frame(source: Any) -> bool:
    """Whether this is a data frame, of pandas or Polars, and not the name of a file; raise for a lazy one."""
    if hasattr(source, "collect") and not hasattr(source, "shape"):
        raise ValueError("a data frame must be in memory, got a lazy one; pass `frame.collect()`")
    return not isinstance(source, (str, PathLike)) and hasattr(source, "columns") and hasattr(source, "shape")


def _from_frame(frame: Any) -> Table:
    """Return the cells of a data frame as a file would have them; its rows are counted from 1."""
    path, header = Path("data frame"), tuple(str(name).strip() for name in frame.columns)
    _check_names(path, header)
    columns = [[_cell(value, name) for value in frame[name].to_list()] for name in frame.columns]
    rows = [list(row) for row in zip(*columns, strict=True)]
    return Table(path, header, rows, list(range(1, len(rows) + 1)))


def _cell(value: Any, name: Any) -> str:
    """Return a value of a column as text; nothing where it is missing, and 1 or 0 for a truth value."""
    if isinstance(value, (list, tuple, set, dict, np.ndarray)) or hasattr(value, "to_list"):
        raise ValueError(
            f'data frame: a cell must have one value, got a {type(value).__name__} in column "{name}"; '
            "give each value a row or a column of its own"
        )
    if value is None or type(value).__name__ in ("NAType", "NaTType") or value != value:
        return ""
    return str(int(value)) if isinstance(value, (bool, np.bool_)) else str(value)


def separator_hint(header: Sequence[str]) -> str:
    """Return a hint for an error message if a header of one column contains another separator, else nothing."""
    separators = {"semicolons": ";", "tabs": "\t", "commas": ",", "bars": "|"}
    for name, sign in separators.items():
        if len(header) == 1 and sign in header[0]:
            return f"; its fields seem to be separated by {name}: .csv means commas, .tsv tabs"
    return ""


def csv_cell(text: str) -> str:
    """Return a cell that a spreadsheet shows as text: names in tables may come from untrusted files.

    Text that a spreadsheet would execute as a formula gets an apostrophe in front, which is how spreadsheets mark text
    themselves. Numbers, and a sign alone such as a dash for a missing value, stay unchanged.
    """
    text = text.replace("\r", " ")  # a CSV writer whose lines end in "\n" would not quote it
    if not text.startswith(_FORMULA) or len(text) == 1:
        return text
    try:
        float(text)
    except ValueError:
        return f"'{text}"
    return text if text[0] in "+-" else f"'{text}"
