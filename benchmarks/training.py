"""Time whole training steps, many seeds and epochs, and watch the memory of a long run.

    python benchmarks/training.py --out benchmarks/results/training.json          what fits this machine
    python benchmarks/training.py --only step memory
    rgat reproduce aifb --propose; rgat reproduce tox21 --propose                 the data as plain tensors, for a
    python benchmarks/training.py --prepared runs --device cuda                   machine without RDKit and RDF readers

step: a featureless two-layer NodeClassifier, 16 units, WIRGAT additive, no dropout, on AIFB; CPU time on one thread.
seeds: 200 seeds of it, 50 epochs, both dropouts at 0.3 (none on a GPU, where it is also timed with them), in stacks; on
the CPU one process per core. tox21: an epoch of 6,411 graphs, batch 64, 64 units, 4 heads, from prepared graphs.
memory: resident bytes over 2,000 epochs of a small graph.
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
from rgat.experiments.portable import decode
from rgat.experiments.variants import build_model
from rgat.training import Settings, fit, fit_many
from rgat.training.loop import Training, make_task
from rgat.training.run import Run

DROPOUT = {"feature_dropout": 0.3, "edge_dropout": 0.3}
PER_STACK = 20  # members on the CPU: two processes, each with so many, fit any machine


def load(name, prepared):
    """AIFB or Tox21, from their files or from plain tensors."""
    if prepared is None:
        import rgat.data

        return rgat.data.load(name)
    return decode((prepared / name / "data.safetensors").read_bytes()).data


def measure_step(options):
    """Milliseconds of CPU time of a step on one thread: median and best of 100."""
    torch.set_num_threads(1)
    data, settings = load("aifb", options.prepared), Settings(patience=None)
    model = build_model(data)
    training = Training(model, model, make_task([data], settings, torch.device("cpu")), [Run(settings)], 0)
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
    """Seconds of all seeds: of processes on the CPU, or of one stack on the GPU after a first epoch."""
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
    data, found = load("aifb", options.prepared), {"what": what}
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
            # Training alone, and beside it everything: stacking, unstacking and the scores of all parts.
            found[f"{name}, {word}"] = stamps[-1] - started
            found[f"{name}, {word}, scores too"] = time.perf_counter() - started
        found[f"how, {word}"] = result.how
        found[f"peak GiB, {word}"] = torch.cuda.max_memory_allocated() / 2**30
    return found


def measure_tox21(options):
    """Seconds of a training epoch: best and median of three after the first."""
    torch.set_num_threads(os.cpu_count() or 1)
    data, settings = load("tox21", options.prepared), Settings(max_epochs=4, patience=None)
    model = build_model(data, hidden_channels=64, heads=4).to(options.device)
    stamps = [time.perf_counter()]
    fit(model, data, settings, on_epoch=lambda epoch: stamps.append(time.perf_counter()))
    seconds = [after - before for before, after in itertools.pairwise(stamps[1:])]
    return {"graphs": len(data.train), "best s": min(seconds), "median s": statistics.median(seconds)}


def measure_memory(options):
    """Resident MiB after 500, 1,000, 1,500 and 2,000 epochs with validation, both dropouts and batch norm."""
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
    parser.add_argument("--prepared", type=Path, metavar="FOLDER")
    parser.add_argument("--only", nargs="+", choices=MEASURES, default=list(MEASURES))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--out", metavar="FILE")
    options = parser.parse_args()
    gpu = options.device != "cpu"
    name = torch.cuda.get_device_name() if gpu else platform.processor() or platform.machine()
    found = {"torch": torch.__version__, "device": name, "cores": os.cpu_count()}
    for word in options.only:
        if word != "step" or not gpu:
            found[word] = MEASURES[word](options)
            for key, value in found[word].items():
                print(f"{word:8s} {key:34s} {value:10.3f}" if isinstance(value, float) else f"{word:8s} {key}: {value}")
    if options.out:
        with open(options.out, "w", encoding="utf-8") as file:
            json.dump(found, file, indent=1)


if __name__ == "__main__":
    main()
