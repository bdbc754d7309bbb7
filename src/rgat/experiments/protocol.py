"""Run the paper's protocol: search, select, retrain, evaluate.

The next units of work follow from the request and the records alone. A protocol that was interrupted at any moment
therefore continues when it is run again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rgat.data import load
from rgat.experiments.executors import open_executor
from rgat.experiments.folds import FoldedData, fold_data
from rgat.experiments.portable import encode
from rgat.experiments.records import (
    Record,
    describe_data,
    open_experiment,
    read_experiment,
    read_record,
    record_name,
    write_record,
)
from rgat.experiments.request import Request, make_request
from rgat.experiments.units import Unit
from rgat.experiments.variants import build_variant
from rgat.training.configuration import split_config
from rgat.training.search import FROM_PRIOR, ROUND, draw_options, propose, retrain_epochs, select

STACK = 20  # seeds of node runs that train together; a constant, so that records do not depend on the machine


@dataclass(frozen=True)
class Protocol:
    """A request, its data, and the folder of its records."""

    request: Request
    folded: FoldedData
    folder: Path
    data_hashes: dict[str, str]

    def records(self) -> list[Record]:
        """Return the records of the requested models and setting, or raise an error that names a damaged one."""
        experiment = read_experiment(self.folder)
        if experiment.damaged:
            path, reason = experiment.damaged[0]
            raise ValueError(
                f"all records in {self.folder} must be readable to continue, got {len(experiment.damaged)} damaged: "
                f"{path} ({reason}); delete the damaged files and start again, their units will be run again"
            )
        models, setting = self.request.models, self.request.setting
        records = [r for r in experiment.records if r["model"] in models and r.get("setting") == setting]
        for record in records:
            for name, value in self.request.fixed.items():
                if record["config"].get(name, value) != value:
                    raise ValueError(
                        f"all records of the setting {setting} in {self.folder} must have {name} = {value}, "
                        f"got {record['config'][name]}; give the setting another name"
                    )
        return records

    def num_records(self, search_only: bool = False) -> int:
        """Return how many records the finished protocol has."""
        runs = 0 if search_only else self.request.seeds * len(self.folded.splits)
        return len(self.request.models) * (self.request.trials + runs)


def open_protocol(asked: dict[str, Any], out: Path) -> Protocol:
    """Check the request, load its data, and open the folder of its records, new or begun earlier.

    Args:
        asked: values of a ``Request`` by name.
        out: parent of the folder, which has the name of the data set.
    """
    if not asked.get("data"):
        raise ValueError("`data` must name a data set, got nothing; `rgat data list` shows all of them")
    folded = fold_data(load(asked["data"]))
    request = make_request(folded.task, asked)
    _check_models(request, folded)
    hashes = folded.data.provenance.get("sha256") or {"prepared": hashlib.sha256(encode(folded)).hexdigest()}
    splits = {seed: folded.split(seed) for seed in folded.splits}
    folder = out / request.data
    open_experiment(folder, describe_data(splits) | request.description() | {"data_hashes": hashes})
    return Protocol(request, folded, folder, hashes)


def _check_models(request: Request, folded: FoldedData) -> None:
    """Build each model once with the options that the user gave, so that an error shows before hours of work."""
    for model in request.models if request.fixed or request.selected else ():
        if request.selected is None:
            config = request.trial_config(model, draw_options(request.priors(model), request.search_seed, 0))
        else:
            config = request.selected_config(model)
        try:
            build_variant(folded.data, **split_config(config)[0])
        except (TypeError, ValueError) as error:
            raise ValueError(f"the options given for {model} must make a model, got an error: {error}") from error


def next_units(protocol: Protocol, records: Sequence[Record], search_only: bool = False) -> list[Unit]:
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


def _unit(protocol: Protocol, kind: str, model: str, config: dict[str, Any], **more: Any) -> Unit:
    request = protocol.request
    names = {"kind": kind, "data": request.data, "budget": request.budget, "model": model, "setting": request.setting}
    return names | {"config": config, "data_hashes": protocol.data_hashes} | more


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
            units.append(_unit(protocol, "trial", model, config, **about, folds=list(range(request.folds))))
        return units
    return []


def _final_runs(protocol: Protocol, model: str, trials: Sequence[Record]) -> list[Unit]:
    """Return the runs of the selected configuration on every split with every seed."""
    request = protocol.request
    config, selected_on = select_config(request, model, trials)
    seeds = range(request.seeds)
    stacks = {seed: list(seeds[seed // STACK * STACK :][:STACK]) for seed in seeds if request.task == "node"}
    return [
        _unit(protocol, "run", model, config, split=split, seed=seed, stack=stacks.get(seed), selected_on=selected_on)
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


def run_protocol(
    protocol: Protocol,
    search_only: bool = False,
    executor: str = "local",
    workers: int | None = None,
    address: str | None = None,
    device: str = "cpu",
    on_progress: Callable[[int, int], None] | None = None,
) -> list[Record]:
    """Run all remaining units, write each record when it is complete, and return all records.

    Args:
        protocol: the protocol, from ``open_protocol``.
        search_only: skip the final runs, which use the test parts.
        executor: "local", "processes" or "ray".
        workers: number of processes; by default one per core.
        address: address of a Ray cluster; by default Ray is started on this machine.
        device: "cpu" or "cuda".
        on_progress: called with the number of existing records and of all records.
    """
    records = protocol.records()
    total = protocol.num_records(search_only)

    def report_progress() -> None:
        if on_progress is not None:
            kinds = [record["kind"] for record in records]
            on_progress(len(kinds) if not search_only else kinds.count("trial"), total)

    report_progress()
    with open_executor(executor, protocol.folded, workers, address, device) as execute:
        while units := next_units(protocol, records, search_only):
            for record in execute(units):
                path = write_record(protocol.folder, record)
                records.append(read_record(path))  # as a later call would read it
                report_progress()
    models = protocol.request.models
    return sorted(records, key=lambda record: (models.index(record["model"]), record_name(record)))
