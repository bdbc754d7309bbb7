"""How long a fit will take, before it begins: a timed epoch, times the epochs that there can be."""

from __future__ import annotations

import dataclasses
import time
from datetime import timedelta
from typing import Any

from rgat.data import GraphData, NodeData
from rgat.experiments.variants import build_model
from rgat.predictor.configuration import Config, configure, split_config, task_of
from rgat.predictor.fitting import folds_of
from rgat.predictor.inspection import check
from rgat.training import fit


def forecast(
    data: NodeData | GraphData,
    *,
    ensemble: int = 1,
    search: int = 0,
    comparison: bool = True,
    seed: int = 0,
    **options: Any,
) -> str:
    """Return a sentence that says how long :func:`rgat.fit` with these arguments can take, and what for.

    The first epoch compiles and prepares, so the second is timed. Training that stops early takes less.
    """
    check(data)
    config = configure(task_of(data), options)
    folds = folds_of(data, seed)
    is_compared = comparison and config["model"] != "RGCN"
    models = search * (len(folds) or 1) + len(folds) + ensemble + (is_compared * (len(folds) + 1))
    parts = [
        f"{search} configuration{'s' * (search > 1)} to try (larger ones take longer)" if search else "",
        f"cross-validation in {len(folds)} folds" if folds else "",
        "the model" if ensemble == 1 else f"{ensemble} models",
        "an RGCN to compare with" if is_compared else "",
    ]
    epochs = split_config(config)[1].max_epochs
    seconds = models * epochs * _seconds_per_epoch(folds[0] if folds else data, config, seed)
    spelt = timedelta(seconds=max(1, round(seconds)))
    each = f"up to {epochs} epoch{'s' * (epochs > 1)} each"
    return f"time: about {spelt} (h:mm:ss) for {', '.join(filter(None, parts))}; {each}"


def _seconds_per_epoch(data: NodeData | GraphData, config: Config, seed: int) -> float:
    options, settings = split_config(config)
    marks: list[float] = []
    brief = dataclasses.replace(settings, max_epochs=2)
    fit(build_model(data, seed, **options), data, brief, seed, lambda epoch: marks.append(time.perf_counter()))
    return marks[-1] - marks[0]
