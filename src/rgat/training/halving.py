"""Successive halving of trials over folds, with TPE between the steps.

Trials of a step are trained on the folds of the first rung. The best third of all trials at a rung goes on to the folds
of the next one (Li et al., "A System for Massively Parallel Hyperparameter Tuning"). The only state is the records: one
for each trial and rung.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rgat.training.configuration import MultiplesOf, OneOf, Prior
from rgat.training.search import Record, distribution, load_optuna
from rgat.training.space import Space, choose

KEPT = 3  # one of so many trials goes on to the next rung
STEP = 24  # new trials of a step


def merge(records: Sequence[Record]) -> list[Record]:
    """Return one record per trial, with the folds of all its rungs, ordered by trial.

    ``objective`` and ``tie_breaker`` are means over all these folds; ``by_rung`` has the two of each rung, over the
    folds up to it. A rung that rehearses the final training counts alone, with its own configuration. A trial that
    failed or diverged at any rung has no objective.
    """
    by_trial: dict[int, list[Record]] = {}
    for record in sorted(records, key=lambda record: (record["trial"], record["rung"])):
        by_trial.setdefault(record["trial"], []).append(record)
    return [_merge_rungs(rungs) for rungs in by_trial.values()]


def _merge_rungs(rungs: Sequence[Record]) -> Record:
    folds: list[dict[str, Any]] = []
    by_rung: list[tuple[float, float]] = []
    broken = next((record for record in rungs if record["status"] != "done"), None)
    for record in rungs if broken is None else []:
        folds = record["folds"] if record.get("rehearsal") else folds + record["folds"]
        means = (statistics.mean(fold[name] for fold in folds) for name in ("valid_metric", "valid_loss"))
        by_rung.append((next(means), next(means)))
    objective, tie_breaker = by_rung[-1] if by_rung else (None, None)
    about = {"status": "done", "error": None} if broken is None else {key: broken[key] for key in ("status", "error")}
    merged = {"folds": folds, "by_rung": by_rung, "objective": objective, "tie_breaker": tie_breaker}
    return rungs[0] | merged | about | {key: rungs[-1].get(key) for key in ("rung", "config", "rehearsal")}


def promotions(trials: Sequence[Record], num_rungs: int) -> list[tuple[Record, int]]:
    """Return the trials that go on, each with its next rung; ``trials`` are merged records."""
    chosen = []
    for rung in range(num_rungs - 1):
        reached = [trial for trial in trials if trial["rung"] >= rung]
        done = [trial for trial in reached if len(trial["by_rung"]) > rung]
        done.sort(key=lambda trial: (-trial["by_rung"][rung][0], trial["by_rung"][rung][1], trial["trial"]))
        best = done[: len(reached) // KEPT]
        chosen += [(trial, rung + 1) for trial in best if trial["rung"] == rung]
    return chosen


def finalists(trials: Sequence[Record]) -> list[Record]:
    """Return the finished trials at the highest rung that any finished trial has reached."""
    done = [trial for trial in trials if trial["status"] == "done"]
    highest = max((trial["rung"] for trial in done), default=0)
    return [trial for trial in done if trial["rung"] == highest]


def propose_step(
    space: Space, search_seed: int, step: int, trials: Sequence[Record], count: int
) -> list[dict[str, Any]]:
    """Return the options of the ``count`` new trials of a step, from the merged trials of earlier steps.

    The first step draws from the priors. For later ones Optuna's TPE gets a trial at the last rung as complete, and any
    other as pruned with the scores of its rungs.
    """
    if step == 0:
        return [_draw(space, search_seed, number) for number in range(count)]
    optuna = load_optuna()
    sampler = optuna.samplers.TPESampler(seed=1000 * search_seed + step)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    last = max((trial["rung"] for trial in trials), default=0)
    study.add_trials([_as_optuna(optuna, trial, space, last) for trial in trials])
    proposed = []
    for _ in range(count):
        trial = study.ask()
        proposed.append(choose(space, lambda name, prior, trial=trial: _suggest(trial, name, prior)))  # type: ignore[misc]
    return proposed


def _draw(space: Space, search_seed: int, trial: int) -> dict[str, Any]:
    """Draw from the priors; each option has its own generator, as in `rgat.training.search`."""
    return choose(space, lambda name, prior: prior.draw(np.random.default_rng([search_seed, trial, *name.encode()])))


def _suggest(trial: Any, name: str, prior: Prior) -> Any:
    if isinstance(prior, OneOf):
        return trial.suggest_categorical(name, prior.values)
    if isinstance(prior, MultiplesOf):
        return trial.suggest_int(name, prior.low, prior.high, step=prior.step)
    return trial.suggest_float(name, prior.low, prior.high, log=distribution(prior).log)


def _as_optuna(optuna: Any, trial: Mapping[str, Any], space: Space, last: int) -> Any:
    """Convert a merged trial; a diverged one has objective 0, a failed one has none."""
    states = optuna.trial.TrialState
    options = {name: value for name, value in trial["options"].items() if name in space}
    about: dict[str, Any] = {"params": options, "distributions": {name: distribution(space[name]) for name in options}}
    if trial["status"] == "failed":
        return optuna.trial.create_trial(state=states.FAIL, **about)
    scores = [score for score, _ in trial["by_rung"]] or [0.0]
    if trial["status"] == "done" and trial["rung"] == last:
        return optuna.trial.create_trial(state=states.COMPLETE, value=scores[-1], **about)
    return optuna.trial.create_trial(state=states.PRUNED, intermediate_values=dict(enumerate(scores)), **about)
