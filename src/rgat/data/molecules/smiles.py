"""SMILES to relational graphs: atoms become nodes, bond types become relations (section 3.1, Tox21)."""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rgat.data.graph_store import GraphStore

Array = NDArray[Any]
# fmt: off
ELEMENTS = (
    "C", "N", "O", "S", "F", "Si", "P", "Cl", "Br", "Mg", "Na", "Ca", "Fe", "As", "Al", "I", "B", "V", "K", "Tl", "Yb",
    "Sb", "Sn", "Ag", "Pd", "Co", "Se", "Ti", "Zn", "H", "Li", "Ge", "Cu", "Au", "Ni", "Cd", "In", "Mn", "Zr", "Cr",
    "Pt", "Hg", "Pb",
)
# fmt: on
BONDS = ("single", "double", "triple", "aromatic")
ORDERS = (1.0, 2.0, 3.0, 1.5)  # of these bonds; a dative bond is one shared pair of electrons, as a single bond
_UNUSUAL_BOND = re.compile(r"[~$|]")  # without such a sign, all bonds are of these types
_HYDROGEN = re.compile(r"\[\d*(H|#0*1(?!\d))")  # an atom of hydrogen, which RDKit may remove
HYBRIDISATIONS = ("SP", "SP2", "SP3", "SP3D", "SP3D2")
NUM_RICH_FEATURES = 10
MAX_SMILES = 10_000  # characters; RDKit recurses along a molecule until the stack overflows
MAX_MATRIX = 300  # atoms of a molecule whose bonds are read from one matrix
NUM_BOND_FEATURES = len(BONDS) + 5
NUM_ATOM_FEATURES = len(ELEMENTS) + 1 + 11 + 7 + 1 + 1 + len(HYBRIDISATIONS) + 1 + 5  # 75


@lru_cache(maxsize=1)
def rdkit() -> Any:
    """Import RDKit's chemistry module, or raise an error that says how to install it."""
    try:
        from rdkit import Chem, RDLogger
    except ImportError as error:
        raise ImportError("reading SMILES needs RDKit; install it with `pip install 'rgat[molecules]'`") from error
    RDLogger.DisableLog("rdApp.*")  # type: ignore[attr-defined]  # our errors name the row
    return Chem


def rich_features(atom: Any) -> list[float]:
    """Return ten more features: in a ring, in a ring of 3 to 8 atoms, two senses of chirality, mass / 100."""
    rings = [float(atom.IsInRingSize(size)) for size in range(3, 9)]
    chirality = str(atom.GetChiralTag())
    senses = [float(chirality.endswith(tag)) for tag in ("TETRAHEDRAL_CW", "TETRAHEDRAL_CCW")]
    return [float(atom.IsInRing()), *rings, *senses, atom.GetMass() / 100]


def bond_features(bond: Any) -> list[float]:
    """Return nine features: the bond type, conjugated, in a ring, and the stereo configuration (any, Z, E)."""
    stereo = str(bond.GetStereo()).removeprefix("STEREO")
    stereos = [float(stereo in words) for words in (("ANY",), ("Z", "CIS"), ("E", "TRANS"))]
    types = [float(bond.GetBondTypeAsDouble() == order) for order in ORDERS]
    return [*types, float(bond.GetIsConjugated()), float(bond.IsInRing()), *stereos]


def parse_smiles(smiles: str, relaxed: bool = False, largest: bool = False, stereo: bool = True) -> Any:
    """Return an RDKit molecule, or None for an invalid SMILES.

    Args:
        smiles: the text.
        relaxed: accept valences that RDKit rejects.
        largest: keep only the largest fragment of a salt or mixture.
        stereo: perceive stereo centres and double bonds; without it, parsing takes a quarter less time.
    """
    chem = rdkit()
    if len(smiles) > MAX_SMILES:
        return None
    molecule = None if stereo or _HYDROGEN.search(smiles) else _without_stereo(smiles)
    molecule = chem.MolFromSmiles(smiles) if molecule is None else molecule
    if molecule is None and relaxed:
        molecule = chem.MolFromSmiles(smiles, sanitize=False)
        if molecule is not None:
            flags = chem.SanitizeFlags.SANITIZE_ALL ^ chem.SanitizeFlags.SANITIZE_PROPERTIES
            if chem.SanitizeMol(molecule, flags, catchErrors=True) != chem.SanitizeFlags.SANITIZE_NONE:
                return None
            molecule.UpdatePropertyCache(strict=False)
    if molecule is None or (_UNUSUAL_BOND.search(smiles) and not _has_known_bonds(molecule)):
        return None
    return largest_fragment(molecule) if largest and "." in smiles else molecule


def _without_stereo(smiles: str) -> Any:
    """Return a molecule that has no explicit hydrogen atoms to remove; None where RDKit cannot sanitise it."""
    chem = rdkit()
    molecule = chem.MolFromSmiles(smiles, sanitize=False)
    if molecule is None or chem.SanitizeMol(molecule, catchErrors=True) != chem.SanitizeFlags.SANITIZE_NONE:
        return None
    return molecule


def largest_fragment(molecule: Any) -> Any:
    """Return the fragment with the most heavy atoms; of equals the one whose SMILES is first."""
    chem = rdkit()
    fragments = chem.GetMolFrags(molecule, asMols=True, sanitizeFrags=False)
    return min(fragments, key=lambda each: (-each.GetNumHeavyAtoms(), chem.MolToSmiles(each)), default=molecule)


def _has_known_bonds(molecule: Any) -> bool:
    return all(bond.GetBondTypeAsDouble() in ORDERS for bond in molecule.GetBonds())


@lru_cache(maxsize=1)
def _getters() -> tuple[Any, Any]:
    """Return the functions that read the properties of RDKit's atoms, and of its bonds."""
    atom, bond = rdkit().Atom, rdkit().Bond
    of_atoms = (
        *(atom.GetAtomicNum, atom.GetTotalNumHs, atom.GetNumImplicitHs, atom.GetFormalCharge),
        *(atom.GetNumRadicalElectrons, atom.GetHybridization, atom.GetIsAromatic),
    )
    return of_atoms, (bond.GetBeginAtomIdx, bond.GetEndAtomIdx, bond.GetBondTypeAsDouble)


def _one_hot(positions: Array, size: int) -> Array:
    """Return rows with a one at each position, or at the last position if it lies beyond."""
    return np.eye(size, dtype=np.float32)[np.minimum(positions, size - 1)]


def _read(parts: Sequence[Any], getters: Sequence[Any], columns: Sequence[array[Any]]) -> None:
    """Add properties of the atoms or bonds of a molecule to columns.

    Few of RDKit's objects are kept at a time: Python's garbage collector would walk through them again and again.
    """
    for get, column in zip(getters, columns, strict=True):
        column.extend(map(get, parts))


def _read_bonds(molecules: Sequence[Any], sizes: Array, num_bonds: Array, in_order: bool) -> tuple[Array, Array, Array]:
    """Return begin, end and order of all bonds; the atoms of each molecule are counted from zero.

    Matrices of bond orders are quicker to read than the bonds, one by one, ``in_order``. But they have a dative bond in
    one direction only, and are large for a large molecule.
    """
    if not in_order and len(molecules) and sizes.max() <= MAX_MATRIX:
        matrix = partial(rdkit().GetAdjacencyMatrix, useBO=True)
        orders = np.concatenate([matrix(molecule).ravel() for molecule in molecules])
        at = np.flatnonzero(orders)
        if len(at) == 2 * num_bonds.sum():
            of = np.repeat(np.arange(len(sizes)), 2 * num_bonds)
            begin, end = np.divmod(at - (np.cumsum(sizes**2) - sizes**2)[of], sizes[of])
            once = begin < end
            return begin[once], end[once], orders[at[once]]
    columns = [array("d") for _ in range(3)]
    for molecule in molecules:
        bonds = list(map(molecule.GetBondWithIdx, range(molecule.GetNumBonds())))
        _read(bonds, _getters()[1], columns)
    begin, end, order = (np.array(column) for column in columns)
    return begin, end, order


def _atom_features(columns: Sequence[Array], degrees: Array) -> Array:
    """Return the 75 features of atoms with these properties, which are those of `_getters`."""
    chem = rdkit()
    numbers, hydrogens, implicit, charges, radicals, orbitals, is_aromatic = columns
    types = chem.HybridizationType.names
    element = np.full(max(numbers.max(initial=0), 118) + 1, len(ELEMENTS))
    element[[chem.GetPeriodicTable().GetAtomicNumber(symbol) for symbol in ELEMENTS]] = range(len(ELEMENTS))
    hybridisation = np.full(len(types) + 1, len(HYBRIDISATIONS) - 1)
    hybridisation[[int(types[name]) for name in HYBRIDISATIONS]] = range(len(HYBRIDISATIONS))
    return np.concatenate(
        [
            _one_hot(element[numbers], len(ELEMENTS) + 1),
            _one_hot(degrees, 11),
            _one_hot(implicit, 7),
            np.stack([charges, radicals], axis=1).astype(np.float32),
            _one_hot(hybridisation[orbitals], len(HYBRIDISATIONS)),
            is_aromatic[:, None].astype(np.float32),
            _one_hot(hydrogens, 5),
        ],
        axis=1,
    )


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
    of_atoms, _ = _getters()
    columns, extra = [array("q") for _ in of_atoms], array("f")
    for molecule in molecules:
        # By number: RDKit's iterators are slow.
        atoms = list(map(molecule.GetAtomWithIdx, range(molecule.GetNumAtoms())))
        _read(atoms, of_atoms, columns)
        for atom in atoms if rich else ():
            extra.extend(rich_features(atom))
    num_atoms = np.array([molecule.GetNumAtoms() for molecule in molecules], dtype=np.int64)
    num_bonds = np.array([molecule.GetNumBonds() for molecule in molecules], dtype=np.int64)
    begin, end, order = _read_bonds(molecules, num_atoms, num_bonds, in_order=bonds)
    edges = _bond_edges(begin, end, order, np.repeat(np.cumsum(num_atoms) - num_atoms, num_bonds))
    base = int(num_atoms.sum())
    x = _atom_features([np.array(column) for column in columns], np.bincount(edges[:, 0], minlength=base))
    of_all = [2 * bond_features(bond) for molecule in molecules for bond in molecule.GetBonds()] if bonds else []
    attributes = np.array(of_all, dtype=np.float32).reshape(-1, NUM_BOND_FEATURES)
    per_molecule = 2 * num_bonds
    if self_loops:  # behind the bonds of each molecule
        of_bonds, of_atoms = (np.repeat(np.arange(len(num_atoms)), each) for each in (per_molecule, num_atoms))
        order = np.argsort(np.concatenate([of_bonds, of_atoms]), kind="stable")
        loops = np.stack([np.arange(base), np.arange(base), np.full(base, len(BONDS))], axis=1)
        edges = np.concatenate([edges, loops])[order]
        if bonds:
            attributes = np.concatenate([attributes, np.zeros((base, NUM_BOND_FEATURES), np.float32)])[order]
        per_molecule = per_molecule + num_atoms
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


def _bond_edges(begin: Array, end: Array, order: Array, shift: Array) -> Array:
    """Return source, target and relation of both edges of each bond, ``[2 n, 3]``; atoms are shifted per bond."""
    relation = np.full(len(order), -1)
    for number, value in enumerate(ORDERS):
        relation[order == value] = number
    if (relation < 0).any():
        raise ValueError("bonds of molecules must be single, double, triple, aromatic or dative; `parse_smiles` tells")
    forth = np.stack([begin + shift, end + shift, relation], axis=1).astype(np.int64)
    return np.stack([forth, forth[:, [1, 0, 2]]], axis=1).reshape(-1, 3)


def _pointers(sizes: Any) -> torch.Tensor:
    """Return where each molecule begins, and the end."""
    return torch.from_numpy(np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]).astype(np.int64))


def scaffold(smiles: str) -> str:
    """Return the Bemis-Murcko scaffold of a molecule: its rings and their linkers."""
    rdkit()
    from rdkit.Chem.Scaffolds import MurckoScaffold

    text: str = MurckoScaffold.MurckoScaffoldSmiles(mol=parse_smiles(smiles, relaxed=True))  # type: ignore[no-untyped-call]
    return text
