import torch
from helpers_rdf import EX, XSD, write

from rgat.data import from_rdf
from rgat.data.rdf.reader import read_triples


def test_literals_as_nodes_dropped_or_features(tmp_path):
    path = write(tmp_path)
    assert sum(name[0] == '"' for name in read_triples(path).node_names) == 6
    dropped = read_triples(path, literals="dropped")
    assert not any(name[0] == '"' for name in dropped.node_names)
    assert len(dropped) == 5
    data = from_rdf(path, literals="features")
    assert [name for name in data.node_names if name[0] == "<"] == dropped.node_names[:3]
    assert [name for name in data.relation_names if "inverse" not in name] == [*dropped.relation_names, "self"]
    assert data.x.shape == (6, 32 + 2 * 2)
    age = data.x[:3, 32:34]  # of a, b, c: standardised 42, 42, 7, and that there is one
    assert age[:, 1].tolist() == [1, 1, 1]
    torch.testing.assert_close(age[:, 0], torch.tensor([0.5**0.5, 0.5**0.5, -(2**0.5)]))
    assert data.x[2, :32].sum() > 0
    assert data.x[:2, :32].abs().sum() == 0


def test_degrees_become_features(tmp_path):
    text = "".join(f"<{EX}{s}> <{EX}{p}> <{EX}{o}> .\n" for s, p, o in ("apb", "apc", "bqa", "cpa"))
    data = from_rdf(write(tmp_path, text), features=["degrees"])
    counts = [[2, 1, 0, 1], [0, 1, 1, 0], [1, 1, 0, 0]]  # of a, b, c: subject and object of p, then of q
    torch.testing.assert_close(data.x, torch.tensor(counts).float().log1p())


def test_dates_and_booleans_become_features_and_invalid_values_strings(tmp_path):
    text = "".join(
        f'<{EX}{n}> <{EX}{p}> "{v}"^^<{XSD}{t}> .\n'
        for n, p, v, t in (
            ("a", "born", "1900-01-01", "date"),
            ("b", "born", "1900-01-03Z", "date"),
            ("a", "alive", "true", "boolean"),
            ("b", "alive", "0", "boolean"),
            ("a", "age", "unknown", "integer"),
            ("a", "big", "INF", "double"),
            ("a", "year", "-0044", "gYear"),
            ("b", "year", "12005", "gYear"),
            ("a", "huge", "1.5e308", "double"),
            ("b", "huge", "-1.7e308", "double"),
        )
    )
    x = from_rdf(write(tmp_path, text), literals="features").x
    assert x[:, 32::2].sign().tolist() == [[1, -1, 1, -1], [-1, 1, -1, 1]]  # alive, born, huge, year
    assert x.isfinite().all()
    assert x[0, :32].gt(0).sum() == 2


def test_a_year_beyond_all_numbers_is_no_feature(tmp_path):
    (tmp_path / "graph.nt").write_text(
        "".join(
            f'<{EX}{name}> <{EX}year> "{year}"^^<{XSD}gYear> .\n' for name, year in (("a", "9" * 400), ("b", "2000"))
        )
    )
    assert torch.isfinite(from_rdf(tmp_path / "graph.nt", literals="features").x).all()
