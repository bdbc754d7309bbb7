"""The sections of the report in reading order, as one HTML page and as one Markdown file."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from string import Template

from rgat.report import tables
from rgat.report.analysis import Analysis
from rgat.report.charts import draw
from rgat.report.claims import claims_table
from rgat.report.conclusions import summarise
from rgat.report.drawing import Chart
from rgat.report.formats import ReportTable, data_attributes, escape_markdown, to_html, to_markdown
from rgat.report.studies import Study


@dataclass(frozen=True)
class Block:
    """Paragraphs, charts and tables under a heading or none; ``study`` is the checkbox that hides it on the page."""

    title: str | None
    charts: list[Chart] = field(default_factory=list)
    tables: list[ReportTable] = field(default_factory=list)
    paragraphs: list[str] = field(default_factory=list)
    study: str | None = None


@dataclass(frozen=True)
class Section:
    """An anchor, a title, paragraphs and blocks; ``study`` is the checkbox that hides it on the page."""

    key: str
    title: str
    paragraphs: list[str] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    study: str | None = None


READING = [
    "A row is one model with one setting, trained with several random seeds. Rows named C- are the same trained "
    "models, evaluated with constant attention: all coefficients of a softmax group are equal. The notes below the "
    "settings say how each model was selected. Each run was evaluated on the test part once, at the end.",
    "Each ordered pair of rows has the p-value of the paper's one-sided Mann-Whitney U test. It is exact, also with "
    "ties, if the two rows have at most 50 runs together. Among so many pairs some p-values are small by chance, so "
    "conclusions are drawn only in two families that were fixed beforehand, from two-sided tests with Holm's "
    "correction: the attention models against RGCN, and against themselves with constant attention.",
    "Intervals over seeds show what other random seeds would give on the same test examples (Student, Welch). "
    "Intervals over seeds and examples also show what other test examples from the same distribution would give "
    "(bootstrap). A claim about the task, rather than about this split, needs the second kind.",
]


def arrange(analyses: Sequence[Analysis], notices: Sequence[str]) -> list[Section]:
    """Return all sections in reading order."""
    claims = claims_table(analyses)
    provenance = tables.provenance([analysis.study for analysis in analyses])
    summaries = [Block(a.study.title, paragraphs=summarise(a), study=a.study.key) for a in analyses]
    sections = [
        Section("summary", "Summary", blocks=summaries),
        Section("notices", "Read this first", list(notices)),
        Section("results", "Results", blocks=_overview(analyses)),
        *(Section(a.study.key, a.study.title, blocks=_study_blocks(a), study=a.study.key) for a in analyses),
        Section("claims", "The paper's claims", blocks=[Block(None, tables=[claims])] if claims else []),
        Section("reading", "How to read this", READING),
        Section("provenance", "Provenance", blocks=[Block(None, tables=provenance)]),
    ]
    return [section for section in sections if section.paragraphs or section.blocks]


def _overview(analyses: Sequence[Analysis]) -> list[Block]:
    """Return the paper's table of results, one for nodes and one for graphs."""
    with_runs = [analysis for analysis in analyses if analysis.study.rows]
    nodes = [analysis for analysis in with_runs if analysis.study.is_node]
    graphs = [analysis for analysis in with_runs if not analysis.study.is_node]
    captions = {
        "results-nodes": "Node classification: test accuracy in %, mean ± standard deviation over n runs",
        "results-graphs": "Graph classification: test mean ROC-AUC, mean ± standard deviation over n runs",
    }
    overviews = [
        tables.overview(chosen, key, caption)
        for chosen, (key, caption) in zip((nodes, graphs), captions.items(), strict=True)
        if chosen
    ]
    return [Block(None, tables=overviews)] if overviews else []


def _study_blocks(analysis: Analysis) -> list[Block]:
    study = analysis.study
    charts = {chart.key.removeprefix(f"{study.key}-"): chart for chart in draw(analysis)}
    comparisons = [
        tables.comparisons(analysis, family, key, f"{study.title}: {title}")
        for family, key, title in (
            (analysis.against_rgcn, "against-rgcn", "attention models against RGCN"),
            (analysis.against_constant, "against-constant", "attention against constant attention"),
        )
        if family
    ]
    layout: list[tuple[str, list[str], list[ReportTable | None]]] = [
        ("Scores", ["bars"], [tables.scores(analysis) if study.rows else None]),
        (
            "What can be concluded",
            ["p-values", "difference-rgcn", "difference-attention"],
            [*comparisons, tables.significance(analysis) if len(analysis.nine) > 1 else None],
        ),
        ("Tasks", [], [tables.tasks(analysis)]),
        (
            "The search",
            ["distribution-all", "distribution-prior", "best"],
            [tables.search(analysis), tables.importance(analysis)],
        ),
        ("Learning curves", ["train-loss", "valid-metric"], []),
        ("Settings", [], [tables.settings(analysis)]),
    ]
    blocks = [
        Block(title, [charts[key] for key in keys if key in charts], [table for table in shown if table is not None])
        for title, keys, shown in layout
    ]
    return [block for block in blocks if block.charts or block.tables]


def to_page(sections: Sequence[Section], studies: Sequence[Study], svgs: dict[str, bytes]) -> str:
    """Return the HTML page, given its sections and the SVG of each chart by key."""
    body, contents = [], []
    for section in sections:
        blocks = "".join(_block(block, svgs) for block in section.blocks)
        title, key, study = html.escape(section.title), html.escape(section.key), data_attributes(study=section.study)
        body.append(f'<section id="{key}"{study}><h2>{title}</h2>{_paragraphs(section.paragraphs)}{blocks}</section>')
        contents.append(f'<li{study}><a href="#{key}">{title}</a></li>')
    asset = {end: (files("rgat.report") / f"page.{end}").read_text(encoding="utf-8") for end in ("html", "css", "js")}
    models = dict.fromkeys(row.model for study in studies for row in study.rows)
    return Template(asset["html"]).substitute(
        title=html.escape(f"Results: {', '.join(dict.fromkeys(study.title for study in studies))}"),
        lead=html.escape(_lead(studies)),
        style=asset["css"],
        script=asset["js"],
        contents="".join(contents),
        studies=_checkboxes("study", {study.key: study.title for study in studies}),
        models=_checkboxes("model", {model: model for model in models}),
        body="".join(body),
    )


def _lead(studies: Sequence[Study]) -> str:
    runs, trials = sum(len(study.runs) for study in studies), sum(len(study.trials) for study in studies)
    sets = len({study.data for study in studies})
    searched = f" and {trials:,} search trials" if trials else ""
    return f"{runs:,} final runs{searched} on {sets} data set{'s' if sets > 1 else ''}."


def _checkboxes(kind: str, names: dict[str, str]) -> str:
    boxes = []
    for value, name in names.items():
        box = f'<input type="checkbox" checked data-pick="{kind}" value="{html.escape(value)}">'
        boxes.append(f"<label>{box} {html.escape(name)}</label>")
    return "".join(boxes)


def _paragraphs(paragraphs: Sequence[str]) -> str:
    return "".join(f"<p>{html.escape(paragraph)}</p>" for paragraph in paragraphs)


def _block(block: Block, svgs: dict[str, bytes]) -> str:
    title = f"<h3>{html.escape(block.title)}</h3>" if block.title else ""
    charts = "".join(chart.to_html(svgs[chart.key]) for chart in block.charts)
    charts = f'<div class="charts">{charts}</div>' if charts else ""
    content = f"{title}{_paragraphs(block.paragraphs)}{charts}{''.join(map(to_html, block.tables))}"
    return f'<div class="block"{data_attributes(study=block.study)}>{content}</div>'


def to_document(sections: Sequence[Section]) -> str:
    """Return the report as Markdown: text and tables, no charts."""
    lines = ["# Results", "", "Generated by `rgat report` from the records; do not edit.", ""]
    for section in sections:
        lines += [f"## {escape_markdown(section.title)}", ""]
        lines += [f"{escape_markdown(paragraph)}\n" for paragraph in section.paragraphs]
        for block in section.blocks:
            if block.paragraphs or block.tables:
                lines += [f"### {escape_markdown(block.title)}", ""] if block.title else []
                lines += [f"{escape_markdown(paragraph)}\n" for paragraph in block.paragraphs]
                lines += [to_markdown(table) for table in block.tables]
    return "\n".join(lines).rstrip() + "\n"
