"""Read a synthetic N-Triples file of AM's size, and its first part with rdflib, and compare triples per CPU second.

    python benchmarks/rdf.py [--triples 6000000] [--peer-triples 1500000]

The file, in a temporary folder, has 1.7 million nodes and 133 predicates; a third of its triples end in literals.
rdflib reads the first quarter only, since the whole file would take minutes and much memory. Each reader runs in its
own process, whose peak memory is reported.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

OURS = """
from rgat.data.rdf.reader import read_triples
def read(path): return len(read_triples(path))
"""
PEER = """
import rdflib
def read(path): return len(rdflib.Graph().parse(path, format="nt"))
"""
MEASURE = """
import json, resource, sys, time
start = time.process_time()
count = read(sys.argv[1])
peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"triples": count, "cpu_seconds": time.process_time() - start, "peak_bytes": peak}))
"""


def write(path, num_triples, num_entities=1_200_000, num_values=500_000, num_predicates=133):
    rng = random.Random(0)
    with path.open("w", encoding="utf-8") as file:
        for _ in range(num_triples):
            subject = f"<http://data.example.org/entity/{rng.randrange(num_entities)}>"
            predicate = f"<http://data.example.org/property/{int(num_predicates * rng.random() ** 3)}>"
            if rng.random() < 1 / 3:
                value = f'"value number {rng.randrange(num_values)}"'
            else:
                value = f"<http://data.example.org/entity/{rng.randrange(num_entities)}>"
            file.write(f"{subject} {predicate} {value} .\n")


def measure(code, path):
    result = subprocess.run([sys.executable, "-c", code + MEASURE, path], capture_output=True, text=True, check=False)
    if result.returncode:
        raise SystemExit(result.stderr.strip().splitlines()[-1])
    return json.loads(result.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--triples", type=int, default=6_000_000)
    parser.add_argument("--peer-triples", type=int, default=1_500_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        whole, part = Path(folder) / "whole.nt", Path(folder) / "part.nt"
        started = time.perf_counter()
        write(whole, arguments.triples)
        with whole.open(encoding="utf-8") as source:
            part.write_text("".join(line for _, line in zip(range(arguments.peer_triples), source, strict=False)))
        print(f"{whole.stat().st_size / 2**20:.0f} MiB written in {time.perf_counter() - started:.0f} s")
        speeds = {}
        for name, code, path in (("rgat", OURS, whole), ("rgat", OURS, part), ("rdflib", PEER, part)):
            count, seconds, peak = measure(code, path).values()
            speeds[name, path.name] = count / seconds
            print(
                f"{name:7s} {path.name:9s} {count:9,} triples, {seconds:6.1f} s of CPU time, "
                f"{speeds[name, path.name]:9,.0f} per second, peak {peak / 2**30:.2f} GiB"
            )
        for file in ("whole.nt", "part.nt"):
            print(f"ratio to rdflib ({file}): {speeds['rgat', file] / speeds['rdflib', 'part.nt']:.1f}")


if __name__ == "__main__":
    main()
