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


def atom_key(atom: Any, valence: Any) -> tuple[Any, ...]:
    """Return what the features of an RDKit atom depend on; ``valence`` is RDKit's constant for the implicit valence."""
    return (
        atom.GetAtomicNum(),
        atom.GetDegree(),
        atom.GetValence(valence),
        atom.GetFormalCharge(),
        atom.GetNumRadicalElectrons(),
        atom.GetHybridization(),
        atom.GetIsAromatic(),
        atom.GetTotalNumHs(),
    )


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
    """Return the 75 features of an atom, from its symbol and the rest of `atom_key`."""
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
    if molecule is None or not _has_known_bonds(molecule):
        return None
    return largest_fragment(molecule) if largest and "." in smiles else molecule


def largest_fragment(molecule: Any) -> Any:
    """Return the fragment with the most heavy atoms; of equals the one whose SMILES is first."""
    chem = rdkit()
    fragments = chem.GetMolFrags(molecule, asMols=True, sanitizeFrags=False)
    return min(fragments, key=lambda each: (-each.GetNumHeavyAtoms(), chem.MolToSmiles(each)), default=molecule)


@lru_cache(maxsize=1)
def _relations() -> dict[Any, int]:
    """Return the relation of each RDKit bond type that has one."""
    types = {name.lower(): bond_type for name, bond_type in rdkit().BondType.names.items()}
    dative = [bond_type for name, bond_type in types.items() if name.startswith("dative")]
    # A dative bond is one shared pair of electrons, as a single bond.
    return {types[name]: number for number, name in enumerate(BONDS)} | dict.fromkeys(dative, 0)


def bond_relation(bond: Any) -> int | None:
    """Return the index of a bond's type in ``BONDS``, or None for another type."""
    return _relations().get(bond.GetBondType())


def _has_known_bonds(molecule: Any) -> bool:
    known, bond = _relations(), molecule.GetBondWithIdx  # by number: RDKit's iterators are slow
    return all(bond(number).GetBondType() in known for number in range(molecule.GetNumBonds()))


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
    valence, relations = rdkit().ValenceType.IMPLICIT, _relations()
    kinds: dict[tuple[Any, ...], int] = {}  # most atoms equal an earlier one
    table: list[tuple[float, ...]] = []  # features of each kind
    atoms, ends, extra, edge_features = array("q"), array("q"), array("f"), array("f")
    num_atoms, num_bonds = [], []
    base = 0
    for molecule in molecules:
        num_atoms.append(molecule.GetNumAtoms())
        num_bonds.append(molecule.GetNumBonds())
        for number in range(num_atoms[-1]):
            atom = molecule.GetAtomWithIdx(number)
            key = atom_key(atom, valence)
            kind = kinds.setdefault(key, len(table))
            if kind == len(table):
                table.append(_encode(atom.GetSymbol(), *key[1:]))
            atoms.append(kind)
            if rich:
                extra.extend(rich_features(atom))
        for number in range(num_bonds[-1]):
            bond = molecule.GetBondWithIdx(number)
            a, b, relation = base + bond.GetBeginAtomIdx(), base + bond.GetEndAtomIdx(), relations[bond.GetBondType()]
            ends.extend((a, b, relation, b, a, relation))
            if bonds:
                edge_features.extend(2 * bond_features(bond, relation))
        base += num_atoms[-1]
    x = np.array(table, dtype=np.float32).reshape(-1, NUM_ATOM_FEATURES)[np.array(atoms, dtype=np.int64)]
    edges = np.array(ends, dtype=np.int64).reshape(-1, 3)
    attributes = np.array(edge_features, dtype=np.float32).reshape(-1, NUM_BOND_FEATURES)
    per_molecule = 2 * np.array(num_bonds, dtype=np.int64)
    if self_loops:  # behind the bonds of each molecule
        of_bonds, of_atoms = (np.repeat(np.arange(len(num_atoms)), each) for each in (per_molecule, num_atoms))
        order = np.argsort(np.concatenate([of_bonds, of_atoms]), kind="stable")
        loops = np.stack([np.arange(base), np.arange(base), np.full(base, len(BONDS))], axis=1)
        edges = np.concatenate([edges, loops])[order]
        if bonds:
            attributes = np.concatenate([attributes, np.zeros((base, NUM_BOND_FEATURES), np.float32)])[order]
        per_molecule = per_molecule + np.array(num_atoms, dtype=np.int64)
    if rich:
        x = np.concatenate([x, np.array(extra, dtype=np.float32).reshape(-1, NUM_RICH_FEATURES)], axis=1)
    return GraphStore(
        x=torch.from_numpy(x),
        edge_index=torch.from_numpy(np.ascontiguousarray(edges[:, :2].T)),
        edge_type=torch.from_numpy(np.ascontiguousarray(edges[:, 2])),
        node_ptr=_pointers(num_atoms),
        edge_ptr=_pointers(per_molecule),
        num_relations=len(BONDS) + self_loops,
        edge_attr=torch.from_numpy(attributes) if bonds else None,
    )


def _pointers(sizes: Any) -> torch.Tensor:
    """Return where each molecule begins, and the end."""
    return torch.from_numpy(np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]).astype(np.int64))


def scaffold(smiles: str) -> str:
    """Return the Bemis-Murcko scaffold of a molecule: its rings and their linkers."""
    rdkit()
    from rdkit.Chem.Scaffolds import MurckoScaffold

    text: str = MurckoScaffold.MurckoScaffoldSmiles(mol=parse_smiles(smiles, relaxed=True))  # type: ignore[no-untyped-call]
    return text
