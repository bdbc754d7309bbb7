"""Folds for the search and splits for the final runs, as the paper's protocol draws them.

No fold holds an example of any test part, nor its label, so a search cannot see test data.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from rgat.data import MISSING, GraphData, NodeData
from rgat.data.benchmarks.registry import SPLIT_SEEDS
from rgat.data.splits import Parts, random_parts, stratified_folds

FOLD_SEED = 0  # folds are drawn once per data set, the same for all models
NUM_FOLDS = {"node": 5, "graph": 10}


@dataclass(frozen=True)
class FoldedData:
    """A data set with its folds and splits.

    Attributes:
        data: the whole data set.
        folds: training and validation ids of each fold.
        splits: train, valid and test ids of the final runs, by the seed of the split. Node data have one split, with
            the key None and an empty valid part.
    """

    data: NodeData | GraphData
    folds: list[tuple[Tensor, Tensor]]
    splits: dict[int | None, Parts]

    @property
    def task(self) -> str:
        """What is classified: "node" or "graph"."""
        return "node" if isinstance(self.data, NodeData) else "graph"

    def fold(self, number: int) -> NodeData | GraphData:
        """Return the data of one fold of the search; all labels outside the fold are missing."""
        train, valid = self.folds[number]
        known = torch.cat([train, valid])
        labels = torch.full_like(self.data.labels, MISSING)
        labels[known] = self.data.labels[known]
        return dataclasses.replace(self.data, labels=labels, train=train, valid=valid, test=train[:0])

    def split(self, seed: int | None) -> NodeData | GraphData:
        """Return the data of a final run."""
        train, valid, test = self.splits[seed]
        return dataclasses.replace(self.data, train=train, valid=valid, test=test)


def fold_data(data: NodeData | GraphData) -> FoldedData:
    """Draw the protocol's folds and splits of a data set."""
    return _fold_nodes(data) if isinstance(data, NodeData) else _fold_graphs(data)


def _fold_nodes(data: NodeData) -> FoldedData:
    """Draw five stratified folds of the training and validation nodes; final runs train on all of these nodes."""
    if not len(data.test):
        raise ValueError(f"{data.name} must have a test part to report on, got none")
    pool = torch.cat([data.train, data.valid]).sort().values
    positions = stratified_folds(data.labels[pool].tolist(), NUM_FOLDS["node"], FOLD_SEED)
    return FoldedData(data, _train_and_valid(pool, positions), {None: (pool, data.valid[:0], data.test)})


def _fold_graphs(data: GraphData) -> FoldedData:
    """Draw ten folds of the molecules in no test part of MoleculeNet's three splits; final runs use these splits.

    All rows of a molecule that the file repeats are in the same fold, or in none. Molecules are stratified by their
    number of positive labels.
    """
    splits: dict[int | None, Parts] = {seed: random_parts(len(data.graphs), seed) for seed in SPLIT_SEEDS}
    tested = {data.graph_names[row] for _, _, test in splits.values() for row in test.tolist()}
    rows_of: dict[str, list[int]] = {}
    for row, name in enumerate(data.graph_names):
        if name not in tested:
            rows_of.setdefault(name, []).append(row)
    molecules = list(rows_of.values())
    num_positive = [int((data.labels[rows] == 1).any(0).sum()) for rows in molecules]
    pool = torch.tensor(sorted(row for rows in molecules for row in rows))
    position = {row: number for number, row in enumerate(pool.tolist())}
    positions = [
        torch.tensor(sorted(position[row] for molecule in fold.tolist() for row in molecules[molecule]))
        for fold in stratified_folds(num_positive, NUM_FOLDS["graph"], FOLD_SEED)
    ]
    return FoldedData(data, _train_and_valid(pool, positions), splits)


def _train_and_valid(pool: Tensor, positions: list[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Return for each fold the rest of the pool, then the fold itself."""
    folds = []
    for chosen in positions:
        valid = torch.zeros(len(pool), dtype=torch.bool)
        valid[chosen] = True
        folds.append((pool[~valid], pool[valid]))
    return folds
