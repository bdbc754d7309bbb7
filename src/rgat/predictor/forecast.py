"""Estimate how long a fit takes before it starts: a timed epoch, times the largest possible number of epochs."""

from __future__ import annotations

import dataclasses
import time
from datetime import timedelta
from typing import Any

import torch

from rgat.data import GraphData, NodeData
from rgat.predictor.fitting import make_folds
from rgat.predictor.inspection import check
from rgat.training import build_model, fit
from rgat.training.configuration import Config, configure, split_config, task_of
from rgat.training.distributed import processes


def forecast(
    data: NodeData | GraphData,
    *,
    ensemble: int = 1,
    search: int = 0,
    comparison: bool = True,
    seed: int = 0,
    device: torch.device | str = "cpu",
    **options: Any,
) -> str:
    """Return a sentence that says how long :func:`rgat.fit` with these arguments can take, and for which steps."""
    check(data)
    config = configure(task_of(data), options)
    folds = make_folds(data, seed)
    is_compared = comparison and processes().number == 1 and config["model"] != "RGCN"
    models = search * (len(folds) or 1) + len(folds) + ensemble + (is_compared * (len(folds) + 1))
    steps = [
        f"{search} configuration{'s' * (search > 1)} to try (larger ones take longer)" if search else "",
        f"cross-validation in {len(folds)} folds" if folds else "",
        "the model" if ensemble == 1 else f"{ensemble} models",
        "an RGCN to compare with" if is_compared else "",
    ]
    epochs = split_config(config)[1].max_epochs
    seconds = models * epochs * _seconds_per_epoch(folds[0] if folds else data, config, seed, device)
    duration = timedelta(seconds=max(1, round(seconds)))
    each = f"up to {epochs} epoch{'s' * (epochs > 1)} each"
    return f"time: about {duration} (h:mm:ss) for {', '.join(filter(None, steps))}; {each}"


def _seconds_per_epoch(data: NodeData | GraphData, config: Config, seed: int, device: torch.device | str) -> float:
    """Time the second epoch: the first also compiles kernels and prepares the data."""
    options, settings = split_config(config)
    times: list[float] = []
    brief = dataclasses.replace(settings, max_epochs=2)
    model = build_model(data, seed, **options).to(device)
    fit(model, data, brief, seed, lambda epoch: times.append(time.perf_counter()))
    return times[-1] - times[0]
