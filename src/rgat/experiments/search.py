"""The search: TPE in rounds of ten. What a round proposes depends on the search seed, its number and the rounds before.

Nothing is kept between rounds but records. An Optuna study is made anew from them for each round, with a sampler seeded
for that round, so a search gives the same answer after any crash, with any number of workers, and whoever did the work.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rgat.data.files import write_atomically
from rgat.experiments.priors import Prior, draw_options
from rgat.experiments.records import Record

ROUND = 10  # trials
FROM_PRIOR = 20  # so many trials are drawn straight from the prior, to begin with


def propose(
    priors: dict[str, Prior], search_seed: int, number: int, finished: Sequence[Record]
) -> list[dict[str, Any]]:
    """The options of the ten trials of round ``number``.

    Args:
        priors: by option.
        search_seed: of the whole search.
        number: of the round, from 0.
        finished: the records of all earlier rounds, in any order.
    """
    if ROUND * number < FROM_PRIOR:
        return [draw_options(priors, search_seed, ROUND * number + place) for place in range(ROUND)]
    optuna = _optuna()
    # A sampler with the seed of the round before would repeat that round's draws.
    sampler = optuna.samplers.TPESampler(seed=1000 * search_seed + number)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    study.add_trials([_as_optuna(record, priors) for record in sorted(finished, key=lambda record: record["trial"])])
    distributions = {name: prior.distribution() for name, prior in priors.items()}
    # Each trial that has been asked for counts as a bad one to the next, so the ten differ.
    return [study.ask(distributions).params for _ in range(ROUND)]


def _as_optuna(record: Record, priors: dict[str, Prior]) -> Any:
    """A trial as Optuna knows it; what diverged is as bad as can be, what failed says nothing."""
    optuna = _optuna()
    states = optuna.trial.TrialState
    failed = record["status"] == "failed"
    return optuna.trial.create_trial(
        state=states.FAIL if failed else states.COMPLETE,
        params={name: record["config"][name] for name in priors},
        distributions={name: prior.distribution() for name, prior in priors.items()},
        value=None if failed else record["objective"] if record["status"] == "done" else 0.0,
        user_attrs={key: record.get(key) for key in ("trial", "round", "from_prior", "status", "tie_breaker", "error")},
    )


def select(trials: Sequence[Record]) -> Record:
    """The trial with the best objective; ties by the tie breaker, then by the number."""
    done = [record for record in trials if record["status"] == "done" and record["objective"] is not None]
    if not done:
        reasons = sorted({str(record.get("error")) for record in trials})
        raise ValueError(
            f"some trial of {trials[0]['model']} must end well to be selected, got {len(trials)} that failed or "
            f"diverged ({'; '.join(reasons[:3])})"
        )
    return min(done, key=lambda record: (-record["objective"], record["tie_breaker"], record["trial"]))


def retrain_epochs(trial: Record) -> int:
    """Epochs of the retrain: the median of the folds' best epochs, rounded up."""
    epochs: list[int] = sorted(fold["best_epoch"] for fold in trial["folds"])
    middle = (epochs[(len(epochs) - 1) // 2] + epochs[len(epochs) // 2]) / 2
    return math.ceil(middle)


def write_studies(path: Path, studies: Mapping[str, tuple[dict[str, Prior], Sequence[Record]]]) -> None:
    """An Optuna SQLite file for those who like its dashboard, made from records; nothing reads it back."""
    optuna = _optuna()
    from sqlalchemy.pool import StaticPool

    storage = optuna.storages.RDBStorage("sqlite://", engine_kwargs={"poolclass": StaticPool})  # in memory
    for name, (priors, trials) in studies.items():
        study = optuna.create_study(storage=storage, study_name=name, direction="maximize")
        study.add_trials([_as_optuna(record, priors) for record in sorted(trials, key=lambda r: r["trial"])])
    storage.remove_session()
    with storage.engine.connect() as connection:
        content: bytes = connection.connection.driver_connection.serialize()
    storage.engine.dispose()
    write_atomically(path, content)


def _optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise ImportError(
            f"a search beyond its first {FROM_PRIOR} trials, and its study file, need optuna; "
            "install it with `pip install 'rgat[search]'`"
        ) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
