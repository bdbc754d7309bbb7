"""Train several models on several data sets with several seeds, each run in a worker process of its own."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from rgat.checks import check_count, check_word
from rgat.data import GraphData, NodeData, load
from rgat.experiments.variants import VARIANTS, build_model
from rgat.training import Result, Settings, fit


@dataclass(frozen=True)
class Setup:
    """Model options and training settings for one data set, the same for all models; chosen on validation data."""

    options: dict[str, Any]
    settings: Settings


SETUPS = {
    "institute": Setup({}, Settings(max_epochs=60, kernel_l2=(5e-4, 5e-4))),
    "molecules": Setup(
        {"hidden_channels": 32, "dense_channels": 32}, Settings(max_epochs=40, patience=15, learning_rate=0.005)
    ),
    "planted-needle": Setup({}, Settings(max_epochs=150, learning_rate=0.05)),
    "planted-rivals": Setup({}, Settings(max_epochs=150, learning_rate=0.05)),
    "planted-consensus": Setup({}, Settings(max_epochs=150, learning_rate=0.05)),
}


@dataclass(frozen=True)
class Run:
    """One model trained once."""

    data: str
    model: str
    seed: int
    result: Result


@cache
def _load(name: str) -> NodeData | GraphData:
    return load(name)


def _train(name: str, model: str, seed: int) -> Run:
    data, setup = _load(name), SETUPS[name]
    built = build_model(data, seed, **VARIANTS[model], **setup.options)
    return Run(name, model, seed, fit(built, data, setup.settings, seed))


def _start_worker() -> None:
    torch.set_num_threads(1)  # one run per core; and sums never depend on the number of threads


def compare(
    names: Sequence[str],
    models: Sequence[str] = tuple(VARIANTS),
    seeds: int = 3,
    workers: int | None = None,
    on_run: Callable[[Run], None] | None = None,
) -> list[Run]:
    """Return all runs, ordered by data set, model and seed, whatever the number of workers.

    Args:
        names: data sets, of those in ``SETUPS``.
        models: of those in ``VARIANTS``.
        seeds: how many; seed ``s`` draws the parameters, dropout and the order of batches.
        workers: processes; by default one per core.
        on_run: called after every run, in the order in which they end.
    """
    names = list(dict.fromkeys(names))
    for name in names:
        check_word("data set", name, tuple(SETUPS))
    for model in models:
        check_word("model", model, tuple(VARIANTS))
    check_count("seeds", seeds)
    jobs = [(name, model, seed) for name in names for model in models for seed in range(seeds)]
    workers = (os.cpu_count() or 1) if workers is None else workers
    check_count("workers", workers)
    runs = {}
    context = multiprocessing.get_context("spawn")  # a forked child of a threaded parent may hang
    with ProcessPoolExecutor(min(workers, len(jobs)) or 1, mp_context=context, initializer=_start_worker) as pool:
        futures = {pool.submit(_train, *job): job for job in jobs}
        try:
            for future in as_completed(futures):
                run = runs[futures[future]] = future.result()
                if on_run is not None:
                    on_run(run)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)  # nobody waits for the rest
            raise
    return [runs[job] for job in jobs]
