"""How many models predict together: several for a small table of molecules, where one depends on its random start."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rgat.checks import check_count
from rgat.data import GraphData
from rgat.predictor.ensemble import Ensemble
from rgat.predictor.evaluation import evaluate, training_summary
from rgat.predictor.predictor import Predictor, make_predictor
from rgat.training.configuration import Config
from rgat.training.distributed import processes
from rgat.training.loop import Data
from rgat.training.run import Result

# Tasks of Tox21, 1,200 training molecules: mean ROC-AUC on 2,000 others, of neither part, in `docs/molecules.md`.
MEMBERS, FEW_MOLECULES = 3, 2_000


def members_for(data: Data, asked: int | None, comparison: bool) -> int:
    """Return how many models a fit trains: what is asked for; by default `MEMBERS` for few molecules, if it compares.

    A validation part of such a table is too small to tell whether several are better, so that it is not asked.
    """
    if asked is not None:
        check_count("ensemble", asked)
        return asked
    is_small = isinstance(data, GraphData) and len(data.train) < FEW_MOLECULES
    return MEMBERS if is_small and comparison and processes().number == 1 else 1


def with_members(
    predictor: Predictor, data: Data, number: int, train: Callable[[Config, int], tuple[Ensemble, list[Result]]]
) -> Predictor:
    """Return a predictor of so many models of the same configuration, with scores of its own."""
    ensemble, results = train(predictor.config, number)
    several = make_predictor(ensemble, data)
    several.report.update(predictor.report | evaluate(several, data))
    training = [training_summary(result) for result in results]
    several.report.update(training=training, ensemble=number, members={"number": number, "below": FEW_MOLECULES})
    return several


def members_sentence(report: dict[str, Any]) -> list[str]:
    """Return a sentence that says why there are several members; none where they were asked for."""
    if "members" not in report:
        return []
    number, below = report["members"]["number"], report["members"]["below"]
    return [
        f"The outputs of {number} models are averaged, because there are fewer than {below:,} training molecules; "
        "--ensemble 1 trains one."
    ]
