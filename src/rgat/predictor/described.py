"""Molecule data sets with descriptors beside the graphs, and what a fitted model uses them for."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch

from rgat.checks import check_word
from rgat.data import GraphData
from rgat.data.molecules.descriptors import KINDS, QUICK, Descriptors, describe_smiles
from rgat.data.molecules.smiles import BONDS, parse_smiles
from rgat.memory import require
from rgat.predictor.evaluation import nan_to_none, score_graphs
from rgat.predictor.predictor import Predictor
from rgat.training.distributed import processes

AUTO = "auto"
WORDS = {  # of each kind, in tables
    "none": "graph alone",
    "rdkit": "graph and RDKit descriptors",
    "morgan": "graph and Morgan fingerprint",
    "both": "graph and both",
}
TRIED = ("none", "rdkit", "both")  # for "auto"; a fingerprint alone was never the best on validation parts of Tox21
MOST_MOLECULES = 50_000  # to train on with each kind of descriptors, to choose one
_ROWS = 16_384  # whose columns are standardised at a time


def kinds_to_try(data: GraphData, asked: str, comparison: bool) -> list[str]:
    """Return the kinds of descriptors to compare: the one that is asked for, or for "auto" `TRIED`.

    "auto" is the graph alone without a comparison, for many molecules, for graphs that are no molecules, and in several
    processes.
    """
    check_word("descriptors", asked, (AUTO, *KINDS))
    if asked != AUTO:
        return [asked]
    is_small = comparison and processes().number == 1 and len(data.train) <= MOST_MOLECULES
    return list(TRIED) if is_small and _are_molecules(data) else ["none"]


def _are_molecules(data: GraphData) -> bool:
    """Return whether graphs are named by SMILES and have bonds as edges; one of them tells."""
    is_named = data.relation_names[: len(BONDS)] == BONDS and len(data.graph_names) > 0
    return is_named and parse_smiles(data.graph_names[0], relaxed=True) is not None


def describe_data(data: GraphData, kinds: Sequence[str]) -> dict[str, GraphData]:
    """Return the data with each kind of descriptors, standardised by the training part."""
    if list(kinds) == ["none"]:
        return {"none": data}
    if not _are_molecules(data):
        raise ValueError(f"`descriptors` are for molecules named by SMILES, and {data.name} has none; leave them out")
    values, bits = describe_smiles(data.graph_names, QUICK)
    return {kind: data if kind == "none" else _described(data, kind, values, bits) for kind in kinds}


def _described(data: GraphData, kind: str, values: torch.Tensor, bits: torch.Tensor) -> GraphData:
    tables = {"rdkit": (values,), "morgan": (bits,), "both": (values, bits)}[kind]
    width = sum(table.shape[1] for table in tables)
    require(4 * width * (len(data.train) + _ROWS) + 2 * width * len(values))

    def columns(rows: torch.Tensor) -> torch.Tensor:
        return torch.cat([table[rows].float() for table in tables], 1)

    descriptors = Descriptors.learn(kind, () if kind == "morgan" else QUICK, columns(data.train))
    rows = [descriptors.standardise(columns(ids)) for ids in torch.split(torch.arange(len(values)), _ROWS)]
    store = dataclasses.replace(data.graphs, graph_attr=torch.cat(rows))
    return dataclasses.replace(data, graphs=store, descriptors=descriptors)


def descriptor_contribution(predictor: Predictor, data: GraphData, seed: int) -> dict[str, Any]:
    """Return the score of held-out molecules, and the score with their descriptors exchanged among them."""
    part = "test" if len(data.test) else "valid"
    ids = getattr(data, part)
    if data.graphs.graph_attr is None or not len(ids):
        return {}
    order = ids[torch.randperm(len(ids), generator=torch.Generator().manual_seed(seed))]
    mixed = data.graphs.graph_attr.clone()
    mixed[ids] = data.graphs.graph_attr[order]
    exchanged = dataclasses.replace(data, graphs=dataclasses.replace(data.graphs, graph_attr=mixed))
    scores = {"score": score_graphs(predictor, data, ids), "exchanged": score_graphs(predictor, exchanged, ids)}
    return {"descriptor_contribution": {"part": part, **nan_to_none(scores)}}
