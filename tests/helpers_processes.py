"""Start processes that train together, and look at other processes through Linux's `/proc`."""

import multiprocessing
import os
import socket
import time
from pathlib import Path

import torch.multiprocessing

# Each takes a second or more to import. PyTorch's optimizers import the compiler.
PRELOADED = ["torch._dynamo", "torch.distributed.nn", "rgat.training", "rgat.sampling", "rgat.ops.numba.backend"]


def run_ranks(count, function, *arguments):
    """Call a function in some processes on CPUs, with the environment that `torchrun` gives them; fail if one fails.

    The processes are forked from one that has imported PyTorch, which `torchrun` imports once for each.
    """
    multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOADED)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    started = torch.multiprocessing.start_processes(
        _run_rank, (count, port, function, arguments), nprocs=count, join=False, start_method="forkserver"
    )
    try:
        wait_until(lambda: started.join(timeout=1), seconds=600)
    finally:
        for process in started.processes:
            process.kill()


def _run_rank(rank, count, port, function, arguments):
    os.environ |= {"CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": "lo"}
    if count > 1:
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "tests"}
        os.environ |= {name: str(value) for name, value in (place | meeting).items()}
    function(*arguments)


def _state(pid):
    """Return the state and the parent of a process; those of a zombie if it is gone."""
    try:
        state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    except (FileNotFoundError, ProcessLookupError):
        return "Z", 0
    return state, int(parent)


def is_alive(pid):
    """Return whether a process runs; a zombie does not, and an orphan may stay one until init reaps it."""
    return _state(pid)[0] != "Z"


def children(pid):
    """Return the running processes that a process has started."""
    processes = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    return [process for process in processes if _state(process)[1] == pid and is_alive(process)]


def wait_until(condition, seconds=120):
    """Return when a condition holds; fail if it does not within ``seconds``."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"still waiting after {seconds} s"
        time.sleep(0.05)
