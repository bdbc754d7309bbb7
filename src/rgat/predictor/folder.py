"""Write and read a predictor as a folder of safetensors and JSON; reading never runs code from the folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rgat.checks import check_ids, check_word
from rgat.data import NodeData, Target
from rgat.data.dataset import PARTS
from rgat.data.molecules.descriptors import KINDS as DESCRIPTORS
from rgat.data.molecules.descriptors import VECTORS, Descriptors, number_of_columns
from rgat.data.store import StoredGraph, open_store
from rgat.data.targets import KINDS, output_names
from rgat.graph import RelationalGraph
from rgat.models import GraphClassifier, Model
from rgat.predictor.conformal import HeldOut, Question
from rgat.predictor.ensemble import Calibration, Ensemble, MoleculeVocabulary
from rgat.predictor.familiarity import Familiarity
from rgat.training import build_model, has_checkpoint, load_checkpoint, save_checkpoint
from rgat.training.checkpoint import digest
from rgat.training.configuration import split_config
from rgat.training.embeddings import whole_state
from rgat.version import __version__

FORMAT = 1  # of the record; the checkpoint that holds it has its own
NAME = "fitted"  # the folder may also hold the checkpoints of the training
_NAMES = ("classes", "node_names", "relation_names")


def write_folder(folder: str | PathLike[str], ensemble: Ensemble, data: NodeData | MoleculeVocabulary) -> None:
    """Write the members, calibration, settings and names and, for nodes, the graph."""
    tensors: dict[str, Any] = {"slope": ensemble.calibration.slope, "intercept": ensemble.calibration.intercept}
    tensors |= _uncertainty_tensors(ensemble)
    for number, member in enumerate(ensemble.members):
        tensors |= {f"member.{number}.{name}": tensor for name, tensor in whole_state(member).items()}
    record: dict[str, Any] = {
        "model_format": FORMAT,
        "version": __version__,
        "config": ensemble.config,
        "members": len(ensemble.members),
        "report": ensemble.report,
    }
    if ensemble.targets:
        record["targets"] = [asdict(target) for target in ensemble.targets]
    if isinstance(data, NodeData):
        tensors |= {"labels": data.labels} | {part: getattr(data, part) for part in PARTS}
        tensors |= {} if data.values is None else {"values": data.values}
        record |= {"task": "node", "name": data.name, "provenance": data.provenance}
        if data.is_stored:  # the folder refers to it
            store: Any = data.graph
            home, path = Path(folder).absolute(), store.path
            path = path.relative_to(home) if path.is_relative_to(home) else path  # the folder may be moved
            record |= {"store": str(path), "store_digest": _store_digest(store), "classes": list(data.classes)}
        else:
            tensors |= {"edge_index": data.graph.edge_index, "edge_type": data.graph.edge_type}
            tensors |= {} if data.x is None else {"x": data.x}
            record |= {name: list(getattr(data, name)) for name in _NAMES}
    else:
        record |= {"task": "graph", "provenance": data.provenance, "in_channels": data.in_channels}
        record |= {"tasks": list(data.tasks), "relation_names": list(data.relation_names)}
        if (described := data.descriptors) is not None:
            tensors |= {"descriptor_mean": described.mean, "descriptor_scale": described.scale}
            record["descriptors"] = {"kind": described.kind, "properties": list(described.properties)}
    save_checkpoint(Path(folder), tensors, record, NAME)


def read_folder(folder: str | PathLike[str]) -> tuple[Ensemble, NodeData | MoleculeVocabulary]:
    """Read what `write_folder` wrote, on any machine; refuse incomplete, changed or foreign files."""
    folder = Path(folder)
    if not has_checkpoint(folder, NAME):
        content = "only model.json, of an earlier rgat" if has_checkpoint(folder, "model") else f"no {NAME}.json"
        raise ValueError(f"{folder} must be a model folder, but has {content}; write one with `rgat train`")
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
        return _read_nodes(tensors, record, folder) if record["task"] == "node" else _read_molecules(tensors, record)
    except (KeyError, TypeError, AttributeError, RuntimeError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0][:300]  # PyTorch appends its stack
        raise ValueError(f"{folder} must hold a complete predictor, but its parts do not fit: {reason}") from error


def _store_digest(store: StoredGraph) -> str:
    """Return a digest of a store's manifest, which has the checksums of all its files."""
    return digest(store.manifest.to_json().decode())


def _open_store(record: dict[str, Any], folder: Path) -> StoredGraph:
    """Open the store that a model was trained on, or raise if it has changed or is gone."""
    path = record["store"]
    if not isinstance(path, str):
        raise ValueError(f"`store` must be a path, got {path!r}")
    store = open_store(folder / path)
    if _store_digest(store) != record.get("store_digest"):
        raise ValueError(f"{path} must be the store that the model was trained on, but has changed since")
    store.verify()
    return store


def _read_nodes(tensors: dict[str, Tensor], record: dict[str, Any], folder: Path) -> tuple[Ensemble, NodeData]:
    if "store" in record:
        store: Any = _open_store(record, folder)
        names: dict[str, Any] = {"classes": _names(record, "classes")}
        names |= {"node_names": store.node_names, "relation_names": store.relation_names}
        graph, x = store, store.x
    else:
        names = {key: _names(record, key) for key in _NAMES}
        graph, x = None, tensors.get("x")
    num_nodes, num_classes = len(names["node_names"]), len(names["classes"])
    _check_tensor(tensors, "labels", (num_nodes,), torch.int64)
    check_ids("labels", tensors["labels"] + 1, num_classes + 1, "classes")
    for part in PARTS:
        _check_tensor(tensors, part, (None,), torch.int64)
        check_ids(part, tensors[part], num_nodes, "nodes")
    targets = _targets(record, names["classes"])
    if targets:
        _check_tensor(tensors, "values", (num_nodes, num_classes))
        names |= {"targets": targets, "values": tensors["values"]}
    if "x" in tensors:
        _check_tensor(tensors, "x", (num_nodes, None))
    if graph is None:
        edges = (tensors["edge_index"], tensors["edge_type"])
        graph = RelationalGraph(*edges, num_nodes=num_nodes, num_relations=len(names["relation_names"])).prepare()
        # Prepared before models are built on the meta device: a featureless layer reads its rows from the graph.
    fields: dict[str, Any] = {**names, **{part: tensors[part] for part in PARTS}, "provenance": record["provenance"]}
    data = NodeData(name=record["name"], graph=graph, x=x, labels=tensors["labels"], **fields)
    options, _ = split_config(record["config"])
    slope = (num_classes,) if targets else ()
    build = lambda: build_model(data, 0, **options)
    return _read_ensemble(tensors, record, build, slope, (num_classes,), targets), data


def _read_molecules(tensors: dict[str, Tensor], record: dict[str, Any]) -> tuple[Ensemble, MoleculeVocabulary]:
    tasks, relation_names = _names(record, "tasks"), _names(record, "relation_names")
    targets = _targets(record, tasks)
    described = _read_descriptors(tensors, record["descriptors"]) if "descriptors" in record else None
    fields = (tasks, relation_names, record["in_channels"], record["provenance"], targets, described)
    vocabulary = MoleculeVocabulary(*fields)
    options, _ = split_config(record["config"])
    options |= {} if described is None else {"descriptor_channels": described.channels}
    sizes = (vocabulary.in_channels, len(tasks), len(relation_names), 1 if targets else 2)
    shape, build = (len(tasks),), lambda: GraphClassifier(*sizes, **options)
    return _read_ensemble(tensors, record, build, shape, shape, targets), vocabulary


def _targets(record: dict[str, Any], outputs: tuple[str, ...]) -> tuple[Target, ...]:
    """Return the targets of a record, checked against the names of the outputs; none in records without."""
    targets = []
    for fields in record.get("targets", []):
        target = Target(**fields | {"classes": tuple(fields["classes"])})
        if target.kind not in KINDS or not 0 < float(target.scale) < float("inf"):
            raise ValueError(f"`targets` must have a known kind and a scale above 0, got {fields}")
        targets.append(target)
    if targets and output_names(targets) != outputs:
        raise ValueError(f"`targets` must have the outputs {', '.join(outputs)}, got {output_names(targets)}")
    return tuple(targets)


def _read_descriptors(tensors: dict[str, Tensor], record: dict[str, Any]) -> Descriptors:
    properties = _names(record, "properties")
    check_word("descriptors", record["kind"], DESCRIPTORS[1:])
    width = number_of_columns(record["kind"], properties)
    if properties and "descriptor_mean" in tensors and len(tensors["descriptor_mean"]) > width:
        properties = (*properties, *VECTORS)  # earlier versions read all properties, and did not name these
        width = number_of_columns(record["kind"], properties)
    for name in ("descriptor_mean", "descriptor_scale"):
        _check_tensor(tensors, name, (width,))
    return Descriptors(record["kind"], properties, tensors["descriptor_mean"], tensors["descriptor_scale"])


def _read_ensemble(
    tensors: dict[str, Tensor],
    record: dict[str, Any],
    build: Callable[[], nn.Module],
    slope: tuple[int, ...],
    intercept: tuple[int, ...],
    targets: tuple[Target, ...],
) -> Ensemble:
    """Check all shapes, of the calibration against those given, before the members are built."""
    _check_tensor(tensors, "slope", slope)
    _check_tensor(tensors, "intercept", intercept)
    count, states = record["members"], []
    for number in range(count):
        prefix = f"member.{number}."
        states.append({n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)})
        if not states[-1]:
            raise ValueError(f"`members` must be the number of models, got {count} and no tensors of {prefix[:-1]}")
    with torch.device("meta"):  # takes no memory, whatever sizes the configuration has
        expected = {name: list(tensor.shape) for name, tensor in build().state_dict().items()}
    members: list[Any] = []
    for state in states:
        for name in sorted(expected.keys() | state.keys()):
            shape = list(state[name].shape) if name in state else None
            if shape != expected.get(name):
                raise ValueError(f"`{name}` must have the shape {expected.get(name)} by the configuration, got {shape}")
        members.append(build().eval())
        members[-1].load_state_dict(state)
    calibration = Calibration(tensors["slope"], tensors["intercept"], targets)
    calibration = replace(calibration, held_out=_read_held_out(tensors, calibration.questions()))
    familiarity = _read_familiarity(tensors, members[0])
    return Ensemble(members, record["config"], calibration, record["report"], familiarity=familiarity)


def _uncertainty_tensors(ensemble: Ensemble) -> dict[str, Tensor]:
    """Return what sets and distances need, as far as the ensemble has it."""
    held_out, known = ensemble.calibration.held_out, ensemble.familiarity
    tensors: dict[str, Tensor] = {}
    if held_out is not None:
        scores, groups = torch.from_numpy(held_out.scores), torch.from_numpy(held_out.groups)
        tensors |= {"held_out_scores": scores, "held_out_groups": groups}
    if known is not None:
        tensors |= {"training_rows": known.rows, "training_relations": known.relations}
        tensors |= {"training_scale": torch.tensor(known.scale, dtype=torch.float64)}
        tensors |= {} if known.features is None else {"training_features": known.features}
    return tensors


def _read_held_out(tensors: dict[str, Tensor], questions: Sequence[Question]) -> HeldOut | None:
    if "held_out_scores" not in tensors:
        return None
    _check_tensor(tensors, "held_out_scores", (None,), torch.float64)
    _check_tensor(tensors, "held_out_groups", tuple(tensors["held_out_scores"].shape), torch.int64)
    num_groups = sum(question.num_groups for question in questions)
    check_ids("held_out_groups", tensors["held_out_groups"], num_groups, "classes")
    return HeldOut(tensors["held_out_scores"].numpy(), tensors["held_out_groups"].numpy())


def _read_familiarity(tensors: dict[str, Tensor], model: Model) -> Familiarity | None:
    if "training_rows" not in tensors:
        return None
    channels = model.dense2.in_features if isinstance(model, GraphClassifier) else model.convs[-1].in_channels
    _check_tensor(tensors, "training_rows", (None, channels), torch.float32)
    _check_tensor(tensors, "training_scale", (), torch.float64)
    _check_tensor(tensors, "training_relations", (model.convs[0].num_relations,), torch.bool)
    if isinstance(model, GraphClassifier):
        _check_tensor(tensors, "training_features", (model.convs[0].in_channels,), torch.bool)
    scale, features = float(tensors["training_scale"]), tensors.get("training_features")
    return Familiarity(tensors["training_rows"], scale, tensors["training_relations"], features)


def _names(record: dict[str, Any], key: str) -> tuple[str, ...]:
    names = record[key]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"`{key}` must be a list of names")
    "".join(names).encode()  # raises for lone surrogates, which JSON can hold but no UTF-8 file can
    return tuple(names)


def _check_tensor(
    tensors: dict[str, Tensor], name: str, shape: tuple[int | None, ...], dtype: torch.dtype | None = None
) -> None:
    """Raise unless a tensor has this shape (None: any size) and this type, by default any floating-point type."""
    tensor = tensors[name]
    fits = len(shape) == tensor.dim() and all(
        size in (None, actual) for size, actual in zip(shape, tensor.shape, strict=True)
    )
    if not fits or not (tensor.is_floating_point() if dtype is None else tensor.dtype == dtype):
        kind = "floating-point numbers" if dtype is None else str(dtype).removeprefix("torch.")
        sizes = ["any" if size is None else size for size in shape]
        raise ValueError(f"`{name}` must be {kind} of shape {sizes}, got {tensor.dtype} of shape {list(tensor.shape)}")
