"""Folds for the search and splits for the final runs, as the paper's protocol draws them.

No fold holds an example of any test part, nor its label, so a search cannot see test data. A worker or another machine
gets the data with its folds and splits as one safetensors file and needs no library that reads RDF or SMILES.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rgat.data import MISSING, GraphData, GraphStore, NodeData
from rgat.data.benchmarks.registry import SPLIT_SEEDS
from rgat.data.dataset import PARTS
from rgat.data.splits import Parts, random_parts, stratified_folds
from rgat.graph import RelationalGraph

FOLD_SEED = 0  # folds are drawn once per data set, the same for all models
NUM_FOLDS = {"node": 5, "graph": 10}
VERSION = 1  # of the file
TENSORS = ("x", "labels", *PARTS, "edge_index", "edge_type", "edge_attr", "node_ptr", "edge_ptr", "graph_attr")
METADATA = ("name", "classes", "tasks", "node_names", "graph_names", "relation_names", "provenance")


@dataclass(frozen=True)
class FoldedData:
    """A data set with its folds, and the splits of the final runs by their seeds.

    Node data have one split, with the key None and an empty valid part. Their folds from number 5 on are those of
    further draws of five.
    """

    data: NodeData | GraphData
    folds: list[tuple[Tensor, Tensor]]  # ids: train, valid
    splits: dict[int | None, Parts]  # ids: train, valid, test

    def fold(self, number: int) -> NodeData | GraphData:
        """Return the data of one fold of the search; all labels outside the fold are missing."""
        train, valid = self.fold_ids(number)
        known = torch.cat([train, valid])
        labels = torch.full_like(self.data.labels, MISSING)
        labels[known] = self.data.labels[known]
        return dataclasses.replace(self.data, labels=labels, train=train, valid=valid, test=train[:0])

    def fold_ids(self, number: int) -> tuple[Tensor, Tensor]:
        """Return the training and validation ids of one fold."""
        if isinstance(self.data, GraphData) or number < len(self.folds):
            return self.folds[number]
        draw, position = divmod(number, NUM_FOLDS["node"])
        return _draw_folds(self.data, self.splits[None][0], FOLD_SEED + draw)[position]

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
    return FoldedData(data, _draw_folds(data, pool, FOLD_SEED), {None: (pool, data.valid[:0], data.test)})


def _draw_folds(data: NodeData, pool: Tensor, seed: int) -> list[tuple[Tensor, Tensor]]:
    return _train_and_valid(pool, stratified_folds(data.labels[pool].tolist(), NUM_FOLDS["node"], seed))


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


def encode(folded: FoldedData) -> bytes:
    """Return the content of a safetensors file with the data, folds and splits."""
    data = folded.data
    graph = data.graph if isinstance(data, NodeData) else data.graphs
    tensors = {name: getattr(data, name, getattr(graph, name, None)) for name in TENSORS}
    for number, fold in enumerate(folded.folds):
        tensors |= {f"fold.{number}.{part}": ids for part, ids in zip(PARTS[:2], fold, strict=True)}
    for seed, parts in folded.splits.items():
        tensors |= {f"split.{seed}.{part}": ids for part, ids in zip(PARTS, parts, strict=True)}
    about = {name: getattr(data, name) for name in METADATA if hasattr(data, name)}
    about |= {"version": VERSION, "splits": list(folded.splits), "num_relations": graph.num_relations}
    if isinstance(graph, RelationalGraph):
        about["num_nodes"] = graph.num_nodes
    tensors["about"] = torch.frombuffer(bytearray(json.dumps(about).encode()), dtype=torch.uint8)
    narrowed = {name: _narrow(name, tensor).contiguous() for name, tensor in tensors.items() if tensor is not None}
    return bytes(_safetensors().save(narrowed))


def _narrow(name: str, tensor: Tensor) -> Tensor:
    """Store ids and counts in 32 bits, and atom features, which are small integers, in 8."""
    if name == "x" and torch.equal(tensor.to(torch.int8).to(tensor.dtype), tensor):
        return tensor.to(torch.int8)
    return tensor.int() if tensor.dtype == torch.int64 else tensor


def _widen(tensor: Tensor) -> Tensor:
    return {torch.int32: tensor.long, torch.int8: tensor.float}.get(tensor.dtype, lambda: tensor)()


def decode(content: bytes) -> FoldedData:
    """Return the data that ``encode`` was called with."""
    library = _safetensors()
    try:
        tensors = library.load(content)
        about = json.loads(tensors.pop("about").numpy().tobytes())
        version = about.get("version")
    except Exception as error:  # the library's own errors share no other base
        raise ValueError(f"prepared data must be a safetensors file of a data set and its folds ({error})") from error
    if version != VERSION:
        raise ValueError(f"prepared data must have version {VERSION}, got {version}; write the file again")
    try:
        return _build({name: _widen(tensor) for name, tensor in tensors.items()}, about)
    except (KeyError, TypeError, AttributeError, RuntimeError, ValueError) as error:
        raise ValueError(
            f"prepared data must be complete, but their parts do not fit: {error}; write the file again"
        ) from error


def _build(tensors: dict[str, Tensor], about: dict[str, Any]) -> FoldedData:
    metadata = {name: tuple(value) if isinstance(value, list) else value for name, value in about.items()}
    values: dict[str, Any] = metadata | tensors
    data: NodeData | GraphData
    if "node_ptr" in values:
        data = GraphData(graphs=GraphStore(**_fields(GraphStore, values)), **_fields(GraphData, values))
    else:
        sizes = {name: values[name] for name in ("num_nodes", "num_relations")}
        graph = RelationalGraph(values["edge_index"], values["edge_type"], edge_attr=values.get("edge_attr"), **sizes)
        data = NodeData(graph=graph, **{"x": None} | _fields(NodeData, values))
    num_folds = sum(name.startswith("fold.") for name in tensors) // 2
    folds = [(tensors[f"fold.{n}.train"], tensors[f"fold.{n}.valid"]) for n in range(num_folds)]
    splits: Any = {seed: tuple(tensors[f"split.{seed}.{part}"] for part in PARTS) for seed in values["splits"]}
    return FoldedData(data, folds, splits)


def _fields(dataclass: Any, values: dict[str, Any]) -> dict[str, Any]:
    return {field.name: values[field.name] for field in dataclasses.fields(dataclass) if field.name in values}


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ImportError as error:
        raise ImportError("prepared data need safetensors; install it with `pip install safetensors`") from error
    return safetensors.torch
