"""Weave (Kearnes et al., 2016): a network on atoms and pairs of atoms, which update each other.

A pair has 14 features. Most pairs have the same ones, those of two unbonded atoms at some distance, so each distinct
row of features, a pattern, is stored once, and each pair has the index of its pattern. Pairs are unordered, and an atom
is paired with itself.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rgat.baselines.graphconv import Molecules, batch_molecules
from rgat.baselines.molecules import cached_of_molecules, train
from rgat.baselines.outcome import Outcome
from rgat.data import GraphData, GraphStore
from rgat.data.molecules.smiles import BONDS, bond_features, rdkit
from rgat.nn.normalisation import normalise

MAX_DISTANCE = 7
NUM_BONDED = len(BONDS) + 2  # features of bonded atoms
NUM_PAIR_FEATURES = NUM_BONDED + 1 + MAX_DISTANCE  # 14
# Mean and standard deviation of the histogram's bins, which divide a normal distribution into equal shares.
_RIGHT_BINS = ((0.228, 0.114), (0.468, 0.118), (0.739, 0.134), (1.080, 0.170), (1.645, 0.283))
BINS = (*((-mean, deviation) for mean, deviation in reversed(_RIGHT_BINS)), (0.0, 0.114), *_RIGHT_BINS)
SMALLEST_LOGIT = -50.0  # of a membership, relative to the largest; below it are denormal numbers, slow on a CPU
OPTIONS = {"hidden_channels": 50, "dense_channels": 211}
TRAINING = {"learning_rate": 0.0005, "batch_size": 112, "epochs": 40, "weight_l2": 0.0}


class Pairs(NamedTuple):
    """The pairs of a batch of molecules."""

    first: Tensor  # [P] atoms of the batch
    second: Tensor  # [P]
    pattern: Tensor  # [P]
    patterns: Tensor  # [K, 14]

    def sum_per_atom(self, values: Tensor, num_atoms: int) -> Tensor:
        """Return the sum of ``values`` ``[P, D]`` over the pairs of each atom; its pair with itself counts once."""
        out = values.new_zeros(num_atoms, values.shape[1]).index_add(0, self.first, values)
        other = (self.first != self.second).nonzero().squeeze(1)
        return out.index_add(0, self.second[other], values[other])

    def pattern_counts(self, num_atoms: int) -> Tensor:
        """Return the number of pairs of each atom with each pattern, ``[N, K]``."""
        num_patterns = len(self.patterns)
        other = self.first != self.second
        atom = torch.cat([self.first, self.second[other]])
        key = atom * num_patterns + torch.cat([self.pattern, self.pattern[other]])
        counts = torch.bincount(key, minlength=num_atoms * num_patterns)
        return counts.view(num_atoms, num_patterns).to(self.patterns.dtype)


class PairStore(NamedTuple):
    """The pairs of many molecules, one molecule after the other; atoms are numbered within their molecule."""

    first: Tensor  # [pairs]
    second: Tensor  # [pairs]
    pattern: Tensor  # [pairs]
    ptr: Tensor  # [G + 1]
    patterns: Tensor  # [K, 14]

    def batch(self, ids: Tensor, node_ptr: Tensor) -> Pairs:
        """Return the pairs of the molecules with these ids, whose atoms start at ``node_ptr`` in the batch."""
        sizes = self.ptr[ids + 1] - self.ptr[ids]
        shift = self.ptr[ids] - (sizes.cumsum(0) - sizes)
        chosen = torch.arange(int(sizes.sum())) + shift.repeat_interleave(sizes)
        base = node_ptr[:-1].repeat_interleave(sizes)
        return Pairs(self.first[chosen] + base, self.second[chosen] + base, self.pattern[chosen], self.patterns)


def pair_features(molecule: Any) -> NDArray[np.uint8]:
    """Return the features of all pairs of atoms of an RDKit molecule, ``[n, n, 14]``.

    For bonded atoms the bond type (4), conjugated, in a ring; for all pairs whether both atoms are in one ring, and the
    number of bonds between them, 1 to 7. The features of an atom with itself are zero.
    """
    size = molecule.GetNumAtoms()
    features = np.zeros((size, size, NUM_PAIR_FEATURES), dtype=np.uint8)
    for bond in molecule.GetBonds():
        a, b = bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()
        features[[a, b], [b, a], :NUM_BONDED] = bond_features(bond)[:NUM_BONDED]
    same_ring = features[..., NUM_BONDED]
    for ring in molecule.GetRingInfo().AtomRings():
        same_ring[np.ix_(ring, ring)] = 1
    np.fill_diagonal(same_ring, 0)
    distance = rdkit().GetDistanceMatrix(molecule)
    features[..., -MAX_DISTANCE:] = distance[..., None] == np.arange(1, MAX_DISTANCE + 1)
    return features


def store_pairs(data: GraphData) -> PairStore:
    """Return the pairs of all molecules of a data set whose graphs are named by SMILES."""

    def build(molecules: list[Any]) -> dict[str, NDArray[Any]]:
        codes, sizes = [], []
        bit_values = 1 << np.arange(NUM_PAIR_FEATURES)
        for molecule in molecules:
            codes.append((pair_features(molecule) @ bit_values)[np.triu_indices(molecule.GetNumAtoms())])
            sizes.append(len(codes[-1]))
        distinct, pattern = np.unique(np.concatenate(codes) if codes else np.zeros(0, int), return_inverse=True)
        patterns = (distinct[:, None] & bit_values > 0).astype(np.uint8)
        return {"pattern": pattern.astype(np.int16), "patterns": patterns, "sizes": np.array(sizes, dtype=np.int64)}

    stored = cached_of_molecules("atom-pairs", data, build)
    corners = [np.stack(np.triu_indices(size)) for size in data.graphs.node_ptr.diff().tolist()]
    first, second = torch.from_numpy(np.concatenate([np.zeros((2, 0), dtype=np.int64), *corners], axis=1))
    ptr = np.concatenate([[0], np.cumsum(stored["sizes"])])
    return PairStore(
        first=first,
        second=second,
        pattern=torch.from_numpy(stored["pattern"]).long(),
        ptr=torch.from_numpy(ptr),
        patterns=torch.from_numpy(stored["patterns"]).float(),
    )


class WeaveLayer(nn.Module):
    """The three dense layers of an update: of atoms, of pairs, and of both results."""

    def __init__(self, atom_channels: int, pair_channels: int, out_channels: int) -> None:
        super().__init__()
        self.from_atoms = _dense(atom_channels, out_channels)
        self.from_pairs = _dense(pair_channels, out_channels)
        self.merge = _dense(2 * out_channels, out_channels)


class WeaveAtoms(WeaveLayer):
    r"""Update atoms from atoms and from their pairs.

    $$
    a'_i = \mathrm{ReLU}\big(\big[\mathrm{ReLU}(a_i W_{AA}) \oplus
    \textstyle\sum_j \mathrm{ReLU}(p_{ij} W_{PA})\big] W_A\big), \qquad \text{each } W \text{ with a bias.}
    $$
    """

    def forward(self, atoms: Tensor, pair_sum: Tensor) -> Tensor:
        """Map atoms ``[N, F]`` and sums over their pairs ``[N, D]`` to ``[N, D]``."""
        return torch.relu(self.merge(torch.cat([torch.relu(self.from_atoms(atoms)), pair_sum], dim=1)))


class WeavePairs(WeaveLayer):
    r"""Update pairs from their two atoms, in both orders, and from pairs.

    $$
    p'_{ij} = \mathrm{ReLU}\big(\big[\mathrm{ReLU}([a_i \oplus a_j] W_{AP}) + \mathrm{ReLU}([a_j \oplus a_i] W_{AP})
    \oplus \mathrm{ReLU}(p_{ij} W_{PP})\big] W_P\big).
    $$

    The result is the same for $ij$ and $ji$, so only one of them is computed.
    """

    def __init__(self, atom_channels: int, pair_channels: int, out_channels: int) -> None:
        super().__init__(2 * atom_channels, pair_channels, out_channels)

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

    $$
    z = \tanh(\mathrm{Dense}(\mathrm{Histogram}(\mathrm{norm}(\tanh(\mathrm{Dense}(a^{(2)})))))),
    $$

    and logits linear in $z$; ``norm`` is batch normalisation. Pairs are updated once, because the second update
    would not be used.
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

    def forward(self, batch: tuple[Molecules, Pairs]) -> Tensor:
        """Return logits ``[n, tasks, 2]``."""
        molecules, pairs = batch
        x = molecules.x
        # In the first layer all pairs of a pattern are equal: transform each pattern once and weight it by its count.
        sums = pairs.pattern_counts(len(x)) @ torch.relu(self.atoms1.from_pairs(pairs.patterns))
        atoms = self.atoms1(x, sums)
        messages = torch.relu(self.atoms2.from_pairs(self.pairs1(x, pairs)))
        atoms = self.atoms2(atoms, pairs.sum_per_atom(messages, len(x)))
        atoms = normalise(self.norm, torch.tanh(self.dense1(atoms)))
        z = torch.tanh(self.dense2(self.histogram(atoms, molecules.molecule, len(molecules.node_ptr) - 1)))
        logits: Tensor = self.out(z)
        return logits.view(-1, self.num_tasks, 2)


def _dense(in_channels: int, out_channels: int) -> nn.Linear:
    layer = nn.Linear(in_channels, out_channels)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def batch_with_pairs(graphs: GraphStore, store: PairStore, ids: Tensor) -> tuple[Molecules, Pairs]:
    """Return a batch of the graphs with these ids, and their pairs."""
    molecules = batch_molecules(graphs, ids)
    return molecules, store.batch(ids, molecules.node_ptr)


def run(data: GraphData, seed: int = 0, **settings: Any) -> Outcome:
    """Train with MoleculeNet's settings for Tox21, except those in ``settings``."""
    store = store_pairs(data)
    build = partial(Weave, data.in_channels, NUM_PAIR_FEATURES, len(data.tasks))
    return train(build, partial(batch_with_pairs, data.graphs, store), data, seed, OPTIONS, TRAINING, **settings)
