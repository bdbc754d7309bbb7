"""Encode a data set with its folds and splits as one safetensors file.

A worker or another machine that gets this file needs no library that reads RDF or SMILES.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import torch
from torch import Tensor

from rgat.data import GraphData, GraphStore, NodeData
from rgat.data.dataset import PARTS
from rgat.experiments.folds import FoldedData
from rgat.graph import RelationalGraph

VERSION = 1
TENSORS = ("x", "labels", *PARTS, "edge_index", "edge_type", "edge_attr", "node_ptr", "edge_ptr")
METADATA = ("name", "classes", "tasks", "node_names", "graph_names", "relation_names", "provenance")


def encode(folded: FoldedData) -> bytes:
    """Return the content of the file."""
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
