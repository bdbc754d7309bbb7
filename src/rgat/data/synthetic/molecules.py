"""A built-in set of small molecules, put together from rings, chains and groups; tasks ask for patterns in them."""

from __future__ import annotations

import itertools
from typing import Any

import torch

from rgat.data.molecules.smiles import rdkit

# The built-in set is put together from these pieces: a ring or chain with open places, and what may stand there.
_CORES = (
    "c1ccc({})cc1{}",
    "c1cc({})ccc1{}",
    "c1cnc({})cc1{}",
    "c1ccc2c(c1)cc({})n2{}",
    "C1CCC({})CC1{}",
    "C1CN({})CCC1{}",
    "c1csc({})c1{}",
    "CC({})CC{}",
    "CCC({})=C{}",
    "CC({})OCC{}",
)
_GROUPS = ("C", "CC", "O", "OC", "N", "NC", "F", "Cl", "Br", "C#N", "C(=O)O", "C(=O)N", "C(=O)NC", "C(=O)OC", "CC(C)C")
# What the tasks ask: each is a pattern in the structure.
PATTERNS = {
    "amide": "[CX3](=O)[NX3]",
    "acid": "[CX3](=O)[OX2H1]",
    "aryl-halide": "c[F,Cl,Br]",
    "amine": "[NX3;H2,H1;!$(NC=O);!$(Nc)]",
    "nitrogen-ring": "[n,N;R]",
    "branched": "[CX4;!R]([#6])([#6])[#6]",
}


def molecule_set(count: int = 320, seed: int = 0) -> tuple[list[str], list[Any], torch.Tensor]:
    """Return ``count`` distinct SMILES, their RDKit molecules, and labels ``[count, tasks]``, -1 where missing."""
    chem = rdkit()
    patterns = [chem.MolFromSmarts(pattern) for pattern in PATTERNS.values()]
    candidates = []
    for core, first, second in itertools.product(_CORES, _GROUPS, _GROUPS):
        candidates.append(core.format(first, second))
    generator = torch.Generator().manual_seed(seed)
    smiles: list[str] = []
    molecules = []
    for place in torch.randperm(len(candidates), generator=generator).tolist():
        molecule = chem.MolFromSmiles(candidates[place])
        canonical = chem.MolToSmiles(molecule)
        if canonical not in smiles:
            smiles.append(canonical)
            molecules.append(chem.MolFromSmiles(canonical))
        if len(smiles) == count:
            break
    labels = torch.tensor([[int(m.HasSubstructMatch(pattern)) for pattern in patterns] for m in molecules])
    labels[torch.rand(labels.shape, generator=generator) < 0.1] = -1
    return smiles, molecules, labels
