"""Charts as objects: drawn once by matplotlib, saved for print, and placed in the page with marks to hover and hide."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Colours on paper. In the page each is a variable of the style sheet, so that it can be dark.
INK, MUTED, LINE, ACCENT = "#1c2530", "#5c6773", "#d5dae0", "#2f6f8f"
BLUE, YELLOW, RED = "#4477aa", "#ddaa33", "#bb5566"  # a palette that colour-blind people tell apart
SEARCH_GREEN, SEARCH_BLUE, SEARCH_ORANGE = "#117733", "#0072b2", "#e08214"
VARIABLES = {
    INK: "ink",
    MUTED: "muted",
    LINE: "line",
    ACCENT: "accent",
    BLUE: "blue",
    YELLOW: "yellow",
    RED: "red",
    SEARCH_GREEN: "search-green",
    SEARCH_BLUE: "search-blue",
    SEARCH_ORANGE: "search-orange",
}
WIDTH = 4.7  # inches; a column of a journal, and of the page
TAG = re.compile(r"<[^>]*>")  # of an SVG; in the text between tags, which may be anybody's, nothing is replaced
LONGEST_LABEL = 48  # characters; more would leave no room for the axes

_STYLE: Any = {
    "svg.hashsalt": "rgat",  # the same chart has the same bytes
    "svg.fonttype": "none",  # text stays text: searchable, and in the reader's font
    "pdf.fonttype": 3,  # embedded in full; type 42 takes ten times as long to write
    "font.size": 9.5,
    "axes.titlesize": 10.0,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": LINE,
    "grid.linewidth": 0.6,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "hatch.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "path.simplify": True,
}


class Chart:
    """One figure with a name for files and a caption.

    Attributes:
        key: its name.
        title: what it shows, in a few words.
        caption: how to read it.
        lines: whether hovering reads values off its lines.
        tall: whether two others stand beside it.
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
        """Let the page know an artist: ``model`` hides it, ``tip`` is shown over it, ``line`` names its values."""
        artist.set_gid(f"mark-{len(self._marks)}")
        self._marks.append(attributes)

    def freeze(self) -> None:
        """Lay the figure out once; every later drawing takes it as it is."""
        self.figure.draw_without_rendering()
        self.figure.set_layout_engine("none")

    def save(self, folder: Path) -> list[tuple[Path, bytes]]:
        """The figure as SVG, PDF and PNG: paths and contents."""
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.backends.backend_pdf import FigureCanvasPdf
        from matplotlib.backends.backend_svg import FigureCanvasSVG

        # Not `savefig`, which draws everything twice; and nothing about when and by what it was drawn.
        svg, pdf, png = io.BytesIO(), io.BytesIO(), io.BytesIO()
        FigureCanvasSVG(self.figure).print_svg(svg, metadata={"Date": None, "Creator": None})  # type: ignore[no-untyped-call]
        self.figure.set_facecolor("white")
        unsaid = {"CreationDate": None, "Creator": None, "Producer": None}
        FigureCanvasPdf(self.figure).print_pdf(pdf, metadata=unsaid)  # type: ignore[no-untyped-call]
        self.figure.dpi = 200
        FigureCanvasAgg(self.figure).print_png(png, metadata={"Software": None})  # type: ignore[no-untyped-call]
        forms = {"svg": svg, "pdf": pdf, "png": png}
        return [(folder / f"{self.key}.{form}", stream.getvalue()) for form, stream in forms.items()]

    def to_html(self, svg: bytes) -> str:
        """The chart for the page, from its SVG: colours as variables, marks as attributes, no stray ids."""
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
        for colour, name in VARIABLES.items():
            text = text.replace(colour, f"var(--{name})")
        text = re.sub(r' id="([^"]*)"', lambda match: self._identity(match.group(1), used), text)
        return re.sub(r"(url\(#|href=\"#)", rf"\g<1>{self.key}-", text)

    def _identity(self, name: str, used: set[str]) -> str:
        if name.startswith("mark-"):
            attributes = self._marks[int(name.removeprefix("mark-"))]
            return "".join(f' data-{key}="{html.escape(value)}"' for key, value in attributes.items())
        return f' id="{self.key}-{name}"' if name in used else ""

    def _opening(self, match: re.Match[str]) -> str:
        """The page scales the figure; a chart of lines tells where its axes are, so that values can be read off."""
        scale = ""
        if self.lines:
            box = self.axes.get_window_extent()
            points = 72 / self.figure.dpi
            height = self.figure.get_figheight() * 72
            x = (box.x0 * points, box.x1 * points, *self.axes.get_xlim())
            y = (height - box.y0 * points, height - box.y1 * points, *self.axes.get_ylim())
            scale = "".join(f' data-{k}="{" ".join(f"{v:.6g}" for v in values)}"' for k, values in (("x", x), ("y", y)))
            labels = {
                "xlabel": self.axes.get_xlabel(),
                "ylabel": self.axes.get_ylabel(),
                "yscale": self.axes.get_yscale(),
            }
            scale += "".join(f' data-{k}="{html.escape(v)}"' for k, v in labels.items())
        label = html.escape(f"{self.title}. {self.caption}")
        return f'<svg viewBox="{match.group(1)}" role="img" aria-label="{label}"{scale}>'


def plain(text: str) -> str:
    """A name as a label of a chart: cut if it is too long, and never read as a formula."""
    text = text if len(text) <= LONGEST_LABEL else f"{text[: LONGEST_LABEL - 1]}…"
    return text.replace("$", r"\$")


@contextmanager
def style() -> Iterator[None]:
    """Inside, matplotlib draws in the report's style, whatever the user's own is."""
    import matplotlib as mpl

    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_STYLE)
        yield
