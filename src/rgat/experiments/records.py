"""Records: one JSON file per search trial and per final run, in the folder of an experiment. See `docs/records.md`.

A record appears under its final name or not at all, and its name says which unit of work it is: writing it twice, from
any number of processes, leaves one. Nothing here needs more than Python to be read.
"""

from __future__ import annotations

import base64
import gzip
import json
import math
import platform
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rgat.data.files import open_regular, read_whole, slug, write_atomically

FORMAT = 1
EXPERIMENT = "experiment.json"
PACKED = ".records.gz"  # of a whole experiment in one file: a line for the experiment, then one per record
LARGEST_RECORD = 2**26  # bytes; those of the paper's protocol have some 100,000
LARGEST_PACKED = 2**28  # bytes that a packed file may unpack to; the paper's protocol with 200 seeds takes some 10**7
MOST_PACKED = 100_000  # records in a packed file; the same takes some 2,000
UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")  # in no name and no message
LONGEST_REASON = 300  # characters; a damaged record may be quoted in it

Record = dict[str, Any]


@dataclass
class Experiment:
    """What was asked for, and what has been found so far.

    Attributes:
        description: data, budget, seeds and all else that makes two experiments comparable.
        records: in the order of their names.
        damaged: files that could not be read, and why.
    """

    description: dict[str, Any]
    records: list[Record]
    damaged: list[tuple[str, str]] = field(default_factory=list)


def record_name(record: Record) -> str:
    """Where a record stands below the folder ``records``: model, then trial, or split and seed."""
    model = _word(record["model"]) + (f"+{_word(record['setting'])}" if record.get("setting") else "")
    if record["kind"] == "trial":
        return f"{model}/trial-{record['trial']:04d}.json"
    split = "" if record.get("split") is None else f"{slug(str(record['split']))}-"
    return f"{model}/run-{split}{record['seed']:04d}.json"


def _word(name: str) -> str:
    """A name as part of a path; capitals, and a space or a hyphen, make no difference."""
    return slug(name.lower().replace(" ", "-"))


SAME_DATA = ("data", "task", "metric", "test_labels")


def open_experiment(folder: Path, description: dict[str, Any]) -> None:
    """Make the folder of an experiment, or check that it is the folder of this one."""
    description = json.loads(_dump(description | {"format": FORMAT}))
    path = folder / EXPERIMENT
    if not path.exists():
        _write(path, description)
        return
    found = read_record(path)
    if (
        "trials" in description
        and "trials" not in found
        and all(found.get(key) == description.get(key) for key in SAME_DATA)
    ):
        _write(path, description)  # so far it has runs of other systems, which were asked for without a plan
        return
    different = sorted(k for k in {*found, *description} if found.get(k) != description.get(k))
    if different:
        raise ValueError(
            f"{folder} must be empty or hold this experiment, got one with other {', '.join(different)}; "
            "give another folder with --out, or the settings it was begun with"
        )


def write_record(folder: Path, record: Record) -> Path:
    """Add a record to an experiment; one that is there already stays as it is."""
    path = folder / "records" / record_name(record)
    if not path.exists():
        _write(path, {"format": FORMAT, **record})
    return path


def has_record(folder: Path, unit: Record) -> bool:
    """Whether the record of this unit of work is there."""
    return (folder / "records" / record_name(unit)).exists()


def read_record(path: Path) -> Record:
    """Return the content of ``experiment.json`` or of the file of a record; a ValueError says what is wrong with it."""
    try:
        return _load(read_whole(path, LARGEST_RECORD), str(path))
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error


def read_experiment(folder: Path, keep: Callable[[Record], Record] = lambda record: record) -> Experiment:
    """Read one experiment, a folder or a packed file; what is damaged is listed, not fatal.

    ``keep`` returns what to keep of a record, as soon as it is read: thousands of trials have long curves. A record for
    which it raises a ValueError, LookupError or TypeError is damaged. A packed file is taken as a whole or not at all:
    where its checksum is wrong, any of its numbers may be.
    """
    if not folder.is_dir():
        return _read_packed(folder, keep)
    if not (folder / EXPERIMENT).is_file():
        raise ValueError(f"{folder} must hold an experiment ({EXPERIMENT} and records), got none; check the path")
    experiment = Experiment(read_record(folder / EXPERIMENT), [])
    for path in sorted((folder / "records").rglob("*.json")):
        _add(experiment, partial(read_whole, path, LARGEST_RECORD), str(path.relative_to(folder)), keep)
    return experiment


def find_experiments(place: Path) -> list[Path]:
    """The experiments, folders and packed files, at or below a place."""
    if not place.exists():
        raise ValueError(f"{place} must be a file or folder of records, got nothing there; check the path")
    if not place.is_dir() or (place / EXPERIMENT).is_file():
        return [place]
    # With a wildcard, links that lead nowhere are found too, and reading them says so.
    folders = [path.parent for path in place.rglob(f"{EXPERIMENT}*") if path.name == EXPERIMENT]
    return sorted([*folders, *place.rglob(f"*{PACKED}")])


def pack(folder: Path, path: Path) -> None:
    """Write a whole experiment to one compressed file; the same records give the same bytes."""
    experiment = read_experiment(folder)
    if experiment.damaged:
        raise ValueError(f"{folder} must hold no damaged record to be packed, got {experiment.damaged[0]}")
    lines = [_dump(experiment.description), *(_dump(record) for record in experiment.records)]
    write_atomically(path, gzip.compress("\n".join(lines).encode(), mtime=0))


def _read_packed(path: Path, keep: Callable[[Record], Record]) -> Experiment:
    lines = _unpack(path)
    experiment = Experiment(_load(next(lines), str(path)), [])
    for number, line in enumerate(lines, 2):
        _add(experiment, lambda line=line: line, f"{path}, line {number}", keep)  # type: ignore[misc]
    return experiment


def _unpack(path: Path) -> Iterator[bytes]:
    """The lines of a packed file, one at a time: a small file may unpack to more than fits into memory."""
    left = LARGEST_PACKED
    try:
        with open_regular(path) as packed, gzip.open(packed) as file:
            for number in count(1):
                line = file.readline(LARGEST_RECORD + 1)
                left -= len(line)
                if len(line) > LARGEST_RECORD:
                    raise ValueError(f"{path}, line {number} must have at most {LARGEST_RECORD:,} bytes, got more")
                if left < 0:
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
        shown = (UNPRINTABLE.sub("?", text)[:LONGEST_REASON] for text in (where, reason))
        experiment.damaged.append((next(shown), next(shown)))
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
    """JSON has no NaN and no infinity: both are null."""
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
    """Outputs of a model in 16 bits, as JSON can hold them."""
    half = np.ascontiguousarray(array, dtype="<f2")
    return {"dtype": "float16", "shape": list(half.shape), "base64": base64.b64encode(half.tobytes()).decode()}


def unpack_array(packed: dict[str, Any]) -> NDArray[np.float32]:
    """The numbers of ``pack_array``."""
    numbers = np.frombuffer(base64.b64decode(packed["base64"]), dtype="<f2")
    return numbers.reshape(packed["shape"]).astype(np.float32)


def environment(device: str = "cpu") -> dict[str, Any]:
    """Versions and device, for records."""
    import torch

    from rgat.version import __version__

    name = torch.cuda.get_device_name() if device.startswith("cuda") else platform.machine()
    return {
        "device": f"{device.partition(':')[0]} ({name})",
        "versions": {"rgat": __version__, "python": platform.python_version(), "torch": torch.__version__},
    }


def rounded(values: Iterable[float], digits: int = 5) -> Iterator[float]:
    """Curves need few digits."""
    return (float(f"{value:.{digits}g}") for value in values)
