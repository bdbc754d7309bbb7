"""Splits into parts and folds: stratified, random as in MoleculeNet, and by group, such as a scaffold."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rgat.checks import check_count

Parts = tuple[Tensor, Tensor, Tensor]


def check_shares(shares: tuple[float, float]) -> None:
    """Raise unless the shares of the training and validation parts are valid."""
    if len(shares) != 2 or not all(share >= 0 for share in shares) or not 0 < sum(shares) <= 1:
        raise ValueError(f"`shares` must be two numbers of at least 0 with a sum of at most 1, got {shares}")


def stratified_parts(classes: Sequence[int], shares: tuple[float, float], seed: int) -> Parts:
    """Return positions of the train, valid and test parts, with nearly the same shares of each class."""
    check_shares(shares)
    order = _by_class(classes, seed)
    quota = np.array([*shares, 1 - sum(shares)])
    parts: tuple[list[int], list[int], list[int]] = ([], [], [])
    counts = np.zeros(3)
    for seen, position in enumerate(order.tolist(), start=1):
        part = int(np.argmax(quota * seen - counts))  # the part that is furthest behind its share
        counts[part] += 1
        parts[part].append(position)
    return _sorted_parts(parts)


def _sorted_parts(parts: tuple[list[int], list[int], list[int]]) -> Parts:
    train, valid, test = (torch.tensor(sorted(part), dtype=torch.long) for part in parts)
    return train, valid, test


def _by_class(classes: Sequence[int], seed: int) -> NDArray[np.int64]:
    """Return positions sorted by class, in random order within each."""
    labels = np.asarray(classes)
    order = np.random.default_rng(seed).permutation(len(labels))
    return order[np.argsort(labels[order], kind="stable")]


def stratified_folds(classes: Sequence[int], num_folds: int, seed: int) -> list[Tensor]:
    """Return positions of ``num_folds`` disjoint folds, with each class spread over them evenly."""
    check_count("num_folds", num_folds, least=2)
    if num_folds > len(classes):
        raise ValueError(f"`num_folds` must be at most the number of examples, {len(classes)}, got {num_folds}")
    order = _by_class(classes, seed)
    return [torch.from_numpy(np.sort(order[fold::num_folds])) for fold in range(num_folds)]


def random_parts(count: int, seed: int, shares: tuple[float, float] = (0.8, 0.1)) -> Parts:
    """Return the random split of MoleculeNet: a permutation by numpy's ``RandomState``, cut at 80 and 90 %."""
    return _cut(torch.from_numpy(np.random.RandomState(seed).permutation(count)), shares)


def shuffled_parts(ids: Tensor, shares: tuple[float, float], seed: int) -> Parts:
    """Return the random split of the built-in data sets: ids shuffled by PyTorch's generator and cut."""
    return _cut(ids[torch.randperm(len(ids), generator=torch.Generator().manual_seed(seed))], shares)


def _cut(order: Tensor, shares: tuple[float, float]) -> Parts:
    check_shares(shares)
    first, second = int(shares[0] * len(order)), int((shares[0] + shares[1]) * len(order))
    return order[:first], order[first:second], order[second:]


def grouped_parts(groups: Sequence[str], shares: tuple[float, float] = (0.8, 0.1)) -> Parts:
    """Return parts that keep each group whole, such as a scaffold; the largest groups fill the training part first."""
    check_shares(shares)
    members: dict[str, list[int]] = {}
    for position, group in enumerate(groups):
        members.setdefault(group, []).append(position)
    limits = (round(shares[0] * len(groups)), round(sum(shares) * len(groups)))
    parts: tuple[list[int], list[int], list[int]] = ([], [], [])
    for positions in sorted(members.values(), key=lambda group: (-len(group), group[0])):
        if len(parts[0]) + len(positions) <= limits[0]:
            parts[0].extend(positions)
        elif len(parts[0]) + len(parts[1]) + len(positions) <= limits[1]:
            parts[1].extend(positions)
        else:
            parts[2].extend(positions)
    return _sorted_parts(parts)
