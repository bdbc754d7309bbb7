"""Pairs of atoms of a molecule and their 14 features, for Weave.

Most pairs have the same features, those of two unbonded atoms at some distance. So each distinct row of features, a
pattern, is stored once, and each pair has the index of its pattern. Pairs are unordered, and an atom is paired with
itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rgat.baselines.fingerprints import cached_of_molecules
from rgat.data import GraphData
from rgat.data.molecules.smiles import BONDS, bond_features, bond_relation, rdkit

MAX_DISTANCE = 7
NUM_BONDED = len(BONDS) + 2  # features of bonded atoms
NUM_PAIR_FEATURES = NUM_BONDED + 1 + MAX_DISTANCE  # 14


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


@dataclass(frozen=True)
class PairStore:
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
        a, b, relation = bond.GetBeginAtomIdx(), bond.GetEndAtomIdx(), bond_relation(bond)
        assert relation is not None
        features[[a, b], [b, a], :NUM_BONDED] = bond_features(bond, relation)[:NUM_BONDED]
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
