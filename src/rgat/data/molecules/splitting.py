"""Split the rows of a table of molecules; rows that the model cannot tell apart stay in one part."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from rgat.data.molecules.smiles import scaffold
from rgat.data.splits import (
    Parts,
    check_filled,
    column_parts,
    grouped_parts,
    random_parts,
    read_times,
    stratified_parts,
    time_parts,
)

SPLITS = ("random", "stratified", "scaffold", "time", "group", "column")


def split_molecules(
    kind: str,
    flat: Sequence[str],
    labels: Tensor,
    column: Sequence[str] | None,
    shares: tuple[float, float],
    seed: int,
    origin: Callable[[int], str],
) -> Parts:
    """Return the rows of the train, valid and test parts.

    Args:
        kind: one of `SPLITS`.
        flat: SMILES of each row without stereo marks; rows of one stay in one part, except in a given split. By time,
            a molecule is as old as its oldest row.
        labels: ``[rows, tasks]``.
        column: times, groups or words, where the kind reads a column.
        shares: of the training and validation parts.
        seed: of random splits.
        origin: names a row in messages.
    """
    if kind == "scaffold":
        return grouped_parts([scaffold(text) for text in flat], shares)
    if kind == "column":
        assert column is not None
        return column_parts(kind, column, shares, seed, origin)
    number: dict[str, int] = {}
    molecule = torch.tensor([number.setdefault(name, len(number)) for name in flat], dtype=torch.long)
    first = first_rows(molecule, len(number))
    if kind == "random":
        return _rows(random_parts(len(number), seed, shares), molecule, len(number))
    if kind == "stratified":
        classes = torch.unique(_bins(labels), dim=0, return_inverse=True)[1][first].tolist()
        parts = stratified_parts(classes, shares, seed)
        check_filled(parts, shares, "the stratified split", len(classes))
        return _rows(parts, molecule, len(number))
    assert column is not None
    if kind == "time":
        times = torch.tensor(read_times(column, origin), dtype=torch.float64)
        oldest = torch.full((len(number),), torch.inf, dtype=torch.float64).scatter_reduce(0, molecule, times, "amin")
        parts = time_parts(oldest.tolist(), shares)
        check_filled(parts, shares, "the split by time", len(set(column)))
        return _rows(parts, molecule, len(number))
    return column_parts("group", join_groups(flat, column), shares, seed, origin)


def join_groups(flat: Sequence[str], groups: Sequence[str]) -> list[str]:
    """Return the group of each row, where two groups that share a molecule are one."""
    root = {group: group for group in groups}

    def find(group: str) -> str:
        while root[group] != group:
            root[group] = root[root[group]]
            group = root[group]
        return group

    first: dict[str, str] = {}
    for molecule, group in zip(flat, groups, strict=True):
        root[find(group)] = find(first.setdefault(molecule, group))
    return [find(group) for group in groups]


def first_rows(molecule: Tensor, count: int) -> Tensor:
    """Return the first row of each molecule."""
    rows = torch.full((count,), len(molecule))
    return rows.scatter_reduce(0, molecule, torch.arange(len(molecule)), "amin")


def _bins(labels: Tensor) -> Tensor:
    """Return labels to stratify by: classes or, of numbers, the tenth of the first column that each is in."""
    first = labels[:, :1].double()
    if not labels.is_floating_point() or not first.isfinite().any():
        return labels.nan_to_num() if labels.is_floating_point() else labels
    edges = np.quantile(first[first.isfinite()].numpy(), np.linspace(0.1, 0.9, 9))
    return torch.bucketize(first.nan_to_num(-torch.inf), torch.from_numpy(edges))


def _rows(parts: Parts, molecule: Tensor, count: int) -> Parts:
    """Return the rows of parts of molecules, in the order of the molecules there."""
    rank = torch.empty(count, dtype=torch.long)
    found = []
    for part in parts:
        rank.fill_(count)
        rank[part] = torch.arange(len(part))
        rows = (rank[molecule] < count).nonzero().squeeze(1)
        found.append(rows[rank[molecule[rows]].argsort(stable=True)])
    return found[0], found[1], found[2]
