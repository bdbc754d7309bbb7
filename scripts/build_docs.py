"""Build the documentation site and check its links.

    python scripts/build_docs.py [FOLDER]

The folder is build/ by default; the start page is site/index.html in it. Pages are those of docs/, and the changelog
and the guide for contributors from the root of the repository. Any warning, broken link, or file that a browser would
load from another site ends the build with an error.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from check_links import broken_links

ROOT = Path(__file__).resolve().parent.parent
COPIED = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}


def collect_pages(folder: Path) -> None:
    """Copy all pages into a folder; links between docs/ and the root of the repository become links in the folder."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "docs", folder)
    for name, page in COPIED.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        (folder / page).write_text(text.replace("](docs/", "]("), encoding="utf-8")
    for page in folder.rglob("*.md"):
        text = page.read_text(encoding="utf-8")
        for name, copied in COPIED.items():
            text = text.replace(f"](../{name})", f"]({copied})").replace(f"](../../{name})", f"](../{copied})")
        page.write_text(text, encoding="utf-8")


def build(folder: Path) -> Path:
    """Build the site in a folder and return where it is."""
    collect_pages(folder / "docs")
    shutil.rmtree(folder / "site", ignore_errors=True)
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").replace("paths: [src]", f"paths: [{ROOT / 'src'}]")
    (folder / "mkdocs.yml").write_text(config, encoding="utf-8")
    paths = [str(ROOT / "scripts"), os.environ.get("PYTHONPATH", "")]
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean", "-f", str(folder / "mkdocs.yml")]
    done = subprocess.run(command, cwd=folder, env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))})
    if done.returncode:
        raise SystemExit(done.returncode)
    return folder / "site"


def main() -> None:
    """Build, check, and say where the start page is."""
    site = build(Path(sys.argv[1]).resolve() if sys.argv[1:] else ROOT / "build")
    problems, links = broken_links(site)
    for problem in problems:
        print(problem, file=sys.stderr)
    if problems:
        raise SystemExit(f"{len(problems)} broken links")
    print(f"{len(list(site.rglob('*.html')))} pages, {links:,} links checked; open {site / 'index.html'}")


if __name__ == "__main__":
    main()
