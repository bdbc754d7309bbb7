"""What is asked of the protocol: which data and models, how many trials, seeds, folds; by options or a TOML file."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from rgat.checks import check_count, check_word
from rgat.experiments.folds import NUM_FOLDS
from rgat.experiments.variants import ALL_VARIANTS
from rgat.training.configuration import VARIANTS, read_toml
from rgat.training.priors import Prior, check_kinds, priors_of


class Budget(NamedTuple):
    """How much of the protocol is run."""

    trials: int  # of each model's search
    seeds: int  # final runs: of each model (nodes), or of each model on each split (graphs)
    folds: int  # of the search: so many of five (nodes) or of ten (graphs)


BUDGETS = {
    "node": {"smoke": Budget(3, 3, 2), "small": Budget(50, 200, 5), "paper": Budget(200, 200, 5)},
    "graph": {"smoke": Budget(3, 1, 1), "small": Budget(50, 2, 2), "paper": Budget(200, 2, 2)},
}
MAX_EPOCHS = {"node": 400, "graph": 100}
PATIENCE = 30
BATCH_SIZE = 64
MAX_SEED = 4_000_000  # a thousand times as much must fit into 32 bits
FULL = ("num_bases", "num_attention_bases")  # None where kernels are not decomposed; a TOML file leaves them out


@dataclass(frozen=True)
class Plan:
    """One experiment, as it was asked for.

    Attributes:
        data: name of the data set.
        task: "node" or "graph".
        models: names of the paper's tables.
        budget: "smoke", "small", "paper", or "custom" where a number differs from theirs.
        trials: of each model's search.
        seeds: of the final runs.
        folds: of the search.
        search_seed: of the draws of the search.
        max_epochs: of each training in the search.
        patience: epochs without improvement after which a training ends.
        setting: name of a configuration that is not the paper's, or None.
        fixed: options that are not searched; only with a ``setting``.
        selected: a configuration that was selected before, in place of a search; ``selected_on`` says how.
        selected_on: one sentence.
    """

    data: str
    task: str
    models: tuple[str, ...]
    budget: str
    trials: int
    seeds: int
    folds: int
    search_seed: int
    max_epochs: int
    patience: int
    setting: str | None = None
    fixed: dict[str, Any] = field(default_factory=dict)
    selected: dict[str, Any] | None = None
    selected_on: str = ""


# Keys of a TOML file that asks for an experiment, and of one that `rgat reproduce --configs` wrote.
ASKED = (
    *("data", "models", "budget", "trials", "seeds", "folds", "search_seed", "max_epochs", "patience"),
    *("setting", "fixed"),
)
SHIPPED = ("data", "model", "setting", "seeds", "command", "selected_on", "config", "ours", "paper")


def read_plan(path: Path) -> dict[str, Any]:
    """What a TOML file asks for, its keys checked: an experiment, or the evaluation of a selected configuration."""
    asked = read_toml(path)
    shipped = "config" in asked
    for key in asked:
        check_word(f"key in {path.name}", key, SHIPPED if shipped else ASKED)
    if not shipped:
        return asked
    missing = [key for key in ("data", "model", "selected_on") if key not in asked]
    if missing:
        raise ValueError(f"{path} must say {' and '.join(missing)} beside its configuration, got neither; add them")
    found = {key: asked[key] for key in ("data", "setting", "seeds", "selected_on") if key in asked}
    return found | {"models": [asked["model"]], "selected": asked["config"]}


def make_plan(task: str, asked: Mapping[str, Any]) -> Plan:
    """Fill in what was left open, and check the rest.

    Args:
        task: "node" or "graph".
        asked: values of a ``Plan`` by name; those that are missing or None come from the budget.
    """
    given = {key: value for key, value in asked.items() if value is not None}
    budget = given.setdefault("budget", "small")
    check_word("budget", budget, (*BUDGETS[task], "custom"))
    named = BUDGETS[task].get(budget, BUDGETS[task]["small"])._asdict()
    if "selected" in given:
        named |= {"trials": 0, "folds": 0}
    defaults = named | {"search_seed": 0, "max_epochs": MAX_EPOCHS[task], "patience": PATIENCE}
    given = {"models": tuple(VARIANTS), "task": task} | defaults | given
    for name, kind in (("models", (list, tuple)), ("fixed", dict), ("selected", dict), ("setting", str)):
        if name in given and not isinstance(given[name], kind):
            words = {"models": "a list of names", "setting": "a name"}.get(name, "a table")
            raise ValueError(f"`{name}` must be {words}, got {given[name]!r}")
    if not all(isinstance(name, str) for name in given["models"]):
        raise ValueError(f"`models` must be a list of names, got {given['models']!r}")
    given["models"] = tuple(dict.fromkeys(given["models"]))
    _check(task, given)
    if any(given[key] != value for key, value in defaults.items()) or "selected" in given:
        given["budget"] = "custom"
    return Plan(**given)


def _check(task: str, given: dict[str, Any]) -> None:
    for model in given["models"]:
        check_word("model", model, tuple(ALL_VARIANTS))
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", given.get("setting", "x")):  # it is part of file names
        raise ValueError(f'`setting` must be small letters and digits, with hyphens between, got "{given["setting"]}"')
    if not given["models"]:
        raise ValueError("`models` must name at least one model, got none; leave it out for all five")
    least = 0 if "selected" in given else 1
    for name, lowest in (("trials", least), ("folds", least), ("seeds", 1), ("max_epochs", 1), ("patience", 1)):
        check_count(name, given[name], lowest)
    check_count("search_seed", given["search_seed"], 0)
    if given["search_seed"] > MAX_SEED:
        raise ValueError(f"`search_seed` must be at most {MAX_SEED:,}, got {given['search_seed']:,}")
    if given["folds"] > NUM_FOLDS[task]:
        raise ValueError(f"`folds` must be at most {NUM_FOLDS[task]} for {task} tasks, got {given['folds']}")
    if given.get("fixed") and not given.get("setting"):
        raise ValueError("`setting` must name the configuration that [fixed] makes, got none; add a name")
    priors = {name: prior for model in given["models"] for name, prior in priors_of(task, model).items()}
    known = set(priors)
    for name in given.get("fixed", {}):
        check_word("key in [fixed]", name, sorted(known))
    for table in ("fixed", "selected"):
        check_kinds(priors, given.get(table, {}))
    limits = ("max_epochs", "patience", "batch_size")
    for name, value in given.get("selected", {}).items():
        check_word("key in [config]", name, sorted({*known, *limits, *(o for v in ALL_VARIANTS.values() for o in v)}))
        for model in given["models"]:
            if ALL_VARIANTS[model].get(name, value) != value:
                raise ValueError(
                    f'`{name}` in [config] must be "{ALL_VARIANTS[model][name]}" for {model}, got "{value}"'
                )


def searched(plan: Plan, model: str) -> dict[str, Prior]:
    """The priors of the options that a search may choose."""
    return {name: prior for name, prior in priors_of(plan.task, model).items() if name not in plan.fixed}


def trial_config(plan: Plan, model: str, options: dict[str, Any]) -> dict[str, Any]:
    """Everything that a trial depends on, flat: the model's name spelt out, the options searched, the limits."""
    batch = {"batch_size": BATCH_SIZE} if plan.task == "graph" else {}
    limits = {"max_epochs": plan.max_epochs, "patience": plan.patience}
    fixed = {name: value for name, value in plan.fixed.items() if name in priors_of(plan.task, model)}
    return {**ALL_VARIANTS[model], **options, **fixed, **limits, **batch}


def complete_config(plan: Plan, model: str) -> dict[str, Any]:
    """The plan's selected configuration with what a TOML file cannot say: no bases, no patience."""
    assert plan.selected is not None
    absent = {name: None for name in (*FULL, "patience") if name in priors_of(plan.task, model) or name == "patience"}
    return {**ALL_VARIANTS[model], **absent, **plan.selected}


def asked_for(plan: Plan) -> dict[str, Any]:
    """What makes two experiments comparable, for their description."""
    names = ("data", "task", "budget", "trials", "seeds", "folds", "search_seed", "max_epochs", "patience")
    return {name: value for name, value in dataclasses.asdict(plan).items() if name in names}
