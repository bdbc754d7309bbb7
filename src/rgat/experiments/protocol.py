"""Run the paper's protocol as a request asks for it: search, select, retrain, evaluate.

The next units of work follow from the request and the records alone. A protocol that was interrupted at any moment
therefore continues when it is run again.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from rgat.checks import check_count, check_word
from rgat.data import load
from rgat.experiments.executors import open_executor
from rgat.experiments.folds import NUM_FOLDS, FoldedData, encode, fold_data
from rgat.experiments.records import (
    Record,
    describe_data,
    open_experiment,
    read_experiment,
    read_record,
    record_name,
    write_record,
)
from rgat.experiments.units import Unit, make_unit
from rgat.experiments.variants import ALL_VARIANTS, build_variant
from rgat.training.configuration import VARIANTS, Prior, check_kinds, priors_of, read_toml, split_config
from rgat.training.search import FROM_PRIOR, ROUND, draw_options, propose, retrain_epochs, select


class Budget(NamedTuple):
    """How much of the protocol is run: trials of each model's search, seeds of its final runs, folds of the search."""

    trials: int
    seeds: int  # for graphs, on each split
    folds: int


BUDGETS = {
    "node": {"smoke": Budget(3, 3, 2), "small": Budget(50, 200, 5), "paper": Budget(200, 200, 5)},
    "graph": {"smoke": Budget(3, 1, 1), "small": Budget(50, 2, 2), "paper": Budget(200, 2, 2)},
}
MAX_EPOCHS = {"node": 400, "graph": 100}
PATIENCE = 30
STACK = 20  # seeds of node runs that train together; a constant, so that records do not depend on the machine
BATCH_SIZE = 64
MAX_SEED = 4_000_000  # a thousand times as much must fit into 32 bits
LIMITS = ("max_epochs", "patience", "batch_size")  # options of a configuration that have no prior
NULLABLE = ("num_bases", "num_attention_bases", "patience")  # TOML has no null: a file leaves these out
# Keys of a TOML file that asks for an experiment, and of one that `rgat reproduce --configs` wrote.
NUMBERS = ("trials", "seeds", "folds", "search_seed", "max_epochs", "patience")
REQUEST_KEYS = ("data", "models", "budget", *NUMBERS, "setting", "fixed")
CONFIG_KEYS = ("data", "model", "setting", "seeds", "command", "selected_on", "config", "ours", "paper")


@dataclass(frozen=True)
class Request:
    """One experiment as the user asks for it."""

    data: str
    task: str  # "node" or "graph"
    models: tuple[str, ...]
    budget: str  # "smoke", "small", "paper", or "custom" if a number differs from the named budget
    trials: int  # of each model's search
    seeds: int  # of the final runs
    folds: int  # of the search
    search_seed: int
    max_epochs: int  # of a training in the search
    patience: int  # epochs without improvement after which a training stops
    setting: str | None = None  # name of a configuration that is not the paper's
    fixed: dict[str, Any] = field(default_factory=dict)  # options that are not searched; needs a setting
    selected: dict[str, Any] | None = None  # a configuration selected earlier, which replaces the search
    selected_on: str = ""  # a sentence that says how `selected` was selected

    def priors(self, model: str) -> dict[str, Prior]:
        """Return the priors of the options that the search chooses."""
        return {name: prior for name, prior in priors_of(self.task, model).items() if name not in self.fixed}

    def trial_config(self, model: str, options: dict[str, Any]) -> dict[str, Any]:
        """Return the flat configuration of a trial: layer and scope, searched options, fixed options and limits."""
        batch = {"batch_size": BATCH_SIZE} if self.task == "graph" else {}
        limits = {"max_epochs": self.max_epochs, "patience": self.patience}
        fixed = {name: value for name, value in self.fixed.items() if name in priors_of(self.task, model)}
        return {**ALL_VARIANTS[model], **options, **fixed, **limits, **batch}

    def selected_config(self, model: str) -> dict[str, Any]:
        """Return the selected configuration, with the options that a TOML file leaves out."""
        assert self.selected is not None
        nulls = {name: None for name in NULLABLE if name in (*priors_of(self.task, model), "patience")}
        return {**ALL_VARIANTS[model], **nulls, **self.selected}

    def description(self) -> dict[str, Any]:
        """Return the entries of ``experiment.json`` that make two experiments comparable."""
        return {name: getattr(self, name) for name in ("data", "task", "budget", *NUMBERS)}


def read_request(path: Path) -> dict[str, Any]:
    """Read a TOML file that asks for an experiment, or for the final runs of a selected configuration."""
    content = read_toml(path)
    is_config = "config" in content
    for key in content:
        check_word(f"key in {path.name}", key, CONFIG_KEYS if is_config else REQUEST_KEYS)
    if not is_config:
        return content
    missing = [key for key in ("data", "model", "selected_on") if key not in content]
    if missing:
        raise ValueError(f"{path} must have {' and '.join(missing)} beside its configuration; add what is missing")
    asked = {key: content[key] for key in ("data", "setting", "seeds", "selected_on") if key in content}
    return asked | {"models": [content["model"]], "selected": content["config"]}


def make_request(task: str, asked: Mapping[str, Any]) -> Request:
    """Check the values of a ``Request`` that the user gave (None counts as missing); take others from the budget."""
    values = {key: value for key, value in asked.items() if value is not None}
    budget = values.setdefault("budget", "small")
    check_word("budget", budget, (*BUDGETS[task], "custom"))
    numbers = BUDGETS[task].get(budget, BUDGETS[task]["small"])._asdict()
    if "selected" in values:
        numbers |= {"trials": 0, "folds": 0}
    numbers |= {"search_seed": 0, "max_epochs": MAX_EPOCHS[task], "patience": PATIENCE}
    values = {"models": tuple(VARIANTS), "task": task} | numbers | values
    _check_types(values)
    values["models"] = tuple(dict.fromkeys(values["models"]))
    _check_numbers(task, values)
    _check_options(task, values)
    if any(values[key] != value for key, value in numbers.items()) or "selected" in values:
        values["budget"] = "custom"
    return Request(**values)


def _check_types(values: dict[str, Any]) -> None:
    for name, kind in (("models", (list, tuple)), ("fixed", dict), ("selected", dict), ("setting", str)):
        if name in values and not isinstance(values[name], kind):
            words = {"models": "a list of names", "setting": "a name"}.get(name, "a table")
            raise ValueError(f"`{name}` must be {words}, got {values[name]!r}")
    if not all(isinstance(name, str) for name in values["models"]):
        raise ValueError(f"`models` must be a list of names, got {values['models']!r}")
    for model in values["models"]:
        check_word("model", model, tuple(ALL_VARIANTS))
    if not values["models"]:
        raise ValueError("`models` must name at least one model, got none; leave it out for all five")
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", values.get("setting", "x")):  # it is part of file names
        raise ValueError(f'`setting` must be small letters and digits, with hyphens between, got "{values["setting"]}"')


def _check_numbers(task: str, values: dict[str, Any]) -> None:
    least = 0 if "selected" in values else 1
    for name, lowest in (("trials", least), ("folds", least), ("seeds", 1), ("max_epochs", 1), ("patience", 1)):
        check_count(name, values[name], lowest)
    check_count("search_seed", values["search_seed"], 0)
    if values["search_seed"] > MAX_SEED:
        raise ValueError(f"`search_seed` must be at most {MAX_SEED:,}, got {values['search_seed']:,}")
    if values["folds"] > NUM_FOLDS[task]:
        raise ValueError(f"`folds` must be at most {NUM_FOLDS[task]} for {task} tasks, got {values['folds']}")


def _check_options(task: str, values: dict[str, Any]) -> None:
    """Check the names and types of the options in the tables [fixed] and [config]."""
    fixed, selected = values.get("fixed", {}), values.get("selected", {})
    if fixed and not values.get("setting"):
        raise ValueError("`setting` must name the configuration that [fixed] makes, got none; add a name")
    priors = {name: prior for model in values["models"] for name, prior in priors_of(task, model).items()}
    for name in fixed:
        check_word("key in [fixed]", name, sorted(priors))
    for options in (fixed, selected):
        check_kinds(priors, options)
    known = sorted({*priors, *LIMITS, *(name for variant in ALL_VARIANTS.values() for name in variant)})
    for name, value in selected.items():
        check_word("key in [config]", name, known)
        for model in values["models"]:
            needed = ALL_VARIANTS[model].get(name, value)
            if value != needed:
                raise ValueError(f'`{name}` in [config] must be "{needed}" for {model}, got "{value}"')


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


def open_protocol(asked: dict[str, Any], out: Path) -> Protocol:
    """Check the values of a ``Request``, load its data, and open the folder of its records, new or begun earlier.

    The folder has the name of the data set and lies in ``out``.
    """
    if not asked.get("data"):
        raise ValueError("`data` must name a data set, got nothing; `rgat data list` shows all of them")
    folded = fold_data(load(asked["data"]))
    description = describe_data({seed: folded.split(seed) for seed in folded.splits})
    request = make_request(description["task"], asked)
    _check_models(request, folded)
    hashes = folded.data.provenance.get("sha256") or {"prepared": hashlib.sha256(encode(folded)).hexdigest()}
    folder = out / request.data
    open_experiment(folder, description | request.description() | {"data_hashes": hashes})
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
    more |= {"budget": request.budget, "setting": request.setting, "data_hashes": protocol.data_hashes}
    return make_unit(kind, request.data, model, config, **more)


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
    on_progress: Callable[[int, int, Record | None], None] | None = None,
    processes_per_run: int = 1,
) -> list[Record]:
    """Run all remaining units, write each record when it is complete, and return all records.

    Args:
        protocol: the protocol, from ``open_protocol``.
        search_only: skip the final runs, which use the test parts.
        executor: "local", "processes" or "ray".
        workers: number of processes; by default one per core.
        address: address of a Ray cluster; by default Ray is started on this machine.
        device: "cpu" or "cuda".
        on_progress: called with the number of existing records, that of all records, and the new one if there is one.
        processes_per_run: number of workers of a Ray cluster that train each node classifier together.
    """
    records, request = protocol.records(), protocol.request
    num_runs = 0 if search_only else request.seeds * len(protocol.folded.splits)
    total = len(request.models) * (request.trials + num_runs)

    def report_progress(new: Record | None = None) -> None:
        if on_progress is not None:
            on_progress(sum(not search_only or record["kind"] == "trial" for record in records), total, new)

    report_progress()
    with open_executor(executor, protocol.folded, workers, address, device, processes_per_run) as execute:
        while units := next_units(protocol, records, search_only):
            for record in execute(units):
                path = write_record(protocol.folder, record)
                records.append(read_record(path))  # as a later call would read it
                report_progress(record)
    return sorted(records, key=lambda record: (request.models.index(record["model"]), record_name(record)))
