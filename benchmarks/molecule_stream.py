"""Measure the speed and memory of predicting a molecule file.

    python benchmarks/molecule_stream.py tox21.csv.gz --count 200000

Repeats the molecules of a file up to the given count, predicts them with a model of the default configuration, and
prints molecules per second after start-up, CPU time per molecule, and samples of this process's memory.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import tempfile
import time
from pathlib import Path

import rgat
from rgat.predictor.streaming import predict_file, read_smiles


def megabytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--count", type=int, default=200_000)
    parser.add_argument("--workers", type=int)
    arguments = parser.parse_args()
    predictor = rgat.fit("molecules", max_epochs=2, comparison=False)
    marks: list[tuple[float, float, int]] = []
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "molecules.smi"
        with source.open("w") as file:
            for text in itertools.islice(itertools.cycle(read_smiles(arguments.path)), arguments.count):
                file.write(f"{text}\n")
        before = os.times()
        predict_file(
            predictor,
            source,
            Path(folder) / "predictions.csv",
            workers=arguments.workers,
            progress=lambda step: marks.append((time.perf_counter(), step.share, megabytes())),
        )
        after = os.times()
    (start, first, _), (end, last, _) = marks[0], marks[-1]
    spent = (after.user - before.user, after.children_user - before.children_user)
    print(
        json.dumps(
            {
                "molecules": arguments.count,
                "per_second_after_start": arguments.count * (last - first) / (end - start),
                "microseconds_of_cpu": {
                    "predicting and writing": 1e6 * spent[0] / arguments.count,
                    "reading SMILES": 1e6 * spent[1] / arguments.count,
                },
                "megabytes": [mark[2] for mark in marks[:: max(1, len(marks) // 10)]],
                "load": os.getloadavg()[0],
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
