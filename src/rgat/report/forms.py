"""What records and experiments must look like for the report to read them: anybody may have written them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rgat.experiments.records import UNPRINTABLE, Record, unpack_array

LONGEST_NAME, LONGEST_TEXT = 200, 10_000  # characters
LARGEST_NUMBER = 1e300  # of this a percentage is still a number

Check = Callable[[Any], bool]
Forms = Mapping[str, tuple[Check, str]]  # by key: what a value must be, in code and in words; null may stand for each


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


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_single_option(value: Any) -> bool:
    return value is None or _is_flag(value) or _is_number(value) or _is_text(value)


def _is_option(value: Any) -> bool:
    return _is_single_option(value) or _list_of(_is_single_option)(value)


def _is_packed(value: Any) -> bool:
    unpack_array(value)  # raises where it cannot
    return True


def _or_null(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _list_of(check: Check) -> Check:
    return lambda value: isinstance(value, list) and all(map(check, value))


def _table_of(check: Check) -> Check:
    return lambda value: isinstance(value, dict) and all(_is_name(key) and check(one) for key, one in value.items())


_NAME = (_is_name, f"a name of at most {LONGEST_NAME} characters")
_TEXT = (_is_text, f"text of at most {LONGEST_TEXT:,} characters")
_WHOLE = (_is_whole, "a whole number")
_SCORE = (_is_score, "a number from 0 to 1")
_SCORES = (_table_of(_or_null(_is_score)), "a table of numbers from 0 to 1")
_TASK_SCORES = (_table_of(_table_of(_or_null(_is_score))), "a table of tables of numbers from 0 to 1")
_OUTPUTS = (_table_of(_or_null(_is_packed)), "a table of packed arrays")

# All that the report reads of a record.
RECORD: Forms = {
    **dict.fromkeys(("kind", "status", "model", "setting", "data", "budget"), _NAME),
    **dict.fromkeys(("device", "selected_on"), _TEXT),
    **dict.fromkeys(("seed", "trial"), _WHOLE),
    **dict.fromkeys(("scores", "constant_scores"), _SCORES),
    **dict.fromkeys(("task_scores", "constant_task_scores"), _TASK_SCORES),
    **dict.fromkeys(("outputs", "constant_outputs"), _OUTPUTS),
    "split": (lambda value: _is_whole(value) or _is_name(value), "a whole number or a name"),
    "from_prior": (_is_flag, "true or false"),
    "seconds": (_is_number, "a number"),
    "objective": _SCORE,
    "versions": (_table_of(_is_text), "a table of texts"),
    "config": (_table_of(_is_option), "a table of numbers, texts and lists of these"),
    "curve": (_table_of(_or_null(_list_of(_or_null(_is_number)))), "a table of lists of numbers"),
}
# All that it reads of an experiment, but for the labels.
DESCRIPTION: Forms = {
    **dict.fromkeys(("data", "budget", "task", "metric"), _NAME),
    **dict.fromkeys(("trials", "seeds", "folds", "search_seed"), _WHOLE),
    "majority": _SCORE,
    "tasks": (_list_of(_is_name), "a list of names"),
    "data_hashes": (_table_of(_is_text), "a table of texts"),
    "command": _TEXT,
}


def _check_forms(content: Mapping[str, Any], forms: Forms) -> None:
    for key, (check, words) in forms.items():
        if content.get(key) is not None and not check(content[key]):
            raise ValueError(f"`{key}` must be {words}, got {content[key]!r}")


def keep(record: Record) -> Record:
    """Check what the report reads of a record, and keep nothing else: the folds of a trial have long curves."""
    if record["kind"] not in ("trial", "run"):
        raise ValueError(f'`kind` must be "trial" or "run", got "{record["kind"]}"')
    if record["status"] not in ("done", "failed", "diverged"):
        raise ValueError(f'`status` must be "done", "failed" or "diverged", got "{record["status"]}"')
    if record["status"] == "done" and record["kind"] == "trial" and not _is_score(record["objective"]):
        raise ValueError(f"`objective` must be a number where `status` is done, got {record['objective']}")
    if record["status"] == "done" and record["kind"] == "run":
        if not _is_score(record["scores"]["test"]):
            raise ValueError(f"`scores.test` must be a number from 0 to 1, got {record['scores']['test']}")
        if record.get("constant_scores") and not _is_score(record["constant_scores"]["test"]):
            raise ValueError(f"`constant_scores.test` must be a number, got {record['constant_scores']['test']}")
    _check_forms(record, RECORD)
    return {key: record[key] for key in RECORD if key in record}


def check_description(description: Mapping[str, Any]) -> None:
    """Raise unless all that tables and charts read of an experiment has its form."""
    _check_forms(description, DESCRIPTION)
    labels = description.get("test_labels") or {}
    if not _table_of(lambda part: isinstance(part, list))(labels):
        raise ValueError(f"`test_labels` must be a table of lists, got {labels!r}")
    dimensions = 1 if description.get("task") == "node" else 2
    for split, part in labels.items():
        array = np.array(part)
        if array.size and (array.dtype.kind != "i" or array.ndim != dimensions):
            raise ValueError(f"`test_labels` must be whole numbers in {dimensions} dimensions, got others: {split!r}")


def check_outputs(record: Record, description: Mapping[str, Any]) -> None:
    """Raise unless the outputs of a run have the dimensions of its task, and of its labels where they are known."""
    is_node = description.get("task") == "node"
    split = record.get("split")
    labels = np.array((description.get("test_labels") or {}).get("" if split is None else str(split)) or [])
    for key in ("outputs", "constant_outputs"):
        packed = (record.get(key) or {}).get("test")
        if packed is None:
            continue
        shape = unpack_array(packed).shape
        fits = len(shape) == 2 if is_node else len(shape) == 3 and shape[2] == 2
        if not fits or (labels.ndim == 2 and shape[1] != labels.shape[1]):
            raise ValueError(f"`{key}` must be logits for the labels of the task, got an array of shape {list(shape)}")
