"""One node classifier in two and four processes against one, in double precision."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from training.node_runs import CASES

SCRIPT = Path(__file__).with_name("node_runs.py")


def torchrun(count, *arguments):
    return [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(count), "--standalone", *arguments]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """Return the outcome of each case by (number of processes, rank)."""
    folder, found = tmp_path_factory.mktemp("outcomes"), {}
    for count in (1, 2, 4):
        start = [sys.executable] if count == 1 else torchrun(count)
        done = subprocess.run(
            [*start, SCRIPT, folder, *CASES],
            env=os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert done.returncode == 0, done.stderr
        for rank in range(count):
            found[count, rank] = json.loads((folder / f"{count}-{rank}.json").read_text())
    return found


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("case", CASES)
def test_processes_learn_what_one_does(outcomes, case, count):
    alone = outcomes[1, 0][case]
    for rank in range(count):
        together = outcomes[count, rank][case]
        for name, values in alone["state"].items():
            ours, theirs = (torch.tensor(each, dtype=torch.float64) for each in (together["state"][name], values))
            assert (ours - theirs).abs().max() < 1e-9, name
        for ours, theirs in zip(together["curve"], alone["curve"], strict=True):
            assert ours == pytest.approx(theirs, abs=1e-9)
        for ours, theirs in zip(together["scores"], alone["scores"], strict=True):
            assert ours == pytest.approx(theirs, abs=1e-9)


@pytest.mark.parametrize("count", [2, 4])
def test_all_processes_have_the_same_parameters_bit_for_bit(outcomes, count):
    for case in CASES:
        states = [outcomes[count, rank][case]["state"] for rank in range(count)]
        assert all(state == states[0] for state in states), case


@pytest.mark.parametrize("count", [2, 4])
def test_the_order_of_the_batches_does_not_depend_on_the_number_of_processes(outcomes, count):
    for case in ("sampled features", "sampled embeddings"):
        alone = outcomes[1, 0][case]["seeds"]
        assert [len(batch) for batch in alone] == [16, 16, 1] * 2
        shares = [outcomes[count, rank][case]["seeds"] for rank in range(count)]
        assert [[seed for share in step for seed in share] for step in zip(*shares, strict=True)] == alone
        assert [len(batch) for batch in shares[-1]] == [16 // count, 16 // count, 0] * 2


def test_a_killed_worker_costs_nothing_but_time():
    """One kill; `python tests/training/kill_workers.py` does ten."""
    line = [sys.executable, SCRIPT.with_name("kill_workers.py"), "--kills", "1"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 kills in 1 jobs: results equal to those of the undisturbed job" in done.stdout
