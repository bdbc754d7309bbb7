"""Checkpoints: tensors in a safetensors file, everything else in JSON, so that reading one never runs foreign code.

A folder holds ``NAME.json`` and the file of tensors that it names. New tensors are written beside the old ones, and
renaming the new JSON into place replaces the checkpoint, so a complete one exists at every moment. The JSON holds the
hashes of the tensors and of itself.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import Tensor

from rgat.data.files import WriteError, read_whole, write_atomically

FORMAT = 1
NAME = "checkpoint"
LARGEST_RECORD = 2**30  # bytes; enough for the names of about ten million nodes


def save_checkpoint(
    folder: str | Path, tensors: Mapping[str, Tensor], record: Mapping[str, Any], name: str = NAME
) -> None:
    """Write a checkpoint, and replace the one of the same name.

    Args:
        folder: created if it does not exist.
        tensors: by name; on any device.
        record: anything that JSON can hold.
        name: the name of the checkpoint's files in the folder.
    """
    folder, packed = Path(folder), _safetensors()
    data = packed.save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
    digest = hashlib.sha256(data).hexdigest()
    file = f"{name}-{digest[:16]}.safetensors"
    body = {"format": FORMAT, "tensors": file, "tensors_sha256": digest, **record}
    text = json.dumps(body | {"sha256": _hash(body)}, indent=1, allow_nan=False)
    with _clear_errors(folder, name):
        write_atomically(folder / file, data)
        write_atomically(folder / f"{name}.json", text.encode())
        for old in folder.glob(f"{name}-*.safetensors"):
            if old.name != file:
                old.unlink()


def load_checkpoint(folder: str | Path, name: str = NAME) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and the record of a checkpoint; refuse one that is incomplete, changed or of another program.

    If another process replaces the checkpoint meanwhile, the new one is read.
    """
    path = Path(folder) / f"{name}.json"
    while True:
        before = _version(path)
        try:
            return _load_once(folder, name)
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


def _load_once(folder: str | Path, name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    folder, packed = Path(folder), _safetensors()
    path = folder / f"{name}.json"
    text = _read(path, LARGEST_RECORD)
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
    data = _read(file)
    if hashlib.sha256(data).hexdigest() != record.get("tensors_sha256"):
        raise _refusal(file, "it was cut off or changed since it was written")
    try:
        return packed.load(data), record
    except Exception as error:
        raise _refusal(file, f"it is not a safetensors file ({error})") from error


def has_checkpoint(folder: str | Path, name: str = NAME) -> bool:
    """Return whether a folder holds a checkpoint."""
    return (Path(folder) / f"{name}.json").exists()


def remove_checkpoint(folder: str | Path, name: str = NAME) -> None:
    """Remove the checkpoint in a folder, if there is one."""
    (Path(folder) / f"{name}.json").unlink(missing_ok=True)
    for path in Path(folder).glob(f"{name}-*.safetensors"):
        path.unlink()


def _hash(record: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def _read(path: Path, limit: int | None = None) -> bytes:
    try:
        return read_whole(path, limit)
    except OSError as error:
        raise _refusal(path, str(error.strerror)) from error
    except MemoryError as error:
        raise _refusal(path, "it does not fit into memory") from error


def _refusal(path: Path, reason: str) -> ValueError:
    return ValueError(f"{path} must be part of a complete checkpoint, but {reason}; train again, into another folder")


@contextmanager
def _clear_errors(folder: Path, name: str) -> Iterator[None]:
    try:
        yield
    except (OSError, WriteError) as error:
        reason = error.reason if isinstance(error, WriteError) else error.strerror
        previous = "; the last checkpoint there is intact" if has_checkpoint(folder, name) else ""
        raise ValueError(
            f"a checkpoint must be written to {folder}, which failed: {reason}{previous}; "
            "make room or choose another folder"
        ) from error


def _safetensors() -> ModuleType:
    try:
        import safetensors.torch
    except ImportError as error:
        raise ImportError("checkpoints need safetensors; install it with `pip install safetensors`") from error
    return safetensors.torch
