"""Kill a small search-and-evaluate job at random moments, start it again each time, and compare its records.

    python tests/experiments/kill_nine.py --kills 20

It ends with 0 if every record of the undisturbed job is there once, with the same content, and there are no others.
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

# 22 trials: the last two of them proposed by TPE from the records of the first twenty.
JOB = {"data": "institute", "trials": 22, "seeds": 3, "folds": 1, "max_epochs": 2, "patience": 2}


def command(folder, out, executor, models):
    plan = folder / "plan.toml"
    plan.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in (JOB | {"models": models}).items()))
    how = ["--executor", executor, *(["--workers", "2"] if executor == "processes" else [])]
    return [sys.executable, "-m", "rgat", "reproduce", "--config", str(plan), "--out", str(out), *how]


def paths(out):
    return list((out / JOB["data"] / "records").rglob("*.json"))


def records(out):
    """Content by file name, without the time it took."""
    found = {f"{path.parent.name}/{path.name}": json.loads(path.read_text()) for path in paths(out)}
    return {name: {key: value for key, value in r.items() if key != "seconds"} for name, r in found.items()}


def start(line):
    environment = os.environ | {"RGAT_BACKEND": "torch", "OMP_NUM_THREADS": "1"}  # nothing to compile at each start
    return subprocess.Popen(
        line, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


def finish(line):
    job = start(line)
    output, _ = job.communicate(timeout=600)
    if job.returncode:
        raise SystemExit(f"the job ended with {job.returncode}: {output}")
    return "".join(line for line in output.splitlines(keepends=True) if not line.startswith("stage "))  # the results


def disturb(line, out, generator, most):
    """Start the job, kill it at a random moment after up to ``most`` new records; false if it was faster."""
    enough = len(paths(out)) + generator.randint(0, most)
    job = start(line)
    while job.poll() is None and len(paths(out)) < enough:
        time.sleep(0.1)
    time.sleep(generator.uniform(0, 0.5))
    if job.poll() is not None:
        return False
    whole_group = generator.random() < 0.5  # or only the process that writes: its workers must leave by themselves
    (os.killpg if whole_group else os.kill)(job.pid, signal.SIGKILL)
    job.communicate(timeout=60)  # ends when the last worker has let go of the output
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--models", nargs="+", default=["RGCN", "additive ARGAT"])
    parser.add_argument("--executors", nargs="+", default=["local", "processes"])
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    generator = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        table = finish(command(folder, folder / "undisturbed", "local", options.models)).split("Records are in")[0]
        expected = records(folder / "undisturbed")
        kills = jobs = 0
        while kills < options.kills:
            jobs += 1
            out = folder / f"disturbed-{jobs}"
            line = command(folder, out, generator.choice(options.executors), options.models)
            most = max(1, 2 * len(expected) // options.kills)
            while kills < options.kills and disturb(line, out, generator, most):
                kills += 1
                print(f"kill {kills}: {len(records(out))} of {len(expected)} records", flush=True)
            final = finish(line).split("Records are in")[0]
            found = records(out)
            if found != expected or final != table:
                different = sorted(n for n in {*found, *expected} if found.get(n) != expected.get(n))
                raise SystemExit(f"job {jobs}: these records differ: {different}")
    print(f"{kills} kills in {jobs} jobs: all {len(expected)} records equal to those of the undisturbed job\n{table}")


if __name__ == "__main__":
    main()
