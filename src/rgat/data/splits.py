"""Splits into parts and folds: stratified, random as in MoleculeNet, by group such as a scaffold, by time, as given.

A kind of split has one name in Python and on the command line. "time", "group" and "column" read a column of the table:
times, groups, or the words train, valid and test.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rgat.checks import check_count, check_word

Parts = tuple[Tensor, Tensor, Tensor]
OF_COLUMN = ("time", "group", "column")  # splits that read a column


def check_split(split: str | None, column: str | None, kinds: Sequence[str]) -> str:
    """Return the kind of a split: the first by default, "column" if only a column is given; raise if it cannot be."""
    kind = split or (kinds[0] if column is None else "column")
    check_word("split", kind, kinds)
    if kind in OF_COLUMN and column is None:
        raise ValueError(
            f'the split "{kind}" needs a column of the table; name it with `split_column` (--split-column)'
        )
    if kind not in OF_COLUMN and column is not None:
        raise ValueError(
            f'the split "{kind}" must come without `split_column` (--split-column), got "{column}"; leave one out'
        )
    return kind


def column_parts(
    kind: str, values: Sequence[str], shares: tuple[float, float], seed: int, origin: Callable[[int], str]
) -> Parts:
    """Return the parts by a column: "time", "group", or "column" with words; ``origin`` names a row in messages."""
    if kind == "column":
        return _word_parts(values, origin)
    parts = time_parts(read_times(values, origin), shares) if kind == "time" else random_groups(values, shares, seed)
    check_filled(parts, shares, f"the split by {kind}", len(set(values)))
    return parts


def check_filled(parts: Parts, shares: tuple[float, float], what: str, num_values: int) -> None:
    """Raise if a part that is to have a share is empty."""
    for name, part, share in zip(("train", "valid", "test"), parts, (*shares, 1 - sum(shares)), strict=True):
        if share > 1e-9 and not len(part):
            raise ValueError(
                f"{what} must leave rows for every part, but the {name} part is empty: the column has "
                f"{num_values} different value{'s' * (num_values != 1)}; change the shares, or split in another way"
            )


def _word_parts(values: Sequence[str], origin: Callable[[int], str]) -> Parts:
    words = ("train", "valid", "test")
    parts: tuple[list[int], list[int], list[int]] = ([], [], [])
    for row, value in enumerate(values):
        if value not in words:
            raise ValueError(f'{origin(row)}: the part must be "train", "valid" or "test", got "{value}"')
        parts[words.index(value)].append(row)
    return _sorted_parts(parts)


def read_times(values: Sequence[str], origin: Callable[[int], str]) -> list[float]:
    """Return numbers in the order of time: of years or other numbers, or of ISO dates; not of both in one column."""
    times: list[float] = []
    is_date: set[bool] = set()
    for row, value in enumerate(values):
        try:
            times.append(float(value))
            is_date.add(False)
        except ValueError:
            try:
                moment = datetime.fromisoformat(value)
            except ValueError:
                moment = None
            if moment is not None:
                times.append(moment.replace(tzinfo=moment.tzinfo or UTC).timestamp())
                is_date.add(True)
        if len(times) <= row or times[-1] != times[-1] or len(is_date) > 1:
            raise ValueError(
                f"{origin(row)}: a split by time needs a column of dates such as 2024-03-31, or of numbers such as "
                f'years, got "{value}"'
            )
    return times


def time_parts(times: Sequence[float], shares: tuple[float, float]) -> Parts:
    """Return the oldest rows to train on and the newest to test on; rows of one time stay in the earlier part."""
    check_shares(shares)
    order = np.argsort(np.asarray(times), kind="stable")
    ordered = np.asarray(times)[order]
    ends = []
    for share in (shares[0], sum(shares)):
        end = min(int(share * len(order)), len(order))
        ends.append(int(np.searchsorted(ordered, ordered[end - 1], side="right")) if end else 0)
    train, valid, test = (part.tolist() for part in np.split(order, ends))
    return _sorted_parts((train, valid, test))


def random_groups(groups: Sequence[str], shares: tuple[float, float], seed: int) -> Parts:
    """Return random parts that keep each group whole."""
    check_shares(shares)
    quota = np.array([*shares, 1 - sum(shares)])
    parts: tuple[list[int], list[int], list[int]] = ([], [], [])
    counts, seen = np.zeros(3), 0
    for positions in _shuffled_groups(groups, seed):
        seen += len(positions)
        part = int(np.argmax(quota * seen - counts))  # the part that is furthest behind its share
        counts[part] += len(positions)
        parts[part].extend(positions)
    return _sorted_parts(parts)


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


def grouped_folds(groups: Sequence[str], num_folds: int, seed: int) -> list[Tensor]:
    """Return positions of disjoint folds of nearly the same size that keep each group whole."""
    check_count("num_folds", num_folds, least=2)
    folds: list[list[int]] = [[] for _ in range(num_folds)]
    for positions in _shuffled_groups(groups, seed):
        min(folds, key=len).extend(positions)
    return [torch.tensor(sorted(fold), dtype=torch.long) for fold in folds]


def _shuffled_groups(groups: Sequence[str], seed: int) -> list[list[int]]:
    """Return the positions of each group, the largest first, equals in random order."""
    members: dict[str, list[int]] = {}
    for position, group in enumerate(groups):
        members.setdefault(group, []).append(position)
    order = [members[name] for name in sorted(members)]
    np.random.default_rng(seed).shuffle(order)
    return sorted(order, key=lambda group: -len(group))
