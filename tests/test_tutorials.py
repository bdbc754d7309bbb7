"""Run the tutorials, the recipes and the start page from top to bottom and compare their output with the text."""

import contextlib
import io
import re
import shlex
import sys
from pathlib import Path

import pytest
from rich.console import Console

from rgat import cli

FOLDER = Path(__file__).parent.parent / "docs"
TUTORIALS = sorted(FOLDER.glob("tutorials/*.md"))
BLOCK = re.compile(r"```(python|console|text)\n(.*?)```\n", re.DOTALL)


def run_python(code, names):
    exec(compile(code, "page", "exec"), names)


def run_command(line, fails, monkeypatch):
    monkeypatch.setattr(sys, "argv", shlex.split(line))
    monkeypatch.setattr("rgat.cli.printing.console", Console(width=100))
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert (ended.value.code == 2) == fails


def shape(text):
    """Return a text without progress, and with its numbers, which differ between machines, replaced by 0."""
    lines = [line for line in text.splitlines() if not line.startswith("stage ")]
    return re.sub(r"[\d.,+-]+", "0", " ".join(" ".join(lines).split()))


def run_page(path, folder, monkeypatch):
    """Run all blocks; yield the printed and the documented output of each."""
    monkeypatch.chdir(folder)
    names, out = {"__name__": "page"}, ""
    for kind, content in BLOCK.findall(path.read_text()):
        if kind == "text":
            yield out, content
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()) as errors:
            if kind == "python":
                run_python(content, names)
            else:
                lines = content.splitlines()
                for number, line in enumerate(lines):
                    if line.startswith("$ "):
                        fails = lines[number + 1 : number + 2] and lines[number + 1].startswith("! ")
                        run_command(line[2:], bool(fails), monkeypatch)
                        if fails:
                            assert errors.getvalue().strip() == lines[number + 1][2:]
        out = printed.getvalue()


@pytest.mark.parametrize(
    "path", [*TUTORIALS, FOLDER / "how_to.md", FOLDER / "interoperation.md"], ids=lambda path: path.stem
)
def test_a_tutorial_prints_its_documented_output(path, tmp_path, monkeypatch):
    compared = 0
    for printed, documented in run_page(path, tmp_path, monkeypatch):
        # Classes and edges may come in another order on other machines; the first words do not differ.
        assert shape(printed).split()[:3] == shape(documented).split()[:3]
        compared += 1
    assert compared >= 4


def test_the_code_of_the_start_page_runs(tmp_path, monkeypatch):
    ((printed, documented),) = run_page(FOLDER / "index.md", tmp_path, monkeypatch)
    assert printed == documented


def test_there_are_four_tutorials():
    assert [path.stem for path in TUTORIALS] == ["knowledge_graph", "layer", "molecules", "paper"]
