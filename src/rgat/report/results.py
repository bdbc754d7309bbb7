"""The tables of the report, made from studies and their comparisons."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from rgat.experiments.published import PUBLISHED, Published
from rgat.report.analysis import Analysis, Comparison
from rgat.report.statistics import Array, explained, mid_ranks, spread, welch_half_width
from rgat.report.study import MODELS, PARTS, Row, Study, objectives
from rgat.report.tables import EMPTY, Cell, Column, Line, Table

PART_TITLES = {"train": "Training", "valid": "Validation", "test": "Test"}
TONES = {"better": "good", "worse": "bad", "holds": "good", "does not hold": "bad"}
PAPER_RUNS = {True: 200, False: 6}  # of each of the paper's own rows: nodes; three splits of graphs, two seeds each
FEWEST_TRIALS = 10  # below, no option's importance can be told from chance


def number(study: Study, value: float, sign: bool = False) -> str:
    """A score as the paper prints it: accuracies in percent, ROC-AUC as a fraction."""
    form = "+" if sign else ""
    return f"{100 * value:{form}.2f}" if study.percent else f"{value:{form}.3f}"


def p_text(p: float | None) -> str:
    """A p-value as it is read."""
    return "-" if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"


def _score(study: Study, values: Array, bold: bool = False, underline: bool = False) -> Cell:
    if not len(values):
        return EMPTY
    mean, deviation = float(values.mean()), spread(values)
    text = number(study, mean) + ("" if deviation is None else f" ± {number(study, deviation)}")
    return Cell(text, (mean, deviation), bold, underline)


def _printed(study: Study, row: Row, part: str) -> Published | None:
    return None if row.setting else PUBLISHED.get(study.data, {}).get(row.name, {}).get(part)


def _paper(study: Study, row: Row, part: str) -> Cell:
    printed = _printed(study, row, part)
    if printed is None:
        return EMPTY
    text = f"{number(study, printed.mean)} ± {number(study, printed.spread)}"
    return Cell(text, (printed.mean, printed.spread), note=printed.note)


def _best(study: Study, rows: Sequence[Row], values: Callable[[Row], Array]) -> dict[str, tuple[bool, bool]]:
    """Whether each row is best in its class, where that has others, and best of all; ties as printed."""
    means = {row.name: float(number(study, values(row).mean())) for row in rows if len(values(row))}
    marks = {}
    for row in rows:
        if row.name in means:
            rivals = [means[other.name] for other in rows if other.group == row.group and other.name in means]
            best = means[row.name] == max(means.values()) and len(means) > 1
            marks[row.name] = (len(rivals) > 1 and means[row.name] == max(rivals), best)
    return marks


def overview(analyses: Sequence[Analysis], key: str, caption: str) -> Table:
    """The paper's table of results: test scores of all rows on several data sets, its own values beside ours."""
    rows = {row.name: row for analysis in analyses for row in analysis.study.rows}
    order = sorted(rows, key=lambda name: rows[name].place)
    columns, parts = [Column("Model", text=True)], []
    for study in (analysis.study for analysis in analyses):
        columns += [Column(study.title, ("mean", "standard deviation"), study.key), Column("n", study=study.key)]
        columns += [Column("training", ("mean", "standard deviation"), study.key)] if study.is_node else []
        published = any(_printed(study, row, "test") for row in study.rows)
        columns += [Column("paper", ("mean", "standard deviation"), study.key)] if published else []
        parts.append((study, published, _best(study, study.rows, Row.scores)))
    lines = []
    for name in order:
        cells = [Cell(rows[name].label, (name,), note=rows[name].note)]
        for study, published, best in parts:
            row = study.row(name)
            scores = row.scores() if row else np.empty(0)
            cells += [
                _score(study, scores, *best.get(name, (False, False))),
                Cell(str(len(scores)), (len(scores),)) if row else EMPTY,
            ]
            cells += [_score(study, row.scores("train")) if row else EMPTY] if study.is_node else []
            cells += [_paper(study, row or rows[name], "test")] if published else []
        lines.append(Line(cells, rows[name].group, rows[name].model))
    return Table(key, caption, columns, lines)


def scores(analysis: Analysis) -> Table:
    """Training, validation and test scores of one study with intervals: appendix A of the paper, for any data set."""
    study = analysis.study
    parts = [part for part in PARTS if any(len(row.scores(part)) for row in study.rows)]
    columns = [Column("Model", text=True)]
    for part in parts:
        columns.append(Column(PART_TITLES[part], ("mean", "standard deviation")))
        if any(_printed(study, row, part) for row in study.rows):
            columns.append(Column(f"{PART_TITLES[part]}, paper", ("mean", "standard deviation")))
    columns += [Column("n"), Column("± seeds"), Column("± seeds, examples")]
    published = any(_printed(study, row, "test") for row in study.rows)
    columns += [Column("Test above paper", ("difference", "half width"))] if published else []
    best = {part: _best(study, study.rows, lambda row, part=part: row.scores(part)) for part in parts}  # type: ignore[misc]
    lines = []
    for row in study.rows:
        cells = [Cell(row.label, (row.name,), note=row.note)]
        for part in parts:
            cells.append(_score(study, row.scores(part), *best[part].get(row.name, (False, False))))
            if any(_printed(study, other, part) for other in study.rows):
                cells.append(_paper(study, row, part))
        cells.append(Cell(str(len(row.scores())), (len(row.scores()),)))
        cells += [_half(study, value) for value in analysis.half_widths(row)]
        cells += [_above_paper(study, row)] if published else []
        lines.append(Line(cells, row.group, row.model))
    unit = "in %" if study.percent else "as a fraction"
    notes = [
        f"Mean ± standard deviation of the {study.metric}, {unit}, over n runs. Bold: best in its class; underlined: "
        "best of all.",
        "The last columns are half widths of 95 % intervals of the test mean: for other seeds; for other seeds and "
        "other test examples of the same kind.",
    ]
    if published:
        notes.append(
            "Above paper: our test mean less the printed one, with Welch's 95 % interval over the seeds of both where "
            "the paper says how many it had, else over ours."
        )
    return Table(f"{study.key}-scores", f"{study.title}: {study.metric}", columns, lines, notes)


def _above_paper(study: Study, row: Row) -> Cell:
    printed, values = _printed(study, row, "test"), row.scores()
    if printed is None or not len(values):
        return EMPTY
    difference, text, half = float(values.mean()) - printed.mean, "", None
    if len(values) > 1:
        samples = [(spread(values) or 0.0, len(values))]
        samples += [(printed.spread, PAPER_RUNS[study.is_node])] if row.model in MODELS else []
        half = welch_half_width(samples)
        text = f" ± {number(study, half)}"
    return Cell(number(study, difference, sign=True) + text, (difference, half))


def _half(study: Study, value: float | None) -> Cell:
    return EMPTY if value is None else Cell(f"± {number(study, value)}", (value,))


def comparisons(analysis: Analysis, family: Sequence[Comparison], key: str, caption: str) -> Table:
    """One family of comparisons, with everything that can be said about each."""
    study = analysis.study
    paired = any(comparison.first.model == comparison.second.model for comparison in family)
    columns = [
        Column("Model", text=True),
        Column("Conclusion", text=True),
        Column("Difference"),
        Column("relative"),
        Column("± seeds"),
        Column("± seeds, examples"),
        Column("P(above)"),
        Column("95 % interval", ("low", "high")),
        Column("P(tie)"),
        Column("P(below)"),
        Column("p, one-sided"),
        Column("p, two-sided"),
        *([Column("p, paired")] if paired else []),
        Column("p, Holm"),
    ]
    lines = [_comparison(study, comparison, paired) for comparison in family]
    notes = [
        "P(above), P(tie), P(below): how a run of the first compares with one of the second; a bootstrap interval.",
        "One-sided: the paper's Mann-Whitney U test that the first is above. Conclusions are drawn from the two-sided "
        f"p-values after Holm's correction inside this family of {len(family)}, at 0.05.",
    ]
    if paired:
        notes.append("Paired: Wilcoxon's signed ranks, since both rows are the same trained models.")
    return Table(f"{study.key}-{key}", caption, columns, lines, notes)


def _comparison(study: Study, c: Comparison, paired: bool) -> Line:
    p_values: list[float | None] = [None, None] if c.test is None else [c.test.greater, c.test.two_sided]
    p_values += [*([c.paired] if paired else []), c.corrected]
    interval = c.above_interval
    cells = [
        Cell(c.first.name),
        Cell(c.verdict, tone=TONES.get(c.verdict, "open")),
        Cell(number(study, c.difference, sign=True), (c.difference,)),
        Cell(f"{100 * c.relative:+.2f} %", (c.relative,)),
        _half(study, c.seeds),
        _half(study, c.examples),
        Cell(f"{c.above:.2f}", (c.above,)),
        EMPTY if interval is None else Cell(f"{interval[0]:.2f} to {interval[1]:.2f}", interval),
        Cell(f"{c.tie:.2f}", (c.tie,)),
        Cell(f"{c.below:.2f}", (c.below,)),
        *(EMPTY if p is None else Cell(p_text(p), (p,)) for p in p_values),
    ]
    return Line(cells, model=c.first.model)


def significance(analysis: Analysis) -> Table:
    """One-sided p-values of each ordered pair of the nine rows, as in appendix E of the paper."""
    study, names = analysis.study, [row.name for row in analysis.nine]
    lines = []
    for row in analysis.nine:
        tests = [None if other == row.name else analysis.tests[row.name, other] for other in names]
        p_values = [
            EMPTY if t is None else Cell(p_text(t.greater), (t.greater,), bold=t.greater <= 0.05) for t in tests
        ]
        lines.append(Line([Cell(row.name), *p_values], model=row.model))
    columns = [Column("A", text=True), *(Column(row.name, model=row.model) for row in analysis.nine)]
    caption = f"{study.title}: p-values that A (line) outperforms B (column)"
    return Table(f"{study.key}-significance", caption, columns, lines, folded=True)


def tasks(analysis: Analysis) -> Table | None:
    """ROC-AUC of each task on the test part; None for nodes."""
    study = analysis.study
    names = [task for task in study.description.get("tasks") or [] if any(len(r.task_scores(task)) for r in study.rows)]
    if not names:
        return None
    best = {task: _best(study, study.rows, lambda row, task=task: row.task_scores(task)) for task in names}  # type: ignore[misc]
    lines = [
        Line(
            [
                Cell(row.label, (row.name,)),
                *(_score(study, row.task_scores(t), *best[t].get(row.name, (False, False))) for t in names),
            ],
            row.group,
            row.model,
        )
        for row in study.rows
    ]
    columns = [Column("Model", text=True), *(Column(task, ("mean", "standard deviation")) for task in names)]
    return Table(f"{study.key}-tasks", f"{study.title}: test ROC-AUC of each task", columns, lines)


def search(analysis: Analysis) -> Table | None:
    """What each search found; None without trials."""
    study = analysis.study
    if not study.searched:
        return None
    lines = []
    for model in study.searched:
        every, prior = study.trials_of(model), study.trials_of(model, prior_only=True)
        done = objectives(every)
        failed = len(every) - len(done)
        cells = [Cell(model), *(Cell(str(count), (count,)) for count in (len(every), len(prior), failed))]
        for values, of in ((done, np.max), (done, np.median), (objectives(prior), np.median)):
            cells.append(Cell(number(study, float(of(values))), (float(of(values)),)) if len(values) else EMPTY)
        lines.append(Line(cells, model=model))
    titles = ("trials", "from the prior", "failed", "best", "median", "median from the prior")
    columns = [Column("Model", text=True), *(Column(title) for title in titles)]
    notes = ["A trial's score is its mean validation metric over the folds. Test data have no part in it."]
    return Table(f"{study.key}-search", f"{study.title}: the search", columns, lines, notes)


def importance(analysis: Analysis) -> Table | None:
    """How much of the ranking of trials each option explains alone; None where there are too few trials."""
    study = analysis.study
    shares: dict[str, dict[str, float]] = {}
    for model in study.searched:
        trials = study.trials_of(model)
        if len(trials) < FEWEST_TRIALS:
            continue
        ranks = mid_ranks([t["objective"] if t["status"] == "done" else -np.inf for t in trials])  # failed: lowest
        for option in sorted({option for trial in trials for option in trial.get("config") or {}}):
            share = explained([(t.get("config") or {}).get(option) for t in trials], ranks)
            if share is not None:
                shares.setdefault(option, {})[model] = share
    if not shares:
        return None
    models = [model for model in study.searched if any(model in found for found in shares.values())]
    order = sorted(shares, key=lambda option: (-max(shares[option].values()), option))
    lines = [
        Line(
            [
                Cell(option.replace("_", " "), (option,)),
                *(
                    Cell(f"{shares[option][m]:.0%}", (shares[option][m],)) if m in shares[option] else EMPTY
                    for m in models
                ),
            ]
        )
        for option in order
    ]
    columns = [Column("Option", text=True), *(Column(model, model=model) for model in models)]
    notes = [
        "Share of the variance of the trials' ranks that an option explains alone, corrected for chance. The sampler "
        "looks more often where scores are good, so small shares say little."
    ]
    return Table(f"{study.key}-importance", f"{study.title}: what mattered in the search", columns, lines, notes)


def settings(analysis: Analysis) -> Table | None:
    """The options of the final runs, those that some model changes; None where nothing is recorded."""
    study = analysis.study
    rows = [row for row in study.rows if not row.constant and row.runs and row.runs[0].get("config")]
    configs = {row.name: row.runs[0]["config"] for row in rows}
    options = sorted({option for config in configs.values() for option in config})
    if not options:
        return None
    lines = [
        Line([Cell(option.replace("_", " "), (option,)), *(_option(config.get(option)) for config in configs.values())])
        for option in options
    ]
    columns = [Column("Option", text=True), *(Column(row.name, model=row.model) for row in rows)]
    chosen = {row.name: row.runs[0].get("selected_on") for row in rows}
    notes = [f"{name} was selected on: {sentence}" for name, sentence in chosen.items() if sentence]
    return Table(f"{study.key}-settings", f"{study.title}: settings of the final runs", columns, lines, notes)


def _option(value: object) -> Cell:
    if value is None:
        return EMPTY
    if isinstance(value, float):
        return Cell(f"{value:.4g}", (value,))
    return Cell(str(value), (value if isinstance(value, int) else str(value),))
