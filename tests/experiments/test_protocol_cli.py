import os
import subprocess
import sys

PLAN = """
data = "institute"
models = ["RGCN"]
trials = 2
seeds = 2
folds = 1
max_epochs = 2
patience = 2
"""


def rgat(*arguments, cwd):
    environment = os.environ | {"COLUMNS": "100", "RGAT_BACKEND": "torch"}
    line = [sys.executable, "-m", "rgat", *arguments]
    return subprocess.run(line, capture_output=True, text=True, timeout=300, env=environment, cwd=cwd)


def test_search_then_reproduce_then_again(tmp_path):
    (tmp_path / "plan.toml").write_text(PLAN)
    done = rgat("search", "--config", "plan.toml", "--executor", "local", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "RGCN" in done.stdout
    assert len(list((tmp_path / "runs/institute/records/rgcn").iterdir())) == 2
    line = ("reproduce", "--config", "plan.toml", "--executor", "local")
    first = rgat(*line, "--configs", "configs", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert "configs/institute/rgcn.toml" in first.stdout
    assert (tmp_path / "runs/institute/studies.sqlite3").exists()
    again = rgat(*line, cwd=tmp_path)
    assert again.stdout == first.stdout.replace("configs/institute/rgcn.toml\n", "")
    proposed = rgat("reproduce", "--config", "plan.toml", "--propose", cwd=tmp_path)
    assert "0 units to do in runs/institute" in proposed.stdout
    text = (tmp_path / "configs/institute/rgcn.toml").read_text()
    assert 'command = "rgat reproduce --config plan.toml --executor local --configs configs"' in text


def test_priors_are_printed(tmp_path):
    done = rgat("search", "molecules", "--priors", cwd=tmp_path)
    assert "MultiplesOfEight(32, 128)" in done.stdout
    assert done.stdout.count("LogUniform(1e-6, 1e-1)") == 4


def test_mistakes_are_one_sentence_and_exit_code_2(tmp_path):
    (tmp_path / "plan.toml").write_text(PLAN.replace("trials", "trails"))
    for line, word in (
        (("reproduce", "--config", "plan.toml"), 'did you mean "trials"?'),
        (("reproduce", "institut"), 'did you mean "institute"?'),
        (("reproduce",), "`data` must name a data set"),
        (("search", "--priors"), "`DATA` must name a data set"),
        (("search", "institute", "--models", "RGCN,ARGAT"), "`model` must be"),
        (("search", "institute", "--executor", "ray", "--address", "127.0.0.1:1"), "none answers"),
    ):
        done = rgat(*line, cwd=tmp_path)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
        assert word in done.stderr
        assert "Traceback" not in done.stderr
