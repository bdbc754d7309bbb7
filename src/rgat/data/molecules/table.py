"""Molecules with labels: a table of SMILES and tasks to one data set (section 3.1, Tox21)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rgat.checks import check_word
from rgat.data.dataset import MISSING, GraphData, GraphStore
from rgat.data.files import kind_of
from rgat.data.molecules.reading import FRAGMENTS, read_molecules
from rgat.data.molecules.sdf import SUFFIXES, read_sdf
from rgat.data.molecules.smiles import BONDS, store_molecules
from rgat.data.molecules.splitting import SPLITS, split_molecules
from rgat.data.splits import Parts, check_split
from rgat.data.tables import Table, read_table, separator_hint

_VALUES = {"0": 0, "0.0": 0, "1": 1, "1.0": 1, "": MISSING, "nan": MISSING, "NaN": MISSING, "NA": MISSING}


def from_smiles(
    path: str | PathLike[str],
    smiles_column: str | None = None,
    tasks: Sequence[str] | None = None,
    *,
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
        path: a CSV or TSV file, or an SDF file, whose properties are its columns; plain or compressed.
        smiles_column: the column of SMILES; by default the one called smiles.
        tasks: the columns to learn, with 0, 1 or nothing; by default all columns that hold only these.
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
    path = Path(path)
    table = read_sdf(path) if kind_of(path) in SUFFIXES else read_table(path)
    column = _smiles_column(table, smiles_column)
    by = None if split_column is None else [value.strip() for value in table.column(split_column)]
    chosen, ignored, labels = _read_tasks(table, (column, split_column), tasks, dict(thresholds or {}))
    smiles = [text.strip() for text in table.column(column)]
    store = partial(store_molecules, self_loops=self_loops, rich=rich, bonds=bonds)
    found = read_molecules(table, smiles, store, fragments, relaxed=relaxed, skip_invalid=skip_invalid)
    rows = found.rows
    split_by = None if by is None else [by[row] for row in rows]
    parts = split_molecules(
        kind,
        found.names if kind == "scaffold" else found.flat,
        labels[rows],
        split_by,
        shares,
        seed,
        lambda row: f"{table.path}, line {table.lines[rows[row]]}",
    )
    kept = set(rows)
    skipped = [line for row, line in enumerate(table.lines) if row not in kept]
    about: dict[str, Any] = {"split": kind, "seed": seed, "skipped_lines": skipped, "ignored_columns": ignored}
    about |= {"split_column": split_column} if split_column is not None else {}
    if found.num_mixtures or fragments != "keep":
        about |= {"mixtures": found.num_mixtures, "fragments": fragments}
    about |= found.repeats(labels[rows])
    return molecule_data(name, found.names, found.store, labels[rows], chosen, parts, about)


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


def _read_tasks(
    table: Table, used: tuple[str, str | None], tasks: Sequence[str] | None, thresholds: Mapping[str, float]
) -> tuple[list[str], list[str], Tensor]:
    """Return the columns to learn, the ignored columns, and labels ``[rows, tasks]``; ``used`` are not labels."""
    smiles, others = used[0], [name for name in table.header if name not in used]
    for name in thresholds:
        check_word(f"threshold: column of {table.path}", name, others)
    if tasks is None:
        chosen = _find_tasks(table, smiles, others, thresholds)
    else:
        twice = sorted({name for name in tasks if list(tasks).count(name) > 1})
        if twice:
            raise ValueError(f"`tasks` (--tasks) must name each column once, got {twice[0]} twice; leave one out")
        chosen = [*tasks, *(name for name in thresholds if name not in tasks)]
    values = [_values(table, task, thresholds.get(task)) for task in chosen]
    labels = torch.tensor(values, dtype=torch.long).view(len(chosen), len(table.rows)).t()
    return chosen, [name for name in others if name not in chosen], labels


def _find_tasks(table: Table, smiles: str, others: Sequence[str], thresholds: Mapping[str, float]) -> list[str]:
    """Return the columns that hold labels or have a threshold; columns of text are ignored."""
    chosen = []
    for name in filter(None, others):  # a column without a name is the index of an exported table
        values = [value.strip() for value in table.column(name)]
        if name in thresholds or all(value in _VALUES for value in values):
            chosen.append(name)
        elif any(values) and all(value.lower() in ("true", "false", "yes", "no", "") for value in values):
            raise ValueError(
                f"{table.path}: column {name} holds words such as {next(filter(None, values))}; write 1 and 0 instead, "
                "or name the columns to learn with `tasks` (--tasks)"
            )
        elif all(_is_number(value) or value in _VALUES for value in values):
            raise ValueError(
                f"{table.path}: column {name} holds numbers other than 0 and 1; cut them with `thresholds` "
                f"(--threshold {name}=VALUE) or name the columns to learn with `tasks` (--tasks)"
            )
    if not chosen:
        raise ValueError(
            f"{table.path}: some column beside {smiles} must hold 0, 1 or nothing, got "
            f"{', '.join(others) or 'no other column'}"
        )
    return chosen


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _values(table: Table, task: str, threshold: float | None) -> list[int]:
    values = []
    for line, text in zip(table.lines, map(str.strip, table.column(task)), strict=True):
        if threshold is not None and _is_number(text):
            number = float(text)
            values.append(MISSING if number != number else int(number >= threshold))
        elif text in _VALUES and (threshold is None or _VALUES[text] == MISSING):
            values.append(_VALUES[text])
        elif threshold is not None:
            raise ValueError(
                f'{table.path}, line {line}: {task}, which has a threshold, must hold numbers, got "{text}"'
            )
        else:
            hint = f"; cut numbers with `thresholds` (--threshold {task}=VALUE)" if _is_number(text) else ""
            raise ValueError(f'{table.path}, line {line}: task {task} must be 0, 1 or empty, got "{text}"{hint}')
    return values


def distinct(names: Sequence[str], labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first row of each distinct SMILES, and the largest label of its rows: 1, else 0, else missing."""
    number: dict[str, int] = {}
    molecule = torch.tensor([number.setdefault(name, len(number)) for name in names])
    rows = torch.full((len(number),), len(molecule)).scatter_reduce(0, molecule, torch.arange(len(molecule)), "amin")
    merged = torch.full((len(number), labels.shape[1]), MISSING)
    return rows, merged.scatter_reduce(0, molecule.unsqueeze(1).expand_as(labels), labels, "amax")
