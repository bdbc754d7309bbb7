import re
import subprocess
import sys

import pytest

from rgat import cli


def test_help_and_version(rgat):
    done = rgat("--help")
    assert done.returncode == 0
    assert "demo" in done.stdout
    assert "doctor" in done.stdout
    assert "\n    rgat demo --set planted-needle --seeds 10" in rgat("demo", "--help").stdout
    assert re.fullmatch(r"rgat \d+(\.\d+)*\S*\n", rgat("--version").stdout)


def test_a_full_disk_under_the_output_is_one_sentence():
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "rgat", "--version"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=120
        )
    assert (done.returncode, done.stderr) == (2, "rgat: No space left on device\n")


def test_a_users_mistake_is_one_sentence_and_exit_code_2(rgat, rgat_here, tmp_path):
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
        done = rgat_here(*line.split())
        assert done.returncode == 2
        assert (done.stdout, done.stderr.count("\n")) == ("", 1)
    assert rgat_here().returncode == 0


def test_the_commands_import_what_they_need_when_they_run():
    code = "import sys, rgat.cli; print(*sorted({'.'.join(name.split('.')[:2]) for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    modules = done.stdout.split()
    assert "rgat.cli" in modules
    packages = {"rgat.data", "rgat.training", "rgat.baselines", "rgat.experiments", "rgat.predictor", "rgat.report"}
    assert packages.isdisjoint(modules)


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes")]
)
def test_memory_that_runs_out_is_one_sentence(error, monkeypatch, capsys):
    def fail(*arguments, **options):
        raise error

    monkeypatch.setattr("rgat.cli.app", fail)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("rgat: memory ran out; give this process more, or make the work smaller")


def test_another_error_keeps_its_traceback(monkeypatch):
    def fail(*arguments, **options):
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr("rgat.cli.app", fail)
    with pytest.raises(RuntimeError, match="a mistake of ours"):
        cli.main()
