"""Checkpoints: tensors in a safetensors file, everything else in JSON, so that reading one never runs foreign code.

A folder holds ``NAME.json`` and the file of tensors that it names. New tensors are written beside the old ones, and
renaming the new JSON into place replaces the checkpoint, so a complete one exists at every moment. The JSON holds the
hashes of the tensors and of itself.

A training run is identified by digests of everything that it depends on, so that only the same run resumes a
checkpoint.
"""

from __future__ import annotations

import functools
import hashlib
import json
import types
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rgat.data import GraphData, GraphStore, NodeData
from rgat.data.dataset import PARTS
from rgat.data.files import WriteError, move_into_place, read_whole, replacing, write_atomically
from rgat.graph import RelationalGraph
from rgat.training.configuration import Settings
from rgat.training.distributed import processes
from rgat.training.embeddings import DividedRows, whole_state
from rgat.training.tensor_files import Table, as_bytes, digest_file, give_rows, read_tensors, write_tensors

FORMAT = 1
NAME = "checkpoint"
_NEW_SETTINGS = {
    "fanouts": None,
    "validate_every": 1,
    "class_weights": None,
    "label_smoothing": 0.0,
    "weight_averaging": False,
    "wide_l1": 0.0,
}  # settings that earlier versions did not have
LARGEST_RECORD = 2**30  # bytes; enough for the names of about ten million nodes


def save_checkpoint(
    folder: str | Path, tensors: Mapping[str, Table], record: Mapping[str, Any], name: str = NAME
) -> None:
    """Write tensors and a record that JSON can hold, and replace the checkpoint of the same name.

    The first process writes. The others must call this too if tensors are divided among the processes.

    Examples:
        >>> import torch
        >>> from rgat.training import load_checkpoint
        >>> from rgat.training import save_checkpoint
        >>> save_checkpoint("folder", {"weight": torch.ones(2)}, {"epoch": 3})
        >>> load_checkpoint("folder")[0]["weight"]
        tensor([1., 1.])
    """
    if processes().rank > 0:
        give_rows(tensors)
        return
    folder = Path(folder)
    try:
        unnamed = folder / f"{name}-new.safetensors"
        with replacing(unnamed) as output:
            digest = write_tensors(output, tensors)
        file = f"{name}-{digest[:16]}.safetensors"
        move_into_place(unnamed, folder / file)
        body = {"format": FORMAT, "tensors": file, "tensors_sha256": digest, **record}
        text = json.dumps(body | {"sha256": _hash(body)}, indent=1, allow_nan=False)
        write_atomically(folder / f"{name}.json", text.encode())
        for old in folder.glob(f"{name}-*.safetensors"):
            if old.name != file:
                old.unlink()
    except (OSError, WriteError) as error:
        reason = error.reason if isinstance(error, WriteError) else error.strerror
        previous = "; the last checkpoint there is intact" if has_checkpoint(folder, name) else ""
        raise ValueError(
            f"a checkpoint must be written to {folder}, which failed: {reason}{previous}; "
            "make room or choose another folder"
        ) from error


def load_checkpoint(
    folder: str | Path, name: str = NAME, divided: Collection[str] = ()
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and the record of a checkpoint; refuse one that is incomplete, changed or of another program.

    Of the tensors in ``divided``, only this process's rows are read. If another process replaces the checkpoint
    meanwhile, the new one is read.

    Examples:
        >>> import torch
        >>> from rgat.training import load_checkpoint, save_checkpoint
        >>> save_checkpoint("folder", {"weight": torch.ones(2)}, {"epoch": 3})
        >>> tensors, record = load_checkpoint("folder")
        >>> tensors["weight"], record["epoch"]
        (tensor([1., 1.]), 3)
    """
    path = Path(folder) / f"{name}.json"
    while True:
        before = _version(path)
        try:
            return _load_once(Path(folder), name, divided)
        except ValueError:
            if _version(path) == before:
                raise


def _version(path: Path) -> tuple[int, ...] | None:
    """Return numbers that change when a file is replaced."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_mtime_ns, stat.st_size


def _load_once(folder: Path, name: str, divided: Collection[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    path = folder / f"{name}.json"
    with _refusing(path):
        text = read_whole(path, LARGEST_RECORD)
    try:
        record = json.loads(text)
        written_hash = record.pop("sha256", None) if isinstance(record, dict) else None
        content_hash = _hash(record)
    except (ValueError, RecursionError) as error:
        raise _refusal(path, f"it is not JSON ({error})") from error
    if not isinstance(record, dict) or "format" not in record or "tensors" not in record:
        raise _refusal(path, "it is not a checkpoint of rgat")
    if record["format"] != FORMAT:
        reason = f"it has format {record['format']!r}, and this rgat reads {FORMAT} (a newer rgat may read it)"
        raise _refusal(path, reason)
    if written_hash != content_hash:
        raise _refusal(path, "it was changed since it was written")
    if not isinstance(record["tensors"], str):
        raise _refusal(path, "it does not name its tensors")
    file = folder / Path(record["tensors"]).name
    with _refusing(file):
        digest = digest_file(file)
    if digest != record.get("tensors_sha256"):
        raise _refusal(file, "it was cut off or changed since it was written")
    try:
        return read_tensors(file, divided), record
    except ImportError:
        raise
    except Exception as error:
        raise _refusal(file, f"it is not a safetensors file ({error})") from error


def has_checkpoint(folder: str | Path, name: str = NAME) -> bool:
    """Return whether a folder holds a checkpoint.

    Examples:
        >>> import torch
        >>> from rgat.training import has_checkpoint, save_checkpoint
        >>> save_checkpoint("folder", {"weight": torch.ones(2)}, {"epoch": 3})
        >>> has_checkpoint("folder"), has_checkpoint("elsewhere")
        (True, False)
    """
    return (Path(folder) / f"{name}.json").exists()


def remove_checkpoint(folder: str | Path, name: str = NAME) -> None:
    """Remove the checkpoint in a folder, if there is one."""
    (Path(folder) / f"{name}.json").unlink(missing_ok=True)
    for path in Path(folder).glob(f"{name}-*.safetensors"):
        path.unlink()


def _hash(record: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


@contextmanager
def _refusing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _refusal(path, str(error.strerror)) from error
    except MemoryError as error:
        raise _refusal(path, "it does not fit into memory") from error


def _refusal(path: Path, reason: str) -> ValueError:
    return ValueError(f"{path} must be part of a complete checkpoint, but {reason}; train again, into another folder")


def identify(model: nn.Module, data: NodeData | GraphData, settings: Settings, seed: int) -> dict[str, Any]:
    """Describe a run before its first epoch: names and settings as plain values, everything else by digests.

    Two runs with the same description, built on any device, start from the same numbers and take the same steps.
    """
    state = whole_state(model)
    parts = {
        "layer options": [(name, _options(module)) for name, module in model.named_modules()],
        "initial parameters": [(name, p.requires_grad, state[name]) for name, p in model.named_parameters()],
        "initial buffers": list(model.named_buffers()),
    }
    digests = {name: digest(part) for name, part in parts.items()}
    if any(isinstance(tensor, DividedRows) for tensor in state.values()):  # the first process alone reads them
        digests["initial parameters"] = processes().word_of_first(digests["initial parameters"])
    return {
        "data": str(data),
        "model": str(model),
        "seed": seed,
        "settings": json.loads(json.dumps(vars(settings))),
        "digests": digest_data(data) | digests,
    }


def digest_data(data: NodeData | GraphData) -> dict[str, str]:
    """Return digests of the labels, splits, features and edges of a data set."""
    graph: RelationalGraph | GraphStore
    features: Tensor | None
    sizes: Any
    if isinstance(data, NodeData) and data.is_stored:
        store: Any = data.graph  # its manifest has checksums of its files, also of the features
        splits = [getattr(data, part) for part in PARTS]
        return {
            "labels": digest(data.labels),
            "splits": digest(splits),
            "store": digest(store.manifest.to_json().decode()),
        }
    if isinstance(data, NodeData):
        graph, features, sizes = data.graph, data.x, data.graph.num_nodes
    else:
        graph, features, sizes = data.graphs, data.graphs.x, (data.graphs.node_ptr, data.graphs.edge_ptr)
    parts = {
        "labels": data.labels,
        "splits": [getattr(data, part) for part in PARTS],
        "features": features,
        "edges": (graph.edge_index, graph.edge_type, graph.edge_attr, graph.num_relations, sizes),
    }
    if isinstance(data, GraphData) and data.graphs.graph_attr is not None:
        parts["descriptors"] = data.graphs.graph_attr
    if data.values is not None:
        parts["targets"] = (data.values, data.bounds, data.targets)
    return {name: digest(part) for name, part in parts.items()}


def run_difference(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> str | None:
    """Return a clause that says how the run of a checkpoint differs from this one, or None.

    It may differ in ``max_epochs``, and in whether embeddings are divided among processes.
    """
    for name in ("data", "model", "seed", "settings"):
        ours, other = mine[name], theirs.get(name)
        if isinstance(ours, dict) and isinstance(other, dict):
            other = _NEW_SETTINGS | other
            free = ("max_epochs", "shard_embeddings")
            ours, other = ({k: v for k, v in settings.items() if k not in free} for settings in (ours, other))
        if ours != other:
            return f"its `{name}` is {other!r}, not {ours!r}"
    digests = theirs.get("digests")
    if not isinstance(digests, dict):
        return f"it does not say which {_listed(list(mine['digests']))} it had"
    changed = [name for name, value in mine["digests"].items() if value != digests.get(name)]
    return f"it had other {_listed(changed)}" if changed else None


def _listed(words: list[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last


def _options(module: nn.Module) -> tuple[str, dict[str, Any]]:
    """Return the name of a module, and its attributes besides parameters, buffers and other modules."""
    attributes = vars(module).keys() - vars(nn.Module()).keys()
    kind: str = module._get_name()  # type: ignore[no-untyped-call]
    return kind, {name: vars(module)[name] for name in sorted(attributes)}


def digest(value: Any) -> str:
    """Return the SHA-256 of a value: of tensors by their bytes, of plain values by their repr, of objects by parts."""
    sha256 = hashlib.sha256()
    _add(sha256, value, set())
    return sha256.hexdigest()


def _add(sha256: Any, value: Any, seen: set[int]) -> None:
    if isinstance(value, Tensor):
        # Small integers count as the float32 numbers that they stand for: earlier versions stored these.
        dtype = torch.float32 if value.dtype == torch.int8 else value.dtype
        _add(sha256, f"{value.layout} {dtype} {list(value.shape)}", seen)
        if value.layout != torch.strided:
            entries = value.detach().to_sparse(layout=torch.sparse_coo).coalesce()
            _add(sha256, [entries.indices(), entries.values()], seen)
            return
        if value.dtype == torch.int8:
            for block in torch.split(value, 1 << 16):
                sha256.update(as_bytes(block.float()))
            return
        sha256.update(as_bytes(value))
    elif isinstance(value, DividedRows):
        _add(sha256, f"{torch.strided} {value.dtype} {list(value.shape)}", seen)
        for block in value.blocks():
            sha256.update(as_bytes(block))
    elif isinstance(value, list | tuple):
        _add(sha256, len(value), seen)
        for item in value:
            _add(sha256, item, seen)
    elif isinstance(value, dict):
        _add(sha256, list(value.items()), seen)
    elif isinstance(value, set | frozenset):
        _add(sha256, sorted(digest(item) for item in value), seen)
    elif value is None or isinstance(value, str | bytes | int | float | complex | torch.dtype | torch.device):
        sha256.update(f"{type(value).__name__} {len(repr(value))} {value!r}".encode())
    elif isinstance(value, np.ndarray | np.generic):
        _add(sha256, f"{value.dtype} {value.shape}", seen)
        sha256.update(np.ascontiguousarray(value).tobytes())
    elif id(value) not in seen:  # not by its repr, which may hold its address
        seen.add(id(value))
        _add(sha256, f"{type(value).__qualname__} {getattr(value, '__qualname__', '')}", seen)
        _add(sha256, _parts(value), seen)


def _parts(value: Any) -> list[Any]:
    """Return what distinguishes a function or an object from others with the same name."""
    if isinstance(value, functools.partial):
        return [value.func, value.args, value.keywords]
    if isinstance(value, types.FunctionType):
        code = value.__code__
        constants = [constant for constant in code.co_consts if not isinstance(constant, types.CodeType)]
        closed = [cell.cell_contents for cell in value.__closure__ or ()]
        return [code.co_code, code.co_names, constants, value.__defaults__, closed]
    if isinstance(value, type | nn.Module) or not hasattr(value, "__dict__"):
        return []
    return sorted(vars(value).items())
