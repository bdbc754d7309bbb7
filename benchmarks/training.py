"""Time training steps, stacks of many models and epochs, and the memory of a long run.

    python benchmarks/training.py --out benchmarks/results/training.json          everything
    python benchmarks/training.py --only step memory
    rgat reproduce aifb --propose; rgat reproduce tox21 --propose                 write data as plain tensors
    python benchmarks/training.py --prepared runs --device cuda                   for a machine without RDKit

step    one step of a featureless two-layer NodeClassifier (additive WIRGAT, 16 units, no dropout) on AIFB; CPU time on
        one thread; not on a GPU
seeds   200 random seeds of it, 50 epochs, in stacks; on the CPU one process per core, with both dropouts at 0.3; on a
        GPU without and with dropout
tox21   an epoch of 6,411 prepared graphs, batch size 64, 64 units, 4 heads
memory  resident memory over 2,000 epochs on a small graph
"""

import argparse
import itertools
import json
import os
import platform
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import torch

from rgat import RelationalGraph
from rgat.data import NodeData
from rgat.experiments.folds import decode
from rgat.training import Settings, build_model, fit, fit_many
from rgat.training.loop import Training, make_task
from rgat.training.run import Run

DROPOUT = {"feature_dropout": 0.3, "edge_dropout": 0.3}
PER_STACK = 20  # members of a stack on the CPU: small enough for two processes on any machine


def load(name, prepared):
    """Load AIFB or Tox21 from their files or, with ``prepared``, from plain tensors."""
    if prepared is None:
        import rgat.data

        return rgat.data.load(name)
    return decode((prepared / name / "data.safetensors").read_bytes()).data


def measure_step(options):
    """Return the median and best CPU milliseconds of 100 steps on one thread."""
    torch.set_num_threads(1)
    data, settings = load("aifb", options.prepared), Settings(patience=None)
    model = build_model(data)
    training = Training(model, make_task([data], settings, torch.device("cpu")), [Run(settings)], 0)
    samples = []
    for _ in range(105):
        started = time.process_time()
        training.step(torch.empty(0))
        samples.append(1e3 * (time.process_time() - started))
    return {"median ms": statistics.median(samples[5:]), "best ms": min(samples[5:])}


def _train_seeds(seeds, epochs, prepared):
    torch.set_num_threads(1)
    data = load("aifb", prepared)
    for start in range(0, len(seeds), PER_STACK):
        models = [build_model(data, seed, **DROPOUT) for seed in seeds[start : start + PER_STACK]]
        how = fit_many(models, data, Settings(max_epochs=epochs, patience=None))[0].how
    return how


def measure_seeds(options):
    """Return the seconds to train all seeds: in processes on the CPU, in one stack on the GPU."""
    seeds, epochs = range(options.seeds), options.epochs
    what = f"{options.seeds} seeds x {epochs} epochs"
    if options.device == "cpu":
        workers = os.cpu_count() or 1
        with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
            list(pool.map(_train_seeds, [[0]] * workers, [1] * workers, [options.prepared] * workers))  # imports
            started = time.perf_counter()
            shares = [list(seeds[k::workers]) for k in range(workers)]
            hows = list(pool.map(_train_seeds, shares, [epochs] * workers, [options.prepared] * workers))
            return {"what": what, "seconds": time.perf_counter() - started, "processes": workers, "how": hows[0]}
    data, results = load("aifb", options.prepared), {"what": what}
    for word, rates in (("no dropout", {}), ("dropout", DROPOUT)):
        for name, count in (("with compilation", 5), ("seconds", epochs)):
            models = [build_model(data, seed, **rates).to(options.device) for seed in seeds]
            torch.cuda.synchronize()
            started = time.perf_counter()
            stamps = []
            result = fit_many(
                models,
                data,
                Settings(max_epochs=count, patience=None),
                on_epoch=lambda number, epoch, stamps=stamps: (
                    stamps.append(time.perf_counter()) if not number else None
                ),
            )[0]
            # First training alone, then with stacking, unstacking and scoring all parts.
            results[f"{name}, {word}"] = stamps[-1] - started
            results[f"{name}, {word}, scores too"] = time.perf_counter() - started
        results[f"how, {word}"] = result.how
        results[f"peak GiB, {word}"] = torch.cuda.max_memory_allocated() / 2**30
    return results


def measure_tox21(options):
    """Return the best and median seconds of three training epochs after the first."""
    torch.set_num_threads(os.cpu_count() or 1)
    data, settings = load("tox21", options.prepared), Settings(max_epochs=4, patience=None)
    model = build_model(data, hidden_channels=64, heads=4).to(options.device)
    stamps = [time.perf_counter()]
    fit(model, data, settings, on_epoch=lambda epoch: stamps.append(time.perf_counter()))
    seconds = [after - before for before, after in itertools.pairwise(stamps[1:])]
    return {"graphs": len(data.train), "best s": min(seconds), "median s": statistics.median(seconds)}


def measure_memory(options):
    """Return resident MiB at every 500th epoch, with validation, both dropouts and batch normalisation."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    edges = torch.randint(60, (2, 400), generator=generator)
    graph = RelationalGraph(edges, torch.randint(4, (400,), generator=generator), num_nodes=60, num_relations=4)
    nodes = torch.randperm(60, generator=generator)
    data = NodeData("made up", graph, None, nodes % 3, ("a", "b", "c"), nodes[:30], nodes[30:45], nodes[45:], (), ())
    levels = {}

    def watch(epoch):
        if epoch.epoch % 500 == 0:
            with open("/proc/self/statm", encoding="ascii") as file:
                levels[f"MiB at {epoch.epoch}"] = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20

    model = build_model(data, batch_norm=True, **DROPOUT).to(options.device)
    fit(model, data, Settings(max_epochs=2000, patience=2000), on_epoch=watch)
    return levels


MEASURES = {"step": measure_step, "seeds": measure_seeds, "tox21": measure_tox21, "memory": measure_memory}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--prepared", type=Path, metavar="FOLDER", help="read data that `rgat reproduce --propose` wrote"
    )
    parser.add_argument("--only", nargs="+", choices=MEASURES, default=list(MEASURES), help="default: all")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=200, help="models to train (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=50, help="epochs of each (default: %(default)s)")
    parser.add_argument("--out", metavar="FILE", help="write the results to this JSON file")
    options = parser.parse_args()
    gpu = options.device != "cpu"
    name = torch.cuda.get_device_name() if gpu else platform.processor() or platform.machine()
    results = {"torch": torch.__version__, "device": name, "cores": os.cpu_count()}
    for word in options.only:
        if word != "step" or not gpu:
            results[word] = MEASURES[word](options)
            for key, value in results[word].items():
                print(f"{word:8s} {key:34s} {value:10.3f}" if isinstance(value, float) else f"{word:8s} {key}: {value}")
    if options.out:
        with open(options.out, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
