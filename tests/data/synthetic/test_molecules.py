from rgat.data import MISSING, load
from rgat.data.molecules.smiles import rdkit


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
