"""Hostile and damaged records: a name never becomes markup, a formula or a path, and damage is listed."""

import csv
import json
import os
import re

import made_up
import pytest
import torch

from rgat import cli
from rgat.experiments.records import PACKED, pack, write_record
from rgat.report import write_report
from rgat.report.formats import Cell, Column, Line, ReportTable, to_csv, to_latex
from rgat.report.records import LONGEST_NAME, load_studies
from rgat.training.metric import score_classes

SCRIPT = '"><script>window.hit=1</script><!--'
MODELS = (
    SCRIPT,
    'x id="mark-999" font: 1px $\\frac{ #1c2530',
    "=1+1",
    "[bold]\\[](javascript:hit())",
    "a long name " * 16,
)
ONE = {"RGCN": (0.9, None, 0.01)}


def files(folder):
    return {path for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """A report on data sets and models with hostile names, and the files that existed before it was written."""
    root = tmp_path_factory.mktemp("hostile")
    for number, name in enumerate(("../../../x", f"{root}/x", SCRIPT, "summary", "AIFB", "aifb")):
        models = dict.fromkeys(MODELS, 0.8) if name == SCRIPT else {}
        made_up.write_study(root / "runs" / str(number), ONE, 2, 0, data=name, baselines=models)
    before = files(root)
    page = write_report([root / "runs"], root / "a" / "b" / "c" / "out")
    return root, before, page.parent


def test_no_name_becomes_a_path(hostile):
    root, before, out = hostile
    assert {path for path in files(root) if not path.is_relative_to(out)} == before
    assert {path.parent.relative_to(out).as_posix() for path in files(out)} == {".", "tables", "charts"}
    keys = [study.key for study in load_studies([root / "runs"])[0]]
    assert len({key.lower() for key in keys}) == len(keys) == 6
    assert "aifb" in keys  # an ordinary name stays
    assert all((out / "tables" / f"{key}-scores.csv").is_file() for key in keys)


def test_no_name_becomes_markup(hostile):
    _, _, out = hostile
    page, document = ((out / name).read_text() for name in ("report.html", "results.md"))
    assert page.count("<script") == 1
    assert '>x id="mark-999" font: 1px $\\frac{ #1c2530</text>' in page  # text of a chart stays text
    assert re.findall(r"(?<!\\)<script|(?<!\\)\[\]", document) == []
    for path in (out / "tables").glob("*.csv"):
        with path.open(newline="") as stream:
            assert not [cell for row in csv.reader(stream) for cell in row if cell.startswith("=")]


def test_text_like_a_formula_is_no_formula_in_a_table():
    texts = ["=1+1", "+cmd|x", "-x", "@sum", "-1.5", "+3", "-", "1=1", "\tx"]
    table = ReportTable(
        "t", "c", [Column("=title"), Column("n", ("@",))], [Line([Cell(text), Cell("x", (-2.0,))]) for text in texts]
    )
    rows = list(csv.reader(to_csv(table).splitlines()))
    assert rows[0][1] == "'=title"
    assert [row[1] for row in rows[1:]] == ["'=1+1", "'+cmd|x", "'-x", "'@sum", "-1.5", "+3", "-", "1=1", "'\tx"]
    assert {row[2] for row in rows[1:]} == {"-2.0"}


def test_a_cell_in_brackets_is_no_option_of_the_row_before():
    table = ReportTable("t", "c", [Column("x")], [Line([Cell("a")]), Line([Cell("[5cm]")])])
    assert "{[}5cm{]}" in to_latex(table)


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


def test_damage_of_every_kind_is_listed_and_counted_and_stops_nothing(tmp_path, monkeypatch, capsys):
    runs = tmp_path / "runs"
    made_up.write_study(runs / "mutag", ONE, seeds=2, trials=0, data="mutag")
    pack(runs / "mutag", runs / f"packed{PACKED}")
    flip(runs / f"packed{PACKED}")
    folder = made_up.write_study(runs / "aifb", ONE, seeds=3, trials=0)
    place = folder / "records" / "rgcn"
    record = made_up.run_record("RGCN", 0, 0.9, None, made_up.describe())
    (place / "deep.json").write_text("[" * 100_000)
    (place / "dangling.json").symlink_to(tmp_path / "nowhere")
    (place / "folder.json").mkdir()
    os.mkfifo(place / "pipe.json")
    os.mkfifo(runs / f"pipe{PACKED}")
    (runs / "linked").mkdir()
    (runs / "linked" / "experiment.json").symlink_to(tmp_path / "nowhere")
    (runs / "strange").mkdir()
    (runs / "strange" / "experiment.json").write_text('{"format": 1, "test_labels": 3}')
    bad = {
        50: {"data": "a\nb"},
        51: {"model": "\ud800"},
        52: {"model": "m" * (LONGEST_NAME + 1)},
        53: {"status": "failed", "scores": [[[1]]]},
        54: {"config": {"x": {"y": 1}}},
        55: {"outputs": {"test": {"dtype": "float16", "shape": [], "base64": "AAA="}}},
        56: {"selected_on": 5},
        57: {"scores": {"test": 10**400}},
        58: {"class_scores": {"test": {"classes": {}, "confusion": []}}},
        59: {"class_scores": {"test": record["class_scores"]["test"] | {"confusion": [[1, 2], [3, 4]]}}},
        60: {"class_scores": {"test": score_classes(torch.tensor([[9, 1], [3, 1]]))}},
    }
    for seed, change in bad.items():
        write_record(folder, record | {"seed": seed}).write_text(
            json.dumps({"format": 1, **record, "seed": seed} | change)
        )
    monkeypatch.setattr("sys.argv", ["rgat", "report", str(runs), "--out", str(tmp_path / "out")])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 0
    said = capsys.readouterr().out.splitlines()
    page = (tmp_path / "out" / "report.html").read_text()
    parts = [
        f"packed{PACKED}",
        f"pipe{PACKED}",
        "linked",
        "strange",
        "deep.json",
        "dangling.json",
        "folder.json",
        "pipe.json",
    ]
    for part in (*parts, *(f"run-00{seed}.json" for seed in bad)):
        assert len([line for line in said if line.startswith("Left out") and part in line]) == 1, part
        assert part in page
    assert "Damaged records and files that are left out: 19." in said
    assert "Damaged records and files that are left out: 19." in page
    studies, _ = load_studies([runs])
    assert [(study.data, len(study.runs)) for study in studies] == [("aifb", 3), ("mutag", 2)]


def test_a_full_disk_is_one_sentence(tmp_path, monkeypatch, capsys, full_disk):
    made_up.write_study(tmp_path / "runs", ONE, seeds=2, trials=0)
    monkeypatch.setattr("sys.argv", ["rgat", "report", str(tmp_path / "runs"), "--out", str(tmp_path / "out")])
    with full_disk(), pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert "cannot be written: File too large; make room" in error
    assert error.count("\n") == 1
    assert files(tmp_path / "out") == set()
