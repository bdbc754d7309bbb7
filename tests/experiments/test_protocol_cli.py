"""The commands in this process: `main` with its arguments, what it prints and how it ends."""

import errno
import os
import sys
from pathlib import Path

import pytest

from rgat.cli import main

PLAN = """
data = "institute"
models = ["RGCN"]
trials = 2
seeds = 2
folds = 1
max_epochs = 2
patience = 2
"""


@pytest.fixture
def rgat(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("RGAT_BACKEND", "torch")  # nothing to compile

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["rgat", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        return end.value.code, *capsys.readouterr()

    return run


def test_search_then_reproduce_then_again(rgat, tmp_path):
    (tmp_path / "plan.toml").write_text(PLAN)
    code, out, err = rgat("search", "--config", "plan.toml", "--executor", "local")
    assert (code, err) == (0, "")
    assert "RGCN" in out
    assert len(list((tmp_path / "runs/institute/records/rgcn").iterdir())) == 2
    line = ("reproduce", "--config", "plan.toml", "--executor", "local")
    code, first, _ = rgat(*line, "--configs", "configs")
    assert code == 0
    assert "configs/institute/rgcn.toml" in first
    assert sorted(path.name for path in (tmp_path / "runs/institute").iterdir()) == ["experiment.json", "records"]
    _, again, _ = rgat(*line)
    results = [line for line in first.splitlines() if not line.startswith("stage ")]
    assert [line for line in again.splitlines() if not line.startswith("stage ")] == results[:-1]
    assert results[-1] == "configs/institute/rgcn.toml"
    assert "stage 2 of 2: trials and runs, 4 of 4 records\n" in again, "nothing is left to do"
    assert "0 units to do in runs/institute" in rgat("reproduce", "--config", "plan.toml", "--propose")[1]
    text = (tmp_path / "configs/institute/rgcn.toml").read_text()
    assert 'command = "rgat reproduce --config plan.toml --executor local --configs configs"' in text


def test_priors_are_printed(rgat):
    _, out, _ = rgat("search", "molecules", "--priors")
    assert "MultiplesOfEight(32, 128)" in out
    assert out.count("LogUniform(1e-6, 1e-1)") == 4


def test_the_extended_space_is_printed(rgat):
    _, out, _ = rgat("search", "institute", "--priors", "--space", "extended")
    assert "OneOf(rgat, rgcn)" in out
    assert "num_pruned" in out
    assert "num_pruned" not in rgat("search", "molecules", "--priors", "--space", "extended")[1]


def test_a_search_in_minutes_says_what_it_tried(rgat, monkeypatch):
    monkeypatch.setattr("rgat.experiments.extended.STEP", 2)
    monkeypatch.setattr("rgat.experiments.extended.MOST_PRUNED", 1)  # nothing to choose
    line = ("institute", "--budget", "smoke", "--trials", "2", "--executor", "local", "--config", "plan.toml")
    Path("plan.toml").write_text("max_epochs = 2\npatience = 2\n")
    code, out, err = rgat("search", *line, "--minutes", "1e-6")
    assert (code, err) == (0, "")
    assert "No trial has finished" in out
    _, out, _ = rgat("search", *line, "--minutes", "9")
    assert "tried 2 configurations; 2 reached rungs 0 to 0" in out
    assert "no test data were used" in out
    _, out, _ = rgat("reproduce", *line, "--minutes", "9")
    assert "declared ensemble" in out
    assert "selected model" in out


def test_mistakes_are_one_sentence_and_exit_code_2(rgat, tmp_path):
    (tmp_path / "plan.toml").write_text(PLAN.replace("trials", "trails"))
    for line, word in (
        (("reproduce", "--config", "plan.toml"), 'did you mean "trials"?'),
        (("reproduce", "institut"), 'did you mean "institute"?'),
        (("reproduce",), "`data` must name a data set"),
        (("search", "--priors"), "`DATA` must name a data set"),
        (("search", "institute", "--models", "RGCN,ARGAT"), "`model` must be"),
        (("search", "institute", "--executor", "ray", "--address", "127.0.0.1:1"), "none answers"),
        (("search", "institute", "--space", "wide"), "`space` must be"),
        (("search", "institute", "--space", "wide", "--priors"), "`space` must be"),
        (("search", "institute", "--space", "paper", "--minutes", "1"), "`minutes` must be left out"),
        (("reproduce", "institute", "--minutes", "1", "--configs", "c"), "`--configs` must be left out"),
    ):
        code, _, err = rgat(*line)
        assert (code, err.count("\n")) == (2, 1), err
        assert word in err


def test_help_has_examples(rgat):
    for command in ("search", "reproduce"):
        assert f"\n    rgat {command} institute --budget smoke" in rgat(command, "--help")[1]


def test_further_models_and_other_systems_are_asked_for_by_the_same_option(rgat, tmp_path):
    (tmp_path / "plan.toml").write_text(PLAN)
    quick = ("--config", "plan.toml", "--trials", "1", "--seeds", "1", "--executor", "local")
    assert rgat("baseline", "WL", "institute")[0] == 0  # the folder may be begun without a plan
    code, out, err = rgat("reproduce", "--models", "GGNN, dynamic ARGAT, feat", *quick)
    assert (code, err) == (0, "")
    folders = {path.name: len(list(path.iterdir())) for path in (tmp_path / "runs/institute/records").iterdir()}
    assert folders == {"ggnn": 2, "dynamic-argat": 2, "feat": 1, "wl": 1}
    assert "FEAT" in out
    assert rgat("reproduce", "institute", "--models", "WL", "--seeds", "1")[0] == 0
    code, _, err = rgat("reproduce", "--models", "GGN", *quick)
    assert code == 2
    assert "GGNN" in err


def test_a_full_disk_is_one_sentence(rgat, tmp_path, full_disk):
    with full_disk():
        code, _, error = rgat("reproduce", "institute", "--budget", "smoke", "--executor", "local")
    assert (code, error.count("\n")) == (2, 1)
    assert "cannot be written: File too large; make room, or choose another place" in error
    assert not [path for path in (tmp_path / "runs").rglob("*") if path.is_file()]


def test_what_the_system_refuses_is_one_sentence_wherever_it_happens(rgat, monkeypatch):
    def refuse(*_):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), "there")

    monkeypatch.setattr("rgat.data.load", refuse)
    assert rgat("data", "stats", "institute") == (2, "", "rgat: there: Permission denied\n")
