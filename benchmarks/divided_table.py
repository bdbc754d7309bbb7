"""Peak memory of each process with a large table of node embeddings, in 1, 2 and 4 processes.

    python benchmarks/divided_table.py --out benchmarks/results/divided_table.json

A made-up graph of a million nodes with 128 channels each: a table of 488 MiB, and two of the same size for Adam. Each
process draws its rows, trains two epochs, writes a checkpoint, resumes it for a third, predicts nodes and writes the
model. The peak is above the memory with data and libraries.
"""

import argparse
import ctypes
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from rgat.data import NodeData
from rgat.graph import RelationalGraph
from rgat.training import Settings, build_model, fit, node_logits, save_checkpoint
from rgat.training.distributed import joined_processes, processes
from rgat.training.embeddings import whole_state

NODES, EDGES, CHANNELS = 1_000_000, 500_000, 128
SAMPLED = {"fanouts": (5, 5), "batch_size": 1024, "patience": None, "shard_embeddings": True}


def made_up(nodes):
    generator = torch.Generator().manual_seed(0)
    edges = torch.randint(nodes, (2, EDGES), generator=generator)
    graph = RelationalGraph(edges, torch.zeros(EDGES, dtype=torch.int64), num_nodes=nodes, num_relations=1)
    order, labels = torch.randperm(nodes, generator=generator), torch.randint(4, (nodes,), generator=generator)
    parts = (order[:2048], order[2048:2148], order[2148:2248])
    return NodeData("made up", graph, None, labels, tuple("abcd"), *parts, tuple(map(str, range(nodes))), ("r",))


def live(data, folder):
    """Draw, train, write, resume, predict and save; return the peak of memory after each step."""
    peaks, started = {}, time.perf_counter()
    model = build_model(data, 1, shard_embeddings=True, embedding_channels=CHANNELS)
    peaks["draw"] = status("VmHWM")
    fit(model, data, Settings(max_epochs=2, **SAMPLED), checkpoint=folder / "checkpoint")
    peaks["train and write"] = status("VmHWM")
    del model
    model = build_model(data, 1, shard_embeddings=True, embedding_channels=CHANNELS)
    fit(model, data, Settings(max_epochs=3, **SAMPLED), checkpoint=folder / "checkpoint")
    peaks["resume"] = status("VmHWM")
    logits = node_logits(model, data, nodes=data.test)
    save_checkpoint(folder / "model", whole_state(model), {})
    peaks["predict and save"] = status("VmHWM")
    return {"peaks": peaks, "logits": logits.tolist(), "seconds": time.perf_counter() - started}


def status(field):
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def work(folder):
    torch.set_num_threads(1)
    with joined_processes(torch.device("cpu")):
        live(made_up(10_000), folder / "warm-up")  # loads all libraries
        data = made_up(NODES)
        data.graph.prepare()
        ctypes.CDLL(None).malloc_trim(0)
        before = status("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
        outcome = live(data, folder)
        outcome["peaks"] = {name: peak - before for name, peak in outcome["peaks"].items()}
        (folder / f"rank-{processes().rank}.json").write_text(json.dumps(outcome))


def measure(count):
    start = [sys.executable]
    if count > 1:
        start += ["-m", "torch.distributed.run", "--nproc-per-node", str(count), "--standalone"]
    with tempfile.TemporaryDirectory() as name:
        environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        subprocess.run([*start, __file__, "--work", name], check=True, env=environment)
        return [json.loads(path.read_text()) for path in sorted(Path(name).glob("rank-*.json"))]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.work)
        return
    rows, expected = [], None
    for count in options.processes:
        outcomes = measure(count)
        expected = expected or outcomes[0]["logits"]
        difference = (torch.tensor(outcomes[0]["logits"]) - torch.tensor(expected)).abs().max().item()
        peaks = {step: max(each["peaks"][step] for each in outcomes) for step in outcomes[0]["peaks"]}
        rows.append({"processes": count, "peak_bytes": peaks, "difference": difference})
        shown = ", ".join(f"{step} {peak / 2**20:.0f} MiB" for step, peak in peaks.items())
        print(f"{count} processes: {shown}; logits differ by {difference:.1e}", flush=True)
    if options.out is not None:
        record = {"torch": torch.__version__, "table_bytes": 4 * NODES * CHANNELS, "rows": rows}
        options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
