"""Fit a predictor: check the data, search if asked, train an ensemble, calibrate it and measure it on a test part.

A validation part, where there is one, stops the training early and calibrates the result. Where there is none (labelled
nodes are often few), cross-validation inside the training part finds the number of epochs and calibrates; the members
then learn from the whole training part. Test examples are used once, at the end.

Several processes that `torchrun` started run the same fit: they share each batch, or the graph, and get the
same predictor.
"""

from __future__ import annotations

import copy
import dataclasses
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
from rgat.memory import free_memory
from rgat.models import Model
from rgat.nn import RGCNConv
from rgat.predictor.choice import FIRST, candidates, choose, config_of, configure_for, number_of, with_inputs
from rgat.predictor.contributions import contributions
from rgat.predictor.described import AUTO, descriptor_contribution
from rgat.predictor.ensemble import Calibration, Ensemble, calibrate
from rgat.predictor.evaluation import Rival, compare, evaluate, keep_best, training_summary, where_validated
from rgat.predictor.familiarity import TrainingRows, learn_familiarity
from rgat.predictor.fold_results import COMPARED, FoldResults, may_compare, mean_known, mean_of
from rgat.predictor.inspection import check
from rgat.predictor.members import members_for, with_members
from rgat.predictor.predictor import NodePredictor, Predictor, make_predictor
from rgat.predictor.searching import OutOfTimeError, TimedSearch, check_minutes, search_trials
from rgat.predictor.stages import CHOICE, COMPARISON, CROSS_VALIDATION, EVALUATION, SEARCH, TRAINING, stage_names
from rgat.predictor.transfer import Start, start_of, with_architecture
from rgat.predictor.validation import make_folds, unlearned, with_validation
from rgat.predictor.weighting import choose_weights, loss_weights, take_auto
from rgat.progress import Progress, Show, Stages, Step, shown
from rgat.training.checkpoint import digest
from rgat.training.configuration import Config, Settings, build_model, split_config, task_of
from rgat.training.distributed import processes
from rgat.training.loop import Data
from rgat.training.many import Job, bytes_needed, fit_many, members_that_fit
from rgat.training.metric import metric_name
from rgat.training.run import Epoch, Result
from rgat.training.task import graph_logits, node_logits


def fit(
    data: Data | str,
    *,
    ensemble: int | None = None,
    search: int = 0,
    minutes: float | None = None,
    seed: int = 0,
    comparison: bool = True,
    descriptors: str = AUTO,
    start_from: Predictor | None = None,
    freeze: bool = False,
    device: torch.device | str = "cpu",
    progress: Progress = False,
    checkpoint: str | Path | None = None,
    keep: Callable[[Predictor], None] | None = None,
    **options: Any,
) -> Predictor:
    """Fit a predictor to labelled nodes or graphs; the defaults are meant to work.

    Validation chooses what is not given (`rgat.predictor.choice`): the input of a graph that `rgat.data.from_rdf` read
    with features "auto", and the model; for molecules, the descriptors beside the graph.

    Args:
        data: what `rgat.data.from_rdf` or `rgat.data.from_smiles` returns, or the name of a data set.
        ensemble: number of models, with different seeds, whose outputs are averaged; by default one or, after a
            comparison on few molecules, three (`rgat.predictor.members`).
        search: number of configurations to try first, on validation data; 0 takes the given or default one.
        minutes: for the whole fit, instead of ``search``: configurations of all models are tried on validation data
            as long as time is left for the training that follows (`rgat.predictor.searching`).
        seed: the seed of everything random.
        comparison: compare inputs and models, and train simpler systems on the same split, for the predictor's
            ``report``; several processes leave this out. For graphs: if one of these, an RGCN, has a higher validation
            score, it becomes the predictor, unless ``model`` is given or ``ensemble`` is above 1.
        descriptors: what a model of molecules reads beside the graph: "none", "rdkit" (descriptors of RDKit), "morgan"
            (bits of the Morgan fingerprint), "both", or "auto": whatever has the highest validation score; without a
            comparison, and for more than 50,000 training molecules, none.
        start_from: a model of other molecules, whose relational layers are the first values of this one's; its
            dense layers are new.
        freeze: leave these relational layers as they are, and learn the dense layers alone.
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
    number, ensemble = members_for(data, ensemble, comparison), ensemble or 1
    check_seed(seed)
    check_count("search", search, least=0)
    started = check_minutes(minutes, search)
    check(data)
    start = start_of(data, start_from, freeze)
    is_auto, options = take_auto(data, with_architecture(options, start))
    config = configure_for(data, options)
    data = with_validation(data, config, seed)
    folder = None if checkpoint is None else Path(checkpoint)
    folds = make_folds(data, seed)
    given = options if minutes is None else {"model": FIRST} | options  # a search in minutes tries all models
    chooses = comparison and may_compare(folder)
    has_choice = number_of(*candidates(data, given, len(folds), chooses, descriptors)) > 0
    names = stage_names(bool(search or minutes), bool(folds), comparison, has_choice)
    with shown(progress if processes().rank == 0 else False, names) as stages:
        trainer = _Trainer(data, folds, torch.device(device), seed, stages, folder, start)
        asked: dict[str, Any] = {"seed": seed, "ensemble": number, "search": search}
        asked |= {"minutes": minutes} if minutes else {}
        asked |= {"class_weights": "auto"} if is_auto else {}
        asked |= {"descriptors": descriptors} if descriptors != AUTO else {}
        asked |= {} if start is None else {"start_from": start.identity}
        asked |= {COMPARED: True} if has_choice else {}
        trainer.fold_results.check_same_fit(config | asked)
        trainer, config, found = _choose(trainer, given, chooses, descriptors)
        data = trainer.data
        if is_auto:
            config, found["class_weights"] = choose_weights(data, config, trainer.held_out, stages.part(TRAINING, 0, 0))
            options = options | {"class_weights": config["class_weights"]}
        if search:
            config = search_trials(trainer.try_config, task_of(data), config, options, search, seed)
        if minutes is not None:
            models = number + (COMPARISON in names) * (trainer.num_folds + 1)
            config, found["searched"] = trainer.search(config, options, minutes, started, models)
        predictor, valid = trainer.fit(config, ensemble)
        predictor.report.update(seed=seed, ensemble=ensemble, search=search, **found)
        predictor.report.update({} if start is None else start.report)
        if keep is not None:
            keep(predictor)
        if isinstance(data, NodeData) and isinstance(predictor, NodePredictor) and processes().number == 1:
            predictor.report.update(contributions(predictor, data, seed, stages.part(EVALUATION, 0.0, 1.0)))
        if comparison and processes().number == 1:
            tell = partial(stages, COMPARISON, 0.0)
            predictor.report["comparison"], rival = compare(data, config, seed, trainer.train_rival, tell)
            if rival is not None and ("choice" not in found or isinstance(data, GraphData)):
                predictor = keep_best(predictor, rival, data, valid, ensemble == 1 and "model" not in options)
        if number > ensemble:
            part = Stages(stages.part(COMPARISON, 0.0, 1.0, f"{number} members"), [TRAINING])
            predictor = with_members(predictor, data, number, partial(trainer.train, stages=part))
        if isinstance(data, GraphData):
            predictor.report.update(descriptor_contribution(predictor, data, seed))
        trainer.fold_results.remove()
        return predictor


def _choose(
    trainer: _Trainer, options: Mapping[str, Any], comparison: bool, descriptors: str
) -> tuple[_Trainer, Config, dict[str, Any]]:
    """Return the trainer of the chosen input, the chosen configuration, and what the report says of the choice."""
    data, stages = trainer.data, trainer.stages
    inputs, models = candidates(data, options, len(trainer.folds), comparison, descriptors)
    total = number_of(inputs, models)
    if not total and CHOICE in stages.names:
        stages(CHOICE, 1.0, "not needed: input and model are given")
    datas = with_inputs(data, inputs)
    trainers = {kind: trainer.with_data(datas[kind], kind) for kind in inputs}
    if not total:
        return trainers[inputs[0]], config_of(inputs[0], models[0], datas[inputs[0]], options), {}

    def score_of(kind: str, config: Config, number: int) -> tuple[list[float], float]:
        text = f"{number} of {total}: {kind}, {config['model']}"
        part = stages.part(CHOICE, (number - 1) / total, number / total, text)
        best, _ = trainers[kind].cross_validate(config, Stages(part, [CROSS_VALIDATION]))
        return [point.valid_metric for point in best], mean_of(best, "valid_loss")

    choice = choose(datas, options, models, score_of)
    record = {"on": where_validated(data), "input": choice.input, "model": choice.config["model"]}
    return trainers[choice.input], choice.config, {"choice": record | {"candidates": choice.rows}}


class _Trainer:
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

    def with_data(self, data: Data, kind: str) -> _Trainer:
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

            self.trained.clear()  # hundreds of models would fill the memory
            return self.cross_validate(config, Stages(show, [CROSS_VALIDATION]), folds)[0]

        share = models / self.num_folds
        metric = None if self.data.values is None else metric_name(self.data.targets)
        timed = TimedSearch(task_of(self.data), config, given, self.num_folds, self.seed, share, metric)
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
        seeds = [self.seed + 1000 + fold for fold in chosen] if self.folds else [self.seed * 1000]
        models, results = self.run([datas[fold] for fold in chosen], config, settings, seeds, show)
        for fold, model, result in zip(chosen, models, results, strict=True):
            if not self.folds:
                self._keep_trained(config, model, result)
            data = self.folds[fold] if self.folds else None
            logits = None if data is None else node_logits(model, data, nodes=data.valid)
            distances = None if data is None else TrainingRows(model, data, self.seed).held_out()
            self.fold_results.add(config, fold, result.curve[result.best_epoch - 1], logits, distances)

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
            epochs = statistics.median_high([point.epoch for point in best])
            settings = dataclasses.replace(settings, max_epochs=epochs, patience=None)
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
