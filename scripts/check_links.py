"""Check the links of a built site: files and anchors inside it, the form of addresses outside it.

python scripts/check_links.py build/site
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"script", "img", "iframe", "source", "video", "audio", "embed"}  # what a browser fetches by itself
LOADED_RELATIONS = {"stylesheet", "icon", "preconnect", "preload", "manifest"}


class _Page(HTMLParser):
    """Collect the anchors and links of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[tuple[str, bool]] = []  # address, and whether a browser loads it by itself
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.anchors.update(value for name in ("id", "name") if (value := values.get(name)))
        if src := values.get("src"):
            self.links.append((src, tag in LOADED))
        if href := values.get("href"):
            loaded = tag == "link" and not LOADED_RELATIONS.isdisjoint((values.get("rel") or "").split())
            self.links.append((href, loaded))


def broken_links(site: Path) -> tuple[list[str], int]:
    """Return a sentence for each broken link, and the number of links."""
    pages = {path: _Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    problems, count = [], 0
    for path, page in pages.items():
        for address, loaded in page.links:
            count += 1
            problem = _problem(site, path, address, loaded, pages)
            if problem:
                problems.append(f"{path.relative_to(site)}: {address}: {problem}")
    return problems, count


def _problem(site: Path, path: Path, address: str, loaded: bool, pages: dict[Path, _Page]) -> str | None:
    parts = urlsplit(address)
    if parts.scheme in ("http", "https"):
        if loaded:
            return "is loaded from another site"
        return None if "." in parts.netloc and " " not in address else "is not a web address"
    if parts.scheme in ("mailto", "data"):
        return None
    if parts.scheme or parts.netloc:
        return "must be a relative path, or begin with https://"
    base = site if parts.path.startswith("/") else path.parent
    target = path if not parts.path else (base / unquote(parts.path).lstrip("/")).resolve()
    target = target / "index.html" if target.is_dir() else target
    if not target.is_file():
        return "no such file"
    if parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
        return "no such anchor"
    return None


if __name__ == "__main__":
    found, total = broken_links(Path(sys.argv[1]).resolve())
    print("\n".join(found) or f"{total:,} links, none broken")
    sys.exit(bool(found))
