"""Estimate the time and memory of a fit before it starts, and choose sampled training where memory is short."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, NamedTuple

import torch

from rgat.data import NodeData
from rgat.data.rdf.featurised import is_open
from rgat.memory import free_memory
from rgat.predictor.choice import OF_FEATURES, candidates, configure_for, number_of
from rgat.predictor.fitting import make_folds, with_validation
from rgat.predictor.inspection import check
from rgat.training.capture import training_on
from rgat.training.configuration import DEFAULTS, Config, build_model, split_config
from rgat.training.distributed import processes
from rgat.training.loop import Data, Training, make_task
from rgat.training.run import Run

TIMED_BATCHES = 4  # of sampled training, for a forecast
FANOUTS = (20, 10)  # where training on the whole graph would not fit into memory
EMBEDDING_CHANNELS = 64
BYTES_PER_EDGE = 200  # of a graph in memory: ids, sorted orders and names


class GraphSize(NamedTuple):
    """What the memory of training on a whole graph depends on."""

    num_nodes: int
    num_edges: int
    has_features: bool


def sampling_for(
    size: GraphSize, given: Mapping[str, Any], in_store: bool, device: torch.device | str
) -> tuple[dict[str, Any], str | None]:
    """Return options that make training fit into memory, and a sentence that says so; none where it fits as asked.

    One-hot input needs kernels for every edge, so a graph that does not fit gets node embeddings instead, and so does
    one that stays in its store.
    """
    embedding = {}
    if not size.has_features and given.get("embedding_channels") is None:
        embedding = {"embedding_channels": EMBEDDING_CHANNELS}
    if given.get("fanouts") is not None:
        if not in_store or not embedding:
            return {}, None
        return (
            embedding,
            f"input: {EMBEDDING_CHANNELS} learned channels per node (--embedding), as the graph is in a store",
        )
    hidden = given.get("hidden_channels") or DEFAULTS["node"]["hidden_channels"]
    layers = given.get("num_layers") or 2
    activations = 8 * 4 * layers * hidden * (size.num_edges + size.num_nodes)
    # With gradients, moments and copies.
    kernels = 10 * 4 * hidden * size.num_edges if embedding else 0
    kernels += 4 * 4 * (given.get("embedding_channels") or 0) * size.num_nodes
    needed, free = activations + kernels + BYTES_PER_EDGE * size.num_edges, free_memory(device)
    if needed < free:
        return {}, None
    fanouts = [FANOUTS[0], *FANOUTS[1:] * (layers - 1)]
    instead = f" and {EMBEDDING_CHANNELS} learned channels per node" if embedding else ""
    return {"fanouts": fanouts, **embedding}, (
        f"memory: training on the whole graph may take {needed / 2**30:.0f} GiB, and {free / 2**30:.1f} GiB are free; "
        f"it samples instead, with --fanouts {','.join(map(str, fanouts))}{instead}; scores stay exact"
    )


def forecast(
    data: Data,
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
    config = configure_for(data, options)
    data = with_validation(data, config, seed)
    folds = make_folds(data, seed)
    is_compared = comparison and processes().number == 1 and config["model"] != "RGCN"
    inputs, variants = candidates(data, options, len(folds), comparison)
    chosen = number_of(inputs, variants)
    trained = chosen * (len(folds) or 1) if chosen else len(folds) * (1 + is_compared)
    models = search * (len(folds) or 1) + trained + ensemble + is_compared
    steps = [
        f"{chosen} candidates of input and model{f' in {len(folds)} folds' if folds else ''}" if chosen else "",
        f"{search} configuration{'s' * (search > 1)} to try (larger ones take longer)" if search else "",
        f"cross-validation in {len(folds)} folds" if folds and not chosen else "",
        "the model" if ensemble == 1 else f"{ensemble} models",
        "an RGCN to compare with" if is_compared else "",
    ]
    if isinstance(data, NodeData) and is_open(data) and inputs != ["identity"]:
        config = OF_FEATURES | config | {"max_epochs": options.get("max_epochs", OF_FEATURES["max_epochs"])}
    epochs = split_config(config)[1].max_epochs
    seconds = models * epochs * _seconds_per_epoch(folds[0] if folds else data, config, seed, device)
    duration = timedelta(seconds=max(1, round(seconds)))
    each = f"up to {epochs} epoch{'s' * (epochs > 1)} each"
    return f"time: about {duration} (h:mm:ss) for {', '.join(filter(None, steps))}; {each}"


def _seconds_per_epoch(data: Data, config: Config, seed: int, device: torch.device | str) -> float:
    """Time the second epoch: the first also compiles kernels and prepares the data.

    Of sampled training only a few batches are timed, and no validation.
    """
    options, settings = split_config(config)
    times: list[float] = []
    brief, share = dataclasses.replace(settings, max_epochs=2), 1.0
    if isinstance(data, NodeData) and settings.fanouts is not None:
        timed = data.train[: TIMED_BATCHES * settings.batch_size]
        share, brief = len(timed) / len(data.train), dataclasses.replace(brief, patience=None)
        data = dataclasses.replace(data, train=timed, valid=timed[:0], test=timed[:0])
    model = build_model(data, seed, **options).to(device)
    with training_on(torch.device(device)):
        training = Training(model, model, make_task([data], brief, torch.device(device), seed), [Run(brief)], seed)
        for _ in training.epochs():
            times.append(time.perf_counter())
    return (times[-1] - times[0]) / share
