"""Weave (Kearnes et al., 2016): a network on atoms and pairs of atoms, which update each other."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rgat.baselines.atom_pairs import Pairs, PairStore, store_pairs
from rgat.baselines.network import train
from rgat.baselines.outcome import Outcome
from rgat.data import GraphData, GraphStore
from rgat.nn.normalisation import normalise

# Mean and standard deviation of the histogram's bins, which divide a normal distribution into equal shares.
_RIGHT_BINS = ((0.228, 0.114), (0.468, 0.118), (0.739, 0.134), (1.080, 0.170), (1.645, 0.283))
BINS = (*((-mean, deviation) for mean, deviation in reversed(_RIGHT_BINS)), (0.0, 0.114), *_RIGHT_BINS)
SMALLEST_LOGIT = -50.0  # of a membership, relative to the largest; below it are denormal numbers, slow on a CPU
OPTIONS = {"hidden_channels": 50, "dense_channels": 211}
TRAINING = {"learning_rate": 0.0005, "batch_size": 112, "epochs": 40, "weight_l2": 0.0}


class Batch(NamedTuple):
    """All atoms of a batch, the molecule of each, and all pairs of atoms in a molecule."""

    x: Tensor  # [N, F]
    molecule: Tensor  # [N]
    num_molecules: int
    pairs: Pairs


def batch_molecules(store: GraphStore, pairs: PairStore, ids: Tensor) -> Batch:
    """Return a batch of the graphs with these ids."""
    chosen = store.select(ids)
    molecule = torch.arange(len(ids)).repeat_interleave(chosen.node_ptr.diff())
    return Batch(chosen.x, molecule, len(ids), pairs.batch(ids, chosen.node_ptr))


class WeaveAtoms(nn.Module):
    r"""Update atoms from atoms and from their pairs.

    .. math::
        a'_i = \mathrm{ReLU}\big(\big[\mathrm{ReLU}(a_i W_{AA}) \oplus
        \textstyle\sum_j \mathrm{ReLU}(p_{ij} W_{PA})\big] W_A\big), \qquad \text{each } W \text{ with a bias.}

    Args:
        atom_channels: number of features of atoms.
        pair_channels: number of features of pairs.
        out_channels: units of each of the three layers.
    """

    def __init__(self, atom_channels: int, pair_channels: int, out_channels: int) -> None:
        super().__init__()
        self.from_atoms = _dense(atom_channels, out_channels)
        self.from_pairs = _dense(pair_channels, out_channels)
        self.merge = _dense(2 * out_channels, out_channels)

    def forward(self, atoms: Tensor, pair_sum: Tensor) -> Tensor:
        """Map atoms ``[N, F]`` and sums over their pairs ``[N, D]`` to ``[N, D]``."""
        return torch.relu(self.merge(torch.cat([torch.relu(self.from_atoms(atoms)), pair_sum], dim=1)))


class WeavePairs(nn.Module):
    r"""Update pairs from their two atoms, in both orders, and from pairs.

    .. math::
        p'_{ij} = \mathrm{ReLU}\big(\big[\mathrm{ReLU}([a_i \oplus a_j] W_{AP}) + \mathrm{ReLU}([a_j \oplus a_i] W_{AP})
        \oplus \mathrm{ReLU}(p_{ij} W_{PP})\big] W_P\big).

    The result is the same for :math:`ij` and :math:`ji`, so only one of them is computed.

    Args:
        atom_channels: number of features of atoms.
        pair_channels: number of features of pairs.
        out_channels: units of each of the three layers.
    """

    def __init__(self, atom_channels: int, pair_channels: int, out_channels: int) -> None:
        super().__init__()
        self.from_atoms = _dense(2 * atom_channels, out_channels)
        self.from_pairs = _dense(pair_channels, out_channels)
        self.merge = _dense(2 * out_channels, out_channels)

    def forward(self, atoms: Tensor, pairs: Pairs) -> Tensor:
        """Return the updated pairs ``[P, D]``."""
        # A product of concatenated inputs is a sum of products, each computed once per atom or pattern.
        first, second = torch.split(self.from_atoms.weight, atoms.shape[1], dim=1)
        left, right = torch.addmm(self.from_atoms.bias, atoms, first.t()), atoms @ second.t()
        here, there = (torch.cat([left, right], dim=1).index_select(0, side) for side in (pairs.first, pairs.second))
        width = left.shape[1]
        both = torch.relu(here[:, :width] + there[:, width:]) + torch.relu(there[:, :width] + here[:, width:])
        of_atoms, of_pairs = torch.split(self.merge.weight, width, dim=1)
        table = torch.addmm(self.merge.bias, torch.relu(self.from_pairs(pairs.patterns)), of_pairs.t())
        return torch.relu(torch.addmm(table.index_select(0, pairs.pattern), both, of_atoms.t()))


class Histogram(nn.Module):
    """The sum over a molecule's atoms of each feature's membership in eleven Gaussian bins."""

    means: Tensor
    factors: Tensor

    def __init__(self) -> None:
        super().__init__()
        means, deviations = torch.tensor(BINS).t()
        self.register_buffer("means", means.view(-1, 1, 1))
        self.register_buffer("factors", (-0.5 / deviations**2).view(-1, 1, 1))

    def forward(self, x: Tensor, molecule: Tensor, num_molecules: int) -> Tensor:
        """Map ``[N, F]`` to ``[G, 11 F]``; the memberships of a feature sum to one."""
        logits = self.factors * (x - self.means).square()  # [11, N, F]
        memberships = torch.softmax((logits - logits.detach().amax(0)).clamp(min=SMALLEST_LOGIT), dim=0)
        sums = x.new_zeros(len(BINS), num_molecules, x.shape[1]).index_add(1, molecule, memberships)
        return sums.permute(1, 2, 0).flatten(1)


class Weave(nn.Module):
    r"""Two weave layers, a dense layer, the histogram of each molecule's atoms, another dense layer.

    .. math::
        z = \tanh(\mathrm{Dense}(\mathrm{Histogram}(\mathrm{norm}(\tanh(\mathrm{Dense}(a^{(2)})))))),

    and logits linear in :math:`z`; ``norm`` is batch normalisation. Pairs are updated once, because the second update
    would not be used.

    Args:
        atom_channels: number of features of atoms.
        pair_channels: number of features of pairs.
        num_tasks: number of tasks.
        hidden_channels: units of the weave layers.
        dense_channels: units of the dense layers.
    """

    def __init__(
        self, atom_channels: int, pair_channels: int, num_tasks: int, hidden_channels: int, dense_channels: int
    ) -> None:
        super().__init__()
        self.num_tasks = num_tasks
        self.atoms1 = WeaveAtoms(atom_channels, pair_channels, hidden_channels)
        self.pairs1 = WeavePairs(atom_channels, pair_channels, hidden_channels)
        self.atoms2 = WeaveAtoms(hidden_channels, hidden_channels, hidden_channels)
        self.dense1 = _dense(hidden_channels, dense_channels)
        self.norm = nn.BatchNorm1d(dense_channels)  # the bins need features of mean 0 and variance 1
        self.histogram = Histogram()
        self.dense2 = _dense(len(BINS) * dense_channels, dense_channels)
        self.out = _dense(dense_channels, 2 * num_tasks)

    def forward(self, batch: Batch) -> Tensor:
        """Return logits ``[n, tasks, 2]``."""
        x, pairs = batch.x, batch.pairs
        # In the first layer all pairs of a pattern are equal: transform each pattern once and weight it by its count.
        sums = pairs.pattern_counts(len(x)) @ torch.relu(self.atoms1.from_pairs(pairs.patterns))
        atoms = self.atoms1(x, sums)
        messages = torch.relu(self.atoms2.from_pairs(self.pairs1(x, pairs)))
        atoms = self.atoms2(atoms, pairs.sum_per_atom(messages, len(x)))
        atoms = normalise(self.norm, torch.tanh(self.dense1(atoms)))
        z = torch.tanh(self.dense2(self.histogram(atoms, batch.molecule, batch.num_molecules)))
        logits: Tensor = self.out(z)
        return logits.view(-1, self.num_tasks, 2)


def _dense(in_channels: int, out_channels: int) -> nn.Linear:
    layer = nn.Linear(in_channels, out_channels)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def run(data: GraphData, seed: int = 0, **settings: Any) -> Outcome:
    """Train with MoleculeNet's settings for Tox21, except those in ``settings``."""
    pairs = store_pairs(data)
    build = partial(Weave, data.in_channels, pairs.patterns.shape[1], len(data.tasks))
    return train(build, partial(batch_molecules, data.graphs, pairs), data, seed, OPTIONS, TRAINING, **settings)
