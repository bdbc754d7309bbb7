"""A study holds the runs and search trials of one data set under one budget, and compares the rows of its tables.

Which rows are compared is fixed beforehand, and each result is computed once.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rgat.data.files import slug
from rgat.experiments.published import constant_row
from rgat.experiments.records import Record, record_name, unpack_array
from rgat.report import statistics as stats
from rgat.report.statistics import SIGNIFICANT, Array, MannWhitney
from rgat.training.configuration import VARIANTS
from rgat.training.metric import roc_auc_per_task

MODELS = tuple(VARIANTS)  # RGCN and the paper's four attention models: all comparisons are between these
BASELINES = ("FEAT", "WL", "RDF2Vec", "R-GCN", "Multitask", "Bypass", "Weave", "GraphConv")
BASELINE, ADDITIVE, MULTIPLICATIVE, FURTHER = GROUPS = (
    "Baselines",
    "Additive attention",
    "Multiplicative attention",
    "Beyond the paper",
)
LABELS = {"R-GCN": "RGCN (its own paper)", "GraphConv": "RGCN (by degree)", "RGCN": "RGCN (ours)"}
TITLES = {
    "aifb": "AIFB",
    "mutag": "MUTAG",
    "bgs": "BGS",
    "am": "AM",
    "tox21": "Tox21",
    "tox21-distinct": "Tox21, distinct molecules",
}
PER_CLASS = ("recall", "precision", "f1")
ENSEMBLE = "ensemble of the five models"
RESAMPLINGS = 400  # bootstrap samples of the test examples


@dataclass(frozen=True, eq=False)
class ModelRow:
    """A row of the tables: the finished runs of one model, evaluated with its attention or with constant attention."""

    model: str
    setting: str | None  # name of a configuration other than the paper's
    constant: bool
    runs: list[Record] = field(repr=False)  # ordered by split and seed

    @property
    def name(self) -> str:
        """Name in the paper's tables, unique in a study."""
        name = constant_row(self.model) if self.constant else self.model
        return f"{name} ({self.setting})" if self.setting else name

    @property
    def group(self) -> str:
        """Group of rows in the paper's tables."""
        if self.setting is None and self.model in (*BASELINES, "RGCN"):
            return BASELINE
        if self.setting is None and self.model in MODELS:
            return ADDITIVE if self.model.startswith("additive") else MULTIPLICATIVE
        return FURTHER

    @property
    def label(self) -> str:
        """Name inside its group."""
        if self.group in (ADDITIVE, MULTIPLICATIVE):
            return self.name.partition(" ")[2]
        return LABELS.get(self.name, self.name)

    @property
    def sort_key(self) -> tuple[int, str, int, str, bool]:
        """Order of the paper's tables: by group, then by model, the row with constant attention first."""
        known = (*BASELINES, *MODELS)
        number = known.index(self.model) if self.model in known else len(known)
        return GROUPS.index(self.group), self.setting or "", number, self.model, not self.constant

    def _results(self, key: str) -> Iterable[tuple[Record, dict[str, Any]]]:
        key = f"constant_{key}" if self.constant else key
        return ((run, run.get(key) or {}) for run in self.runs)

    def scores(self, part: str = "test") -> Array:
        """Metric on one part, for every run that has it."""
        return without_none(scores.get(part) for _, scores in self._results("scores"))

    def task_scores(self, task: str) -> Array:
        """ROC-AUC of one task on the test part, for every run where it is defined."""
        return without_none((scores.get("test") or {}).get(task) for _, scores in self._results("task_scores"))

    def class_scores(self) -> list[dict[str, Any]]:
        """Scores and confusions of the classes on the test part, of every run that has them."""
        return [scores["test"] for _, scores in self._results("class_scores") if "test" in scores]

    def outputs(self) -> dict[str, NDArray[np.float32]] | None:
        """Test logits by split, ``[runs, ...]``; None unless every run has them in the same shape."""
        splits: dict[str, list[NDArray[np.float32]]] = {}
        for run, outputs in self._results("outputs"):
            if outputs.get("test") is None:
                return None
            split = "" if run.get("split") is None else str(run["split"])
            splits.setdefault(split, []).append(unpack_array(outputs["test"]))
        if any(len({array.shape for array in arrays}) > 1 for arrays in splits.values()):
            return None
        return {split: np.stack(arrays) for split, arrays in splits.items()}


def without_none(values: Iterable[float | None]) -> Array:
    """Return the values that are not None."""
    return np.array([value for value in values if value is not None], float)


@dataclass(frozen=True)
class Comparison:
    """A comparison of one row's test scores with those of another."""

    first: ModelRow
    second: ModelRow
    difference: float  # first mean less second mean
    relative: float  # difference as a share of the second mean
    above: float  # share of pairs of runs in which the first scores higher
    tie: float
    below: float
    above_interval: tuple[float, float] | None  # 95 % bootstrap interval of `above`
    seeds: float | None  # half width of the 95 % interval of the difference, over random seeds
    examples: float | None  # the same over random seeds and test examples
    test: MannWhitney | None
    paired: float | None = None  # p-value of Wilcoxon's signed-rank test, where both rows are the same trained models
    corrected: float | None = None  # two-sided p-value after Holm's correction in the family
    least: float = 1.0  # smallest `corrected` that this number of runs can give

    @property
    def num_runs(self) -> int:
        """Number of runs of the row that has fewer."""
        return min(len(self.first.scores()), len(self.second.scores()))

    @property
    def verdict(self) -> str:
        """Conclusion from the corrected p-value: better, worse, or the reason why there is none."""
        if self.test is None:
            return "no test: too few runs" if self.num_runs < 2 else "no test: no spread"
        if self.corrected is not None and self.corrected <= SIGNIFICANT:
            return "better" if self.test.greater < self.test.less else "worse"
        return "too few runs to tell" if self.least > SIGNIFICANT else "no conclusion"


@dataclass
class Study:
    """All records of one data set under one budget, with comparisons that are computed on first use."""

    data: str
    budget: str
    description: dict[str, Any]  # content of `experiment.json`
    runs: list[Record] = field(default_factory=list, repr=False)  # failed ones included
    trials: list[Record] = field(default_factory=list, repr=False)  # failed ones included
    mixed: bool = False  # whether it combines experiments with different settings
    is_extended: bool = False  # whether it searched the extended space, not the paper's priors
    declarations: list[Record] = field(default_factory=list, repr=False)  # of final runs, in the extended space
    title: str = field(init=False)
    key: str = field(init=False)  # for file names and anchors, unique in a report

    def __post_init__(self) -> None:
        self.title = TITLES.get(self.data, self.data)
        self.key = slug(self.data)

    @property
    def is_node(self) -> bool:
        """Whether the task is node classification, not graph classification."""
        return self.description.get("task") == "node"

    @property
    def metric(self) -> str:
        """Name of the metric."""
        return str(self.description.get("metric") or ("accuracy" if self.is_node else "mean ROC-AUC"))

    @property
    def percent(self) -> bool:
        """Whether scores are printed in percent, as the paper prints accuracies."""
        return self.metric == "accuracy"

    def number(self, value: float, sign: bool = False) -> str:
        """Format a score as the paper prints it: accuracies in percent, ROC-AUC as a fraction."""
        form = "+" if sign else ""
        return f"{100 * value:{form}.2f}" if self.percent else f"{value:{form}.3f}"

    @property
    def test_size(self) -> int:
        """Number of test examples; 0 where it is unknown."""
        return min((len(labels) for labels in (self.description.get("test_labels") or {}).values()), default=0)

    @property
    def chance_score(self) -> float:
        """Score of guessing: the share of the largest class, or a ROC-AUC of one half."""
        return float(self.description.get("majority") or 0.0) if self.is_node else 0.5

    @cached_property
    def seed(self) -> int:
        """Random seed of the report's bootstraps: a digest of the records, so equal records give equal reports."""
        content = [[record_name(run), run.get("scores"), run.get("constant_scores")] for run in self.runs]
        return int(hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:15], 16)

    @cached_property
    def rows(self) -> list[ModelRow]:
        """Rows with finished runs, in the order of the paper's tables."""
        runs: dict[tuple[str, str | None], list[Record]] = {}
        for run in self.runs:
            if run["status"] == "done":
                runs.setdefault((run["model"], run.get("setting")), []).append(run)
        rows = [ModelRow(model, setting, False, records) for (model, setting), records in runs.items()]
        constant = [[run for run in row.runs if run.get("constant_scores")] for row in rows]
        rows += [
            ModelRow(r.model, r.setting, True, records) for r, records in zip(rows, constant, strict=True) if records
        ]
        if ensemble := [] if self.is_node else self._ensemble_runs():
            rows.append(ModelRow(ENSEMBLE, None, False, ensemble))
        return sorted(rows, key=lambda row: row.sort_key)

    def row(self, name: str) -> ModelRow | None:
        """Return the row of this name, or None if it has no finished runs."""
        return next((row for row in self.rows if row.name == name), None)

    def _ensemble_runs(self) -> list[Record]:
        """Average the test probabilities of all runs of the five models, on each split where all runs kept outputs."""
        done = [r for r in self.runs if r["status"] == "done" and r["model"] in MODELS and not r.get("setting")]
        ensemble: list[Record] = []
        for split, labels in (self.description.get("test_labels") or {}).items():
            runs = [run for run in done if str(run.get("split")) == split]
            outputs = [unpack_array(packed) for run in runs if (packed := (run.get("outputs") or {}).get("test"))]
            complete = {run["model"] for run in runs} == set(MODELS) and len(outputs) == len(runs)
            if not complete or {array.shape for array in outputs} != {(*np.shape(labels), 2)}:
                continue
            mean = torch.stack([torch.from_numpy(array).double().softmax(-1) for array in outputs]).mean(0)
            values = [None if math.isnan(v) else v for v in roc_auc_per_task(mean, torch.tensor(labels))]
            known = without_none(values)
            if len(known):
                tasks = dict(zip(self.description.get("tasks") or [], values, strict=False))
                scores = {"scores": {"test": float(known.mean())}, "task_scores": {"test": tasks}}
                ensemble.append(
                    {"kind": "run", "model": ENSEMBLE, "split": split, "seed": 0, "status": "done"} | scores
                )
        return ensemble

    def trials_of(self, model: str, prior_only: bool = False) -> list[Record]:
        """Return the trials of one model with the paper's setting, all or only those drawn from the prior."""
        return [
            trial
            for trial in self.trials
            if trial["model"] == model and not trial.get("setting") and (trial.get("from_prior") or not prior_only)
        ]

    @cached_property
    def searched(self) -> list[str]:
        """Models with search trials, RGCN and the paper's four first."""
        names = {trial["model"] for trial in self.trials if not trial.get("setting")}
        return [*(m for m in MODELS if m in names), *sorted(names.difference(MODELS))]

    @cached_property
    def nine(self) -> list[ModelRow]:
        """RGCN, the four attention models and their four rows with constant attention, where they have runs."""
        return [row for row in self.rows if row.model in MODELS and row.setting is None]

    @cached_property
    def five(self) -> list[ModelRow]:
        """RGCN and the four attention models, without constant attention."""
        return [row for row in self.nine if not row.constant]

    @cached_property
    def tests(self) -> dict[tuple[str, str], MannWhitney | None]:
        """Mann-Whitney U test of each ordered pair of the nine rows."""
        tests: dict[tuple[str, str], MannWhitney | None] = {}
        for i, a in enumerate(self.nine):
            for b in self.nine[i + 1 :]:
                tests[a.name, b.name] = test = stats.mann_whitney(a.scores(), b.scores())
                tests[b.name, a.name] = test and MannWhitney(test.less, test.greater, test.two_sided)
        return tests

    @cached_property
    def replicates(self) -> dict[str, Array]:
        """Mean scores of the rows with outputs on resampled test examples, the same examples for every row."""
        rng = np.random.default_rng(self.seed)
        labels = {split: np.array(part) for split, part in (self.description.get("test_labels") or {}).items()}
        counts = {
            split: stats.resample_counts(rng, len(part), RESAMPLINGS) for split, part in labels.items() if len(part)
        }
        score = stats.resampled_accuracy if self.is_node else _mean_auc
        replicates = {}
        for row in self.rows:
            outputs = row.outputs()
            if outputs is not None and all(
                split in counts and runs.shape[1] == len(labels[split]) for split, runs in outputs.items()
            ):
                sums = [len(runs) * score(runs, labels[split], counts[split]) for split, runs in outputs.items()]
                replicates[row.name] = np.sum(sums, axis=0) / len(row.runs)
        return replicates

    def half_widths(self, row: ModelRow) -> tuple[float | None, float | None]:
        """Return half of the 95 % interval of a row's mean: over seeds, and over seeds and test examples."""
        seeds, replicates = stats.half_width(row.scores()), self.replicates.get(row.name)
        return seeds, None if seeds is None or replicates is None else stats.widened(seeds, replicates)

    def compare(self, first: ModelRow, second: ModelRow) -> Comparison:
        """Compare two rows, without a correction for other comparisons."""
        a, b = first.scores(), second.scores()
        paired = first.model == second.model  # the same trained models, compared seed by seed
        if paired and first.setting == second.setting and len(a) == len(b):
            seeds = stats.half_width(a - b)
        else:
            seeds = stats.difference_half_width(a, b)
        examples = None
        if seeds is not None and first.name in self.replicates and second.name in self.replicates:
            examples = stats.widened(seeds, self.replicates[first.name] - self.replicates[second.name])
        rng = np.random.default_rng([self.seed, *map(ord, first.name + second.name)])
        return Comparison(
            first,
            second,
            float(a.mean() - b.mean()),
            stats.relative_change(float(a.mean()), float(b.mean())) if b.mean() else float("nan"),
            *stats.superiority(a, b),
            stats.superiority_interval(a, b, rng),
            seeds,
            examples,
            stats.mann_whitney(a, b),
            stats.wilcoxon([run["scores"]["test"] for run in second.runs], b) if paired else None,
        )

    def _family(self, first: Sequence[ModelRow], second: Sequence[ModelRow]) -> list[Comparison]:
        family = [self.compare(a, b) for a, b in zip(first, second, strict=True)]
        corrected = stats.holm([None if c.test is None else c.test.two_sided for c in family])
        least = [len(family) * stats.smallest_p(len(c.first.scores()), len(c.second.scores())) for c in family]
        return [
            replace(c, corrected=p, least=min(1.0, smallest))
            for c, p, smallest in zip(family, corrected, least, strict=True)
        ]

    @cached_property
    def against_rgcn(self) -> list[Comparison]:
        """The first family: the four attention models against RGCN."""
        rgcn = self.row("RGCN")
        others = [row for row in self.five if row is not rgcn]
        return self._family(others, [rgcn] * len(others)) if rgcn else []

    @cached_property
    def against_constant(self) -> list[Comparison]:
        """The second family: the four attention models against themselves with constant attention."""
        constant = {row.model: row for row in self.nine if row.constant}
        rows = [row for row in self.five if row.model in constant]
        return self._family(rows, [constant[row.model] for row in rows])

    @cached_property
    def ranking(self) -> list[tuple[ModelRow, str]]:
        """RGCN and the four attention models by falling mean, each with the result of its test against the next.

        That is "significant" (one-sided, as in the paper), "tied", "no test", or "last".
        """
        order = sorted(self.five, key=lambda row: -row.scores().mean())
        steps = []
        for row, following in pairwise(order):
            test = self.tests[row.name, following.name]
            steps.append("no test" if test is None else "significant" if test.greater <= SIGNIFICANT else "tied")
        return list(zip(order, [*steps, "last"], strict=False))


def objectives(trials: Sequence[Record], failed: float | None = None) -> Array:
    """Return the mean validation metric of the finished trials, then ``failed`` once for each of the others."""
    values = [trial["objective"] for trial in trials if trial["status"] == "done"]
    return np.array(values + [failed] * (0 if failed is None else len(trials) - len(values)), float)


def _mean_auc(outputs: np.ndarray, labels: np.ndarray, counts: Array) -> Array:
    """Return the mean over runs and over tasks with both classes; ``outputs`` is ``[runs, G, tasks, 2]``."""
    scores = outputs[..., 1].astype(float) - outputs[..., 0]
    values = []
    for task in range(labels.shape[1]):
        known = labels[:, task] >= 0
        positive = labels[known, task] == 1
        if positive.any() and not positive.all():
            values += [stats.resampled_auc(run[known, task], positive, counts[:, known]) for run in scores]
    return np.asarray(np.nanmean(values, axis=0)) if values else np.full(len(counts), np.nan)
