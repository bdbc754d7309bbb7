"""Take data frames of pandas and Polars, and give predictions as data frames."""

import sys

import numpy as np
import pytest
import torch

import rgat
from rgat.data import from_rdf, from_smiles
from rgat.data.tables import read_table
from rgat.predictor import Predictions

pandas = pytest.importorskip("pandas", reason="data frames need pandas")
polars = pytest.importorskip("polars", reason="data frames need Polars")
LIBRARIES = pytest.mark.parametrize("library", [pandas, polars], ids=["pandas", "polars"])
MOLECULES = {"smiles": [f"{'C' * n}O" for n in range(1, 21)], "toxic": [n % 2 for n in range(20)]}


@LIBRARIES
def test_molecules_of_a_data_frame_are_those_of_a_file(library, tmp_path):
    pytest.importorskip("rdkit", reason="molecules need rdkit")
    columns = MOLECULES | {"active": [None, *([True, False] * 9), True], "note": ["x"] * 20}
    data = from_smiles(library.DataFrame(columns), shares=(0.6, 0.2))
    (tmp_path / "table.csv").write_text(
        "smiles,toxic,active,note\n"
        + "".join(f"{s},{t},{'' if a is None else int(a)},{n}\n" for s, t, a, n in zip(*columns.values(), strict=True))
    )
    same = from_smiles(tmp_path / "table.csv", shares=(0.6, 0.2))
    assert data.tasks == same.tasks == ("toxic", "active")
    assert torch.equal(data.labels, same.labels)
    assert data.graph_names == same.graph_names
    with pytest.raises(ValueError, match='data frame, line 2: "oh" cannot be read as SMILES'):
        from_smiles(library.DataFrame({"smiles": ["CC", "oh"], "y": [0, 1]}))


@LIBRARIES
def test_labels_of_a_data_frame_are_those_of_a_file(library, tmp_path):
    pytest.importorskip("pyoxigraph", reason="RDF needs pyoxigraph")
    line = "<http://x.org/{}> <http://x.org/cites> <http://x.org/b> .\n"
    (tmp_path / "dump.nt").write_text("".join(line.format(n) for n in range(20)))
    frame = library.DataFrame({"node": [f"http://x.org/{n}" for n in range(20)], "class": [n % 2 for n in range(20)]})
    data = from_rdf(tmp_path / "dump.nt", frame)
    assert data.classes == ("0", "1")
    assert len(data.train) == 16
    parts = from_rdf(tmp_path / "dump.nt", train=frame[:12], test=frame[12:])
    assert (len(parts.train), len(parts.test)) == (12, 8)


def test_missing_values_are_empty_cells():
    frame = pandas.DataFrame({"a": [1.5, None], "b": pandas.array([1, None], dtype="Int64"), 7: ["x", float("nan")]})
    table = read_table(frame)
    assert (table.header, table.rows, table.lines) == (("a", "b", "7"), [["1.5", "1", "x"], ["", "", ""]], [1, 2])
    frame.columns = ["a", "a", "b"]
    with pytest.raises(ValueError, match="data frame: column names must differ, got a, a, b"):
        read_table(frame)


def test_predictions_become_data_frames():
    nodes = Predictions(("<x:a>", "<x:b>"), ("one", "two"), np.array([[0.25, 0.75], [1 / 3, 2 / 3]]), np.zeros((2, 2)))
    frame = nodes.to_pandas()
    assert list(frame.columns) == nodes.header()
    assert frame["class"].tolist() == ["two", "two"]
    assert frame["p(one)"].tolist() == [0.25, 1 / 3]  # not rounded
    assert nodes.to_polars()["probability"].to_list() == [0.75, 2 / 3]
    assert nodes.rows()[1][2] == "0.666667"


@pytest.fixture(scope="module")
def model():
    pytest.importorskip("rdkit", reason="molecules need rdkit")
    return rgat.fit("molecules", hidden_channels=4, max_epochs=1, comparison=False)


@LIBRARIES
def test_a_column_of_a_data_frame_is_predicted(library, model):
    smiles = library.DataFrame({"smiles": ["CCO", "no molecule", "CC"]})["smiles"]
    predictions = model.predict(smiles)
    frame = getattr(predictions, f"to_{library.__name__}")()
    assert frame["smiles"].to_list() == ["CCO", "no molecule", "CC"]
    assert np.isnan(frame["amide"].to_list()).tolist() == [False, True, False]
    assert frame["problem"].to_list()[1] == "cannot be read as SMILES"
    for wrong, got in (
        (library.DataFrame({"smiles": ["CC"]}), "a data frame; give its column"),
        (["CC", None], "None"),
    ):
        with pytest.raises(ValueError, match=f"`smiles` must be texts, got {got}"):
            model.predict(wrong)


@pytest.mark.parametrize("name", ["pandas", "polars"])
def test_a_missing_library_says_how_to_get_it(name, monkeypatch):
    predictions = Predictions(("<x:a>",), ("one",), np.ones((1, 1)), np.zeros((1, 1)))
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=f"pip install {name}"):
        getattr(predictions, f"to_{name}")()


def test_odd_frames_are_read_or_refused_in_a_sentence():
    frame = pandas.DataFrame({"a": np.array([np.bool_(True), np.bool_(False), None], dtype=object)})
    assert read_table(frame).rows == [["1"], ["0"], [""]]
    with pytest.raises(ValueError, match=r"must be in memory, got a lazy one; pass `frame.collect"):
        from_smiles(polars.DataFrame({"smiles": ["C"], "a": [1]}).lazy())
    for library in (pandas, polars):
        with pytest.raises(ValueError, match=r'a cell must have one value, got a .* in column "a"; give each value'):
            read_table(library.DataFrame({"a": [[1, 2], [3]]}))
