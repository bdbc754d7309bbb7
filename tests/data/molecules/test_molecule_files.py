"""Molecules as chemists have them: SDF files, salts, stereoisomers, and the splits that they ask for."""

import gzip

import pytest
import torch
from rdkit import Chem

from rgat.data import from_smiles
from rgat.data.graph_store import concatenate
from rgat.data.molecules import reading
from rgat.data.molecules.smiles import largest_fragment, parse_smiles, store_molecules
from rgat.predictor.inspection import describe
from rgat.predictor.streaming import read_smiles

SMILES = ["CCO", "c1ccccc1O", "C[C@H](N)C(=O)O", "CC(=O)N"]


def sdf(smiles, **columns):
    """Return the text of an SDF file with properties."""
    records = []
    for row, text in enumerate(smiles):
        fields = "".join(f">  <{name}>\n{values[row]}\n\n" for name, values in columns.items() if values[row] != "")
        records.append(f"{Chem.MolToMolBlock(Chem.MolFromSmiles(text))}{fields}$$$$\n")
    return "".join(records)


def write(folder, text, name="m.csv"):
    path = folder / name
    path.write_text(text)
    return path


def test_an_sdf_file_is_a_table_of_its_properties(tmp_path):
    text = sdf(SMILES, toxic=["1", "0", "", "1"], source=["a", "b", "c", "d"], SMILES=["x"] * 4)
    (tmp_path / "m.sdf.gz").write_bytes(gzip.compress(text.encode()))
    for path in (write(tmp_path, text, "m.sdf"), tmp_path / "m.sdf.gz"):
        data = from_smiles(path)
        assert data.tasks == ("toxic",)
        assert data.labels.flatten().tolist() == [1, 0, -1, 1]
        assert data.provenance["ignored_columns"] == ["source"]
        assert [Chem.CanonSmiles(name) for name in data.graph_names] == [Chem.CanonSmiles(each) for each in SMILES]
        assert list(read_smiles(path)) == list(data.graph_names)
    table = "smiles,toxic\n" + "".join(
        f"{name},{label}\n" for name, label in zip(data.graph_names, ("1", "0", "", "1"), strict=True)
    )
    same = from_smiles(write(tmp_path, table))
    assert torch.equal(same.graphs.x, data.graphs.x)
    assert torch.equal(same.graphs.edge_index, data.graphs.edge_index)


def test_bad_sdf_files_are_named_by_line(tmp_path):
    broken = (
        sdf(SMILES[:1], t=["1"]) + "no\nmolecule\nhere\n  bad\nM  END\n>  <t>\n1\n\n$$$$\n" + sdf(SMILES[3:], t=["0"])
    )
    path = write(tmp_path, broken, "m.sdf")
    line = sdf(SMILES[:1], t=["1"]).count("\n") + 1
    with pytest.raises(ValueError, match=rf"m\.sdf, line {line}: .*cannot be read as SMILES \(1 of 3 rows\)"):
        from_smiles(path)
    assert from_smiles(path, skip_invalid=True).provenance["skipped_lines"] == [line]
    assert list(read_smiles(path))[1] == ""
    with pytest.raises(ValueError, match="must hold at least one molecule, got none"):
        from_smiles(write(tmp_path, "\n", "empty.sdf"))
    with pytest.raises(ValueError, match="must be left out"):
        list(read_smiles(path, "smiles"))


def test_salts_are_counted_and_the_largest_fragment_kept_on_request(tmp_path):
    path = write(tmp_path, "smiles,t\nCC(=O)[O-].[Na+],1\nCCO.CCCO,0\nCCN,1\n")
    whole, largest = from_smiles(path), from_smiles(path, fragments="largest")
    assert (whole.provenance["mixtures"], whole.provenance["fragments"]) == (2, "keep")
    assert whole.graph_names[0] == "CC(=O)[O-].[Na+]"
    assert largest.graph_names == ("CC(=O)[O-]", "CCCO", "CCN")
    assert whole.graphs.node_ptr.diff().tolist() == [5, 7, 3]
    assert largest.graphs.node_ptr.diff().tolist() == [4, 4, 3]
    assert any("2 molecules of several fragments; all fragments were kept" in line for line in describe(whole))
    assert any("only the largest fragment" in line for line in describe(largest))
    with pytest.raises(ValueError, match="`fragments` must be"):
        from_smiles(path, fragments="first")
    assert Chem.MolToSmiles(largest_fragment(parse_smiles("CN.CO"))) == "CN"  # of equals the first by name


def test_stereoisomers_are_noticed_with_contradictory_labels_and_stay_together(tmp_path):
    pairs = "smiles,t\nC[C@H](N)O,1\nC[C@@H](N)O,0\nF/C=C/F,1\nF/C=C\\F,1\nCC,0\nCCC,1\nCCO,0\nCN,1\n"
    for seed in range(5):
        data = from_smiles(write(tmp_path, pairs), seed=seed, shares=(0.5, 0.25))
        parts = [set(part.tolist()) for part in (data.train, data.valid, data.test)]
        assert all(sum(bool(pair & part) for part in parts) == 1 for pair in ({0, 1}, {2, 3}))
    about = data.provenance
    assert (about["stereo_molecules"], about["stereoisomers"], about["contradictory_isomers"]) == (4, 2, 1)
    assert "repeated_molecules" not in about
    (line,) = (line for line in describe(data) if line.startswith("stereo"))
    assert "the model ignores" in line
    rich = from_smiles(write(tmp_path, pairs), rich=True)
    assert any("the model reads" in line for line in describe(rich))


def test_chunks_give_the_same_store(tmp_path, monkeypatch):
    path = write(tmp_path, "smiles,t\n" + "".join(f"{text},1\n" for text in SMILES * 2))
    whole = from_smiles(path, bonds=True).graphs
    monkeypatch.setattr(reading, "CHUNK", 3)
    chunked = from_smiles(path, bonds=True).graphs
    for name in ("x", "edge_index", "edge_type", "node_ptr", "edge_ptr", "edge_attr"):
        assert torch.equal(getattr(chunked, name), getattr(whole, name)), name
    parts = [store_molecules([parse_smiles(text)]) for text in SMILES]
    assert torch.equal(concatenate(parts).x, store_molecules([parse_smiles(text) for text in SMILES]).x)


def rows(count=40):
    """Return a table of different molecules with a label, a year, a laboratory and a part."""
    words = ("train", "train", "train", "valid", "test")
    lines = [
        f"{'C' * (row + 1)}O,{int(row % 4 == 0)},{2000 + row // 4},lab{row % 8},{words[row % 5]}"
        for row in range(count)
    ]
    return "smiles,t,year,lab,part\n" + "\n".join(lines) + "\n"


def test_a_split_by_time_trains_on_the_oldest(tmp_path):
    data = from_smiles(write(tmp_path, rows()), tasks=["t"], split="time", split_column="year", shares=(0.7, 0.1))
    years = [2000 + row // 4 for row in range(40)]
    newest = [max(years[i] for i in part.tolist()) for part in (data.train, data.valid)]
    oldest = [min(years[i] for i in part.tolist()) for part in (data.valid, data.test)]
    assert newest[0] < oldest[0]
    assert newest[1] < oldest[1]
    assert (data.provenance["split"], data.provenance["split_column"]) == ("time", "year")
    dates = rows().replace("2003", "2003-05-01").replace("smiles", "smiles")
    with pytest.raises(ValueError, match=r'line 14: a split by time needs a column of dates .* got "2003-05-01"'):
        from_smiles(write(tmp_path, dates), tasks=["t"], split="time", split_column="year")
    with pytest.raises(ValueError, match=r'line 2: a split by time needs .* got "lab0"'):
        from_smiles(write(tmp_path, rows()), tasks=["t"], split="time", split_column="lab")


def test_a_group_is_never_in_two_parts(tmp_path):
    for seed in range(4):
        data = from_smiles(
            write(tmp_path, rows()), tasks=["t"], split="group", split_column="lab", shares=(0.6, 0.2), seed=seed
        )
        groups = [{i % 8 for i in part.tolist()} for part in (data.train, data.valid, data.test)]
        assert sum(map(len, groups)) == 8
        assert all(groups)
    shared = rows() + "CO,1,2009,lab1,train\n"  # the molecule of the first row, of lab0
    data = from_smiles(write(tmp_path, shared), tasks=["t"], split="group", split_column="lab", shares=(0.6, 0.2))
    part_of = {row: k for k, part in enumerate((data.train, data.valid, data.test)) for row in part.tolist()}
    assert part_of[0] == part_of[40] == part_of[1]
    with pytest.raises(
        ValueError, match=r"the split by group must leave rows for every part, but the .* part is empty"
    ):
        from_smiles(
            write(tmp_path, rows().replace("lab1", "lab0")[:60]), tasks=["t"], split="group", split_column="lab"
        )


def test_given_parts_and_stratified_parts(tmp_path):
    data = from_smiles(write(tmp_path, rows()), tasks=["t"], split_column="part")
    assert (len(data.train), len(data.valid), len(data.test)) == (24, 8, 8)
    assert data.provenance["split"] == "column"
    with pytest.raises(ValueError, match=r'line 2: the part must be "train", "valid" or "test", got "lab0"'):
        from_smiles(write(tmp_path, rows()), tasks=["t"], split_column="lab")
    even = from_smiles(write(tmp_path, rows()), tasks=["t"], split="stratified", shares=(0.6, 0.2))
    assert [int(even.labels[part].sum()) for part in (even.train, even.valid, even.test)] == [6, 2, 2]
    with pytest.raises(ValueError, match='the split "group" needs a column'):
        from_smiles(write(tmp_path, rows()), tasks=["t"], split="group")
    with pytest.raises(ValueError, match='the split "random" must come without `split_column`'):
        from_smiles(write(tmp_path, rows()), tasks=["t"], split="random", split_column="lab")


def test_a_class_that_a_part_lacks_is_said(tmp_path):
    data = from_smiles(write(tmp_path, rows()), tasks=["t"], split="time", split_column="year")
    missing = from_smiles(
        write(tmp_path, rows().replace(",1,2009", ",0,2009")),
        tasks=["t"],
        split="time",
        split_column="year",
        shares=(0.8, 0.1),
    )
    assert not any("has no" in line for line in describe(data))
    assert any(
        line == "warning: the test part has no positive of t; --split stratified may help" for line in describe(missing)
    )
