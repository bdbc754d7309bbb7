"""How examples are divided: stratified parts and folds, the MoleculeNet splits, scaffold splits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rgat.checks import check_count

Parts = tuple[Tensor, Tensor, Tensor]


def check_shares(shares: tuple[float, float]) -> None:
    """Raise unless the shares of the training and validation parts leave something for each part."""
    if len(shares) != 2 or not all(share >= 0 for share in shares) or not 0 < sum(shares) <= 1:
        raise ValueError(f"`shares` must be two numbers of at least 0 with a sum of at most 1, got {shares}")


def stratified_parts(classes: Sequence[int], shares: tuple[float, float], seed: int) -> Parts:
    """Positions of the train, valid and test parts; each class is divided in the same shares, as nearly as can be."""
    check_shares(shares)
    order = _by_class(classes, seed)
    quota = np.array([*shares, 1 - sum(shares)])
    parts: tuple[list[int], list[int], list[int]] = ([], [], [])
    counts = np.zeros(3)
    for seen, place in enumerate(order.tolist(), start=1):
        part = int(np.argmax(quota * seen - counts))  # the part that is furthest behind its share
        counts[part] += 1
        parts[part].append(place)
    return tuple(torch.tensor(sorted(part), dtype=torch.long) for part in parts)  # type: ignore[return-value]


def _by_class(classes: Sequence[int], seed: int) -> NDArray[np.int64]:
    """Positions sorted by class, in random order within each."""
    labels = np.asarray(classes)
    order = np.random.default_rng(seed).permutation(len(labels))
    return order[np.argsort(labels[order], kind="stable")]


def stratified_folds(classes: Sequence[int], num_folds: int, seed: int) -> list[Tensor]:
    """Positions of ``num_folds`` disjoint folds; each class is spread over them as evenly as can be."""
    check_count("num_folds", num_folds, least=2)
    if num_folds > len(classes):
        raise ValueError(f"`num_folds` must be at most the number of examples, {len(classes)}, got {num_folds}")
    order = _by_class(classes, seed)
    return [torch.from_numpy(np.sort(order[fold::num_folds])) for fold in range(num_folds)]


def random_parts(count: int, seed: int, shares: tuple[float, float] = (0.8, 0.1)) -> Parts:
    """The random split of MoleculeNet: a permutation by numpy's old generator, cut at 80 and 90 %."""
    check_shares(shares)
    order = torch.from_numpy(np.random.RandomState(seed).permutation(count))
    first, second = int(shares[0] * count), int((shares[0] + shares[1]) * count)
    return order[:first], order[first:second], order[second:]


def grouped_parts(groups: Sequence[str], shares: tuple[float, float] = (0.8, 0.1)) -> Parts:
    """Whole groups to one part, the largest first to the training part: for scaffolds, one group per scaffold."""
    check_shares(shares)
    members: dict[str, list[int]] = {}
    for place, group in enumerate(groups):
        members.setdefault(group, []).append(place)
    limits = (round(shares[0] * len(groups)), round(sum(shares) * len(groups)))
    parts: tuple[list[int], list[int], list[int]] = ([], [], [])
    for _, places in sorted(members.items(), key=lambda item: (-len(item[1]), item[1][0])):
        if len(parts[0]) + len(places) <= limits[0]:
            parts[0].extend(places)
        elif len(parts[0]) + len(parts[1]) + len(places) <= limits[1]:
            parts[1].extend(places)
        else:
            parts[2].extend(places)
    return tuple(torch.tensor(sorted(part), dtype=torch.long) for part in parts)  # type: ignore[return-value]
