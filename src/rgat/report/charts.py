"""The charts of the report: bars, p-values, differences, distributions over the search and learning curves.

Each is None where the records do not allow it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rgat.experiments.published import PUBLISHED
from rgat.report.formats import COLOURS, Chart, plain
from rgat.report.statistics import SIGNIFICANT, Array, cumulative, expected_best, spread
from rgat.report.studies import (
    ADDITIVE,
    FURTHER,
    GROUPS,
    MODELS,
    MULTIPLICATIVE,
    Comparison,
    ModelRow,
    Study,
    objectives,
)
from rgat.report.tables import p_text

GROUP_COLOURS = {group: COLOURS[name] for group, name in zip(GROUPS, ("blue", "yellow", "red", "muted"), strict=True)}
# The paper's colours, and its solid and dashed lines; markers distinguish lines without colour.
_DASHED = {"linestyle": (0, (4, 2)), "markerfacecolor": "none"}
LINE_STYLES: dict[str, dict[str, Any]] = {
    "RGCN": {"color": COLOURS["search-green"], "marker": "o"},
    "additive WIRGAT": {"color": COLOURS["search-orange"], "marker": "s"},
    "additive ARGAT": {"color": COLOURS["search-blue"], "marker": "^"},
    "multiplicative WIRGAT": {"color": COLOURS["search-orange"], "marker": "s", **_DASHED},
    "multiplicative ARGAT": {"color": COLOURS["search-blue"], "marker": "^", **_DASHED},
}


def _scaled(study: Study, values: Any) -> Array:
    return np.asarray(values, float) * (100 if study.percent else 1)


def _unit(study: Study) -> str:
    return f"{plain(study.metric)}, %" if study.percent else plain(study.metric)


def bars(study: Study) -> Chart | None:
    """Draw the mean and standard deviation of every row's test score, in the paper's colours."""
    rows = study.rows
    if not rows:
        return None
    printed = PUBLISHED.get(study.data, {})
    guessing = (
        f" Dotted: always predicting the largest class, {study.number(study.chance_score)}." if study.is_node else ""
    )
    others = "; grey: beyond the paper" if any(row.group == FURTHER for row in rows) else ""
    chart = Chart(
        f"{study.key}-bars",
        f"{study.title}: test {study.metric}.",
        "Mean and standard deviation over runs. Blue: baselines; yellow: additive attention; red: multiplicative "
        f"attention; hatched: the same models with constant attention{others}."
        f"{' Diamonds: as published.' if printed else ''}{guessing}",
        0.9 + 0.26 * len(rows),
    )
    axes, top = chart.axes, 100.0 if study.percent else 1.0
    published = {row.name: float(_scaled(study, printed[row.name]["test"].mean)) for row in rows if row.name in printed}
    means = _scaled(study, [row.scores().mean() for row in rows])
    deviations = _scaled(study, [spread(row.scores()) or 0.0 for row in rows])
    low = min([*(means - deviations), *published.values()])
    start = float(np.floor((low - 0.15 * (top - low)) / (top / 20)) * (top / 20))
    start = start if start > 0.3 * top else 0.0  # bars from zero compare better, unless the axis would be mostly bar
    if study.is_node:
        start = min(start, float(np.floor(100 * study.chance_score / 5) * 5))
    for i, row in enumerate(rows):
        _bar(chart, study, row, i, start, published.get(row.name))
    if study.is_node:
        axes.axvline(100 * study.chance_score, color=COLOURS["muted"], linestyle=":", linewidth=1)
    axes.set_xlim(start, max(top if study.percent else 0.0, float((means + deviations).max()) + 0.02 * top))
    _name_lines(chart, rows, [row.name if row.group in (ADDITIVE, MULTIPLICATIVE) else row.label for row in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlabel(_unit(study) + (f" (axis begins at {start:g})" if start else ""))
    return chart


def _bar(chart: Chart, study: Study, row: ModelRow, i: int, start: float, published: float | None) -> None:
    """Draw line ``i`` of the bar chart: a row's bar, standard deviation, number and published value."""
    axes, scores, colour = chart.axes, row.scores(), GROUP_COLOURS[row.group]
    mean, deviation = float(_scaled(study, scores.mean())), spread(scores)
    look: dict[str, Any] = {"color": "none", "hatch": "////"} if row.constant else {"color": colour}
    bar = axes.barh(i, mean - start, left=start, height=0.68, edgecolor=colour, linewidth=0.8, **look)[0]
    text = study.number(float(scores.mean()))
    more = ", one run" if deviation is None else f" ± {study.number(deviation)}, {len(scores)} runs"
    chart.mark(bar, model=row.model, tip=f"{row.name}: {text}{more}")
    if deviation is not None:
        reach = float(_scaled(study, deviation))
        spreads = axes.errorbar(mean, i, xerr=reach, color=COLOURS["ink"], linewidth=0.9, capsize=2)
        for artist in (*spreads[1], *spreads[2]):
            chart.mark(artist, model=row.model)
    if published is not None:
        diamond = axes.plot(published, i, "D", color=COLOURS["ink"], markerfacecolor="none", markersize=4.5)[0]
        chart.mark(diamond, model=row.model, tip=f"{row.name} as published: {published:.4g}")
    _write_right(chart, row, i, text, 8.5)


def _write_right(chart: Chart, row: ModelRow, i: int, text: str, size: float) -> None:
    """Write text to the right of line ``i``."""
    axes = chart.axes
    label = axes.text(1.015, i, text, transform=axes.get_yaxis_transform(), va="center", fontsize=size)
    chart.mark(label, model=row.model)


def _name_lines(chart: Chart, rows: Sequence[ModelRow], names: Sequence[str]) -> None:
    """Name the lines of a chart that has one for each row, from top to bottom."""
    axes = chart.axes
    axes.set_yticks(range(len(rows)), [plain(name) for name in names])
    _mark_labels(chart, axes.get_yticklabels(), rows)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="y", visible=False)


def _mark_labels(chart: Chart, labels: Sequence[Any], rows: Sequence[ModelRow]) -> None:
    for label, row in zip(labels, rows, strict=True):
        chart.mark(label, model=row.model)


def p_values(study: Study) -> Chart | None:
    """Draw the one-sided p-values of each ordered pair of the nine rows."""
    rows = study.nine
    if len(rows) < 2:
        return None
    chart = Chart(
        f"{study.key}-p-values",
        f"{study.title}: does A outperform B?",
        "p-value of the one-sided Mann-Whitney U test over final runs, A in the row, B in the column. Shaded and "
        "bold: at most 0.05.",
        1.7 + 0.33 * len(rows),
        tall=True,
    )
    axes = chart.axes
    for i, first in enumerate(rows):
        for j, second in enumerate(rows):
            test = study.tests.get((first.name, second.name))
            _p_value(chart, (i, first), (j, second), test.greater if test else None)
    axes.set_xlim(-0.5, len(rows) - 0.5)
    names = [row.name.replace("additive", "add.").replace("multiplicative", "mult.") for row in rows]
    axes.set_xticks(range(len(rows)), names, rotation=40, ha="right", rotation_mode="anchor")
    _mark_labels(chart, axes.get_xticklabels(), rows)
    _name_lines(chart, rows, names)
    axes.tick_params(length=0)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.set_xlabel("B")
    axes.set_ylabel("A")
    return chart


def _p_value(chart: Chart, line: tuple[int, ModelRow], column: tuple[int, ModelRow], p: float | None) -> None:
    from matplotlib.patches import Rectangle

    (i, first), (j, second) = line, column
    significant = p is not None and p <= SIGNIFICANT
    fill = "none" if p is None else (COLOURS["accent"], 0.45 if significant else 0.02 + 0.10 * (1 - p))
    cell = Rectangle((j - 0.5, i - 0.5), 1, 1, facecolor=fill, edgecolor=COLOURS["line"], linewidth=0.6)
    chart.axes.add_patch(cell)
    tip = f"{first.name} outperforms {second.name}: {'no test' if p is None else f'p = {p:.3g}'}"
    chart.mark(cell, model=first.model, other=second.model, tip=first.name if first is second else tip)
    if p is not None:
        text = "<.001" if p < 0.001 else f"{p:.3f}".removeprefix("0") if p < 0.9995 else "1"
        weight = "bold" if significant else "normal"
        label = chart.axes.text(j, i, text, ha="center", va="center", fontsize=7.5, fontweight=weight)
        chart.mark(label, model=first.model, other=second.model)


def differences(study: Study, family: Sequence[Comparison], key: str, title: str) -> Chart | None:
    """Draw the differences of means in a family of comparisons, with both intervals."""
    if not family:
        return None
    chart = Chart(
        f"{study.key}-difference-{key}",
        f"{study.title}: {title}.",
        "Difference of the mean test scores. Thick: 95 % interval over seeds; thin: over seeds and test examples.",
        0.95 + 0.34 * len(family),
    )
    axes = chart.axes
    axes.axvline(0, color=COLOURS["muted"], linewidth=0.9)
    for i, c in enumerate(family):
        difference = float(_scaled(study, c.difference))
        for half, width in ((c.examples, 1.2), (c.seeds, 4.0)):
            if half is not None:
                ends = difference + np.array([-1, 1]) * float(_scaled(study, half))
                line = axes.plot(ends, [i, i], color=GROUP_COLOURS[c.first.group], linewidth=width)[0]
                chart.mark(line, model=c.first.model)
        point = axes.plot(difference, i, "o", color=COLOURS["ink"], markersize=5)[0]
        tip = f"{c.first.name} against {c.second.name}: {study.number(c.difference, sign=True)}, {c.verdict}"
        chart.mark(point, model=c.first.model, tip=f"{tip}, p (Holm) {p_text(c.corrected)}")
        _write_right(chart, c.first, i, c.verdict, 8)
    _name_lines(chart, [c.first for c in family], [c.first.name for c in family])
    axes.set_xlabel("percentage points" if study.percent else plain(study.metric))
    return chart


def _searched(study: Study) -> list[str]:
    return [model for model in study.searched if model in LINE_STYLES]


def _line_chart(
    study: Study,
    words: tuple[str, str, str],  # key, title, caption
    labels: tuple[str, str],  # of the x axis and the y axis
    lines: Mapping[str, tuple[Any, Array]],  # x and y by model
    bands: Mapping[str, tuple[Array, Array]],  # lower and upper edge by model
    **options: Any,
) -> Chart:
    """Draw a line for each model, a band around it where there is one, and a legend below the axes."""
    key, title, caption = words
    chart = Chart(f"{study.key}-{key}", f"{study.title}: {title}.", caption, 3.5, lines=True)
    for model, (x, y) in lines.items():
        style = {"markevery": 0.2, "markersize": 4, "linewidth": 1.5} | options | LINE_STYLES[model]
        chart.mark(chart.axes.plot(x, y, label=model, **style)[0], model=model, line=model)
        if model in bands:
            band = chart.axes.fill_between(x, *bands[model], color=style["color"], alpha=0.10, linewidth=0)
            chart.mark(band, model=model)
    chart.axes.set_xlabel(labels[0])
    chart.axes.set_ylabel(labels[1])
    legend = chart.figure.legend(loc="outside lower center", ncols=2, handlelength=3)
    for model, handle, text in zip(lines, legend.get_lines(), legend.get_texts(), strict=True):
        chart.mark(handle, model=model)
        chart.mark(text, model=model)
    return chart


def distribution(study: Study, prior_only: bool) -> Chart | None:
    """Draw the cumulative distribution of the trials' mean validation metric, failed trials at the bottom."""
    trials = {model: study.trials_of(model, prior_only) for model in _searched(study)}
    values = {model: done for model, records in trials.items() if len(done := objectives(records))}
    if not values:
        return None
    pooled = _scaled(study, np.concatenate(list(values.values())))
    margin = 0.03 * max(float(np.ptp(pooled)), 1e-3)
    left, right = float(pooled.min()) - margin, float(pooled.max()) + margin
    lines = {}
    for model in values:
        failed = len(trials[model]) - len(values[model])
        x, share = cumulative(values[model], failed)
        lines[model] = np.r_[left, _scaled(study, x), right], np.r_[failed / len(trials[model]), share, 1.0]
    which = "only those drawn from the prior" if prior_only else "all trials"
    caption = "Share of trials at or below a validation score; failed trials count at the left edge. Lower is better."
    words = (f"distribution-{'prior' if prior_only else 'all'}", f"distribution over the search, {which}", caption)
    labels = (f"mean validation {_unit(study)}", "share of trials")
    chart = _line_chart(study, words, labels, lines, {}, drawstyle="steps-post")
    chart.axes.set_xlim(left, right)
    chart.axes.set_ylim(-0.02, 1.02)
    return chart


def best_of(study: Study) -> Chart | None:
    """Draw the expected best validation score of a random search against its number of trials."""
    lines = {}
    for model in _searched(study):
        trials = study.trials_of(model, prior_only=True)
        if len(objectives(trials)) >= 3:
            best = expected_best(objectives(trials, failed=study.chance_score))
            lines[model] = np.arange(1, len(best) + 1), _scaled(study, best)
    if not lines:
        return None
    caption = (
        "Expected best validation score of this many trials drawn from the prior; a failed trial scores as guessing."
    )
    chart = _line_chart(study, ("best", "expected best score", caption), ("trials", _unit(study)), lines, {})
    chart.axes.locator_params(axis="x", integer=True)
    return chart


def curves(study: Study, key: str, title: str) -> Chart | None:
    """Draw the median and the middle four fifths of the runs' learning curves, while at least half of them continue."""
    is_loss = key == "train_loss"
    lines, bands = {}, {}
    for row in study.rows:
        quantiles = _curve_quantiles(row, key) if row.name in MODELS else None
        if quantiles is not None:
            low, middle, high = quantiles if is_loss else _scaled(study, quantiles)
            lines[row.name] = np.arange(1, len(middle) + 1), middle
            bands[row.name] = low, high
    if not lines:
        return None
    caption = "Median over the final runs, while at least half of them continue; the band covers the middle 80 %."
    labels = ("epoch", title if is_loss else _unit(study))
    chart = _line_chart(study, (key.replace("_", "-"), title, caption), labels, lines, bands, linewidth=1.4)
    if is_loss and min(float(low.min()) for low, _ in bands.values()) > 0:
        chart.axes.set_yscale("log")
    chart.axes.locator_params(axis="x", integer=True)
    return chart


def _curve_quantiles(row: ModelRow, key: str) -> Array | None:
    """Return the quantiles 0.1, 0.5 and 0.9 over runs of unequal length, ``[3, epochs]``."""
    lists = [(run.get("curve") or {}).get(key) for run in row.runs]
    runs = [np.array(values, float) for values in lists if values]  # null becomes NaN
    if not runs:
        return None
    length = sorted(map(len, runs))[(len(runs) - 1) // 2]
    padded = np.full((len(runs), length), np.nan)
    for line, values in zip(padded, runs, strict=True):
        line[: len(values)] = values[:length]
    return None if np.isnan(padded).all(0).any() else np.nanquantile(padded, (0.1, 0.5, 0.9), axis=0)
