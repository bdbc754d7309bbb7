"""Train one model on one data set, in one process or in those of `torchrun`, and keep it in a folder."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from rgat.checks import check_seed, check_word
from rgat.data import GraphData, NodeData, load
from rgat.data.splits import stratified_folds
from rgat.experiments.variants import VARIANTS, build_model
from rgat.training import Result, Settings, fit, has_checkpoint, save_checkpoint
from rgat.training.distributed import joined_processes, processes

VALIDATION_FOLDS = 5  # of nodes that come without a validation part, one fold is set aside as one


class Trained(NamedTuple):
    """A trained model, and what it was trained on."""

    model: nn.Module
    data: NodeData | GraphData
    result: Result


def train(
    data: str | NodeData | GraphData,
    model: str,
    out: str | Path,
    options: dict[str, Any] | None = None,
    settings: Settings | None = None,
    seed: int = 0,
    resume: bool = False,
    progress: bool = False,
) -> Trained | None:
    """Train a model by its name in the paper's tables; None in all processes but the first.

    Args:
        data: a data set, or its name.
        model: one of ``VARIANTS``.
        out: folder for the trained model (``model.json`` and its tensors) and for checkpoints.
        options: further options of the model.
        settings: of training.
        seed: of parameters, dropout and batches.
        resume: go on from the checkpoint in the folder, if there is one; without it, such a folder is refused.
        progress: show a progress bar.
    """
    check_word("model", model, tuple(VARIANTS))
    check_seed(seed)
    if has_checkpoint(out) and not resume:
        raise ValueError(f"{out} must not hold a checkpoint, but does; resume it, or choose another folder")
    options, settings = VARIANTS[model] | (options or {}), settings or Settings()
    with joined_processes() as device:
        loaded = load(data) if isinstance(data, str) else data
        loaded = _with_validation(loaded)
        built = build_model(loaded, seed, **options).to(device)
        result = fit(built, loaded, settings, seed, progress=progress, checkpoint=out)
        if processes().rank > 0:
            return None
    record = {
        "data": loaded.name,
        "model": model,
        "options": options,
        "settings": dataclasses.asdict(settings),
        "seed": seed,
        "metric": result.metric,
        "best_epoch": result.best_epoch,
        "scores": result.scores,
        "constant_scores": result.constant_scores,
    }
    save_checkpoint(out, built.state_dict(), record, name="model")
    return Trained(built, loaded, result)


def _with_validation(data: NodeData | GraphData) -> NodeData | GraphData:
    """Set one fold of the training nodes aside, the same for every model, where there is no validation part."""
    if isinstance(data, GraphData) or len(data.valid):
        return data
    aside = stratified_folds(data.labels[data.train].tolist(), VALIDATION_FOLDS, seed=0)[0]
    kept = torch.ones(len(data.train), dtype=torch.bool).index_fill(0, aside, False)
    return dataclasses.replace(data, train=data.train[kept], valid=data.train[aside])
