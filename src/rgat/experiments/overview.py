"""Means over the final runs, the paper's numbers to set beside them, and the selected settings as TOML files."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rgat.data.files import slug, write_atomically
from rgat.experiments.records import Record, record_name


class Score(NamedTuple):
    """Mean and sample standard deviation of a metric, as fractions of one."""

    mean: float
    spread: float


# Table 2 of the paper: with attention, then with constant attention.
_TOX21 = {
    "RGCN": (Score(0.835, 0.008), None),
    "additive WIRGAT": (Score(0.835, 0.006), Score(0.832, 0.009)),
    "additive ARGAT": (Score(0.835, 0.006), Score(0.829, 0.010)),
    "multiplicative WIRGAT": (Score(0.838, 0.007), Score(0.811, 0.008)),
    "multiplicative ARGAT": (Score(0.837, 0.007), Score(0.802, 0.007)),
}
PAPER: dict[str, dict[str, tuple[Score, Score | None]]] = {
    "aifb": {
        "RGCN": (Score(0.9464, 0.0275), None),
        "additive WIRGAT": (Score(0.9683, 0.0101), Score(0.9686, 0.0094)),
        "additive ARGAT": (Score(0.9401, 0.0276), Score(0.9305, 0.0305)),
        "multiplicative WIRGAT": (Score(0.9292, 0.0375), Score(0.9371, 0.0333)),
        "multiplicative ARGAT": (Score(0.9619, 0.0170), Score(0.9589, 0.0193)),
    },
    "mutag": {
        "RGCN": (Score(0.7415, 0.0240), None),
        "additive WIRGAT": (Score(0.6983, 0.0274), Score(0.6937, 0.0275)),
        "additive ARGAT": (Score(0.6554, 0.0625), Score(0.6369, 0.0841)),
        "multiplicative WIRGAT": (Score(0.6960, 0.0375), Score(0.6957, 0.0370)),
        "multiplicative ARGAT": (Score(0.7317, 0.0341), Score(0.7438, 0.0378)),
    },
    "tox21": _TOX21,
    "tox21-distinct": _TOX21,  # the paper's table mixes the two files
}


class Summary(NamedTuple):
    """A row of the table of results."""

    model: str
    setting: str | None
    selected_on: str
    config: dict[str, Any]
    runs: int  # that ended well; each looked at the test part once
    lost: int  # that failed or diverged
    test: Score | None
    constant: Score | None
    paper: Score | None
    paper_constant: Score | None


def summarise(records: Sequence[Record]) -> list[Summary]:
    """One row per model and setting that has final runs, in the order of the records."""
    groups: dict[tuple[str, str | None], list[Record]] = {}
    for record in records:
        if record["kind"] == "run":
            groups.setdefault((record["model"], record.get("setting")), []).append(record)
    return [_summary(runs) for runs in groups.values()]


def _summary(runs: list[Record]) -> Summary:
    first = runs[0]
    done = [record for record in runs if record["status"] == "done"]
    paper = PAPER.get(first["data"], {}).get(first["model"], (None, None))
    scores = [_score([r[key]["test"] for r in done if r[key]]) for key in ("scores", "constant_scores")]
    who = (first["model"], first.get("setting"), first["selected_on"], first["config"])
    return Summary(*who, len(done), len(runs) - len(done), *scores, *paper)


def _score(values: list[float]) -> Score | None:
    if not values:
        return None
    return Score(statistics.mean(values), statistics.stdev(values) if len(values) > 1 else 0.0)


def write_configs(records: Sequence[Record], folder: Path, command: str) -> list[Path]:
    """One TOML file per model: the selected setting, the command that found it, its result and the paper's.

    `rgat reproduce --config FILE` runs it again, without a search.
    """
    paths = []
    for row in summarise(records):
        example = next(r for r in records if r["kind"] == "run" and r["model"] == row.model)
        stem = record_name(example).partition("/")[0]
        path = folder / slug(str(example["data"])) / f"{stem}.toml"
        write_atomically(path, _toml(row, example["data"], _seeds(records, row.model), command).encode())
        paths.append(path)
    return paths


def _seeds(records: Sequence[Record], model: str) -> int:
    return len({record["seed"] for record in records if record["kind"] == "run" and record["model"] == model})


def _toml(row: Summary, data: str, seeds: int, command: str) -> str:
    head = {"data": data, "model": row.model, "setting": row.setting, "seeds": seeds}
    tables = {
        "": head | {"command": command, "selected_on": row.selected_on},
        "config": row.config,
        "ours": {"runs": row.runs, **_scores(row.test, row.constant)},
        "paper": _scores(row.paper, row.paper_constant),
    }
    lines = []
    for name, values in tables.items():
        if not values:
            continue
        lines += [f"\n[{name}]"] if name else []
        # TOML has no null: what is None is left out. Its strings, numbers and booleans are written as in JSON.
        lines += [f"{_toml_key(key)} = {json.dumps(value)}" for key, value in values.items() if value is not None]
    return "\n".join(lines) + "\n"


def _toml_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key)


def _scores(test: Score | None, constant: Score | None) -> dict[str, float]:
    found: dict[str, float] = {}
    for prefix, score in (("", test), ("constant_", constant)):
        if score is not None:
            found |= {f"{prefix}test": round(score.mean, 4), f"{prefix}spread": round(score.spread, 4)}
    return found
