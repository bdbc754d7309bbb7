"""The page: one HTML file with everything in it."""

from __future__ import annotations

import html
from collections.abc import Sequence
from importlib.resources import files
from string import Template

from rgat.report.sections import Block, Section
from rgat.report.study import Study
from rgat.report.tables import escape_markdown, to_html, to_markdown


def to_page(sections: Sequence[Section], studies: Sequence[Study], svgs: dict[str, bytes]) -> str:
    """The page, from its sections and the SVG of each chart by key."""
    body, contents = [], []
    for section in sections:
        study = f' data-study="{html.escape(section.study)}"' if section.study else ""
        text = "".join(f"<p>{html.escape(paragraph)}</p>" for paragraph in section.paragraphs)
        blocks = "".join(_block(block, svgs) for block in section.blocks)
        title = html.escape(section.title)
        key = html.escape(section.key)
        body.append(f'<section id="{key}"{study}><h2>{title}</h2>{text}{blocks}</section>')
        contents.append(f'<li{study}><a href="#{key}">{title}</a></li>')
    asset = {end: (files("rgat.report") / f"page.{end}").read_text(encoding="utf-8") for end in ("html", "css", "js")}
    models = dict.fromkeys(row.model for study in studies for row in study.rows)
    return Template(asset["html"]).substitute(
        title=html.escape(f"Results: {', '.join(dict.fromkeys(study.title for study in studies))}"),
        lead=html.escape(_lead(studies)),
        style=asset["css"],
        script=asset["js"],
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
    boxes = []
    for value, name in names.items():
        box = f'<input type="checkbox" checked data-pick="{kind}" value="{html.escape(value)}">'
        boxes.append(f"<label>{box} {html.escape(name)}</label>")
    return "".join(boxes)


def _block(block: Block, svgs: dict[str, bytes]) -> str:
    title = f"<h3>{html.escape(block.title)}</h3>" if block.title else ""
    charts = "".join(chart.to_html(svgs[chart.key]) for chart in block.charts)
    text = "".join(f"<p>{html.escape(paragraph)}</p>" for paragraph in block.paragraphs)
    charts = f'<div class="charts">{charts}</div>' if charts else ""
    study = f' data-study="{html.escape(block.study)}"' if block.study else ""
    return f'<div class="block"{study}>{title}{text}{charts}{"".join(map(to_html, block.tables))}</div>'


def to_document(sections: Sequence[Section]) -> str:
    """The report as Markdown: text and tables, no charts."""
    lines = ["# Results", "", "Made by `rgat report` from the records; do not edit.", ""]
    for section in sections:
        lines += [f"## {escape_markdown(section.title)}", ""]
        for paragraph in section.paragraphs:
            lines += [escape_markdown(paragraph), ""]
        for block in section.blocks:
            if block.paragraphs or block.tables:
                lines += [f"### {escape_markdown(block.title)}", ""] if block.title else []
                lines += [line for paragraph in block.paragraphs for line in (escape_markdown(paragraph), "")]
                lines += [to_markdown(table) for table in block.tables]
    return "\n".join(lines).rstrip() + "\n"
