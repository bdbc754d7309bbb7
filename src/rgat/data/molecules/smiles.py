"""SMILES to relational graphs: atoms become nodes, bond types become relations (section 3.1, Tox21)."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from rgat.data.graph_store import GraphStore

# fmt: off
ELEMENTS = (
    "C", "N", "O", "S", "F", "Si", "P", "Cl", "Br", "Mg", "Na", "Ca", "Fe", "As", "Al", "I", "B", "V", "K", "Tl", "Yb",
    "Sb", "Sn", "Ag", "Pd", "Co", "Se", "Ti", "Zn", "H", "Li", "Ge", "Cu", "Au", "Ni", "Cd", "In", "Mn", "Zr", "Cr",
    "Pt", "Hg", "Pb",
)
# fmt: on
BONDS = ("single", "double", "triple", "aromatic")
HYBRIDISATIONS = ("SP", "SP2", "SP3", "SP3D", "SP3D2")
NUM_RICH_FEATURES = 10
MAX_SMILES = 10_000  # characters; RDKit recurses along a molecule until the stack overflows
NUM_BOND_FEATURES = len(BONDS) + 5
_ELEMENT_ID = {symbol: number for number, symbol in enumerate(ELEMENTS)}
NUM_ATOM_FEATURES = len(ELEMENTS) + 1 + 11 + 7 + 1 + 1 + len(HYBRIDISATIONS) + 1 + 5  # 75


def rdkit() -> Any:
    """Import RDKit's chemistry module, or raise an error that says how to install it."""
    try:
        from rdkit import Chem, RDLogger
    except ImportError as error:
        raise ImportError("reading SMILES needs RDKit; install it with `pip install 'rgat[molecules]'`") from error
    RDLogger.DisableLog("rdApp.*")  # type: ignore[attr-defined]  # our errors name the row
    return Chem


def _one_hot(position: int, size: int) -> list[float]:
    """Return a one at ``position``, or at the last position if it lies beyond."""
    row = [0.0] * size
    row[min(position, size - 1)] = 1.0
    return row


def atom_features(atom: Any, valence: Any) -> tuple[float, ...]:
    """Return the 75 features of an RDKit atom; ``valence`` is RDKit's constant for the implicit valence."""
    return _encode(
        atom.GetSymbol(),
        atom.GetDegree(),
        atom.GetValence(valence),
        atom.GetFormalCharge(),
        atom.GetNumRadicalElectrons(),
        atom.GetHybridization(),
        atom.GetIsAromatic(),
        atom.GetTotalNumHs(),
    )


@lru_cache(maxsize=1 << 16)  # most atoms equal an earlier one
def _encode(
    symbol: str,
    degree: int,
    valence: int,
    charge: int,
    radicals: int,
    hybridisation: Any,
    aromatic: bool,
    hydrogens: int,
) -> tuple[float, ...]:
    orbitals = str(hybridisation)
    return (
        *_one_hot(_ELEMENT_ID.get(symbol, len(ELEMENTS)), len(ELEMENTS) + 1),
        *_one_hot(degree, 11),
        *_one_hot(valence, 7),
        float(charge),
        float(radicals),
        *_one_hot(HYBRIDISATIONS.index(orbitals) if orbitals in HYBRIDISATIONS else 4, 5),
        float(aromatic),
        *_one_hot(hydrogens, 5),
    )


def rich_features(atom: Any) -> list[float]:
    """Return ten more features: in a ring, in a ring of 3 to 8 atoms, two senses of chirality, mass / 100."""
    rings = [float(atom.IsInRingSize(size)) for size in range(3, 9)]
    chirality = str(atom.GetChiralTag())
    senses = [float(chirality.endswith(tag)) for tag in ("TETRAHEDRAL_CW", "TETRAHEDRAL_CCW")]
    return [float(atom.IsInRing()), *rings, *senses, atom.GetMass() / 100]


def bond_features(bond: Any, relation: int) -> list[float]:
    """Return nine features: the bond type, conjugated, in a ring, and the stereo configuration (any, Z, E)."""
    stereo = str(bond.GetStereo()).removeprefix("STEREO")
    stereos = [float(stereo in words) for words in (("ANY",), ("Z", "CIS"), ("E", "TRANS"))]
    return [*_one_hot(relation, len(BONDS)), float(bond.GetIsConjugated()), float(bond.IsInRing()), *stereos]


def parse_smiles(smiles: str, relaxed: bool = False, largest: bool = False) -> Any:
    """Return an RDKit molecule, or None for an invalid SMILES.

    ``relaxed`` accepts valences that RDKit rejects; ``largest`` keeps only the largest fragment of a salt or mixture.
    """
    chem = rdkit()
    if len(smiles) > MAX_SMILES:
        return None
    molecule = chem.MolFromSmiles(smiles)
    if molecule is None and relaxed:
        molecule = chem.MolFromSmiles(smiles, sanitize=False)
        if molecule is not None:
            flags = chem.SanitizeFlags.SANITIZE_ALL ^ chem.SanitizeFlags.SANITIZE_PROPERTIES
            if chem.SanitizeMol(molecule, flags, catchErrors=True) != chem.SanitizeFlags.SANITIZE_NONE:
                return None
            molecule.UpdatePropertyCache(strict=False)
    if molecule is None or any(bond_relation(bond) is None for bond in molecule.GetBonds()):
        return None
    return largest_fragment(molecule) if largest and "." in smiles else molecule


def largest_fragment(molecule: Any) -> Any:
    """Return the fragment with the most heavy atoms; of equals the one whose SMILES is first."""
    chem = rdkit()
    fragments = chem.GetMolFrags(molecule, asMols=True, sanitizeFrags=False)
    return min(fragments, key=lambda each: (-each.GetNumHeavyAtoms(), chem.MolToSmiles(each)), default=molecule)


def bond_relation(bond: Any) -> int | None:
    """Return the index of a bond's type in ``BONDS``, or None for another type."""
    bond_type = str(bond.GetBondType()).lower()
    if bond_type.startswith("dative"):
        return 0  # one shared pair of electrons, as a single bond
    return BONDS.index(bond_type) if bond_type in BONDS else None


def store_molecules(
    molecules: Sequence[Any], self_loops: bool = True, rich: bool = False, bonds: bool = False
) -> GraphStore:
    """Return graphs of RDKit molecules; each bond becomes two edges, one in each direction.

    Args:
        molecules: as `parse_smiles` returns them.
        self_loops: add a self-loop relation after the bond types.
        rich: add ten atom features.
        bonds: add bond features; those of self-loops are zero.
    """
    valence = rdkit().ValenceType.IMPLICIT
    width = NUM_ATOM_FEATURES + NUM_RICH_FEATURES * rich
    features, edges, edge_features = array("f"), array("q"), array("f")
    no_bond = [0.0] * NUM_BOND_FEATURES
    node_ptr, edge_ptr = [0], [0]
    for molecule in molecules:
        base = node_ptr[-1]
        for atom in molecule.GetAtoms():
            features.extend(atom_features(atom, valence))
            if rich:
                features.extend(rich_features(atom))
        node_ptr.append(base + molecule.GetNumAtoms())
        for bond in molecule.GetBonds():
            a, b, relation = base + bond.GetBeginAtomIdx(), base + bond.GetEndAtomIdx(), bond_relation(bond)
            assert relation is not None
            edges.extend((a, b, relation, b, a, relation))
            if bonds:
                edge_features.extend(2 * bond_features(bond, relation))
        if self_loops:
            for node in range(base, node_ptr[-1]):
                edges.extend((node, node, len(BONDS)))
                if bonds:
                    edge_features.extend(no_bond)
        edge_ptr.append(len(edges) // 3)
    table = torch.tensor(np.array(edges, dtype=np.int64)).view(-1, 3)
    attributes = torch.tensor(np.array(edge_features, dtype=np.float32)).view(-1, NUM_BOND_FEATURES)
    return GraphStore(
        x=torch.tensor(np.array(features, dtype=np.float32)).view(-1, width),
        edge_index=table[:, :2].t().contiguous(),
        edge_type=table[:, 2].contiguous(),
        node_ptr=torch.tensor(node_ptr),
        edge_ptr=torch.tensor(edge_ptr),
        num_relations=len(BONDS) + self_loops,
        edge_attr=attributes if bonds else None,
    )


def scaffold(smiles: str) -> str:
    """Return the Bemis-Murcko scaffold of a molecule: its rings and their linkers."""
    rdkit()
    from rdkit.Chem.Scaffolds import MurckoScaffold

    text: str = MurckoScaffold.MurckoScaffoldSmiles(mol=parse_smiles(smiles, relaxed=True))  # type: ignore[no-untyped-call]
    return text
