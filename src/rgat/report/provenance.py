"""Where the numbers come from: budgets, seeds, versions, data, commands."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rgat.report.study import Study
from rgat.report.tables import EMPTY, Cell, Column, Line, Table


def provenance(studies: Sequence[Study]) -> list[Table]:
    """What was asked for and what was found; what it ran on; from which data."""
    return [_experiments(studies), _environments(studies), _files(studies)]


def _experiments(studies: Sequence[Study]) -> Table:
    titles = ("budget", "trials per model", "folds", "search seed", "seeds", "trials found", "runs found", "hours")
    columns = [Column("Data set", text=True), *(Column(title) for title in titles), Column("Command", text=True)]
    lines = []
    for study in studies:
        asked = [study.budget, *(study.description.get(key) for key in ("trials", "folds", "search_seed", "seeds"))]
        hours = sum(record.get("seconds") or 0.0 for record in (*study.runs, *study.trials)) / 3600
        found = [len(study.trials), len(study.runs), f"{hours:.2f}"]
        command = study.description.get("command") or f"rgat reproduce {study.data} --budget {study.budget}"
        cells = [EMPTY if value is None else Cell(str(value)) for value in (*asked, *found)]
        lines.append(Line([Cell(study.title), *cells, Cell(str(command))]))
    notes = ["Hours are the sum over all trials and runs, wherever they ran."]
    return Table("provenance-experiments", "Experiments", columns, lines, notes)


def _environments(studies: Sequence[Study]) -> Table:
    lines = []
    for study in studies:
        records = [*study.runs, *study.trials]
        versions = _distinct(
            ", ".join(f"{name} {version}" for name, version in sorted((r.get("versions") or {}).items()))
            for r in records
        )
        lines.append(
            Line([Cell(study.title), Cell(versions), Cell(_distinct(str(r.get("device") or "") for r in records))])
        )
    columns = [Column(title, text=True) for title in ("Data set", "Versions", "Devices")]
    return Table("provenance-versions", "What it ran on", columns, lines)


def _distinct(texts: Iterable[str]) -> str:
    return "; ".join(sorted(set(filter(None, texts)))) or "-"


def _files(studies: Sequence[Study]) -> Table:
    lines = []
    for study in studies:
        hashes = study.description.get("data_hashes") or {}
        lines += [Line([Cell(study.title), Cell(name), Cell(str(sha))]) for name, sha in sorted(hashes.items())]
        if not hashes:
            lines.append(Line([Cell(study.title), Cell("made by rgat itself"), EMPTY]))
    columns = [Column(title, text=True) for title in ("Data set", "File", "SHA-256")]
    return Table("provenance-data", "Data", columns, lines)
