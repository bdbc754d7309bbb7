import csv

import numpy as np
import pyoxigraph as ox
import pytest

from rgat.data.tables import csv_cell
from rgat.predictor.predictions import Predictions

PROBABILITIES = np.array([[0.7, 0.3], [0.2, 0.8]])


def nodes(names=("<http://x/a>", "_:b1"), columns=("http://x/Red", 'a "b"\n')):
    return Predictions(names, columns, PROBABILITIES, PROBABILITIES / 10)


def test_nodes_go_to_tables_and_triples(tmp_path):
    nodes(columns=("http://x/Red", "blue")).save(tmp_path / "p.csv")
    first, second = (tmp_path / "p.csv").read_text().splitlines()[:2]
    assert first.startswith("node,class,probability,spread,p(http://x/Red),")
    nodes(columns=("red", "blue")).save(tmp_path / "p.tsv")
    row = (tmp_path / "p.tsv").read_text().splitlines()[1]
    assert row == "<http://x/a>\tred\t0.700000\t0.070000\t0.700000\t0.300000"
    nodes().save(tmp_path / "p.nt", "http://x/class")
    assert (tmp_path / "p.nt").read_text() == (
        '<http://x/a> <http://x/class> <http://x/Red> .\n_:b1 <http://x/class> "a \\"b\\"\\n" .\n'
    )
    nodes(columns=("<http://x/Red>", '"1"^^<http://x/int>')).save(tmp_path / "p.nt")
    assert (tmp_path / "p.nt").read_text().splitlines()[1].endswith('> "1"^^<http://x/int> .')
    assert second.startswith("<http://x/a>,http://x/Red,0.700000,0.070000")


def test_molecules_go_to_tables_that_mark_invalid_smiles(tmp_path):
    probabilities = np.array([[0.7, 0.3], [np.nan, np.nan]])
    predictions = Predictions(("CC", "?"), ("a", "b"), probabilities, probabilities / 10, exclusive=False)
    predictions.save(tmp_path / "p.csv")
    assert (tmp_path / "p.csv").read_text().splitlines() == [
        "smiles,a,b,a spread,b spread,problem",
        "CC,0.700000,0.300000,0.070000,0.030000,",
        "?,,,,,cannot be read as SMILES",
    ]
    assert predictions.labels.tolist() == [[1, 0], [-1, -1]]
    assert len(predictions) == 2
    with pytest.raises(ValueError, match="must be about nodes of a graph, got molecules"):
        predictions.save(tmp_path / "p.nt")


def test_other_files_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"ends in \.csv, \.tsv or \.nt"):
        nodes().save(tmp_path / "p.xlsx")
    with pytest.raises(ValueError, match="must be about IRIs, got case 1"):
        nodes(names=("case 1", "case 2")).save(tmp_path / "p.nt")


CLASSES = (
    "<http://x/Red>",
    '"1"^^<http://x/int>',
    '"rot"@de',
    "http://x/Red",
    "<b>bold</b>",
    "<http://x/a> <http://x/b>",
    "<http://x/a b>",
    "<no scheme>",
    "http://x/a\tb",
    "http://x/a\x00b",
    '"open',
    '"a" or "b"',
    '"a\\"',
    '"a\nb"',
    '"1"^^<int eger>',
    "a\\b\r\n",
    "",
)


@pytest.mark.parametrize("name", CLASSES)
def test_every_class_name_makes_valid_triples(tmp_path, name):
    nodes(columns=(name, "blue")).save(tmp_path / "p.nt")
    first, _ = ox.parse((tmp_path / "p.nt").read_bytes(), format=ox.RdfFormat.N_TRIPLES)
    if name in CLASSES[:4]:
        assert name in (str(first.object), first.object.value)
    else:
        assert first.object == ox.Literal(name)


@pytest.mark.parametrize("node", ["<http://x/a b>", "<http://x/a> .\n<http://x/b>", "_:a b", "<<( a b c )>>", ""])
def test_a_node_that_is_no_subject_is_refused(tmp_path, node):
    with pytest.raises(ValueError, match="must be about IRIs"):
        nodes(names=(node, "_:b1")).save(tmp_path / "p.nt")
    with pytest.raises(ValueError, match="a predicate must be an IRI"):
        nodes().save(tmp_path / "p.nt", "http://x/\x01")


def test_a_host_may_be_an_address_of_ipv6(tmp_path):
    names = "<http://[::1]/a>", "<http://u@[fe80::1]:8080/b#c>"
    nodes(names=names).save(tmp_path / "p.nt", "http://[::1]/says")
    found = list(ox.parse(path=tmp_path / "p.nt", format=ox.RdfFormat.N_TRIPLES))
    assert [str(triple.subject) for triple in found] == list(names)


@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
def test_no_cell_is_a_formula(tmp_path, suffix):
    bad = "=HYPERLINK(1)", "@SUM(1)"
    nodes(names=("+cmd|' /C calc'!A0", "\t=1"), columns=bad).save(tmp_path / f"p{suffix}")
    task = Predictions(("=C", "C"), ("-x", "b"), PROBABILITIES, PROBABILITIES, exclusive=False)
    task.save(tmp_path / f"q{suffix}")
    for name in "pq":
        with (tmp_path / f"{name}{suffix}").open(newline="") as file:
            rows = list(csv.reader(file, delimiter="\t" if suffix == ".tsv" else ","))
        assert not [cell for row in rows for cell in row if cell.startswith(("=", "+", "-", "@", "\t", "\r"))]
    assert rows[0][1] == "'-x"
    assert rows[1][0] == "'=C"


def test_numbers_stay_numbers_in_a_cell():
    for text in ("-1", "+1.5e-3", "-inf", "0.5", "", "a=b", "<http://x/a>"):
        assert csv_cell(text) == text


@pytest.mark.parametrize(
    "name",
    [
        "<http://e/50%>",
        "<http://[x>",
        "<http://[::::]/>",
        "<http://[::1]x/>",
        "<http://e/[::1]>",
        '"x"@abcdefghij',
        r'"\uD800"',
        r'"\UFFFFFFFF"',
    ],
)
def test_names_that_only_look_like_terms_are_literals(name, tmp_path):
    predictions = Predictions(("<http://e/a>",), (name, "other"), np.array([[0.9, 0.1]]), np.zeros((1, 2)))
    predictions.save(tmp_path / "p.nt")
    (triple,) = ox.parse(path=tmp_path / "p.nt", format=ox.RdfFormat.N_TRIPLES)
    assert triple.object.value == name


def test_a_carriage_return_stays_in_its_row(tmp_path):
    predictions = Predictions(("a\rb", "c"), ("x", "y"), np.full((2, 2), 0.5), np.zeros((2, 2)))
    predictions.save(tmp_path / "p.csv")
    with (tmp_path / "p.csv").open(newline="") as file:
        assert [row[0] for row in csv.reader(file)] == ["node", "a b", "c"]
