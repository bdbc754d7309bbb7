"""A fitted model as a folder of safetensors and JSON: loading one never runs anybody's code."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rgat.data import NodeData
from rgat.data.records import PARTS
from rgat.experiments.variants import build_model
from rgat.fitting.calibration import Calibration
from rgat.fitting.configuration import split_config
from rgat.fitting.fitted import FittedModel, GraphModel, NodeModel
from rgat.graph import RelationalGraph
from rgat.models import GraphClassifier, Model
from rgat.training import has_checkpoint, load_checkpoint, save_checkpoint
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
        raise ValueError(
            f"{folder} must be the folder of a fitted model, but has no {NAME}.json; make one: `rgat train`"
        )
    tensors, record = load_checkpoint(folder, NAME)
    if record.get("model_format") != FORMAT:
        raise ValueError(
            f"{folder} must hold a model of format {FORMAT}, got format {record.get('model_format')}, written by rgat "
            f"{record.get('version')}; this is rgat {__version__}: use the version that wrote it, or a newer one"
        )
    try:
        if not isinstance(record.get("members"), int) or record["members"] < 1:
            raise ValueError(f"`members` must be at least 1, got {record.get('members')!r}")
        fitted = _node_model(tensors, record) if record["task"] == "node" else _graph_model(tensors, record)
    except (KeyError, TypeError, AttributeError, RuntimeError, ValueError) as error:
        raise ValueError(f"{folder} must hold a whole fitted model, but its parts do not fit: {error}") from error
    fitted.to(device)
    return fitted


def _calibration(tensors: dict[str, Tensor]) -> Calibration:
    return Calibration(tensors["slope"], tensors["intercept"])


def _members(build: Any, tensors: dict[str, Tensor], count: int) -> list[Model]:
    members = []
    for number in range(count):
        model, prefix = build(), f"member.{number}."
        model.load_state_dict({n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)})
        members.append(model.eval())
    return members


def _node_model(tensors: dict[str, Tensor], record: dict[str, Any]) -> NodeModel:
    names = {name: tuple(record[name]) for name in _NAMES}
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
    members = _members(lambda: build_model(data, 0, **options), tensors, record["members"])
    return NodeModel(members, record["config"], _calibration(tensors), record["report"], data)


def _graph_model(tensors: dict[str, Tensor], record: dict[str, Any]) -> GraphModel:
    options, _ = split_config(record["config"])
    sizes = (record["in_channels"], len(record["tasks"]), len(record["relation_names"]))
    members = _members(lambda: GraphClassifier(*sizes, **options), tensors, record["members"])
    about = (tuple(record["tasks"]), tuple(record["relation_names"]), record["in_channels"], record["provenance"])
    return GraphModel(members, record["config"], _calibration(tensors), record["report"], *about)
