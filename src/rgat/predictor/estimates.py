"""Estimate the time and memory of a fit before it starts, and choose sampled training where memory is short."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, NamedTuple

import torch

from rgat.baselines.svm import MOST_PRODUCTS
from rgat.data import NodeData
from rgat.data.dataset import PARTS
from rgat.data.rdf.featurised import is_open
from rgat.memory import GROWTH, free_memory, used_memory
from rgat.predictor.choice import FIRST, OF_FEATURES, candidates, configure_for, number_of
from rgat.predictor.contributions import exchange_objects, num_passes
from rgat.predictor.described import AUTO
from rgat.predictor.evaluation import without_attention
from rgat.predictor.inspection import check
from rgat.predictor.members import members_for
from rgat.predictor.predictor import Predictor
from rgat.predictor.transfer import start_of, with_architecture
from rgat.predictor.validation import make_folds, with_validation
from rgat.predictor.weighting import take_auto
from rgat.training.capture import training_on
from rgat.training.configuration import DEFAULTS, Config, build_model, split_config
from rgat.training.distributed import processes
from rgat.training.loop import Data, Training, make_task
from rgat.training.many import Job, bytes_needed, members_that_fit
from rgat.training.run import Run
from rgat.training.task import node_logits

TIMED_BATCHES = 4  # of sampled training, for a forecast
MOST_EPOCHS, LONG_ENOUGH = 8, 0.5  # epochs and seconds that are timed, unless two epochs take longer
USUAL_SHARE = 0.7  # of the epochs that are trained where validation may stop earlier; 0.4 to 1 in measurements
FANOUTS = (20, 10)  # where training on the whole graph would not fit into memory
EMBEDDING_CHANNELS = 64
BYTES_PER_EDGE, BYTES_PER_NODE = 200, 300  # of a graph in memory: ids, sorted orders; names


class GraphSize(NamedTuple):
    """What the memory of training on a whole graph depends on."""

    num_nodes: int
    num_edges: int
    num_features: int  # of each node; 0: none


def bytes_of_graph(size: GraphSize) -> int:
    """Return about how many bytes a graph and its features take in memory, and while it is read."""
    return BYTES_PER_EDGE * size.num_edges + (BYTES_PER_NODE + 4 * size.num_features) * size.num_nodes


def bytes_of_embeddings(size: GraphSize, channels: int) -> int:
    """Return the bytes of node embeddings, Adam's two moments and the best epoch."""
    return 4 * 4 * channels * size.num_nodes


def sampling_for(
    size: GraphSize, given: Mapping[str, Any], in_store: bool, device: torch.device | str
) -> tuple[dict[str, Any], str | None]:
    """Return options that make training fit into memory, and a sentence that says so; none where it fits as asked.

    One-hot input needs kernels for every edge, so a graph that does not fit gets node embeddings instead, and so does
    one that stays in its store. Several processes decide alike, by the least memory that one of them has.
    """
    embedding = {}
    if not size.num_features and given.get("embedding_channels") is None:
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
    kernels = 10 * 4 * hidden * size.num_edges if embedding or given.get("identity") else 0
    kernels += bytes_of_embeddings(size, given.get("embedding_channels") or 0)
    group = processes()
    needed = activations // group.number + kernels + bytes_of_graph(size)
    free = group.least(free_memory(device))
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
    ensemble: int | None = None,
    search: int = 0,
    minutes: float | None = None,
    comparison: bool = True,
    descriptors: str = AUTO,
    start_from: Predictor | None = None,
    freeze: bool = False,
    folds: int = 0,
    seed: int = 0,
    device: torch.device | str = "cpu",
    **options: Any,
) -> str:
    """Return a sentence that says how much time and memory `rgat.fit` with these arguments takes, and for what.

    Some epochs of each model are trained for it, so both are measured on the data.
    """
    check(data)
    ensemble = members_for(data, ensemble, comparison)
    if minutes is not None:
        return f"time: {minutes:g} minutes, most of them for a search on validation data"
    _, options = take_auto(data, with_architecture(options, start_of(data, start_from, freeze)))
    config = configure_for(data, options)
    data = with_validation(data, config, seed)
    inner = make_folds(data, seed)
    is_compared = comparison and processes().number == 1
    has_rival = is_compared and config["model"] != "RGCN"
    inputs, variants = candidates(data, options, len(inner), comparison, descriptors)
    settings = split_config(config)[1]
    epochs = dict.fromkeys(inputs, settings.max_epochs)
    if isinstance(data, NodeData) and is_open(data):
        longer = int(options.get("max_epochs") or OF_FEATURES["max_epochs"])
        epochs |= {kind: longer for kind in inputs if kind != "identity"}
    first: Data = inner[0] if inner else data
    cost = measure(first, config, seed, device)
    rival = measure(first, without_attention(config), seed, device) if has_rival else cost
    share = 1.0 if settings.patience is None else USUAL_SHARE
    seconds = 0.0
    for each, number, trained in _trainings(epochs, variants, len(inner), ensemble, search, has_rival):
        seconds += number * (rival if each == FIRST else cost).of_model(share * trained)
    if is_compared and isinstance(data, NodeData) and not data.is_stored:
        seconds += _seconds_of_feat(len(data.train), len(data.classes))
    if isinstance(data, NodeData) and settings.fanouts is None and not data.is_stored and processes().number == 1:
        seconds += num_passes(data) * _seconds_of_pass(data, config, seed, device)
    duration = timedelta(seconds=max(1, round(seconds * (1 + folds))))
    steps = _steps(number_of(inputs, variants), len(inner), ensemble, search, has_rival, folds)
    most = max(epochs.values())
    each = f"up to {most} epoch{'s' * (most > 1)} each"
    size = cost.memory(len(inner) or ensemble)
    memory = "" if size is None else f"; memory: about {size / 2**30:.1f} GiB"
    return f"time: about {duration} (h:mm:ss) for {steps}; {each}{memory}"


def _steps(chosen: int, num_folds: int, ensemble: int, search: int, has_rival: bool, folds: int) -> str:
    """Return what the time is for, in words."""
    steps = [
        f"{chosen} candidates of input and model{f' in {num_folds} folds' if num_folds else ''}" if chosen else "",
        f"{search} configuration{'s' * (search > 1)} to try (larger ones take longer)" if search else "",
        f"cross-validation in {num_folds} folds" if num_folds and not chosen else "",
        "the model" if ensemble == 1 else f"{ensemble} models",
        "an RGCN to compare with" if has_rival else "",
        f"{folds} folds, each with all of these" if folds else "",
    ]
    return ", ".join(filter(None, steps))


def _trainings(
    epochs: Mapping[str, int], variants: list[str], num_folds: int, ensemble: int, search: int, has_rival: bool
) -> list[tuple[str, int, float]]:
    """Return what is trained: `FIRST`, or "model" for those with attention; how many; and for how many epochs at most.

    Args:
        epochs: of each input.
        variants: names of the models.
        num_folds: of cross-validation; 0 where there is a validation part.
        ensemble: models to average.
        search: configurations to try.
        has_rival: whether an RGCN is trained to compare with.
    """
    folds, mean = num_folds or 1, sum(epochs.values()) / len(epochs)
    models, rivals = num_folds + ensemble, num_folds + 1
    found: list[tuple[str, int, float]] = [("model", search * folds, mean)]
    if number_of(list(epochs), variants):
        has_first = FIRST in variants and len(variants) > 1
        found += [(FIRST if has_first else "model", folds, each) for each in epochs.values()]
        found.append(("model", (len(variants) - 1) * folds, mean))
        # Results of folds are kept and, on a validation part, the candidates themselves.
        models = ensemble if num_folds or ensemble > 1 else 0
        rivals = int(num_folds > 0) if has_first else rivals
    return [*found, ("model", models, mean), (FIRST, rivals * has_rival, mean)]


def _seconds_of_pass(data: NodeData, config: Config, seed: int, device: torch.device | str) -> float:
    """Return the time to exchange the objects of a relation and to predict all nodes, as for contributions."""
    model = build_model(data, seed, **split_config(config)[0]).to(device).eval()
    began = time.perf_counter()
    node_logits(model, dataclasses.replace(data, graph=exchange_objects(data, 0, torch.Generator())))
    return time.perf_counter() - began


def _seconds_of_feat(num_nodes: int, num_classes: int) -> float:
    """Return the time of the FEAT baseline: five costs in five folds, and once more, as measured on one core."""
    each = 4e-8 * num_nodes**2 if num_nodes <= MOST_PRODUCTS else 1e-6 * num_nodes * num_classes
    return (5 * 5 + 1) * each


class Cost(NamedTuple):
    """What training one model takes."""

    epoch: float  # seconds of an epoch, with its share of a validation
    evaluation: float  # seconds of an evaluation
    used: tuple[int, int] | None  # bytes of the process before it, and at most; None: unknown
    members: int  # models that are trained together where there are so many
    member: int  # bytes of one more of these, at most

    def of_model(self, epochs: float) -> float:
        """Return the seconds of a model: its epochs, then scores with and without attention, calibration, report."""
        return epochs * self.epoch + 4 * self.evaluation

    def memory(self, models: int) -> int | None:
        """Return the bytes of the process while it trains so many models, with the fragments that add up."""
        if self.used is None:
            return None
        before, most = self.used
        grown = max(most - before, 0)
        more = max(0, min(models, self.members) - 1) * min(grown, self.member)
        return before + int(GROWTH * (grown + more))


def measure(data: Data, config: Config, seed: int, device: torch.device | str) -> Cost:
    """Train for two epochs, or more if they are short, and take the shortest but the first.

    The first also compiles kernels and prepares the data. Of sampled training a few batches are timed, and one
    validation.
    """
    options, settings = split_config(config)
    device, before = torch.device(device), used_memory(device)
    brief, share, learned = dataclasses.replace(settings, max_epochs=MOST_EPOCHS), 1.0, data
    if isinstance(data, NodeData) and settings.fanouts is not None:
        timed = data.train[: TIMED_BATCHES * settings.batch_size]
        share, learned = len(timed) / len(data.train), dataclasses.replace(data, train=timed)
        brief = dataclasses.replace(brief, patience=None)
    model = build_model(data, seed, **options).to(device)
    with training_on(device):
        task = make_task([learned], brief, device, seed)
        times: list[float] = []
        for _ in Training(model, task, [Run(brief)], seed).epochs():
            times.append(time.perf_counter())
            is_enough = len(times) > 1 and times[-1] - times[0] > LONG_ENOUGH
            if processes().as_first(is_enough, device):  # clocks of processes differ, and all must end together
                break
        epoch = min(after - before for before, after in itertools.pairwise(times)) / share
        began = time.perf_counter()
        parts = ["valid"] if len(data.valid) and settings.fanouts is not None else PARTS
        with torch.no_grad():
            task.evaluate(model.eval(), [part for part in parts if len(getattr(data, part))])
        evaluation = time.perf_counter() - began
        if settings.fanouts is not None and settings.patience is not None:
            epoch += evaluation / settings.validate_every
        after = used_memory(device)
    used = None if before is None or after is None else (before[0], after[1])
    job = Job(model, data, settings, seed)
    members = 1 if settings.fanouts is not None else members_that_fit(job)
    return Cost(epoch, evaluation, used, members, bytes_needed(job))
