"""Build the documentation site as `make docs` does, and look at what it holds."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from test_public_names import public_names

ROOT = Path(__file__).parent.parent
NEEDED = ("zensical", "mkdocstrings_handlers", "latex2mathml")
missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]


def load_script(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.skipif(bool(missing), reason=f"the site needs {', '.join(missing)} (extra `docs`)")
def test_the_site_builds_without_warnings_and_has_every_public_name(tmp_path):
    command = [sys.executable, ROOT / "scripts" / "build_docs.py", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "No issues found" in done.stdout + done.stderr
    assert "links checked" in done.stdout

    pages = {path.stem: path.read_text() for path in (tmp_path / "site" / "api").glob("*.html")}
    names = [f"{package}.{name}" for package, name in public_names()]
    names = [name for name in names if not name.startswith("rgat.data.store.") or name.endswith("label_store")]
    assert not [name for name in names if not any(f'id="{name}"' in page for page in pages.values())]
    assert sum(page.count("Examples:") for page in pages.values()) >= len(names)

    for page in ("theory", "api/nn"):  # formulas are drawn without scripts
        text = (tmp_path / "site" / f"{page}.html").read_text()
        assert text.count("<math") >= 20
        assert "arithmatex" not in text


def test_figures_are_those_that_the_script_draws():
    figures = load_script("figures").FIGURES
    assert len(figures) == 5
    for name, draw in figures.items():
        assert (ROOT / "docs" / name).read_text(encoding="utf-8") == draw()


def test_broken_links_are_found(tmp_path):
    (tmp_path / "other.html").write_text('<h1 id="here">x</h1>')
    links = ("other.html#here", "https://x.example/a", "other.html", "mailto:a@x.example")
    broken = ("other.html#there", "missing.html", "https://nowhere", "#there", "javascript:x")
    anchors = "".join(f'<a href="{link}">x</a>' for link in links + broken)
    (tmp_path / "index.html").write_text(f'{anchors}<script src="https://x.example/a.js"></script>')
    problems, count = load_script("check_links").broken_links(tmp_path)
    assert count == len(links) + len(broken) + 1
    assert [problem.split(": ")[1] for problem in problems] == [*broken, "https://x.example/a.js"]
