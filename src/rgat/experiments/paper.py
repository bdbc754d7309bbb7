"""The paper's protocol: search each model, select, retrain, evaluate."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rgat.experiments.protocol import Protocol
from rgat.experiments.records import Record, record_name
from rgat.experiments.request import STACK, Request
from rgat.experiments.units import Unit
from rgat.training.search import FROM_PRIOR, ROUND, propose, retrain_epochs, select


def paper_units(protocol: Protocol, records: Sequence[Record], search_only: bool) -> list[Unit]:
    """Return the units that can run now: for each model the rest of its next round, or of its final runs."""
    units: list[Unit] = []
    for model in protocol.request.models:
        existing = {record_name(record): record for record in records if record["model"] == model}
        trials = [record for record in existing.values() if record["kind"] == "trial"]
        next_of_model = _next_trials(protocol, model, trials)
        if not next_of_model and not search_only:
            next_of_model = _final_runs(protocol, model, trials)
            _check_configs(protocol.folder, next_of_model, existing)
        units += [unit for unit in next_of_model if record_name(unit) not in existing]
    return units


def _check_configs(folder: Path, units: Sequence[Unit], existing: dict[str, Record]) -> None:
    """Raise if an existing run has another configuration than the one to run now."""
    for unit in units:
        config: dict[str, Any] = unit["config"]
        earlier: dict[str, Any] = existing.get(record_name(unit), unit)["config"]
        different = sorted(name for name in {*earlier, *config} if earlier.get(name) != config.get(name))
        if different:
            name = different[0]
            raise ValueError(
                f"runs of {unit['model']} in {folder} must have the requested configuration, got some with "
                f"{name} = {earlier.get(name)} instead of {config.get(name)}; give another folder with --out"
            )


def _next_trials(protocol: Protocol, model: str, trials: Sequence[Record]) -> list[Unit]:
    """Return the trials of the first unfinished round; none if the search is finished."""
    request = protocol.request
    finished = {record["trial"] for record in trials}
    for number, first in enumerate(range(0, request.trials, ROUND)):
        numbers = range(first, min(first + ROUND, request.trials))
        if finished.issuperset(numbers):
            continue
        earlier = [record for record in trials if record["trial"] < first]
        if earlier and all(record["status"] == "failed" for record in earlier):
            select(earlier)  # raises with the reasons; more trials would fail as well
        proposed = propose(request.priors(model), request.search_seed, number, earlier)
        units = []
        for trial, options in zip(numbers, proposed, strict=False):
            about = {"trial": trial, "round": number, "from_prior": trial < FROM_PRIOR}
            config = request.trial_config(model, options)
            units.append(protocol.unit("trial", model, config, **about, folds=list(range(request.folds))))
        return units
    return []


def _final_runs(protocol: Protocol, model: str, trials: Sequence[Record]) -> list[Unit]:
    """Return the runs of the selected configuration on every split with every seed."""
    request = protocol.request
    config, selected_on = select_config(request, model, trials)
    seeds = range(request.seeds)
    stacks = {seed: list(seeds[seed // STACK * STACK :][:STACK]) for seed in seeds if request.task == "node"}
    return [
        protocol.unit("run", model, config, split=split, seed=seed, stack=stacks.get(seed), selected_on=selected_on)
        for split in protocol.folded.splits
        for seed in seeds
    ]


def select_config(request: Request, model: str, trials: Sequence[Record]) -> tuple[dict[str, Any], str]:
    """Return the configuration of the final runs and what it was selected on: never test data or constant attention."""
    if request.selected is not None:
        return request.selected_config(model), request.selected_on
    best = select(trials)
    metric = "accuracy" if request.task == "node" else "ROC-AUC"
    sentence = (
        f"trial {best['trial']} of {len(trials)}, by mean validation {metric} over {request.folds} folds "
        f"without test data ({best['objective']:.4f})"
    )
    if request.task == "graph":
        return best["config"], f"{sentence}; epoch by validation {metric} of the split"
    epochs = retrain_epochs(best)
    return best["config"] | {"max_epochs": epochs, "patience": None}, f"{sentence}; {epochs} epochs, the folds' median"
