"""Fit a model to data: check the data, tune if asked to, train an ensemble, calibrate it, say how good it is.

Where there are validation examples, they stop the training and calibrate the result. Labelled nodes are often few:
where there are no validation nodes, cross-validation inside the training part finds the number of epochs and
calibrates, and the members then learn from the whole training part. Test examples are looked at once, at the end.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rgat.checks import check_count, check_seed
from rgat.data import GraphData, NodeData
from rgat.data import load as load_data
from rgat.data.splits import stratified_folds
from rgat.experiments.search import ROUND, propose, select
from rgat.experiments.train import Trained
from rgat.experiments.variants import build_model
from rgat.memory import free_memory
from rgat.models import Model
from rgat.predictor.calibration import Calibration, calibrate_graphs, calibrate_nodes
from rgat.predictor.comparison import compare
from rgat.predictor.configuration import Config, configure, searchable, split_config, task_of
from rgat.predictor.ensemble import Ensemble
from rgat.predictor.evaluation import evaluate
from rgat.predictor.inspection import check
from rgat.predictor.predictor import Predictor, make_predictor
from rgat.predictor.progress import Progress, no_progress
from rgat.training import (
    Job,
    Result,
    Settings,
    balanced_class_weights,
    bytes_needed,
    fit_many,
    graph_logits,
    members_that_fit,
)

NUM_FOLDS = 5
Data = NodeData | GraphData


def fit(
    data: Data | str,
    *,
    ensemble: int = 1,
    search: int = 0,
    seed: int = 0,
    comparison: bool = True,
    device: torch.device | str = "cpu",
    progress: Progress = no_progress,
    keep: Callable[[Predictor], None] | None = None,
    **options: Any,
) -> Predictor:
    """Fit a model to labelled nodes or graphs; the defaults are meant to work.

    Args:
        data: what :func:`rgat.data.from_rdf` or :func:`rgat.data.from_smiles` returns, or the name of a data set.
        ensemble: number of models, with different seeds, whose outputs are averaged.
        search: number of configurations to try first, on validation data; 0 takes the given or default one.
        seed: of everything random.
        comparison: also train what the model has to be better than: see the model's ``report``.
        device: where to train.
        progress: called with what is being done, and how much of it is done, from 0 to 1.
        keep: called with the model once it is trained, before it is compared with others, so that it can be saved
            whatever happens to them.
        **options: ``model`` (a name in the paper's tables), options of the model, settings of training; see
            :func:`rgat.predictor.configuration.configure`.
    """
    if isinstance(data, str):
        data = load_data(data)
    check_count("ensemble", ensemble)
    check_seed(seed)
    check_count("search", search, least=0)
    check(data)
    config = configure(task_of(data), options)
    trainer = _Trainer(data, torch.device(device), seed, progress)
    if search:
        config = _search(trainer, config, options, search)
    members, calibration = trainer.train(config, ensemble)
    predictor = make_predictor(Ensemble(members, config, calibration, {}), data)
    predictor.report.update(seed=seed, ensemble=ensemble, search=search, **evaluate(predictor, data))
    if comparison:
        trainer.compare(predictor, config, keep)
    return predictor


def fit_trained(
    trained: Trained,
    config: Config,
    seed: int,
    comparison: bool = False,
    progress: Progress = no_progress,
    keep: Callable[[Predictor], None] | None = None,
) -> Predictor:
    """What :func:`fit` returns, of a model that was trained already; its validation part calibrates it."""
    device = next(trained.model.parameters()).device
    trainer = _Trainer(trained.data, device, seed, progress)
    members: list[Any] = [trained.model]
    predictor = make_predictor(Ensemble(members, config, trainer.calibrate(members), {}), trained.data)
    predictor.report.update(seed=seed, ensemble=1, search=0, **evaluate(predictor, trained.data))
    if comparison:
        trainer.compare(predictor, config, keep)
    return predictor


class _Trainer:
    """Trains models of one data set."""

    def __init__(self, data: Data, device: torch.device, seed: int, progress: Progress) -> None:
        self.data, self.device, self.seed, self.progress = data, device, seed, progress
        self.folds = folds_of(data, seed)

    def run(
        self,
        what: str,
        datas: Sequence[Data],
        config: Config,
        settings: Settings,
        seeds: Sequence[int],
        place: tuple[int, int] | None = None,
    ) -> tuple[list[Model], list[Result]]:
        """Train one model for each seed and data set; ``place`` says how many of how many are trained already."""
        options, _ = split_config(config)
        models: list[Any] = [
            build_model(data, seed, **options).to(self.device) for data, seed in zip(datas, seeds, strict=True)
        ]
        before, count = place or (0, len(models))
        total = count * settings.max_epochs

        def on_epoch(number: int, epoch: Any) -> None:
            self.progress(what, ((before + number) * settings.max_epochs + epoch.epoch) / total)

        same_order = [self.seed] * len(models) if isinstance(self.data, GraphData) else list(seeds)
        results = fit_many(models, list(datas), settings, same_order, on_epoch)
        self.progress(what, (before + len(models)) / count)
        if any(result.best_epoch == 0 for result in results):
            raise ValueError(
                f"training must keep finite numbers, but {what} diverged; lower `learning_rate` "
                f"(now {settings.learning_rate})"
            )
        return models, results

    def cross_validate(self, config: Config, what: str) -> tuple[list[Result], list[Tensor]]:
        """Train one model per fold, or one on the validation part; return results and the logits held-out nodes get.

        A model of a fold is needed no longer than that, so only those that train together are there at a time.
        """
        datas: list[Data] = [*self.folds] or [self.data]
        size = max(1, members_that_fit(self._job(datas[0], config))) if len(datas) > 1 else 1
        results: list[Result] = []
        logits: list[Tensor] = []
        for first in range(0, len(datas), size):
            found = self._train_folds(datas, range(first, min(first + size, len(datas))), config, what)
            results += found[0]
            logits += found[1]
        return results, logits

    def _train_folds(
        self, datas: Sequence[Data], chosen: range, config: Config, what: str
    ) -> tuple[list[Result], list[Tensor]]:
        _, settings = split_config(config)
        some, seeds = [datas[fold] for fold in chosen], [self.seed + 1000 + fold for fold in chosen]
        models, results = self.run(what, some, config, settings, seeds, (chosen.start, len(datas)))
        pairs = zip(models, self.folds[chosen.start : chosen.stop], strict=False)  # none with a validation part
        return results, [_logits(model, fold.x, fold.graph)[fold.valid] for model, fold in pairs]

    def _job(self, data: Data, config: Config) -> Job:
        options, settings = split_config(config)
        return Job(build_model(data, self.seed, **options).to(self.device), data, settings, self.seed)

    def train(self, config: Config, ensemble: int, what: str = "the model") -> tuple[list[Model], Calibration]:
        """The members of an ensemble, and how their logits become probabilities."""
        _, settings = split_config(config)
        seeds = [self.seed * 1000 + member for member in range(ensemble)]
        if not self.folds:
            members, _ = self.run(what, [self.data] * ensemble, config, settings, seeds)
            return members, self.calibrate(members)
        results, logits = self.cross_validate(config, f"cross-validation of {what}")
        # Each node is predicted by the model that did not learn from it.
        labels = torch.cat([fold.labels[fold.valid] for fold in self.folds])
        calibration = calibrate_nodes(torch.cat(logits), labels)
        epochs = statistics.median_high([result.best_epoch for result in results])
        fixed = dataclasses.replace(settings, max_epochs=epochs, patience=None)
        members, _ = self.run(what, [self.data] * ensemble, config, fixed, seeds)
        return members, calibration

    def compare(
        self,
        predictor: Predictor,
        config: Config,
        keep: Callable[[Predictor], None] | None,
    ) -> None:
        """Add what other systems reach to the model's report; first keep the model, whatever happens to them."""
        if keep is not None:
            keep(predictor)
        predictor.report["comparison"] = compare(self.data, config, self.seed, self.train_rival)

    def train_rival(self, config: Config, what: str) -> Model:
        """One model to compare with, of which nothing but itself is of interest; raises if memory is short."""
        needed, free = bytes_needed(self._job(self.data, config)), free_memory(self.device)
        if needed > free:
            raise ValueError(f"it may take {needed / 2**30:.1f} GiB of memory, and {free / 2**30:.1f} GiB are free")
        return self.train(config, 1, what)[0][0]

    def calibrate(self, members: list[Model]) -> Calibration:
        """By the validation part."""
        data, valid = self.data, self.data.valid
        if isinstance(data, GraphData):
            logits = torch.stack([graph_logits(member, data.graphs, valid) for member in members]).mean(0)
            return calibrate_graphs(logits, data.labels[valid], balanced_class_weights(data.labels[data.train]))
        logits = torch.stack([_logits(member, data.x, data.graph) for member in members]).mean(0)
        return calibrate_nodes(logits[valid], data.labels[valid])


def _logits(model: Model, x: Tensor | None, graph: Any) -> Tensor:
    device = next(model.parameters()).device
    with torch.no_grad():
        found: Tensor = model(None if x is None else x.to(device), graph.to(device))
    return found.float().cpu()


def folds_of(data: Data, seed: int) -> list[NodeData]:
    """Return the data sets of a cross-validation: without validation nodes, each fold of the training part is these."""
    if isinstance(data, GraphData) or len(data.valid):
        return []
    classes = data.labels[data.train].tolist()
    folds = []
    for held in stratified_folds(classes, min(NUM_FOLDS, len(classes)), seed):
        learned = torch.ones(len(classes), dtype=torch.bool).index_fill_(0, held, False)
        folds.append(dataclasses.replace(data, train=data.train[learned], valid=data.train[held]))
    return folds


def _search(trainer: _Trainer, config: Config, given: Mapping[str, Any], trials: int) -> Config:
    """The best of some configurations by validation data; the first is the one to begin with."""
    priors = searchable(task_of(trainer.data), config, given)
    finished: list[dict[str, Any]] = []
    for trial in range(trials):
        if trial % ROUND == 0:
            proposals = propose(priors, trainer.seed, trial // ROUND, finished)
        tried = config if trial == 0 else config | proposals[trial % ROUND]
        record = {"trial": trial, "model": config["model"], "config": dict.fromkeys(priors) | tried, "error": None}
        try:
            results, _ = trainer.cross_validate(tried, f"search, configuration {trial + 1} of {trials}")
        except ValueError as error:  # it diverged: as bad as can be, but no reason to stop
            finished.append(record | {"status": "diverged", "error": str(error)})
            continue
        curves = [result.curve[result.best_epoch - 1] for result in results]
        objective, tie = (
            statistics.mean(getattr(point, name) for point in curves) for name in ("valid_metric", "valid_loss")
        )
        finished.append(record | {"status": "done", "objective": objective, "tie_breaker": tie, "tried": tried})
    chosen: Config = select(finished)["tried"]
    return chosen
