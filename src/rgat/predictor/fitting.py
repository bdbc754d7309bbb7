"""Fit a predictor: check the data, search if asked, train an ensemble, calibrate it and measure it on a test part.

A validation part, where there is one, stops the training early and calibrates the result. Where there is none (labelled
nodes are often few), cross-validation inside the training part finds the number of epochs and calibrates; the members
then learn from the whole training part. Test examples are used once, at the end.

Several processes that `torchrun` started run the same fit: they share each batch, or the graph, and get the
same predictor.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rgat.checks import check_count, check_seed
from rgat.data import GraphData, NodeData
from rgat.data import load as load_data
from rgat.data.files import read_whole, write_atomically
from rgat.memory import free_memory
from rgat.models import Model
from rgat.predictor.ensemble import Calibration, Ensemble, calibrate_graphs, calibrate_nodes
from rgat.predictor.evaluation import Rival, compare, evaluate, keep_best, nan_to_none
from rgat.predictor.inspection import check
from rgat.predictor.predictor import Predictor, make_predictor
from rgat.predictor.searching import OutOfTimeError, TimedSearch, check_minutes, search_trials
from rgat.predictor.validation import make_folds, with_validation
from rgat.progress import Progress, Show, Stages, Step, shown
from rgat.training import has_checkpoint, load_checkpoint, save_checkpoint
from rgat.training.checkpoint import digest, digest_data, remove_checkpoint
from rgat.training.configuration import (
    Config,
    Settings,
    build_model,
    configure,
    split_config,
    task_of,
)
from rgat.training.distributed import processes
from rgat.training.loop import Data
from rgat.training.loss import balanced_class_weights
from rgat.training.many import Job, bytes_needed, fit_many, members_that_fit
from rgat.training.run import Epoch, Result, curve_from_json, curve_to_json
from rgat.training.task import graph_logits, node_logits

SEARCH, CROSS_VALIDATION, TRAINING, COMPARISON = "search", "cross-validation", "training", "comparison"  # stages
FOLDS, FIT = "folds", "fit.json"  # files of a fit in its folder
_LARGEST = 1 << 20  # bytes of the latter


def fit(
    data: Data | str,
    *,
    ensemble: int = 1,
    search: int = 0,
    minutes: float | None = None,
    seed: int = 0,
    comparison: bool = True,
    device: torch.device | str = "cpu",
    progress: Progress = False,
    checkpoint: str | Path | None = None,
    keep: Callable[[Predictor], None] | None = None,
    **options: Any,
) -> Predictor:
    """Fit a predictor to labelled nodes or graphs; the defaults are meant to work.

    Args:
        data: what `rgat.data.from_rdf` or `rgat.data.from_smiles` returns, or the name of a data set.
        ensemble: number of models, with different seeds, whose outputs are averaged.
        search: number of configurations to try first, on validation data; 0 takes the given or default one.
        minutes: for the whole fit, instead of ``search``: configurations of all models are tried on validation data
            as long as time is left for the training that follows (`rgat.predictor.searching`).
        seed: the seed of everything random.
        comparison: also train simpler systems on the same split, for the predictor's ``report``; several processes
            leave this out. If one of these, an RGCN, has a higher validation score, it becomes the predictor, unless
            ``model`` is given or ``ensemble`` is above 1.
        device: where to train.
        progress: show the progress, or a function to call with each `rgat.progress.Step`.
        checkpoint: a folder where an interrupted fit resumes. It keeps what the fit was asked for, the results of
            cross-validation until the fit is complete and, of a single model, the checkpoints of its training; a fit
            of other data or options is refused.
        keep: called with the predictor before the comparison, so that it can be saved whatever happens there.
        **options: ``model`` (a name in the paper's tables), options of the model, settings of training; see
            `rgat.training.configuration`.

    Examples:
        >>> import rgat
        >>> model = rgat.fit("institute", model="RGCN", comparison=False, max_epochs=2)
        >>> model.predict(["http://institute.example/person/99"]).columns
        ('materials', 'vision', 'genetics', 'climate')
    """
    if isinstance(data, str):
        data = load_data(data)
    check_count("ensemble", ensemble)
    check_seed(seed)
    check_count("search", search, least=0)
    started = check_minutes(minutes, search)
    check(data)
    config = configure(task_of(data), options)
    data = with_validation(data, config, seed)
    folder = None if checkpoint is None else Path(checkpoint)
    folds, found = make_folds(data, seed), dict[str, Any]()
    names = stage_names(bool(search or minutes), bool(folds), comparison)
    with shown(progress if processes().rank == 0 else False, names) as stages:
        trainer = _Trainer(data, folds, torch.device(device), seed, stages, folder)
        asked = {"seed": seed, "ensemble": ensemble, "search": search} | ({"minutes": minutes} if minutes else {})
        trainer.fold_results.check_same_fit(config | asked)
        if search:
            config = search_trials(trainer.try_config, task_of(data), config, options, search, seed)
        if minutes is not None:
            models = ensemble + (COMPARISON in names) * (trainer.num_folds + 1)
            config, found["searched"] = trainer.search(config, options, minutes, started, models)
        predictor, valid = trainer.fit(config, ensemble)
        predictor.report.update(seed=seed, ensemble=ensemble, search=search, **found)
        if keep is not None:
            keep(predictor)
        if comparison and processes().number == 1:
            tell = partial(stages, COMPARISON, 0.0)
            predictor.report["comparison"], rival = compare(data, config, seed, trainer.train_rival, tell)
            if rival is not None:
                predictor = keep_best(predictor, rival, data, valid, ensemble == 1 and "model" not in options)
        trainer.fold_results.remove()
        return predictor


def stage_names(is_searched: bool, has_folds: bool, comparison: bool) -> list[str]:
    """Return the stages of a fit."""
    is_compared = comparison and processes().number == 1
    due = {
        SEARCH: is_searched,
        CROSS_VALIDATION: has_folds,
        TRAINING: True,
        "evaluation": True,
        COMPARISON: is_compared,
    }
    return [name for name, is_due in due.items() if is_due]


def _summary(result: Result) -> dict[str, Any]:
    """Return the training result of one member as plain values."""
    scores, constant_scores = nan_to_none(result.scores), nan_to_none(result.constant_scores)
    epochs = {"best_epoch": result.best_epoch, "epochs": len(result.curve)}
    return {**epochs, "scores": scores, "constant_scores": constant_scores, "how": result.how}


class _Trainer:
    """Trains models on one data set; ``folder`` is where an interrupted fit resumes."""

    def __init__(
        self, data: Data, folds: list[NodeData], device: torch.device, seed: int, stages: Stages, folder: Path | None
    ) -> None:
        self.data, self.folds, self.device, self.seed, self.stages = data, folds, device, seed, stages
        self.folder, self.fold_results = folder, _FoldResults(folder, data, seed)

    def fit(self, config: Config, ensemble: int) -> tuple[Predictor, float]:
        """Return a predictor with its scores, and its validation score."""
        if CROSS_VALIDATION in self.stages.names and not self.folds:
            self.stages(CROSS_VALIDATION, 1.0, "not needed: there is a validation part")
        trained, results = self.train(config, ensemble, self.stages, self.folder if ensemble == 1 else None)
        self.stages("evaluation")
        predictor = make_predictor(trained, self.data)
        predictor.report.update(**evaluate(predictor, self.data))
        predictor.report["training"] = [_summary(result) for result in results]
        return predictor, self.valid_score(config, results)

    def run(
        self,
        datas: Sequence[Data],
        config: Config,
        settings: Settings,
        seeds: Sequence[int],
        show: Show,
        checkpoint: Path | None = None,
    ) -> tuple[list[Model], list[Result]]:
        """Train one model for each data set and seed."""
        options, _ = split_config(config)
        models: list[Any] = [
            build_model(data, seed, settings.shard_embeddings, **options).to(self.device)
            for data, seed in zip(datas, seeds, strict=True)
        ]
        # The seed decides the order of the batches, which members of a stack share.
        order = [self.seed] * len(models) if isinstance(self.data, GraphData) else list(seeds)
        results = fit_many(models, list(datas), settings, order, progress=show, checkpoint=checkpoint)
        if any(result.best_epoch == 0 for result in results):
            if checkpoint is not None:
                self.fold_results.forget_fit()
            raise ValueError(
                f"training must keep finite numbers, but that of {config['model']} diverged; lower `learning_rate` "
                f"(now {settings.learning_rate})"
            )
        return models, results

    @property
    def num_folds(self) -> int:
        """The number of folds; data with a validation part are one."""
        return len(self.folds) or 1

    def try_config(self, config: Config, trial: int, trials: int) -> list[Epoch]:
        """Return the best epochs of a configuration of a search, which is one of so many."""
        text = f"configuration {trial + 1} of {trials}"
        part = self.stages.part(SEARCH, trial / trials, (trial + 1) / trials, text)
        return self.cross_validate(config, Stages(part, [CROSS_VALIDATION]))[0]

    def search(
        self, config: Config, given: Mapping[str, Any], minutes: float, started: float, models: int
    ) -> tuple[Config, str]:
        """Search a configuration in time to train so many models after it; return it and a sentence about it."""

        def best_epochs(config: Config, text: str, folds: Sequence[int], until: float | None) -> list[Epoch]:
            def show(step: Step) -> None:
                now = time.monotonic()
                if until is not None and now >= until:
                    raise OutOfTimeError
                self.stages(SEARCH, min(1.0, (now - started) / (60 * minutes)), text)

            return self.cross_validate(config, Stages(show, [CROSS_VALIDATION]), folds)[0]

        share = models / self.num_folds
        timed = TimedSearch(task_of(self.data), config, given, self.num_folds, self.seed, share)
        return timed.run(best_epochs, minutes, started)

    def cross_validate(
        self, config: Config, stages: Stages, folds: Sequence[int] | None = None
    ) -> tuple[list[Epoch], list[Tensor]]:
        """Train one model per fold; return the best epoch of each and the logits of its held-out nodes.

        Data with a validation part are one fold, and get no logits. No more models are held than are trained together.
        By default all folds are trained.
        """
        datas: list[Data] = [*self.folds] or [self.data]
        asked = range(len(datas)) if folds is None else folds
        missing = [fold for fold in asked if self.fold_results.get(config, fold) is None]
        done, count = len(asked) - len(missing), len(asked)
        stages(CROSS_VALIDATION, done / count, f"{done} of {count} folds were done before" if done else "")
        size = max(1, members_that_fit(self._job(datas[0], config))) if len(missing) > 1 else 1
        for start in range(0, len(missing), size):
            chosen = missing[start : start + size]
            which = f"fold {chosen[0] + 1} of {len(datas)}" if len(chosen) == 1 else f"{len(chosen)} of {count} folds"
            shares = ((done + start) / count, (done + start + len(chosen)) / count)
            part = stages.part(CROSS_VALIDATION, *shares, which if count > 1 else "")
            self._train_folds(datas, chosen, config, part)
        pairs = [self.fold_results.get(config, fold) for fold in asked]
        return [pair[0] for pair in pairs if pair], [pair[1] for pair in pairs if pair and pair[1] is not None]

    def _train_folds(self, datas: Sequence[Data], chosen: Sequence[int], config: Config, show: Show) -> None:
        _, settings = split_config(config)
        seeds = [self.seed + 1000 + fold for fold in chosen]
        models, results = self.run([datas[fold] for fold in chosen], config, settings, seeds, show)
        for fold, model, result in zip(chosen, models, results, strict=True):
            logits = node_logits(model, self.folds[fold], nodes=self.folds[fold].valid) if self.folds else None
            self.fold_results.add(config, fold, result.curve[result.best_epoch - 1], logits)

    def _job(self, data: Data, config: Config) -> Job:
        options, settings = split_config(config)
        model = build_model(data, self.seed, settings.shard_embeddings, **options)
        return Job(model.to(self.device), data, settings, self.seed)

    def train(
        self, config: Config, ensemble: int, stages: Stages, checkpoint: Path | None = None
    ) -> tuple[Ensemble, list[Result]]:
        """Train the members of an ensemble, and calibrate their mean."""
        _, settings = split_config(config)
        seeds = [self.seed * 1000 + member for member in range(ensemble)]
        calibration = None
        if self.folds:
            best, logits = self.cross_validate(config, stages)
            # Each node is predicted by the model that did not learn from it.
            labels = torch.cat([fold.labels[fold.valid] for fold in self.folds])
            calibration = calibrate_nodes(torch.cat(logits), labels)
            epochs = statistics.median_high([point.epoch for point in best])
            settings = dataclasses.replace(settings, max_epochs=epochs, patience=None)
        stages(TRAINING)
        show = stages.part(TRAINING, 0.0, 1.0)
        members, results = self.run([self.data] * ensemble, config, settings, seeds, show, checkpoint)
        return Ensemble(members, config, calibration or self._calibrate(members), {}), results

    def train_rival(self, config: Config) -> Rival:
        """Train one model to compare with; raise if memory is short."""
        needed, free = bytes_needed(self._job(self.data, config)), free_memory(self.device)
        if needed > free and config.get("fanouts") is None:
            raise ValueError(f"it may take {needed / 2**30:.1f} GiB of memory, and {free / 2**30:.1f} GiB are free")
        names = [CROSS_VALIDATION, TRAINING] if self.folds else [TRAINING]
        ensemble, results = self.train(
            config, 1, Stages(self.stages.part(COMPARISON, 0.0, 1.0, config["model"]), names)
        )
        return Rival(ensemble, [_summary(result) for result in results], self.valid_score(config, results))

    def valid_score(self, config: Config, results: Sequence[Result]) -> float:
        """Return the mean metric over the folds of cross-validation, or of the members on the validation part."""
        best = [found[0] for fold in range(len(self.folds)) if (found := self.fold_results.get(config, fold))]
        scores = [point.valid_metric for point in best] or [result.scores["valid"] for result in results]
        return statistics.mean(scores)

    def _calibrate(self, members: list[Model]) -> Calibration:
        """Calibrate on the validation part."""
        data, valid = self.data, self.data.valid
        if isinstance(data, GraphData):
            logits = torch.stack([graph_logits(member, data.graphs, valid) for member in members]).mean(0)
            return calibrate_graphs(logits, data.labels[valid], balanced_class_weights(data.labels[data.train]))
        logits = torch.stack([node_logits(member, data, nodes=valid) for member in members]).mean(0)
        return calibrate_nodes(logits, data.labels[valid])


class _FoldResults:
    """The best epoch of each fold's model and its held-out logits, by configuration and fold.

    They are stored under a digest of everything that they depend on, so those of another data set, seed or
    configuration are never returned. Without a folder they live in memory alone.
    """

    def __init__(self, folder: Path | None, data: Data, seed: int) -> None:
        self.folder, self.seed = folder, seed
        self.data = {} if folder is None else digest_data(data)
        self.points: dict[str, Any] = {}
        self.logits: dict[str, Tensor] = {}
        if folder is not None and has_checkpoint(folder, FOLDS):
            self.logits, record = load_checkpoint(folder, FOLDS)
            self.points = record["points"]

    def check_same_fit(self, options: Mapping[str, Any]) -> None:
        """Note the data and options of the fit in the folder; raise if the folder has those of another one.

        Only ``max_epochs`` may differ.
        """
        if self.folder is None:
            return
        path = self.folder / FIT
        ours: dict[str, Any] = json.loads(json.dumps({**options, "data": digest(self.data)}))
        if path.exists():
            try:
                theirs: dict[str, Any] = json.loads(read_whole(path, _LARGEST))
                other = [name for name in {**theirs, **ours} if theirs.get(name) != ours.get(name)]
            except (OSError, ValueError, AttributeError, TypeError) as error:
                raise ValueError(f"{path} must describe a fit, but is damaged; choose another folder") from error
            for name in (name for name in other if name != "max_epochs"):
                difference = f"its `{name}` is {theirs.get(name)!r}, not {ours.get(name)!r}"
                raise ValueError(
                    f"the fit in {self.folder} must be resumed with the same data and options, but "
                    f"{'it has other data' if name == 'data' else difference}; "
                    "use those of the first call, or choose another folder"
                )
        if processes().rank == 0:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_atomically(path, json.dumps(ours, indent=1).encode())

    def forget_fit(self) -> None:
        """Remove what a fit that failed has left, so that it can be started again with other options."""
        if self.folder is not None and processes().rank == 0:
            (self.folder / FIT).unlink(missing_ok=True)
            remove_checkpoint(self.folder)
        self.remove()

    def _key(self, config: Mapping[str, Any], fold: int) -> str:
        return digest([self.data, self.seed, sorted(config.items()), fold])

    def get(self, config: Mapping[str, Any], fold: int) -> tuple[Epoch, Tensor | None] | None:
        """Return the best epoch of a fold's model and its held-out logits; None if the fold is not finished."""
        key = self._key(config, fold)
        return (curve_from_json([self.points[key]])[0], self.logits.get(key)) if key in self.points else None

    def add(self, config: Mapping[str, Any], fold: int, best: Epoch, logits: Tensor | None) -> None:
        """Add a finished fold, and write it to the folder."""
        key = self._key(config, fold)
        (self.points[key],) = curve_to_json([best])
        if logits is not None:
            self.logits[key] = logits
        if self.folder is not None and processes().rank == 0:
            save_checkpoint(self.folder, self.logits, {"points": self.points}, FOLDS)

    def remove(self) -> None:
        """Remove the file of a fit that is complete."""
        if self.folder is not None and processes().rank == 0:
            remove_checkpoint(self.folder, FOLDS)
