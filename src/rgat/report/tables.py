"""One structure for every table, and its four forms: HTML, Markdown, CSV, LaTeX."""

from __future__ import annotations

import csv
import html
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from rgat.data.tables import csv_cell

Value = float | str | None


@dataclass(frozen=True)
class Cell:
    """One entry.

    Attributes:
        text: what is read.
        values: what it stands for, one per field of its column; the first one sorts.
        bold: best in its class.
        underline: best of all.
        note: something to say about it below the table.
        tone: a word for the page's style sheet, "good", "bad" or "open".
    """

    text: str
    values: tuple[Value, ...] = ()
    bold: bool = False
    underline: bool = False
    note: str | None = None
    tone: str | None = None


EMPTY = Cell("-")


@dataclass(frozen=True)
class Column:
    """One column: its title, its fields in a CSV file, and the study or model it is of, for the page's picker."""

    title: str
    fields: tuple[str, ...] = ()
    study: str | None = None
    text: bool = False  # set to the left
    model: str | None = None


@dataclass(frozen=True)
class Line:
    """One line: its cells, the group it stands in, and the model it belongs to, for the page's picker."""

    cells: list[Cell]
    group: str | None = None
    model: str | None = None
    study: str | None = None


@dataclass(frozen=True)
class Table:
    """A table with a name for files, a caption, and notes below."""

    key: str
    caption: str
    columns: list[Column]
    lines: list[Line]
    notes: list[str] = field(default_factory=list)
    folded: bool = False  # in the page, to be opened

    def all_notes(self) -> list[str]:
        """The notes of cells, in reading order, then those of the whole."""
        of_cells = (cell.note for line in self.lines for cell in line.cells if cell.note)
        return [*dict.fromkeys(of_cells), *self.notes]

    def mark(self, cell: Cell) -> str:
        """The letter of a cell's note, or nothing."""
        return chr(ord("a") + self.all_notes().index(cell.note)) if cell.note else ""

    def rows(self) -> Iterator[str | Line]:
        """Lines, each group announced by its name where the table has several."""
        several = len({line.group for line in self.lines}) > 1
        last: str | None = None
        for line in self.lines:
            if several and line.group and line.group != last:
                yield line.group
            last = line.group
            yield line


def _lettered(table: Table) -> Iterator[tuple[str, str]]:
    """Notes with the letters of those that cells refer to."""
    marks = {cell.note: table.mark(cell) for line in table.lines for cell in line.cells if cell.note}
    for note in table.all_notes():
        yield marks.get(note, ""), note


def to_html(table: Table) -> str:
    """A sortable table in a box that scrolls by itself."""
    head = "".join(
        f'<th scope="col"{_attributes(study=column.study, model=column.model)}{_side(column)}><button type="button">'
        f"{html.escape(column.title)}</button></th>"
        for column in table.columns
    )
    body = []
    for line in table.rows():
        if isinstance(line, str):
            body.append(f'<tr class="group"><th colspan="{len(table.columns)}">{html.escape(line)}</th></tr>')
            continue
        cells = [
            _html_cell(table, c, cell, i == 0)
            for i, (c, cell) in enumerate(zip(table.columns, line.cells, strict=True))
        ]
        body.append(f"<tr{_attributes(model=line.model, study=line.study)}>{''.join(cells)}</tr>")
    notes = "".join(
        f"<li>{f'<sup>{mark}</sup> ' if mark else ''}{html.escape(text)}</li>" for mark, text in _lettered(table)
    )
    caption = html.escape(table.caption)
    content = (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{caption}">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"
        + (f'<ul class="notes">{notes}</ul>' if notes else "")
    )
    if table.folded:
        return f'<details class="table" id="table-{table.key}"><summary>{caption}</summary>{content}</details>'
    return f'<figure class="table" id="table-{table.key}"><figcaption>{caption}</figcaption>{content}</figure>'


def _attributes(**values: str | None) -> str:
    return "".join(f' data-{name}="{html.escape(value)}"' for name, value in values.items() if value)


def _side(column: Column) -> str:
    return ' class="text"' if column.text else ""


def _html_cell(table: Table, column: Column, cell: Cell, first: bool) -> str:
    text = html.escape(cell.text)
    text = f"<strong>{text}</strong>" if cell.bold else text
    text = f"<u>{text}</u>" if cell.underline else text
    text += f"<sup>{table.mark(cell)}</sup>" if cell.note else ""
    if cell.tone:
        text = f'<span class="tone {cell.tone}">{text}</span>'
    value = cell.values[0] if cell.values else None
    sort = f' data-value="{value!r}"' if isinstance(value, float | int) else ""
    opening = '<th scope="row"' if first else "<td"
    picked = _attributes(study=column.study, model=column.model)
    return f"{opening}{picked}{_side(column)}{sort}>{text}</{'th' if first else 'td'}>"


def to_markdown(table: Table) -> str:
    """A table for a Markdown file."""
    rule = " | ".join(":---" if column.text else "---:" for column in table.columns)
    lines = [f"| {' | '.join(escape_markdown(column.title) for column in table.columns)} |", f"| {rule} |"]
    for line in table.rows():
        if isinstance(line, str):
            lines.append(f"| *{escape_markdown(line)}* |{' |' * (len(table.columns) - 1)}")
            continue
        cells = []
        for cell in line.cells:
            text = escape_markdown(cell.text)
            text = f"**{text}**" if cell.bold else text
            text = f"<ins>{text}</ins>" if cell.underline else text
            cells.append(text + (f"<sup>{table.mark(cell)}</sup>" if cell.note else ""))
        lines.append(f"| {' | '.join(cells)} |")
    notes = [
        f"- {f'<sup>{letter}</sup> ' if letter else ''}{escape_markdown(note)}" for letter, note in _lettered(table)
    ]
    return "\n".join([f"**{escape_markdown(table.caption)}**", "", *lines, *([""] if notes else []), *notes, ""])


def escape_markdown(text: str) -> str:
    """Text that a Markdown reader shows as it is."""
    return re.sub(r"([\\|*_<>`\[\]])", r"\\\1", text)


def to_csv(table: Table) -> str:
    """Numbers in full, a column for each field."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    names = [[f"{c.title}: {f}" if f else c.title for f in c.fields or ("",)] for c in table.columns]
    writer.writerow(["group", *(csv_cell(name) for fields in names for name in fields)])
    for line in table.lines:
        row: list[Value] = [line.group]
        for cell, fields in zip(line.cells, names, strict=True):
            values = cell.values if len(cell.values) == len(fields) else ()
            row += values or ([None] * len(fields) if cell is EMPTY else [cell.text, *[None] * (len(fields) - 1)])
        writer.writerow(csv_cell(value) if isinstance(value, str) else value for value in row)
    return stream.getvalue()


def to_latex(table: Table) -> str:
    """A floating table with booktabs rules."""
    sides = "".join("l" if column.text else "r" for column in table.columns)
    lines = [
        r"\begin{table}[ht]",
        r"  \centering",
        f"  \\caption{{{_latex(table.caption)}}}",
        f"  \\label{{tab:{table.key}}}",
    ]
    lines += [f"  \\begin{{tabular}}{{{sides}}}", r"    \toprule"]
    lines.append(f"    {' & '.join(_latex(column.title) for column in table.columns)} \\\\ \\midrule")
    for i, line in enumerate(table.rows()):
        if isinstance(line, str):
            rule = r"\midrule " if i else ""
            lines.append(f"    {rule}\\multicolumn{{{len(table.columns)}}}{{l}}{{\\emph{{{_latex(line)}}}}} \\\\")
            continue
        cells = []
        for cell in line.cells:
            text = _latex(cell.text)
            text = f"\\textbf{{{text}}}" if cell.bold else text
            text = f"\\underline{{{text}}}" if cell.underline else text
            cells.append(text + (f"\\textsuperscript{{{table.mark(cell)}}}" if cell.note else ""))
        lines.append(f"    {' & '.join(cells)} \\\\")
    lines += [r"    \bottomrule", r"  \end{tabular}"]
    for letter, note in _lettered(table):
        mark = f"\\textsuperscript{{{letter}}}" if letter else ""
        lines.append(f"  \\par\\footnotesize {mark}{_latex(note)}")
    return "\n".join([*lines, r"\end{table}", ""])


_LATEX = {
    "\\": r"\textbackslash{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
    **{character: f"{{{character}}}" for character in "[]"},  # after the end of a row, a bracket would be its option
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "±": r"$\pm$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
}


def _latex(text: str) -> str:
    known = "".join(_LATEX.get(character, character) for character in text)
    return known.encode("ascii", "replace").decode()  # no input encoding needed; names are ASCII but for the above
