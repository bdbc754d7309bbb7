"""The page: one HTML file with everything in it."""

from __future__ import annotations

import html
from collections.abc import Sequence
from importlib.resources import files
from string import Template

from rgat.report.sections import Block, Section
from rgat.report.study import Study
from rgat.report.tables import to_html, to_markdown


def to_page(sections: Sequence[Section], studies: Sequence[Study], svgs: dict[str, bytes]) -> str:
    """The page, from its sections and the SVG of each chart by key."""
    asset = lambda name: (files("rgat.report") / name).read_text(encoding="utf-8")
    body, contents = [], []
    for section in sections:
        study = f' data-study="{html.escape(section.study)}"' if section.study else ""
        text = "".join(f"<p>{html.escape(paragraph)}</p>" for paragraph in section.paragraphs)
        blocks = "".join(_block(block, svgs) for block in section.blocks)
        title = html.escape(section.title)
        body.append(f'<section id="{section.key}"{study}><h2>{title}</h2>{text}{blocks}</section>')
        contents.append(f'<li{study}><a href="#{section.key}">{title}</a></li>')
    models = dict.fromkeys(row.model for study in studies for row in study.rows)
    return Template(asset("page.html")).substitute(
        title=html.escape(f"Results: {', '.join(dict.fromkeys(study.title for study in studies))}"),
        lead=html.escape(_lead(studies)),
        style=asset("page.css"),
        script=asset("page.js"),
        contents="".join(contents),
        studies=_choices("study", {study.key: study.title for study in studies}),
        models=_choices("model", {model: model for model in models}),
        body="".join(body),
    )


def _lead(studies: Sequence[Study]) -> str:
    runs, trials = (sum(len(getattr(study, kind)) for study in studies) for kind in ("runs", "trials"))
    sets = len({study.data for study in studies})
    parts = [f"{runs:,} final runs", *([f"{trials:,} search trials"] if trials else [])]
    return f"{' and '.join(parts)} on {sets} data set{'s' if sets > 1 else ''}."


def _choices(kind: str, names: dict[str, str]) -> str:
    return "".join(
        f'<label><input type="checkbox" checked data-pick="{kind}" value="{html.escape(value)}"> {html.escape(name)}</label>'
        for value, name in names.items()
    )


def _block(block: Block, svgs: dict[str, bytes]) -> str:
    title = f"<h3>{html.escape(block.title)}</h3>" if block.title else ""
    charts = "".join(chart.to_html(svgs[chart.key]) for chart in block.charts)
    return f"{title}{f'<div class=charts>{charts}</div>' if charts else ''}{''.join(map(to_html, block.tables))}"


def to_document(sections: Sequence[Section]) -> str:
    """The report as Markdown: text and tables, no charts."""
    lines = ["# Results", "", "Made by `rgat report` from the records; do not edit.", ""]
    for section in sections:
        lines += [f"## {section.title}", ""]
        for paragraph in section.paragraphs:
            lines += [paragraph, ""]
        for block in section.blocks:
            if block.tables:
                lines += [f"### {block.title}", ""] if block.title else []
                lines += [to_markdown(table) for table in block.tables]
    return "\n".join(lines).rstrip() + "\n"
