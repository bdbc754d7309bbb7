import subprocess
import sys
from pathlib import Path


def test_records_survive_kill_nine():
    """Three kills; `python tests/experiments/kill_nine.py` does twenty."""
    script = Path(__file__).with_name("kill_nine.py")
    line = [sys.executable, str(script), "--kills", "3", "--models", "RGCN", "--executors", "local"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 kills" in done.stdout
    assert "all 25 records equal to those of the undisturbed job" in done.stdout
