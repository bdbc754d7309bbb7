"""Train the models of a fit on one data set: candidates on folds, members of an ensemble, models to compare with."""

from __future__ import annotations

import copy
import dataclasses
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rgat.data import GraphData, NodeData
from rgat.memory import free_memory
from rgat.models import Model
from rgat.nn import RGCNConv
from rgat.predictor.ensemble import Calibration, Ensemble, calibrate
from rgat.predictor.evaluation import Rival, evaluate, training_summary
from rgat.predictor.familiarity import TrainingRows, learn_familiarity
from rgat.predictor.fold_results import FoldResults, mean_known
from rgat.predictor.predictor import Predictor, make_predictor
from rgat.predictor.searching import OutOfTimeError, TimedSearch
from rgat.predictor.stages import COMPARISON, CROSS_VALIDATION, EVALUATION, SEARCH, TRAINING
from rgat.predictor.transfer import Start
from rgat.predictor.validation import make_folds, unlearned
from rgat.predictor.weighting import loss_weights
from rgat.progress import Show, Stages, Step
from rgat.training.checkpoint import digest
from rgat.training.configuration import Config, Settings, build_model, split_config, task_of
from rgat.training.loop import Data
from rgat.training.many import Job, bytes_needed, fit_many, members_that_fit
from rgat.training.metric import metric_name
from rgat.training.run import Epoch, Result
from rgat.training.task import graph_logits, node_logits


class Trainer:
    """Trains models on one data set; ``folder`` is where an interrupted fit resumes, ``start`` what it starts from."""

    def __init__(
        self,
        data: Data,
        folds: list[NodeData],
        device: torch.device,
        seed: int,
        stages: Stages,
        folder: Path | None,
        start: Start | None = None,
    ) -> None:
        self.start = start
        self.data, self.folds, self.device, self.seed, self.stages = data, folds, device, seed, stages
        self.folder, self.fold_results = folder, FoldResults(folder, data, seed)
        self.trained: dict[str, tuple[Model, Result]] = {}  # by configuration, on the validation part

    def with_data(self, data: Data, kind: str) -> Trainer:
        """Return a trainer of the same graphs with another kind of input, whose results are kept with the others."""
        if data is self.data:
            return self
        other = copy.copy(self)
        other.data, other.folds, other.trained = data, make_folds(data, self.seed), {}
        other.fold_results = self.fold_results.of(data, kind)
        return other

    def fit(self, config: Config, ensemble: int) -> tuple[Predictor, float]:
        """Return a predictor with its scores, and its validation score."""
        if CROSS_VALIDATION in self.stages.names and not self.folds:
            self.stages(CROSS_VALIDATION, 1.0, "not needed: there is a validation part")
        trained, results = self.train(config, ensemble, self.stages, self.folder if ensemble == 1 else None)
        self.stages(EVALUATION)
        predictor = make_predictor(trained, self.data)
        predictor.report.update(**evaluate(predictor, self.data))
        predictor.report["training"] = [training_summary(result) for result in results]
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
        if self.start is not None:
            self.start.take_over(models, config)
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
        """Return what a configuration of a search, one of so many, is compared by."""
        text = f"configuration {trial + 1} of {trials}"
        part = self.stages.part(SEARCH, trial / trials, (trial + 1) / trials, text)
        return self._compared_points(config, Stages(part, [CROSS_VALIDATION]))

    def search(
        self, config: Config, given: Mapping[str, Any], minutes: float, started: float, models: int
    ) -> tuple[Config, str]:
        """Search a configuration in time to train so many models after it; return it and a sentence about it."""

        def compared_points(config: Config, text: str, folds: Sequence[int], until: float | None) -> list[Epoch]:
            def show(step: Step) -> None:
                now = time.monotonic()
                if until is not None and now >= until:
                    raise OutOfTimeError
                self.stages(SEARCH, min(1.0, (now - started) / (60 * minutes)), text)

            self.trained.clear()  # hundreds of models would fill the memory
            return self._compared_points(config, Stages(show, [CROSS_VALIDATION]), folds)

        share = models / self.num_folds
        metric = None if self.data.values is None else metric_name(self.data.targets)
        timed = TimedSearch(task_of(self.data), config, given, self.num_folds, self.seed, share, metric)
        return timed.run(compared_points, minutes, started)

    def _compared_points(self, config: Config, stages: Stages, folds: Sequence[int] | None = None) -> list[Epoch]:
        """Train on folds; return a point of each learning curve, all at the epoch where the final training would end.

        The final training has no validation data that could choose an epoch. A search that compared the best epoch of
        each fold would prefer settings whose curves jump.
        """
        best, _ = self.cross_validate(config, stages, folds)
        if not self.folds:  # the final training stops by the validation part
            return best
        return self.fold_results.points_at(_final_epoch(best), config, folds or range(len(self.folds)))

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
        seeds = [self.seed + 1000 + fold for fold in chosen] if self.folds else [self.seed * 1000]
        models, results = self.run([datas[fold] for fold in chosen], config, settings, seeds, show)
        for fold, model, result in zip(chosen, models, results, strict=True):
            if not self.folds:
                self._keep_trained(config, model, result)
            data = self.folds[fold] if self.folds else None
            logits = None if data is None else node_logits(model, data, nodes=data.valid)
            distances = None if data is None else TrainingRows(model, data, self.seed).held_out()
            best = result.curve[result.best_epoch - 1]
            self.fold_results.add(config, fold, best, result.curve, logits, distances)
        self.fold_results.write()

    def _keep_trained(self, config: Config, model: Model, result: Result) -> None:
        """Keep a model of the validation part, of several the best and the RGCN, so that none is trained twice."""
        self.trained[digest(sorted(config.items()))] = model, result
        best = max(result.scores["valid"] for _, result in self.trained.values())
        self.trained = {
            key: (model, result)
            for key, (model, result) in self.trained.items()
            if result.scores["valid"] == best or isinstance(model.convs[0], RGCNConv)
        }

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
        calibration, best = None, list[Epoch]()
        if self.folds:
            best, logits = self.cross_validate(config, stages)
            # Each node is predicted by the model that did not learn from it.
            held_out = torch.cat([fold.valid for fold in self.folds])
            calibration = calibrate(torch.cat(logits), self.data, held_out, loss_weights(self.data, config))
            settings = dataclasses.replace(settings, max_epochs=_final_epoch(best), patience=None)
        key = digest(sorted(config.items()))
        known = self.trained.get(key)  # the first member, as a candidate or a rival
        members, results = ([], []) if known is None else ([known[0]], [known[1]])
        if len(members) < ensemble:
            stages(TRAINING)
            show, left = stages.part(TRAINING, 0.0, 1.0), seeds[len(members) :]
            trained = self.run([self.data] * len(left), config, settings, left, show, checkpoint)
            members, results = members + trained[0], results + trained[1]
            if known is None and isinstance(self.data, GraphData):
                self.trained[key] = members[0], results[0]
        if late := unlearned(results, best):
            longer = dataclasses.replace(settings, max_epochs=max(point.epoch for point in best))
            again = self.run([self.data] * len(late), config, longer, [seeds[-1] + 1 + member for member in late], show)
            for member, model, result in zip(late, *again, strict=True):
                members[member], results[member] = model, result
        return self._ensemble(members, config, calibration), results

    def _ensemble(self, members: list[Model], config: Config, calibration: Calibration | None = None) -> Ensemble:
        distances = self.fold_results.distances(config, len(self.folds)) if self.folds else None
        familiarity = learn_familiarity(members[0], self.data, self.seed, distances)
        return Ensemble(members, config, calibration or self._calibrate(members, config), {}, familiarity=familiarity)

    def train_rival(self, config: Config) -> Rival:
        """Train one model to compare with; raise if memory is short."""
        needed, free = bytes_needed(self._job(self.data, config)), free_memory(self.device)
        if needed > free and config.get("fanouts") is None:
            raise ValueError(f"it may take {needed / 2**30:.1f} GiB of memory, and {free / 2**30:.1f} GiB are free")
        names = [CROSS_VALIDATION, TRAINING] if self.folds else [TRAINING]
        ensemble, results = self.train(
            config, 1, Stages(self.stages.part(COMPARISON, 0.0, 1.0, config["model"]), names)
        )
        return Rival(ensemble, [training_summary(result) for result in results], self.valid_score(config, results))

    def valid_score(self, config: Config, results: Sequence[Result]) -> float:
        """Return the mean metric over the folds of cross-validation, or of the members on the validation part."""
        best = [found[0] for fold in range(len(self.folds)) if (found := self.fold_results.get(config, fold))]
        scores = [point.valid_metric for point in best] or [result.scores["valid"] for result in results]
        return mean_known(scores)

    def _calibrate(self, members: list[Model], config: Config) -> Calibration:
        """Calibrate on the validation part."""
        logits = torch.stack([self._valid_logits(member) for member in members]).mean(0)
        return calibrate(logits, self.data, self.data.valid, loss_weights(self.data, config))

    def _valid_logits(self, model: Model) -> Tensor:
        if isinstance(self.data, GraphData):
            return graph_logits(model, self.data.graphs, self.data.valid)
        return node_logits(model, self.data, nodes=self.data.valid)

    def held_out(self, config: Config, show: Show) -> tuple[Tensor, Tensor]:
        """Train on the folds, or on the training part; return the ids of held-out examples and their logits."""
        if self.folds:
            _, logits = self.cross_validate(config, Stages(show, [CROSS_VALIDATION]))
            return torch.cat([fold.valid for fold in self.folds]), torch.cat(logits)
        models, results = self.run([self.data], config, split_config(config)[1], [self.seed * 1000], show)
        self._keep_trained(config, models[0], results[0])
        return self.data.valid, self._valid_logits(models[0])


def _final_epoch(best: Sequence[Epoch]) -> int:
    """Return the number of epochs of the final training, from the best epochs of the folds."""
    return statistics.median_high([point.epoch for point in best])
