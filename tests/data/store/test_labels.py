import numpy as np
import pytest
import torch
from helpers_rdf import EX, table, write

from rgat.data import convert, from_rdf
from rgat.data.rdf.labels import LabelSource
from rgat.data.store import StoreWriter, label_store, open_store

TEXT = "".join(f"<{EX}{n}> <{EX}{'knows' if n % 2 else 'likes'}> <{EX}{(n * 7 + 1) % 40}> .\n" for n in range(40))
TEXT += "".join(f'<{EX}{n}> <{EX}group> "{n % 3}" .\n_:b{n} <{EX}of> <{EX}{n}> .\n' for n in range(30))
LABELS = "node class part\n" + "".join(
    f"{EX}{n} {'abc'[n % 3]} {('train', 'valid', 'test')[n // 10]}\n" for n in range(29, -1, -1)
)
SPLIT = {"label_column": "class", "split_column": "part"}


@pytest.fixture
def dump(tmp_path):
    return write(tmp_path, TEXT)


def assert_equal(a, b):
    """Compare two data sets of labelled nodes."""
    assert torch.equal(a.graph.edge_index, b.graph.edge_index)
    assert torch.equal(a.graph.edge_type, b.graph.edge_type)
    assert (a.node_names, a.relation_names, a.classes) == (b.node_names, b.relation_names, b.classes)
    assert a.provenance == b.provenance
    assert (a.x is None) == (b.x is None)
    assert a.x is None or torch.equal(a.x, b.x)
    assert_same_labels(a, b)


def assert_same_labels(a, b):
    for name in ("labels", "train", "valid", "test"):
        assert torch.equal(getattr(a, name), getattr(b, name)), name


OPTIONS = [
    {"labels": "table", "label_column": "class", "seed": 3},
    {"labels": "table", **SPLIT},
    {"train": "table", "test": "other", "label_column": "class"},
    {"label_predicate": f"{EX}group", "shares": (0.5, 0.2)},
    {"labels": "table", **SPLIT, "features": ("types", "degrees", "literals")},
    {"labels": "table", **SPLIT, "literals": "features"},
    {"labels": "table", **SPLIT, "hops": 1},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_from_rdf_reads_a_store_as_it_reads_the_dump(tmp_path, dump, options):
    files = {"table": table(tmp_path, LABELS), "other": table(tmp_path, f"node class\n{EX}35 a", "other.tsv")}
    options = {name: files.get(value, value) if isinstance(value, str) else value for name, value in options.items()}
    convert(dump, tmp_path / "store")
    assert_equal(from_rdf(tmp_path / "store", **options), from_rdf(dump, **options))
    assert_equal(from_rdf([str(tmp_path / "store")], **options), from_rdf(dump, **options))


@pytest.mark.parametrize("options", OPTIONS[:4], ids=str)
def test_stored_labels_are_split_as_those_of_a_table(tmp_path, dump, options):
    files = {"table": table(tmp_path, LABELS), "other": table(tmp_path, f"node class\n{EX}35 a", "other.tsv")}
    options = {name: files.get(value, value) if isinstance(value, str) else value for name, value in options.items()}
    split = {name: options.pop(name) for name in ("seed", "shares") if name in options}
    store = convert(dump, tmp_path / "store", **options)
    expected = from_rdf(dump, **options, **split)
    assert_equal(from_rdf(store.path, **split), expected)
    data = label_store(store, LabelSource(**split))
    assert_same_labels(data, expected)
    assert data.classes == expected.classes
    assert str(data).startswith(f"store: {len(expected.node_names)} nodes, ")


def test_a_store_without_inverses_stays_without(tmp_path, dump):
    options = {"inverses": False, "self_loops": False}
    store = convert(dump, tmp_path / "store", **options)
    assert from_rdf(store.path).relation_names == from_rdf(dump, **options).relation_names
    assert from_rdf(store.path, **options).relation_names == from_rdf(dump, **options).relation_names


def test_tables_label_a_store_without_loading_it(tmp_path, dump, monkeypatch):
    labels = table(tmp_path, LABELS + f"{EX}unknown a train\n")
    store = convert(dump, tmp_path / "store")
    source = LabelSource(labels, skip_unknown=True, **SPLIT)
    expected = from_rdf(dump, labels, skip_unknown=True, **SPLIT)
    monkeypatch.setattr(type(store.node_names), "__iter__", lambda names: pytest.fail("all names are read"))
    data = label_store(tmp_path / "store", source, name="mine")
    assert_same_labels(data, expected)
    assert (data.name, data.provenance["unknown_nodes"], data.classes) == ("mine", 1, ("a", "b", "c"))
    assert (data.relation_names, data.x, len(data.node_names)) == (store.relation_names, None, store.num_nodes)


def test_labels_of_a_made_up_graph_are_found_by_number(tmp_path):
    with StoreWriter(tmp_path / "store", 40, ["p"]) as writer:
        writer.add(np.arange(39), np.zeros(39, dtype=int), np.arange(1, 40))
        writer.add_features(np.ones((40, 2), dtype=np.float32))
    data = label_store(tmp_path / "store", LabelSource(table(tmp_path, "node class\nn3 a\nn12 b")))
    assert (data.labels >= 0).nonzero().squeeze(1).tolist() == [3, 12]
    assert "2 node features" in str(data)
    in_memory = from_rdf(tmp_path / "store", table(tmp_path, "node class\nn3 a\nn12 b"))
    assert torch.equal(in_memory.x, torch.ones(40, 2))
    assert in_memory.node_names[12] == "n12"


REFUSED = [
    ({"drop_predicates": [f"{EX}knows"]}, "drop"),
    ({"literals": "dropped"}, "literals"),
    ({"blank_nodes": "dropped"}, "blank-nodes"),
    ({"format": "turtle"}, "format"),
    ({"inverses": False}, "no-inverses"),
    ({"self_loops": False}, "no-self-loops"),
]


@pytest.mark.parametrize(("options", "option"), REFUSED)
def test_options_that_choose_triples_are_refused_with_a_store(tmp_path, dump, options, option):
    convert(dump, tmp_path / "store")
    message = f"store: triples and relations must be chosen when a store is written; give --{option} to `rgat data"
    with pytest.raises(ValueError, match=message):
        from_rdf(tmp_path / "store", **options)


def test_options_that_the_store_was_written_with_are_accepted(tmp_path, dump):
    options = {"literals": "dropped", "blank_nodes": "dropped"}
    convert(dump, tmp_path / "store", **options)
    assert_equal(from_rdf(tmp_path / "store", **options), from_rdf(dump, **options))


def test_a_store_must_be_alone_and_have_labels(tmp_path, dump):
    convert(dump, tmp_path / "store")
    with pytest.raises(ValueError, match=r"a store must be given alone, got .*store and 1 more; convert all to one"):
        from_rdf([dump, tmp_path / "store"])
    with pytest.raises(ValueError, match="store: has no labels; give a table of them, or convert the graph with"):
        label_store(open_store(tmp_path / "store"))
    with pytest.raises(ValueError, match="`label_predicate` must be chosen when a store is written, because its"):
        label_store(tmp_path / "store", LabelSource(label_predicate=f"{EX}group"))
    with pytest.raises(ValueError, match=r"must be a store, but has no store\.json"):
        from_rdf(tmp_path)
