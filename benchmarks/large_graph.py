"""Measure peak memory and time of `rgat train --rdf` on a synthetic museum catalogue, against the printed estimate.

Scale 1 has the shape of a real catalogue: 1.04 million nodes, 1.4 million triples (3.8 million edges with inverses and
self-loops), 11 predicates, 33,000 labels.

    python benchmarks/large_graph.py --scale 0.1
    python benchmarks/large_graph.py --scale 1 -- --no-comparison
    OMP_NUM_THREADS=1 python benchmarks/large_graph.py --scale 1 --cpu-clock

Where others use the machine too, `--cpu-clock` lets `rgat train` estimate its time in seconds of the CPU.
"""

from __future__ import annotations

import argparse
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

OBJECTS, LABELLED = 200_000, 33_000  # at scale 1
DEPARTMENTS = 10
SHARED = {"material": 300, "technique": 200, "place": 5_000, "creator": 20_000, "depicts": 10_000, "period": 60}
UNIQUE = ("title", "identifier", "image", "inscription")  # one distinct value per object


def write_catalogue(folder: Path, scale: float, seed: int = 0) -> tuple[Path, Path]:
    """Write ``catalogue.nt`` and ``labels.tsv`` (object, department) and return their paths."""
    draw = random.Random(seed)
    graph, labels = folder / "catalogue.nt", folder / "labels.tsv"
    sizes = {word: max(int(size * scale), DEPARTMENTS) for word, size in SHARED.items()}
    num_objects = int(OBJECTS * scale)
    labelled = set(draw.sample(range(num_objects), int(LABELLED * scale)))
    site = "http://museum.example/"
    with graph.open("w", encoding="utf-8") as triples, labels.open("w", encoding="utf-8") as table:
        table.write("object\tdepartment\n")
        for number in range(num_objects):
            department = draw.randrange(DEPARTMENTS)
            subject = f"<{site}object/{number}>"
            triples.write(f"{subject} <http://www.w3.org/1999/02/22-rdf-syntax-ns#type> <{site}Object> .\n")
            for word in UNIQUE:
                triples.write(f'{subject} <{site}{word}> "{word} {number}" .\n')
            for word in draw.sample(sorted(sizes), 2):
                value = draw.randrange(sizes[word])
                if draw.random() < 0.7:  # most values are typical of a department
                    value -= value % DEPARTMENTS - department
                triples.write(f"{subject} <{site}{word}> <{site}{word}/{value}> .\n")
            if number in labelled:
                table.write(f"{site}object/{number}\tdepartment {department}\n")
    return graph, labels


CPU_CLOCK = """
import time, types
from rgat.cli import main
from rgat.predictor import estimates
estimates.time = types.SimpleNamespace(perf_counter=time.process_time)
main()
"""


def run(command: list[str]) -> tuple[int, list[str]]:
    """Run a command and print its output as it comes; return its exit code and the lines."""
    lines = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, bufsize=1) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    return process.returncode, lines


def estimates(lines: list[str]) -> dict[str, float]:
    """Return the seconds and gibibytes that `rgat train` announced."""
    text = " ".join(" ".join(lines).split())
    found = {}
    if match := re.search(r"time: about (?:(\d+) days?, )?(\d+):(\d\d):(\d\d)", text):
        days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
        found["seconds"] = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    if match := re.search(r"memory: about ([\d.]+) GiB", text):
        found["GiB"] = float(match.group(1))
    return found


def main() -> None:
    """Write a catalogue, run `rgat train` on it, and print what it took beside what was announced."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=0.1, help="size of the catalogue (default: %(default)s)")
    parser.add_argument("--cpu-clock", action="store_true", help="estimate seconds of the CPU instead of wall time")
    parser.add_argument("train", nargs="*", help="further options of `rgat train`, after --")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        graph, labels = write_catalogue(Path(folder), arguments.scale)
        program = ["-c", CPU_CLOCK] if arguments.cpu_clock else ["-m", "rgat"]
        command = [sys.executable, *program, "train", "--rdf", str(graph), "--labels", str(labels)]
        started = time.perf_counter()
        code, lines = run([*command, "--out", f"{folder}/model", *arguments.train])
        seconds = time.perf_counter() - started
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    peak = used.ru_maxrss / (2**30 if sys.platform == "darwin" else 2**20)
    print(
        f"scale {arguments.scale:g}: exit code {code}, peak {peak:.2f} GiB, {seconds:.0f} s; CPU {used.ru_utime:.0f} s "
        f"and {used.ru_stime:.0f} s of the system, {used.ru_minflt / 1e6:.1f} million page faults"
    )
    announced = estimates(lines)
    cpu = used.ru_utime + used.ru_stime
    time_taken = ("CPU time", "seconds", cpu) if arguments.cpu_clock else ("wall time", "seconds", seconds)
    for name, amount, took in (time_taken, ("memory", "GiB", peak)):
        if amount in announced:
            print(f"{name}: announced {announced[amount]:g} {amount}, took {took:.1f}: {announced[amount] / took:.2f}")
    raise SystemExit(code)


if __name__ == "__main__":
    main()
