"""Hyper-parameter search by TPE in rounds of ten trials, and the choice of the best trial.

The only state between rounds is the trials' records. Each round builds a new Optuna study from them, with a sampler
seeded by the search seed and the round number. A search therefore gives the same result after a crash and with any
number of workers.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

from rgat.training.configuration import LogUniform, MultiplesOf, OneOf, Prior

Record = dict[str, Any]

ROUND = 10  # trials
FROM_PRIOR = 20  # the first trials are drawn from the prior


def draw_options(priors: dict[str, Prior], search_seed: int, trial: int) -> dict[str, Any]:
    """Draw one value from each prior.

    Each option has its own random generator, so trial 7 of two models has the same values of the options they share.
    """
    return {
        name: prior.draw(np.random.default_rng([search_seed, trial, *name.encode()])) for name, prior in priors.items()
    }


def distribution(prior: Prior) -> Any:
    """Return a prior as an Optuna object."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(prior, OneOf):
        return CategoricalDistribution(prior.values)
    if isinstance(prior, MultiplesOf):
        return IntDistribution(prior.low, prior.high, step=prior.step)
    return FloatDistribution(prior.low, prior.high, log=isinstance(prior, LogUniform))


def propose(
    priors: dict[str, Prior], search_seed: int, number: int, finished: Sequence[Record]
) -> list[dict[str, Any]]:
    """Return the options of the ten trials of round ``number``, from the records of all earlier rounds in any order."""
    first = ROUND * number
    if first < FROM_PRIOR:
        return [draw_options(priors, search_seed, trial) for trial in range(first, first + ROUND)]
    optuna = load_optuna()
    # A sampler with the previous round's seed would repeat that round's draws.
    sampler = optuna.samplers.TPESampler(seed=1000 * search_seed + number)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    study.add_trials([_as_optuna(record, priors) for record in sorted(finished, key=lambda record: record["trial"])])
    distributions = {name: distribution(prior) for name, prior in priors.items()}
    # Optuna treats a running trial as a bad one when it proposes the next, so the ten differ.
    return [study.ask(distributions).params for _ in range(ROUND)]


def _as_optuna(record: Record, priors: dict[str, Prior]) -> Any:
    """Convert a record to an Optuna trial: a diverged trial has objective 0, a failed one has none."""
    optuna = load_optuna()
    states = optuna.trial.TrialState
    failed = record["status"] == "failed"
    return optuna.trial.create_trial(
        state=states.FAIL if failed else states.COMPLETE,
        params={name: record["config"][name] for name in priors},
        distributions={name: distribution(prior) for name, prior in priors.items()},
        value=None if failed else record["objective"] if record["status"] == "done" else 0.0,
    )


def select(trials: Sequence[Record]) -> Record:
    """Return the trial with the highest objective; the tie breaker, then the trial number, decide between equals."""
    done = [record for record in trials if record["status"] == "done" and record["objective"] is not None]
    if not done:
        reasons = sorted({str(record.get("error")) for record in trials})
        raise ValueError(
            f"at least one trial of {trials[0]['model']} must finish, got {len(trials)} that failed or diverged "
            f"({'; '.join(reasons[:3])})"
        )
    return min(done, key=lambda record: (-record["objective"], record["tie_breaker"], record["trial"]))


def retrain_epochs(trial: Record) -> int:
    """Return the number of epochs to retrain for: the median of the folds' best epochs, rounded up."""
    epochs: list[int] = [fold["best_epoch"] for fold in trial["folds"]]
    return math.ceil(statistics.median(epochs))


def common_epoch(curves: Sequence[Sequence[float]]) -> int:
    """Return the epoch at which the mean validation loss of all folds is lowest, the first of equals.

    A fold that stopped earlier counts with its last loss.
    """
    longest = max(map(len, curves))
    means = np.mean([[*curve, *[curve[-1]] * (longest - len(curve))] for curve in curves], axis=0)
    return int(np.nanargmin(means)) + 1


def load_optuna() -> Any:
    """Return Optuna, or raise with the command that installs it."""
    try:
        import optuna
    except ImportError as error:
        raise ImportError(
            f"a search of more than {FROM_PRIOR} trials needs optuna; install it with `pip install 'rgat[search]'`"
        ) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
