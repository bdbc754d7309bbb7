"""Cross-validation of a whole fit, for tables too small for one test part: the score of each fold, mean and spread.

Every fold is what a fit makes of the other folds: its choices and epochs follow from them alone.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from rgat.checks import check_count
from rgat.data import MISSING, GraphData, NodeData
from rgat.data.dataset import PARTS
from rgat.data.molecules.smiles import parse_smiles, rdkit, scaffold
from rgat.data.splits import grouped_folds, random_groups, stratified_folds
from rgat.predictor.fitting import fit
from rgat.training.loop import Data

VALID_SHARE = 1 / 9  # of what is not tested, as in a split of 80, 10 and 10 %


def cross_validate(
    data: Data, folds: int = 5, *, seed: int = 0, on_fold: Callable[[int], None] | None = None, **options: Any
) -> dict[str, Any]:
    """Fit once per fold and test on it; return the scores, their mean and standard deviation.

    Nodes are stratified by class. Molecules keep the kind of their split: rows of one molecule, scaffold or group stay
    in one fold. Options are those of `rgat.fit`; ``on_fold`` is called with the number of each fold before it.

    Examples:
        >>> import rgat
        >>> from rgat.predictor import cross_validate
        >>> found = cross_validate(rgat.data.load("molecules"), 2, max_epochs=1, comparison=False)
        >>> found["folds"], len(found["scores"])
        (2, 2)
    """
    return score_folds(fold_data(data, folds, seed), seed=seed, on_fold=on_fold, **options)


def score_folds(
    datas: Sequence[Data], *, seed: int = 0, on_fold: Callable[[int], None] | None = None, **options: Any
) -> dict[str, Any]:
    """Do the same with folds that `fold_data` has made."""
    scores, metric = [], ""
    for number, fold in enumerate(datas):
        if on_fold is not None:
            on_fold(number)
        report = fit(fold, seed=seed, **options).report
        scores.append(float(report["scores"]["test"]))
        metric = report["metric"]
    known = [score for score in scores if not math.isnan(score)]
    return {
        "folds": len(datas),
        "metric": metric,
        "scores": [None if math.isnan(score) else score for score in scores],
        "mean": statistics.mean(known) if known else None,
        "deviation": statistics.stdev(known) if len(known) > 1 else None,
    }


def fold_data(data: Data, folds: int, seed: int) -> list[Data]:
    """Return the data with each fold in turn as the test part; raise where the split has no folds."""
    check_count("folds", folds, least=2)
    ids = torch.cat([getattr(data, part) for part in PARTS]).sort().values
    if isinstance(data, NodeData):
        ids = ids[data.labels[ids] != MISSING]
        tests, groups = stratified_folds(data.labels[ids].tolist(), folds, seed), None
    else:
        groups = _groups(data, ids)
        if folds > len(set(groups)):
            what = "groups" if data.groups else "molecules"
            raise ValueError(f"`folds` must be at most the number of {what}, {len(set(groups))}, got {folds}")
        tests = grouped_folds(groups, folds, seed)
    return [_fold(data, ids, test, groups, seed) for test in tests]


def _groups(data: GraphData, ids: Tensor) -> list[str]:
    """Return what must stay in one fold: the molecule without stereo marks, its scaffold or its group."""
    kind = data.provenance.get("split")
    if kind in ("time", "column"):
        reason = "it would train on newer rows to test older ones" if kind == "time" else "the table says the parts"
        raise ValueError(
            f"cross-validation needs a split without a fixed test part, got one by {kind}: {reason}; read the table "
            'with `split` (--split) "random", "stratified", "scaffold" or "group"'
        )
    if data.groups:
        return [data.groups[i] for i in ids.tolist()]
    names = [data.graph_names[i] for i in ids.tolist()]
    if kind == "scaffold":
        return [scaffold(name) for name in names]
    molecules = [parse_smiles(name, relaxed=True) for name in names]
    flat = [None if each is None else rdkit().MolToSmiles(each, isomericSmiles=False) for each in molecules]
    return [name if text is None else text for name, text in zip(names, flat, strict=True)]


def _fold(data: Data, ids: Tensor, test: Tensor, groups: list[str] | None, seed: int) -> Data:
    rest = torch.ones(len(ids), dtype=torch.bool).index_fill_(0, test, False).nonzero().squeeze(1)
    if groups is None:  # the fit validates inside the training part
        return dataclasses.replace(data, train=ids[rest], valid=ids[:0], test=ids[test])
    shares = (1 - VALID_SHARE, VALID_SHARE)
    others = [groups[i] for i in rest.tolist()]
    train, valid, _ = random_groups(others, shares, seed)
    if not len(valid):  # the groups are few and large
        if len(set(others)) < 2:
            raise ValueError("a fold must leave a group to train on and one to validate on; give more groups")
        valid, *learned = grouped_folds(others, len(set(others)), seed)[::-1]
        train = torch.cat(learned).sort().values
    return dataclasses.replace(data, train=ids[rest[train]], valid=ids[rest[valid]], test=ids[test])
