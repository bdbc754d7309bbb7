"""One node classifier in two and four processes against one, in double precision."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers_processes import run_ranks
from training.node_runs import CASES, NODES, made_up, run_all

from rgat.training import Settings, build_model, fit
from rgat.training.distributed import Processes, choose_backend, joined_processes
from rgat.training.sharded import ShardedNodeTask, balanced_ranges, own_graph

SCRIPT = Path(__file__).with_name("node_runs.py")


def torchrun(count, *arguments):
    return [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(count), "--standalone", *arguments]


def run_cases(folder, count, **environment):
    """Run all cases in some processes of `torchrun`; return the outcome of each rank."""
    start = [sys.executable] if count == 1 else torchrun(count)
    done = subprocess.run(
        [*start, SCRIPT, folder, *CASES],
        env=os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"} | environment,
        capture_output=True,
        text=True,
        timeout=600,  # a GPU's kernels are compiled first
    )
    assert done.returncode == 0, done.stderr
    return read_outcomes(folder, count)


def read_outcomes(folder, count):
    return [json.loads((folder / f"{count}-{rank}.json").read_text()) for rank in range(count)]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """Return the outcome of each case by (number of processes, rank)."""
    folder = tmp_path_factory.mktemp("outcomes")
    for count in (1, 2, 4):
        run_ranks(count, run_all, folder, list(CASES))
    return {(count, rank): each for count in (1, 2, 4) for rank, each in enumerate(read_outcomes(folder, count))}


def check_equal(together, alone):
    """Compare parameters, learning curves and scores."""
    for kind in ("state", "best"):
        for name, values in alone[kind].items():
            ours, theirs = (torch.tensor(each, dtype=torch.float64) for each in (together[kind][name], values))
            assert (ours - theirs).abs().max() < 1e-9, name
    assert (torch.tensor(together["logits"]) - torch.tensor(alone["logits"])).abs().max() < 1e-6, "single precision"
    for ours, theirs in zip(together["curve"], alone["curve"], strict=True):
        assert ours == pytest.approx(theirs, abs=1e-9, nan_ok=True)
    for ours, theirs in zip(together["scores"], alone["scores"], strict=True):
        assert ours == pytest.approx(theirs, abs=1e-9, nan_ok=True)


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("case", CASES)
def test_processes_learn_what_one_does(outcomes, case, count):
    for rank in range(count):
        check_equal(outcomes[count, rank][case], outcomes[1, 0][case])


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("num_gpus", "expected"), [(1, "gloo: some share a GPU"), (2, "NCCL: each has a GPU of its own")]
)
def test_two_processes_on_gpus_learn_what_one_does(tmp_path, num_gpus, expected):
    if torch.cuda.device_count() < num_gpus:
        pytest.skip(f"{num_gpus} CUDA devices are needed, and this machine has {torch.cuda.device_count()}")
    visible = ",".join(map(str, range(num_gpus)))
    (alone,) = run_cases(tmp_path, 1, CUDA_VISIBLE_DEVICES="0")
    assert alone["connection"] == "one process on cuda:0"
    for together in run_cases(tmp_path, 2, CUDA_VISIBLE_DEVICES=visible):
        assert expected in together["connection"]
        for case in CASES:
            check_equal(together[case], alone[case])


def test_nccl_is_chosen_where_each_process_has_a_gpu_of_its_own():
    chosen = [choose_backend(rank, 4, gpus) for rank, gpus in ((3, 0), (3, 1), (3, 2), (3, 4), (3, 8))]
    assert [backend for _, backend in chosen] == ["gloo", "gloo", "gloo", "nccl", "nccl"]
    assert [str(device) for device, _ in chosen] == ["cpu", "cuda:0", "cuda:1", "cuda:3", "cuda:3"]
    assert choose_backend(1, 2, 2, torch.device("cpu")) == (torch.device("cpu"), "gloo")
    assert choose_backend(1, 2, 2, torch.device("cuda")) == (torch.device("cuda", 1), "nccl")
    assert choose_backend(1, 2, 2, torch.device("cuda", 0)) == (torch.device("cuda", 0), "gloo"), "all on this one"


@pytest.mark.parametrize("count", [2, 4])
def test_all_processes_have_the_same_parameters_bit_for_bit(outcomes, count):
    for case in CASES:
        states = [outcomes[count, rank][case]["state"] for rank in range(count)]
        assert all(state == states[0] for state in states), case


@pytest.mark.parametrize("count", [2, 4])
def test_the_order_of_the_batches_does_not_depend_on_the_number_of_processes(outcomes, count):
    for case in ("sampled features", "sampled embeddings", "sampled shards"):
        alone = outcomes[1, 0][case]["seeds"]
        assert [len(batch) for batch in alone] == [16, 16, 1] * 2
        shares = [outcomes[count, rank][case]["seeds"] for rank in range(count)]
        assert [[seed for share in step for seed in share] for step in zip(*shares, strict=True)] == alone
        assert [len(batch) for batch in shares[-1]] == [16 // count, 16 // count, 0] * 2


def test_a_checkpoint_is_resumed_by_another_number_of_processes(outcomes):
    expected, resumed = outcomes[1, 0]["undisturbed"], outcomes[4, 3]["relay"]
    assert len(resumed["curve"]) == 6
    assert len(resumed["seeds"]) == 6, "two of the six epochs"
    for name, values in expected["state"].items():
        ours, theirs = (torch.tensor(each, dtype=torch.float64) for each in (resumed["state"][name], values))
        assert (ours - theirs).abs().max() < 1e-9, name


def test_restarted_workers_on_several_hosts_need_a_store_of_their_own(monkeypatch):
    for name, value in {"USE_AGENT_STORE": "True", "MAX_RESTARTS": "3", "RUN_ID": "x"}.items():
        monkeypatch.setenv(f"TORCHELASTIC_{name}", value)
    monkeypatch.setenv("GROUP_WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"), joined_processes():
        pass


def test_ranges_of_nodes_have_balanced_edges():
    degrees = torch.randint(50, (1000,))
    edges_before = torch.cat([torch.zeros(1, dtype=torch.int64), degrees.cumsum(0)])
    ranges = balanced_ranges(edges_before, 7)
    assert ranges[0] == 0
    assert ranges[-1] == 1000
    sizes = (edges_before + torch.arange(1001))[ranges].diff()
    assert sizes.max() - sizes.min() <= 100


@pytest.mark.parametrize("number", [3, 100])
def test_the_graphs_of_all_processes_are_the_whole_graph(number):
    graph = made_up(False).graph
    parts = [own_graph(graph, rank, number)[0] for rank in range(number)]  # some of 100 have no nodes
    assert torch.cat([part.node_ids[: part.num_targets] for part in parts]).tolist() == list(range(NODES))
    assert torch.cat([part.structure.edge_ids() for part in parts]).tolist() == list(range(graph.num_edges))
    s, order = graph.structure, graph.structure.order.long()
    sources = torch.cat([part.node_ids[part.edge_index[0]] for part in parts])
    assert torch.equal(sources, graph.edge_index[0][order])
    keys = torch.cat([part.structure.source_ids()[part.structure.source_row.long()] for part in parts])
    assert torch.equal(keys, s.source_ids()[s.source_row.long()])


def test_users_mistakes_are_refused(monkeypatch, tmp_path):
    data = made_up(True)
    with pytest.raises(ValueError, match="several processes must train a NodeClassifier, got a Linear"):
        ShardedNodeTask.logits(None, torch.nn.Linear(1, 1))
    unclean = dataclasses.replace(data, x=data.x.clone().index_fill_(0, torch.tensor([3]), float("nan")))
    with pytest.raises(ValueError, match="node features of made up must not contain NaN"):
        ShardedNodeTask(unclean, torch.device("cpu"))
    monkeypatch.setattr(Processes, "agree_on", lambda *_: False)  # hosts without a shared drive
    with pytest.raises(ValueError, match="all processes must find the same checkpoint"):
        fit(build_model(data).double(), data, Settings(max_epochs=1), checkpoint=tmp_path)


def test_a_killed_worker_costs_nothing_but_time():
    """One kill; `python tests/training/kill_workers.py` does ten."""
    line = [sys.executable, SCRIPT.with_name("kill_workers.py"), "--kills", "1"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 kills in 1 jobs: results equal to those of the undisturbed job" in done.stdout
