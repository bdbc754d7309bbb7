"""The charts of the report: the paper's bars, distributions and p-values, and what goes beyond them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rgat.experiments.published import PUBLISHED
from rgat.report.analysis import Analysis, Comparison
from rgat.report.drawing import (
    ACCENT,
    BLUE,
    INK,
    LINE,
    MUTED,
    RED,
    SEARCH_BLUE,
    SEARCH_GREEN,
    SEARCH_ORANGE,
    YELLOW,
    Chart,
    plain,
)
from rgat.report.results import number, p_text
from rgat.report.statistics import SIGNIFICANT, Array, cumulative, expected_best, spread
from rgat.report.study import GROUPS, MODELS, Row, Study, objectives

GROUP_COLOURS = dict(zip(GROUPS, (BLUE, YELLOW, RED, MUTED), strict=True))
# The paper's colours, and its solid and dashed lines; markers tell lines apart without colour.
SEARCH_STYLES: dict[str, dict[str, Any]] = {
    "RGCN": {"color": SEARCH_GREEN, "marker": "o"},
    "additive WIRGAT": {"color": SEARCH_ORANGE, "marker": "s"},
    "additive ARGAT": {"color": SEARCH_BLUE, "marker": "^"},
    "multiplicative WIRGAT": {
        "color": SEARCH_ORANGE,
        "marker": "s",
        "linestyle": (0, (4, 2)),
        "markerfacecolor": "none",
    },
    "multiplicative ARGAT": {"color": SEARCH_BLUE, "marker": "^", "linestyle": (0, (4, 2)), "markerfacecolor": "none"},
}


def draw(analysis: Analysis) -> list[Chart]:
    """All charts of a study that its records allow."""
    study = analysis.study
    charts: list[Chart | None] = []
    if study.rows:
        charts.append(bars(analysis))
    if len(analysis.nine) > 1:
        charts.append(p_values(analysis))
    for family, key, title in (
        (analysis.against_rgcn, "rgcn", "difference to RGCN"),
        (analysis.against_constant, "attention", "the difference that attention makes"),
    ):
        charts.append(differences(analysis, family, key, title) if family else None)
    charts += [distribution(study, False), distribution(study, True), best_of(study)]
    charts += [
        curves(study, "train_loss", "training loss"),
        curves(study, "valid_metric", f"validation {study.metric}"),
    ]
    found = [chart for chart in charts if chart is not None]
    for chart in found:
        chart.freeze()
    return found


def _scaled(study: Study, values: Any) -> Array:
    return np.asarray(values, float) * (100 if study.percent else 1)


def _unit(study: Study) -> str:
    return f"{plain(study.metric)}, %" if study.percent else plain(study.metric)


def bars(analysis: Analysis) -> Chart:
    """Mean and standard deviation of every row's test score, in the paper's colours."""
    study, rows = analysis.study, analysis.study.rows
    printed = PUBLISHED.get(study.data, {})
    guessing = f" Dotted: naming the largest class, {number(study, study.floor)}." if study.is_node else ""
    others = "; grey: beyond the paper" if any(row.group == GROUPS[3] for row in rows) else ""
    chart = Chart(
        f"{study.key}-bars",
        f"{study.title}: test {study.metric}.",
        "Mean and standard deviation over runs. Blue: baselines; yellow: additive; red: multiplicative attention; "
        f"hatched: the same models with constant attention{others}."
        f"{' Diamonds: as published.' if printed else ''}{guessing}",
        0.9 + 0.26 * len(rows),
    )
    axes, top = chart.axes, 100.0 if study.percent else 1.0
    published = {row.name: float(_scaled(study, printed[row.name]["test"].mean)) for row in rows if row.name in printed}
    means = _scaled(study, [row.scores().mean() for row in rows])
    deviations = _scaled(study, [spread(row.scores()) or 0.0 for row in rows])
    low = min([*(means - deviations), *published.values()])
    start = float(np.floor((low - 0.15 * (top - low)) / (top / 20)) * (top / 20))
    start = start if start > 0.3 * top else 0.0  # little is gained by a short axis, and bars from zero say more
    if study.is_node:
        start = min(start, float(np.floor(100 * study.floor / 5) * 5))
    for place, row in enumerate(rows):
        _bar(chart, study, row, place, start, published.get(row.name))
    if study.is_node:
        axes.axvline(100 * study.floor, color=MUTED, linestyle=":", linewidth=1)
    axes.set_xlim(start, max(top if study.percent else 0.0, float((means + deviations).max()) + 0.02 * top))
    axes.set_ylim(len(rows) - 0.4, -0.6)
    labels = [row.name if row.group in GROUPS[1:3] else row.label for row in rows]
    axes.set_yticks(range(len(rows)), [plain(label) for label in labels])
    _mark_labels(chart, axes.get_yticklabels(), rows)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel(_unit(study) + (f" (axis begins at {start:g})" if start else ""))
    return chart


def _mark_labels(chart: Chart, labels: Sequence[Any], rows: Sequence[Row]) -> None:
    for label, row in zip(labels, rows, strict=True):
        chart.mark(label, model=row.model)


def _bar(chart: Chart, study: Study, row: Row, place: int, start: float, published: float | None) -> None:
    """One row: its bar, its spread, its number, and the paper's."""
    axes, scores, colour = chart.axes, row.scores(), GROUP_COLOURS[row.group]
    mean, deviation = float(_scaled(study, scores.mean())), spread(scores)
    look: dict[str, Any] = {"color": "none", "hatch": "////"} if row.constant else {"color": colour}
    bar = axes.barh(place, mean - start, left=start, height=0.68, edgecolor=colour, linewidth=0.8, **look)[0]
    text = number(study, float(scores.mean()))
    more = ", one run" if deviation is None else f" ± {number(study, deviation)}, {len(scores)} runs"
    chart.mark(bar, model=row.model, tip=f"{row.name}: {text}{more}")
    if deviation is not None:
        reach = float(_scaled(study, deviation))
        spreads = axes.errorbar(mean, place, xerr=reach, color=INK, linewidth=0.9, capsize=2)
        for artist in (*spreads[1], *spreads[2]):
            chart.mark(artist, model=row.model)
    if published is not None:
        diamond = axes.plot(published, place, "D", color=INK, markerfacecolor="none", markersize=4.5)[0]
        chart.mark(diamond, model=row.model, tip=f"{row.name} as published: {published:.4g}")
    value = axes.text(1.015, place, text, transform=axes.get_yaxis_transform(), va="center", fontsize=8.5)
    chart.mark(value, model=row.model)


def p_values(analysis: Analysis) -> Chart:
    """One-sided p-values of each ordered pair of the nine rows."""
    study, rows = analysis.study, analysis.nine
    chart = Chart(
        f"{study.key}-p-values",
        f"{study.title}: does A outperform B?",
        "p-value of the one-sided Mann-Whitney U test over final runs, A in the line, B in the column. Shaded and "
        "bold: at most 0.05.",
        1.7 + 0.33 * len(rows),
        tall=True,
    )
    from matplotlib.patches import Rectangle

    axes = chart.axes
    for i, first in enumerate(rows):
        for j, second in enumerate(rows):
            test = None if first is second else analysis.tests[first.name, second.name]
            p = None if test is None else test.greater
            significant = p is not None and p <= SIGNIFICANT
            fill = "none" if p is None else (ACCENT, 0.45 if significant else 0.02 + 0.10 * (1 - p))
            cell = Rectangle((j - 0.5, i - 0.5), 1, 1, facecolor=fill, edgecolor=LINE, linewidth=0.6)
            axes.add_patch(cell)
            tip = "no test" if p is None else f"p = {p:.3g}"
            whose = {"model": first.model, "other": second.model}
            tip = f"{first.name} outperforms {second.name}: {tip}" if first is not second else first.name
            chart.mark(cell, **whose, tip=tip)
            if p is not None:
                text = "<.001" if p < 0.001 else f"{p:.3f}".removeprefix("0") if p < 0.9995 else "1"
                weight = "bold" if significant else "normal"
                label = axes.text(j, i, text, ha="center", va="center", fontsize=7.5, fontweight=weight)
                chart.mark(label, **whose)
    axes.set_xlim(-0.5, len(rows) - 0.5)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    names = [row.name.replace("additive", "add.").replace("multiplicative", "mult.") for row in rows]
    axes.set_xticks(range(len(rows)), names, rotation=40, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(rows)), names)
    for labels in (axes.get_xticklabels(), axes.get_yticklabels()):
        _mark_labels(chart, labels, rows)
    axes.tick_params(length=0)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.set_xlabel("B")
    axes.set_ylabel("A")
    return chart


def differences(analysis: Analysis, family: Sequence[Comparison], key: str, title: str) -> Chart:
    """Differences of means with both intervals."""
    study = analysis.study
    chart = Chart(
        f"{study.key}-difference-{key}",
        f"{study.title}: {title}.",
        "Difference of the mean test scores. Thick: 95 % interval over seeds; thin: over seeds and test examples.",
        0.95 + 0.34 * len(family),
    )
    axes = chart.axes
    axes.axvline(0, color=MUTED, linewidth=0.9)
    for place, c in enumerate(family):
        colour = GROUP_COLOURS[c.first.group]
        difference = float(_scaled(study, c.difference))
        for half, width in ((c.examples, 1.2), (c.seeds, 4.0)):
            if half is not None:
                reach = float(_scaled(study, half))
                line = axes.plot(
                    [difference - reach, difference + reach], [place, place], color=colour, linewidth=width
                )[0]
                chart.mark(line, model=c.first.model)
        point = axes.plot(difference, place, "o", color=INK, markersize=5)[0]
        tip = f"{c.first.name} against {c.second.name}: {number(study, c.difference, sign=True)}, {c.verdict}"
        chart.mark(point, model=c.first.model, tip=f"{tip}, p (Holm) {p_text(c.corrected)}")
        verdict = axes.text(1.015, place, c.verdict, transform=axes.get_yaxis_transform(), va="center", fontsize=8)
        chart.mark(verdict, model=c.first.model)
    axes.set_yticks(range(len(family)), [c.first.name for c in family])
    _mark_labels(chart, axes.get_yticklabels(), [c.first for c in family])
    axes.set_ylim(len(family) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("percentage points" if study.percent else plain(study.metric))
    return chart


def _searched(study: Study) -> list[str]:
    return [model for model in study.searched if model in SEARCH_STYLES]


def _legend(chart: Chart, names: Sequence[str], columns: int = 2) -> None:
    """A legend below the axes whose entries go with their lines."""
    legend = chart.figure.legend(loc="outside lower center", ncols=columns, handlelength=3)
    for name, handle, text in zip(names, legend.get_lines(), legend.get_texts(), strict=True):
        chart.mark(handle, model=name)
        chart.mark(text, model=name)


def distribution(study: Study, prior_only: bool) -> Chart | None:
    """The cumulative distribution of a trial's mean validation metric, failed trials at the bottom."""
    trials = {model: study.trials_of(model, prior_only) for model in _searched(study)}
    values = {model: objectives(found) for model, found in trials.items()}
    names = [model for model in values if len(values[model])]
    if not names:
        return None
    which = "draws from the prior alone" if prior_only else "all trials"
    chart = Chart(
        f"{study.key}-distribution-{'prior' if prior_only else 'all'}",
        f"{study.title}: distribution over the search, {which}.",
        "Share of trials at or below a validation score; failed trials count at the left edge. Lower is better.",
        3.5,
        lines=True,
    )
    axes = chart.axes
    every = _scaled(study, np.concatenate([values[name] for name in names]))
    margin = 0.03 * max(float(np.ptp(every)), 1e-3)
    left, right = float(every.min()) - margin, float(every.max()) + margin
    for name in names:
        failed = len(trials[name]) - len(values[name])
        x, share = cumulative(values[name], failed)
        x, share = np.r_[left, _scaled(study, x), right], np.r_[failed / len(trials[name]), share, 1.0]
        line = axes.step(
            x, share, where="post", label=name, markevery=0.2, markersize=4, linewidth=1.5, **SEARCH_STYLES[name]
        )[0]
        chart.mark(line, model=name, line=name)
    axes.set_xlim(left, right)
    axes.set_ylim(-0.02, 1.02)
    axes.set_xlabel(f"mean validation {_unit(study)}")
    axes.set_ylabel("share of trials")
    _legend(chart, names)
    return chart


def best_of(study: Study) -> Chart | None:
    """Expected best validation score of a random search against its number of trials."""
    chart = Chart(
        f"{study.key}-best",
        f"{study.title}: what more trials would bring.",
        "Expected best validation score of so many draws from the prior; a failed trial counts as guessing.",
        3.5,
        lines=True,
    )
    names = []
    for model in _searched(study):
        trials = study.trials_of(model, prior_only=True)
        values = objectives(trials)
        if len(values) < 3:
            continue
        names.append(model)
        best = expected_best(np.concatenate([values, np.full(len(trials) - len(values), study.floor)]))
        options = {"label": model, "markevery": 0.2, "markersize": 4, "linewidth": 1.5, **SEARCH_STYLES[model]}
        line = chart.axes.plot(np.arange(1, len(best) + 1), _scaled(study, best), **options)[0]
        chart.mark(line, model=model, line=model)
    if not names:
        return None
    chart.axes.locator_params(axis="x", integer=True)
    chart.axes.set_xlabel("trials")
    chart.axes.set_ylabel(_unit(study))
    _legend(chart, names)
    return chart


def curves(study: Study, key: str, title: str) -> Chart | None:
    """Median and middle four fifths of a learning curve over the runs, while at least half of them go on."""
    rows = [row for row in study.rows if row.name in MODELS]
    found = {row.name: curve for row in rows if (curve := _median_curve(row, key)) is not None}
    if not found:
        return None
    chart = Chart(
        f"{study.key}-{key.replace('_', '-')}",
        f"{study.title}: {title}.",
        "Median over the final runs, as long as half of them go on; the band holds the middle four fifths.",
        3.5,
        lines=True,
    )
    for name, (low, middle, high) in found.items():
        epochs = np.arange(1, len(middle) + 1)
        low, middle, high = (_scaled(study, v) if key == "valid_metric" else v for v in (low, middle, high))
        options = {"label": name, "markevery": 0.2, "markersize": 4, "linewidth": 1.4, **SEARCH_STYLES[name]}
        chart.mark(chart.axes.plot(epochs, middle, **options)[0], model=name, line=name)
        band = chart.axes.fill_between(epochs, low, high, color=SEARCH_STYLES[name]["color"], alpha=0.10, linewidth=0)
        chart.mark(band, model=name)
    if key == "train_loss" and min(float(low.min()) for low, _, _ in found.values()) > 0:
        chart.axes.set_yscale("log")
    chart.axes.locator_params(axis="x", integer=True)
    chart.axes.set_xlabel("epoch")
    chart.axes.set_ylabel(title if key == "train_loss" else _unit(study))
    _legend(chart, list(found))
    return chart


def _median_curve(row: Row, key: str) -> tuple[Array, Array, Array] | None:
    """Quantiles 0.1, 0.5 and 0.9 over runs of unequal length."""
    lists = [(run.get("curve") or {}).get(key) for run in row.runs]
    runs = [np.array(values, float) for values in lists if values]  # null becomes NaN
    if not runs:
        return None
    length = sorted(map(len, runs))[(len(runs) - 1) // 2]
    table = np.full((len(runs), length), np.nan)
    for line, values in zip(table, runs, strict=True):
        line[: len(values)] = values[:length]
    if np.isnan(table).all(0).any():
        return None
    low, middle, high = np.nanquantile(table, (0.1, 0.5, 0.9), axis=0)
    return low, middle, high
