"""The claims of the paper's text, each checked against records: it holds, does not hold, or the records cannot tell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Concatenate, ParamSpec

import numpy as np

from rgat.experiments.published import PUBLISHED, constant_row
from rgat.report.formats import Cell, Column, Line, ReportTable
from rgat.report.statistics import SIGNIFICANT, Array, mann_whitney
from rgat.report.studies import MODELS, TITLES, Comparison, ModelRow, Study, objectives
from rgat.report.tables import TONES, p_text

HOLDS, FAILS, OPEN = "holds", "does not hold", "cannot tell"
ENOUGH = 20  # runs that both rows need before they are called equal
MEMORISED = 0.995  # training accuracy that counts as perfect: one error in a few hundred nodes is allowed
NEGLIGIBLE = 0.147  # bound on P(above) - P(below) below which an effect is usually called negligible
FOUR = MODELS[1:]
MEASURES: dict[str, Callable[[Array], float]] = {  # of the scores of search trials
    "median": lambda scores: float(np.median(scores)),
    "interquartile range": lambda scores: float(np.ptp(np.quantile(scores, (0.25, 0.75)))),
}
A_W, A_A, M_W, M_A = FOUR  # additive and multiplicative attention, WIRGAT and ARGAT


@dataclass(frozen=True)
class Verdict:
    """Whether a claim holds, and the numbers that decide it."""

    word: str
    evidence: str


Check = Callable[[Study], Verdict]
Arguments = ParamSpec("Arguments")


@dataclass(frozen=True)
class Claim:
    """A claim of the paper in our words, with its section, its data sets, and the check of their studies."""

    text: str
    section: str
    data: tuple[str, ...]
    check: Callable[[Sequence[Study]], Verdict]


def _check(function: Callable[Concatenate[Study, Arguments], Verdict]) -> Callable[Arguments, Check]:
    """Let ``function(study, a, b)`` be called as ``function(a, b)``, which returns a check of any study."""
    return lambda *arguments, **options: lambda study: function(study, *arguments, **options)


def listed(words: Sequence[str]) -> str:
    """Join words as in "a, b and c"."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _row(study: Study, name: str) -> ModelRow:
    row = study.row(name)
    if row is None:
        raise LookupError(f"no runs of {name}")
    return row


def _mean(study: Study, name: str) -> float:
    return float(_row(study, name).scores().mean())


def combine(verdicts: Sequence[Verdict]) -> Verdict:
    """Combine verdicts: one that fails decides, else one that is open."""
    words = [verdict.word for verdict in verdicts]
    word = FAILS if FAILS in words else OPEN if OPEN in words else HOLDS
    return Verdict(word, "; ".join(dict.fromkeys(verdict.evidence for verdict in verdicts)))


def all_of(*checks: Check) -> Check:
    """Check that several claims hold."""
    return lambda study: combine([check(study) for check in checks])


@_check
def above(study: Study, first: str, second: str) -> Verdict:
    """Check that the first scores significantly higher in the paper's one-sided test; it fails if lower."""
    a, b = _row(study, first).scores(), _row(study, second).scores()
    means = f"{first} {study.number(a.mean())}, {second} {study.number(b.mean())}"
    test = mann_whitney(a, b)
    if test is None:
        return Verdict(OPEN, f"{means}, no test possible")
    word = HOLDS if test.greater <= SIGNIFICANT else FAILS if test.less <= SIGNIFICANT else OPEN
    return Verdict(word, f"{means}, p {p_text(test.greater)}")


def ordered(*names: str) -> Check:
    """Check that each scores significantly higher than the next."""
    return all_of(*(above(a, b) for a, b in pairwise(names)))


@_check
def level(study: Study, first: str, second: str) -> Verdict:
    """Check that two rows do not differ: no significance, a negligible effect, and enough runs to say so."""
    comparison = study.compare(_row(study, first), _row(study, second))
    if comparison.test is None:
        return Verdict(OPEN, f"{first} and {second}: no test possible")
    effect = comparison.above - comparison.below
    p, few = comparison.test.two_sided, _too_few(comparison)
    word = FAILS if p <= SIGNIFICANT else HOLDS if abs(effect) < NEGLIGIBLE and not few else OPEN
    return Verdict(word, f"{first} and {second}: two-sided p {p_text(p)}, P(above) - P(below) {effect:+.2f}{few}")


@_check
def marginally_above(study: Study, first: str, second: str) -> Verdict:
    """Check that the first has a larger mean, but not significantly."""
    comparison = study.compare(_row(study, first), _row(study, second))
    difference = f"{first} {study.number(comparison.difference, sign=True)} against {second}"
    if comparison.test is None:
        return Verdict(OPEN, f"{difference}, no test possible")
    marginal = comparison.difference > 0 and comparison.test.greater > SIGNIFICANT
    few = _too_few(comparison)
    word = OPEN if few and comparison.test.two_sided > SIGNIFICANT else HOLDS if marginal else FAILS
    return Verdict(word, f"{difference}, p {p_text(comparison.test.greater)}{few}")


def _too_few(comparison: Comparison) -> str:
    """Return a remark if a row has too few runs to call the two equal, else nothing."""
    return f", only {comparison.num_runs} runs" if comparison.num_runs < ENOUGH else ""


def helps(model: str) -> Check:
    """Check that attention scores significantly higher than constant attention with the same weights."""
    return above(model, constant_row(model))


def hurts(model: str) -> Check:
    """Check that constant attention scores significantly higher."""
    return above(constant_row(model), model)


@_check
def memorised(study: Study, *names: str, expected: bool = True) -> Verdict:
    """Check whether every model fits the training set perfectly; if this is not expected, that none does."""
    scores = {name: _row(study, name).scores("train") for name in names}
    if not all(map(len, scores.values())):
        return Verdict(OPEN, "no training scores")
    means = {name: float(values.mean()) for name, values in scores.items()}
    evidence = ", ".join(f"{name} {study.number(mean)}" for name, mean in means.items())
    as_expected = all((mean >= MEMORISED) == expected for mean in means.values())
    return Verdict(HOLDS if as_expected else FAILS, f"training: {evidence}")


@_check
def best_is(study: Study, name: str) -> Verdict:
    """Check that no other row of the paper has a larger mean, including those it only quotes."""
    score = _mean(study, name)
    means = {row.name: float(row.scores().mean()) for row in study.rows if row.name != name and not row.setting}
    published = PUBLISHED.get(study.data, {})
    quoted = {f"{k} as published": v["test"].mean for k, v in published.items() if k in ("WL", "RDF2Vec", "R-GCN")}
    rival, best = max((means | quoted).items(), key=lambda item: item[1])
    evidence = f"{name} {study.number(score)}, best other {rival} {study.number(best)}"
    return Verdict(HOLDS if score >= best else FAILS, evidence)


@_check
def baseline_above(study: Study, baseline: str, *names: str, expected: bool = True) -> Verdict:
    """Check whether a baseline has a larger mean than every model; its published value replaces missing runs."""
    row = study.row(baseline)
    value = float(row.scores().mean()) if row else PUBLISHED[study.data][baseline]["test"].mean
    best = max(names, key=lambda name: _mean(study, name))
    score = _mean(study, best)
    source = "ours" if row else "as published"
    evidence = f"{baseline} ({source}) {study.number(value)}, {best} {study.number(score)}"
    return Verdict(HOLDS if (value > score) == expected else FAILS, evidence)


@_check
def where(study: Study, condition: Check, check: Check) -> Verdict:
    """Check a claim where a condition holds; elsewhere the paper claims nothing."""
    met = condition(study)
    return combine([met, check(study)]) if met.word == HOLDS else Verdict(OPEN, f"{met.evidence}: condition not met")


def not_beaten(study: Study) -> Verdict:
    """Check that no attention model scores significantly higher than RGCN."""
    words = {name: above(name, "RGCN")(study).word for name in FOUR}
    better = [name for name, word in words.items() if word == HOLDS]
    worse = set(words.values()) == {FAILS}
    evidence = f"above RGCN: {listed(better)}" if better else "none is significantly above RGCN"
    return Verdict(FAILS if better else HOLDS if worse else OPEN, evidence + ("; all are below" if worse else ""))


def _never_guaranteed(studies: Sequence[Study]) -> Verdict:
    """Check that no attention model scores higher than RGCN on every data set."""
    words = {name: {above(name, "RGCN")(study).word for study in studies} for name in FOUR}
    winners = [name for name, verdicts in words.items() if verdicts == {HOLDS}]
    if winners:
        return Verdict(FAILS, f"above RGCN on every data set: {listed(winners)}")
    undecided = [name for name, verdicts in words.items() if FAILS not in verdicts]
    if undecided:
        return Verdict(OPEN, f"nowhere significantly below RGCN: {listed(undecided)}")
    return Verdict(HOLDS, "each is significantly below RGCN somewhere")


def _prior(study: Study, name: str) -> Array:
    """Return the objectives of a model's trials drawn from the prior; a failed trial scores as guessing does."""
    trials = study.trials_of(name, prior_only=True)
    if len(trials) < 5:
        raise LookupError(f"too few trials of {name} from the prior")
    return objectives(trials, failed=study.chance_score)


@_check
def search_below(study: Study, measure: str, lower: Sequence[str], upper: Sequence[str]) -> Verdict:
    """Check that a measure of the trials from the prior is smaller for each of ``lower`` than for each of ``upper``."""
    values = {name: MEASURES[measure](_prior(study, name)) for name in (*lower, *upper)}
    holds = max(values[name] for name in lower) < min(values[name] for name in upper)
    return _search_verdict(study, holds, f"{measure} of trials from the prior", values)


@_check
def search_best(study: Study, first: Sequence[str], second: Sequence[str]) -> Verdict:
    """Check that the best trial of all is one of a model in ``first``, not in ``second``."""
    trials = {name: objectives(study.trials_of(name)) for name in (*first, *second)}
    if missing := [name for name, values in trials.items() if not len(values)]:
        raise LookupError(f"no trials of {missing[0]}")
    best = {name: float(values.max()) for name, values in trials.items()}
    holds = max(best[name] for name in first) > max(best[name] for name in second)
    return _search_verdict(study, holds, "best trial", best)


def _search_verdict(study: Study, holds: bool, label: str, values: dict[str, float]) -> Verdict:
    shown = ", ".join(f"{name} {study.number(value)}" for name, value in values.items())
    return Verdict(HOLDS if holds else FAILS, f"{label}: {shown}")


def _on(data: str | tuple[str, ...], text: str, section: str, check: Check) -> Claim:
    """Return a claim that holds if the check does on each of its data sets."""

    def check_each(studies: Sequence[Study]) -> Verdict:
        verdicts = [check(study) for study in studies]
        if len(studies) > 1:
            pairs = zip(studies, verdicts, strict=True)
            verdicts = [Verdict(verdict.word, f"{study.title}: {verdict.evidence}") for study, verdict in pairs]
        return combine(verdicts)

    return Claim(text, section, (data,) if isinstance(data, str) else data, check_each)


TRANSDUCTIVE, INDUCTIVE, APPENDIX = "3.3, transductive", "3.3, inductive", "appendix D"
CLAIMS = [
    _on(("aifb", "mutag"), "With additive attention, WIRGAT is above ARGAT.", TRANSDUCTIVE, above(A_W, A_A)),
    _on(("aifb", "mutag"), "With multiplicative attention, ARGAT is above WIRGAT.", TRANSDUCTIVE, above(M_A, M_W)),
    _on("aifb", f"From best to worst: {A_W}, {M_A}, RGCN, {A_A}, {M_W}.", TRANSDUCTIVE,
        ordered(A_W, M_A, "RGCN", A_A, M_W)),
    _on("aifb", "Attention helps additive ARGAT.", TRANSDUCTIVE, helps(A_A)),
    _on("aifb", "Attention helps multiplicative ARGAT.", TRANSDUCTIVE, helps(M_A)),
    _on("aifb", "Attention hurts multiplicative WIRGAT.", TRANSDUCTIVE, hurts(M_W)),
    _on("aifb", "Attention makes no difference to additive WIRGAT.", TRANSDUCTIVE, level(A_W, constant_row(A_W))),
    _on("aifb", "Additive WIRGAT has the best result of all systems.", TRANSDUCTIVE, best_is(A_W)),
    _on("aifb", "RGCN does not fit the training set perfectly.", TRANSDUCTIVE, memorised("RGCN", expected=False)),
    _on("mutag", "From best to worst: RGCN, multiplicative ARGAT, both WIRGATs tied, additive ARGAT.", TRANSDUCTIVE,
        all_of(above("RGCN", M_A), above(M_A, A_W), above(M_A, M_W), level(A_W, M_W),
               above(A_W, A_A), above(M_W, A_A))),
    _on("mutag", "Attention helps additive WIRGAT.", TRANSDUCTIVE, helps(A_W)),
    _on("mutag", "Attention helps additive ARGAT.", TRANSDUCTIVE, helps(A_A)),
    _on("mutag", "Attention hurts multiplicative ARGAT.", TRANSDUCTIVE, hurts(M_A)),
    _on("mutag", "RGCN is above every attention model.", TRANSDUCTIVE, all_of(*(above("RGCN", name) for name in FOUR))),
    _on("mutag", "RGCN and the attention models fit the training set perfectly.", TRANSDUCTIVE,
        memorised("RGCN", *FOUR)),
    _on("mutag", "The Weisfeiler-Lehman kernel is above all relational networks.", "4",
        baseline_above("WL", "RGCN", *FOUR)),
    _on("tox21", "Tuned, RGCN is above the published RGCN by degree.", INDUCTIVE,
        baseline_above("GraphConv", "RGCN", expected=False)),
    _on("tox21", "Additive attention does as well as RGCN.", INDUCTIVE, all_of(level(A_W, "RGCN"), level(A_A, "RGCN"))),
    _on("tox21", "Multiplicative attention is above RGCN, not significantly.", INDUCTIVE,
        all_of(marginally_above(M_W, "RGCN"), marginally_above(M_A, "RGCN"))),
    _on("tox21", "Attention helps multiplicative WIRGAT and ARGAT.", INDUCTIVE, all_of(helps(M_W), helps(M_A))),
    _on("tox21", "Attention makes no difference to the additive models.", INDUCTIVE,
        all_of(level(A_W, constant_row(A_W)), level(A_A, constant_row(A_A)))),
    _on("mutag", "Where RGCN fits the training set perfectly, no attention model is above it.", "4",
        where(memorised("RGCN"), not_beaten)),
    Claim("No variant is above RGCN everywhere.", "4", ("aifb", "mutag", "tox21"), _never_guaranteed),
    _on("aifb", "Over most of the search space ARGAT does worse than RGCN and multiplicative WIRGAT.", APPENDIX,
        search_below("median", (A_A, M_A), ("RGCN", M_W))),
    _on("mutag", "ARGAT depends less on its options than RGCN and WIRGAT.", APPENDIX,
        search_below("interquartile range", (A_A, M_A), ("RGCN", A_W, M_W))),
    _on("tox21", "Over most of the search space multiplicative attention does worse than the others.", APPENDIX,
        search_below("median", (M_W, M_A), ("RGCN", A_W, A_A))),
    _on("tox21", "Yet the best trials are multiplicative.", APPENDIX, search_best((M_W, M_A), ("RGCN", A_W, A_A))),
]  # fmt: skip


def check_claim(claim: Claim, studies: Sequence[Study]) -> Verdict:
    """Return the verdict on one claim, which is open if the records it needs are missing."""
    used = []
    for data in claim.data:
        # The paper's Tox21 repeats molecules; without records of it, those of its distinct molecules are used.
        names = (data, "tox21-distinct") if data == "tox21" else (data,)
        matching = [study for name in names for study in studies if study.data == name]
        if not matching:
            return Verdict(OPEN, f"no records of {TITLES[data]}")
        used.append(matching[0])  # the largest budget comes first
    try:
        return claim.check(used)
    except LookupError as error:
        return Verdict(OPEN, str(error.args[0]))


def claims_table(studies: Sequence[Study]) -> ReportTable | None:
    """Return all claims with their verdicts; None where no record is of the paper's data."""
    if not any(study.data in PUBLISHED for study in studies):
        return None
    lines, words = [], []
    for claim in CLAIMS:
        verdict = check_claim(claim, studies)
        words.append(verdict.word)
        texts = [claim.text, listed([TITLES[name] for name in claim.data]), claim.section]
        tone = TONES.get(verdict.word, "open")
        keys = {study.key for study in studies if study.data in claim.data}
        study = keys.pop() if len(claim.data) == 1 and len(keys) == 1 else None
        lines.append(Line([*map(Cell, texts), Cell(verdict.word, tone=tone), Cell(verdict.evidence)], study=study))
    holds, fails, open_ = (words.count(word) for word in (HOLDS, FAILS, OPEN))
    notes = [
        f"{holds} hold, {fails} do not hold, and for {open_} the records cannot tell.",
        "A claim of order holds if the paper's one-sided test is significant at 0.05 in its direction, and does not "
        "hold if it is significant in the other direction; otherwise the records cannot tell. A claim of equality "
        f"holds if the two-sided test is not significant, P(above) and P(below) differ by less than {NEGLIGIBLE}, and "
        f"both rows have at least {ENOUGH} runs.",
    ]
    columns = [Column(title, text=True) for title in ("Claim", "Data", "Section", "Verdict", "Evidence")]
    return ReportTable("claims", "The paper's claims, checked", columns, lines, notes)
