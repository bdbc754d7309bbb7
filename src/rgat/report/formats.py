"""A table as HTML, Markdown, CSV and LaTeX; a chart as SVG, PDF, PNG and as HTML with marks to hover over and hide."""

from __future__ import annotations

import csv
import html
import io
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from rgat.data.tables import csv_cell

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Value = float | str | None


@dataclass(frozen=True)
class Cell:
    """One entry of a table."""

    text: str
    values: tuple[Value, ...] = ()  # one per field of its column; the page sorts by the first
    bold: bool = False
    underline: bool = False
    note: str | None = None  # a footnote
    tone: str | None = None  # class in the page's style sheet: "good", "bad" or "open"


EMPTY = Cell("-")


@dataclass(frozen=True)
class Column:
    """A column: title, fields in a CSV file, and the study or model whose checkbox on the page hides it."""

    title: str
    fields: tuple[str, ...] = ()
    study: str | None = None
    text: bool = False  # left-aligned
    model: str | None = None


@dataclass(frozen=True)
class Line:
    """A line: cells, the group it belongs to, and the model or study whose checkbox on the page hides it."""

    cells: list[Cell]
    group: str | None = None
    model: str | None = None
    study: str | None = None


@dataclass(frozen=True)
class ReportTable:
    """A table with a name for files, a caption, and notes below it."""

    key: str
    caption: str
    columns: list[Column]
    lines: list[Line]
    notes: list[str] = field(default_factory=list)
    folded: bool = False  # collapsed on the page

    def letters(self) -> dict[str, str]:
        """Return the letter of each footnote, in reading order."""
        notes = dict.fromkeys(cell.note for line in self.lines for cell in line.cells if cell.note)
        return {note: chr(ord("a") + i) for i, note in enumerate(notes)}

    def grouped_lines(self) -> Iterator[str | Line]:
        """Yield the lines; if there are several groups, the name of each before its first line."""
        several = len({line.group for line in self.lines}) > 1
        last: str | None = None
        for line in self.lines:
            if several and line.group and line.group != last:
                yield line.group
            last = line.group
            yield line


class _Markup(NamedTuple):
    """How one format escapes text and marks cells; a mark is the text before and the text after."""

    escape: Callable[[str], str]
    bold: tuple[str, str]
    underline: tuple[str, str]
    superscript: tuple[str, str]

    def cells(self, table: ReportTable, line: Line) -> list[str]:
        letters = table.letters()
        texts = []
        for cell in line.cells:
            text = self.escape(cell.text)
            text = _wrap(text, self.bold) if cell.bold else text
            text = _wrap(text, self.underline) if cell.underline else text
            texts.append(text + (_wrap(letters[cell.note], self.superscript) if cell.note else ""))
        return texts

    def notes(self, table: ReportTable, space: str = " ") -> list[str]:
        """Return the footnotes with their letters, then the notes of the whole table, which have none."""
        letters = table.letters().items()
        footnotes = [_wrap(letter, self.superscript) + space + self.escape(note) for note, letter in letters]
        return [*footnotes, *map(self.escape, table.notes)]


def _wrap(text: str, mark: tuple[str, str]) -> str:
    return f"{mark[0]}{text}{mark[1]}"


_HTML = _Markup(html.escape, ("<strong>", "</strong>"), ("<u>", "</u>"), ("<sup>", "</sup>"))


def to_html(table: ReportTable) -> str:
    """Return a sortable table in a box that scrolls on its own."""
    head = "".join(
        f'<th scope="col"{_column_attributes(column)}><button type="button">{html.escape(column.title)}</button></th>'
        for column in table.columns
    )
    body = []
    for line in table.grouped_lines():
        if isinstance(line, str):
            body.append(f'<tr class="group"><th colspan="{len(table.columns)}">{html.escape(line)}</th></tr>')
            continue
        tags = ['th scope="row"', *["td"] * (len(line.cells) - 1)]
        cells = map(_html_cell, tags, table.columns, line.cells, _HTML.cells(table, line))
        body.append(f"<tr{data_attributes(model=line.model, study=line.study)}>{''.join(cells)}</tr>")
    notes = "".join(f"<li>{note}</li>" for note in _HTML.notes(table))
    caption = html.escape(table.caption)
    content = (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{caption}">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"
        + (f'<ul class="notes">{notes}</ul>' if notes else "")
    )
    if table.folded:
        return f'<details class="table" id="table-{table.key}"><summary>{caption}</summary>{content}</details>'
    return f'<figure class="table" id="table-{table.key}"><figcaption>{caption}</figcaption>{content}</figure>'


def data_attributes(**values: str | None) -> str:
    """Return HTML attributes named ``data-...`` for the values that are set."""
    return "".join(f' data-{name}="{html.escape(value)}"' for name, value in values.items() if value)


def _column_attributes(column: Column) -> str:
    return data_attributes(study=column.study, model=column.model) + (' class="text"' if column.text else "")


def _html_cell(tag: str, column: Column, cell: Cell, text: str) -> str:
    text = f'<span class="tone {cell.tone}">{text}</span>' if cell.tone else text
    value = cell.values[0] if cell.values else None
    sort = f' data-value="{value!r}"' if isinstance(value, float | int) else ""
    return f"<{tag}{_column_attributes(column)}{sort}>{text}</{tag[:2]}>"


def escape_markdown(text: str) -> str:
    """Return text that Markdown shows as it is."""
    return re.sub(r"([\\|*_<>`\[\]])", r"\\\1", text)


_MARKDOWN = _Markup(escape_markdown, ("**", "**"), ("<ins>", "</ins>"), ("<sup>", "</sup>"))


def to_markdown(table: ReportTable) -> str:
    """Return a table for a Markdown file."""
    rule = " | ".join(":---" if column.text else "---:" for column in table.columns)
    lines = [f"| {' | '.join(escape_markdown(column.title) for column in table.columns)} |", f"| {rule} |"]
    for line in table.grouped_lines():
        if isinstance(line, str):
            lines.append(f"| *{escape_markdown(line)}* |{' |' * (len(table.columns) - 1)}")
        else:
            lines.append(f"| {' | '.join(_MARKDOWN.cells(table, line))} |")
    notes = [f"- {note}" for note in _MARKDOWN.notes(table)]
    return "\n".join([f"**{escape_markdown(table.caption)}**", "", *lines, *([""] if notes else []), *notes, ""])


def to_csv(table: ReportTable) -> str:
    """Return numbers in full precision, with a column for each field."""
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


_LATEX_CHARACTERS = {
    "\\": r"\textbackslash{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
    **{character: f"{{{character}}}" for character in "[]"},  # LaTeX reads a bracket after \\ as an option
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "±": r"$\pm$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
}


def _escape_latex(text: str) -> str:
    known = "".join(_LATEX_CHARACTERS.get(character, character) for character in text)
    return known.encode("ascii", "replace").decode()  # independent of the document's input encoding


_LATEX = _Markup(_escape_latex, (r"\textbf{", "}"), (r"\underline{", "}"), (r"\textsuperscript{", "}"))


def to_latex(table: ReportTable) -> str:
    """Return a floating table with booktabs rules."""
    lines = [
        r"\begin{table}[ht]",
        r"  \centering",
        f"  \\caption{{{_escape_latex(table.caption)}}}",
        f"  \\label{{tab:{table.key}}}",
        f"  \\begin{{tabular}}{{{''.join('l' if column.text else 'r' for column in table.columns)}}}",
        r"    \toprule",
        f"    {' & '.join(_escape_latex(column.title) for column in table.columns)} \\\\ \\midrule",
    ]
    for i, line in enumerate(table.grouped_lines()):
        if isinstance(line, str):
            rule = r"\midrule " if i else ""
            name = _escape_latex(line)
            lines.append(f"    {rule}\\multicolumn{{{len(table.columns)}}}{{l}}{{\\emph{{{name}}}}} \\\\")
        else:
            lines.append(f"    {' & '.join(_LATEX.cells(table, line))} \\\\")
    lines += [r"    \bottomrule", r"  \end{tabular}"]
    lines += [f"  \\par\\footnotesize {note}" for note in _LATEX.notes(table, space="")]
    return "\n".join([*lines, r"\end{table}", ""])


# Colours in print; the page replaces each by the variable of this name in its style sheet, for its dark theme.
COLOURS = {
    "ink": "#1c2530",
    "muted": "#5c6773",
    "line": "#d5dae0",
    "accent": "#2f6f8f",
    "blue": "#4477aa",  # with yellow and red, a palette for colour-blind readers
    "yellow": "#ddaa33",
    "red": "#bb5566",
    "search-green": "#117733",
    "search-blue": "#0072b2",
    "search-orange": "#e08214",
}
WIDTH = 4.7  # inches; a column of a journal, and of the page
TAG = re.compile(r"<[^>]*>")  # of an SVG; text between tags comes from records and is left alone
LONGEST_LABEL = 48  # characters; a longer label would leave no room for the axes

_STYLE: Any = {
    "svg.hashsalt": "rgat",  # the same chart has the same bytes
    "svg.fonttype": "none",  # text stays text: searchable, and in the reader's font
    "pdf.fonttype": 3,  # embedded in full; type 42 takes ten times as long to write
    "font.size": 9.5,
    "axes.titlesize": 10.0,
    "axes.edgecolor": COLOURS["muted"],
    "axes.labelcolor": COLOURS["ink"],
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": COLOURS["line"],
    "grid.linewidth": 0.6,
    "text.color": COLOURS["ink"],
    "xtick.color": COLOURS["muted"],
    "ytick.color": COLOURS["muted"],
    "xtick.labelcolor": COLOURS["ink"],
    "ytick.labelcolor": COLOURS["ink"],
    "hatch.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "path.simplify": True,
}


class Chart:
    """A figure with a title, a caption that says how to read it, and a key that names its files.

    On the page, hovering shows the values of its ``lines``, and a ``tall`` chart has two others beside it.
    """

    def __init__(
        self, key: str, title: str, caption: str, height: float, lines: bool = False, tall: bool = False
    ) -> None:
        from matplotlib.figure import Figure

        self.key, self.title, self.caption, self.lines, self.tall = key, title, caption, lines, tall
        self.figure: Figure = Figure(figsize=(WIDTH, height), layout="constrained")
        self.axes: Axes = self.figure.add_subplot()
        self._marks: list[dict[str, str]] = []

    def mark(self, artist: Any, **attributes: str) -> None:
        """Give an artist attributes on the page: ``model`` to hide it, ``tip`` to show, ``line`` to name its values."""
        artist.set_gid(f"mark-{len(self._marks)}")
        self._marks.append(attributes)

    def save(self) -> dict[str, bytes]:
        """Return the contents of the figure's files, by their suffix: svg, pdf and png."""
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.backends.backend_pdf import FigureCanvasPdf
        from matplotlib.backends.backend_svg import FigureCanvasSVG

        self.figure.draw_without_rendering()  # computes the layout, which all formats share
        self.figure.set_layout_engine("none")
        # Not `savefig`, which draws everything twice; and no dates or versions, so equal charts give equal bytes.
        svg, pdf, png = io.BytesIO(), io.BytesIO(), io.BytesIO()
        FigureCanvasSVG(self.figure).print_svg(svg, metadata={"Date": None, "Creator": None})  # type: ignore[no-untyped-call]
        self.figure.set_facecolor("white")
        no_metadata = {"CreationDate": None, "Creator": None, "Producer": None}
        FigureCanvasPdf(self.figure).print_pdf(pdf, metadata=no_metadata)  # type: ignore[no-untyped-call]
        self.figure.dpi = 200
        FigureCanvasAgg(self.figure).print_png(png, metadata={"Software": None})  # type: ignore[no-untyped-call]
        return {"svg": svg.getvalue(), "pdf": pdf.getvalue(), "png": png.getvalue()}

    def to_html(self, svg: bytes) -> str:
        """Return the chart for the page: its SVG with colours as variables, marks as attributes and unique ids."""
        text = svg.decode()
        text = text[text.index("<svg") :]
        text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
        used = {name for tag in TAG.findall(text) for name in re.findall(r"#([\w-]+)", tag)}
        text = TAG.sub(lambda tag: self._tag(tag.group(), used), text)
        text = re.sub(r'<svg [^>]*viewBox="([^"]*)"[^>]*>', self._opening, text, count=1)
        kind = "chart tall" if self.tall else "chart"
        return (
            f'<figure class="{kind}" id="chart-{self.key}"><figcaption><b>{html.escape(self.title)}</b> '
            f"{html.escape(self.caption)}</figcaption>{text}</figure>"
        )

    def _tag(self, text: str, used: set[str]) -> str:
        text = re.sub(r"font: (?:\d+ )?([\d.]+)px '?[^;\"]*;?", r"font-size: \1px;", text)
        for name, colour in COLOURS.items():
            text = text.replace(colour, f"var(--{name})")
        text = re.sub(r' id="([^"]*)"', lambda match: self._identity(match.group(1), used), text)
        return re.sub(r"(url\(#|href=\"#)", rf"\g<1>{self.key}-", text)

    def _identity(self, name: str, used: set[str]) -> str:
        if name.startswith("mark-"):
            return data_attributes(**self._marks[int(name.removeprefix("mark-"))])
        return f' id="{self.key}-{name}"' if name in used else ""

    def _opening(self, match: re.Match[str]) -> str:
        """Return the opening tag, with the scales of the axes where the page reads values off lines."""
        scale = ""
        if self.lines:
            box = self.axes.get_window_extent()
            points = 72 / self.figure.dpi
            height = self.figure.get_figheight() * 72
            x = (box.x0 * points, box.x1 * points, *self.axes.get_xlim())
            y = (height - box.y0 * points, height - box.y1 * points, *self.axes.get_ylim())
            scale = data_attributes(
                x=" ".join(f"{value:.6g}" for value in x),
                y=" ".join(f"{value:.6g}" for value in y),
                xlabel=self.axes.get_xlabel(),
                ylabel=self.axes.get_ylabel(),
                yscale=self.axes.get_yscale(),
            )
        label = html.escape(f"{self.title} {self.caption}")
        return f'<svg viewBox="{match.group(1)}" role="img" aria-label="{label}"{scale}>'


def plain(text: str) -> str:
    """Return a name as a chart label: shortened if it is too long, and never read as a formula."""
    text = text if len(text) <= LONGEST_LABEL else f"{text[: LONGEST_LABEL - 1]}…"
    return text.replace("$", r"\$")


@contextmanager
def chart_style() -> Iterator[None]:
    """Let matplotlib draw in the report's style, whatever the user's own style is."""
    import matplotlib as mpl

    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_STYLE)
        yield
