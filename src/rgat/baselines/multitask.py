"""Multitask (Ramsundar et al., 2015): one hidden layer on fingerprints, shared by all tasks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rgat.baselines.fingerprints import NUM_BITS, RADIUS, fingerprints
from rgat.baselines.network import train
from rgat.baselines.outcome import Outcome
from rgat.data import GraphData

WEIGHT_STD, HIDDEN_BIAS = 0.02, 1.0  # MoleculeNet's: a unit begins open for every molecule
SETTINGS: dict[str, Any] = {"learning_rate": 0.002182, "batch_size": 121, "epochs": 10, "weight_l2": 0.0583}


def hidden_layer(in_channels: int, out_channels: int) -> nn.Linear:
    """A layer with MoleculeNet's first weights."""
    layer = nn.Linear(in_channels, out_channels)
    nn.init.trunc_normal_(layer.weight, std=WEIGHT_STD, a=-2 * WEIGHT_STD, b=2 * WEIGHT_STD)
    nn.init.constant_(layer.bias, HIDDEN_BIAS)
    return layer


class Multitask(nn.Module):
    r""":math:`z = \mathrm{dropout}(\mathrm{ReLU}(x W + b))`, then two logits per task, linear in :math:`z`.

    Args:
        in_channels: number of bits.
        num_tasks: number of tasks.
        hidden_channels: units of the hidden layer.
        dropout: rate at which hidden units are dropped, in training.
    """

    def __init__(self, in_channels: int, num_tasks: int, hidden_channels: int = 3179, dropout: float = 0.5) -> None:
        super().__init__()
        self.num_tasks = num_tasks
        self.hidden = hidden_layer(in_channels, hidden_channels)
        self.dropout = nn.Dropout(dropout)
        self.out = hidden_layer(hidden_channels, 2 * num_tasks)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits ``[n, tasks, 2]``."""
        z = self.dropout(torch.relu(self.hidden(x)))
        logits: Tensor = self.out(z)
        return logits.view(-1, self.num_tasks, 2)


def run(
    data: GraphData, seed: int = 0, *, hidden_channels: int = 3179, dropout: float = 0.5, **settings: Any
) -> Outcome:
    """Train with MoleculeNet's settings for Tox21, unless told otherwise."""
    bits = fingerprints(data)
    return train(
        lambda: Multitask(bits.shape[1], len(data.tasks), hidden_channels, dropout),
        data,
        lambda ids: (bits[ids],),
        seed,
        **SETTINGS | settings,
        hidden_channels=hidden_channels,
        dropout=dropout,
        num_bits=NUM_BITS,
        radius=RADIUS,
    )
