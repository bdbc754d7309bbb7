"""What an experiment is asked for: data, models, budget, and options that are not searched."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from rgat.checks import check_count, check_word
from rgat.experiments.folds import NUM_FOLDS
from rgat.experiments.variants import ALL_VARIANTS
from rgat.training.configuration import VARIANTS, Prior, check_kinds, priors_of, read_toml


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
SPACES = ("paper", "extended")
EXTENDED = "extended"  # the space, and the setting of its records
# Rows of the extended space: one search over all models, the relations that are better left out, what it declares, and
# what ensembles may have beside models of the graph.
PRUNING, SELECTED, ENSEMBLE, WITHOUT_LITERALS, FOREST, KERNEL = EXTENDED_MODELS = (
    "relation pruning",
    "selected model",
    "declared ensemble",
    "selected model without literals",
    "descriptor forest",
    "min-max kernel",
)
CANDIDATES = {
    FOREST: "forest",
    KERNEL: "kernel",
}  # for ensembles beside models of the graph, and their key in a declaration
EXTENDED_FOLDS = {"node": 15, "graph": 4}  # three draws of five; four of ten
MANY_TRIALS = 100_000  # where minutes end the search
# Keys of a TOML file that asks for an experiment, and of one that `rgat reproduce --configs` wrote.
NUMBERS = ("trials", "seeds", "folds", "search_seed", "max_epochs", "patience")
REQUEST_KEYS = ("data", "models", "budget", *NUMBERS, "setting", "fixed", "space", "minutes")
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
    space: str = "paper"  # the priors of each model, or one "extended" space of all
    minutes: float | None = None  # after which the search ends; with the extended space alone

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
        extended = ("space",) if self.space == EXTENDED else ()
        return {name: getattr(self, name) for name in ("data", "task", "budget", *NUMBERS, *extended)}


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
    if _check_space(values) == EXTENDED:
        numbers["folds"] = numbers["folds"] if budget == "smoke" else EXTENDED_FOLDS[task]
        numbers["trials"] = numbers["trials"] if "minutes" not in values else MANY_TRIALS
        values |= {"models": EXTENDED_MODELS, "setting": EXTENDED}
    values = {"models": tuple(VARIANTS), "task": task} | numbers | values
    _check_types(values)
    values["models"] = tuple(dict.fromkeys(values["models"]))
    _check_numbers(task, values)
    _check_options(task, values)
    if any(values[key] != value for key, value in numbers.items()) or {"selected", "minutes"} & values.keys():
        values["budget"] = "custom"
    return Request(**values)


def _check_space(values: dict[str, Any]) -> str:
    """Return the search space, after checking that the other keys suit it; minutes ask for the extended one."""
    minutes: float | None = values.get("minutes")
    if minutes is not None:
        if isinstance(minutes, bool) or not isinstance(minutes, int | float) or not 0 < minutes < math.inf:
            raise ValueError(f"`minutes` must be a number above 0, got {minutes!r}")
        values.setdefault("space", EXTENDED)
    space: str = values.setdefault("space", "paper")
    check_word("space", space, SPACES)
    if space == EXTENDED:
        for key in ("models", "setting", "fixed", "selected"):
            if key in values:
                raise ValueError(f"`{key}` must be left out with the space extended, which searches all models")
    elif minutes is not None:
        raise ValueError("`minutes` must be left out with the space paper, whose searches end after their trials")
    elif values.get("setting") == EXTENDED:
        raise ValueError('`setting` must be another name than "extended", which is a space; give `space`')
    return space


def _check_types(values: dict[str, Any]) -> None:
    for name, kind in (("models", (list, tuple)), ("fixed", dict), ("selected", dict), ("setting", str)):
        if name in values and not isinstance(values[name], kind):
            words = {"models": "a list of names", "setting": "a name"}.get(name, "a table")
            raise ValueError(f"`{name}` must be {words}, got {values[name]!r}")
    if not all(isinstance(name, str) for name in values["models"]):
        raise ValueError(f"`models` must be a list of names, got {values['models']!r}")
    for model in values["models"] if values["space"] != EXTENDED else ():
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
    most = EXTENDED_FOLDS[task] if values["space"] == EXTENDED else NUM_FOLDS[task]
    if values["folds"] > most:
        raise ValueError(f"`folds` must be at most {most} for {task} tasks, got {values['folds']}")


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
