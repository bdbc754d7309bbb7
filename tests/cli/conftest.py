import os
import subprocess
import sys

import pytest


@pytest.fixture
def rgat():
    """The command line in a process of its own."""

    def run(*arguments, columns=80):
        environment = os.environ | {"COLUMNS": str(columns)}
        return subprocess.run(
            [sys.executable, "-m", "rgat", *arguments], capture_output=True, text=True, timeout=300, env=environment
        )

    return run
