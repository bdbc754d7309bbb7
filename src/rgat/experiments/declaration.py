"""Declare the final runs of an extended search before any of them looks at a test part.

A declaration names the selected model and the members of the ensemble, chosen on validation folds alone. Its digest
covers the trials it was chosen from, and each final run carries the digest, so that anybody can check what came first.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rgat.data import MISSING, NodeData
from rgat.experiments.folds import FoldedData
from rgat.experiments.records import Record, record_name, unpack_array
from rgat.experiments.request import CANDIDATES
from rgat.training import accuracy, mean_roc_auc
from rgat.training.halving import finalists, merge
from rgat.training.search import common_epoch, select
from rgat.training.space import BESIDE_FEATURES, NO_FEATURES

MEMBERS = 5  # of an ensemble


def declare(folded: FoldedData, trials: Sequence[Record], candidate: Record | None = None) -> dict[str, Any]:
    """Return what the final runs will be, chosen from the records of the trials.

    A ``candidate`` beside the models of the graph may be a member of the ensemble, but is not selected as the model.
    """
    merged = merge(trials)
    if not merged:
        raise ValueError("at least one trial must finish before the time is over, got none; give more --minutes")
    best = select(finalists(merged) or merged)
    beside = [] if candidate is None else [_on_folds(candidate, [fold["fold"] for fold in best["folds"]])]
    members, score = choose_members(folded, [*finalists(merged), *beside])
    declared: dict[str, Any] = {
        "selected": _final(best, folded.data),
        "members": [_final(trial, folded.data) | {"weight": 1 / MEMBERS} for trial in members],
        "ensemble_objective": score,
        "folds": [fold["fold"] for fold in best["folds"]],
        "trials": len(merged),
        "by_rung": np.bincount([trial["rung"] for trial in merged])[::-1].cumsum()[::-1].tolist(),
        "trials_sha256": digest_trials(trials if candidate is None else [*trials, candidate]),
    }
    declared |= {CANDIDATES[trial["model"]]: _final(trial, folded.data) for trial in beside}
    without = without_literals(declared["selected"]["config"])
    return declared if without is None else declared | {"without_literals": without}


def _on_folds(candidate: Record, numbers: Sequence[int]) -> Record:
    """Return a candidate's trial on these folds alone, on which it is compared with the other trials."""
    found = {fold["fold"]: fold for fold in candidate["folds"]}
    missing = [number for number in numbers if number not in found]
    if missing:
        raise ValueError(
            f"{record_name(candidate)} must have the folds {', '.join(map(str, numbers))}, but lacks "
            f"{', '.join(map(str, missing))}; delete it, and it is trained again"
        )
    folds = [found[number] for number in numbers]
    return candidate | {"folds": folds, "objective": float(np.mean([fold["valid_metric"] for fold in folds]))}


def _final(trial: Record, data: Any) -> dict[str, Any]:
    """Return a trial's configuration as its final runs have it."""
    config = trial["config"]
    if isinstance(data, NodeData) and trial["model"] not in CANDIDATES and not trial.get("rehearsal"):
        config = config | retraining(trial["folds"])
    return {"model": trial["model"], "trial": trial["trial"], "config": config, "objective": trial["objective"]}


def retraining(folds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the settings of a training without a validation part: so many epochs as suit all folds best."""
    return {"max_epochs": common_epoch([fold["curve"]["valid_loss"] for fold in folds]), "patience": None}


def without_literals(config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a configuration without its group of literals; None if it has none."""
    groups = str(config.get("features", "")).split(",")
    if "literals" not in groups:
        return None
    left = ",".join(group for group in groups if group != "literals")
    if left:
        return {**config, "features": left}
    kept = {name: value for name, value in config.items() if name not in BESIDE_FEATURES}
    return kept | {"features": NO_FEATURES}


def choose_members(folded: FoldedData, trials: Sequence[Record]) -> tuple[list[Record], float]:
    """Choose members greedily, with replacement, by the score of their mean probabilities on held-out examples.

    Each choice is the trial whose addition gives the highest mean metric over the folds; the log loss, then the trial's
    number, decide between equals. All trials have the same folds.
    """
    labels = [folded.data.labels[folded.fold_ids(fold["fold"])[1]] for fold in trials[0]["folds"]]
    outputs = [[torch.from_numpy(unpack_array(fold["outputs"])).exp() for fold in trial["folds"]] for trial in trials]
    is_node = isinstance(folded.data, NodeData)
    chosen: list[int] = []
    best = (-np.inf, -np.inf)
    for _ in range(MEMBERS):
        scores = [
            _score(_mean([outputs[k] for k in (*chosen, added)]), labels, is_node) for added in range(len(trials))
        ]
        best = max(scores)
        chosen.append(scores.index(best))
    return [trials[number] for number in chosen], best[0]


def _mean(members: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """Return the members' mean probabilities of each fold."""
    return [torch.stack(fold).mean(0) for fold in zip(*members, strict=True)]


def _score(probabilities: Sequence[Tensor], labels: Sequence[Tensor], is_node: bool) -> tuple[float, float]:
    """Return the mean metric over the folds and the negative log loss."""
    metric = accuracy if is_node else mean_roc_auc
    scores = [metric(mean.clamp(min=1e-30).log(), known) for mean, known in zip(probabilities, labels, strict=True)]
    losses = []
    for mean, known in zip(probabilities, labels, strict=True):
        right = mean.gather(-1, known.clamp(min=0).unsqueeze(-1)).squeeze(-1)
        losses.append(-right[known != MISSING].clamp(min=1e-30).log().mean())
    return float(np.mean(scores)), -float(torch.stack(losses).mean())


def digest_trials(trials: Sequence[Record]) -> str:
    """Return a digest of the trials' names, outcomes and objectives, in any order."""
    return _digest(sorted([record_name(trial), trial["status"], trial["objective"]] for trial in trials))


def digest(declared: Mapping[str, Any]) -> str:
    """Return the digest of a declaration, which its final runs carry."""
    return _digest(declared)


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
