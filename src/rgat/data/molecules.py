"""SMILES to relational graphs: atoms are nodes, bond types are relations (section 3.1, Tox21)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch

from rgat.data.records import GraphStore

# fmt: off
ELEMENTS = (
    "C", "N", "O", "S", "F", "Si", "P", "Cl", "Br", "Mg", "Na", "Ca", "Fe", "As", "Al", "I", "B", "V", "K", "Tl", "Yb",
    "Sb", "Sn", "Ag", "Pd", "Co", "Se", "Ti", "Zn", "H", "Li", "Ge", "Cu", "Au", "Ni", "Cd", "In", "Mn", "Zr", "Cr",
    "Pt", "Hg", "Pb",
)
# fmt: on
BONDS = ("single", "double", "triple", "aromatic")
HYBRIDISATIONS = ("SP", "SP2", "SP3", "SP3D", "SP3D2")
NUM_ATOM_FEATURES = len(ELEMENTS) + 1 + 11 + 7 + 1 + 1 + len(HYBRIDISATIONS) + 1 + 5  # 75


def rdkit() -> Any:
    """Import RDKit's chemistry module, or say how to get it."""
    try:
        from rdkit import Chem
    except ImportError as error:
        raise ImportError("reading SMILES needs RDKit; install it with `pip install 'rgat[molecules]'`") from error
    return Chem


def _one_hot(position: int, size: int) -> list[float]:
    """A one at ``position``, or at the last place where it lies beyond."""
    row = [0.0] * size
    row[min(position, size - 1)] = 1.0
    return row


def atom_features(atom: Any) -> list[float]:
    """The 75 features of an RDKit atom."""
    symbol, hybridisation = atom.GetSymbol(), str(atom.GetHybridization())
    return [
        *_one_hot(ELEMENTS.index(symbol) if symbol in ELEMENTS else len(ELEMENTS), len(ELEMENTS) + 1),
        *_one_hot(atom.GetDegree(), 11),
        *_one_hot(atom.GetValence(rdkit().ValenceType.IMPLICIT), 7),
        float(atom.GetFormalCharge()),
        float(atom.GetNumRadicalElectrons()),
        *_one_hot(HYBRIDISATIONS.index(hybridisation) if hybridisation in HYBRIDISATIONS else 4, 5),
        float(atom.GetIsAromatic()),
        *_one_hot(atom.GetTotalNumHs(), 5),
    ]


def store_molecules(molecules: Sequence[Any], self_loops: bool = True) -> GraphStore:
    """Graphs of RDKit molecules: each bond gives both directions; a self-loop relation follows the bond types."""
    features: list[list[float]] = []
    edges: list[tuple[int, int, int]] = []
    node_ptr, edge_ptr = [0], [0]
    for molecule in molecules:
        base = len(features)
        features.extend(atom_features(atom) for atom in molecule.GetAtoms())
        for bond in molecule.GetBonds():
            a, b = base + bond.GetBeginAtomIdx(), base + bond.GetEndAtomIdx()
            relation = BONDS.index(str(bond.GetBondType()).lower())
            edges += [(a, b, relation), (b, a, relation)]
        if self_loops:
            edges += [(n, n, len(BONDS)) for n in range(base, len(features))]
        node_ptr.append(len(features))
        edge_ptr.append(len(edges))
    table = torch.tensor(edges, dtype=torch.long).view(-1, 3)
    return GraphStore(
        x=torch.tensor(features, dtype=torch.float32).view(-1, NUM_ATOM_FEATURES),
        edge_index=table[:, :2].t().contiguous(),
        edge_type=table[:, 2].contiguous(),
        node_ptr=torch.tensor(node_ptr),
        edge_ptr=torch.tensor(edge_ptr),
        num_relations=len(BONDS) + self_loops,
    )


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
