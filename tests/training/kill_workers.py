"""Kill workers of `torchrun --max-restarts` at random moments, and compare the result with that of an undisturbed run.

    python tests/training/kill_workers.py --kills 10

It ends with 0 if every run finishes with the learning curve, scores and parameters of the undisturbed run, bit for bit.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

EPOCHS = 30


def work(folder):
    """Train one model in this worker; the first one writes the result."""
    import dataclasses

    import torch
    from node_runs import CASES, made_up

    from rgat.training import Settings, build_model, fit
    from rgat.training.distributed import joined_processes, processes

    torch.set_num_threads(1)
    with_features, options, settings = CASES["sampled embeddings"]
    with joined_processes(torch.device("cpu")):
        rank = processes().rank
        (folder / f"pid-{rank}").write_text(str(os.getpid()))
        data = made_up(with_features)
        model = build_model(data, 1, **options)
        settings = Settings(max_epochs=EPOCHS, patience=EPOCHS, **settings)

        def started(epoch):
            if rank == 0:
                (folder / "next").write_text(f"{os.getpid()} {epoch.epoch}")
                (folder / "next").rename(folder / "epoch")  # never read half written

        result = fit(model, data, settings, 4, started, checkpoint=folder / "checkpoint", checkpoint_seconds=0)
        if rank == 0:
            state = {name: tensor.tolist() for name, tensor in model.state_dict().items()}
            curve = [dataclasses.astuple(epoch) for epoch in result.curve]
            (folder / "result.json").write_text(json.dumps([curve, result.scores, state]))


def start(folder, count, restarts):
    folder.mkdir()
    options = ["--nproc-per-node", str(count), "--max-restarts", str(restarts), "--standalone"]
    return subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", *options, __file__, "--work", folder],
        env=os.environ | {"RGAT_BACKEND": "torch", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},  # no compiling
        stdout=subprocess.DEVNULL,
        stderr=(folder / "log").open("w"),
    )


def read(path):
    return path.read_text() if path.exists() else ""


def kill_one(job, folder, count, generator):
    """Kill a random worker at a random moment after the next epoch; return the epoch, or None if the job was faster."""
    before = read(folder / "epoch").partition(" ")[0]
    while job.poll() is None and read(folder / "epoch").partition(" ")[0] in ("", before):
        time.sleep(0.02)
    time.sleep(generator.uniform(0, 1))
    pid = int(read(folder / f"pid-{generator.randrange(count)}"))
    if job.poll() is not None or (folder / "result.json").exists():
        return None
    epoch = read(folder / "epoch").partition(" ")[2]
    os.kill(pid, signal.SIGKILL)
    return epoch


def finish(job, folder):
    if job.wait(timeout=600):
        raise SystemExit(f"the job ended with {job.returncode}: {read(folder / 'log')}")
    return json.loads(read(folder / "result.json"))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work is not None:
        work(options.work)
        return
    generator, count = random.Random(options.seed), options.processes
    with tempfile.TemporaryDirectory() as name:
        expected = finish(start(Path(name, "undisturbed"), count, 0), Path(name, "undisturbed"))
        kills = jobs = 0
        while kills < options.kills:
            jobs += 1
            folder = Path(name, f"disturbed-{jobs}")
            job = start(folder, count, options.kills)
            while kills < options.kills and (epoch := kill_one(job, folder, count, generator)) is not None:
                kills += 1
                print(f"kill {kills}: after epoch {epoch} of {EPOCHS}", flush=True)
            if finish(job, folder) != expected:
                raise SystemExit(f"job {jobs}: its result differs from that of the undisturbed job")
    print(f"{kills} kills in {jobs} jobs: results equal to those of the undisturbed job")


if __name__ == "__main__":
    main()
