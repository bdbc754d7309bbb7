"""GraphConv (Altae-Tran et al., 2016): graph convolutions with one kernel per node degree."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rgat.baselines.molecules import train
from rgat.baselines.outcome import Outcome
from rgat.data import GraphData, GraphStore
from rgat.nn.kernels import glorot_uniform_

MAX_DEGREE = 10
OPTIONS = {"hidden_channels": 107, "dense_channels": 148}
TRAINING = {"learning_rate": 0.000532, "batch_size": 44, "epochs": 15, "weight_l2": 0.0}


class Molecules(NamedTuple):
    """A batch: the features of all atoms, all bonds in both directions, and the molecule of each atom."""

    x: Tensor  # [N, F]
    source: Tensor  # [E]
    target: Tensor  # [E]
    molecule: Tensor  # [N]
    node_ptr: Tensor  # [n + 1] first atom of each molecule


def batch_molecules(store: GraphStore, ids: Tensor) -> Molecules:
    """Return a batch of the graphs with these ids, without self-loops."""
    chosen = store.select(ids)
    source, target = chosen.edge_index
    bonds = source != target
    molecule = torch.arange(len(ids)).repeat_interleave(chosen.node_ptr.diff())
    return Molecules(chosen.x, source[bonds], target[bonds], molecule, chosen.node_ptr)


class DegreeConv(nn.Module):
    r"""A convolution with kernels for each degree (the unnumbered equation of the paper's section 3.1).

    $$
    h'_i = h_i W^{(\deg i)} + \sum_{j \in \mathcal{N}_i} h_j U^{(\deg i)} + b^{(\deg i)}.
    $$

    Nodes with a degree above ``max_degree`` use the kernels of ``max_degree``; nodes without neighbours use no ``U``.
    """

    def __init__(self, in_channels: int, out_channels: int, max_degree: int = MAX_DEGREE) -> None:
        super().__init__()
        self.max_degree = max_degree
        self.own = nn.Parameter(torch.empty(max_degree + 1, in_channels, out_channels))  # W, degrees from 0
        self.neighbour = nn.Parameter(torch.empty(max_degree, in_channels, out_channels))  # U, degrees from 1
        self.bias = nn.Parameter(torch.zeros(max_degree + 1, out_channels))
        for kernel in (self.own, self.neighbour):
            glorot_uniform_(kernel, in_channels + out_channels)

    def forward(self, x: Tensor, source: Tensor, target: Tensor) -> Tensor:
        """Map ``[N, F]`` to ``[N, D]``."""
        degree = torch.bincount(target, minlength=len(x)).clamp(max=self.max_degree)
        total = torch.zeros_like(x).index_add(0, target, x.index_select(0, source))
        order = degree.argsort(stable=True)
        sizes = torch.bincount(degree, minlength=self.max_degree + 1).tolist()
        parts = []
        both = torch.cat([x, total], dim=1).index_select(0, order)
        for d, rows in enumerate(torch.split(both, sizes)):
            if len(rows):
                kernel = self.own[d] if d == 0 else torch.cat([self.own[d], self.neighbour[d - 1]])
                parts.append(torch.addmm(self.bias[d], rows[:, : len(kernel)], kernel))
        out = torch.cat(parts) if parts else x.new_zeros(0, self.bias.shape[1])
        return torch.zeros_like(out).index_copy(0, order, out)


def max_pool(x: Tensor, source: Tensor, target: Tensor) -> Tensor:
    """Return the maximum of each feature over a node and its neighbours."""
    index = target.unsqueeze(1).expand(-1, x.shape[1])
    return x.scatter_reduce(0, index, x.index_select(0, source), "amax")


class GraphConv(nn.Module):
    r"""Two degree-specific convolutions of atoms, a dense layer, and the sum over a molecule's atoms.

    $$
    h^{(l)} = \mathrm{pool}(\mathrm{norm}(\mathrm{ReLU}(\mathrm{DegreeConv}(h^{(l-1)})))), \quad l = 1, 2, \qquad
    z = \tanh \sum_i \mathrm{norm}(\mathrm{ReLU}(\mathrm{Dense}(h^{(2)}_i))),
    $$

    and logits linear in $z$; ``norm`` is layer normalisation.
    """

    def __init__(self, in_channels: int, num_tasks: int, hidden_channels: int, dense_channels: int) -> None:
        super().__init__()
        self.num_tasks = num_tasks
        self.convs = nn.ModuleList(DegreeConv(width, hidden_channels) for width in (in_channels, hidden_channels))
        self.norms = nn.ModuleList(nn.LayerNorm(hidden_channels) for _ in self.convs)
        self.dense = nn.Linear(hidden_channels, dense_channels)
        self.dense_norm = nn.LayerNorm(dense_channels)
        self.out = nn.Linear(dense_channels, 2 * num_tasks)

    def forward(self, batch: Molecules) -> Tensor:
        """Return logits ``[n, tasks, 2]``."""
        x, bonds = batch.x, (batch.source, batch.target)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = max_pool(norm(torch.relu(conv(x, *bonds))), *bonds)
        x = self.dense_norm(torch.relu(self.dense(x)))
        z = torch.tanh(x.new_zeros(len(batch.node_ptr) - 1, x.shape[1]).index_add(0, batch.molecule, x))
        logits: Tensor = self.out(z)
        return logits.view(-1, self.num_tasks, 2)


def run(data: GraphData, seed: int = 0, **settings: Any) -> Outcome:
    """Train with MoleculeNet's settings for Tox21, except those in ``settings``."""
    build, inputs = partial(GraphConv, data.in_channels, len(data.tasks)), partial(batch_molecules, data.graphs)
    outcome = train(build, inputs, data, seed, OPTIONS, TRAINING, **settings)
    return replace(outcome, config=outcome.config | {"max_degree": MAX_DEGREE})
