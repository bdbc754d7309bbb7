"""Weave (Kearnes et al., 2016): atoms and pairs of atoms, each updated from the other."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rgat.baselines.atom_pairs import Pairs, PairStore, store_pairs
from rgat.baselines.network import train
from rgat.baselines.outcome import Outcome
from rgat.data import GraphData, GraphStore
from rgat.nn.normalisation import normalise

# Mean and standard deviation of the bins of the histogram: they divide a normal distribution into equal shares.
BINS = (
    (-1.645, 0.283),
    (-1.080, 0.170),
    (-0.739, 0.134),
    (-0.468, 0.118),
    (-0.228, 0.114),
    (0.0, 0.114),
    (0.228, 0.114),
    (0.468, 0.118),
    (0.739, 0.134),
    (1.080, 0.170),
    (1.645, 0.283),
)
LEAST = (
    -50.0
)  # logit of a membership, relative to the largest: less makes numbers so small that a CPU is slow with them
SETTINGS: dict[str, Any] = {"learning_rate": 0.0005, "batch_size": 112, "epochs": 40}


class Batch(NamedTuple):
    """Atoms of all molecules, the molecule of each, and all pairs within a molecule."""

    x: Tensor  # [N, F]
    molecule: Tensor  # [N]
    num_molecules: int
    pairs: Pairs


def batch_molecules(store: GraphStore, pairs: PairStore, ids: Tensor) -> Batch:
    """The given graphs with their pairs."""
    chosen = store.select(ids)
    sizes = chosen.node_ptr.diff()
    return Batch(chosen.x, torch.arange(len(ids)).repeat_interleave(sizes), len(ids), pairs.batch(ids, chosen.node_ptr))


class WeaveAtoms(nn.Module):
    r"""New atoms from atoms and from the pairs they are in.

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
    r"""New pairs from their two atoms, in both orders, and from themselves.

    .. math::
        p'_{ij} = \mathrm{ReLU}\big(\big[\mathrm{ReLU}([a_i \oplus a_j] W_{AP}) + \mathrm{ReLU}([a_j \oplus a_i] W_{AP})
        \oplus \mathrm{ReLU}(p_{ij} W_{PP})\big] W_P\big).

    It is the same for :math:`ij` and :math:`ji`, so only one of them is computed.

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
        """Return the new pairs ``[P, D]``."""
        # A product of concatenated inputs is a sum of products, each of which is needed once per atom or pattern only.
        first, second = torch.split(self.from_atoms.weight, atoms.shape[1], dim=1)
        left, right = torch.addmm(self.from_atoms.bias, atoms, first.t()), atoms @ second.t()
        here, there = (torch.cat([left, right], dim=1).index_select(0, side) for side in (pairs.first, pairs.second))
        width = left.shape[1]
        both = torch.relu(here[:, :width] + there[:, width:]) + torch.relu(there[:, :width] + here[:, width:])
        of_atoms, of_pairs = torch.split(self.merge.weight, width, dim=1)
        table = torch.addmm(self.merge.bias, torch.relu(self.from_pairs(pairs.patterns)), of_pairs.t())
        return torch.relu(torch.addmm(table.index_select(0, pairs.pattern), both, of_atoms.t()))


class Histogram(nn.Module):
    """The sum over a molecule's atoms of how far each feature belongs to each of eleven Gaussian bins."""

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
        memberships = torch.softmax((logits - logits.detach().amax(0)).clamp(min=LEAST), dim=0)
        sums = x.new_zeros(len(BINS), num_molecules, x.shape[1]).index_add(1, molecule, memberships)
        return sums.permute(1, 2, 0).flatten(1)


class Weave(nn.Module):
    r"""Two weave layers, a dense layer, the histogram of each molecule's atoms, another dense layer.

    .. math::
        z = \tanh(\mathrm{Dense}(\mathrm{Histogram}(\mathrm{norm}(\tanh(\mathrm{Dense}(a^{(2)})))))),

    and logits linear in :math:`z`; ``norm`` is batch normalisation. Pairs are updated once, since nothing reads
    them after the second layer.

    Args:
        atom_channels: number of features of atoms.
        pair_channels: number of features of pairs.
        num_tasks: number of tasks.
        hidden_channels: units of the weave layers.
        dense_channels: units of the dense layers.
    """

    def __init__(
        self,
        atom_channels: int,
        pair_channels: int,
        num_tasks: int,
        hidden_channels: int = 50,
        dense_channels: int = 211,
    ) -> None:
        super().__init__()
        self.num_tasks = num_tasks
        self.atoms1 = WeaveAtoms(atom_channels, pair_channels, hidden_channels)
        self.pairs1 = WeavePairs(atom_channels, pair_channels, hidden_channels)
        self.atoms2 = WeaveAtoms(hidden_channels, hidden_channels, hidden_channels)
        self.dense1 = _dense(hidden_channels, dense_channels)
        self.norm = nn.BatchNorm1d(dense_channels)  # the bins are those of a feature with mean 0 and variance 1
        self.histogram = Histogram()
        self.dense2 = _dense(len(BINS) * dense_channels, dense_channels)
        self.out = _dense(dense_channels, 2 * num_tasks)

    def forward(self, batch: Batch) -> Tensor:
        """Return logits ``[n, tasks, 2]``."""
        x, pairs = batch.x, batch.pairs
        # In the first layer pairs of one pattern are alike: count them, and look at each pattern once.
        sums = pairs.pattern_counts(len(x)) @ torch.relu(self.atoms1.from_pairs(pairs.patterns))
        atoms = self.atoms1(x, sums)
        woven = torch.relu(self.atoms2.from_pairs(self.pairs1(x, pairs)))
        atoms = self.atoms2(atoms, pairs.sum_per_atom(woven, len(x)))
        atoms = normalise(self.norm, torch.tanh(self.dense1(atoms)))
        z = torch.tanh(self.dense2(self.histogram(atoms, batch.molecule, batch.num_molecules)))
        logits: Tensor = self.out(z)
        return logits.view(-1, self.num_tasks, 2)


def _dense(in_channels: int, out_channels: int) -> nn.Linear:
    layer = nn.Linear(in_channels, out_channels)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def run(
    data: GraphData, seed: int = 0, *, hidden_channels: int = 50, dense_channels: int = 211, **settings: Any
) -> Outcome:
    """Train with MoleculeNet's settings for Tox21, unless told otherwise."""
    pairs = store_pairs(data)
    return train(
        lambda: Weave(data.in_channels, pairs.patterns.shape[1], len(data.tasks), hidden_channels, dense_channels),
        data,
        lambda ids: (batch_molecules(data.graphs, pairs, ids),),
        seed,
        **SETTINGS | settings,
        hidden_channels=hidden_channels,
        dense_channels=dense_channels,
    )
