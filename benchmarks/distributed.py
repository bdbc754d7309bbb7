"""Bytes sent per step, peak memory and time of one node classifier in 1, 2 and 4 processes.

    python benchmarks/distributed.py --out benchmarks/results/distributed.json
    python benchmarks/distributed.py --device cuda --processes 1 2

Processes run on this machine, in a network of their own where the system allows that (`unshare`), so that the loopback
device's counter measures what they send by gloo; NCCL does not use that device. Counted bytes follow from the sizes of
the collectives: an all-reduce of n bytes sends 2 (K - 1) / K n from each process, an all-gather (K - 1) n, an
all-to-all what others get. The peak is of the GPU's memory with --device cuda.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist

from rgat.data import NodeData
from rgat.graph import RelationalGraph
from rgat.training import Settings, build_model, fit
from rgat.training.distributed import connection, joined_processes, processes

NODES, EDGES, RELATIONS, CHANNELS = 40_000, 800_000, 8, 64
WAYS = {
    "sampled, features": (True, {}, {"fanouts": (5, 5), "batch_size": 1024}),
    "sampled, embeddings": (False, {"embedding_channels": CHANNELS}, {"fanouts": (5, 5), "batch_size": 1024}),
    "sampled, shards": (
        False,
        {"embedding_channels": CHANNELS},
        {"fanouts": (5, 5), "batch_size": 1024, "shard_embeddings": True},
    ),
    "whole graph, far edges": (True, {}, {}),
    "whole graph, near edges": (True, {}, {}),
}
NEAR = 1000
EPOCHS = 3  # the first one is not counted


def made_up(with_features, num_edges, reach):
    """Return random data whose edges start at most ``reach`` ids before their targets."""
    generator = torch.Generator().manual_seed(0)
    target = torch.randint(NODES, (num_edges,), generator=generator)
    edge_index = torch.stack([(target - torch.randint(reach, (num_edges,), generator=generator)) % NODES, target])
    edge_type = torch.randint(RELATIONS, (num_edges,), generator=generator)
    graph = RelationalGraph(edge_index, edge_type, num_nodes=NODES, num_relations=RELATIONS)
    x = torch.randn(NODES, CHANNELS, generator=generator) if with_features else None
    labels, order = torch.randint(4, (NODES,), generator=generator), torch.randperm(NODES, generator=generator)
    parts = (order[:4096], order[4096:5000], order[5000:6000])
    names = (tuple(map(str, range(NODES))), tuple(map(str, range(RELATIONS))))
    return NodeData("made up", graph, x, labels, ("a", "b", "c", "d"), *parts, *names)


class Counter:
    """Counts the bytes that this process sends in collectives."""

    def __init__(self):
        self.sent = 0
        number = processes().number
        self._watch("all_reduce", lambda t, *_: 2 * (number - 1) / number * t.nbytes)
        self._watch("all_gather", lambda _, t, *__: (number - 1) * t.nbytes)
        self._watch("all_to_all_single", lambda _, t, __=None, sent=None: self._to_others(t, sent))

    def _watch(self, name, size):
        function = getattr(dist, name)

        def watched(*arguments):
            self.sent += size(*arguments)
            return function(*arguments)

        setattr(dist, name, watched)

    @staticmethod
    def _to_others(rows, sent):
        if sent is None:
            return rows.nbytes * (processes().number - 1) // processes().number
        return (len(rows) - sent[processes().rank]) * (rows[:1].nbytes if len(rows) else 0)


def loopback_bytes():
    line = next(line for line in Path("/proc/net/dev").read_text().splitlines() if line.strip().startswith("lo:"))
    return int(line.split(":")[1].split()[8])


def status(field):
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def build(data, way, **more):
    _, options, settings = WAYS[way]
    return build_model(data, 1, settings.get("shard_embeddings", False), **options, **more)


def work(way, device, folder):
    torch.set_num_threads(1)
    with_features, _, settings = WAYS[way]
    with joined_processes(torch.device(device)) as device:
        small, reach = made_up(with_features, 2000, NODES), NEAR if "near" in way else NODES
        fit(build(small, way).to(device), small, Settings(max_epochs=1, **settings))  # loads libraries
        counter, data = Counter(), made_up(with_features, EDGES, reach)
        model = build(data, way, hidden_channels=64).to(device)
        before, points = memory(device), []
        forget_peak(device)

        def note(epoch):
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            if processes().number > 1:
                processes().average(torch.zeros(1, device=device))  # all have ended the epoch
            points.append((counter.sent, loopback_bytes(), time.perf_counter()))

        fit(model, data, Settings(max_epochs=EPOCHS, patience=None, **settings), 0, note)
        steps = (EPOCHS - 1) * (-(-len(data.train) // settings["batch_size"]) if settings else 1)
        sent, measured, seconds = ((last - first) / steps for first, last in zip(points[0], points[-1], strict=True))
        record = {
            "counted": sent,
            "measured": measured,  # all processes together
            "seconds": seconds,
            "peak": memory(device, "peak") - before,
            "connection": connection(device) if processes().number > 1 else f"One process on {device.type}.",
        }
        (folder / f"{processes().rank}.json").write_text(json.dumps(record))


def memory(device, which="now"):
    """Return the bytes that this process uses on a device, or used at most."""
    if device.type == "cuda":
        return (torch.cuda.memory_allocated if which == "now" else torch.cuda.max_memory_allocated)(device)
    return status("VmRSS" if which == "now" else "VmHWM")


def forget_peak(device):
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    else:
        Path("/proc/self/clear_refs").write_text("5")


def measure(way, count, device):
    """Return bytes per step and process, counted and measured, the largest peak memory of a process, and the time."""
    start = [sys.executable]
    if count > 1:
        start += ["-m", "torch.distributed.run", "--nproc-per-node", str(count), "--standalone"]
    with tempfile.TemporaryDirectory() as name:
        environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        subprocess.run([*start, __file__, "--work", way, device, name], check=True, env=environment)
        records = [json.loads(path.read_text()) for path in Path(name).glob("*.json")]
    return {
        "way": way,
        "processes": count,
        "bytes_counted": sum(record["counted"] for record in records) / count,
        "bytes_measured": records[0]["measured"] / count,
        "peak_bytes": max(record["peak"] for record in records),
        "seconds": max(record["seconds"] for record in records),
        "connection": records[0]["connection"],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--work", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--apart", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(*options.work[:2], Path(options.work[2]))
        return
    apart = ["unshare", "--map-root-user", "--net", "sh", "-c"]
    can_part = shutil.which("unshare") and not subprocess.run([*apart, "ip link set lo up"], check=False).returncode
    if can_part and not options.apart:
        line = 'ip link set lo up && exec "$@"'
        os.execvp("unshare", [*apart, line, "sh", sys.executable, *sys.argv, "--apart"])
    print(f"{'':24}processes   counted MB   measured MB   peak MiB   seconds per step", flush=True)
    rows = []
    for way in options.ways:
        for count in options.processes:
            rows.append(row := measure(way, count, options.device))
            sizes = (row["bytes_counted"] / 1e6, row["bytes_measured"] / 1e6, row["peak_bytes"] / 2**20)
            shown = f"{sizes[0]:10.3f}   {sizes[1]:11.3f}   {sizes[2]:8.0f}   {row['seconds']:16.4f}"
            print(f"{way:24}{count:9}   {shown}   {row['connection']}", flush=True)
    if options.out is not None:
        options.out.write_text(json.dumps({"torch": torch.__version__, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
