"""Summarise the final runs of an experiment beside the paper's numbers, and write the selected settings as TOML."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rgat.data.files import slug, write_atomically
from rgat.experiments.published import PUBLISHED, Published, constant_row
from rgat.experiments.records import Record, record_name


class MeanScore(NamedTuple):
    """Mean and sample standard deviation of a metric, as fractions of one."""

    mean: float
    spread: float


class Summary(NamedTuple):
    """The final runs of one model with one setting."""

    model: str
    setting: str | None
    selected_on: str
    config: dict[str, Any]
    seeds: int
    runs: int  # with status "done"; each evaluated the test part once
    lost: int  # failed or diverged
    test: MeanScore | None
    constant: MeanScore | None
    paper: Published | None
    paper_constant: Published | None


def summarise(records: Sequence[Record]) -> list[Summary]:
    """Return one summary per model and setting with final runs, in the order of the records."""
    return [_summarise_runs(runs) for runs in _group_runs(records)]


def _group_runs(records: Sequence[Record]) -> list[list[Record]]:
    groups: dict[tuple[str, str | None], list[Record]] = {}
    for record in records:
        if record["kind"] == "run":
            groups.setdefault((record["model"], record.get("setting")), []).append(record)
    return list(groups.values())


def _summarise_runs(runs: list[Record]) -> Summary:
    first = runs[0]
    done = [record for record in runs if record["status"] == "done"]
    scores = [_score([r[key]["test"] for r in done if r[key]]) for key in ("scores", "constant_scores")]
    printed = PUBLISHED.get(first["data"], {})
    return Summary(
        model=first["model"],
        setting=first.get("setting"),
        selected_on=first["selected_on"],
        config=first["config"],
        seeds=len({record["seed"] for record in runs}),
        runs=len(done),
        lost=len(runs) - len(done),
        test=scores[0],
        constant=scores[1],
        paper=printed.get(first["model"], {}).get("test"),
        paper_constant=printed.get(constant_row(first["model"]), {}).get("test"),
    )


def _score(values: list[float]) -> MeanScore | None:
    if not values:
        return None
    return MeanScore(statistics.mean(values), statistics.stdev(values) if len(values) > 1 else 0.0)


def write_configs(records: Sequence[Record], folder: Path, command: str) -> list[Path]:
    """Write one TOML file per model: its selected setting, the command that selected it, its scores and the paper's.

    `rgat reproduce --config FILE` repeats the final runs without a search.
    """
    paths = []
    for runs in _group_runs(records):
        stem = record_name(runs[0]).partition("/")[0]
        path = folder / slug(str(runs[0]["data"])) / f"{stem}.toml"
        write_atomically(path, _toml(_summarise_runs(runs), runs[0]["data"], command).encode())
        paths.append(path)
    return paths


def _toml(summary: Summary, data: str, command: str) -> str:
    head = {"data": data, "model": summary.model, "setting": summary.setting, "seeds": summary.seeds}
    tables = {
        "": head | {"command": command, "selected_on": summary.selected_on},
        "config": summary.config,
        "ours": {"runs": summary.runs, **_scores(summary.test, summary.constant)},
        "paper": _scores(summary.paper, summary.paper_constant),
    }
    lines = []
    for name, values in tables.items():
        if not values:
            continue
        lines += [f"\n[{name}]"] if name else []
        # TOML has no null, so None is left out. Strings, numbers and booleans are written as in JSON.
        lines += [f"{_toml_key(key)} = {json.dumps(value)}" for key, value in values.items() if value is not None]
    return "\n".join(lines) + "\n"


def _toml_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key)


def _scores(test: MeanScore | Published | None, constant: MeanScore | Published | None) -> dict[str, float]:
    rounded: dict[str, float] = {}
    for prefix, score in (("", test), ("constant_", constant)):
        if score is not None:
            rounded |= {f"{prefix}test": round(score.mean, 4), f"{prefix}spread": round(score.spread, 4)}
    return rounded
