"""Turn the LaTeX of pages and docstrings into MathML, which browsers draw without scripts, fonts or a network."""

from __future__ import annotations

from typing import Any
from xml.etree.ElementTree import Element

from latex2mathml.converter import convert
from markdown import Markdown
from markdown.extensions import Extension
from markdown.treeprocessors import Treeprocessor


class _MathProcessor(Treeprocessor):
    """Replace the formulas that `pymdownx.arithmatex` found."""

    def run(self, root: Element) -> None:
        assert self.md is not None
        for element in list(root.iter()):
            if element.get("class") != "arithmatex" or not element.text:
                continue
            display = element.text.startswith("\\[")
            mathml = convert(element.text[2:-2].strip(), display="block" if display else "inline")
            element.text = self.md.htmlStash.store(mathml)
            element.set("class", "equation" if display else "formula")


class MathExtension(Extension):
    """Draw formulas as MathML; needs `pymdownx.arithmatex` with `generic: true`."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802 (the name is the library's)
        """Register the processor, after that of inline text."""
        md.treeprocessors.register(_MathProcessor(md), "mathml", 0)


def makeExtension(**options: Any) -> MathExtension:  # noqa: N802 (the name is the library's)
    """Return the extension; Markdown calls this."""
    return MathExtension(**options)
