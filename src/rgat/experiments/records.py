"""Read and write the records of an experiment: one JSON file per search trial and per final run.

`docs/records.md` lists the keys. A record appears under its final name or not at all, and its name identifies its unit
of work, so writing it twice, from any number of processes, leaves one file.
"""

from __future__ import annotations

import base64
import gzip
import json
import math
import platform
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rgat.data import GraphData, NodeData
from rgat.data.files import open_regular, read_whole, slug, write_atomically
from rgat.training.task import GraphTask, NodeTask

FORMAT = 1
EXPERIMENT = "experiment.json"
PACKED = ".records.gz"  # an experiment in one file: a line with its description, then one line per record
LARGEST_RECORD = 2**26  # bytes; the paper's protocol writes records of about 100,000
LARGEST_PACKED = 2**28  # bytes of an unpacked experiment; the paper's protocol with 200 seeds has about 10**7
MOST_PACKED = 100_000  # records in a packed file; the same protocol has about 2,000
UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")  # never printed in a name or a message
LONGEST_REASON = 300  # characters; it may quote a damaged record
SAME_DATA = ("data", "task", "metric", "test_labels")  # keys on which runs of models and of baselines must agree

Record = dict[str, Any]


@dataclass
class Experiment:
    """The content of an experiment's folder or packed file."""

    description: dict[str, Any]  # data, budget, seeds and everything else that makes two experiments comparable
    records: list[Record]  # in the order of their names
    damaged: list[tuple[str, str]] = field(default_factory=list)  # path and reason of each file that cannot be read


def record_name(record: Record) -> str:
    """Return the path of a record below the folder ``records``: the model, then trial and rung, or split and seed."""
    model = _word(record["model"]) + (f"+{_word(record['setting'])}" if record.get("setting") else "")
    if record["kind"] == "trial":
        rung = f"-{record['rung']:d}" if record.get("rung") else ""
        return f"{model}/trial-{record['trial']:04d}{rung}.json"
    if record["kind"] == "declaration":
        return f"{model}/declaration.json"
    split = "" if record.get("split") is None else f"{slug(str(record['split']))}-"
    return f"{model}/run-{split}{record['seed']:04d}.json"


def _word(name: str) -> str:
    """Return a name as part of a path; case makes no difference, nor do spaces and hyphens."""
    return slug(name.lower().replace(" ", "-"))


def describe_data(splits: Mapping[int | None, NodeData | GraphData]) -> dict[str, Any]:
    """Return the entries of ``experiment.json`` that follow from the data, given for each seed of a split."""
    data = next(iter(splits.values()))
    labels = {"" if seed is None else str(seed): part.labels[part.test].tolist() for seed, part in splits.items()}
    description: dict[str, Any] = {"data": data.name, "test_labels": labels}
    if isinstance(data, GraphData):
        return description | {"task": "graph", "metric": GraphTask.metric, "tasks": list(data.tasks)}
    largest = data.labels[data.train].bincount().argmax()
    majority = float((data.labels[data.test] == largest).double().mean())
    classes = list(data.classes)
    return description | {"task": "node", "metric": NodeTask.metric, "classes": classes, "majority": majority}


def open_experiment(folder: Path, description: dict[str, Any]) -> None:
    """Create the folder of an experiment, or check that it holds the same experiment.

    Baselines have no fixed number of ``seeds``: a description without it joins any experiment on the same data, and a
    description with it replaces one without.
    """
    description = json.loads(_dump(description | {"format": FORMAT}))
    path = folder / EXPERIMENT
    known = read_record(path) if path.exists() else {}
    replaces = "seeds" in description and "seeds" not in known
    keys = {*known, *description} if "seeds" in known and "seeds" in description else set(SAME_DATA)
    different = sorted(key for key in keys if known.get(key) != description.get(key))
    if not known or (replaces and not different):
        _write(path, description)
    elif different:
        raise ValueError(
            f"{folder} must be empty or hold this experiment, got one with other {', '.join(different)}; "
            "give another folder with --out, or the settings it was begun with"
        )


def write_record(folder: Path, record: Record) -> Path:
    """Add a record to an experiment and return its path; a record that exists already is left as it is."""
    path = folder / "records" / record_name(record)
    if not path.exists():
        _write(path, {"format": FORMAT, **record})
    return path


def has_record(folder: Path, unit: Record) -> bool:
    """Return whether the record of a unit of work exists."""
    return (folder / "records" / record_name(unit)).exists()


def read_record(path: Path) -> Record:
    """Return the content of ``experiment.json`` or of a record's file, or raise a ValueError that names the damage."""
    try:
        return _load(read_whole(path, LARGEST_RECORD), str(path))
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error


def read_experiment(folder: Path, keep: Callable[[Record], Record] = lambda record: record) -> Experiment:
    """Read an experiment from its folder or packed file; damaged records are listed and left out.

    ``keep`` is called with each record as it is read and returns what to keep, because the curves of thousands of
    trials take memory. A record for which it raises a ValueError, LookupError or TypeError counts as damaged. A packed
    file with a wrong checksum is refused as a whole, because any of its numbers may be wrong.
    """
    if not folder.is_dir():
        lines = _unpack(folder)
        experiment = Experiment(_load(next(lines), str(folder)), [])
        for number, line in enumerate(lines, 2):
            _add(experiment, lambda line=line: line, f"{folder}, line {number}", keep)  # type: ignore[misc]
        return experiment
    if not (folder / EXPERIMENT).is_file():
        raise ValueError(f"{folder} must hold an experiment ({EXPERIMENT} and records), got none; check the path")
    experiment = Experiment(read_record(folder / EXPERIMENT), [])
    for path in sorted((folder / "records").rglob("*.json")):
        _add(experiment, partial(read_whole, path, LARGEST_RECORD), str(path.relative_to(folder)), keep)
    return experiment


def find_experiments(root: Path) -> list[Path]:
    """Return the folders and packed files of all experiments at or below a path."""
    if not root.exists():
        raise ValueError(f"{root} must be a file or folder of records, got nothing there; check the path")
    if not root.is_dir() or (root / EXPERIMENT).is_file():
        return [root]
    # The wildcard makes rglob list broken links too; reading them then gives the reason.
    folders = [path.parent for path in root.rglob(f"{EXPERIMENT}*") if path.name == EXPERIMENT]
    return sorted([*folders, *root.rglob(f"*{PACKED}")])


def pack(folder: Path, path: Path) -> None:
    """Write an experiment to one compressed file; the same records give the same bytes."""
    experiment = read_experiment(folder)
    if experiment.damaged:
        raise ValueError(f"{folder} must hold no damaged record to be packed, got {experiment.damaged[0]}")
    lines = [_dump(experiment.description), *(_dump(record) for record in experiment.records)]
    write_atomically(path, gzip.compress("\n".join(lines).encode(), mtime=0))


def _unpack(path: Path) -> Iterator[bytes]:
    """Yield the lines of a packed file one at a time: a small file may unpack to more than fits into memory."""
    bytes_left = LARGEST_PACKED
    try:
        with open_regular(path) as packed, gzip.open(packed) as file:
            for number in count(1):
                line = file.readline(LARGEST_RECORD + 1)
                bytes_left -= len(line)
                if len(line) > LARGEST_RECORD:
                    raise ValueError(f"{path}, line {number} must have at most {LARGEST_RECORD:,} bytes, got more")
                if bytes_left < 0:
                    raise ValueError(f"{path} must unpack to at most {LARGEST_PACKED:,} bytes, got more")
                if number > MOST_PACKED + 1:
                    raise ValueError(f"{path} must hold at most {MOST_PACKED:,} records, got more")
                if not line and number > 1:
                    return
                yield line.rstrip(b"\n")
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise ValueError(f"{path} must be packed records, got a file that cannot be decompressed ({reason})") from error


def _add(experiment: Experiment, read: Callable[[], bytes], where: str, keep: Callable[[Record], Record]) -> None:
    try:
        record = _load(read(), where)
        record_name(record)
        record = keep(record)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else getattr(error, "strerror", None) or str(error)
        path, reason = (UNPRINTABLE.sub("?", text)[:LONGEST_REASON] for text in (where, reason))
        experiment.damaged.append((path, reason))
    else:
        experiment.records.append(record)


def _load(text: bytes, where: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{where} must be JSON ({error})") from error
    except RecursionError as error:
        raise ValueError(f"{where} must be JSON of a few levels, got one that is nested too deeply") from error
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise ValueError(f"{where} must be a record of format {FORMAT}, got another; update rgat, or leave it out")
    return value


def _dump(value: Any) -> str:
    return json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), allow_nan=False)


def _plain(value: Any) -> Any:
    """Return a value as JSON can hold it; NaN and infinity become null."""
    if isinstance(value, dict):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    return int(value) if isinstance(value, np.integer) else value


def _write(path: Path, content: Record) -> None:
    write_atomically(path, _dump(content).encode())


def pack_array(array: NDArray[Any]) -> dict[str, Any]:
    """Return a model's outputs in 16 bits, as JSON can hold them."""
    half = np.ascontiguousarray(array, dtype="<f2")
    return {"dtype": "float16", "shape": list(half.shape), "base64": base64.b64encode(half.tobytes()).decode()}


def unpack_array(packed: dict[str, Any]) -> NDArray[np.float32]:
    """Return the numbers that ``pack_array`` was called with, in 16-bit precision."""
    numbers = np.frombuffer(base64.b64decode(packed["base64"]), dtype="<f2")
    return numbers.reshape(packed["shape"]).astype(np.float32)


def environment(device: str = "cpu") -> dict[str, Any]:
    """Return the entries of a record for the device and the versions."""
    import torch

    from rgat.version import __version__

    name = torch.cuda.get_device_name() if device.startswith("cuda") else platform.machine()
    return {
        "device": f"{device.partition(':')[0]} ({name})",
        "versions": {"rgat": __version__, "python": platform.python_version(), "torch": torch.__version__},
    }


def rounded(values: Iterable[float]) -> list[float]:
    """Return values rounded to the few significant digits that a curve needs."""
    return [float(f"{value:.5g}") for value in values]
