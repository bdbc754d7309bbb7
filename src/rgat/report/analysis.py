"""What a study's numbers say: every comparison, fixed beforehand, made once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest

import numpy as np

from rgat.report.statistics import (
    SIGNIFICANT,
    Array,
    MannWhitney,
    difference_half_width,
    half_width,
    holm,
    mann_whitney,
    relative_change,
    resample_counts,
    resampled_accuracy,
    resampled_auc,
    smallest_p,
    superiority,
    superiority_interval,
    widened,
    wilcoxon,
)
from rgat.report.study import MODELS, Row, Study

RESAMPLINGS = 400  # of the test examples


@dataclass(frozen=True)
class Comparison:
    """One row against another on the test part.

    Attributes:
        first: row whose advantage is asked for.
        second: row it is compared with.
        difference: of the means.
        relative: the difference as a share of the second mean.
        above: how often a run of the first is above one of the second; with ``tie`` and ``below`` the sum is 1.
        tie: how often they are equal.
        below: how often it is below.
        above_interval: bootstrap interval of ``above``.
        seeds: half width of the difference's 95 % interval over seeds.
        examples: the same over seeds and test examples.
        test: Mann-Whitney U.
        paired: Wilcoxon's signed ranks, where both rows are the same trained models.
        corrected: the two-sided p-value after Holm, inside the comparison's family.
        least: the smallest that ``corrected`` could be with so many runs.
    """

    first: Row
    second: Row
    difference: float
    relative: float
    above: float
    tie: float
    below: float
    above_interval: tuple[float, float] | None
    seeds: float | None
    examples: float | None
    test: MannWhitney | None
    paired: float | None = None
    corrected: float | None = None
    least: float = 1.0

    @property
    def verdict(self) -> str:
        """Better, worse, or why neither can be said."""
        if self.test is None:
            return "no test: too few runs" if min(self._sizes) < 2 else "no test: no spread"
        if self.corrected is not None and self.corrected <= SIGNIFICANT:
            return "better" if self.test.greater < self.test.less else "worse"
        return "too few runs to tell" if self.least > SIGNIFICANT else "no conclusion"

    @property
    def _sizes(self) -> tuple[int, int]:
        return len(self.first.scores()), len(self.second.scores())


class Analysis:
    """A study with its comparisons; each is computed when first asked for."""

    def __init__(self, study: Study) -> None:
        self.study = study

    @cached_property
    def nine(self) -> list[Row]:
        """RGCN, the four models and their four constant rows, as far as they have runs."""
        return [row for row in self.study.rows if row.model in MODELS and row.setting is None]

    @cached_property
    def five(self) -> list[Row]:
        """RGCN and the four models with their attention."""
        return [row for row in self.nine if not row.constant]

    @cached_property
    def tests(self) -> dict[tuple[str, str], MannWhitney | None]:
        """Mann-Whitney U of each ordered pair of the nine rows."""
        scores = {row.name: row.scores() for row in self.nine}
        found: dict[tuple[str, str], MannWhitney | None] = {}
        for i, a in enumerate(scores):
            for b in list(scores)[i + 1 :]:
                found[a, b] = test = mann_whitney(scores[a], scores[b])
                found[b, a] = test and MannWhitney(test.less, test.greater, test.two_sided)
        return found

    @cached_property
    def replicates(self) -> dict[str, Array]:
        """Each row's mean score on resampled test examples, the same examples for all rows; where outputs are kept."""
        rng = np.random.default_rng(self.study.seed)
        labels = {split: np.array(part) for split, part in (self.study.description.get("test_labels") or {}).items()}
        counts = {split: resample_counts(rng, len(part), RESAMPLINGS) for split, part in labels.items() if len(part)}
        found = {}
        for row in self.study.rows:
            outputs = row.outputs()
            if outputs is None or any(
                split not in counts or outputs[split].shape[1] != len(labels[split]) for split in outputs
            ):
                continue
            score = _accuracy if self.study.is_node else _mean_auc
            sums = [len(runs) * score(runs, labels[split], counts[split]) for split, runs in outputs.items()]
            found[row.name] = np.sum(sums, axis=0) / len(row.runs)
        return found

    def half_widths(self, row: Row) -> tuple[float | None, float | None]:
        """Half of the 95 % interval of a row's mean over seeds, and over seeds and test examples."""
        seeds = half_width(row.scores())
        found = self.replicates.get(row.name)
        return seeds, None if seeds is None or found is None else widened(seeds, found)

    def compare(self, first: Row, second: Row) -> Comparison:
        """One row against another, outside of any family."""
        a, b = first.scores(), second.scores()
        same = first.model == second.model and first.setting == second.setting and len(a) == len(b)
        seeds = half_width(a - b) if same else difference_half_width(a, b)  # the same trained models: seed by seed
        known = first.name in self.replicates and second.name in self.replicates
        examples = None
        if seeds is not None and known:
            examples = widened(seeds, self.replicates[first.name] - self.replicates[second.name])
        pairs = None
        if first.model == second.model:  # the same trained models: seed by seed
            pairs = wilcoxon([run["scores"]["test"] for run in second.runs], b)
        rng = np.random.default_rng([self.study.seed, *map(ord, first.name + second.name)])
        return Comparison(
            first,
            second,
            float(a.mean() - b.mean()),
            relative_change(float(a.mean()), float(b.mean())) if b.mean() else float("nan"),
            *superiority(a, b),
            superiority_interval(a, b, rng),
            seeds,
            examples,
            mann_whitney(a, b),
            pairs,
        )

    def _family(self, pairs: list[tuple[Row, Row]]) -> list[Comparison]:
        family = [self.compare(first, second) for first, second in pairs]
        corrected = holm([None if c.test is None else c.test.two_sided for c in family])
        return [
            replace(
                c, corrected=p, least=min(1.0, len(family) * smallest_p(len(c.first.scores()), len(c.second.scores())))
            )
            for c, p in zip(family, corrected, strict=True)
        ]

    @cached_property
    def against_rgcn(self) -> list[Comparison]:
        """The first family: the four models against RGCN."""
        rgcn = self.study.row("RGCN")
        return self._family([(row, rgcn) for row in self.five if row is not rgcn] if rgcn else [])

    @cached_property
    def against_constant(self) -> list[Comparison]:
        """The second family: the four models against themselves with constant attention."""
        constant = {row.model: row for row in self.nine if row.constant}
        return self._family([(row, constant[row.model]) for row in self.five if row.model in constant])

    @cached_property
    def ranking(self) -> list[tuple[Row, str]]:
        """RGCN and the four models from best to worst mean, each with how it stands to the next.

        That is "significant" (one-sided, as in the paper), "tied", "no test", or "last".
        """
        order = sorted(self.five, key=lambda row: -row.scores().mean())
        ranks = []
        for row, following in zip_longest(order, order[1:]):
            if following is None:
                ranks.append((row, "last"))
            elif (test := self.tests[row.name, following.name]) is None:
                ranks.append((row, "no test"))
            else:
                ranks.append((row, "significant" if test.greater <= SIGNIFICANT else "tied"))
        return ranks


def _accuracy(outputs: np.ndarray, labels: np.ndarray, counts: Array) -> Array:
    return resampled_accuracy((outputs.argmax(-1) == labels).astype(float), counts)


def _mean_auc(outputs: np.ndarray, labels: np.ndarray, counts: Array) -> Array:
    """Mean over runs and over the tasks that have both classes: outputs ``[runs, G, tasks, 2]``."""
    scores = outputs[..., 1].astype(float) - outputs[..., 0]
    values = []
    for task in range(labels.shape[1]):
        known = labels[:, task] >= 0
        positive = labels[known, task] == 1
        if positive.any() and not positive.all():
            values += [resampled_auc(run[known, task], positive, counts[:, known]) for run in scores]
    return np.asarray(np.nanmean(values, axis=0)) if values else np.full(len(counts), np.nan)
