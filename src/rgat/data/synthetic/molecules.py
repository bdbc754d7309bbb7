"""A built-in set of small molecules, composed of rings, chains and groups; tasks ask for patterns in them."""

from __future__ import annotations

import itertools
from typing import Any

import torch

from rgat.data.dataset import MISSING, GraphData
from rgat.data.molecules.smiles import rdkit, store_molecules
from rgat.data.molecules.table import molecule_data
from rgat.data.splits import shuffled_parts

# Rings and chains with two open positions, and the groups that fill these.
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
# The tasks, each with the substructure that makes a molecule positive.
PATTERNS = {
    "amide": "[CX3](=O)[NX3]",
    "acid": "[CX3](=O)[OX2H1]",
    "aryl-halide": "c[F,Cl,Br]",
    "amine": "[NX3;H2,H1;!$(NC=O);!$(Nc)]",
    "nitrogen-ring": "[n,N;R]",
    "branched": "[CX4;!R]([#6])([#6])[#6]",
}


def load_molecules(seed: int = 0) -> GraphData:
    """Return the molecules as a data set with one task per pattern; 60 % are training molecules."""
    smiles, molecules, labels = molecule_set(seed=seed)
    parts = shuffled_parts(torch.arange(len(smiles)), (0.6, 0.2), seed)
    provenance = {"generator": "rgat.data.synthetic.molecules", "seed": seed}
    return molecule_data("molecules", smiles, store_molecules(molecules), labels, tuple(PATTERNS), parts, provenance)


def molecule_set(count: int = 320, seed: int = 0) -> tuple[list[str], list[Any], torch.Tensor]:
    """Return ``count`` distinct SMILES, their RDKit molecules, and labels ``[count, tasks]``, -1 where missing."""
    chem = rdkit()
    patterns = [chem.MolFromSmarts(pattern) for pattern in PATTERNS.values()]
    candidates = [core.format(*groups) for core, *groups in itertools.product(_CORES, _GROUPS, _GROUPS)]
    generator = torch.Generator().manual_seed(seed)
    smiles: list[str] = []
    molecules = []
    for number in torch.randperm(len(candidates), generator=generator).tolist():
        canonical = chem.MolToSmiles(chem.MolFromSmiles(candidates[number]))
        if canonical not in smiles:
            smiles.append(canonical)
            molecules.append(chem.MolFromSmiles(canonical))
        if len(smiles) == count:
            break
    labels = torch.tensor([[int(m.HasSubstructMatch(pattern)) for pattern in patterns] for m in molecules])
    labels[torch.rand(labels.shape, generator=generator) < 0.1] = MISSING
    return smiles, molecules, labels
