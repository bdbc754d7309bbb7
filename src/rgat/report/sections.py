"""The report as a list of sections, before it takes a form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rgat.report import results
from rgat.report.analysis import Analysis
from rgat.report.charts import draw
from rgat.report.claims import claims_table
from rgat.report.conclusions import summarise
from rgat.report.drawing import Chart
from rgat.report.provenance import provenance
from rgat.report.tables import Table


@dataclass(frozen=True)
class Block:
    """Text, charts and tables that belong together, under a heading or none, about a study or none."""

    title: str | None
    charts: list[Chart] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    paragraphs: list[str] = field(default_factory=list)
    study: str | None = None


@dataclass(frozen=True)
class Section:
    """One section: an anchor, a title, paragraphs, blocks, and the study it is about, for the page's picker."""

    key: str
    title: str
    paragraphs: list[str] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    study: str | None = None


READING = [
    "A row is one model with one setting, trained with several seeds. Rows named C- are the same trained models, "
    "evaluated with all attention coefficients of a softmax group set equal. What each was selected on "
    "stands beside its settings; every run looked at the test part once, at the end.",
    "Each ordered pair of rows has the p-value of the paper's one-sided Mann-Whitney U test, exact with ties up to 50 "
    "runs. With so many pairs some are small by chance, so conclusions are drawn only inside two families fixed "
    "beforehand: the attention models against RGCN, and against themselves with constant attention, two-sided, with "
    "Holm's correction.",
    "Intervals over seeds say what other seeds would give on the same test examples (Student, Welch). Intervals over "
    "seeds and examples add what other test examples of the same kind would change (bootstrap); they are what a claim "
    "about the task, not about the split, needs.",
]


def arrange(analyses: Sequence[Analysis], notices: Sequence[str]) -> list[Section]:
    """All sections in reading order."""
    summary = [Block(a.study.title, paragraphs=summarise(a), study=a.study.key) for a in analyses]
    found = [Section("summary", "Summary", [], summary)]
    if notices:
        found.append(Section("notices", "Read this first", list(notices)))
    found.append(_overview(analyses))
    found += [_study(analysis) for analysis in analyses]
    claims = claims_table(analyses)
    if claims:
        found.append(Section("claims", "The paper's claims", [], [Block(None, [], [claims])]))
    found.append(Section("reading", "How to read this", READING))
    tables = provenance([analysis.study for analysis in analyses])
    found.append(Section("provenance", "Provenance", [], [Block(None, [], tables)]))
    return [section for section in found if section.paragraphs or section.blocks]


def _overview(analyses: Sequence[Analysis]) -> Section:
    """The paper's results table, one for nodes and one for graphs."""
    tables = []
    for is_node, key, caption in (
        (True, "results-nodes", "Node classification: test accuracy in %, mean ± standard deviation over n runs"),
        (False, "results-graphs", "Graph classification: test mean ROC-AUC, mean ± standard deviation over n runs"),
    ):
        mine = [analysis for analysis in analyses if analysis.study.is_node == is_node and analysis.study.rows]
        if mine:
            tables.append(results.overview(mine, key, caption))
    return Section("results", "Results", [], [Block(None, [], tables)] if tables else [])


def _study(analysis: Analysis) -> Section:
    study = analysis.study
    charts = {chart.key.removeprefix(f"{study.key}-"): chart for chart in draw(analysis)}

    def take(*keys: str) -> list[Chart]:
        return [charts[key] for key in keys if key in charts]

    against_rgcn = against_constant = None
    if analysis.against_rgcn:
        caption = f"{study.title}: attention models against RGCN"
        against_rgcn = results.comparisons(analysis, analysis.against_rgcn, "against-rgcn", caption)
    if analysis.against_constant:
        caption = f"{study.title}: attention against constant attention"
        against_constant = results.comparisons(analysis, analysis.against_constant, "against-constant", caption)
    blocks = [
        _block("Scores", take("bars"), results.scores(analysis) if study.rows else None),
        _block(
            "What can be concluded",
            take("p-values", "difference-rgcn", "difference-attention"),
            against_rgcn,
            against_constant,
            results.significance(analysis) if len(analysis.nine) > 1 else None,
        ),
        _block("Tasks", [], results.tasks(analysis)),
        _block(
            "The search",
            take("distribution-all", "distribution-prior", "best"),
            results.search(analysis),
            results.importance(analysis),
        ),
        _block("Learning", take("train-loss", "valid-metric")),
        _block("Settings", [], results.settings(analysis)),
    ]
    return Section(study.key, study.title, [], [b for b in blocks if b.charts or b.tables], study.key)


def _block(title: str, charts: list[Chart], *tables: Table | None) -> Block:
    return Block(title, charts, [table for table in tables if table is not None])
