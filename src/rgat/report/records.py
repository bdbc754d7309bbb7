"""Read records, check every value that the report uses, and group them into studies: anybody may have written them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from rgat.data.files import slug
from rgat.experiments.records import (
    UNPRINTABLE,
    Record,
    find_experiments,
    read_experiment,
    record_name,
    unpack_array,
)
from rgat.experiments.request import CANDIDATES, EXTENDED
from rgat.report.studies import MODELS, PER_CLASS, TITLES, Study

LONGEST_NAME, LONGEST_TEXT = 200, 10_000  # characters
LARGEST_NUMBER = 1e300  # leaves room to print it in percent
BUDGETS = ("paper", "small", "custom", "smoke")  # largest first
DATA_ORDER = (*TITLES, "institute", "molecules")
ANCHORS = (
    "summary",
    "notices",
    "results",
    "claims",
    "reading",
    "provenance",
    "main",
    "tip",
    "extended",
)  # the page's own
LEFT_OUT = "Left out"  # start of every notice about damage

Check = Callable[[Any], bool]
Forms = Mapping[str, tuple[Check, str]]  # by key: the check of a value, and its description; null is always allowed


def _is_text(value: Any, longest: int = LONGEST_TEXT) -> bool:
    return isinstance(value, str) and len(value) <= longest and not UNPRINTABLE.search(value)


def _is_name(value: Any) -> bool:
    return _is_text(value, LONGEST_NAME)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST_NUMBER


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and _is_number(value)


def _is_score(value: Any) -> bool:
    return _is_number(value) and 0 <= value <= 1


def _is_single_option(value: Any) -> bool:
    return value is None or isinstance(value, bool) or _is_number(value) or _is_text(value)


def _is_packed(value: Any) -> bool:
    unpack_array(value)  # raises an exception for a damaged array
    return True


def _is_class_scores(value: Any) -> bool:
    confusion, shares = value["confusion"], [value["classes"][name] for name in PER_CLASS]
    has_lists = all(_list_of(_or_null(_is_score))(each) and len(each) == len(confusion) for each in shares)
    has_counts = all(_list_of(_is_whole)(row) and len(row) == len(confusion) for row in confusion)
    return (
        has_lists and has_counts and all(_or_null(_is_score)(value[name]) for name in ("macro_f1", "balanced_accuracy"))
    )


def _or_null(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _list_of(check: Check) -> Check:
    return lambda value: isinstance(value, list) and all(map(check, value))


def _table_of(check: Check) -> Check:
    return lambda value: isinstance(value, dict) and all(_is_name(k) and check(entry) for k, entry in value.items())


def _is_config(value: Any) -> bool:
    return _table_of(lambda entry: _is_single_option(entry) or _list_of(_is_single_option)(entry))(value)


def _is_member(value: Any) -> bool:
    numbers = _is_whole(value["trial"]) and _is_score(value["objective"])
    return numbers and _is_config(value["config"]) and _is_name(value.get("model", "selected model"))


def _is_declared(value: Any) -> bool:
    counts = (
        _is_whole(value["trials"]) and _list_of(_is_whole)(value["by_rung"]) and _list_of(_is_whole)(value["folds"])
    )
    beside = [value[key] for key in CANDIDATES.values() if key in value]
    members = _is_member(value["selected"]) and _list_of(_is_member)([*value["members"], *beside])
    return counts and members and _is_score(value["ensemble_objective"]) and _is_name(value["trials_sha256"])


_NAME = (_is_name, f"a name of at most {LONGEST_NAME} characters")
_TEXT = (_is_text, f"text of at most {LONGEST_TEXT:,} characters")
_TEXTS = (_table_of(_is_text), "a table of texts")
_WHOLE = (_is_whole, "a whole number")
_SCORE = (_is_score, "a number from 0 to 1")

# Every key of a record that the report uses.
RECORD: Forms = {
    "kind": (lambda value: value in ("trial", "run", "declaration"), '"trial", "run" or "declaration"'),
    "status": (lambda value: value in ("done", "failed", "diverged"), '"done", "failed" or "diverged"'),
    **dict.fromkeys(("model", "setting", "data", "budget"), _NAME),
    **dict.fromkeys(("device", "selected_on"), _TEXT),
    **dict.fromkeys(("seed", "trial"), _WHOLE),
    **dict.fromkeys(("scores", "constant_scores"), (_table_of(_or_null(_is_score)), "a table of numbers from 0 to 1")),
    **dict.fromkeys(
        ("task_scores", "constant_task_scores"),
        (_table_of(_table_of(_or_null(_is_score))), "a table of tables of numbers from 0 to 1"),
    ),
    "class_scores": (_table_of(_is_class_scores), "a table of the scores and confusions of all classes"),
    **dict.fromkeys(("outputs", "constant_outputs"), (_table_of(_or_null(_is_packed)), "a table of packed arrays")),
    "split": (lambda value: _is_whole(value) or _is_name(value), "a whole number or a name"),
    "from_prior": (lambda value: isinstance(value, bool), "true or false"),
    "seconds": (_is_number, "a number"),
    "objective": _SCORE,
    "versions": _TEXTS,
    "config": (_is_config, "a table of numbers, texts and lists of these"),
    **dict.fromkeys(("rung", "workers"), (lambda value: _is_whole(value) and value >= 0, "a whole number")),
    **dict.fromkeys(("declaration", "sha256"), _NAME),
    "declared": (_is_declared, "a declaration of final runs"),
    "curve": (_table_of(_or_null(_list_of(_or_null(_is_number)))), "a table of lists of numbers"),
}
# Every key of an experiment that the report uses, except for the labels.
DESCRIPTION: Forms = {
    **dict.fromkeys(("data", "budget", "task", "metric"), _NAME),
    **dict.fromkeys(("trials", "seeds", "folds", "search_seed"), _WHOLE),
    "majority": _SCORE,
    "tasks": (_list_of(_is_name), "a list of names"),
    "classes": (_list_of(_is_text), "a list of texts"),
    "data_hashes": _TEXTS,
    "command": _TEXT,
}


def _check_forms(content: Mapping[str, Any], forms: Forms, required: Sequence[str] = ()) -> None:
    for key, (check, expected) in forms.items():
        value = content.get(key)
        if (value is not None or key in required) and not check(value):
            raise ValueError(f"`{key}` must be {expected}, got {value!r}")


def _keep(record: Record) -> Record:
    """Check what the report uses of a record, and drop the rest: the folds of a trial hold long curves."""
    _check_forms(record, RECORD, required=("kind", "status"))
    if record["kind"] == "declaration" and (record.get("setting") != EXTENDED or not record["declared"]):
        raise ValueError("a declaration must be one of the extended space, got another")
    if record["status"] == "done" and record["kind"] == "trial" and record["objective"] is None:
        raise ValueError("`objective` must be a number where `status` is done, got null")
    if record["status"] == "done" and record["kind"] == "run":
        for key in ("scores", *(["constant_scores"] if record.get("constant_scores") else [])):
            if record[key]["test"] is None:
                raise ValueError(f"`{key}.test` must be a number where `status` is done, got null")
    return {key: record[key] for key in RECORD if key in record}


def _check_description(description: Mapping[str, Any]) -> None:
    _check_forms(description, DESCRIPTION)
    labels = description.get("test_labels") or {}
    if not _table_of(lambda part: isinstance(part, list))(labels):
        raise ValueError(f"`test_labels` must be a table of lists, got {labels!r}")
    dimensions = 1 if description.get("task") == "node" else 2
    for split, part in labels.items():
        array = np.array(part)
        if array.size and (array.dtype.kind != "i" or array.ndim != dimensions):
            raise ValueError(f"`test_labels` must be whole numbers in {dimensions} dimensions, got others: {split!r}")


def _check_outputs(record: Record, description: Mapping[str, Any]) -> None:
    """Raise unless a run's outputs and class scores have the shape of its task, and of its labels where known."""
    for scores in (record.get("class_scores") or {}).values():
        if len(scores["confusion"]) != len(description.get("classes") or []):
            raise ValueError(f"`class_scores` must be of the experiment's classes, got {len(scores['confusion'])}")
    split = "" if record.get("split") is None else str(record["split"])
    labels = np.array((description.get("test_labels") or {}).get(split) or [])
    for key in ("outputs", "constant_outputs"):
        packed = (record.get(key) or {}).get("test")
        if packed is None:
            continue
        shape = unpack_array(packed).shape
        fits = len(shape) == 2 if description.get("task") == "node" else len(shape) == 3 and shape[2] == 2
        if not fits or (labels.ndim == 2 and shape[1] != labels.shape[1]):
            raise ValueError(f"`{key}` must be logits for the labels of the task, got an array of shape {list(shape)}")


def load_studies(paths: Sequence[Path]) -> tuple[list[Study], list[str]]:
    """Read all experiments at or below the given files and folders.

    Returns:
        the studies, and notices for the reader: damaged files, mixed experiments, repeated records, failed runs.
    """
    studies: dict[tuple[str, str, bool], Study] = {}
    seen: dict[tuple[str, str, str], Record] = {}
    notices: list[str] = []
    for path in dict.fromkeys(chain.from_iterable(map(find_experiments, paths))):
        try:
            experiment = read_experiment(path, _keep)
            _check_description(experiment.description)
        except (OSError, ValueError, RecursionError) as error:
            notices.append(f"{LEFT_OUT}: {_damage(error, path)}.")
            continue
        notices += [f"{LEFT_OUT}, damaged: {file} ({reason})." for file, reason in experiment.damaged]
        description = experiment.description
        for record in experiment.records:
            name = record_name(record)
            try:
                _check_outputs(record, description)
            except ValueError as error:
                notices.append(f"{LEFT_OUT}, damaged: {_damage(error, path)} ({name}).")
                continue
            data, budget = (str(record.get(key) or description.get(key)) for key in ("data", "budget"))
            first = seen.setdefault((data, budget, name), record)
            if first is not record:
                if any(first.get(key) != record.get(key) for key in ("scores", "objective", "status")):
                    notices.append(f"{data}, {name} occurs twice with different results; the first is used.")
                continue
            is_extended = record.get("setting") == EXTENDED
            new = Study(data, budget, description, is_extended=is_extended)
            study = studies.setdefault((data, budget, is_extended), new)
            if study.description is not description:
                notices += _differences(study, description)
            kinds = {"trial": study.trials, "run": study.runs, "declaration": study.declarations}
            kinds[record["kind"]].append(record)
    if not studies:
        more = notices[0] if notices else "`rgat demo` and `rgat reproduce` write some"
        raise ValueError(f"{', '.join(map(str, paths))} must hold records of runs or trials, got none; {more}")
    return _arrange(list(studies.values()), notices), notices


def _damage(error: Exception, path: Path) -> str:
    """Describe an error and its file in printable text of limited length."""
    text = str(error) if str(path) in str(error) else f"{path} ({error})"
    return UNPRINTABLE.sub("?", text)[:LONGEST_TEXT]


def _differences(study: Study, description: dict[str, Any]) -> list[str]:
    """Warn, once per study, that it combines experiments with different settings."""
    other = [k for k in ("trials", "seeds", "folds", "search_seed") if study.description.get(k) != description.get(k)]
    if not other or study.mixed:
        return []
    study.mixed = True
    keys = ", ".join(other)
    return [f"{study.title}: experiments with different {keys} are combined; their models are not fully comparable."]


def _arrange(studies: list[Study], notices: list[str]) -> list[Study]:
    """Sort studies and their records, merge baselines into the study of their data, and add notices."""
    order = (*DATA_ORDER, *sorted({study.data for study in studies}.difference(DATA_ORDER)))
    studies.sort(key=lambda s: (order.index(s.data), BUDGETS.index(s.budget) if s.budget in BUDGETS else len(BUDGETS)))
    for data in dict.fromkeys(study.data for study in studies):
        same_data = [study for study in studies if study.data == data and not study.is_extended]
        kept = [s for s in same_data if any(r["model"] in MODELS for r in (*s.runs, *s.trials))] or same_data[:1]
        for baselines in (s for s in same_data if s not in kept):  # not searched, so the budget does not matter
            kept[0].runs += baselines.runs
            studies.remove(baselines)
        if len(kept) > 1:
            notices.append(
                f"{kept[0].title} has records of {len(kept)} budgets ({', '.join(s.budget for s in kept)}). They are "
                "never pooled: each budget has a section of its own."
            )
            for study in kept:
                study.title += f" (budget {study.budget})"
                study.key = slug(f"{data}-{study.budget}")
    taken = set(ANCHORS)
    for study in (study for study in studies if study.is_extended):
        study.title, study.key = f"{study.title}, extended space", slug(f"{study.data}-{study.budget}-{EXTENDED}")
    for study in studies:
        study.runs.sort(key=lambda r: (r["model"], r.get("setting") or "", str(r.get("split") or ""), r["seed"]))
        study.trials.sort(key=lambda r: (r["model"], r.get("setting") or "", r["trial"]))
        notices += _gaps(study)
        if study.key in taken:
            study.key = slug(f"{study.data}/{study.budget}")  # a slug has no slash, so this one ends in a digest
        taken.add(study.key)
    return studies


def _gaps(study: Study) -> list[str]:
    """List failed runs, rows whose mean is below guessing, and rows with a single run."""
    notes = []
    failed = [run for run in study.runs if run["status"] != "done"]
    if failed:
        models = ", ".join(dict.fromkeys(run["model"] for run in failed))
        notes.append(
            f"{study.title}: {len(failed)} of {len(study.runs)} final runs failed or diverged ({models}); "
            "the means leave them out, which favours these models."
        )
    for row in study.rows if study.is_node else []:
        values, chance = row.scores(), study.chance_score
        if len(values) and values.mean() < chance:
            mean, largest, lowest = (f"{100 * float(value):.2f} %" for value in (values.mean(), chance, values.min()))
            notes.append(
                f"{study.title}: the mean of {row.name}, {mean}, is below the score of always predicting the largest "
                f"class, {largest}; so are {(values < chance).sum()} of its {len(values)} runs, the lowest at {lowest}."
            )
    lone = [row.name for row in study.rows if len(row.scores()) == 1]
    if lone:
        notes.append(
            f"{study.title}: a single run of {', '.join(lone)}; one run has no standard deviation and allows no test."
        )
    return notes
