"""The comparisons of one study: which rows are compared is fixed beforehand, and each result is computed once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from rgat.report import statistics as stats
from rgat.report.statistics import SIGNIFICANT, Array, MannWhitney
from rgat.report.studies import MODELS, ModelRow, Study

RESAMPLINGS = 400  # bootstrap samples of the test examples


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


class Analysis:
    """A study with its comparisons, each computed on first use."""

    def __init__(self, study: Study) -> None:
        self.study = study

    @cached_property
    def nine(self) -> list[ModelRow]:
        """RGCN, the four attention models and their four rows with constant attention, where they have runs."""
        return [row for row in self.study.rows if row.model in MODELS and row.setting is None]

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
        rng = np.random.default_rng(self.study.seed)
        labels = {split: np.array(part) for split, part in (self.study.description.get("test_labels") or {}).items()}
        counts = {
            split: stats.resample_counts(rng, len(part), RESAMPLINGS) for split, part in labels.items() if len(part)
        }
        score = _accuracy if self.study.is_node else _mean_auc
        replicates = {}
        for row in self.study.rows:
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
        rng = np.random.default_rng([self.study.seed, *map(ord, first.name + second.name)])
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
        rgcn = self.study.row("RGCN")
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


def _accuracy(outputs: np.ndarray, labels: np.ndarray, counts: Array) -> Array:
    return stats.resampled_accuracy((outputs.argmax(-1) == labels).astype(float), counts)


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
