"""What a data set is to learn: its targets, found in the columns of a table or said by the reader."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rgat.checks import check_word

KINDS = ("binary", "multi-class", "multi-label", "regression")
MISSING_WORDS = ("", "nan", "NaN", "NA")
LARGEST = 1e30  # size of a number; squares of larger ones exceed single precision
NUM_STRATA = 5  # of numbers, by which splits are stratified
Task = str | Mapping[str, str] | None  # a kind for all columns, or one for each that is named
_BITS = {"0": 0.0, "0.0": 0.0, "1": 1.0, "1.0": 1.0}
_BOUND = re.compile(r"(<=|>=|[<>≤≥])\s*(.*)")
_DIGITS = r"[-+]?(?:\d[\d.,_]*|\.\d+)(?:[eE][-+]?\d+)?"
_NUMBER = re.compile(rf"{_DIGITS}|[-+]?inf(?:inity)?|nan", re.IGNORECASE)
_WITH_UNIT = re.compile(rf"({_DIGITS})\s*(?:[^\W\d_]|[%°])\S{{0,11}}")  # no names such as 2-butanol


@dataclass(frozen=True)
class Target:
    """One thing to learn, with one output of the model or one for each class or label.

    Examples:
        >>> from rgat.data import Target
        >>> target = Target("solubility (mg/L)", "regression", mean=3.0, scale=2.0)
        >>> target.width, target.unit
        (1, 'mg/L')
    """

    name: str  # of its column
    kind: str  # one of `KINDS`
    classes: tuple[str, ...] = ()  # of a multi-class target, or the labels of a multi-label one
    mean: float = 0.0  # of a regression: of the training part, in the target's unit
    scale: float = 1.0  # of a regression: the standard deviation of the training part

    @property
    def width(self) -> int:
        """The number of outputs."""
        return len(self.classes) if self.kind in ("multi-class", "multi-label") else 1

    @property
    def unit(self) -> str:
        """The unit of a number, which ends the name of its column in brackets; empty without one."""
        found = re.search(r"[(\[]([^()\[\]]+)[)\]]\s*$", self.name)
        return found[1].strip() if found and self.kind == "regression" else ""


class TargetTable(NamedTuple):
    """Targets and their values: one column per output, NaN where a value is missing."""

    targets: tuple[Target, ...]
    values: Tensor  # float64 [rows, outputs]; 0 or 1 for a class, a number in its unit for a regression
    bounds: Tensor | None = None  # int8 [rows, outputs]: 1 where the true value is above the given one, -1 below

    @property
    def is_binary(self) -> bool:
        """Whether all targets are columns of 0 and 1."""
        return all(target.kind == "binary" for target in self.targets)


def places(targets: Sequence[Target]) -> list[tuple[Target, slice]]:
    """Return each target with the place of its outputs."""
    found, start = [], 0
    for target in targets:
        found.append((target, slice(start, start + target.width)))
        start += target.width
    return found


def output_names(targets: Sequence[Target]) -> tuple[str, ...]:
    """Return the names of all outputs: targets, and classes or labels, which several targets put behind their names."""
    names: list[str] = []
    for target in targets:
        if target.kind in ("binary", "regression"):
            names.append(target.name)
        else:
            names += [name if len(targets) == 1 else f"{target.name}={name}" for name in target.classes]
    return tuple(names)


def kinds_of(task: Task, columns: Sequence[str]) -> dict[str, str]:
    """Return the kind of each column whose kind is said."""
    if task is None:
        return {}
    if isinstance(task, str):
        check_word("task", task, KINDS)
        return dict.fromkeys(columns, task)
    for name, kind in task.items():
        check_word("column of `task` (--task)", name, tuple(columns))
        check_word(f"task of {name}", kind, KINDS)
    return dict(task)


def read_targets(
    columns: Mapping[str, Sequence[str]], origins: Sequence[str], table: str, task: Task = None, censored: bool = False
) -> TargetTable:
    """Read the columns of a table as targets.

    Args:
        columns: the cells of each column.
        origins: where each row comes from, for error messages: a file and a line.
        table: where all rows come from.
        task: the kind of all columns, or of some by name; others are found from their cells (`find_kind`).
        censored: read cells such as ``>10`` as bounds of a number.
    """
    kinds, parsed = kinds_of(task, tuple(columns)), []
    for name, given in columns.items():
        cells = [cell.strip() for cell in given]
        if all(cell in MISSING_WORDS for cell in cells):
            raise ValueError(f"{table}: column {name} must hold some values to learn, got none; leave it out")
        kind = kinds.get(name) or find_kind(cells)
        if kind == "multi-label" and all(cell in _BITS or cell in MISSING_WORDS for cell in cells):
            kind = "binary"  # one of several labels, each with a column of its own
        parsed.append(_READERS[kind](name, cells, origins, censored))
    bounds = torch.cat([column.bounds for column in parsed], 1)
    targets = tuple(column.target for column in parsed)
    return TargetTable(targets, torch.cat([c.values for c in parsed], 1), bounds if bool(bounds.any()) else None)


def find_kind(cells: Sequence[str]) -> str:
    """Return the kind of a column: 0 and 1 are binary, other numbers a regression, words classes, ``a|b`` labels.

    Where most cells are alike, the others are taken for mistakes, which the reader of the kind names.
    """
    known = [cell for cell in cells if cell not in MISSING_WORDS]
    if sum(cell in _BITS for cell in known) > len(known) / 2:
        return "binary"
    if sum(is_like_number(cell) for cell in known) >= len(known) / 2:
        return "regression"
    return "multi-label" if any("|" in cell for cell in known) else "multi-class"


def is_like_number(cell: str) -> bool:
    """Return whether a cell is a number, or one with a comma, a unit or a sign such as ``>``."""
    bound = _BOUND.fullmatch(cell)
    text = bound[2] if bound else cell
    return bool(_NUMBER.fullmatch(text) or _WITH_UNIT.fullmatch(text))


class _Column(NamedTuple):
    target: Target
    values: Tensor
    bounds: Tensor


def _no_bounds(values: Tensor) -> Tensor:
    return torch.zeros(values.shape, dtype=torch.int8)


def _read_binary(name: str, cells: Sequence[str], origins: Sequence[str], censored: bool) -> _Column:
    for cell, origin in zip(cells, origins, strict=True):
        if cell not in _BITS and cell not in MISSING_WORDS:
            hint = f'"regression" (--task {name}=regression)' if is_like_number(cell) else '"multi-class"'
            raise ValueError(
                f'{origin}: task {name} must be 0, 1 or empty, got "{cell}"; correct it, or say `task` {hint}'
            )
    values = torch.tensor([[_BITS.get(cell, torch.nan)] for cell in cells], dtype=torch.float64)
    return _Column(Target(name, "binary"), values, _no_bounds(values))


def _read_regression(name: str, cells: Sequence[str], origins: Sequence[str], censored: bool) -> _Column:
    rows = [_number(name, cell, origin, censored) for cell, origin in zip(cells, origins, strict=True)]
    values = torch.tensor([[value] for value, _ in rows], dtype=torch.float64)
    bounds = torch.tensor([[bound] for _, bound in rows], dtype=torch.int8)
    return _Column(Target(name, "regression"), values, bounds)


def _number(name: str, cell: str, origin: str, censored: bool) -> tuple[float, int]:
    """Return the number of a cell and its bound, or raise with what to do about it."""
    if cell in MISSING_WORDS:
        return torch.nan, 0
    bound = _BOUND.fullmatch(cell)
    text = bound[2] if bound else cell
    must = f"{origin}: {name} must be a number"
    if bound and not censored:
        raise ValueError(
            f'{must}, got "{cell}"; pass `censored` (--censored) to learn from bounds, or leave the cell empty'
        )
    try:
        value = float(text) if "_" not in text else None
    except ValueError:
        value = None
    if value is not None and abs(value) <= LARGEST:
        return value, 0 if not bound else 1 if bound[1] in (">", ">=", "≥") else -1
    if value is not None and abs(value) < torch.inf:
        raise ValueError(f'{must} of at most {LARGEST:g} in size, got "{cell}"; correct it, or choose a larger unit')
    if value is not None:
        raise ValueError(f'{must} that is finite, got "{cell}"; correct it, or leave the cell empty')
    if "," in text and _NUMBER.fullmatch(text):
        raise ValueError(
            f'{must} with a decimal point and no other separator, got "{cell}"; write 1,5 as 1.5 and 1,000 as 1000'
        )
    if found := _WITH_UNIT.fullmatch(text):
        raise ValueError(
            f'{must} alone, got "{cell}"; write {found[1]}, and the unit into the name of the column: {name} (UNIT)'
        )
    raise ValueError(
        f'{must}, as most cells of its column are, got "{cell}"; correct it, leave the cell empty, or say '
        f"`task` (--task {name}=multi-class)"
    )


def _read_classes(name: str, cells: Sequence[str], origins: Sequence[str], censored: bool) -> _Column:
    classes = tuple(sorted({cell for cell in cells if cell not in MISSING_WORDS}))
    number = {word: position for position, word in enumerate(classes)}
    values = torch.zeros(len(cells), len(classes), dtype=torch.float64)
    for row, cell in enumerate(cells):
        if cell in MISSING_WORDS:
            values[row] = torch.nan
        else:
            values[row, number[cell]] = 1.0
    return _Column(Target(name, "multi-class", classes), values, _no_bounds(values))


def _read_labels(name: str, cells: Sequence[str], origins: Sequence[str], censored: bool) -> _Column:
    sign = "|" if any("|" in cell for cell in cells) else ";"
    rows = [None if cell in MISSING_WORDS else split_labels(cell, sign) for cell in cells]
    labels = tuple(sorted(set().union(*(row for row in rows if row is not None))))
    if not labels:
        raise ValueError(f"{origins[0]}: column {name} must name labels to learn, got none in any row; leave it out")
    values = [[torch.nan] * len(labels) if row is None else [float(label in row) for label in labels] for row in rows]
    table = torch.tensor(values, dtype=torch.float64).view(len(rows), len(labels))
    return _Column(Target(name, "multi-label", labels), table, _no_bounds(table))


def split_labels(cell: str, sign: str) -> set[str]:
    """Return the labels of a cell such as ``drama|crime``."""
    return {label.strip() for label in cell.split(sign) if label.strip()}


_READERS = {
    "binary": _read_binary,
    "multi-class": _read_classes,
    "multi-label": _read_labels,
    "regression": _read_regression,
}


def standardise(table: TargetTable, train: Tensor) -> tuple[Target, ...]:
    """Return the targets with the mean and scale of the training part's numbers, without bounds where others exist."""
    targets = []
    for target, place in places(table.targets):
        if target.kind != "regression":
            targets.append(target)
            continue
        values = table.values[train, place.start]
        exact = values if table.bounds is None else values[table.bounds[train, place.start] == 0]
        known = exact[~exact.isnan()] if bool((~exact.isnan()).any()) else values[~values.isnan()]
        mean = float(known.mean()) if len(known) else 0.0
        scale = float(known.std(correction=0)) if len(known) else 0.0
        targets.append(replace(target, mean=mean, scale=scale or 1.0))
    return tuple(targets)


def strata(targets: Sequence[Target], values: Tensor) -> list[int]:
    """Return a stratum of each row by its first target: its class, its rarest label, or a quantile of its number."""
    target, place = places(targets)[0]
    columns = values[:, place]
    is_known = ~columns.isnan().any(1)
    if target.kind == "regression":
        known = columns[is_known, 0].numpy()
        shares = np.linspace(0, 1, NUM_STRATA + 1)[1:-1]
        cuts = np.quantile(known, shares) if len(known) else shares  # torch.quantile takes 16 million numbers at most
        found = torch.bucketize(columns[:, 0].nan_to_num().contiguous(), torch.from_numpy(cuts))
    elif target.kind == "binary":
        found = columns[:, 0].nan_to_num()
    elif target.kind == "multi-class":
        found = columns.nan_to_num().argmax(1)
    else:
        order = columns.nan_to_num().sum(0).argsort(stable=True)  # the rarest label first
        ranked = columns.nan_to_num()[:, order]
        found = torch.where(ranked.any(1), order[ranked.argmax(1)], target.width)
    return torch.where(is_known, found.long(), -1).tolist()
