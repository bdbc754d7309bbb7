"""The tables of the report: scores, comparisons, p-values, tasks, search, settings and provenance."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from rgat.experiments.published import PUBLISHED, Score
from rgat.predictor.words import short
from rgat.report.formats import EMPTY, Cell, Column, Line, ReportTable
from rgat.report.statistics import SIGNIFICANT, Array, explained, mid_ranks, spread, welch_half_width
from rgat.report.studies import ENSEMBLE, MODELS, PER_CLASS, Comparison, ModelRow, Study, objectives, without_none

PART_TITLES = {"train": "Training", "valid": "Validation", "test": "Test"}
TONES = {"better": "good", "worse": "bad", "holds": "good", "does not hold": "bad"}
PAPER_RUNS = {True: 200, False: 6}  # of each of the paper's own rows: nodes; graphs (three splits, two seeds each)
FEWEST_TRIALS = 10  # with fewer, no option's importance differs from chance
MOST_CLASSES = 20  # of a confusion matrix on the page; the records have all
MOST_LINES = 40  # of an open table of classes
MEAN = ("mean", "standard deviation")  # fields of a column of scores
ENSEMBLE_NOTE = (
    "Mean of the test probabilities predicted by all runs of the five models, on each split; n and the interval count "
    "splits. Nothing was trained for it or selected on validation data: it was computed after the single models were "
    "scored."
)


def p_text(p: float | None) -> str:
    """Format a p-value."""
    return "-" if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"


def mean_cell(study: Study, values: Array, bold: bool = False, underline: bool = False) -> Cell:
    """Return mean and standard deviation."""
    if not len(values):
        return EMPTY
    mean, deviation = float(values.mean()), spread(values)
    text = study.number(mean) + ("" if deviation is None else f" ± {study.number(deviation)}")
    return Cell(text, (mean, deviation), bold, underline)


def _means(study: Study, scores: Callable[[ModelRow], Array]) -> dict[str, Cell]:
    """Return a cell for each row, the best of its group (if it has others) and the best of all marked, as printed."""
    values = {row: scores(row) for row in study.rows}
    printed = {row.name: float(study.number(v.mean())) for row, v in values.items() if len(v)}
    cells = {}
    for row in values:
        rivals = [printed[other.name] for other in values if other.group == row.group and other.name in printed]
        bold = len(rivals) > 1 and printed.get(row.name) == max(rivals)
        underline = len(printed) > 1 and printed.get(row.name) == max(printed.values())
        cells[row.name] = mean_cell(study, values[row], bold, underline)
    return cells


def count_cell(count: int) -> Cell:
    """Return a number of runs or trials."""
    return Cell(str(count), (count,))


def _value(value: float | None, form: Callable[[float], str]) -> Cell:
    return EMPTY if value is None else Cell(form(value), (value,))


def half_width_cell(study: Study, value: float | None) -> Cell:
    """Return half of an interval; empty without one."""
    return _value(value, lambda half: f"± {study.number(half)}")


def _name(row: ModelRow) -> Cell:
    return Cell(row.label, (row.name,), note=ENSEMBLE_NOTE if row.model == ENSEMBLE else None)


def _published(study: Study, row: ModelRow, part: str) -> Score | None:
    return None if row.setting else PUBLISHED.get(study.data, {}).get(row.name, {}).get(part)


def _any_published(study: Study, part: str = "test") -> bool:
    return any(_published(study, row, part) for row in study.rows)


def _paper(study: Study, row: ModelRow, part: str) -> Cell:
    published = _published(study, row, part)
    if published is None:
        return EMPTY
    text = f"{study.number(published.mean)} ± {study.number(published.spread)}"
    return Cell(text, (published.mean, published.spread), note=published.note)


def overview(studies: Sequence[Study], key: str, caption: str) -> ReportTable:
    """Return the paper's table of results: test scores on several data sets, beside those that the paper prints."""
    rows = {row.name: row for study in studies for row in study.rows}
    columns, cells = [Column("Model", text=True)], {name: [_name(row)] for name, row in rows.items()}
    for study in studies:
        means = _means(study, ModelRow.scores)
        columns += [Column(study.title, MEAN, study.key), Column("n", study=study.key)]
        columns += [Column("training", MEAN, study.key)] if study.is_node else []
        columns += [Column("paper", MEAN, study.key)] if _any_published(study) else []
        for name in rows:
            row = study.row(name)
            cells[name] += [means[name], count_cell(len(row.scores()))] if row else [EMPTY, EMPTY]
            if study.is_node:
                cells[name].append(mean_cell(study, row.scores("train")) if row else EMPTY)
            if _any_published(study):
                cells[name].append(_paper(study, row or rows[name], "test"))
    order = sorted(rows.values(), key=lambda row: row.sort_key)
    return ReportTable(key, caption, columns, [Line(cells[row.name], row.group, row.model) for row in order])


def scores(study: Study) -> ReportTable | None:
    """Return training, validation and test scores with intervals (appendix A of the paper); None without runs."""
    if not study.rows:
        return None
    columns, cells = [Column("Model", text=True)], {row: [_name(row)] for row in study.rows}
    for part, title in PART_TITLES.items():
        means = _means(study, lambda row, part=part: row.scores(part))  # type: ignore[misc]
        if all(cell is EMPTY for cell in means.values()):
            continue
        columns.append(Column(title, MEAN))
        published = _any_published(study, part)
        columns += [Column(f"{title}, paper", MEAN)] if published else []
        for row in study.rows:
            cells[row] += [means[row.name], *([_paper(study, row, part)] if published else [])]
    columns += [Column("n"), Column("± seeds"), Column("± seeds, examples")]
    columns += [Column("Test above paper", ("difference", "half width"))] if _any_published(study) else []
    for row in study.rows:
        cells[row] += [
            count_cell(len(row.scores())),
            *(half_width_cell(study, value) for value in study.half_widths(row)),
        ]
        cells[row] += [_above_paper(study, row)] if _any_published(study) else []
    unit = "in %" if study.percent else "as a fraction"
    notes = [
        f"Mean ± standard deviation of the {study.metric}, {unit}, over n runs. Bold: best of its group; underlined: "
        "best of all.",
        "± seeds: half width of the 95 % interval of the test mean over random seeds; ± seeds, examples: over random "
        "seeds and test examples.",
    ]
    if _any_published(study):
        notes.append(
            "Test above paper: our test mean minus the published mean, with Welch's 95 % interval over the seeds of "
            "both, or over our seeds alone where the paper does not give its number of seeds."
        )
    lines = [Line(cells[row], row.group, row.model) for row in study.rows]
    return ReportTable(f"{study.key}-scores", f"{study.title}: {study.metric}", columns, lines, notes)


def _above_paper(study: Study, row: ModelRow) -> Cell:
    published, values = _published(study, row, "test"), row.scores()
    if published is None or not len(values):
        return EMPTY
    difference, text, half = float(values.mean()) - published.mean, "", None
    if len(values) > 1:
        samples = [(spread(values) or 0.0, len(values))]
        samples += [(published.spread, PAPER_RUNS[study.is_node])] if row.model in MODELS else []
        half = welch_half_width(samples)
        text = f" ± {study.number(half)}"
    return Cell(study.number(difference, sign=True) + text, (difference, half))


def comparisons(study: Study, family: Sequence[Comparison], key: str, title: str) -> ReportTable | None:
    """Return one family of comparisons: conclusions, differences, effects and p-values; None if it is empty."""
    if not family:
        return None
    paired = any(comparison.first.model == comparison.second.model for comparison in family)
    titles = ["Difference", "relative", "± seeds", "± seeds, examples", "P(above)", "95 % interval", "P(tie)"]
    titles += ["P(below)", "p, one-sided", "p, two-sided", *(["p, paired"] if paired else []), "p, Holm"]
    columns = [Column("Model", text=True), Column("Conclusion", text=True)]
    columns += [Column(title, ("low", "high") if title == "95 % interval" else ()) for title in titles]
    lines = [Line(_comparison(study, c, paired), model=c.first.model) for c in family]
    notes = [
        "P(above), P(tie), P(below): share of pairs of runs in which the model scores higher than, the same as and "
        "lower than the one it is compared with, and a bootstrap interval of P(above).",
        "One-sided: the paper's Mann-Whitney U test of whether the model scores higher. Conclusions use the two-sided "
        f"p-values after Holm's correction in this family of {len(family)}, at 0.05.",
    ]
    if paired:
        notes.append("Paired: Wilcoxon's signed-rank test, because both rows are the same trained models.")
    return ReportTable(f"{study.key}-{key}", f"{study.title}: {title}", columns, lines, notes)


def _comparison(study: Study, c: Comparison, paired: bool) -> list[Cell]:
    p_values: list[float | None] = [None, None] if c.test is None else [c.test.greater, c.test.two_sided]
    p_values += [*([c.paired] if paired else []), c.corrected]
    interval = c.above_interval
    return [
        Cell(c.first.name),
        Cell(c.verdict, tone=TONES.get(c.verdict, "open")),
        Cell(study.number(c.difference, sign=True), (c.difference,)),
        Cell(f"{100 * c.relative:+.2f} %", (c.relative,)),
        half_width_cell(study, c.seeds),
        half_width_cell(study, c.examples),
        Cell(f"{c.above:.2f}", (c.above,)),
        EMPTY if interval is None else Cell(f"{interval[0]:.2f} to {interval[1]:.2f}", interval),
        Cell(f"{c.tie:.2f}", (c.tie,)),
        Cell(f"{c.below:.2f}", (c.below,)),
        *(_value(p, p_text) for p in p_values),
    ]


def significance(study: Study) -> ReportTable | None:
    """Return the one-sided p-values of each ordered pair of the nine rows (appendix E of the paper); None for one."""
    if len(study.nine) < 2:
        return None
    columns, lines = [Column("A", text=True)], []
    for row in study.nine:
        columns.append(Column(row.name, model=row.model))
        cells = [Cell(row.name)]
        for other in study.nine:
            test = study.tests.get((row.name, other.name))
            p = test.greater if test else None
            cells.append(EMPTY if p is None else Cell(p_text(p), (p,), bold=p <= SIGNIFICANT))
        lines.append(Line(cells, model=row.model))
    caption = f"{study.title}: one-sided p-values for A (row) outperforming B (column)"
    return ReportTable(f"{study.key}-significance", caption, columns, lines, folded=True)


def tasks(study: Study) -> ReportTable | None:
    """Return the test ROC-AUC of each task; None for nodes."""
    names = [task for task in study.description.get("tasks") or [] if any(len(r.task_scores(task)) for r in study.rows)]
    if not names:
        return None
    means = [_means(study, lambda row, task=task: row.task_scores(task)) for task in names]  # type: ignore[misc]
    lines = [
        Line([Cell(row.label, (row.name,)), *(cells[row.name] for cells in means)], row.group, row.model)
        for row in study.rows
    ]
    columns = [Column("Model", text=True), *(Column(task, MEAN) for task in names)]
    return ReportTable(f"{study.key}-tasks", f"{study.title}: test ROC-AUC of each task", columns, lines)


def classes(study: Study) -> ReportTable | None:
    """Return recall, precision and F1 of each class on the test part, and their means; None without class scores."""
    names, lines = _class_names(study), []
    for row, found in _with_class_scores(study):
        summary = [
            mean_cell(study, without_none(each[key] for each in found)) for key in ("balanced_accuracy", "macro_f1")
        ]
        lines.append(Line([_name(row), Cell("all, mean"), summary[0], EMPTY, summary[1], EMPTY], row.group, row.model))
        for number, name in enumerate(names):
            values = [without_none(each["classes"][key][number] for each in found) for key in PER_CLASS]
            tested = count_cell(sum(found[0]["confusion"][number]))
            cells = [Cell(row.label, (row.name,)), Cell(name), *(mean_cell(study, each) for each in values), tested]
            lines.append(Line(cells, row.group, row.model))
    if not lines:
        return None
    columns = [Column("Model", text=True), Column("Class", text=True)]
    columns += [*(Column(title, MEAN) for title in ("Recall", "Precision", "F1")), Column("nodes")]
    notes = [
        "Mean ± standard deviation over runs, in %. The mean recall of all classes is the balanced accuracy, and their "
        "mean F1 the macro-F1. A class that is never predicted has no precision."
    ]
    caption = f"{study.title}: classes of the test part"
    return ReportTable(f"{study.key}-classes", caption, columns, lines, notes, folded=len(lines) > MOST_LINES)


def confusions(study: Study) -> ReportTable | None:
    """Return the confusion matrices of the test part; None without class scores, or with too many classes."""
    names, lines = _class_names(study), []
    for row, found in _with_class_scores(study):
        counts = np.mean([each["confusion"] for each in found], axis=0)
        for number, name in enumerate(names):
            cells = [Cell(f"{v:.4g}", (float(v),), bold=number == k) for k, v in enumerate(counts[number])]
            lines.append(Line([Cell(row.label, (row.name,)), Cell(name), *cells], row.group, row.model))
    if not lines or len(names) > MOST_CLASSES:
        return None
    columns = [Column("Model", text=True), Column("True class", text=True), *map(Column, names)]
    notes = ["Nodes of each true class (row) by predicted class (column), mean over runs; bold: predicted correctly."]
    caption = f"{study.title}: confusion matrices of the test part"
    return ReportTable(f"{study.key}-confusions", caption, columns, lines, notes, True)


def _with_class_scores(study: Study) -> list[tuple[ModelRow, list[dict[str, Any]]]]:
    return [(row, found) for row in study.rows if not row.constant and (found := row.class_scores())]


def _class_names(study: Study) -> list[str]:
    """Return short names of the classes, or the whole names where the short ones are not distinct."""
    names = study.description.get("classes") or []
    shorter = list(map(short, names))
    return shorter if len(set(shorter)) == len(names) else names


def search(study: Study) -> ReportTable | None:
    """Return the number of trials and the validation scores of each search; None without trials."""
    if not study.searched:
        return None
    lines = []
    for model in study.searched:
        trials, prior = study.trials_of(model), study.trials_of(model, prior_only=True)
        done = objectives(trials)
        cells = [Cell(model), *map(count_cell, (len(trials), len(prior), len(trials) - len(done)))]
        for values, reduce in ((done, np.max), (done, np.median), (objectives(prior), np.median)):
            cells.append(_value(float(reduce(values)) if len(values) else None, study.number))
        lines.append(Line(cells, model=model))
    titles = ("trials", "from the prior", "failed", "best", "median", "median from the prior")
    columns = [Column("Model", text=True), *map(Column, titles)]
    notes = ["A trial's score is its mean validation metric over the folds; test data are not used."]
    return ReportTable(f"{study.key}-search", f"{study.title}: the search", columns, lines, notes)


def importance(study: Study) -> ReportTable | None:
    """Return the share of the ranking of trials that each option explains alone; None with too few trials."""
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
    models = [model for model in study.searched if any(model in by_model for by_model in shares.values())]
    lines = []
    for option in sorted(shares, key=lambda option: (-max(shares[option].values()), option)):
        values = [shares[option].get(model) for model in models]
        lines.append(option_line(option, [_value(v, "{:.0%}".format) for v in values]))
    columns = [Column("Option", text=True), *(Column(model, model=model) for model in models)]
    notes = [
        "Share of the variance of the trials' ranks that an option explains alone, corrected for chance. The sampler "
        "prefers options with good scores, so small shares mean little."
    ]
    return ReportTable(f"{study.key}-importance", f"{study.title}: what mattered in the search", columns, lines, notes)


def settings(study: Study) -> ReportTable | None:
    """Return the options of the final runs; None where none are recorded."""
    first_runs = {row: row.runs[0] for row in study.rows if not row.constant and row.runs[0].get("config")}
    options = sorted({option for run in first_runs.values() for option in run["config"]})
    if not options:
        return None
    lines = [option_line(o, [option_cell(run["config"].get(o)) for run in first_runs.values()]) for o in options]
    columns = [Column("Option", text=True), *(Column(row.name, model=row.model) for row in first_runs)]
    selected_on = {row.name: run.get("selected_on") for row, run in first_runs.items()}
    notes = [f"{name} was selected on: {sentence}" for name, sentence in selected_on.items() if sentence]
    return ReportTable(f"{study.key}-settings", f"{study.title}: settings of the final runs", columns, lines, notes)


def option_line(option: str, cells: list[Cell]) -> Line:
    """Return the line of an option of a configuration."""
    return Line([Cell(option.replace("_", " "), (option,)), *cells])


def option_cell(value: object) -> Cell:
    """Return the value of an option; empty where it has none."""
    if value is None:
        return EMPTY
    if isinstance(value, float):
        return Cell(f"{value:.4g}", (value,))
    value = ", ".join(map(str, value)) if isinstance(value, list) else value
    return Cell(str(value), (value if isinstance(value, int) else str(value),))


def provenance(studies: Sequence[Study]) -> list[ReportTable]:
    """Return three tables: plan and extent of the experiments, versions and devices, data files with their hashes."""
    experiments, versions, files = [], [], []
    for study in studies:
        title, records = Cell(study.title), [*study.runs, *study.trials]
        planned = [study.budget, *(study.description.get(key) for key in ("trials", "folds", "search_seed", "seeds"))]
        hours = sum(record.get("seconds") or 0.0 for record in records) / 3600
        done = [len(study.trials), len(study.runs), f"{hours:.2f}"]
        repeated = f"rgat reproduce {study.data} --budget {study.budget}{' --space extended' * study.is_extended}"
        command = study.description.get("command") or repeated
        cells = [EMPTY if value is None else Cell(str(value)) for value in (*planned, *done)]
        experiments.append([title, *cells, Cell(str(command))])
        installed = [sorted((record.get("versions") or {}).items()) for record in records]
        texts = (", ".join(f"{name} {version}" for name, version in items) for items in installed)
        versions.append([title, _distinct(texts), _distinct(str(record.get("device") or "") for record in records)])
        hashes = sorted((study.description.get("data_hashes") or {}).items())
        files += [[title, Cell(name), Cell(str(sha))] for name, sha in hashes]
        files += [] if hashes else [[title, Cell("made by rgat itself"), EMPTY]]
    titles = ("budget", "trials per model", "folds", "search seed", "seeds", "trials found", "runs found", "hours")
    columns = [Column("Data set", text=True), *map(Column, titles), Column("Command", text=True)]
    notes = ["Hours are the sum over all trials and runs, wherever they ran."]
    return [
        ReportTable("provenance-experiments", "Experiments", columns, list(map(Line, experiments)), notes),
        _text_table("provenance-versions", "What it ran on", ("Data set", "Versions", "Devices"), versions),
        _text_table("provenance-data", "Data", ("Data set", "File", "SHA-256"), files),
    ]


def _text_table(key: str, caption: str, titles: Sequence[str], lines: Iterable[list[Cell]]) -> ReportTable:
    return ReportTable(key, caption, [Column(title, text=True) for title in titles], list(map(Line, lines)))


def _distinct(texts: Iterable[str]) -> Cell:
    return Cell("; ".join(sorted(set(filter(None, texts)))) or "-")
