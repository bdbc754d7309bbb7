"""How the protocol divides a data set: folds for the search, parts for the final runs.

No fold holds an example of any test part, nor its labels, so that a search cannot see one.
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
class Division:
    """A data set and the parts that the protocol makes of it.

    Attributes:
        data: all of it.
        folds: for each fold the ids to learn from and those to validate on.
        splits: train, valid and test ids of the final runs, by the seed of the split (nodes: one split, without seed,
            whose valid part is empty).
    """

    data: NodeData | GraphData
    folds: list[tuple[Tensor, Tensor]]
    splits: dict[int | None, Parts]

    @property
    def task(self) -> str:
        """What is to be classified: "node" or "graph"."""
        return "node" if isinstance(self.data, NodeData) else "graph"

    def fold(self, number: int) -> NodeData | GraphData:
        """The data of one fold of the search; all labels outside of it are blanked."""
        train, valid = self.folds[number]
        known = torch.cat([train, valid])
        labels = torch.full_like(self.data.labels, MISSING)
        labels[known] = self.data.labels[known]
        return dataclasses.replace(self.data, labels=labels, train=train, valid=valid, test=train[:0])

    def split(self, seed: int | None) -> NodeData | GraphData:
        """The data of a final run."""
        train, valid, test = self.splits[seed]
        return dataclasses.replace(self.data, train=train, valid=valid, test=test)


def divide(data: NodeData | GraphData) -> Division:
    """The protocol's folds and splits of a data set."""
    return _divide_nodes(data) if isinstance(data, NodeData) else _divide_graphs(data)


def _divide_nodes(data: NodeData) -> Division:
    """Five stratified folds of the training set; then all of it to learn from, without validation."""
    pool = torch.cat([data.train, data.valid]).sort().values
    if not len(data.test):
        raise ValueError(f"{data.name} must have a test part to report on, got none")
    places = stratified_folds(data.labels[pool].tolist(), NUM_FOLDS["node"], FOLD_SEED)
    return Division(data, _folds(pool, places), {None: (pool, data.valid[:0], data.test)})


def _divide_graphs(data: GraphData) -> Division:
    """Ten folds of what is in no test part of MoleculeNet's three splits; then these splits.

    Both go by molecule: where a file repeats one, all its rows are set aside or in a fold together. Molecules are
    stratified by their number of positive labels.
    """
    splits: dict[int | None, Parts] = {seed: random_parts(len(data.graphs), seed) for seed in SPLIT_SEEDS}
    tested = {data.graph_names[row] for _, _, test in splits.values() for row in test.tolist()}
    rows_of: dict[str, list[int]] = {}
    for row, name in enumerate(data.graph_names):
        if name not in tested:
            rows_of.setdefault(name, []).append(row)
    molecules = list(rows_of.values())
    positives = [int((data.labels[rows] == 1).any(0).sum()) for rows in molecules]
    groups = stratified_folds(positives, NUM_FOLDS["graph"], FOLD_SEED)
    pool = torch.tensor(sorted(row for rows in molecules for row in rows))
    place = {row: number for number, row in enumerate(pool.tolist())}
    places = [torch.tensor(sorted(place[row] for m in group.tolist() for row in molecules[m])) for group in groups]
    return Division(data, _folds(pool, places), splits)


def _folds(pool: Tensor, places: list[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """For each fold the rest of the pool, then the fold."""
    folds = []
    for chosen in places:
        valid = torch.zeros(len(pool), dtype=torch.bool)
        valid[chosen] = True
        folds.append((pool[~valid], pool[valid]))
    return folds
