"""Bypass (Wu et al., 2018): the multitask network with a hidden layer for each task beside the shared one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rgat.baselines.fingerprints import NUM_BITS, RADIUS, fingerprints
from rgat.baselines.multitask import WEIGHT_STD, hidden_layer
from rgat.baselines.network import train
from rgat.baselines.outcome import Outcome
from rgat.data import GraphData

SETTINGS: dict[str, Any] = {"learning_rate": 0.000797, "batch_size": 90, "epochs": 10, "weight_l2": 0.0316}


class Bypass(nn.Module):
    r"""A shared layer, and for each task a layer of its own, both straight from the fingerprint.

    .. math::
        z = \mathrm{ReLU}(x W + b), \qquad z_t = \mathrm{ReLU}(x W_t + b_t),

    both after dropout; the two logits of task :math:`t` are linear in :math:`z \oplus z_t`. What the shared layer does
    not keep can go around it.

    Args:
        in_channels: number of bits.
        num_tasks: number of tasks.
        hidden_channels: units of the shared layer.
        bypass_channels: units of each task's own layer.
        dropout: rate at which hidden units are dropped, in training.
    """

    def __init__(
        self,
        in_channels: int,
        num_tasks: int,
        hidden_channels: int = 817,
        bypass_channels: int = 160,
        dropout: float = 0.5,
    ) -> None:
        super().__init__()
        self.shared = hidden_layer(in_channels, hidden_channels)
        self.own = hidden_layer(in_channels, num_tasks * bypass_channels)
        self.dropout = nn.Dropout(dropout)
        self.weight = nn.Parameter(torch.empty(num_tasks, hidden_channels + bypass_channels, 2))
        self.bias = nn.Parameter(torch.zeros(num_tasks, 2))
        nn.init.trunc_normal_(self.weight, std=WEIGHT_STD, a=-2 * WEIGHT_STD, b=2 * WEIGHT_STD)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits ``[n, tasks, 2]``."""
        num_tasks, width, _ = self.weight.shape
        shared = self.dropout(torch.relu(self.shared(x)))  # [n, hidden]
        own = self.dropout(torch.relu(self.own(x))).view(len(x), num_tasks, -1)  # [n, tasks, bypass]
        first, second = torch.split(self.weight, [shared.shape[1], width - shared.shape[1]], dim=1)
        return torch.einsum("nh,thc->ntc", shared, first) + torch.einsum("ntb,tbc->ntc", own, second) + self.bias


def run(
    data: GraphData,
    seed: int = 0,
    *,
    hidden_channels: int = 817,
    bypass_channels: int = 160,
    dropout: float = 0.5,
    **settings: Any,
) -> Outcome:
    """Train with MoleculeNet's settings for Tox21, unless told otherwise."""
    bits = fingerprints(data)
    return train(
        lambda: Bypass(bits.shape[1], len(data.tasks), hidden_channels, bypass_channels, dropout),
        data,
        lambda ids: (bits[ids],),
        seed,
        **SETTINGS | settings,
        hidden_channels=hidden_channels,
        bypass_channels=bypass_channels,
        dropout=dropout,
        num_bits=NUM_BITS,
        radius=RADIUS,
    )
