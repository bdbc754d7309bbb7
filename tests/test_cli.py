import importlib.util
import os
import re
import subprocess
import sys

from rgat import cli
from rgat.cli import _mean_and_spread
from rgat.training.configuration import VARIANTS


def rgat(*arguments, columns=80):
    environment = os.environ | {"COLUMNS": str(columns)}
    return subprocess.run(
        [sys.executable, "-m", "rgat", *arguments], capture_output=True, text=True, timeout=300, env=environment
    )


def test_help_and_version():
    done = rgat("--help")
    assert done.returncode == 0
    assert "demo" in done.stdout
    assert "doctor" in done.stdout
    assert "\n    rgat demo --set planted-needle --seeds 10" in rgat("demo", "--help").stdout
    assert re.fullmatch(r"rgat \d+\.\d+\.\d+\n", rgat("--version").stdout)


def test_doctor_says_what_is_there_and_how_to_get_the_rest(monkeypatch, capsys):
    done = rgat("doctor", columns=120)
    assert done.returncode == 0
    for word in ("torch", "backend"):
        assert word in done.stdout
    for word in ("rdkit", "pyoxigraph", "optuna", "matplotlib", "scipy", "ray"):
        assert re.search(rf"{word} +(installed: |missing: .*pip install 'rgat\[\w+\]')", done.stdout)
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "ray" else find(name))
    cli.doctor()
    assert re.search(r"missing: many machines; pip\s+install 'rgat\[ray\]'", capsys.readouterr().out)


def test_demo_prints_a_table_that_fits_a_narrow_terminal_and_ends_in_a_page(tmp_path):
    sets = ("--set", "planted-consensus", "--set", "planted-consensus")
    done = rgat("demo", *sets, "--seeds", "2", "--out", str(tmp_path / "x"), columns=50)
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if re.search(r"\d\d\.\d ±", line)]
    assert [len(re.findall(r"\d\d\.\d ± ?\d", row)) for row in rows] == [1, 2, 2, 2, 2]  # an RGCN has no constant row
    assert sum(name in done.stdout for name in VARIANTS) == 5
    *lines, last = done.stdout.splitlines()
    assert max(map(len, lines)) <= 50
    assert "…" not in done.stdout
    page = tmp_path / "x" / "report" / "report.html"
    assert last == f"The report, to open in a browser: {page}"
    assert "planted-consensus" in page.read_text()
    again = rgat("report", str(tmp_path / "x" / "records"), "--out", str(tmp_path / "y"))
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "y" / "report.html").read_bytes() == page.read_bytes()


def test_train_keeps_a_model_and_goes_on_from_its_checkpoint(tmp_path):
    line = ["train", "institute", "--out", str(tmp_path / "run"), "--hidden", "8", "--epochs"]
    done = rgat(*line, "2")
    assert done.returncode == 0, done.stderr
    assert re.search(r"constant attention +\d+\.\d", done.stdout)
    assert "Best epoch by validation: 2 of 2;" in done.stdout
    done = rgat(*line, "3")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "resume it, or choose another folder" in done.stderr
    done = rgat(*line, "3", "--resume")
    assert "of 3;" in done.stdout
    for wrong in (["--heads", "3"], ["--model", "RGCN", "--heads", "2"], ["--feature-dropout", "1"]):
        done = rgat("train", "institute", "--out", str(tmp_path / "other"), *wrong)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert not (tmp_path / "other").exists()


def test_cells_show_mean_and_spread():
    assert _mean_and_spread([0.5, 0.7]) == "60.0 ±14.1"
    assert _mean_and_spread([1.0]) == "100.0"
    assert _mean_and_spread([]) == "-"


def test_a_full_disk_under_the_output_is_one_sentence():
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "rgat", "--version"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=120
        )
    assert (done.returncode, done.stderr) == (2, "rgat: No space left on device\n")


def test_a_users_mistake_is_one_sentence_and_exit_code_2(tmp_path):
    done = rgat("demo", "--set", "institut")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert 'did you mean "institute"?' in done.stderr
    assert "Traceback" not in done.stderr
    mistakes = (
        "demo --seeds 0",
        "dmeo",
        "demo --nope",
        "data stats aifb --split 1",
        "report nowhere",
        f"report {tmp_path}",
    )
    for line in mistakes:
        done = rgat(*line.split())
        assert done.returncode == 2
        assert (done.stdout, done.stderr.count("\n")) == ("", 1)
    assert rgat().returncode == 0
