"""Train the molecule networks: Adam, a fixed number of epochs, weighted cross-entropy; nothing is selected."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from rgat.baselines.outcome import Outcome
from rgat.checks import check_word
from rgat.data import GraphData
from rgat.data.dataset import PARTS
from rgat.training import balanced_class_weights, multi_task_cross_entropy

SELECTED_ON = "nothing: the settings and the number of epochs are those of MoleculeNet"
Inputs = Callable[[Tensor], Any]


def train(
    build: Callable[..., nn.Module],
    inputs: Inputs,
    data: GraphData,
    seed: int,
    options: Mapping[str, Any],
    training: Mapping[str, Any],
    on_epoch: Callable[[int, float], None] | None = None,
    **settings: Any,
) -> Outcome:
    """Train a network and return its outputs.

    Args:
        build: returns the network for its options.
        inputs: maps ids of graphs to the argument of the network, which returns logits ``[n, tasks, 2]``.
        data: the molecules and their labels.
        seed: seed of the parameters, dropout and the order of batches.
        options: default options of the network.
        training: default ``learning_rate``, ``batch_size``, ``epochs`` and ``weight_l2``, the coefficient of half the
            sum of squares of all weight matrices.
        on_epoch: called after every epoch with its number and mean loss.
        **settings: options and training settings that replace the defaults.
    """
    for name in settings:
        check_word("setting", name, (*options, *training))
    config = {**options, **training, **settings}
    class_weights = balanced_class_weights(data.labels[data.train])
    losses: list[float] = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = build(**{name: config[name] for name in options})
        optimizer = torch.optim.Adam(model.parameters(), lr=config["learning_rate"])
        for epoch in range(1, config["epochs"] + 1):
            model.train()
            total = 0.0
            for ids in torch.split(data.train[torch.randperm(len(data.train))], config["batch_size"]):
                loss = multi_task_cross_entropy(model(inputs(ids)), data.labels[ids], class_weights)
                loss = loss + config["weight_l2"] * _half_squares(model)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += float(loss.detach()) * len(ids)
            losses.append(total / max(len(data.train), 1))
            if on_epoch is not None:
                on_epoch(epoch, losses[-1])
    return Outcome(
        config=config,
        selected_on=SELECTED_ON,
        logits={part: predict(model, inputs, getattr(data, part)) for part in PARTS},
        best_epoch=config["epochs"],
        train_loss=losses,
    )


def predict(model: nn.Module, inputs: Inputs, graphs: Tensor) -> Tensor:
    """Return the logits of the graphs with these ids."""
    model.eval()
    with torch.no_grad():
        return torch.cat([model(inputs(ids)) for ids in torch.split(graphs, 256)])


def _half_squares(model: nn.Module) -> Tensor:
    squares = [parameter.square().sum() for parameter in model.parameters() if parameter.dim() > 1]
    return torch.stack(squares).sum() / 2
