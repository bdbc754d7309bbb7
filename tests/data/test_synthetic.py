import subprocess
import sys

import pytest
import torch

from rgat import RelationalGraph
from rgat.data import BUILT_IN, MISSING, load
from rgat.data.molecules.smiles import NUM_ATOM_FEATURES, rdkit, store_molecules
from rgat.data.synthetic.institute import LABEL_PREDICATE, institute_triples
from rgat.data.synthetic.planted import NUM_WITNESSES, planted


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_parts_of_built_in_sets_are_apart(name):
    data = load(name)
    parts = [set(ids.tolist()) for ids in (data.train, data.valid, data.test)]
    assert sum(map(len, parts)) == len(set().union(*parts))
    assert all(parts)
    assert name in str(data)
    assert data.provenance


def test_the_institute_is_what_its_description_says():
    data = load("institute")
    triples, groups = institute_triples()
    assert 3000 < len(triples) < 7000
    assert len({p for _, p, _ in triples}) == 21
    assert data.graph.num_relations == 2 * 21 + 1 == len(data.relation_names)
    assert data.graph.num_edges == 2 * len(triples) + data.graph.num_nodes
    assert sum(o.startswith('"') for _, _, o in triples) > 500
    assert not any(LABEL_PREDICATE in p for _, p, _ in triples)
    labelled = data.labels != MISSING
    assert labelled.sum() == len(groups) == len(data.train) + len(data.valid) + len(data.test)
    for node in labelled.nonzero().squeeze(1).tolist():
        assert groups[data.node_names[node]] == data.classes[data.labels[node]]
    assert data.labels[labelled].bincount(minlength=4).min() > 40
    assert list(data.node_names) == sorted(data.node_names)


def test_data_do_not_depend_on_hash_order():
    code = (
        "import hashlib, torch; from rgat.data import BUILT_IN, load\n"
        "digest = hashlib.sha256()\n"
        "for name in BUILT_IN:\n"
        "    d = load(name)\n"
        "    g = d.graph if hasattr(d, 'graph') else d.graphs\n"
        "    for t in (g.edge_index, g.edge_type, d.labels, d.train, d.valid, d.test):\n"
        "        digest.update(t.contiguous().numpy().tobytes())\n"
        "print(digest.hexdigest())"
    )
    outputs = set()
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        outputs.add(done.stdout)
    assert len(outputs) == 1


def test_the_molecules_are_what_their_description_says():
    data = load("molecules")
    assert len(data.graphs) == len(data.graph_names) == len(set(data.graph_names)) == 320
    assert 0.05 < (data.labels == MISSING).double().mean() < 0.2
    chem = rdkit()
    by_name = dict(zip(data.tasks, data.labels.t().tolist(), strict=True))
    for smiles, amide, acid in zip(data.graph_names, by_name["amide"], by_name["acid"], strict=True):
        molecule = chem.MolFromSmiles(smiles)
        assert molecule is not None
        if amide != MISSING:
            assert amide == molecule.HasSubstructMatch(chem.MolFromSmarts("C(=O)N"))
        if acid != MISSING:
            assert acid == molecule.HasSubstructMatch(chem.MolFromSmarts("C(=O)[OH]"))
    for part in (data.train, data.valid, data.test):
        for task in range(len(data.tasks)):
            assert set(data.labels[part, task].tolist()) >= {0, 1}


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


def test_batches_of_a_store_equal_collated_graphs():
    store = load("molecules").graphs
    ids = torch.tensor([5, 0, 5, 300, 17])
    x, batch = store.batch(ids)
    expected = RelationalGraph.collate([store[int(k)] for k in ids])
    assert torch.equal(batch.edge_index, expected.edge_index)
    assert torch.equal(batch.edge_type, expected.edge_type)
    assert torch.equal(batch.batch, expected.batch)
    assert (batch.num_graphs, batch.num_nodes) == (5, expected.num_nodes)
    assert torch.equal(x, torch.cat([store.batch(k.view(1))[0] for k in ids]))
    assert torch.equal(store[-1].edge_type, store[319].edge_type)
    with pytest.raises(IndexError, match="graph 320 of 320"):
        store[320]


@pytest.mark.parametrize("kind", ["needle", "rivals"])
def test_in_the_planted_sets_the_one_loud_witness_names_the_class(kind):
    data = planted(kind)
    cases = len(data.node_names) // (NUM_WITNESSES + 2)
    witnesses = data.x[: cases * NUM_WITNESSES].view(cases, NUM_WITNESSES, -1)
    named, loud = witnesses[..., :4].argmax(-1), witnesses[..., 4] > 0
    truth = data.labels[-cases:]
    assert (loud.sum(1) == 1).all()
    assert torch.equal(named[loud], truth)
    if kind == "needle":
        counts = torch.nn.functional.one_hot(named, 4).sum(1)
        assert (counts == NUM_WITNESSES // 4).all()  # so a mean over the witnesses is the same for every case
    group_sizes = data.graph.structure.group_ptr.diff()
    assert group_sizes.max() == (NUM_WITNESSES if kind == "needle" else 1)


def test_in_the_consensus_most_witnesses_name_the_class():
    data = planted("consensus")
    cases = len(data.node_names) // (NUM_WITNESSES + 2)
    votes = data.x[: cases * NUM_WITNESSES].view(cases, NUM_WITNESSES, -1)[..., :4].mean(1)
    assert (votes.argmax(1) == data.labels[-cases:]).double().mean() > 0.9


def test_another_seed_gives_another_draw():
    assert not torch.equal(planted("needle", 0).x, planted("needle", 1).x)


def test_an_unknown_name_is_refused_with_a_suggestion():
    with pytest.raises(ValueError, match=r'got "institut"; did you mean "institute"\?'):
        load("institut")


def test_a_missing_library_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "rdkit", None)
    with pytest.raises(ImportError, match=r"needs RDKit; install it with `pip install 'rgat\[molecules\]'`"):
        load("molecules")
