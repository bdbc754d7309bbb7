"""Measure how long a report on many trials takes: python benchmarks/report.py [--trials 10000]."""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

from rgat.experiments.records import open_experiment, pack, write_record
from rgat.report import write_report
from rgat.training.configuration import VARIANTS

EPOCHS, FOLDS = 60, 5


def write_records(folder: Path, trials: int) -> None:
    rng = np.random.default_rng(0)
    description = {"data": "aifb", "task": "node", "metric": "accuracy", "budget": "custom", "majority": 0.42}
    open_experiment(folder, description)
    for model in VARIANTS:
        for number in range(trials // len(VARIANTS)):
            curve = {k: rng.random(EPOCHS).round(5).tolist() for k in ("train_loss", "valid_loss", "valid_metric")}
            fold = {"best_epoch": 30, "valid_metric": 0.9, "valid_loss": 0.4, "curve": curve}
            record = {
                "kind": "trial",
                "model": model,
                "trial": number,
                "from_prior": number % 2 == 0,
                "status": "done" if rng.random() < 0.95 else "failed",
                "objective": float(rng.beta(8, 2)),
                "config": {f"option_{i}": float(rng.random()) for i in range(13)},
                "folds": [fold] * FOLDS,
            }
            write_record(folder, record)
        for seed in range(200):
            scores = {"train": 1.0, "test": float(rng.normal(0.95, 0.02))}
            run = {"kind": "run", "model": model, "seed": seed, "status": "done", "scores": scores}
            write_record(folder, run | {"constant_scores": None if model == "RGCN" else scores})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=10_000)
    trials = parser.parse_args().trials
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        write_records(root / "aifb", trials)
        pack(root / "aifb", root / "packed" / "aifb.records.gz")
        for source in ("aifb", "packed"):
            started, used = time.perf_counter(), time.process_time()
            page = write_report([root / source], root / "out")
            wall, cpu = time.perf_counter() - started, time.process_time() - used
            size = page.stat().st_size / 1e6
            print(f"{trials:,} trials, {source}: {wall:.1f} s ({cpu:.1f} s of CPU), page {size:.2f} MB")


if __name__ == "__main__":
    main()
