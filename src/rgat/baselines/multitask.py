"""Multitask (Ramsundar et al., 2015), a hidden layer on fingerprints, and its extension Bypass (Wu et al., 2018)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from rgat.baselines.molecules import FINGERPRINTS, fingerprints, train
from rgat.baselines.outcome import Outcome
from rgat.data import GraphData

WEIGHT_STD, HIDDEN_BIAS = 0.02, 1.0  # MoleculeNet's: every unit is active at first


class Multitask(nn.Module):
    r"""A hidden layer shared by all tasks, $z = \mathrm{dropout}(\mathrm{ReLU}(x W + b))$; logits linear in z."""

    def __init__(self, in_channels: int, num_tasks: int, hidden_channels: int, dropout: float = 0.5) -> None:
        super().__init__()
        self.num_tasks = num_tasks
        self.hidden = _hidden_layer(in_channels, hidden_channels)
        self.dropout = nn.Dropout(dropout)
        self.out = _hidden_layer(hidden_channels, 2 * num_tasks)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits ``[n, tasks, 2]``."""
        z = self.dropout(torch.relu(self.hidden(x)))
        logits: Tensor = self.out(z)
        return logits.view(-1, self.num_tasks, 2)


class Bypass(nn.Module):
    r"""A shared hidden layer, and beside it one hidden layer per task.

    $$
    z = \mathrm{ReLU}(x W + b), \qquad z_t = \mathrm{ReLU}(x W_t + b_t),
    $$

    both after dropout; the two logits of task $t$ are linear in $z \oplus z_t$.
    """

    def __init__(
        self, in_channels: int, num_tasks: int, hidden_channels: int, bypass_channels: int, dropout: float = 0.5
    ) -> None:
        super().__init__()
        self.shared = _hidden_layer(in_channels, hidden_channels)
        self.own = _hidden_layer(in_channels, num_tasks * bypass_channels)
        self.dropout = nn.Dropout(dropout)
        self.weight = nn.Parameter(torch.empty(num_tasks, hidden_channels + bypass_channels, 2))
        self.bias = nn.Parameter(torch.zeros(num_tasks, 2))
        _init_weight(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits ``[n, tasks, 2]``."""
        num_tasks, width, _ = self.weight.shape
        shared = self.dropout(torch.relu(self.shared(x)))  # [n, hidden]
        own = self.dropout(torch.relu(self.own(x))).view(len(x), num_tasks, -1)  # [n, tasks, bypass]
        first, second = torch.split(self.weight, [shared.shape[1], width - shared.shape[1]], dim=1)
        return torch.einsum("nh,thc->ntc", shared, first) + torch.einsum("ntb,tbc->ntc", own, second) + self.bias


def _hidden_layer(in_channels: int, out_channels: int) -> nn.Linear:
    layer = nn.Linear(in_channels, out_channels)
    _init_weight(layer.weight)
    nn.init.constant_(layer.bias, HIDDEN_BIAS)
    return layer


def _init_weight(weight: Tensor) -> None:
    nn.init.trunc_normal_(weight, std=WEIGHT_STD, a=-2 * WEIGHT_STD, b=2 * WEIGHT_STD)


def _run(
    network: Callable[..., nn.Module],
    options: dict[str, Any],
    training: dict[str, Any],
    data: GraphData,
    seed: int = 0,
    **settings: Any,
) -> Outcome:
    """Train a network with MoleculeNet's settings for Tox21, except those in ``settings``."""
    bits = fingerprints(data)
    build = partial(network, bits.shape[1], len(data.tasks))
    outcome = train(build, bits.__getitem__, data, seed, options, training, **settings)
    return replace(outcome, config=outcome.config | FINGERPRINTS)


run = partial(
    _run,
    Multitask,
    {"hidden_channels": 3179, "dropout": 0.5},
    {"learning_rate": 0.002182, "batch_size": 121, "epochs": 10, "weight_l2": 0.0583},
)
run_bypass = partial(
    _run,
    Bypass,
    {"hidden_channels": 817, "bypass_channels": 160, "dropout": 0.5},
    {"learning_rate": 0.000797, "batch_size": 90, "epochs": 10, "weight_l2": 0.0316},
)
