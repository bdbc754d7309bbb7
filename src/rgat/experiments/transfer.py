"""A data set and its division as one safetensors file, for machines that can read neither RDF nor SMILES."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import torch
from torch import Tensor

from rgat.data import GraphData, GraphStore, NodeData
from rgat.data.dataset import PARTS
from rgat.experiments.folds import Division
from rgat.graph import RelationalGraph

VERSION = 1  # of the portable form
TENSORS = ("x", "labels", *PARTS, "edge_index", "edge_type", "edge_attr", "node_ptr", "edge_ptr")
WORDS = ("name", "classes", "tasks", "node_names", "graph_names", "relation_names", "provenance")


def encode(division: Division) -> bytes:
    """The content of a safetensors file that holds all of a division."""
    save = _safetensors().save
    data = division.data
    graph = data.graph if isinstance(data, NodeData) else data.graphs
    tensors = {name: getattr(data, name, getattr(graph, name, None)) for name in TENSORS}
    for number, fold in enumerate(division.folds):
        tensors |= {f"fold.{number}.{part}": ids for part, ids in zip(PARTS[:2], fold, strict=True)}
    for seed, parts in division.splits.items():
        tensors |= {f"split.{seed}.{part}": ids for part, ids in zip(PARTS, parts, strict=True)}
    about = {word: getattr(data, word) for word in WORDS if hasattr(data, word)}
    about |= {"version": VERSION, "splits": list(division.splits), "num_relations": graph.num_relations}
    if isinstance(graph, RelationalGraph):
        about["num_nodes"] = graph.num_nodes
    tensors["about"] = torch.frombuffer(bytearray(json.dumps(about).encode()), dtype=torch.uint8)
    return bytes(save({name: _narrow(name, t).contiguous() for name, t in tensors.items() if t is not None}))


def _narrow(name: str, tensor: Tensor) -> Tensor:
    """Ids and counts fit 32 bits, and the features of atoms, which are small whole numbers, 8."""
    if name == "x" and torch.equal(tensor.to(torch.int8).to(tensor.dtype), tensor):
        return tensor.to(torch.int8)
    return tensor.int() if tensor.dtype == torch.int64 else tensor


def _widen(tensor: Tensor) -> Tensor:
    return {torch.int32: tensor.long, torch.int8: tensor.float}.get(tensor.dtype, lambda: tensor)()


def decode(content: bytes) -> Division:
    """The division that ``encode`` was given."""
    library = _safetensors()
    try:
        tensors = library.load(content)
        about = json.loads(tensors.pop("about").numpy().tobytes())
        version = about.get("version")
    except Exception as error:  # the library's own errors share no other base
        raise ValueError(f"prepared data must be a safetensors file of a data set and its folds ({error})") from error
    if version != VERSION:
        raise ValueError(f"prepared data must have version {VERSION}, got {version}; write them anew")
    try:
        return _division(tensors, about)
    except (KeyError, TypeError, AttributeError, RuntimeError, ValueError) as error:
        raise ValueError(
            f"prepared data must be whole, but their parts do not fit: {error}; write them anew"
        ) from error


def _division(tensors: dict[str, Any], about: dict[str, Any]) -> Division:
    tensors = {name: _widen(tensor) for name, tensor in tensors.items()}
    found: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in about.items()
    } | tensors
    data: NodeData | GraphData
    if "node_ptr" in found:
        data = GraphData(graphs=GraphStore(**_fields(GraphStore, found)), **_fields(GraphData, found))
    else:
        sizes = {name: found[name] for name in ("num_nodes", "num_relations")}
        graph = RelationalGraph(found["edge_index"], found["edge_type"], edge_attr=found.get("edge_attr"), **sizes)
        data = NodeData(graph=graph, **{"x": None} | _fields(NodeData, found))
    num_folds = sum(name.startswith("fold.") for name in tensors) // 2
    folds = [(tensors[f"fold.{n}.train"], tensors[f"fold.{n}.valid"]) for n in range(num_folds)]
    splits = {seed: tuple(tensors[f"split.{seed}.{part}"] for part in PARTS) for seed in found["splits"]}
    return Division(data, folds, splits)


def _fields(record: Any, found: dict[str, Any]) -> dict[str, Any]:
    names = [field.name for field in dataclasses.fields(record)]
    return {name: found[name] for name in names if name in found}


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ImportError as error:
        raise ImportError("prepared data need safetensors; install it with `pip install safetensors`") from error
    return safetensors.torch
