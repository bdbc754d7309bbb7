"""A fitted model as a folder of safetensors and JSON: loading one never runs anybody's code."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rgat.data import NodeData
from rgat.data.dataset import PARTS
from rgat.graph import RelationalGraph, check_ids
from rgat.models import GraphClassifier, Model
from rgat.predictor.calibration import Calibration
from rgat.predictor.predictor import FittedModel, GraphModel, NodeModel
from rgat.training import build_model, has_checkpoint, load_checkpoint, save_checkpoint
from rgat.training.configuration import split_config
from rgat.version import __version__

FORMAT = 1  # of the record below; the checkpoint around it has a format of its own
NAME = "fitted"  # beside it, a folder may hold checkpoints of its training
_NAMES = ("classes", "node_names", "relation_names")


def save(fitted: FittedModel, folder: str | PathLike[str]) -> None:
    """Write the members, the calibration, names and settings and, of nodes, the graph."""
    tensors = {"slope": fitted.calibration.slope, "intercept": fitted.calibration.intercept}
    for number, member in enumerate(fitted.members):
        tensors |= {f"member.{number}.{name}": tensor for name, tensor in member.state_dict().items()}
    record: dict[str, Any] = {
        "model_format": FORMAT,
        "version": __version__,
        "config": fitted.config,
        "members": len(fitted.members),
        "report": fitted.report,
    }
    if isinstance(fitted, NodeModel):
        data = fitted.data
        tensors |= {"edge_index": data.graph.edge_index, "edge_type": data.graph.edge_type, "labels": data.labels}
        tensors |= {part: getattr(data, part) for part in PARTS}
        if data.x is not None:
            tensors["x"] = data.x
        record |= {"task": "node", "name": data.name, "provenance": data.provenance}
        record |= {name: list(getattr(data, name)) for name in _NAMES}
    else:
        assert isinstance(fitted, GraphModel)
        record |= {"task": "graph", "provenance": fitted.provenance, "in_channels": fitted.in_channels}
        record |= {"tasks": list(fitted.tasks), "relation_names": list(fitted.relation_names)}
    save_checkpoint(Path(folder), tensors, record, NAME)


def load(folder: str | PathLike[str], device: torch.device | str = "cpu") -> NodeModel | GraphModel:
    """Read a model that :meth:`FittedModel.save` wrote, on any machine; refuses what is not whole or not ours."""
    folder = Path(folder)
    if not has_checkpoint(folder, NAME):
        old = "only model.json, of an earlier rgat" if has_checkpoint(folder, "model") else f"no {NAME}.json"
        raise ValueError(f"{folder} must be the folder of a fitted model, but has {old}; make one: `rgat train`")
    tensors, record = load_checkpoint(folder, NAME)
    if record.get("model_format") != FORMAT:
        raise ValueError(
            f"{folder} must hold a model of format {FORMAT}, got format {record.get('model_format')}, written by rgat "
            f"{record.get('version')}; this is rgat {__version__}: use the version that wrote it, or a newer one"
        )
    try:
        if not isinstance(record.get("members"), int) or record["members"] < 1:
            raise ValueError(f"`members` must be at least 1, got {record.get('members')!r}")
        for key in ("config", "report", "provenance"):
            if not isinstance(record[key], dict):
                raise ValueError(f"`{key}` must be a table, got {record[key]!r}")
        fitted = _node_model(tensors, record) if record["task"] == "node" else _graph_model(tensors, record)
    except (KeyError, TypeError, AttributeError, RuntimeError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0][:300]  # PyTorch adds where it noticed
        raise ValueError(f"{folder} must hold a whole fitted model, but its parts do not fit: {reason}") from error
    fitted.to(device)
    return fitted


def _names(record: dict[str, Any], key: str) -> tuple[str, ...]:
    names = record[key]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"`{key}` must be a list of names")
    "".join(names).encode()  # half a character, which JSON can hold, could be written to no file
    return tuple(names)


def _check_tensor(tensors: dict[str, Tensor], name: str, shape: tuple[int | None, ...], floating: bool) -> None:
    """Raise unless a tensor has this shape, None being any size, and holds floating-point numbers, or else ids."""
    found = tensors[name]
    fits = len(shape) == found.dim() and all(want in (None, got) for want, got in zip(shape, found.shape, strict=True))
    if not fits or not (found.is_floating_point() if floating else found.dtype == torch.int64):
        kind = "floating-point numbers" if floating else "int64"
        sizes = ["any" if size is None else size for size in shape]
        raise ValueError(f"`{name}` must be {kind} of shape {sizes}, got {found.dtype} of shape {list(found.shape)}")


def _calibration(tensors: dict[str, Tensor], slope: tuple[int, ...], intercept: tuple[int, ...]) -> Calibration:
    _check_tensor(tensors, "slope", slope, floating=True)
    _check_tensor(tensors, "intercept", intercept, floating=True)
    return Calibration(tensors["slope"], tensors["intercept"])


def _members(build: Callable[[], nn.Module], tensors: dict[str, Tensor], count: int) -> list[Model]:
    states = []
    for number in range(count):
        prefix = f"member.{number}."
        states.append({n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)})
        if not states[-1]:
            raise ValueError(f"`members` must be the number of models, got {count} and no tensors of {prefix[:-1]}")
    with torch.device("meta"):  # takes no memory, whatever sizes a stranger's configuration has
        expected = {name: list(tensor.shape) for name, tensor in build().state_dict().items()}
    members = []
    for state in states:
        for name in sorted(expected.keys() | state.keys()):
            found = list(state[name].shape) if name in state else None
            if found != expected.get(name):
                raise ValueError(f"`{name}` must have the shape {expected.get(name)} by the configuration, got {found}")
        model = build()
        model.load_state_dict(state)
        members.append(model.eval())
    return members  # type: ignore[return-value]


def _node_model(tensors: dict[str, Tensor], record: dict[str, Any]) -> NodeModel:
    names = {name: _names(record, name) for name in _NAMES}
    _check_tensor(tensors, "labels", (len(names["node_names"]),), floating=False)
    check_ids("labels", tensors["labels"] + 1, len(names["classes"]) + 1, "classes")
    for part in PARTS:
        _check_tensor(tensors, part, (None,), floating=False)
        check_ids(part, tensors[part], len(names["node_names"]), "nodes")
    if "x" in tensors:
        _check_tensor(tensors, "x", (len(names["node_names"]), None), floating=True)
    graph = RelationalGraph(
        tensors["edge_index"],
        tensors["edge_type"],
        num_nodes=len(names["node_names"]),
        num_relations=len(names["relation_names"]),
    )
    parts = {part: tensors[part] for part in PARTS}
    given = {"name": record["name"], "graph": graph, "x": tensors.get("x"), "labels": tensors["labels"]}
    data = NodeData(**given, **parts, **names, provenance=record["provenance"])  # type: ignore[arg-type]
    options, _ = split_config(record["config"])
    calibration = _calibration(tensors, (), (len(data.classes),))
    graph.prepare()  # by real memory: a layer without features reads its rows off it
    members = _members(lambda: build_model(data, 0, **options), tensors, record["members"])
    return NodeModel(members, record["config"], calibration, record["report"], data)


def _graph_model(tensors: dict[str, Tensor], record: dict[str, Any]) -> GraphModel:
    options, _ = split_config(record["config"])
    tasks, relation_names = _names(record, "tasks"), _names(record, "relation_names")
    calibration = _calibration(tensors, (len(tasks),), (len(tasks),))
    sizes = (record["in_channels"], len(tasks), len(relation_names))
    members = _members(lambda: GraphClassifier(*sizes, **options), tensors, record["members"])
    about = (tasks, relation_names, record["in_channels"], record["provenance"])
    return GraphModel(members, record["config"], calibration, record["report"], *about)
