"""Molecules with labels: a table of SMILES and tasks to one data set (section 3.1, Tox21)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from typing import Any

import torch
from torch import Tensor

from rgat.checks import check_word
from rgat.data.dataset import MISSING, GraphData, GraphStore
from rgat.data.molecules.smiles import BONDS, parse_smiles, rdkit, scaffold, store_molecules
from rgat.data.splits import Parts, grouped_parts, random_parts
from rgat.data.tables import Table, read_table, separator_hint
from rgat.data.targets import TargetTable, Task, is_like_number, kinds_of, output_names, read_targets, standardise

SPLITS = ("random", "scaffold")
_VALUES = {"0": 0, "0.0": 0, "1": 1, "1.0": 1, "": MISSING, "nan": MISSING, "NaN": MISSING, "NA": MISSING}


def from_smiles(
    path: str | PathLike[str] | Any,
    smiles_column: str | None = None,
    tasks: Sequence[str] | None = None,
    *,
    task: Task = None,
    censored: bool = False,
    thresholds: Mapping[str, float] | None = None,
    split: str = "random",
    shares: tuple[float, float] = (0.8, 0.1),
    seed: int = 0,
    skip_invalid: bool = False,
    relaxed: bool = False,
    self_loops: bool = True,
    rich: bool = False,
    bonds: bool = False,
    name: str = "molecules",
) -> GraphData:
    r"""Read a table of molecules and their labels.

    Args:
        path: a CSV or TSV file, plain or compressed; or a data frame of pandas or Polars.
        smiles_column: the column of SMILES; by default the one called smiles.
        tasks: the columns to learn; by default those that hold only 0, 1 or nothing or, if none does, the one column
            of numbers.
        task: "binary", "multi-class", "multi-label" or "regression", for all columns to learn or as a dict for some of
            them, which are then learned too; by default found from the cells (`rgat.data.targets.find_kind`).
        censored: read cells such as ``>10`` as bounds of a number.
        thresholds: columns of numbers to learn; a molecule is positive from the threshold on.
        split: "random", or "scaffold", which keeps each scaffold in one part. Rows of one molecule stay in one part.
        shares: shares of the training and validation parts.
        seed: random seed of the split.
        skip_invalid: leave out rows with an invalid SMILES instead of raising.
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
    check_word("split", split, SPLITS)
    table = read_table(path)
    column = _smiles_column(table, smiles_column)
    chosen, ignored = _choose_tasks(table, column, tasks, task, dict(thresholds or {}))
    read = _read_columns(table, chosen, task, censored, dict(thresholds or {}))
    smiles = [text.strip() for text in table.column(column)]
    molecules = _parse_rows(table, smiles, relaxed, skip_invalid)
    rows = list(molecules)
    names = [smiles[row] for row in rows]
    canonical = [rdkit().MolToSmiles(molecule) for molecule in molecules.values()]
    if split == "random":
        parts = _random_molecules(canonical, seed, shares)
    else:
        parts = grouped_parts([scaffold(text) for text in names], shares)
    store = store_molecules(list(molecules.values()), self_loops, rich, bonds)
    skipped = [line for row, line in enumerate(table.lines) if row not in molecules]
    about = {"split": split, "seed": seed, "skipped_lines": skipped, "ignored_columns": ignored}
    kept = TargetTable(read.targets, read.values[rows], None if read.bounds is None else read.bounds[rows])
    labels = torch.where(kept.values.isnan(), MISSING, kept.values.nan_to_num()).long()
    about |= _count_repeats(canonical, labels if read.is_binary else labels[:, :0])
    data = molecule_data(name, names, store, labels, output_names(read.targets), parts, about)
    if read.is_binary:
        return data
    is_number = torch.tensor([target.kind == "regression" for target in read.targets for _ in range(target.width)])
    labels = torch.where(is_number & (labels != MISSING), 0, labels)
    return replace(data, labels=labels, values=kept.values, bounds=kept.bounds, targets=standardise(kept, data.train))


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


def _parse_rows(table: Table, smiles: Sequence[str], relaxed: bool, skip_invalid: bool) -> dict[int, Any]:
    """Return RDKit molecules by row; raise at an invalid SMILES unless these are skipped."""
    parsed = {row: parse_smiles(text, relaxed) if text else None for row, text in enumerate(smiles)}
    molecules = {row: molecule for row, molecule in parsed.items() if molecule is not None}
    invalid = [row for row in range(len(smiles)) if row not in molecules]
    if invalid and not skip_invalid:
        raise ValueError(
            f'{table.path}, line {table.lines[invalid[0]]}: "{smiles[invalid[0]]}" cannot be read as SMILES '
            f"({len(invalid)} of {len(smiles)} rows); pass `skip_invalid` (--skip-invalid) to leave them out, or "
            "`relaxed` (--relaxed) to accept unusual valences"
        )
    return molecules


def _count_repeats(names: Sequence[str], labels: Tensor) -> dict[str, int]:
    """Count the molecules in several rows, and those among them with a 0 and a 1 for the same task."""
    rows: dict[str, list[int]] = {}
    for row, name in enumerate(names):
        rows.setdefault(name, []).append(row)
    repeated = [labels[group] for group in rows.values() if len(group) > 1]
    contradictory = sum(bool(((group == 0).any(0) & (group == 1).any(0)).any()) for group in repeated)
    return {"repeated_molecules": len(repeated), "contradictory_molecules": contradictory} if repeated else {}


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
    table: Table, smiles: str, tasks: Sequence[str] | None, task: Task, thresholds: Mapping[str, float]
) -> tuple[list[str], list[str]]:
    """Return the columns to learn and the ignored columns."""
    others = [name for name in table.header if name != smiles]
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


def _random_molecules(names: Sequence[str], seed: int, shares: tuple[float, float]) -> Parts:
    """Split molecules at random and return the parts' rows; rows of one molecule stay in one part."""
    number: dict[str, int] = {}
    molecule = torch.tensor([number.setdefault(name, len(number)) for name in names], dtype=torch.long)
    rank = torch.empty(len(number), dtype=torch.long)
    parts = []
    for part in random_parts(len(number), seed, shares):
        rank.fill_(len(number))
        rank[part] = torch.arange(len(part))
        rows = (rank[molecule] < len(number)).nonzero().squeeze(1)
        parts.append(rows[rank[molecule[rows]].argsort(stable=True)])
    return parts[0], parts[1], parts[2]


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
