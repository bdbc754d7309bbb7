import numpy as np
import pytest
import torch
from helpers_rdf import EX, TRIPLES, XSD, table, write

from rgat.data import convert, from_rdf, open_store
from rgat.data.store import features as store_features

TYPE = "<http://www.w3.org/1999/02/22-rdf-syntax-ns#type>"


def made_up(count=600, seed=0):
    """Return triples with types, links, numbers, dates, booleans and text, some of them twice."""
    rng = np.random.default_rng(seed)
    lines = []
    for _ in range(count):
        node, other = f"<{EX}{rng.integers(80)}>", f"<{EX}{rng.integers(90)}>"
        lines += [
            f"{node} {TYPE} <{EX}Type{rng.integers(4)}> .",
            f"{node} <{EX}links{rng.integers(3)}> {other} .",
            f'{node} <{EX}size> "{rng.normal():.3f}"^^<{XSD}double> .',
            f'{other} <{EX}constant> "7"^^<{XSD}integer> .',
            f'{node} <{EX}since> "20{rng.integers(10, 30)}-01-01"^^<{XSD}date> .',
            f'{other} <{EX}note> "word{rng.integers(9)} and word{rng.integers(9)}" .',
            f'{other} <{EX}kind> "{"abcde"[rng.integers(5)]}" .',
            f'_:b{rng.integers(5)} <{EX}huge> "{rng.integers(9)}e300"^^<{XSD}double> .',
        ]
    return "\n".join(lines) + "\n"


OPTIONS = [
    ("types",),
    ("degrees",),
    ("literals",),
    ("types", "degrees"),
    ("types", "degrees", "literals"),
]


@pytest.mark.parametrize("features", OPTIONS, ids="-".join)
@pytest.mark.parametrize("block", [37, 100_000])
def test_features_are_those_of_from_rdf(tmp_path, monkeypatch, features, block):
    monkeypatch.setattr(store_features, "_BLOCK_TRIPLES", block)
    monkeypatch.setattr(store_features, "_BLOCK_VALUES", 20 * block)
    path = write(tmp_path, made_up())
    data = from_rdf(path, features=features)
    store = convert(path, tmp_path / "store", features=features, memory=1)
    assert list(store.node_names) == list(data.node_names)
    assert store.relation_names == data.relation_names
    assert torch.equal(store.to_graph().edge_index, data.graph.edge_index)
    torch.testing.assert_close(store.x, data.x)
    stored, expected = store.provenance["vocabulary"], data.provenance["vocabulary"]
    assert stored == expected
    assert (stored["literals"] is not None) == ("literals" in features)


def test_literals_as_features_without_inverses_and_with_a_label_predicate(tmp_path):
    path = write(tmp_path, TRIPLES + f"<{EX}b> <{EX}kind> <{EX}x> .\n<{EX}c> <{EX}kind> <{EX}y> .\n")
    options = {"literals": "features", "inverses": False, "label_predicate": f"{EX}kind", "features": ("degrees",)}
    store = convert(path, tmp_path / "store", **options)
    data = from_rdf(path, **options)
    torch.testing.assert_close(store.x, data.x)
    assert (list(store.node_names), store.relation_names) == (list(data.node_names), data.relation_names)
    again = from_rdf(store.path, inverses=False)
    assert torch.equal(again.x, store.x)
    # What the literals said is known only while they are read.
    of_literals = {name: data.provenance.pop(name) for name in ("titles", "literal_leaks", "literal_values")}
    assert len(of_literals["literal_values"]["node"]) == 6
    assert (again.classes, again.provenance) == (data.classes, data.provenance)
    assert torch.equal(again.labels, data.labels)


def test_a_store_with_features_refuses_others(tmp_path):
    convert(write(tmp_path), tmp_path / "store", features=("types",))
    labels = table(tmp_path, f"node class\n{EX}a x\n{EX}b y")
    assert from_rdf(tmp_path / "store", labels).x.shape == open_store(tmp_path / "store").x.shape
    for options in ({"features": ("types",)}, {"label_predicate": f"{EX}age"}, {"literals": "features"}):
        with pytest.raises(ValueError, match="must be left out, because the store has features already; give it to"):
            from_rdf(tmp_path / "store", **options)


def test_an_empty_graph_has_no_rows_of_features(tmp_path):
    store = convert(write(tmp_path, ""), tmp_path / "store", features=("types",))
    assert store.x.shape == from_rdf(tmp_path / "graph.nt", features=("types",)).x.shape == (0, 1)
