"""Search a configuration for a person's own data on validation folds: so many trials, or so many minutes."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from rgat.predictor.evaluation import without_attention
from rgat.predictor.fold_results import mean_of
from rgat.training.configuration import VARIANTS, Config, OneOf, priors_of
from rgat.training.distributed import processes
from rgat.training.halving import finalists, merge, promotions, propose_step
from rgat.training.run import Epoch
from rgat.training.search import ROUND, Record, load_optuna, propose, select
from rgat.training.space import ATTENTION, EXTENDED, Space, to_config

STEP = 8  # new configurations of a step; fewer than in an experiment, whose workers are more
FIRST_FOLDS = 2  # of each configuration; the better ones get the others too
FINAL_MARGIN = 1.3  # what follows the search may take longer than its folds did

# Takes a configuration, what to show, folds and a time; returns the point of each fold's curve that is compared. Folds
# that were trained before are not trained again, but the point may be another one beside more folds.
CrossValidate = Callable[[Config, str, Sequence[int], float | None], Sequence[Epoch]]


class OutOfTimeError(Exception):
    """Raised in a training that goes on after its time."""


def check_minutes(minutes: float | None, search: int) -> float:
    """Raise unless the minutes of a fit are a number above 0 and no trials are asked for; return the time."""
    if minutes is not None and (isinstance(minutes, bool) or not 0 < minutes < math.inf):
        raise ValueError(f"`minutes` must be a number above 0, got {minutes!r}")
    if minutes is not None and processes().number > 1:
        raise ValueError("`minutes` must be left out with several processes, whose clocks differ; give `search`")
    if minutes is not None and search:
        raise ValueError(f"`search` must be left out with `minutes`, which end the search, got {search}")
    return time.monotonic()


def search_trials(
    try_config: Callable[[Config, int, int], Sequence[Epoch]],
    task: str,
    config: Config,
    given: Mapping[str, Any],
    trials: int,
    seed: int,
) -> Config:
    """Return the best of several configurations on validation data; the first is ``config`` itself."""
    priors = priors_of(task, config["model"])
    priors = {name: prior for name, prior in priors.items() if name not in given}
    finished: list[dict[str, Any]] = []
    for trial in range(trials):
        if trial % ROUND == 0:
            proposals = propose(priors, seed, trial // ROUND, finished)
        tried = config if trial == 0 else config | proposals[trial % ROUND]
        record = {"trial": trial, "model": config["model"], "config": dict.fromkeys(priors) | tried, "error": None}
        try:
            points = try_config(tried, trial, trials)
        except ValueError as error:  # it diverged, which is no reason to stop the search
            finished.append(record | {"status": "diverged", "error": str(error)})
            continue
        objective, tie_breaker = (mean_of(points, name) for name in ("valid_metric", "valid_loss"))
        finished.append(record | {"status": "done", "objective": objective, "tie_breaker": tie_breaker, "tried": tried})
    chosen: Config = select(finished)["tried"]
    return chosen


class Found(NamedTuple):
    """The configuration that a search selected, and a sentence about how."""

    config: Config
    sentence: str


class TimedSearch:
    """A search that ends in time for the training that follows it.

    Args:
        task: "node" or "graph".
        config: the configuration to begin with, which the search replaces by nothing worse on the folds.
        given: options that a person chose; they are not searched.
        num_folds: number of validation folds.
        seed: the seed of the proposals.
        final_share: the models to train afterwards, as a share of those of all folds.
        metric: name of the validation score, if there are targets.
    """

    def __init__(
        self,
        task: str,
        config: Config,
        given: Mapping[str, Any],
        num_folds: int,
        seed: int,
        final_share: float,
        metric: str | None = None,
    ) -> None:
        load_optuna()
        self.metric = metric or ("accuracy" if task == "node" else "ROC-AUC")
        self.config, self.given, self.seed, self.final_share = config, given, seed, final_share
        self.space = searched_space(task, given)
        folds = range(num_folds)
        self.rungs = [rung for rung in (list(folds[:FIRST_FOLDS]), list(folds[FIRST_FOLDS:])) if rung]
        self.records: list[Record] = []

    def run(self, cross_validate: CrossValidate, minutes: float, started: float) -> Found:
        """Try configurations until ``minutes`` after ``started`` (of ``time.monotonic``) leave time for the rest."""
        default: Record = {"trial": 0, "model": self.config["model"], "options": {}, "config": self.config}
        for rung in range(len(self.rungs)):
            self._try(default, rung, cross_validate, None)
            if self.records[-1]["status"] != "done":
                break  # more folds would diverge as well
        end, step, is_over = started + 60 * minutes, 0, False
        while not is_over:
            trials = merge(self.records)
            units = promotions(trials, len(self.rungs))
            for number, options in enumerate(propose_step(self.space, self.seed, step, trials[1:], STEP), len(trials)):
                units.append((default | {"trial": number, "options": options, "config": self._configure(options)}, 0))
            for trial, rung in units:
                until = end - self._reserve()
                is_over = is_over or time.monotonic() >= until or not self._try(trial, rung, cross_validate, until)
            step += 1
        return self._select((time.monotonic() - started) / 60)

    def _configure(self, options: Mapping[str, Any]) -> Config:
        layers = {"num_layers": self.config["num_layers"]} if "num_layers" in self.config else {}
        config = self.config | to_config(layers | dict(options)) | dict(self.given)
        return without_attention(config) if config["model"] == "RGCN" else config

    def _try(self, trial: Record, rung: int, cross_validate: CrossValidate, until: float | None) -> bool:
        """Train a configuration on the folds of a rung; return whether there was time for it."""
        started = time.monotonic()
        folds = [fold for numbers in self.rungs[: rung + 1] for fold in numbers]
        # All folds so far are compared at one epoch, which the new ones may change.
        record: Record = {**trial, "rung": rung, "rehearsal": True, "status": "done", "error": None, "folds": []}
        try:
            text = f"configuration {trial['trial'] + 1}"
            points = cross_validate(trial["config"], text, folds, until)
            mean = mean_of(points, "valid_metric")  # a fold of rare labels has none
            scores = (mean if math.isnan(each.valid_metric) else each.valid_metric for each in points)
            record["folds"] = [
                {"valid_metric": score, "valid_loss": each.valid_loss}
                for score, each in zip(scores, points, strict=True)
            ]
        except OutOfTimeError:
            return False
        except ValueError as error:  # it diverged, which is no reason to stop the search
            record |= {"status": "diverged", "error": str(error)}
        self.records.append(record | {"seconds": time.monotonic() - started})
        return True

    def _reserve(self) -> float:
        """Return the seconds to keep for what follows: as if the best and the first configuration were trained again.

        A configuration that has not reached all folds is trained on the others first.
        """
        done = finalists(merge(self.records))
        costs = []
        for trial in {0, select(done)["trial"]} if done else {0}:
            own = [record for record in self.records if record["trial"] == trial]
            folds = sum(len(self.rungs[record["rung"]]) for record in own)
            seconds: float = statistics.mean(record["seconds"] for record in own) * len(own)
            costs.append(seconds * sum(map(len, self.rungs)) / folds)
        return FINAL_MARGIN * self.final_share * max(costs)

    def _select(self, minutes: float) -> Found:
        trials = merge(self.records)
        best = select(finalists(trials) or trials)
        diverged = sum(trial["status"] != "done" for trial in trials)
        where = f"{len(best['folds'])} folds of the training part" if len(best["folds"]) > 1 else "the validation part"
        return Found(
            best["config"],
            f"search: {len(trials)} configurations in {minutes:.1f} minutes ({diverged} diverged), "
            f"{len(finalists(trials))} of them on {where}; number {best['trial'] + 1} was selected by its "
            f"{self.metric} there, {best['objective']:.4f}",
        )


def searched_space(task: str, given: Mapping[str, Any]) -> Space:
    """Return the options to search: those of the extended space that are not given, and the models by name."""
    space = {name: prior for name, prior in EXTENDED[task].items() if name not in ("layer", "scope", "score")}
    names = {name[: len("attention_l2")] if name.startswith("attention_l2") else name for name in given}
    if "fanouts" in given:
        names.add("num_layers")  # there is a fan-out for each layer
    has_attention = bool(names & {*ATTENTION, "num_attention_bases"})
    models = tuple(model for model in VARIANTS if not has_attention or model != "RGCN")
    if given.get("model") == "RGCN":
        names |= {*ATTENTION}
    return {name: prior for name, prior in {"model": OneOf(models), **space}.items() if name not in names}
