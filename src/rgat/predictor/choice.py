"""Choose the input and the model of a fit by validation; no test example is used.

First the inputs are compared with one model, then the models with the best input, so that few are trained. The best of
several noisy scores is partly the luckiest one, so cross-validation decides by the rule of one standard error: of all
candidates that are within it of the best, the first, which is the simplest, is chosen.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from rgat.data import GraphData, NodeData
from rgat.data.rdf.features import FEATURES
from rgat.data.rdf.featurised import featurise, is_open
from rgat.data.rdf.literals import is_literal
from rgat.predictor.described import AUTO, describe_data, kinds_to_try
from rgat.predictor.evaluation import OF_ATTENTION
from rgat.training.configuration import VARIANTS, Config, configure, task_of
from rgat.training.loop import Data

INPUTS = ("identity", "features", "both")  # one-hot nodes, literals among them; node features; one-hot nodes with these
FIRST = "RGCN"  # compares the inputs: it is the cheapest model
MOST_EDGES = 1_000_000  # of all folds of one candidate; a comparison then takes about a quarter of an hour
# Chosen by cross-validation on made-up graphs: features without a penalty fit noise, and take longer to learn from.
OF_FEATURES: Config = {"kernel_l2_1": 1e-2, "max_epochs": 400}

Score = tuple[Sequence[float], float]  # validation metric of each fold, and mean loss
ScoreOf = Callable[[str, Config, int], Score]  # takes an input, a configuration and the number of the candidate


class Choice(NamedTuple):
    """What was chosen, and from what."""

    input: str
    config: Config
    rows: list[dict[str, Any]]  # input, model, score and loss of each candidate; None where it diverged


def configure_for(data: Data, options: Mapping[str, Any]) -> Config:
    """Return a complete configuration; models of RDF features have defaults of their own."""
    has_features = isinstance(data, NodeData) and data.x is not None and "vocabulary" in data.provenance
    return configure(task_of(data), (OF_FEATURES if has_features else {}) | dict(options))


def inputs_of(data: NodeData, options: Mapping[str, Any]) -> list[str]:
    """Return the inputs to compare: those of a graph that is open for it, unless the options tell which."""
    if not is_open(data) or options.get("embedding_channels") is not None:
        return ["identity"] if data.x is None else ["both" if options.get("identity") else "features"]
    if "identity" in options:
        return ["both" if options["identity"] else "features"]
    return list(INPUTS)


def candidates(
    data: Data, options: Mapping[str, Any], num_folds: int, comparison: bool, descriptors: str = AUTO
) -> tuple[list[str], list[str]]:
    """Return the inputs and models to compare; one of each where there is nothing to choose, or no time to.

    Without a comparison, literals are read beside one-hot nodes, unless the graph is large. The inputs of molecules are
    kinds of descriptors beside their graphs.
    """
    model = configure_for(data, options)["model"]
    if isinstance(data, GraphData):
        return kinds_to_try(data, descriptors, comparison), [model]
    if descriptors != AUTO:
        raise ValueError(
            f'`descriptors` (--descriptors) are for molecules, got "{descriptors}" for nodes; leave it out'
        )
    inputs, models = inputs_of(data, options), [model] if "model" in options else list(VARIANTS)
    is_whole = options.get("fanouts") is None and not data.is_stored
    if not is_whole or data.graph.num_edges * max(num_folds, 1) > MOST_EDGES:
        return inputs[:1], [model]
    if not comparison:
        return inputs[-1:] if is_literal(data.node_names).any() else inputs[:1], [model]
    return inputs, models


def number_of(inputs: Sequence[str], models: Sequence[str]) -> int:
    """Return how many candidates are compared; none where there is no choice."""
    count = len(inputs) + len(models) - 1
    return count if count > 1 else 0


def with_inputs(data: Data, kinds: Sequence[str]) -> dict[str, Data]:
    """Return the data with what each of these inputs needs."""
    if isinstance(data, GraphData):
        return {**describe_data(data, kinds)}
    featurised = featurise(data, FEATURES) if is_open(data) and kinds[-1] != "identity" else data
    return {kind: data if kind == "identity" else featurised for kind in kinds}


def config_of(kind: str, model: str, data: Data, options: Mapping[str, Any]) -> Config:
    """Return the configuration of a candidate."""
    given = dict(options) | {"model": model}
    if model == "RGCN":
        given = {name: value for name, value in given.items() if name not in OF_ATTENTION}
    if kind == "both" and isinstance(data, NodeData):
        given["identity"] = True
    return configure_for(data, given)


def choose(datas: Mapping[str, Data], options: Mapping[str, Any], models: Sequence[str], score_of: ScoreOf) -> Choice:
    """Return the first input and configuration whose score is within a standard error, over folds, of the highest.

    Without folds, it is the highest one; the loss decides between equals.

    Args:
        datas: the data of each input.
        options: as given to the fit.
        models: names of the models.
        score_of: trains a candidate on the folds; raises a ValueError if it diverges.
    """
    first = FIRST if FIRST in models else models[0]
    tried: list[_Tried] = []
    rows: list[dict[str, Any]] = []
    errors: list[ValueError] = []

    def attempt(kind: str, model: str) -> None:
        config = config_of(kind, model, datas[kind], options)
        row: dict[str, Any] = {"input": kind, "model": model, "score": None, "loss": None}
        rows.append(row)
        try:
            scores, loss = score_of(kind, config, len(rows))
        except ValueError as error:  # it diverged, which is no reason to stop
            errors.append(error)
            return
        known = [score for score in scores if not math.isnan(score)]  # a fold may have one label only
        row |= {"score": statistics.mean(known) if known else None, "loss": None if math.isnan(loss) else loss}
        if len(known) > 1:
            row["error"] = statistics.stdev(known) / math.sqrt(len(known))
        score = -math.inf if row["score"] is None else row["score"]
        tried.append(_Tried(score, row.get("error", 0.0), loss, kind, config))

    for kind in datas:
        attempt(kind, first)
    kind = _first_of_the_best(tried).input if tried else next(iter(datas))
    for model in models:
        if model != first:
            attempt(kind, model)
    if not tried:
        raise errors[0]
    chosen = _first_of_the_best(tried)
    return Choice(chosen.input, chosen.config, rows)


class _Tried(NamedTuple):
    score: float
    error: float  # standard error of the score over folds; 0 without these
    loss: float
    input: str
    config: Config


def _first_of_the_best(tried: Sequence[_Tried]) -> _Tried:
    best = max(tried, key=lambda each: (each.score, -each.loss))
    return next((each for each in tried if each.score > best.score - best.error), best)
