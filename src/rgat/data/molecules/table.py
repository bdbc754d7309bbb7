"""Molecules with labels: a table of SMILES and tasks to one data set (section 3.1, Tox21)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rgat.checks import check_word
from rgat.data.dataset import MISSING, GraphData, GraphStore
from rgat.data.files import kind_of
from rgat.data.molecules.reading import FRAGMENTS, Molecules, read_molecules
from rgat.data.molecules.sdf import SUFFIXES, read_sdf
from rgat.data.molecules.smiles import BONDS, store_molecules
from rgat.data.molecules.splitting import SPLITS, join_groups, split_molecules
from rgat.data.splits import Parts, check_split
from rgat.data.tables import Table, is_frame, read_table, separator_hint
from rgat.data.targets import TargetTable, Task, is_like_number, kinds_of, output_names, read_targets, standardise

_VALUES = {"0": 0, "0.0": 0, "1": 1, "1.0": 1, "": MISSING, "nan": MISSING, "NaN": MISSING, "NA": MISSING}


def from_smiles(
    path: str | PathLike[str] | Any,
    smiles_column: str | None = None,
    tasks: Sequence[str] | None = None,
    *,
    task: Task = None,
    censored: bool = False,
    thresholds: Mapping[str, float] | None = None,
    split: str | None = None,
    split_column: str | None = None,
    shares: tuple[float, float] = (0.8, 0.1),
    seed: int = 0,
    skip_invalid: bool = False,
    fragments: str = "keep",
    relaxed: bool = False,
    self_loops: bool = True,
    rich: bool = False,
    bonds: bool = False,
    name: str = "molecules",
) -> GraphData:
    r"""Read a table of molecules and their labels.

    Args:
        path: a CSV or TSV file, or an SDF file, whose properties are its columns, plain or compressed; or a data frame
            of pandas or Polars.
        smiles_column: the column of SMILES; by default the one called smiles.
        tasks: the columns to learn; by default those that hold only 0, 1 or nothing or, if none does, the one column
            of numbers.
        task: "binary", "multi-class", "multi-label" or "regression", for all columns to learn or as a dict for some of
            them, which are then learned too; by default found from the cells (`rgat.data.targets.find_kind`).
        censored: read cells such as ``>10`` as bounds of a number.
        thresholds: columns of numbers to learn; a molecule is positive from the threshold on.
        split: "random"; "stratified" by the labels; "scaffold", which keeps each scaffold in one part; or by
            ``split_column``: "time", oldest to train on, newest to test on; "group", which keeps each group in one
            part; "column", the words train, valid and test. Rows of one molecule, whatever its stereo marks, stay in
            one part, except by words.
        split_column: the column to split by; without ``split`` a column of words.
        shares: shares of the training and validation parts.
        seed: random seed of the split.
        skip_invalid: leave out rows with an invalid SMILES instead of raising.
        fragments: of salts and mixtures, "keep" all fragments, or only the "largest"; a model predicts alike.
        relaxed: accept valences that RDKit rejects.
        self_loops: add a relation from every atom to itself.
        rich: add ten atom features to the usual 75.
        bonds: add bond features.
        name: name of the data set.

    Examples:
        >>> import rgat
        >>> with open("assays.csv", "w") as file:
        ...     _ = file.write("smiles,toxic\n" + "".join(f"{'C' * length}O,{length % 2}\n" for length in range(1, 21)))
        >>> data = rgat.data.from_smiles("assays.csv", shares=(0.6, 0.2))
        >>> data.tasks, len(data.train)
        (('toxic',), 12)
    """
    kind = check_split(split, split_column, SPLITS)
    check_word("fragments", fragments, FRAGMENTS)
    is_sdf = not is_frame(path) and kind_of(Path(path)) in SUFFIXES
    table = read_sdf(Path(path)) if is_sdf else read_table(path)
    column = _smiles_column(table, smiles_column)
    by = None if split_column is None else [value.strip() for value in table.column(split_column)]
    chosen, ignored = _choose_tasks(table, (column, split_column), tasks, task, dict(thresholds or {}))
    read = _read_columns(table, chosen, task, censored, dict(thresholds or {}))
    smiles = [text.strip() for text in table.column(column)]
    store = partial(store_molecules, self_loops=self_loops, rich=rich, bonds=bonds)
    found = read_molecules(table, smiles, store, fragments, relaxed=relaxed, skip_invalid=skip_invalid)
    rows = found.rows
    kept = TargetTable(read.targets, read.values[rows], None if read.bounds is None else read.bounds[rows])
    labels = torch.where(kept.values.isnan(), MISSING, kept.values.nan_to_num()).long()
    split_by = None if by is None else [by[row] for row in rows]
    origin = lambda row: f"{table.path}, line {table.lines[rows[row]]}"
    flat = found.names if kind == "scaffold" else found.flat
    has_numbers = any(target.kind == "regression" for target in read.targets)
    strata = kept.values if has_numbers else labels
    parts = split_molecules(kind, flat, strata, split_by, shares, seed, origin)
    about = _about(table, found, fragments) | {"split": kind, "seed": seed, "ignored_columns": ignored}
    about |= {"split_column": split_column} if split_column is not None else {}
    about |= found.repeats(labels if read.is_binary else labels[:, :0])
    data = molecule_data(name, found.names, found.store, labels, output_names(read.targets), parts, about)
    if kind == "group" and split_by is not None:
        data = replace(data, groups=tuple(join_groups(flat, split_by)))
    if read.is_binary:
        return data
    is_number = torch.tensor([target.kind == "regression" for target in read.targets for _ in range(target.width)])
    labels = torch.where(is_number & (labels != MISSING), 0, labels)
    return replace(data, labels=labels, values=kept.values, bounds=kept.bounds, targets=standardise(kept, data.train))


def _about(table: Table, found: Molecules, fragments: str) -> dict[str, Any]:
    """Return what the provenance says of the rows that were left out, and of salts and mixtures."""
    kept = set(found.rows)
    about: dict[str, Any] = {"skipped_lines": [line for row, line in enumerate(table.lines) if row not in kept]}
    if found.num_mixtures or fragments != "keep":
        about |= {"mixtures": found.num_mixtures, "fragments": fragments}
    return about


def molecule_data(
    name: str,
    smiles: Sequence[str],
    store: GraphStore,
    labels: Tensor,
    tasks: Sequence[str],
    parts: Parts,
    provenance: dict[str, Any],
) -> GraphData:
    """Return a data set of molecules; its provenance counts each bond once, and bond types as relations."""
    num_bonds = int((store.edge_type < len(BONDS)).sum()) // 2
    return GraphData(
        name=name,
        graphs=store,
        labels=labels,
        tasks=tuple(tasks),
        train=parts[0],
        valid=parts[1],
        test=parts[2],
        graph_names=tuple(smiles),
        relation_names=(*BONDS, "self")[: store.num_relations],
        provenance={"edges": num_bonds, "relations": len(BONDS), **provenance},
    )


def _smiles_column(table: Table, name: str | None) -> str:
    if name is not None:
        check_word(f"column of {table.path}", name, table.header)
        return name
    candidates = [name for name in table.header if name.lower() == "smiles"]
    if len(candidates) != 1:
        raise ValueError(
            f"{table.path}: one column must be called smiles, got {', '.join(table.header)}; name it: `smiles_column`"
            f"{separator_hint(table.header)}"
        )
    return candidates[0]


def _choose_tasks(
    table: Table,
    used: tuple[str, str | None],
    tasks: Sequence[str] | None,
    task: Task,
    thresholds: Mapping[str, float],
) -> tuple[list[str], list[str]]:
    """Return the columns to learn and the ignored columns; those that are ``used`` otherwise are neither."""
    smiles, others = used[0], [name for name in table.header if name not in used]
    for name in thresholds:
        check_word(f"threshold: column of {table.path}", name, others)
    said = [] if task is None or isinstance(task, str) else list(kinds_of(task, others))
    if tasks is None and said:
        chosen = [name for name in others if name in said or name in thresholds]
    elif tasks is None:
        chosen = _find_tasks(table, smiles, others, task, thresholds)
    else:
        twice = sorted({name for name in tasks if list(tasks).count(name) > 1})
        if twice:
            raise ValueError(f"`tasks` (--tasks) must name each column once, got {twice[0]} twice; leave one out")
        chosen = list(dict.fromkeys([*tasks, *thresholds, *said]))
    return chosen, [name for name in others if name not in chosen]


def _read_columns(
    table: Table, chosen: Sequence[str], task: Task, censored: bool, thresholds: Mapping[str, float]
) -> TargetTable:
    """Return the targets of the chosen columns; numbers with a threshold become 0 and 1."""
    origins = [f"{table.path}, line {line}" for line in table.lines]
    columns = {name: table.column(name) for name in chosen}
    for name, threshold in thresholds.items():
        columns[name] = _cut(table, name, threshold)
    if not table.rows:
        raise ValueError(f"{table.path}: must have rows below the column names, got none")
    return read_targets(columns, origins, str(table.path), task, censored)


def _find_tasks(
    table: Table, smiles: str, others: Sequence[str], task: Task, thresholds: Mapping[str, float]
) -> list[str]:
    """Return the columns to learn: those of 0 and 1 or with a threshold; of a kind that is said; or one of numbers."""
    names = [name for name in others if name]  # a column without a name is the index of an exported table
    cells = {name: [value.strip() for value in table.column(name)] for name in names}
    numeric = [name for name in names if name not in thresholds and _holds_numbers(cells[name])]
    if isinstance(task, str) and task != "binary":
        wanted = [name for name in names if (name in numeric) == (task == "regression") and any(cells[name])]
        if task == "regression" and not wanted:
            raise ValueError(f"{table.path}: some column beside {smiles} must hold numbers, got {', '.join(others)}")
        if len(wanted) != 1 and task != "regression":
            raise ValueError(
                f'{table.path}: the column to learn must be named for a "{task}" task: `tasks` (--tasks), got '
                f"{', '.join(others) or 'no other column'}"
            )
        return wanted
    chosen = [name for name in names if name in thresholds or all(value in _VALUES for value in cells[name])]
    for name in names:
        if name not in chosen and all(value.lower() in ("true", "false", "yes", "no", "") for value in cells[name]):
            raise ValueError(
                f"{table.path}: column {name} holds words such as {next(filter(None, cells[name]))}; write 1 and 0 "
                "instead, or name the columns to learn with `tasks` (--tasks)"
            )
    numeric = [name for name in numeric if name not in chosen]
    if not chosen and len(numeric) == 1 and task is None and not _is_index(cells[numeric[0]]):
        return numeric
    if numeric:
        raise ValueError(
            f"{table.path}: column {numeric[0]} holds numbers other than 0 and 1; cut them with `thresholds` "
            f"(--threshold {numeric[0]}=VALUE), learn them (--task {numeric[0]}=regression), or name the columns to "
            "learn with `tasks` (--tasks)"
        )
    if not chosen:
        raise ValueError(
            f"{table.path}: some column beside {smiles} must hold 0, 1 or nothing, or numbers, got "
            f"{', '.join(others) or 'no other column'}; name columns of classes with `tasks` (--tasks)"
        )
    return chosen


def _holds_numbers(cells: Sequence[str]) -> bool:
    """Return whether most cells are like numbers, some of them neither 0 nor 1."""
    known = [cell for cell in cells if _VALUES.get(cell) != MISSING]
    return 2 * sum(map(is_like_number, known)) > len(known) and any(cell not in _VALUES for cell in known)


def _is_index(cells: Sequence[str]) -> bool:
    """Return whether cells number the rows."""
    start = int(cells[0]) if cells[0].isdecimal() else 0
    return list(cells) == [str(start + row) for row in range(len(cells))]


def _cut(table: Table, task: str, threshold: float) -> list[str]:
    """Return 1 for the numbers of a column from the threshold on, 0 for others, nothing for missing ones."""
    cells = []
    for line, text in zip(table.lines, map(str.strip, table.column(task)), strict=True):
        try:
            number = math.nan if _VALUES.get(text) == MISSING else float(text)
        except ValueError:
            raise ValueError(
                f'{table.path}, line {line}: {task}, which has a threshold, must hold numbers, got "{text}"'
            ) from None
        cells.append("" if math.isnan(number) else str(int(number >= threshold)))
    return cells


def distinct(names: Sequence[str], labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first row of each distinct SMILES, and the largest label of its rows: 1, else 0, else missing."""
    number: dict[str, int] = {}
    molecule = torch.tensor([number.setdefault(name, len(number)) for name in names])
    rows = torch.full((len(number),), len(molecule)).scatter_reduce(0, molecule, torch.arange(len(molecule)), "amin")
    merged = torch.full((len(number), labels.shape[1]), MISSING)
    return rows, merged.scatter_reduce(0, molecule.unsqueeze(1).expand_as(labels), labels, "amax")
