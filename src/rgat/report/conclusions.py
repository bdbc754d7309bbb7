"""The conclusions of a study in sentences: the order of the models, and how far each comparison carries."""

from __future__ import annotations

from collections.abc import Sequence

from rgat.report.statistics import SIGNIFICANT, smallest_p
from rgat.report.studies import MODELS, Comparison, Study

MEMORISED = 0.995  # training accuracy that counts as perfect: one error in a few hundred nodes is allowed


def summarise(study: Study) -> list[str]:
    """Return paragraphs on one study: order, comparison with RGCN and with constant attention, cautions."""
    if not study.rows:
        return [f"{study.title} has search trials but no finished runs, so it has no test scores."]
    if not study.five:
        return [f"{study.title} has only runs of other systems, none of RGCN or an attention model."]
    paragraphs = [_order(study), _against_rgcn(study), _against_constant(study), *_cautions(study)]
    return [paragraph for paragraph in paragraphs if paragraph]


def listed(words: Sequence[str]) -> str:
    """Join words as in "a, b and c"."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _order(study: Study) -> str:
    """Rank the models by mean; neighbours are called tied only where there are enough runs to tell."""
    ranking = study.ranking
    if len(ranking) < 2:
        return ""
    few = min(len(row.scores()) for row, _ in ranking) < _fewest_runs(len(study.against_rgcn) or 1)
    ranks: list[list[str]] = [[]]
    for row, step in ranking:
        ranks[-1].append(f"{row.name} ({study.number(row.scores().mean())})")
        if step != "last" and (few or step != "tied"):
            ranks.append([])
    order = ", ".join(f"{i}) {' tied with '.join(names)}" for i, names in enumerate(ranks, 1))
    steps = [step for _, step in ranking[:-1]]
    if few or "no test" in steps:
        tail = "This is the order of the means only: not every step can be tested."
    elif len(ranks) == 1:
        tail = "No step of this order is significant."
    elif "tied" in steps:
        tail = "Each step is significant (one-sided, p ≤ 0.05), except between neighbours called tied."
    else:
        tail = "Each step is significant (one-sided, p ≤ 0.05)."
    unit = ", in %" if study.percent else ""
    return f"Best to worst by mean test {study.metric}{unit}: {order}. {tail}"


def _fewest_runs(family: int) -> int:
    """Return the fewest runs per row with which a comparison in a family of this size can be significant."""
    return next(n for n in range(2, 99) if family * smallest_p(n, n) <= SIGNIFICANT)


def _inconclusive(study: Study, family: Sequence[Comparison]) -> list[str]:
    """Return a clause for each reason why comparisons have no conclusion."""
    runs = _fewest_runs(len(family))
    reasons = {
        "no conclusion": "",
        "too few runs to tell": f"too few runs for a conclusion (at least {runs} per row are needed)",
        "no test: too few runs": "no test with a single run",
        "no test: no spread": "no test, because all runs of each row score the same",
    }
    clauses = []
    for verdict, reason in reasons.items():
        names = [c.first.name for c in family if c.verdict == verdict]
        changes = [study.number(c.difference, sign=True) for c in family if c.verdict == verdict]
        if names and reason:
            changed = listed([f"{name} {change}" for name, change in zip(names, changes, strict=True)])
            clauses.append(f"{reason}; differences of means: {changed}")
        elif names:
            clauses.append(f"nothing can be concluded for {listed(names)}")
    return clauses


def _against_rgcn(study: Study) -> str:
    family = study.against_rgcn
    if not family:
        return ""
    if all(comparison.verdict == "no conclusion" for comparison in family):
        models = f"none of the {len(family)} attention models differs"
        models = models if len(family) > 1 else f"{family[0].first.name} does not differ"
        return f"No conclusion against RGCN: {models} significantly from it (two-sided, Holm)."
    clauses = []
    for verdict in ("better", "worse"):
        names = [c.first.name for c in family if c.verdict == verdict]
        clauses += [f"{listed(names)} {'is' if len(names) == 1 else 'are'} {verdict} than RGCN"] if names else []
    clauses += _inconclusive(study, family)
    return f"Against RGCN (two-sided, corrected for {len(family)} comparisons): {'; '.join(clauses)}."


def _against_constant(study: Study) -> str:
    family = study.against_constant
    if not family:
        return ""
    clauses = []
    for verb, verdict in (("raises", "better"), ("lowers", "worse")):
        changes = [f"{c.first.name} by {abs(100 * c.relative):.2f} %" for c in family if c.verdict == verdict]
        clauses += [f"attention {verb} the mean of {listed(changes)} (relative)"] if changes else []
    clauses += _inconclusive(study, family)
    return f"Against the same trained models with constant attention: {'; '.join(clauses)}."


def _cautions(study: Study) -> list[str]:
    cautions = []
    means = sorted((row.scores().mean() for row in study.five), reverse=True)
    if study.is_node and study.test_size and len(means) > 1 and means[0] - means[1] < 1 / study.test_size:
        cautions.append(
            f"The test set has {study.test_size} nodes: one of them is worth {100 / study.test_size:.2f} points, more "
            f"than the {100 * (means[0] - means[1]):.2f} points between the two best means."
        )
    concluded = [c for c in study.against_rgcn if c.verdict in ("better", "worse")]
    ranks_only = [
        c for c in concluded if c.seeds is not None and abs(c.difference) < c.seeds
    ]  # the means do not show it
    rgcn = study.row("RGCN")
    if study.is_node and rgcn is not None and len(rgcn.scores("train")) and rgcn.scores("train").mean() >= MEMORISED:
        better = [c.first.name for c in concluded if c.verdict == "better" and c not in ranks_only]
        verb = "is" if len(better) == 1 else "are"
        outcome = f"but {listed(better)} {verb} better here" if better else "and no result here contradicts that"
        cautions.append(
            f"RGCN fits the training set perfectly. The paper expects attention not to help in that case, {outcome}."
        )
    if ranks_only:
        shown = [
            f"{c.first.name} {study.number(c.difference, sign=True)} ± {study.number(c.seeds or 0)}" for c in ranks_only
        ]
        cautions.append(
            "The tests compare ranks. These means differ from RGCN's by less than the half width of the 95 % interval "
            f"over seeds: {listed(shown)}."
        )
    missing = [model for model in MODELS if study.row(model) is None]
    if missing and len(missing) < len(MODELS):
        cautions.append(f"There are no finished runs of {listed(missing)}.")
    return cautions
