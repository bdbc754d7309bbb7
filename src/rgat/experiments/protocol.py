"""The paper's protocol: search, select, retrain, evaluate. What is next follows from the plan and the records alone.

So nothing needs to be remembered: whoever is killed at any moment starts again, reads the records and goes on.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rgat.data import NodeData, load
from rgat.data.files import read_whole, write_atomically
from rgat.experiments.executors import open_executor
from rgat.experiments.folds import Division, divide
from rgat.experiments.jobs import Unit
from rgat.experiments.plan import Plan, asked_for, complete_config, make_plan, searched, trial_config
from rgat.experiments.records import (
    Record,
    open_experiment,
    read_experiment,
    read_record,
    record_name,
    write_record,
)
from rgat.experiments.transfer import decode, encode
from rgat.experiments.variants import build_variant
from rgat.training.configuration import split_config
from rgat.training.priors import draw_options
from rgat.training.search import FROM_PRIOR, ROUND, propose, retrain_epochs, select, write_studies
from rgat.training.task import GraphTask, NodeTask

STUDIES = "studies.sqlite3"
UNITS = "units.json"
PLAN = "plan.json"
PREPARED = "data.safetensors"
STACK = 20  # seeds of nodes that train together; a fixed number, so that records do not depend on the machine


@dataclass(frozen=True)
class Experiment:
    """A plan, the data it is about, and the folder of its records."""

    plan: Plan
    division: Division
    folder: Path
    data_hashes: dict[str, str]

    def records(self) -> list[Record]:
        """All records of the plan's models and setting; a damaged one is named."""
        found = read_experiment(self.folder)
        if found.damaged:
            where, why = found.damaged[0]
            raise ValueError(
                f"all records in {self.folder} must be readable to go on, got {len(found.damaged)} damaged: {where} "
                f"({why}); delete what is damaged and start again, its work will be done anew"
            )
        mine = [r for r in found.records if r["model"] in self.plan.models and r.get("setting") == self.plan.setting]
        for record in mine:
            for name, value in self.plan.fixed.items():
                if record["config"].get(name, value) != value:
                    raise ValueError(
                        f"all records of the setting {self.plan.setting} in {self.folder} must have {name} = {value}, "
                        f"got {record['config'][name]}; give the setting another name"
                    )
        return mine

    def count(self, search_only: bool = False) -> int:
        """How many records there will be."""
        runs = 0 if search_only else self.plan.seeds * len(self.division.splits)
        return len(self.plan.models) * (self.plan.trials + runs)


def open_protocol(asked: dict[str, Any], out: Path) -> Experiment:
    """Load and divide the data, check the plan, and open the folder of its records, a new one or the same again."""
    if not asked.get("data"):
        raise ValueError("`data` must name a data set, got nothing; `rgat data list` shows those there are")
    division = divide(load(asked["data"]))
    plan = make_plan(division.task, asked)
    _check_options(plan, division)
    hashes = division.data.provenance.get("sha256") or {"prepared": hashlib.sha256(encode(division)).hexdigest()}
    folder = out / plan.data
    open_experiment(folder, describe(plan, division) | {"data_hashes": hashes})
    return Experiment(plan, division, folder, hashes)


def _check_options(plan: Plan, division: Division) -> None:
    """What a file fixes must make models, before hours are spent."""
    for model in plan.models if plan.fixed or plan.selected else ():
        drawn = draw_options(searched(plan, model), plan.search_seed, 0)
        config = trial_config(plan, model, drawn) if plan.selected is None else complete_config(plan, model)
        try:
            build_variant(division.data, **split_config(config)[0])
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"the options that are given for {model} must make a model, got an error: {error}"
            ) from error


def describe(plan: Plan, division: Division) -> dict[str, Any]:
    """What the folder of an experiment says of it."""
    data = division.data
    tests = {
        "" if seed is None else str(seed): data.labels[parts[2]].tolist() for seed, parts in division.splits.items()
    }
    description = asked_for(plan) | {"test_labels": tests}
    if isinstance(data, NodeData):
        train, _, test = division.splits[None]
        largest = data.labels[train].bincount().argmax()
        majority = float((data.labels[test] == largest).double().mean())
        return description | {"metric": NodeTask.metric, "classes": list(data.classes), "majority": majority}
    return description | {"metric": GraphTask.metric, "tasks": list(data.tasks)}


def next_units(experiment: Experiment, records: Sequence[Record], search_only: bool = False) -> list[Unit]:
    """All work that can be done now: of each model what is missing of its next round, or of its final runs."""
    units: list[Unit] = []
    for model in experiment.plan.models:
        mine = [record for record in records if record["model"] == model]
        trials = [record for record in mine if record["kind"] == "trial"]
        missing = _next_trials(experiment, model, trials)
        if not missing and not search_only:
            missing = _runs(experiment, model, trials)
            _check_configs(experiment, missing, mine)
        done = {record_name(record) for record in mine}
        units += [unit for unit in missing if record_name(unit) not in done]
    return units


def _check_configs(experiment: Experiment, units: Sequence[Unit], records: Sequence[Record]) -> None:
    """Raise if a run that is there had another configuration than the one that is to be run now."""
    there = {record_name(record): record for record in records}
    for unit in units:
        now: dict[str, Any] = unit["config"]
        before: dict[str, Any] = there.get(record_name(unit), unit)["config"]
        other = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
        if other:
            raise ValueError(
                f"runs of {unit['model']} in {experiment.folder} must have the configuration that is asked for, got "
                f"some with {other[0]} = {before.get(other[0])} instead of {now.get(other[0])}; give another folder "
                "with --out"
            )


def _unit(experiment: Experiment, kind: str, model: str, config: dict[str, Any], **more: Any) -> Unit:
    plan = experiment.plan
    who = {"kind": kind, "data": plan.data, "budget": plan.budget, "model": model, "setting": plan.setting}
    return who | {"config": config, "data_hashes": experiment.data_hashes} | more


def _next_trials(experiment: Experiment, model: str, trials: Sequence[Record]) -> list[Unit]:
    """The trials of the first round that is not finished; none if all are."""
    plan = experiment.plan
    done = {record["trial"] for record in trials}
    priors = searched(plan, model)
    for number, first in enumerate(range(0, plan.trials, ROUND)):
        numbers = range(first, min(first + ROUND, plan.trials))
        if done.issuperset(numbers):
            continue
        earlier = [record for record in trials if record["trial"] < first]
        if earlier and all(record["status"] == "failed" for record in earlier):
            select(earlier)  # says why; more of the same would fail as well
        options = propose(priors, plan.search_seed, number, earlier)
        return [
            _unit(
                experiment,
                "trial",
                model,
                trial_config(plan, model, options[trial - first]),
                trial=trial,
                round=number,
                from_prior=trial < FROM_PRIOR,
                folds=list(range(plan.folds)),
            )
            for trial in numbers
        ]
    return []


def _runs(experiment: Experiment, model: str, trials: Sequence[Record]) -> list[Unit]:
    """The final runs of the selected configuration: every split, every seed."""
    plan, splits = experiment.plan, experiment.division.splits
    config, selected_on = selected_config(plan, model, trials)
    seeds = range(plan.seeds)
    stacks = {seed: list(seeds[seed // STACK * STACK :][:STACK]) for seed in seeds if plan.task == "node"}
    return [
        _unit(experiment, "run", model, config, split=split, seed=seed, stack=stacks.get(seed), selected_on=selected_on)
        for split in splits
        for seed in seeds
    ]


def selected_config(plan: Plan, model: str, trials: Sequence[Record]) -> tuple[dict[str, Any], str]:
    """The configuration of the final runs, and what it was selected on: never a test part, nor constant attention."""
    if plan.selected is not None:
        return complete_config(plan, model), plan.selected_on
    best = select(trials)
    metric = "accuracy" if plan.task == "node" else "ROC-AUC"
    sentence = (
        f"trial {best['trial']} of {len(trials)}, by mean validation {metric} over {plan.folds} folds "
        f"without test data ({best['objective']:.4f})"
    )
    if plan.task == "graph":
        return best["config"], f"{sentence}; epoch by validation {metric} of the split"
    epochs = retrain_epochs(best)
    return best["config"] | {"max_epochs": epochs, "patience": None}, f"{sentence}; {epochs} epochs, the folds' median"


def run_protocol(
    experiment: Experiment,
    search_only: bool = False,
    executor: str = "local",
    workers: int | None = None,
    address: str | None = None,
    device: str = "cpu",
    on_progress: Callable[[int, int], None] | None = None,
) -> list[Record]:
    """Do all that is left, write each record when it is there, and return all of them.

    Args:
        experiment: from ``open_protocol``.
        search_only: leave the test parts alone.
        executor: "local", "processes" or "ray".
        workers: processes; by default one per core.
        address: of a Ray cluster; by default Ray is started here.
        device: "cpu" or "cuda".
        on_progress: called with the number of records that are there and that there will be.
    """
    records = experiment.records()
    total = experiment.count(search_only)

    def report() -> None:
        if on_progress is not None:
            kinds = [record["kind"] for record in records]
            on_progress(len(kinds) if not search_only else kinds.count("trial"), total)

    report()
    with open_executor(executor, experiment.division, workers, address, device) as execute:
        while units := next_units(experiment, records, search_only):
            for record in execute(units):
                path = write_record(experiment.folder, record)
                records.append(read_record(path))  # as whoever starts again would read it
                report()
    libraries = ("optuna", "sqlalchemy")
    if experiment.plan.trials and all(importlib.util.find_spec(name) is not None for name in libraries):
        _write_studies(experiment, records)
    models = experiment.plan.models
    return sorted(records, key=lambda record: (models.index(record["model"]), record_name(record)))


def _write_studies(experiment: Experiment, records: Sequence[Record]) -> None:
    studies = {}
    for model in experiment.plan.models:
        trials = [record for record in records if record["kind"] == "trial" and record["model"] == model]
        name = model if experiment.plan.setting is None else f"{model} ({experiment.plan.setting})"
        studies[name] = (searched(experiment.plan, model), trials)
    write_studies(experiment.folder / STUDIES, studies)


def write_units(experiment: Experiment, search_only: bool = False) -> int:
    """Write the next units and the data beside the records, for a machine that has nothing but torch; say how many.

    `python -m rgat.experiments.work FOLDER` does the work there. Bring back the folder ``records``.
    """
    units = next_units(experiment, experiment.records(), search_only)
    plan = dataclasses.asdict(experiment.plan) | {"data_hashes": experiment.data_hashes}
    write_atomically(experiment.folder / PREPARED, encode(experiment.division))
    write_atomically(experiment.folder / PLAN, json.dumps(plan, indent=1).encode())
    write_atomically(experiment.folder / UNITS, json.dumps(units, indent=1).encode())
    return len(units)


def read_prepared(folder: Path) -> Experiment:
    """The experiment that ``write_units`` wrote down, without the files of its data set."""
    try:
        plan = json.loads(read_whole(folder / PLAN))
        content = read_whole(folder / PREPARED)
        hashes = plan.pop("data_hashes")
        found = Plan(**plan | {"models": tuple(plan["models"])})
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(
            f"{folder} must hold {PLAN} and {PREPARED} ({error}); write them with `rgat reproduce --propose`"
        ) from error
    return Experiment(found, decode(content), folder, hashes)
