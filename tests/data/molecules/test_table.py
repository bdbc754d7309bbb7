import pytest
import torch

from rgat.data import from_smiles
from rgat.data.molecules.smiles import NUM_BOND_FEATURES, scaffold
from rgat.data.molecules.table import distinct
from rgat.nn import RGATConv

CSV = "id,toxic,SMILES,active,dose\nm1,0,CCO,1,2.5\nm2,1.0,c1ccccc1O,,3\nm3,,CC(=O)N,0,4\n"


def write(folder, text=CSV, name="m.csv"):
    path = folder / name
    path.write_text(text)
    return path


def test_a_table_of_molecules(tmp_path):
    data = from_smiles(write(tmp_path), tasks=["toxic", "active"])
    assert data.tasks == ("toxic", "active")
    assert data.provenance["ignored_columns"] == ["id", "dose"]
    assert data.labels.tolist() == [[0, 1], [1, -1], [-1, 0]]
    assert data.graph_names == ("CCO", "c1ccccc1O", "CC(=O)N")
    assert data.provenance["edges"] == 2 + 7 + 3
    assert (data.graphs.num_relations, data.provenance["relations"]) == (5, 4)
    assert sorted(torch.cat([data.train, data.valid, data.test]).tolist()) == [0, 1, 2]
    assert from_smiles(write(tmp_path), tasks=["active"]).tasks == ("active",)
    assert from_smiles(write(tmp_path), tasks=["active"], self_loops=False).graphs.num_relations == 4


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (CSV, {"tasks": ["dose"], "task": "binary"}, r'm\.csv, line 2: task dose must be 0, 1 or empty, got "2\.5"'),
        (CSV, {}, r"m\.csv: column dose holds numbers other than 0 and 1; cut them .*--threshold dose=VALUE"),
        (CSV, {"tasks": ["toxic"], "thresholds": {"id": 1}}, r'line 2: id, which has a threshold, .* got "m1"'),
        (CSV, {"thresholds": {"dos": 1}}, r'did you mean "dose"\?'),
        ("smiles,t\nCCO,blue\n", {}, r"some column beside smiles must hold 0, 1 or nothing, or numbers, got t"),
        (CSV, {"tasks": ["activ"]}, r'did you mean "active"\?'),
        (CSV, {"smiles_column": "smiles"}, r'got "smiles"'),
        (CSV, {"tasks": ["active", "active"]}, r"`tasks` \(--tasks\) must name each column once, got active twice"),
        ("smiles,t\nCCO,True\nCC,\n", {}, r"column t holds words such as True; write 1 and 0 instead"),
        (",smiles\n0,CCO\n1,CC\n", {}, r"some column beside smiles must hold 0, 1 or nothing"),
        (CSV, {"split": "scafold"}, r'did you mean "scaffold"\?'),
        ("a,b\n1,2\n", {}, r"m\.csv: one column must be called smiles, got a, b"),
        ("smiles,t\nCCO,1\nC(C,0\n,1\n", {}, r'm\.csv, line 3: "C\(C" cannot be read as SMILES \(2 of 3 rows\)'),
    ],
)
def test_bad_tables_are_refused(tmp_path, text, options, message):
    with pytest.raises(ValueError, match=message):
        from_smiles(write(tmp_path, text), **options)


def test_a_threshold_makes_a_task_of_numbers(tmp_path):
    data = from_smiles(write(tmp_path, CSV.replace(",,3", ",,")), thresholds={"dose": 2.5})
    assert data.tasks == ("toxic", "active", "dose")
    assert data.labels[:, 2].tolist() == [1, -1, 1]
    cut = from_smiles(write(tmp_path), tasks=["toxic"], thresholds={"dose": 3.5})
    assert (cut.tasks, cut.labels[:, 1].tolist()) == (("toxic", "dose"), [0, 0, 1])


def test_rows_of_one_molecule_stay_on_one_side(tmp_path):
    spellings = ["CCO", "OCC", "c1ccccc1", "C1=CC=CC=C1", "CC", "CCC", "CCCC", "C(CC)C", "CN", "NC"]
    table = "smiles,t\n" + "".join(f"{smiles},1\n" for smiles in spellings)
    for seed in range(5):
        data = from_smiles(write(tmp_path, table), shares=(0.5, 0.2), seed=seed)
        parts = [set(part.tolist()) for part in (data.train, data.valid, data.test)]
        assert sorted(row for part in parts for row in part) == list(range(10))
        for pair in ({0, 1}, {2, 3}, {6, 7}, {8, 9}):
            assert sum(bool(pair & part) for part in parts) == 1


def test_invalid_rows_are_skipped_only_on_request(tmp_path):
    path = write(tmp_path, "smiles,t\nCCO,1\nC(C,0\n,1\nCC,0\n")
    data = from_smiles(path, skip_invalid=True)
    assert data.graph_names == ("CCO", "CC")
    assert data.labels.tolist() == [[1], [0]]
    assert data.provenance["skipped_lines"] == [3, 4]


def test_bonds_and_atoms_can_have_more_features(tmp_path):
    data = from_smiles(write(tmp_path, "smiles,t\nC/C=C/C,1\nC1CC1,0\nN[C@@H](C)C(=O)O,1\n"), rich=True, bonds=True)
    assert data.in_channels == 85
    store = data.graphs
    assert store.edge_attr.shape == (len(store.edge_type), NUM_BOND_FEATURES)
    loops = store.edge_type == 4
    assert store.edge_attr[loops].abs().sum() == 0
    assert torch.equal(store.edge_attr[~loops][:, :4].argmax(1), store.edge_type[~loops])
    assert store.edge_attr[:, 8].sum() == 2  # the E double bond, both directions
    ring = store.batch(torch.tensor([1]))[0]
    assert ring[:, 75].tolist() == ring[:, 76].tolist() == [1, 1, 1]
    assert store.batch(torch.tensor([2]))[0][:, 82:84].sum() == 1  # one chiral centre
    x, batch = store.batch(torch.tensor([0, 2]))
    assert RGATConv(85, 4, 5, edge_dim=NUM_BOND_FEATURES)(x, batch).shape == (len(x), 4)


def test_scaffolds_stay_in_one_part(tmp_path):
    rows = ["c1ccccc1C", "c1ccccc1CC", "c1ccccc1O", "C1CCCC1C", "C1CCCC1O", "c1ccncc1C"]
    table = "smiles,t\n" + "".join(f"{smiles},1\n" for smiles in rows)
    data = from_smiles(write(tmp_path, table), split="scaffold", shares=(0.5, 0.4))
    assert scaffold("c1ccccc1CC") == "c1ccccc1"
    scaffolds = [scaffold(name) for name in data.graph_names]
    parts = [{scaffolds[place] for place in part.tolist()} for part in (data.train, data.valid, data.test)]
    assert parts == [{"c1ccccc1"}, {"C1CCCC1"}, {"c1ccncc1"}]


def test_repeats_take_the_largest_label():
    names = ["a", "b", "a", "c", "b"]
    labels = torch.tensor([[0, -1], [1, 0], [1, -1], [-1, 1], [0, -1]])
    rows, merged = distinct(names, labels)
    assert rows.tolist() == [0, 1, 3]
    assert merged.tolist() == [[1, -1], [1, 0], [-1, 1]]
