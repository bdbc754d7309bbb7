import subprocess
import sys

import pytest
import torch

from rgat.data import load
from rgat.data.molecules import smiles as smiles_module
from rgat.data.molecules.smiles import (
    ELEMENTS,
    HYBRIDISATIONS,
    NUM_ATOM_FEATURES,
    ORDERS,
    parse_smiles,
    rdkit,
    store_molecules,
)


def test_a_molecule_becomes_a_relational_graph():
    store = store_molecules([rdkit().MolFromSmiles(smiles) for smiles in ("CC=O", "c1ccccc1", "[Na+]")])
    acetaldehyde, benzene, sodium = (store[k] for k in range(3))
    edges = zip(*acetaldehyde.edge_index.tolist(), acetaldehyde.edge_type.tolist(), strict=True)
    assert set(edges) == {(0, 1, 0), (1, 0, 0), (1, 2, 1), (2, 1, 1), (0, 0, 4), (1, 1, 4), (2, 2, 4)}
    assert (benzene.edge_type == 3).sum() == 12
    assert (sodium.num_nodes, sodium.num_edges) == (1, 1)
    x = store.batch(torch.tensor([0]))[0]
    assert x.shape == (3, NUM_ATOM_FEATURES) == (3, 75)
    # Methyl: carbon, degree 1, three implicit hydrogens, no charge or radical, SP3, not aromatic, three hydrogens.
    assert x[0].nonzero().flatten().tolist() == [0, 44 + 1, 55 + 3, 64 + 2, 70 + 3]
    # Oxygen: element 2, degree 1, none, SP2, none.
    assert x[2].nonzero().flatten().tolist() == [2, 44 + 1, 55 + 0, 64 + 1, 70 + 0]
    charged = store.batch(torch.tensor([2]))[0][0]
    assert charged[62] == 1


def test_a_missing_library_says_how_to_get_it(monkeypatch):
    rdkit.cache_clear()
    monkeypatch.setitem(sys.modules, "rdkit", None)
    with pytest.raises(ImportError, match=r"needs RDKit; install it with `pip install 'rgat\[molecules\]'`"):
        load("molecules")


UNUSUAL = [
    *("C[C@H](N)C(=O)O", "F/C=C/F", "c1cc[nH]c1", "C[N+](C)(C)C.[Cl-]", "[CH3]", "[13CH4]", "[2H]C", "[H]C([H])O"),
    *(
        "[H][H]",
        "[#1]C",
        "[2#1]C[#17]",
        "[H+]",
        "N->[Fe]",
        "*C",
        "C[N](C)(C)C",
        "O=[N+]([O-])c1ccccc1",
        "[Og]",
        "CC |$a;b$|",
        "FS(F)(F)(F)(F)F",
    ),
]


@pytest.mark.parametrize("smiles", UNUSUAL)
def test_a_molecule_read_without_stereo_is_the_same_graph(smiles):
    whole, plain = (parse_smiles(smiles, relaxed=True, stereo=stereo) for stereo in (True, False))
    stores = [store_molecules([molecule]) for molecule in (whole, plain)]
    for name in ("x", "edge_index", "edge_type"):
        assert torch.equal(getattr(stores[0], name), getattr(stores[1], name)), name


@pytest.mark.parametrize("smiles", UNUSUAL)
def test_atom_features_are_what_rdkit_says_of_each_atom(smiles):
    molecule = parse_smiles(smiles, relaxed=True)
    store = store_molecules([molecule], self_loops=False)
    places = [ELEMENTS.index(atom.GetSymbol()) if atom.GetSymbol() in ELEMENTS else 43 for atom in molecule.GetAtoms()]
    for atom, row, element in zip(molecule.GetAtoms(), store.x, places, strict=True):
        orbitals = str(atom.GetHybridization())
        expected = [
            *(element, 44 + atom.GetDegree(), 55 + atom.GetValence(rdkit().ValenceType.IMPLICIT)),
            64 + (HYBRIDISATIONS.index(orbitals) if orbitals in HYBRIDISATIONS else 4),
            *([69] if atom.GetIsAromatic() else []),
            70 + atom.GetTotalNumHs(),
        ]
        assert row[:62].tolist() + row[64:].tolist() == [
            int(place in expected) for place in (*range(62), *range(64, 75))
        ]
        assert row[62:64].tolist() == [atom.GetFormalCharge(), atom.GetNumRadicalElectrons()]
    ends = [(bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()) for bond in molecule.GetBonds()]
    orders = [ORDERS.index(bond.GetBondTypeAsDouble()) for bond in molecule.GetBonds()]
    expected = [(*pair, order) for (a, b), order in zip(ends, orders, strict=True) for pair in ((a, b), (b, a))]
    in_order = store_molecules([molecule], self_loops=False, bonds=True)
    assert [*zip(*in_order.edge_index.tolist(), in_order.edge_type.tolist(), strict=True)] == expected
    # Without features of bonds, the bonds are in the order of their atoms.
    assert sorted(zip(*store.edge_index.tolist(), store.edge_type.tolist(), strict=True)) == sorted(expected)


def test_bonds_of_large_molecules_are_read_one_by_one(monkeypatch):
    molecules = [parse_smiles(smiles) for smiles in ("CC(=O)Nc1ccc(O)cc1", "[NH3]->[Pt](Cl)Cl", "C", "CC#N")]
    stores = []
    for most in (300, 2):
        monkeypatch.setattr(smiles_module, "MAX_MATRIX", most)
        stores += [store_molecules(part) for part in (molecules, molecules[2:])]
    for quick, slow in ((stores[0], stores[2]), (stores[1], stores[3])):
        edges = [
            sorted(zip(*store.edge_index.tolist(), store.edge_type.tolist(), strict=True)) for store in (quick, slow)
        ]
        assert edges[0] == edges[1]
        assert torch.equal(quick.edge_ptr, slow.edge_ptr)


@pytest.mark.parametrize("smiles", ["C~C", "C$C"])
@pytest.mark.parametrize("stereo", [True, False])
def test_a_molecule_with_another_bond_is_no_molecule(smiles, stereo):
    assert parse_smiles(smiles, relaxed=True, stereo=stereo) is None
    with pytest.raises(ValueError, match="bonds of molecules must be single, double, triple, aromatic or dative"):
        store_molecules([rdkit().MolFromSmiles(smiles)])


def test_relaxed_reading_accepts_unusual_valences_and_nothing_worse():
    assert parse_smiles("C[Al](C)(C)(C)(C)(C)C") is None
    relaxed = parse_smiles("C[Al](C)(C)(C)(C)(C)C", relaxed=True)
    assert relaxed.GetNumAtoms() == 8
    assert store_molecules([relaxed]).x.isfinite().all()
    assert parse_smiles("C(C", relaxed=True) is None
    usual = parse_smiles("CC(=O)Nc1ccc(O)cc1")
    assert torch.equal(
        store_molecules([usual]).x, store_molecules([parse_smiles("CC(=O)Nc1ccc(O)cc1", relaxed=True)]).x
    )


def test_a_molecule_too_long_for_the_stack_is_no_molecule():
    code = "from rgat.data.molecules.smiles import parse_smiles; print(parse_smiles('C' * 200_000))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "None\n")
