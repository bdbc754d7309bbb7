import dataclasses
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers_processes import run_ranks

import rgat
from rgat.data import load
from rgat.ops import backend
from rgat.predictor import estimates
from rgat.training import Settings, fit, loop
from rgat.training.configuration import build_model, configure
from rgat.training.distributed import Processes, joined_processes, processes

# 3 epochs of 7 steps; the last batch has one graph, so that the second process has none.
SETTINGS = {"max_epochs": 3, "batch_size": 32, "kernel_l2": (1e-4, 0.0)}
TRAIN = 193


def train(out):
    """Train one model in this process and those that were started with it; the first one writes what came out."""
    torch.set_num_threads(1)
    data = load("molecules")
    data = dataclasses.replace(data, train=torch.cat([data.train, data.test])[:TRAIN])
    steps, step = [], loop.Training.step

    def watched(self, ids):
        losses = step(self, ids)
        steps.append(float(processes().average(losses.clone())))
        return losses

    loop.Training.step = watched
    with joined_processes(torch.device("cpu")):
        model = build_model(data, 1, hidden_channels=8, dense_channels=8, heads=2, batch_norm=True).double()
        data = dataclasses.replace(data, graphs=dataclasses.replace(data.graphs, x=data.graphs.x.double()))
        result = fit(model, data, Settings(**SETTINGS), 4)
        if processes().rank == 0:
            state = {name: tensor.tolist() for name, tensor in model.state_dict().items()}
            curve = [dataclasses.astuple(epoch) for epoch in result.curve]
            out.write_text(json.dumps({"steps": steps, "curve": curve, "scores": result.scores, "state": state}))
    threads = [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]
    assert not any("gloo" in name for name in threads), "a thread that needs Python's lock at exit aborts the process"


def torchrun(port, *arguments):
    """Run a command in two processes."""
    options = ["--nproc-per-node", "2", "--master-addr", "127.0.0.1", "--master-port", str(port)]
    return subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *options, *map(str, arguments)],
        env=os.environ | {"RGAT_BACKEND": "torch", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},  # no compiling
        capture_output=True,
        text=True,
        timeout=240,
    )


def test_two_processes_learn_what_one_does(tmp_path):
    outs = [tmp_path / "one.json", tmp_path / "two.json"]
    for count, out in enumerate(outs, 1):
        run_ranks(count, train, out)
    one, two = (json.loads(out.read_text()) for out in outs)
    assert len(two["steps"]) == 21
    assert two["steps"] == pytest.approx(one["steps"], abs=1e-6)
    for ours, theirs in zip(two["curve"], one["curve"], strict=True):
        assert ours == pytest.approx(theirs, abs=1e-6)
    assert two["scores"] == pytest.approx(one["scores"], abs=1e-6)
    for name, values in one["state"].items():
        assert (torch.tensor(two["state"][name]) - torch.tensor(values)).abs().max() < 1e-6, name


def test_the_command_line_trains_in_two_processes_and_one_speaks(tmp_path, free_port):
    options = ["--epochs", "2", "--hidden", "8", "--feature-dropout", "0.2", "--batch-norm"]
    command = ["-m", "rgat", "train", "molecules", "--out", tmp_path / "run", *options]
    done = torchrun(free_port, *command)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("constant attention") == 1
    assert "FutureWarning" not in done.stderr
    names = sorted(path.name.partition("-")[0] for path in (tmp_path / "run").iterdir())
    assert names == ["checkpoint", "checkpoint.json", "fit.json", "fitted", "fitted.json"]


def measure_by_different_clocks(out):
    """Estimate the cost of a training whose first process would measure all epochs, and whose second one two."""
    with backend("torch"), joined_processes(torch.device("cpu")):
        estimates.LONG_ENOUGH = math.inf if processes().rank == 0 else 0.0
        steps, step = [], loop.Training.step
        loop.Training.step = lambda self, ids: steps.append(ids) or step(self, ids)
        estimates.measure(load("molecules"), configure("graph", {"hidden_channels": 8}), 0, torch.device("cpu"))
        out.with_suffix(f".{processes().rank}").write_text(str(len(steps)))


def test_processes_measure_the_same_epochs_whatever_their_clocks_say(tmp_path):
    run_ranks(2, measure_by_different_clocks, tmp_path / "steps")
    first, second = (int(path.read_text()) for path in sorted(tmp_path.iterdir()))
    assert first == second >= estimates.MOST_EPOCHS


def test_a_model_with_divided_embeddings_is_saved_whole(tmp_path, free_port, rgat_here):
    line = ["train", "institute", "--fanouts", "5,5", "--embedding", 8, "--option", "shard_embeddings=true"]
    line += ["--epochs", 2, "--no-comparison", "--device", "cpu", "--out"]
    alone, together = rgat_here(*line, tmp_path / "1"), torchrun(free_port, "-m", "rgat", *line, tmp_path / "2")
    for count, done in ((1, alone), (2, together)):
        assert done.returncode == 0, done.stderr
        assert ("2 processes are connected by gloo: they run on CPUs." in done.stdout) == (count == 2)
    one, two = (rgat.load(tmp_path / str(count)) for count in (1, 2))
    ours, theirs = (predictor.members[0].state_dict() for predictor in (two, one))
    assert isinstance(two.members[0].embedding, torch.nn.Embedding)
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert (ours[name] - tensor).abs().max() < 1e-3, name  # Adam magnifies rounding
    assert (two.logits - one.logits).abs().max() < 1e-2
    assert two.report["scores"] == one.report["scores"]


def test_a_users_mistake_is_printed_by_one_process_and_named_by_the_launcher(tmp_path, free_port):
    done = torchrun(free_port, "-m", "rgat", "train", "molecules", "--out", tmp_path / "run", "--option", "a=1")
    assert done.returncode != 0
    assert done.stderr.count("rgat: `option` must be") <= 1, "none if the launcher ends the first process before"
    assert "traceback : `option` must be" in done.stderr
    assert "exitcode  : 2" in done.stderr


def test_a_process_alone_is_left_as_it_is(monkeypatch):
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    with joined_processes() as device:
        assert device.type == ("cuda" if torch.cuda.is_available() else "cpu")
        assert not torch.distributed.is_initialized()
    ids = torch.arange(7)
    parts = [Processes(rank, 3).share(ids).tolist() for rank in range(3)]
    assert parts == [[0, 3, 6], [1, 4], [2, 5]]
