"""The files of a report are complete, reproducible and well formed."""

import csv
import html.parser
import re
import shutil
import subprocess
import sys

import made_up
import numpy as np
import pytest
import torch

from rgat.experiments.published import PUBLISHED
from rgat.experiments.records import open_experiment, write_record
from rgat.report import check_libraries, write_report
from rgat.report.formats import Cell, Column, Line, ReportTable, to_csv, to_html, to_latex, to_markdown
from rgat.report.records import load_studies
from rgat.report.tables import classes, confusions, overview, scores, tasks
from rgat.training.metric import score_classes


def files(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_the_same_records_give_the_same_bytes(report):
    first, second = files(report / "first"), files(report / "second")
    assert first == second
    assert len([name for name in first if name.endswith(".pdf")]) >= 12
    assert not [name for name in first if name.endswith(".part")]


def test_every_chart_and_table_of_the_paper_is_there(report):
    names = set(files(report / "first"))
    for chart in ("aifb-bars", "aifb-p-values", "aifb-distribution-all", "aifb-distribution-prior", "tox21-bars"):
        assert {f"charts/{chart}.{form}" for form in ("svg", "pdf", "png")} <= names
    for table in (
        "results-nodes",
        "results-graphs",
        "tox21-scores",
        "tox21-tasks",
        "aifb-importance",
        "aifb-classes",
        "claims",
    ):
        assert {f"tables/{table}.csv", f"tables/{table}.tex"} <= names
    assert {"report.html", "results.md"} <= names


def test_the_page_is_one_small_file_that_asks_for_nothing(report):
    page = (report / "first/report.html").read_text()
    assert len(page) < 6_000_000
    assert not re.findall(r"""(?:src|href|url\()\s*=?\s*["']?(?:https?:)?//""", page)
    assert not re.findall(r"\d{4}-\d\d-\d\d", page)


class Balance(html.parser.HTMLParser):
    """Counts tags that are opened and never closed, and ids that occur twice."""

    VOID = frozenset({"meta", "link", "input", "br", "path", "use", "rect", "image"})

    def __init__(self):
        super().__init__()
        self.open, self.ids = [], []

    def handle_starttag(self, tag, attributes):
        self.ids += [value for name, value in attributes if name == "id"]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.ids += [value for name, value in attributes if name == "id"]

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag


def test_the_page_closes_its_tags_and_repeats_no_id(report):
    parser = Balance()
    parser.feed((report / "first/report.html").read_text())
    assert parser.open == []
    assert len(parser.ids) == len(set(parser.ids)) > 20


def test_numbers_of_the_csv_are_those_of_the_records(report):
    with open(report / "first/tables/aifb-scores.csv", newline="") as stream:
        rows = {row["Model"]: row for row in csv.DictReader(stream)}
    (study, _), _ = load_studies([report / "runs"])
    values = study.row("additive ARGAT").scores()
    row = rows["additive ARGAT"]
    assert float(row["Test: mean"]) == values.mean()
    assert float(row["Test: standard deviation"]) == values.std(ddof=1)
    assert row["n"] == "6"


def test_the_papers_values_stand_beside_ours_with_their_notes(tmp_path):
    made_up.write_study(tmp_path, seeds=2, trials=0, data="tox21", task="graph", baselines={"GraphConv": 0.82})
    study = load_studies([tmp_path])[0][0]
    table = scores(study)
    titles = [column.title for column in table.columns]
    assert titles[:4] == ["Model", "Training", "Training, paper", "Validation"]
    cells = {line.cells[0].values[0]: line.cells for line in table.lines}
    assert cells["multiplicative WIRGAT"][titles.index("Test, paper")].text == "0.838 ± 0.007"
    assert "probably a slip" in cells["multiplicative ARGAT"][titles.index("Training, paper")].note
    assert "0.938 for Bypass" in cells["GraphConv"][titles.index("Training, paper")].note
    assert to_html(table).count("<sup>a</sup>") == 2
    assert tasks(study).columns[1].title == "NR-AR"


def test_best_in_class_is_bold_and_best_of_all_underlined(tmp_path):
    """The paper's own means give the paper's own marks, but for the underline that it prints twice."""
    truth = {}
    for model in made_up.EQUAL:
        constant = None if model == "RGCN" else PUBLISHED["aifb"][model.replace(" ", " C-")]["test"].mean
        truth[model] = (PUBLISHED["aifb"][model]["test"].mean, constant, 0.0)
    others = {name: PUBLISHED["aifb"][name]["test"].mean for name in ("FEAT", "WL", "RDF2Vec", "R-GCN")}
    made_up.write_study(tmp_path, truth, seeds=2, trials=0, baselines=others, exact=True)
    table = overview([load_studies([tmp_path])[0][0]], "t", "c")
    cells = {line.cells[0].values[0]: line.cells[1] for line in table.lines}
    assert {name for name, cell in cells.items() if cell.bold} == {"R-GCN", "additive C-WIRGAT", "multiplicative ARGAT"}
    assert {name for name, cell in cells.items() if cell.underline} == {"additive C-WIRGAT"}
    assert cells["additive C-WIRGAT"].text == "96.86 ± 0.00"


def test_classes_have_recall_precision_f1_and_confusions(tmp_path):
    described = made_up.describe(seeds=2, trials=0, classes=[f"<http://x.org/{name}>" for name in "abcd"])
    open_experiment(tmp_path, described)
    first = [[9, 1, 0, 0], [3, 1, 0, 0], [0, 0, 5, 0], [0, 0, 0, 0]]
    second = [[10, 0, 0, 0], [4, 0, 0, 0], [0, 0, 5, 0], [0, 0, 0, 0]]
    for seed, confusion in enumerate((first, second)):
        record = made_up.run_record("RGCN", seed, 0.9, None, described)
        write_record(tmp_path, record | {"class_scores": {"test": score_classes(torch.tensor(confusion))}})
    (study,), _ = load_studies([tmp_path])
    table = classes(study)
    assert [column.title for column in table.columns] == ["Model", "Class", "Recall", "Precision", "F1", "nodes"]
    assert [line.cells[1].text for line in table.lines] == ["all, mean", "a", "b", "c", "d"]
    mean, a, b, _, d = (line.cells for line in table.lines)
    assert mean[2].values[0] == pytest.approx(((0.9 + 0.25 + 1) / 3 + (1 + 0 + 1) / 3) / 2), "no class without nodes"
    assert (a[2].text, a[5].text) == ("95.00 ± 7.07", "10")
    assert (b[2].text, b[3].text) == ("12.50 ± 17.68", "50.00"), "the second run never predicts it"
    assert [cell.text for cell in d[2:]] == ["-", "-", "-", "0"]
    table = confusions(study)
    assert [column.title for column in table.columns] == ["Model", "True class", "a", "b", "c", "d"]
    assert [cell.text for cell in table.lines[0].cells[2:]] == ["9.5", "0.5", "0", "0"]
    assert [cell.bold for cell in table.lines[1].cells[2:]] == [False, True, False, False]


def test_records_without_scores_of_classes_have_no_tables_of_them(tmp_path):
    record = made_up.run_record("RGCN", 0, 0.9, None, made_up.describe())
    open_experiment(tmp_path, made_up.describe())
    write_record(tmp_path, {key: value for key, value in record.items() if key != "class_scores"})
    (study,), _ = load_studies([tmp_path])
    assert classes(study) is confusions(study) is None


TRICKY = ReportTable(
    "tricky",
    "50 % & <b> of_it",
    [Column("Model | name", text=True), Column("x", ("mean", "sd"))],
    [
        Line(
            [Cell("a_b & {c} \\ ~ ^ $ #"), Cell("1 ± 2", (1.0, 2.0), bold=True, underline=True, note="p ≤ 5 %")], "one"
        ),
        Line([Cell("<script>"), Cell("-")], "two"),
    ],
    ["all of it"],
)


def test_each_form_of_a_table_escapes_what_it_must():
    page = to_html(TRICKY)
    assert "<script>" not in page
    assert "50 % &amp; &lt;b&gt; of_it" in page
    assert "<u><strong>1 ± 2</strong></u><sup>a</sup>" in page
    markdown = to_markdown(TRICKY)
    assert "| Model \\| name | x |" in markdown
    assert "<ins>**1 ± 2**</ins><sup>a</sup>" in markdown
    assert "| \\<script\\> | - |" in markdown
    assert to_csv(TRICKY).splitlines() == [
        "group,Model | name,x: mean,x: sd",
        "one,a_b & {c} \\ ~ ^ $ #,1.0,2.0",
        "two,<script>,-,",
    ]
    latex = to_latex(TRICKY)
    assert r"a\_b \& \{c\} \textbackslash{} \textasciitilde{} \textasciicircum{} \$ \#" in latex
    assert r"\underline{\textbf{1 $\pm$ 2}}\textsuperscript{a}" in latex


def test_latex_is_balanced_and_plain(report):
    visited = 0
    for path in sorted((report / "first/tables").glob("*.tex")):
        text = path.read_text(encoding="ascii")
        bare = re.sub(r"\\[{}&%$#_]", "", text)
        assert bare.count("{") == bare.count("}")
        assert bare.count("$") % 2 == 0
        width = {line.count("&") for line in bare.splitlines() if line.endswith(r"\\") and "multicolumn" not in line}
        assert len(width) == 1, path
        visited += 1
    assert visited >= 10


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no pdflatex on this machine")
def test_latex_compiles(report, tmp_path):
    tables = sorted((report / "first/tables").glob("*.tex"))
    body = "\n".join(path.read_text() for path in tables) + to_latex(TRICKY)
    text = "\\documentclass{article}\n\\usepackage{booktabs}\n\\begin{document}\n" + body + "\\end{document}\n"
    text = text.replace("\\end{table}", "\\end{table}\\clearpage")
    (tmp_path / "all.tex").write_text(text)
    command = ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "all.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout[-2000:]
    assert (tmp_path / "all.pdf").stat().st_size > 10_000


def test_the_document_has_the_summary_the_tables_and_no_images(report):
    text = (report / "first/results.md").read_text()
    for heading in ("# Results", "## Summary", "## AIFB", "## The paper's claims", "## Provenance"):
        assert f"\n{heading}\n" in f"\n{text}"
    assert "Best to worst by mean test accuracy" in text
    assert "![" not in text
    assert "ab" * 32 in text  # the data's hash


def test_studies_with_gaps_still_make_a_report(tmp_path):
    """One run each, a search without runs, a baseline alone, curves with holes: nothing stops the report."""
    made_up.write_study(tmp_path / "runs/one", seeds=1, trials=0)
    made_up.write_study(tmp_path / "runs/search", seeds=0, trials=12, data="mutag")
    made_up.write_study(tmp_path / "runs/alone", {}, seeds=2, trials=0, data="am", baselines={"WL": 0.8})
    folder = made_up.write_study(tmp_path / "runs/holes", seeds=2, trials=2, data="bgs")
    bare = {"kind": "run", "model": "GGNN", "seed": 0, "status": "done", "scores": {"test": 0.5}}
    write_record(folder, bare)
    page = write_report([tmp_path / "runs"], tmp_path / "out").read_text()
    assert "Read this first" in page
    assert "a single run of RGCN" in page
    assert "search trials but no finished runs" in page
    assert "Beyond the paper" in page


def test_a_missing_library_is_one_sentence(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"a report needs matplotlib and scipy .* `pip install 'rgat\[report\]'`"):
        check_libraries()
    with pytest.raises(ImportError, match="a report needs"):
        write_report([tmp_path], tmp_path)


def test_a_users_own_style_changes_nothing(report):
    import matplotlib as mpl

    made_up.write_study(report / "small", {"RGCN": (0.9, None, 0.01)}, seeds=2, trials=0)
    write_report([report / "small"], report / "plain")
    with mpl.rc_context({"font.size": 20, "axes.grid": False, "svg.hashsalt": None}):
        write_report([report / "small"], report / "styled")
        assert mpl.rcParams["font.size"] == 20
    assert files(report / "plain") == files(report / "styled")
    assert np.isclose(mpl.rcParams["font.size"], mpl.rcParamsDefault["font.size"])
