"""Write the report: its sections in reading order as one HTML page and one Markdown file, and all tables and charts."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from string import Template

from rgat.data.files import write_atomically
from rgat.report import tables
from rgat.report.charts import draw
from rgat.report.claims import claims_table
from rgat.report.conclusions import summarise
from rgat.report.formats import (
    Chart,
    ReportTable,
    chart_style,
    data_attributes,
    escape_markdown,
    to_csv,
    to_html,
    to_latex,
    to_markdown,
)
from rgat.report.records import LEFT_OUT, load_studies
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


PAGE = "report.html"
MOST_DAMAGE = 20  # sentences for `on_damage`
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


def check_libraries() -> None:
    """Raise an ImportError unless the libraries of the report are installed; call it before a long training."""
    try:
        import matplotlib as mpl
        import scipy
    except ImportError as error:
        raise ImportError(
            f"a report needs matplotlib and scipy ({error}); install them with `pip install 'rgat[report]'`"
        ) from error
    del mpl, scipy


def write_report(runs: Sequence[Path], out: Path, on_damage: Callable[[str], None] | None = None) -> Path:
    """Write the report on all records at or below ``runs`` into the folder ``out``, and return the path of its page.

    The folder then holds ``report.html``, ``results.md``, ``tables/*.csv`` and ``*.tex``, and ``charts/*.svg``,
    ``*.pdf`` and ``*.png``. The same records give the same bytes. Damaged records and files are left out, and the page
    lists them.

    Args:
        runs: folders and packed files of records.
        out: the folder.
        on_damage: called with a sentence on each of the first 20 damaged records and files, and one with their number.
    """
    check_libraries()
    studies, notices = load_studies(runs)
    left_out = [notice for notice in notices if notice.startswith(LEFT_OUT)]
    if left_out:
        count = f"Damaged records and files that are left out: {len(left_out)}."
        notices.insert(0, count)
        if on_damage is not None:
            for sentence in (*left_out[:MOST_DAMAGE], count):
                on_damage(sentence)
    with chart_style():
        sections = arrange(studies, notices)
        blocks = [block for section in sections for block in section.blocks]
        svgs = {}
        for chart in (chart for block in blocks for chart in block.charts):
            contents = chart.save()
            svgs[chart.key] = contents["svg"]
            for form, content in contents.items():
                write_atomically(out / "charts" / f"{chart.key}.{form}", content)
    for table in (table for block in blocks for table in block.tables):
        write_atomically(out / "tables" / f"{table.key}.csv", to_csv(table).encode())
        write_atomically(out / "tables" / f"{table.key}.tex", to_latex(table).encode())
    write_atomically(out / "results.md", to_document(sections).encode())
    write_atomically(out / PAGE, to_page(sections, studies, svgs).encode())
    return out / PAGE


def arrange(studies: Sequence[Study], notices: Sequence[str]) -> list[Section]:
    """Return all sections in reading order."""
    claims = claims_table(studies)
    provenance = tables.provenance(studies)
    summaries = [Block(study.title, paragraphs=summarise(study), study=study.key) for study in studies]
    sections = [
        Section("summary", "Summary", blocks=summaries),
        Section("notices", "Read this first", list(notices)),
        Section("results", "Results", blocks=_overview(studies)),
        *(Section(s.key, s.title, blocks=_study_blocks(s), study=s.key) for s in studies),
        Section("claims", "The paper's claims", blocks=[Block(None, tables=[claims])] if claims else []),
        Section("reading", "How to read this", READING),
        Section("provenance", "Provenance", blocks=[Block(None, tables=provenance)]),
    ]
    return [section for section in sections if section.paragraphs or section.blocks]


def _overview(studies: Sequence[Study]) -> list[Block]:
    """Return the paper's table of results, one for nodes and one for graphs."""
    with_runs = [study for study in studies if study.rows]
    nodes = [study for study in with_runs if study.is_node]
    graphs = [study for study in with_runs if not study.is_node]
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


def _study_blocks(study: Study) -> list[Block]:
    charts = {chart.key.removeprefix(f"{study.key}-"): chart for chart in draw(study)}
    comparisons = [
        tables.comparisons(study, family, key, f"{study.title}: {title}")
        for family, key, title in (
            (study.against_rgcn, "against-rgcn", "attention models against RGCN"),
            (study.against_constant, "against-constant", "attention against constant attention"),
        )
        if family
    ]
    layout: list[tuple[str, list[str], list[ReportTable | None]]] = [
        ("Scores", ["bars"], [tables.scores(study) if study.rows else None]),
        (
            "What can be concluded",
            ["p-values", "difference-rgcn", "difference-attention"],
            [*comparisons, tables.significance(study) if len(study.nine) > 1 else None],
        ),
        ("Tasks", [], [tables.tasks(study)]),
        (
            "The search",
            ["distribution-all", "distribution-prior", "best"],
            [tables.search(study), tables.importance(study)],
        ),
        ("Learning curves", ["train-loss", "valid-metric"], []),
        ("Settings", [], [tables.settings(study)]),
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
