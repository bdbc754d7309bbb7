import bz2
import gzip
import os
import subprocess
import sys

import numpy as np
import pyoxigraph as ox
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rgat.data import MISSING, from_rdf, prune
from rgat.data.rdf.reader import FORMATS, SUFFIXES, read_triples, split_literal
from rgat.models import NodeClassifier

EX = "http://example.org/"
XSD = "http://www.w3.org/2001/XMLSchema#"
TRIPLES = f"""
<{EX}a> <{EX}knows> <{EX}b> .
<{EX}b> <{EX}knows> <{EX}c> .
<{EX}a> <{EX}age> "042"^^<{XSD}integer> .
<{EX}b> <{EX}age> "42"^^<{XSD}integer> .
<{EX}c> <{EX}age> "7"^^<{XSD}integer> .
<{EX}c> <{EX}note> "zwölf, \\"quoted\\"\\nand broken"@de .
<{EX}a> <{EX}has> _:x .
_:x <{EX}part> _:y .
_:y <{EX}size> "1.5"^^<{XSD}double> .
_:x <{EX}part> _:z .
_:z <{EX}size> "2.5"^^<{XSD}double> .
<{EX}a> <{EX}knows> <{EX}b> .
"""


def write(folder, text=TRIPLES, name="graph.nt"):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def same(a, b):
    return a.node_names == b.node_names and a.relation_names == b.relation_names and np.array_equal(a.edges, b.edges)


def test_triples_are_a_sorted_set(tmp_path):
    triples = read_triples(write(tmp_path))
    assert len(triples) == 11  # one was said twice
    assert triples.node_names == sorted(triples.node_names)
    assert triples.relation_names == sorted(f"<{EX}{p}>" for p in ("age", "has", "knows", "note", "part", "size"))
    assert len(triples.node_names) == 3 + 3 + 6
    names = {tuple(row) for row in triples.edges.tolist()}
    a, knows, b = triples.node_names.index(f"<{EX}a>"), triples.relation_names.index(f"<{EX}knows>"), f"<{EX}b>"
    assert (a, knows, triples.node_names.index(b)) in names
    assert triples.edges.tolist() == sorted(triples.edges.tolist())


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("compression", ["", ".gz", ".bz2"])
def test_every_format_of_the_same_triples_gives_the_same_graph(tmp_path, suffix, compression):
    expected = read_triples(write(tmp_path))
    quads = list(ox.parse(TRIPLES.encode(), format=ox.RdfFormat.N_TRIPLES))
    kind = getattr(ox.RdfFormat, FORMATS[SUFFIXES[suffix]])
    items = quads if kind.supports_datasets else [quad.triple for quad in quads]
    content = ox.serialize(reversed(items), format=kind)
    path = tmp_path / f"other{suffix}{compression}"
    path.write_bytes({"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress}[compression](content))
    assert same(read_triples(path), expected)
    renamed = tmp_path / f"data{compression}"
    path.rename(renamed)
    assert same(read_triples(renamed, format=SUFFIXES[suffix]), expected)


def test_anonymous_blank_nodes_are_named_by_their_neighbourhood(tmp_path):
    turtle = f"""@prefix e: <{EX}> .
    e:a e:knows e:b ; e:age "042"^^<{XSD}integer> ; e:has [ e:part [ e:size 2.5e0 ], [ e:size 1.5e0 ] ] .
    e:b e:knows e:c ; e:age 42 . e:c e:age 7 ; e:note "zwölf, \\"quoted\\"\\nand broken"@de ."""
    turtle = turtle.replace("2.5e0", f'"2.5"^^<{XSD}double>').replace("1.5e0", f'"1.5"^^<{XSD}double>')
    expected = read_triples(write(tmp_path))
    for _ in range(3):  # the parser draws new labels each time
        assert same(read_triples(write(tmp_path, turtle, "graph.ttl")), expected)


def test_blank_nodes_of_two_files_are_different_nodes(tmp_path):
    one = write(tmp_path, f"_:x <{EX}p> <{EX}a> .", "one.nt")
    two = write(tmp_path, f"_:x <{EX}p> <{EX}b> .", "two.nt")
    triples = read_triples([one, two])
    assert triples.node_names[:2] == [f"<{EX}a>", f"<{EX}b>"]
    assert len(triples.node_names) == 4
    assert len(read_triples([one, one])) == 2
    assert same(read_triples([two, one]), triples)


def lines(*triples):
    return "".join(f"{triple} .\n" for triple in triples)


def test_repeated_triples_and_their_order_do_not_change_ids(tmp_path):
    e = f"<{EX}"
    base = [
        f"_:x {e}p> {e}A>",
        f"_:y {e}p> {e}B>",
        f"_:x {e}q> _:y",
        f"_:z {e}p> {e}A>",
        f"_:u {e}q> _:z",
        f"_:u {e}p> {e}C>",
    ]
    twins = [f"_:x1 {e}p> _:y1", f"_:x2 {e}p> _:y2", f"{e}a> {e}r> _:y1", f"{e}a> {e}r> _:y2"]  # two equal pieces
    square = [f"_:{a} {e}p> _:{b}" for a, b in ("kl", "lm", "mn", "nk")]  # one piece, all alike
    for triples in (base, twins, square, base + twins + square):
        expected = read_triples(write(tmp_path, lines(*triples)))
        for k in range(len(triples)):
            moved = triples[k:] + triples[:k]
            assert same(read_triples(write(tmp_path, lines(*moved, triples[0]), "again.nt")), expected)
            assert same(read_triples(write(tmp_path, lines(*reversed(moved)), "again.nt")), expected)


def test_a_long_list_of_equal_items_is_read(tmp_path):
    """Rounds of refining are bounded; without a bound this one would need thousands."""
    items = " ".join(["1"] * 5000)
    assert len(read_triples(write(tmp_path, f"<{EX}a> <{EX}p> ( {items} ) .", "list.ttl"))) == 10_001


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


def test_a_literal_is_split_into_value_and_datatype_or_language():
    assert split_literal('"a\\"b"@en') == ('a\\"b', "@en")


def test_predicates_and_blank_nodes_can_be_dropped(tmp_path):
    path = write(tmp_path)
    triples = read_triples(path, drop_predicates=[f"{EX}knows", f"<{EX}age>"], blank_nodes="dropped")
    assert triples.relation_names == [f"<{EX}note>"]
    assert len(triples) == 1


def test_inverses_and_self_loops_are_options(tmp_path):
    path = write(tmp_path)
    data = from_rdf(path)
    assert (data.graph.num_relations, data.graph.num_edges) == (2 * 6 + 1, 2 * 11 + 12)
    assert len(data.relation_names) == 13
    plain = from_rdf(path, inverses=False, self_loops=False)
    assert (plain.graph.num_relations, plain.graph.num_edges) == (6, 11)
    assert data.provenance["edges"] == plain.provenance["edges"] == 11


def test_ids_do_not_depend_on_hash_order(tmp_path):
    path = write(tmp_path)
    code = (
        "import sys; from rgat.data.rdf.reader import read_triples; t = read_triples(sys.argv[1]);"
        "print(t.node_names, t.relation_names, t.edges.tolist())"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code, path],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=100,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(outputs) == 1


TERM = st.sampled_from(["a", "b", "c", "d"]).map(lambda s: f"<{EX}{s}>")
BLANK = st.sampled_from(["_:p", "_:q", "_:r"])
TRIPLE = st.tuples(st.one_of(TERM, BLANK), TERM, st.one_of(TERM, BLANK, st.sampled_from(['"x"', '"y"@en'])))


@settings(max_examples=60, deadline=None)
@given(st.lists(TRIPLE, max_size=12), st.randoms(use_true_random=False))
def test_shuffled_triples_and_renamed_blank_nodes_give_an_isomorphic_graph(tmp_path_factory, triples, rng):
    folder = tmp_path_factory.mktemp("rdf")
    first = read_triples(write(folder, "".join(" ".join(t) + " .\n" for t in triples)))
    rng.shuffle(triples)
    second = read_triples(write(folder, "".join(" ".join(t) + " .\n" for t in triples), "again.nt"))
    assert first.node_names == second.node_names
    assert first.relation_names == second.relation_names
    size = len(first.node_names)
    degrees = [[sorted(np.bincount(t.edges[:, c], minlength=size)) for c in (0, 2)] for t in (first, second)]
    assert degrees[0] == degrees[1]
    if not any("_:" in term for t in triples for term in t):
        assert same(first, second)


BAD = [
    ("graph.nt", "<a b> <c> .\n", {}, r"graph\.nt, line 1: not valid ntriples"),
    ("graph.nt", f"<{EX}a> <{EX}b> <{EX}c> .\nrubbish\n", {}, r"graph\.nt, line 2: not valid ntriples"),
    ("graph.ttl", "@prefix e: <x\n", {}, r"graph\.ttl.*not valid turtle"),
    ("graph.txt", "", {}, r"graph\.txt: the name must end in one of \.nt"),
    ("graph.nt", "", {"format": "ntripels"}, r'`format` must be .* did you mean "ntriples"\?'),
    ("graph.nt", "", {"literals": "node"}, r'`literals` must be .* did you mean "nodes"\?'),
    ("graph.nt", "", {"blank_nodes": "drop"}, r'`blank_nodes` must be .* did you mean "dropped"\?'),
    (
        "graph.nt",
        f"<{EX}a> <{EX}b> <{EX}c> .\n",
        {"drop_predicates": [f"{EX}d"]},
        r"predicates to leave out must be in the files, got <.*d>, .* such as <.*b>",
    ),
    ("graph.nt.gz", "not gzip", {}, r"graph\.nt\.gz: cannot be read"),
    ("graph.n3", "{ <a> <b> <c> } => { <d> <e> <f> } .", {}, r"graph\.n3: holds more than triples"),
]


@pytest.mark.parametrize(("name", "text", "options", "message"), BAD)
def test_bad_files_are_refused_with_file_and_line(tmp_path, name, text, options, message):
    with pytest.raises(ValueError, match=message):
        read_triples(write(tmp_path, text, name), **options)


def test_a_missing_file_and_no_file_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"missing\.nt: cannot be read"):
        read_triples(tmp_path / "missing.nt")
    with pytest.raises(ValueError, match="at least one RDF file"):
        read_triples([])


def test_an_empty_file_is_an_empty_graph(tmp_path):
    data = from_rdf(write(tmp_path, ""))
    assert (data.graph.num_nodes, data.graph.num_edges) == (0, 0)
    assert "0 nodes" in str(data)


def test_a_missing_library_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyoxigraph", None)
    with pytest.raises(ImportError, match=r"pip install 'rgat\[rdf\]'"):
        read_triples(write(tmp_path))


def table(folder, text, name="labels.tsv"):
    path = folder / name
    path.write_text(text.replace(" ", "\t"), encoding="utf-8")
    return path


def test_labels_come_with_a_column_of_parts(tmp_path):
    labels = table(tmp_path, f"node id class part\n{EX}a 1 red train\n<{EX}b> 2 blue valid\n{EX}c 3 red test\n")
    data = from_rdf(write(tmp_path), labels, label_column="class", split_column="part")
    a, b, c = (data.node_names.index(f"<{EX}{n}>") for n in "abc")
    assert data.classes == ("blue", "red")
    assert [data.labels[n].item() for n in (a, b, c)] == [1, 0, 1]
    assert (data.labels != MISSING).sum() == 3
    assert (data.train.tolist(), data.valid.tolist(), data.test.tolist()) == ([a], [b], [c])


def test_labels_come_as_a_file_per_part(tmp_path):
    train = table(tmp_path, f"node class\n{EX}a red\n{EX}b blue\n", "train.tsv")
    test = table(tmp_path, f"node,class\n{EX}c,red\n", "test.csv")
    data = from_rdf(write(tmp_path), train=train, test=test)
    assert (len(data.train), len(data.valid), len(data.test)) == (2, 0, 1)
    with pytest.raises(ValueError, match="or by a predicate, got several"):
        from_rdf(write(tmp_path), train, test=test)
    with pytest.raises(ValueError, match=r"test\.csv, line 2: .* has a label in .*other\.tsv, line 2"):
        from_rdf(write(tmp_path), train=table(tmp_path, f"node class\n{EX}c blue\n", "other.tsv"), test=test)


def test_a_node_written_with_and_without_brackets_is_one_node(tmp_path):
    labels = table(tmp_path, f"node class part\n{EX}a red train\n<{EX}a> blue test\n")
    with pytest.raises(ValueError, match=r"labels\.tsv, line 3: .* has a label in .*line 2 already"):
        from_rdf(write(tmp_path), labels, split_column="part")


def test_labels_are_split_by_seed_and_class(tmp_path):
    text = "".join(f"<{EX}n{i}> <{EX}p> <{EX}m{i}> .\n" for i in range(100))
    rows = "".join(f"{EX}n{i} {'red' if i < 20 else 'blue'}\n" for i in range(100))
    path, labels = write(tmp_path, text), table(tmp_path, "node class\n" + rows)
    data = from_rdf(path, labels, seed=3)
    assert [len(part) for part in (data.train, data.valid, data.test)] == [80, 10, 10]
    red = data.classes.index("red")
    assert [int((data.labels[part] == red).sum()) for part in (data.train, data.valid, data.test)] == [16, 2, 2]
    assert torch.equal(from_rdf(path, labels, seed=3).test, data.test)
    assert not torch.equal(from_rdf(path, labels, seed=4).test, data.test)


def test_unknown_nodes_are_named_and_dropped_only_on_request(tmp_path):
    labels = table(tmp_path, f"node class\n{EX}a red\n{EX}zz blue\n{EX}b red\n")
    with pytest.raises(ValueError, match=r"labels\.tsv, line 3: node .*zz is not in the graph \(1 of 3 labels"):
        from_rdf(write(tmp_path), labels)
    data = from_rdf(write(tmp_path), labels, skip_unknown=True)
    assert (data.labels != MISSING).sum() == 2


def test_pruning_leaves_the_outputs_at_labelled_nodes_as_they_were(tmp_path):
    rng = np.random.default_rng(0)
    lines = [f"<{EX}n{rng.integers(80)}> <{EX}p{rng.integers(3)}> <{EX}n{rng.integers(80)}> .\n" for _ in range(90)]
    labels = table(tmp_path, f"node class\n{EX}n3 red\n{EX}n5 blue\n{EX}n7 red\n")
    data = from_rdf(write(tmp_path, "".join(lines)), labels, skip_unknown=True)
    small = prune(data, 2)
    assert small.graph.num_nodes < data.graph.num_nodes
    assert small.graph.num_edges < data.graph.num_edges
    x = torch.randn(data.graph.num_nodes, 4)
    places = torch.tensor([data.node_names.index(name) for name in small.node_names])
    for scope in ("within", "across"):
        model = NodeClassifier(4, 2, data.graph.num_relations, scope=scope)
        full, part = model(x, data.graph)[places], model(x[places], small.graph)
        labelled = small.labels != MISSING
        assert labelled.sum() == 3
        torch.testing.assert_close(part[labelled], full[labelled])
    again = from_rdf(tmp_path / "graph.nt", labels, skip_unknown=True, hops=2)
    assert again.node_names == small.node_names
