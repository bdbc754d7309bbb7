"""Two processes learn numbers, classes and labels as one does: shares of molecules, of a graph and of its samples."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parent / "target_runs.py"


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What one process and two have learned."""
    folder = tmp_path_factory.mktemp("targets")
    launchers = {"one": [], "two": ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]}
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    for name, launcher in launchers.items():
        command = [sys.executable, *launcher, str(SCRIPT), str(folder / name)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stderr
    return [torch.load(folder / name, weights_only=True) for name in launchers]


@pytest.mark.parametrize("name", ["molecules", "institute", "institute, sampled"])
def test_two_processes_learn_what_one_does(found, name):
    one, two = (each[name] for each in found)
    assert len(one["curve"]) == 3
    assert one["curve"][-1][0] < one["curve"][0][0]
    for ours, theirs in zip(two["curve"], one["curve"], strict=True):
        assert ours == pytest.approx(theirs, abs=1e-6)
    assert two["scores"] == pytest.approx(one["scores"], abs=1e-6)
    for key, value in one["state"].items():
        torch.testing.assert_close(two["state"][key], value, rtol=1e-6, atol=1e-6, msg=key)
