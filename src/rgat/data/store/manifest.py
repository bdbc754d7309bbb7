"""The manifest of a store, `store.json`: version, sizes, names of relations and classes, checksums of the files."""

from __future__ import annotations

import json
import zlib
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from rgat.data.files import read_whole
from rgat.data.store.arrays import crc32

NAME = "store.json"
FORMAT = "rgat store"
VERSION = 1  # of the files; a store of another version is refused
FEATURE_TYPES = {"float16": "float16", "bfloat16": "int16", "float32": "float32"}  # and what their file holds
_MAX_BYTES = 1 << 28  # of a manifest
_AGAIN = "write it again with `rgat data convert`"
_ONE = "write one with `rgat data convert`"


@dataclass(frozen=True)
class StoredFile:
    """Size and checksum of one file."""

    bytes: int
    crc32: int


@dataclass(frozen=True)
class Manifest:
    """The content of `store.json`.

    Attributes:
        num_nodes: number of nodes.
        num_edges: number of edges, with inverses and self-loops.
        num_groups: number of pairs of a target and a relation that have edges.
        num_triples: number of edges without inverses and self-loops.
        relation_names: names of the relations without inverses and self-loops.
        inverses: whether each relation has an inverse.
        self_loops: whether a relation joins every node to itself.
        name_bytes: length of all names of nodes; None if nodes are numbered.
        classes: names of the classes of labelled nodes; None without labels.
        num_labels: number of labelled nodes.
        num_features: number of node features; None without features.
        feature_type: the type of the node features.
        provenance: where the data come from.
        files: the files of the store.
    """

    num_nodes: int
    num_edges: int
    num_groups: int
    num_triples: int
    relation_names: list[str]
    inverses: bool
    self_loops: bool
    name_bytes: int | None = None
    classes: list[str] | None = None
    num_labels: int = 0
    num_features: int | None = None
    feature_type: str = "float32"
    provenance: dict[str, Any] = field(default_factory=dict)
    files: dict[str, StoredFile] = field(default_factory=dict)

    def to_json(self) -> bytes:
        """Return the text of `store.json`."""
        content = asdict(self)
        head = {"format": FORMAT, "version": VERSION, "crc32": _seal(content)}
        return json.dumps(head | content, indent=1).encode()


def describe_files(folder: Path) -> dict[str, StoredFile]:
    """Return sizes and checksums of the arrays in a folder."""
    paths = sorted(folder.glob("*.npy"))
    return {path.name: StoredFile(path.stat().st_size, crc32(path)) for path in paths}


def read_manifest(folder: Path) -> Manifest:
    """Read `store.json` and compare the sizes of all files with it; raise a ValueError if the store is not whole."""
    try:
        content = json.loads(read_whole(folder / NAME, _MAX_BYTES))
    except FileNotFoundError:
        raise ValueError(f"{folder}: must be a store, but has no {NAME}; {_ONE}") from None
    except OSError as error:
        raise ValueError(f"{folder / NAME}: cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{folder / NAME}: must be JSON, but is damaged; {_AGAIN}") from error
    if not isinstance(content, dict) or content.pop("format", None) != FORMAT:
        raise ValueError(f"{folder}: must be a store, but its {NAME} is of something else; {_ONE}")
    version = content.pop("version", None)
    if version != VERSION:
        raise ValueError(f"{folder}: must be a store of version {VERSION}, got version {version}; {_AGAIN}")
    if content.pop("crc32", None) != _seal(content) or not _is_valid(content):
        raise ValueError(f"{folder / NAME}: has changed since it was written; {_AGAIN}")
    files = {name: StoredFile(**entry) for name, entry in content.pop("files").items()}
    manifest = Manifest(**content, files=files)
    for name, entry in manifest.files.items():
        path = folder / name
        size = path.stat().st_size if path.is_file() else None
        if size != entry.bytes:
            found = "is missing" if size is None else f"has {size:,}"
            raise ValueError(f"{path}: must have {entry.bytes:,} bytes, but {found}; {_AGAIN}")
    return manifest


def check_contents(folder: Path, manifest: Manifest) -> None:
    """Read all files and compare their checksums."""
    for name, entry in manifest.files.items():
        if crc32(folder / name) != entry.crc32:
            raise ValueError(f"{folder / name}: has changed since it was written; {_AGAIN}")


def _seal(content: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())


def _is_valid(content: dict[str, Any]) -> bool:
    """Whether the fields of a manifest are there and have the right types; some program may have made it up."""
    if content.keys() != {entry.name for entry in fields(Manifest)}:
        return False
    counts = [content[f"num_{name}"] for name in ("nodes", "edges", "groups", "triples", "labels")]
    counts += [content[name] for name in ("name_bytes", "num_features") if content[name] is not None]
    files, names = content["files"], [*content["relation_names"], *(content["classes"] or ())]
    sizes = {entry.name for entry in fields(StoredFile)}
    return (
        all(type(count) is int and count >= 0 for count in counts)
        and all(type(content[flag]) is bool for flag in ("inverses", "self_loops"))
        and all(type(name) is str for name in names)
        and content["feature_type"] in FEATURE_TYPES
        and isinstance(content["provenance"], dict)
        and isinstance(files, dict)
        and all(isinstance(file, dict) and file.keys() == sizes for file in files.values())
        and all(Path(name).name == name for name in files)
    )
