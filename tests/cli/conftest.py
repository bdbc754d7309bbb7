import contextlib
import io
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from rich.console import Console

from rgat import cli


@pytest.fixture
def rgat():
    """The command line in a process of its own."""

    def run(*arguments, columns=80):
        environment = os.environ | {"COLUMNS": str(columns)}
        return subprocess.run(
            [sys.executable, "-m", "rgat", *arguments], capture_output=True, text=True, timeout=300, env=environment
        )

    return run


@pytest.fixture
def rgat_here(monkeypatch):
    """The command line in this process, which has imported PyTorch already."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["rgat", *map(str, arguments)])
        monkeypatch.setattr("rgat.cli.printing.console", Console(width=80))
        out, errors = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors), pytest.raises(SystemExit) as ended:
            cli.main()
        return SimpleNamespace(returncode=ended.value.code, stdout=out.getvalue(), stderr=errors.getvalue())

    return run
