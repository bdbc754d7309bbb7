"""Molecules with labels: a table of SMILES and tasks to one data set (section 3.1, Tox21)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from os import PathLike

import torch
from torch import Tensor

from rgat.checks import check_word
from rgat.data.dataset import MISSING, GraphData
from rgat.data.labels import Table, read_table, separator_hint
from rgat.data.molecules.smiles import BONDS, canonical, count_bonds, parse_smiles, scaffold, store_molecules
from rgat.data.splits import Parts, grouped_parts, random_parts

SPLITS = ("random", "scaffold")
_VALUES = {"0": 0, "0.0": 0, "1": 1, "1.0": 1, "": MISSING, "nan": MISSING, "NaN": MISSING, "NA": MISSING}


def from_smiles(
    path: str | PathLike[str],
    smiles_column: str | None = None,
    tasks: Sequence[str] | None = None,
    *,
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
    on_molecule: Callable[[int], None] | None = None,
) -> GraphData:
    """Read a table of molecules and their labels.

    Args:
        path: a CSV or TSV file, plain or compressed.
        smiles_column: by default the column called smiles.
        tasks: the columns to learn, with 0, 1 or nothing; by default all columns that hold only these.
        thresholds: columns of numbers to learn, each with the value from which on a molecule counts as positive.
        split: "random", or "scaffold": molecules with the same rings stay in one part. Rows of one molecule always do.
        shares: of the training and the validation part.
        seed: of the random split.
        skip_invalid: leave out rows whose SMILES cannot be read, instead of stopping.
        relaxed: accept valences that RDKit holds impossible.
        self_loops: add a relation from every atom to itself.
        rich: give atoms ten more features than the usual 75.
        bonds: give bonds features.
        name: of the data set.
        on_molecule: called with the number of molecules read so far, to show progress.
    """
    check_word("split", split, SPLITS)
    table = read_table(path)
    column = _smiles_column(table, smiles_column)
    smiles = [text.strip() for text in table.column(column)]
    cuts = dict(thresholds or {})
    chosen, ignored = _task_columns(table, column, tasks, cuts)
    values = [_values(table, task, cuts.get(task)) for task in chosen]
    labels = torch.tensor(values, dtype=torch.long).view(len(chosen), len(smiles)).t()
    molecules = []
    for row, text in enumerate(smiles):
        molecules.append(parse_smiles(text, relaxed) if text else None)
        if on_molecule is not None:
            on_molecule(row + 1)
    bad = [row for row, molecule in enumerate(molecules) if molecule is None]
    if bad and not skip_invalid:
        raise ValueError(
            f'{table.path}, line {table.lines[bad[0]]}: "{smiles[bad[0]]}" cannot be read as SMILES ({len(bad)} of '
            f"{len(smiles)} rows); pass `skip_invalid` (--skip-invalid) to leave them out, or `relaxed` (--relaxed) to "
            "accept unusual valences"
        )
    good = [row for row, molecule in enumerate(molecules) if molecule is not None]
    names = [smiles[row] for row in good]
    same = [canonical(molecules[row]) for row in good]
    if split == "random":
        parts = _random_molecules(same, seed, shares)
    else:
        parts = grouped_parts([scaffold(text) for text in names], shares)
    store = store_molecules([molecules[row] for row in good], self_loops, rich, bonds)
    return GraphData(
        name=name,
        graphs=store,
        labels=labels[good],
        tasks=tuple(chosen),
        train=parts[0],
        valid=parts[1],
        test=parts[2],
        graph_names=tuple(names),
        relation_names=(*BONDS, *(["self"] if self_loops else [])),
        provenance={
            **_repeats(same, labels[good]),
            "edges": count_bonds(store),
            "relations": len(BONDS),
            "split": split,
            "seed": seed,
            "skipped_lines": [table.lines[row] for row in bad],
            "ignored_columns": ignored,
        },
    )


def _repeats(names: Sequence[str], labels: Tensor) -> dict[str, int]:
    """How many molecules stand in several rows, and how many of these have a 0 and a 1 for the same task."""
    rows: dict[str, list[int]] = {}
    for place, name in enumerate(names):
        rows.setdefault(name, []).append(place)
    several = [labels[places] for places in rows.values() if len(places) > 1]
    contradictory = sum(bool(((own == 0).any(0) & (own == 1).any(0)).any()) for own in several)
    return {"repeated_molecules": len(several), "contradictory_molecules": contradictory} if several else {}


def _smiles_column(table: Table, given: str | None) -> str:
    if given is not None:
        table.column(given)
        return given
    found = [name for name in table.header if name.lower() == "smiles"]
    if len(found) != 1:
        raise ValueError(
            f"{table.path}: one column must be called smiles, got {', '.join(table.header)}; name it: `smiles_column`"
            f"{separator_hint(table.header)}"
        )
    return found[0]


def _random_molecules(names: Sequence[str], seed: int, shares: tuple[float, float]) -> Parts:
    """Random parts of molecules; rows of the same molecule go together."""
    owner: dict[str, int] = {}
    molecule = torch.tensor([owner.setdefault(name, len(owner)) for name in names], dtype=torch.long)
    rank = torch.empty(len(owner), dtype=torch.long)
    parts, found = random_parts(len(owner), seed, shares), []
    for part in parts:
        rank.fill_(len(owner))
        rank[part] = torch.arange(len(part))
        rows = (rank[molecule] < len(owner)).nonzero().squeeze(1)
        found.append(rows[rank[molecule[rows]].argsort(stable=True)])
    return found[0], found[1], found[2]


def _task_columns(
    table: Table, smiles: str, tasks: Sequence[str] | None, thresholds: Mapping[str, float]
) -> tuple[list[str], list[str]]:
    """The columns to learn, and those left aside, which hold text."""
    others = [name for name in table.header if name != smiles]
    for name in thresholds:
        check_word(f"threshold: column of {table.path}", name, others)
    if tasks is not None:
        twice = sorted({name for name in tasks if list(tasks).count(name) > 1})
        if twice:
            raise ValueError(f"`tasks` (--tasks) must name each column once, got {twice[0]} twice; leave one out")
        chosen = [*tasks, *(name for name in thresholds if name not in tasks)]
        return chosen, [name for name in others if name not in chosen]
    chosen = []
    for name in filter(None, others):  # a column without a name is an index that somebody's table has kept
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
    return chosen, [name for name in others if name not in chosen]


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
            way = f"; cut numbers with `thresholds` (--threshold {task}=VALUE)" if _is_number(text) else ""
            raise ValueError(f'{table.path}, line {line}: task {task} must be 0, 1 or empty, got "{text}"{way}')
    return values


def distinct(names: Sequence[str], labels: Tensor) -> tuple[Tensor, Tensor]:
    """First rows of distinct SMILES, and their labels: 1 if any repeat says 1, else 0 if any says 0, else missing."""
    first: dict[str, int] = {}
    owner = torch.tensor([first.setdefault(name, len(first)) for name in names])
    rows = torch.full((len(first),), len(owner)).scatter_reduce(0, owner, torch.arange(len(owner)), "amin")
    merged = torch.full((len(first), labels.shape[1]), MISSING)
    return rows, merged.scatter_reduce(0, owner.unsqueeze(1).expand_as(labels), labels, "amax")
