"""Fit a predictor: check the data, search if asked, train an ensemble, calibrate it and measure it on a test part.

A validation part, where there is one, stops the training early and calibrates the result. Where there is none (labelled
nodes are often few), cross-validation inside the training part finds the number of epochs and calibrates; the members
then learn from the whole training part. Test examples are used once, at the end.

Several processes that `torchrun` started run the same fit: they share each batch, or the graph, and get the
same predictor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from rgat.checks import check_count, check_seed
from rgat.data import GraphData, NodeData
from rgat.data import load as load_data
from rgat.predictor.choice import FIRST, candidates, choose, config_of, configure_for, number_of, with_inputs
from rgat.predictor.contributions import contributions
from rgat.predictor.described import AUTO, descriptor_contribution
from rgat.predictor.evaluation import compare, keep_best, where_validated
from rgat.predictor.fold_results import COMPARED, may_compare, mean_of
from rgat.predictor.inspection import check
from rgat.predictor.members import members_for, with_members
from rgat.predictor.predictor import NodePredictor, Predictor
from rgat.predictor.searching import check_minutes, search_trials
from rgat.predictor.stages import CHOICE, COMPARISON, CROSS_VALIDATION, EVALUATION, TRAINING, stage_names
from rgat.predictor.trainer import Trainer
from rgat.predictor.transfer import start_of, with_architecture
from rgat.predictor.validation import make_folds, with_validation
from rgat.predictor.weighting import choose_weights, take_auto
from rgat.progress import Progress, Stages, shown
from rgat.training.configuration import Config, task_of
from rgat.training.distributed import processes
from rgat.training.loop import Data


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
        trainer = Trainer(data, folds, torch.device(device), seed, stages, folder, start)
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
    trainer: Trainer, options: Mapping[str, Any], comparison: bool, descriptors: str
) -> tuple[Trainer, Config, dict[str, Any]]:
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
