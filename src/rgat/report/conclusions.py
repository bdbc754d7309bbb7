"""What the statistics say, in sentences."""

from __future__ import annotations

from collections.abc import Sequence

from rgat.report.analysis import Analysis, Comparison
from rgat.report.results import number
from rgat.report.statistics import SIGNIFICANT, smallest_p
from rgat.report.study import MODELS

MEMORISED = 0.995  # a training set of a few hundred nodes is then known but for one


def summarise(analysis: Analysis) -> list[str]:
    """Paragraphs about one study: order, RGCN, attention, and how far to trust them."""
    if not analysis.study.rows:
        return [f"{analysis.study.title} has no finished runs, only trials of a search: no test score to speak of."]
    if not analysis.five:
        return [f"Of {analysis.study.title} there are only runs of other systems, none of RGCN or attention models."]
    paragraphs = [_order(analysis), _against_rgcn(analysis), _against_constant(analysis), *_cautions(analysis)]
    return [paragraph for paragraph in paragraphs if paragraph]


def listed(words: Sequence[str]) -> str:
    """Words in a row: a, b and c."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _order(analysis: Analysis) -> str:
    """Best to worst, ties named where there are runs enough to tell."""
    ranking, study = analysis.ranking, analysis.study
    if len(ranking) < 2:
        return ""
    few = min(len(row.scores()) for row, _ in ranking) < _needed(len(analysis.against_rgcn) or 1)
    places: list[list[str]] = [[]]
    for row, step in ranking:
        places[-1].append(f"{row.name} ({number(study, row.scores().mean())})")
        if few or step in ("significant", "no test"):
            places.append([])
    places = [place for place in places if place]
    order = ", ".join(f"{i}) {' tied with '.join(place)}" for i, place in enumerate(places, 1))
    steps = [step for _, step in ranking[:-1]]
    if few or "no test" in steps:
        tail = "This is an order of means alone: not every step of it can be tested."
    elif len(places) == 1:
        tail = "No step of this order is significant."
    elif "tied" in steps:
        tail = "Each step is significant (one-sided, p ≤ 0.05) but for the ties, each between neighbours."
    else:
        tail = "Each step is significant (one-sided, p ≤ 0.05)."
    unit = ", in %" if study.percent else ""
    return f"Best to worst by mean test {study.metric}{unit}: {order}. {tail}"


def _needed(family: int) -> int:
    """The fewest runs on both sides with which some comparison of a family can be significant."""
    return next(n for n in range(2, 99) if family * smallest_p(n, n) <= SIGNIFICANT)


def _untold(analysis: Analysis, family: Sequence[Comparison]) -> list[str]:
    """Clauses about comparisons without a conclusion, each with its reason."""
    study, clauses = analysis.study, []
    reasons = {
        "no conclusion": "nothing can be concluded for {}",
        "too few runs to tell": f"too few runs for a conclusion ({_needed(len(family))} on both sides could give one)"
        "; differences of means: {}",
        "no test: too few runs": "no test with a single run; differences of means: {}",
        "no test: no spread": "no test where all runs of either side score the same; differences of means: {}",
    }
    for verdict, text in reasons.items():
        mine = [c for c in family if c.verdict == verdict]
        plain = verdict == "no conclusion"
        names = [c.first.name + ("" if plain else f" {number(study, c.difference, sign=True)}") for c in mine]
        clauses += [text.format(listed(names))] if names else []
    return clauses


def _against_rgcn(analysis: Analysis) -> str:
    family = analysis.against_rgcn
    if not family:
        return ""
    if all(comparison.verdict == "no conclusion" for comparison in family):
        several = f"none of the {len(family)} attention models" if len(family) > 1 else family[0].first.name
        return f"No conclusion against RGCN: {several} can be told apart from it (two-sided, Holm)."
    clauses = []
    for verdict in ("better", "worse"):
        rows = [c.first.name for c in family if c.verdict == verdict]
        if rows:
            clauses.append(f"{listed(rows)} {'is' if len(rows) == 1 else 'are'} {verdict} than RGCN")
    clauses += _untold(analysis, family)
    return f"Against RGCN (two-sided, corrected for {len(family)} comparisons): {'; '.join(clauses)}."


def _against_constant(analysis: Analysis) -> str:
    family = analysis.against_constant
    if not family:
        return ""
    clauses = []
    for verb, verdict in (("raises", "better"), ("lowers", "worse")):
        changes = [f"{c.first.name} by {abs(100 * c.relative):.2f} %" for c in family if c.verdict == verdict]
        clauses += [f"attention {verb} the mean of {listed(changes)}, relative"] if changes else []
    clauses += _untold(analysis, family)
    return f"Against the same trained models with constant attention: {'; '.join(clauses)}."


def _by_ranks_alone(c: Comparison) -> bool:
    """A conclusion from the test of ranks that the means do not show."""
    return c.verdict in ("better", "worse") and c.seeds is not None and abs(c.difference) < c.seeds


def _cautions(analysis: Analysis) -> list[str]:
    study, cautions = analysis.study, []
    means = sorted((row.scores().mean() for row in analysis.five), reverse=True)
    if study.is_node and study.test_size and len(means) > 1 and means[0] - means[1] < 1 / study.test_size:
        cautions.append(
            f"The test set has {study.test_size} nodes: one of them is worth {100 / study.test_size:.2f} points, more "
            f"than the {100 * (means[0] - means[1]):.2f} points between the two best means."
        )
    rgcn = study.row("RGCN")
    if study.is_node and rgcn is not None and len(rgcn.scores("train")) and rgcn.scores("train").mean() >= MEMORISED:
        better = [c.first.name for c in analysis.against_rgcn if c.verdict == "better" and not _by_ranks_alone(c)]
        verb = "is" if len(better) == 1 else "are"
        outcome = f"but {listed(better)} {verb} better here" if better else "and nothing here shows otherwise"
        cautions.append(
            f"RGCN knows the training set by heart; the paper expects no help of attention then, {outcome}."
        )
    ranks = [c for c in analysis.against_rgcn if _by_ranks_alone(c)]
    if ranks:
        shown = [
            f"{c.first.name} {number(study, c.difference, sign=True)} ± {number(study, c.seeds or 0)}" for c in ranks
        ]
        cautions.append(
            "Tests compare ranks, and the means say less: they differ from RGCN's by less than chance "
            f"({listed(shown)})."
        )
    missing = [model for model in MODELS if study.row(model) is None]
    if missing and len(missing) < len(MODELS):
        cautions.append(f"There are no finished runs of {listed(missing)}.")
    return cautions
