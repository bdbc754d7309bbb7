"""Draw the figures of the documentation as SVG; the same bytes every time.

python scripts/figures.py docs
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path

BLUE, ORANGE, INK, GREY, GREEN = "#1f6fb2", "#c4621a", "#222222", "#c9c9c9", "#e0e8d8"
# Logits of the edges into one node, for each of two relations; both figures of attention show the same ones.
LOGITS = {"relation 1": (1.8, 0.0, 1.1), "relation 2": (0.2, 1.0)}


def svg(width: int, height: int, label: str, *parts: str) -> str:
    """Return a picture on a white ground, so that it can be read in light and dark mode."""
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{label}"'
    ground = f'<rect width="{width}" height="{height}" rx="8" fill="#ffffff"/>'
    return "\n  ".join([f'{head} font-family="sans-serif" font-size="13">', ground, *parts]) + "\n</svg>\n"


def text(x: float, y: float, words: str, fill: str = INK, **options: object) -> str:
    """Return words; options are attributes of the element."""
    attributes = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in options.items())
    return f'<text x="{x:g}" y="{y:g}" fill="{fill}"{attributes}>{words}</text>'


def softmax(logits: Sequence[float]) -> list[float]:
    """Return the softmax."""
    total = sum(math.exp(logit) for logit in logits)
    return [math.exp(logit) / total for logit in logits]


def attention_figure(across: bool) -> str:
    """Draw the attention of five edges of two relations into one node."""
    sizes = [len(logits) for logits in LOGITS.values()]
    attention = [value for logits in LOGITS.values() for value in softmax(logits)]
    if across:
        attention = softmax([logit for logits in LOGITS.values() for logit in logits])
    logits = [logit for values in LOGITS.values() for logit in values]
    parts = [text(230, 22, f"{'across' if across else 'within'} relations", font_weight="bold", text_anchor="middle")]
    groups = [(34, 232)] if across else [(34, 136), (174, 92)]
    parts += [
        f'<rect x="14" y="{top}" width="196" height="{height}" rx="12" fill="none" stroke="{GREY}"/>'
        for top, height in groups
    ]
    for number, (logit, value) in enumerate(zip(logits, attention, strict=True)):
        first = number < sizes[0]
        y, colour = (60 + 42 * number) if first else (200 + 42 * (number - sizes[0])), BLUE if first else ORANGE
        dashes = "" if first else ' stroke-dasharray="7 4"'
        end = 138 + 8 * (number - 2)
        parts += [
            f'<path d="M190 {y} L366 {end}" fill="none" stroke="{colour}" stroke-width="{1 + 7 * value:.2f}"{dashes}/>',
            f'<circle cx="176" cy="{y}" r="13" fill="#f2f2f2" stroke="#444444"/>',
            text(176, y + 4, "j", font_style="italic", text_anchor="middle"),
            text(28, y + 4, f"E = {logit:.1f}", "#666666", font_size=11),
            text(84, y + 4, f"&#945; = {value:.2f}", colour, font_weight="bold"),
        ]
    parts += [
        f'<circle cx="390" cy="138" r="22" fill="{GREEN}" stroke="#444444"/>',
        text(390, 143, "i", font_style="italic", text_anchor="middle"),
    ]
    if across:
        parts.append(text(448, 258, "all edges of i sum to 1", text_anchor="end", font_size=12))
    else:
        parts.append(text(448, 52, "relation 1 sums to 1", BLUE, text_anchor="end", font_size=12))
        parts.append(text(448, 258, "relation 2 sums to 1", ORANGE, text_anchor="end", font_size=12))
    name = "ARGAT: one softmax over all relations" if across else "WIRGAT: a softmax per relation"
    return svg(460, 280, name, *parts)


def chain(x: float, title: str, boxes: Sequence[tuple[str, str]]) -> list[str]:
    """Draw boxes from top to bottom, an arrow between each two; the second word of a pair is the shape."""
    parts = [text(x + 125, 24, title, font_weight="bold", text_anchor="middle")]
    for number, (name, shape) in enumerate(boxes):
        y = 40 + 46 * number
        fill = GREEN if "RGAT" in name else "#f2f2f2"
        if number:
            parts.append(f'<path d="M{x + 125} {y - 16} V{y - 4}" stroke="{INK}" marker-end="url(#arrow)"/>')
        parts.append(f'<rect x="{x}" y="{y}" width="250" height="30" rx="6" fill="{fill}" stroke="#888888"/>')
        parts.append(text(x + 10, y + 20, name))
        parts.append(text(x + 240, y + 20, shape, "#666666", text_anchor="end", font_size=11))
    return parts


def models_figure() -> str:
    """Draw the two models."""
    nodes = [
        ("node features, or none", "N &#215; F"),
        ("RGAT, concat heads", "N &#215; hidden"),
        ("ReLU", ""),
        ("RGAT, mean of heads", "N &#215; classes"),
        ("softmax", ""),
    ]
    graphs = [
        ("atom features", "N &#215; F"),
        ("RGAT, ReLU", "N &#215; hidden"),
        ("RGAT, ReLU", "N &#215; hidden"),
        ("GraphGather, tanh", "G &#215; 2 hidden"),
        ("dense, ReLU", "G &#215; dense"),
        ("dense, softmax", "G &#215; tasks &#215; 2"),
    ]
    arrow = (
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0 0 L8 4 L0 8 z" fill="{INK}"/></marker></defs>'
    )
    parts = [arrow, *chain(20, "NodeClassifier", nodes), *chain(300, "GraphClassifier", graphs)]
    return svg(570, 320, "The two models, layer by layer", *parts)


def plan_figure() -> str:
    """Draw the two orders of projection and sum for one relation of a target."""
    parts = []
    for x, title, projected in ((20, "project, then sum", True), (250, "sum, then project", False)):
        parts.append(text(x + 95, 24, title, font_weight="bold", text_anchor="middle"))
        for number in range(4):
            y = 50 + 34 * number
            parts.append(f'<circle cx="{x + 14}" cy="{y}" r="9" fill="#f2f2f2" stroke="#444444"/>')
            parts.append(f'<path d="M{x + 24} {y} L{x + 160} 101" stroke="{BLUE}" fill="none"/>')
            if projected:
                parts.append(
                    f'<rect x="{x + 40}" y="{y - 11}" width="26" height="22" fill="{GREEN}" stroke="#888888"/>'
                )
                parts.append(text(x + 53, y + 4, "W", text_anchor="middle", font_style="italic"))
        if not projected:
            parts.append(f'<rect x="{x + 116}" y="88" width="26" height="26" fill="{GREEN}" stroke="#888888"/>')
            parts.append(text(x + 129, 105, "W", text_anchor="middle", font_style="italic"))
        parts.append(f'<circle cx="{x + 174}" cy="101" r="14" fill="{GREEN}" stroke="#444444"/>')
        parts.append(text(x + 174, 106, "i", text_anchor="middle", font_style="italic"))
        products = "4 products, one per source" if projected else "1 product, one per target"
        parts.append(text(x + 95, 190, products, "#666666", text_anchor="middle", font_size=12))
    return svg(460, 206, "A relation of a target: project its four sources, or their weighted sum", *parts)


def logo() -> str:
    """Draw three nodes and two kinds of edges."""
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 24 24">\n'
        f'  <g fill="none" stroke-width="2"><path d="M5 6 L18 12" stroke="{BLUE}"/>'
        f'<path d="M6 19 L18 12" stroke="{ORANGE}" stroke-dasharray="3 2"/></g>\n'
        f'  <circle cx="5" cy="6" r="3.4" fill="{BLUE}"/><circle cx="6" cy="19" r="3.4" fill="{ORANGE}"/>'
        '<circle cx="18" cy="12" r="4.4" fill="#5b8c3a"/>\n</svg>\n'
    )


FIGURES = {
    "within.svg": lambda: attention_figure(across=False),
    "across.svg": lambda: attention_figure(across=True),
    "images/models.svg": models_figure,
    "images/plan.svg": plan_figure,
    "images/logo.svg": logo,
}


def main() -> None:
    """Write all figures below a folder."""
    for name, draw in FIGURES.items():
        (Path(sys.argv[1]) / name).write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main()
