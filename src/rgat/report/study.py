"""Records to studies: one data set under one budget, its rows of runs and its search trials."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rgat.data.files import slug
from rgat.experiments.records import (
    UNPRINTABLE,
    Record,
    find_experiments,
    read_experiment,
    record_name,
    unpack_array,
)
from rgat.report.ensemble import ENSEMBLE, NOTE, ensemble_runs
from rgat.report.forms import LONGEST_TEXT, check_description, check_outputs, keep
from rgat.report.statistics import Array
from rgat.training.configuration import VARIANTS

PARTS = ("train", "valid", "test")
MODELS = tuple(VARIANTS)  # RGCN, then the paper's four; what all comparisons are between
BASELINES = ("FEAT", "WL", "RDF2Vec", "R-GCN", "Multitask", "Bypass", "Weave", "GraphConv")
BUDGETS = ("paper", "small", "custom", "smoke")  # the most telling first
GROUPS = ("Baselines", "Additive attention", "Multiplicative attention", "Beyond the paper")
TITLES = {
    "aifb": "AIFB",
    "mutag": "MUTAG",
    "bgs": "BGS",
    "am": "AM",
    "tox21": "Tox21",
    "tox21-distinct": "Tox21, distinct molecules",
}
DATA_ORDER = (*TITLES, "institute", "molecules")
ANCHORS = ("summary", "notices", "results", "claims", "reading", "provenance", "main", "tip")  # the page's own
LEFT_OUT = "Left out"  # begins a notice about damage


@dataclass(frozen=True)
class Row:
    """One row of the tables: the runs of a model, with its attention or with constant attention.

    Attributes:
        model: as the records name it.
        setting: name of a configuration that is not the paper's.
        constant: whether attention was constant when the trained model was evaluated.
        runs: the records of the runs that ended well, by split and seed.
    """

    model: str
    setting: str | None
    constant: bool
    runs: list[Record] = field(repr=False)

    @property
    def name(self) -> str:
        """Its name in the paper's tables, unique in a study."""
        head, _, last = self.model.rpartition(" ")
        name = " ".join(filter(None, (head, f"C-{last}"))) if self.constant else self.model
        return f"{name} ({self.setting})" if self.setting else name

    @property
    def group(self) -> str:
        """Its class in the paper's tables."""
        if self.setting is None and self.model in (*BASELINES, "RGCN"):
            return GROUPS[0]
        if self.setting is None and self.model in MODELS:
            return GROUPS[1] if self.model.startswith("additive") else GROUPS[2]
        return GROUPS[3]

    @property
    def label(self) -> str:
        """Its name inside its group."""
        if self.group in GROUPS[1:3]:
            return self.name.partition(" ")[2]
        return {"R-GCN": "RGCN (its own paper)", "GraphConv": "RGCN (by degree)", "RGCN": "RGCN (ours)"}.get(
            self.name, self.name
        )

    @property
    def note(self) -> str | None:
        """What a reader must know of it."""
        return NOTE if self.model == ENSEMBLE else None

    @property
    def place(self) -> tuple[int, str, int, str, bool]:
        """Sorts rows as the paper's tables do: groups, then models, each after its constant row."""
        known = (*BASELINES, *MODELS)
        number = known.index(self.model) if self.model in known else len(known)
        return GROUPS.index(self.group), self.setting or "", number, self.model, not self.constant

    def _of_run(self, run: Record, key: str) -> Any:
        return run.get(f"constant_{key}" if self.constant else key) or {}

    def scores(self, part: str = "test") -> Array:
        """The metric of one part in every run that has it."""
        found = (self._of_run(run, "scores").get(part) for run in self.runs)
        return np.array([value for value in found if value is not None], float)

    def task_scores(self, task: str) -> Array:
        """ROC-AUC of one task on the test part, where it is defined."""
        found = ((self._of_run(run, "task_scores").get("test") or {}).get(task) for run in self.runs)
        return np.array([value for value in found if value is not None], float)

    def outputs(self) -> dict[str, NDArray[np.float32]] | None:
        """Logits of the test part, per split ``[runs, ...]``; None unless every run has them."""
        splits: dict[str, list[NDArray[np.float32]]] = {}
        for run in self.runs:
            packed = self._of_run(run, "outputs").get("test")
            if packed is None:
                return None
            split = run.get("split")
            splits.setdefault("" if split is None else str(split), []).append(unpack_array(packed))
        if any(len({array.shape for array in arrays}) > 1 for arrays in splits.values()):
            return None
        return {split: np.stack(arrays) for split, arrays in splits.items()}


@dataclass
class Study:
    """All that is known of one data set under one budget.

    Attributes:
        data: name of the data set.
        budget: name of the budget.
        description: of the experiment.
        runs: records of final runs, failed ones included.
        trials: records of search trials, failed ones included.
        alone: whether this is the data set's only study.
        mixed: whether it was put together from experiments that differ.
        crowded: whether something else in the report has the same key.
    """

    data: str
    budget: str
    description: dict[str, Any]
    runs: list[Record] = field(default_factory=list, repr=False)
    trials: list[Record] = field(default_factory=list, repr=False)
    alone: bool = True
    mixed: bool = False
    crowded: bool = False

    @property
    def key(self) -> str:
        """A word for file names and anchors."""
        if self.crowded:
            return slug(f"{self.data}/{self.budget}")  # the slash is no part of a word, so there is a digest
        return slug(self.data if self.alone else f"{self.data}-{self.budget}")

    @property
    def title(self) -> str:
        """Its name for people."""
        title = TITLES.get(self.data, self.data)
        return title if self.alone else f"{title} (budget {self.budget})"

    @property
    def is_node(self) -> bool:
        """Whether nodes of one graph are classified, not graphs."""
        return self.description.get("task") == "node"

    @property
    def metric(self) -> str:
        """What a score is."""
        return str(self.description.get("metric") or ("accuracy" if self.is_node else "mean ROC-AUC"))

    @property
    def percent(self) -> bool:
        """Whether scores are printed in percent, as the paper prints accuracies."""
        return self.metric == "accuracy"

    @property
    def test_size(self) -> int:
        """Number of test examples; 0 where it is not known."""
        return min((len(labels) for labels in (self.description.get("test_labels") or {}).values()), default=0)

    @property
    def floor(self) -> float:
        """What guessing scores: the largest class of the training set, or a ROC-AUC of one half."""
        return float(self.description.get("majority") or 0.0) if self.is_node else 0.5

    @cached_property
    def seed(self) -> int:
        """Of every random draw of the report: a digest of the records themselves."""
        content = [[record_name(run), run.get("scores"), run.get("constant_scores")] for run in self.runs]
        return int(hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:15], 16)

    @cached_property
    def rows(self) -> list[Row]:
        """The rows that have runs, in the order of the paper's tables."""
        runs: dict[tuple[str, str | None], list[Record]] = {}
        for run in self.runs:
            if run["status"] == "done":
                runs.setdefault((run["model"], run.get("setting")), []).append(run)
        rows = []
        for (model, setting), mine in runs.items():
            with_constant = [run for run in mine if run.get("constant_scores")]
            rows += [Row(model, setting, True, with_constant)] if with_constant else []
            rows.append(Row(model, setting, False, mine))
        if not self.is_node:
            together = ensemble_runs(self.runs, MODELS, self.description)
            rows += [Row(ENSEMBLE, None, False, together)] if together else []
        return sorted(rows, key=lambda row: row.place)

    def row(self, name: str) -> Row | None:
        """The row of this name, if it has runs."""
        return next((row for row in self.rows if row.name == name), None)

    def trials_of(self, model: str, prior_only: bool = False) -> list[Record]:
        """The trials of one model's search in the paper's setting, in their order."""
        return [
            trial
            for trial in self.trials
            if trial["model"] == model and not trial.get("setting") and (trial.get("from_prior") or not prior_only)
        ]

    @cached_property
    def searched(self) -> list[str]:
        """The models that were searched for, RGCN and the paper's four first."""
        names = {trial["model"] for trial in self.trials if not trial.get("setting")}
        return [*(m for m in MODELS if m in names), *sorted(names.difference(MODELS))]


def objectives(trials: Sequence[Record]) -> Array:
    """Mean validation metric of the trials that ended well."""
    return np.array([t["objective"] for t in trials if t["status"] == "done"], float)


def load_studies(places: Sequence[Path]) -> tuple[list[Study], list[str]]:
    """Read all experiments at or below the places.

    Returns:
        the studies, and what a reader must know about how they were read: damage, mixtures, repeats, failures.
    """
    studies: dict[tuple[str, str], Study] = {}
    seen: dict[tuple[str, str, str], Record] = {}
    notices: list[str] = []
    for path in dict.fromkeys(path for place in places for path in find_experiments(place)):
        try:
            experiment = read_experiment(path, keep)
            check_description(experiment.description)
        except (OSError, ValueError, RecursionError) as error:
            notices.append(f"{LEFT_OUT}: {_shown(error, path)}.")
            continue
        notices += [f"{LEFT_OUT}, damaged: {where} ({reason})." for where, reason in experiment.damaged]
        description = experiment.description
        for record in experiment.records:
            try:
                check_outputs(record, description)
            except ValueError as error:
                notices.append(f"{LEFT_OUT}, damaged: {_shown(error, path)} ({record_name(record)}).")
                continue
            data = str(record.get("data") or description.get("data"))
            budget = str(record.get("budget") or description.get("budget"))
            unit = (data, budget, record_name(record))
            if unit in seen:
                if any(seen[unit].get(key) != record.get(key) for key in ("scores", "objective", "status")):
                    notices.append(f"{data}, {unit[2]} is there twice with different results; the first one counts.")
                continue
            seen[unit] = record
            study = studies.setdefault((data, budget), Study(data, budget, description))
            if study.description is not description:
                notices += _differences(study, description)
            (study.trials if record["kind"] == "trial" else study.runs).append(record)
    if not studies:
        more = f"; {notices[0]}" if notices else "; `rgat demo` and `rgat reproduce` write some"
        raise ValueError(f"{', '.join(map(str, places))} must hold records of runs or trials, got none{more}")
    return _arrange(list(studies.values()), notices), notices


def _shown(error: Exception, path: Path) -> str:
    """What is wrong and with which file, without what a damaged file may bring into the page."""
    text = str(error) if str(path) in str(error) else f"{path} ({error})"
    return UNPRINTABLE.sub("?", text)[:LONGEST_TEXT]


def _differences(study: Study, description: dict[str, Any]) -> list[str]:
    """What makes two experiments that are put together hard to compare, said once."""
    other = [k for k in ("trials", "seeds", "folds", "search_seed") if study.description.get(k) != description.get(k)]
    if not other or study.mixed:
        return []
    study.mixed = True
    given = ", ".join(other)
    return [f"{study.title}: experiments with different {given} are put together; their models had different chances."]


def _arrange(studies: list[Study], notices: list[str]) -> list[Study]:
    """Order studies and records, add baselines to the studies of their data, say what was mixed and what failed."""
    order = (*DATA_ORDER, *sorted({study.data for study in studies}.difference(DATA_ORDER)))
    studies.sort(key=lambda s: (order.index(s.data), BUDGETS.index(s.budget) if s.budget in BUDGETS else len(BUDGETS)))
    for data in dict.fromkeys(study.data for study in studies):
        mine = [study for study in studies if study.data == data]
        searched = [s for s in mine if any(r["model"] in MODELS for r in (*s.runs, *s.trials))] or mine[:1]
        for baselines in (s for s in mine if s not in searched):  # nothing was searched for: the budget is not theirs
            searched[0].runs += baselines.runs
            studies.remove(baselines)
        if len(searched) > 1:
            for study in searched:
                study.alone = False
            budgets = ", ".join(study.budget for study in searched)
            notices.append(
                f"{TITLES.get(data, data)} has records of {len(searched)} budgets ({budgets}). They are never pooled: "
                "each budget has a section of its own."
            )
    for study in studies:
        study.runs.sort(key=lambda r: (r["model"], r.get("setting") or "", str(r.get("split") or ""), r["seed"]))
        study.trials.sort(key=lambda r: (r["model"], r.get("setting") or "", r["trial"]))
        notices += _gaps(study)
    taken = set(ANCHORS)
    for study in studies:
        study.crowded = study.key in taken
        taken.add(study.key)
    return studies


def _gaps(study: Study) -> list[str]:
    """What keeps a study from saying more."""
    notes = []
    failed = [run for run in study.runs if run["status"] != "done"]
    if failed:
        models = ", ".join(dict.fromkeys(run["model"] for run in failed))
        notes.append(
            f"{study.title}: {len(failed)} of {len(study.runs)} final runs failed or diverged ({models}); "
            "means are over the others and flatter these models."
        )
    for row in study.rows:
        values = row.scores()
        if len(values) and study.is_node and float(values.mean()) < study.floor:
            below = int((values < study.floor).sum())
            mean, floor, lowest = (
                f"{100 * float(value):.2f} %" for value in (values.mean(), study.floor, values.min())
            )
            notes.append(
                f"{study.title}: the mean of {row.name}, {mean}, is below the largest class, {floor}: {below} of its "
                f"{len(values)} runs are, the lowest at {lowest}."
            )
    lone = [row.name for row in study.rows if len(row.scores()) == 1]
    if lone:
        notes.append(f"{study.title}: a single run of {', '.join(lone)}; one run has no spread and allows no test.")
    return notes
