"""What a fit is validated on: a part of the data, or folds of the training part where labelled nodes are few."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence

import torch

from rgat.data import GraphData, NodeData
from rgat.data.splits import stratified_folds, stratified_parts
from rgat.data.targets import TargetTable, standardise, strata
from rgat.training.configuration import Config
from rgat.training.loop import Data
from rgat.training.run import Epoch, Result

NUM_FOLDS = 5
MANY_NODES = 5_000  # training nodes: from here on a tenth of them is held out instead of cross-validation
VALID_SHARE = 0.1


def with_validation(data: Data, config: Config, seed: int) -> Data:
    """Take a tenth of the training nodes for validation where there are none and cross-validation is not worth it.

    That is where nodes are many, so that a tenth of them tells epochs and settings apart, or batches are sampled.
    """
    if isinstance(data, GraphData) or len(data.valid):
        return data
    if config.get("fanouts") is None and len(data.train) < MANY_NODES:
        return data
    shares = (1 - VALID_SHARE, VALID_SHARE)
    train, valid, _ = stratified_parts(_strata(data), shares, seed)
    if not len(valid):
        return data
    held_out = dataclasses.replace(data, train=data.train[train], valid=data.train[valid])
    if data.values is None:
        return held_out
    table = TargetTable(data.targets, data.values, data.bounds)
    return dataclasses.replace(held_out, targets=standardise(table, held_out.train))


def _strata(data: NodeData) -> list[int]:
    """Return the classes of the training nodes, or strata of their values."""
    if data.values is not None:
        return strata(data.targets, data.values[data.train])
    classes: list[int] = data.labels[data.train].tolist()
    return classes


def make_folds(data: Data, seed: int) -> list[NodeData]:
    """Return the data sets of a cross-validation inside the training part; none where there is a validation part."""
    if isinstance(data, GraphData) or len(data.valid):
        return []
    classes = _strata(data)
    folds = []
    for held_out in stratified_folds(classes, min(NUM_FOLDS, len(classes)), seed):
        is_learned = torch.ones(len(classes), dtype=torch.bool).index_fill_(0, held_out, False)
        folds.append(dataclasses.replace(data, train=data.train[is_learned], valid=data.train[held_out]))
    return folds


def unlearned(results: Sequence[Result], folds: Sequence[Epoch]) -> list[int]:
    """Return the models that score lower on what they learned from than those of the folds did on held-out nodes.

    They had a bad random start, or the median of the folds' best epochs was too few; the slowest fold took more.
    """
    if not folds or len({point.epoch for point in folds}) == 1:
        return []
    held_out = statistics.mean(point.valid_metric for point in folds)
    return [number for number, result in enumerate(results) if result.scores["train"] < held_out]
