import torch
from helpers_rdf import EX, XSD, write

from rgat.data import from_rdf
from rgat.data.rdf.features import encode, read_vocabulary
from rgat.data.rdf.reader import read_triples


def columns(data):
    return read_vocabulary(data.provenance).columns()


def test_literals_as_nodes_dropped_or_features(tmp_path):
    path = write(tmp_path)
    assert sum(name[0] == '"' for name in read_triples(path).node_names) == 6
    dropped = read_triples(path, literals="dropped")
    assert not any(name[0] == '"' for name in dropped.node_names)
    assert len(dropped) == 5
    data = from_rdf(path, literals="features")
    assert [name for name in data.node_names if name[0] == "<"] == dropped.node_names[:3]
    assert [name for name in data.relation_names if "inverse" not in name] == [*dropped.relation_names, "self"]
    places = {name.strip("<>").removeprefix(EX): (kind, place) for kind, name, place in columns(data)}
    assert {name: kind for name, (kind, _) in places.items()} == {"age": "number", "note": "text", "size": "number"}
    age = data.x[:3, places["age"][1]]  # of a, b, c: 42, 42 and 7
    assert age[0].tolist() == age[1].tolist() != age[2].tolist()
    assert age[:, -1].tolist() == [1, 1, 1]  # there is one
    assert data.x[2, places["note"][1]].abs().sum() > 0
    assert data.x[:2, places["note"][1]].abs().sum() == 0


def test_degrees_become_features(tmp_path):
    text = "".join(f"<{EX}{s}> <{EX}{p}> <{EX}{o}> .\n" for s, p, o in ("apb", "apc", "bqa", "cpa"))
    data = from_rdf(write(tmp_path, text), features=["degrees"])
    counts = [[2, 1, 0, 1], [0, 1, 1, 0], [1, 1, 0, 0]]  # of a, b, c: subject and object of p, then of q
    torch.testing.assert_close(data.x, torch.tensor(counts).float().log1p())


def test_a_vocabulary_of_an_earlier_version_encodes_as_it_did(tmp_path):
    """Two columns per predicate with numbers, standardised; the words of all strings in 32 shared columns."""
    numbers = {f"<{EX}age>": [42.0, 91 / 126, 0.4], f"<{EX}size>": [2.5, 0.8, 0.2]}
    record = {"types": None, "numbers": numbers, "degrees": None}
    triples, x = encode(read_triples(write(tmp_path)), read_vocabulary({"vocabulary": record}))
    assert not any(name[0] == '"' for name in triples.node_names)
    assert x.shape == (6, 32 + 2 * 2)
    torch.testing.assert_close(x[:3, 32], (torch.tensor([42, 42, 7]) / 42 - 91 / 126) / 0.4)
    assert x[:3, 33].tolist() == [1, 1, 1]
    assert x[2, :32].sum() > 0
    assert x[:2, :32].abs().sum() == 0


def test_a_year_beyond_all_numbers_is_no_feature(tmp_path):
    (tmp_path / "graph.nt").write_text(
        "".join(
            f'<{EX}{name}> <{EX}year> "{year}"^^<{XSD}gYear> .\n' for name, year in (("a", "9" * 400), ("b", "2000"))
        )
    )
    assert torch.isfinite(from_rdf(tmp_path / "graph.nt", literals="features").x).all()
