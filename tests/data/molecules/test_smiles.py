import subprocess
import sys

import pytest
import torch

from rgat.data import load
from rgat.data.molecules.smiles import (
    NUM_ATOM_FEATURES,
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
    monkeypatch.setitem(sys.modules, "rdkit", None)
    with pytest.raises(ImportError, match=r"needs RDKit; install it with `pip install 'rgat\[molecules\]'`"):
        load("molecules")


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
