import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))
EXPECTED = {"compare_with_rgcn": "WIRGAT: valid", "layer_in_your_model": "2 -> 1: within", "molecules": "mean ROC-AUC"}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_and_prints_its_result(path):
    done = subprocess.run([sys.executable, "-W", "error", path], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert EXPECTED[path.stem] in done.stdout


def test_the_benchmark_runs_and_checks_itself_first():
    path = EXAMPLES[0].parent.parent / "benchmarks" / "layers.py"
    command = [sys.executable, path, "--graphs", "tiny", "--calls", "1", "--no-memory", "--no-scaling"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("within additive dropout") == 2
    assert "disagrees" not in done.stdout


def test_every_example_has_an_expected_output():
    assert {path.stem for path in EXAMPLES} == EXPECTED.keys()


def test_python_code_of_the_readme_runs():
    text = (Path(__file__).parent.parent / "README.md").read_text()
    blocks = [block.split("```")[0] for block in text.split("```python\n")[1:]]
    assert len(blocks) >= 1
    for block in blocks:
        done = subprocess.run([sys.executable, "-W", "error", "-c", block], capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stderr
