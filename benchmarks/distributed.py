"""Bytes sent per step and peak memory of one node classifier in 1, 2 and 4 processes.

    python benchmarks/distributed.py --out benchmarks/results/distributed.json

Processes run on this machine and talk by gloo, in a network of their own where the system allows that (`unshare`), so
that the loopback device's counter measures what they send. Counted bytes follow from the sizes of the collectives: an
all-reduce of n bytes sends 2 (K - 1) / K n from each process, an all-gather (K - 1) n, an all-to-all what others get.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist

from rgat.data import NodeData
from rgat.graph import RelationalGraph
from rgat.training import Settings, build_model, fit
from rgat.training.distributed import joined_processes, processes

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


def work(way, folder):
    torch.set_num_threads(1)
    with_features, options, settings = WAYS[way]
    with joined_processes():
        small, reach = made_up(with_features, 2000, NODES), NEAR if "near" in way else NODES
        fit(build_model(small, 1, **options), small, Settings(max_epochs=1, **settings))  # loads all libraries
        counter, data = Counter(), made_up(with_features, EDGES, reach)
        model = build_model(data, 1, hidden_channels=64, **options)
        before, points = status("VmRSS"), []
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far

        def note(epoch):
            if processes().number > 1:
                dist.barrier()
            points.append((counter.sent, loopback_bytes()))

        fit(model, data, Settings(max_epochs=EPOCHS, patience=None, **settings), 0, note)
        steps = (EPOCHS - 1) * (-(-len(data.train) // settings["batch_size"]) if settings else 1)
        record = {
            "counted": (points[-1][0] - points[0][0]) / steps,
            "measured": (points[-1][1] - points[0][1]) / steps,  # all processes together
            "peak": status("VmHWM") - before,
        }
        (folder / f"{processes().rank}.json").write_text(json.dumps(record))


def measure(way, count):
    """Return bytes per step and process, counted and measured, and the largest peak memory of a process."""
    start = [sys.executable]
    if count > 1:
        start += ["-m", "torch.distributed.run", "--nproc-per-node", str(count), "--standalone"]
    with tempfile.TemporaryDirectory() as name:
        environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        subprocess.run([*start, __file__, "--work", way, name], check=True, env=environment)
        records = [json.loads(path.read_text()) for path in Path(name).glob("*.json")]
    return {
        "way": way,
        "processes": count,
        "bytes_counted": sum(record["counted"] for record in records) / count,
        "bytes_measured": records[0]["measured"] / count,
        "peak_bytes": max(record["peak"] for record in records),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    parser.add_argument("--work", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--apart", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.work[0], Path(options.work[1]))
        return
    apart = ["unshare", "--map-root-user", "--net", "sh", "-c"]
    can_part = shutil.which("unshare") and not subprocess.run([*apart, "ip link set lo up"], check=False).returncode
    if can_part and not options.apart:
        line = 'ip link set lo up && exec "$@"'
        os.execvp("unshare", [*apart, line, "sh", sys.executable, *sys.argv, "--apart"])
    print(f"{'':24}processes   counted MB   measured MB   peak MiB", flush=True)
    rows = []
    for way in options.ways:
        for count in options.processes:
            rows.append(row := measure(way, count))
            sizes = (row["bytes_counted"] / 1e6, row["bytes_measured"] / 1e6, row["peak_bytes"] / 2**20)
            print(f"{way:24}{count:9}   {sizes[0]:10.3f}   {sizes[1]:11.3f}   {sizes[2]:8.0f}", flush=True)
    if options.out is not None:
        options.out.write_text(json.dumps({"torch": torch.__version__, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
