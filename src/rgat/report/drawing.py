"""A chart: drawn by matplotlib, saved for print, and embedded in the page with marks to hover over and to hide."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rgat.report.formats import data_attributes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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

    def freeze(self) -> None:
        """Compute the layout now, so that all formats share it."""
        self.figure.draw_without_rendering()
        self.figure.set_layout_engine("none")

    def save(self, folder: Path) -> list[tuple[Path, bytes]]:
        """Return the paths and contents of the figure's SVG, PDF and PNG files."""
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.backends.backend_pdf import FigureCanvasPdf
        from matplotlib.backends.backend_svg import FigureCanvasSVG

        # Not `savefig`, which draws everything twice; and no dates or versions, so equal charts give equal bytes.
        svg, pdf, png = io.BytesIO(), io.BytesIO(), io.BytesIO()
        FigureCanvasSVG(self.figure).print_svg(svg, metadata={"Date": None, "Creator": None})  # type: ignore[no-untyped-call]
        self.figure.set_facecolor("white")
        no_metadata = {"CreationDate": None, "Creator": None, "Producer": None}
        FigureCanvasPdf(self.figure).print_pdf(pdf, metadata=no_metadata)  # type: ignore[no-untyped-call]
        self.figure.dpi = 200
        FigureCanvasAgg(self.figure).print_png(png, metadata={"Software": None})  # type: ignore[no-untyped-call]
        forms = {"svg": svg, "pdf": pdf, "png": png}
        return [(folder / f"{self.key}.{form}", stream.getvalue()) for form, stream in forms.items()]

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
def style() -> Iterator[None]:
    """Let matplotlib draw in the report's style, whatever the user's own style is."""
    import matplotlib as mpl

    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_STYLE)
        yield
