"""Training of the molecule networks: Adam, a fixed number of epochs, weighted cross-entropy; nothing is selected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from rgat.baselines.outcome import Outcome
from rgat.data import GraphData
from rgat.data.dataset import PARTS
from rgat.training import balanced_class_weights, multi_task_cross_entropy

SELECTED_ON = "nothing: the settings and the number of epochs are those of MoleculeNet"


def train(
    build: Callable[[], nn.Module],
    data: GraphData,
    inputs: Callable[[Tensor], tuple[Any, ...]],
    seed: int,
    *,
    learning_rate: float,
    batch_size: int,
    epochs: int,
    weight_l2: float = 0.0,
    on_epoch: Callable[[int, float], None] | None = None,
    **config: Any,
) -> Outcome:
    """Train a network and return its outputs.

    Args:
        build: makes the network; its parameters are drawn from ``seed``, as are dropout and the order of batches.
        data: what to learn from.
        inputs: maps ids of graphs to the arguments of the network, which returns logits ``[n, tasks, 2]``.
        seed: see above.
        learning_rate: of Adam.
        batch_size: graphs per step.
        epochs: how often every training graph is seen.
        weight_l2: coefficient of half the sum of squares of all weight matrices.
        on_epoch: called after every epoch with its number and mean loss.
        **config: further settings, for the record.
    """
    class_weights = balanced_class_weights(data.labels[data.train])
    losses: list[float] = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = build()
        optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
        for epoch in range(1, epochs + 1):
            model.train()
            total = 0.0
            for ids in torch.split(data.train[torch.randperm(len(data.train))], batch_size):
                loss = multi_task_cross_entropy(model(*inputs(ids)), data.labels[ids], class_weights)
                loss = loss + weight_l2 * _half_squares(model)
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                total += float(loss.detach()) * len(ids)
            losses.append(total / max(len(data.train), 1))
            if on_epoch is not None:
                on_epoch(epoch, losses[-1])
    settings = {"learning_rate": learning_rate, "batch_size": batch_size, "epochs": epochs, "weight_l2": weight_l2}
    return Outcome(
        config=config | settings,
        selected_on=SELECTED_ON,
        logits={part: predict(model, inputs, getattr(data, part)) for part in PARTS},
        best_epoch=epochs,
        train_loss=losses,
    )


def predict(model: nn.Module, inputs: Callable[[Tensor], tuple[Any, ...]], graphs: Tensor) -> Tensor:
    """Logits of the given graphs."""
    model.eval()
    with torch.no_grad():
        return torch.cat([model(*inputs(ids)) for ids in torch.split(graphs, 256)])


def _half_squares(model: nn.Module) -> Tensor:
    squares = [parameter.square().sum() for parameter in model.parameters() if parameter.dim() > 1]
    return torch.stack(squares).sum() / 2
