import errno
import gzip
import tracemalloc

import numpy as np
import pyoxigraph as ox
import pytest
import torch
from helpers_rdf import EX, TRIPLES, table, write

from rgat.data import from_rdf
from rgat.data.rdf.reader import FORMATS, SUFFIXES
from rgat.data.store import StoreWriter, convert, spool, writer

OTHER = f"""
_:x <{EX}part> <{EX}d> .
<{EX}d> <{EX}knows> <{EX}a> .
<{EX}ä> <{EX}knows> <{EX}a> .
<{EX}\U0001f600> <{EX}likes> <{EX}\ufb01> .
<{EX}a> <{EX}knows> <{EX}b> .
"""


def leftovers(folder):
    return sorted(path.name for path in folder.iterdir())


def assert_same(store, data):
    """Compare a store with the data set that `from_rdf` reads from the same files."""
    graph = store.to_graph()
    assert list(store.node_names) == list(data.node_names)
    assert store.relation_names == data.relation_names
    assert torch.equal(graph.edge_index, data.graph.edge_index)
    assert torch.equal(graph.edge_type, data.graph.edge_type)
    assert (graph.num_nodes, graph.num_relations) == (data.graph.num_nodes, data.graph.num_relations)
    assert store.manifest.num_triples == data.provenance["edges"]


OPTIONS = [
    {},
    {"inverses": False, "self_loops": False},
    {"literals": "dropped"},
    {"blank_nodes": "dropped"},
    {"drop_predicates": [f"{EX}knows", f"<{EX}age>"]},
    {"drop_predicates": f"{EX}part"},
    {"literals": "dropped", "blank_nodes": "dropped", "self_loops": False},
    {"label_predicate": f"{EX}has"},
    {"label_predicate": f"{EX}likes", "literals": "dropped", "skip_unknown": True},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_store_has_the_graph_that_from_rdf_reads(tmp_path, options):
    files = [write(tmp_path), write(tmp_path, OTHER, "other.ttl")]
    assert_same(convert(files, tmp_path / "store", **options), from_rdf(files, **options))
    assert leftovers(tmp_path) == ["graph.nt", "other.ttl", "store"]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_format_can_be_converted(tmp_path, suffix):
    quads = list(ox.parse(TRIPLES.encode(), format=ox.RdfFormat.N_TRIPLES))
    kind = getattr(ox.RdfFormat, FORMATS[SUFFIXES[suffix]])
    content = ox.serialize(quads if kind.supports_datasets else [quad.triple for quad in quads], format=kind)
    path = tmp_path / f"graph{suffix}.gz"
    path.write_bytes(gzip.compress(content))
    data = from_rdf(path)
    assert_same(convert(path, tmp_path / "store"), data)
    path.rename(tmp_path / "data.gz")
    assert_same(convert(tmp_path / "data.gz", tmp_path / "other", format=SUFFIXES[suffix]), data)


def made_up(count, seed=0, num_nodes=200):
    """Return triples with duplicates, inverses, blank nodes and literals, as text."""
    rng = np.random.default_rng(seed)
    terms = [f"<{EX}{n}>" for n in range(num_nodes)] + [f"_:b{n}" for n in range(20)] + [f'"{n}"' for n in range(20)]
    subjects, objects = rng.integers(len(terms) - 20, size=count), rng.integers(len(terms), size=count)
    pairs = zip(subjects.tolist(), rng.integers(5, size=count).tolist(), objects.tolist(), strict=True)
    return "".join(f"{terms[s]} <{EX}p{p}> {terms[o]} .\n" for s, p, o in pairs)


@pytest.mark.parametrize("options", [{}, {"literals": "dropped"}], ids=str)
def test_little_memory_and_small_chunks_give_the_same_store(tmp_path, monkeypatch, options):
    path = write(tmp_path, made_up(20_000))
    much = convert(path, tmp_path / "much", **options)
    monkeypatch.setattr(spool, "_CHUNK", 777)
    monkeypatch.setattr(writer, "_CHUNK", 500)
    little = convert(path, tmp_path / "little", memory=1, **options)
    assert little.manifest == much.manifest
    assert_same(little, from_rdf(path, **options))


LABELS = (
    "node class part\nhttp://example.org/b dog test\nhttp://example.org/a cat train\nhttp://example.org/c dog train"
)


def test_labels_are_kept_in_the_order_of_their_table(tmp_path):
    labels = table(tmp_path, LABELS)
    options = {"node_column": "node", "label_column": "class", "split_column": "part"}
    stored = convert(write(tmp_path), tmp_path / "store", labels, **options).labels
    data = from_rdf(write(tmp_path), labels, **options)
    assert stored.class_names == data.classes
    assert stored.nodes.tolist() == [data.node_names.index(f"<{EX}{name}>") for name in "bac"]
    assert (stored.classes.tolist(), stored.parts.tolist()) == ([1, 0, 1], [2, 0, 0])


def test_unknown_labels_are_refused_or_skipped(tmp_path):
    labels = table(tmp_path, LABELS.replace("/b dog", "/x dog"))
    options = {"label_column": "class", "split_column": "part"}
    with pytest.raises(ValueError, match=r"labels\.tsv, line 2: node http://example\.org/x is not in the graph"):
        convert(write(tmp_path), tmp_path / "store", labels, **options)
    assert leftovers(tmp_path) == ["graph.nt", "labels.tsv"]
    store = convert(write(tmp_path), tmp_path / "store", labels, skip_unknown=True, **options)
    assert len(store.labels.nodes) == 2
    assert store.provenance["unknown_nodes"] == 1


def test_labels_of_a_predicate_are_those_of_from_rdf(tmp_path):
    path = write(tmp_path, TRIPLES + f"<{EX}b> <{EX}owner> <{EX}a> .\n<{EX}a> <{EX}size> <{EX}e> .\n")
    data = from_rdf(path, label_predicate=f"{EX}age", shares=(1.0, 0.0))
    store = convert(path, tmp_path / "store", label_predicate=f"{EX}age")
    assert_same(store, data)
    assert store.labels.class_names == data.classes
    assert torch.equal(store.labels.nodes, data.train)
    assert torch.equal(store.labels.classes, data.labels[data.train])
    for predicate, message in (("knowz", "must be a predicate of the graph, got"), ("part", "must have one value of")):
        for read in (from_rdf, lambda file, **options: convert(file, tmp_path / "other", **options)):
            with pytest.raises(ValueError, match=message):
                read(path, label_predicate=f"{EX}{predicate}")


BAD = [
    ({"literals": "node"}, r'`literals` must be .* did you mean "nodes"\?'),
    ({"blank_nodes": "drop"}, r'`blank_nodes` must be .* did you mean "dropped"\?'),
    ({"features": ["type"]}, r'`features` must be .* did you mean "types"\?'),
    ({"drop_predicates": [f"{EX}d"]}, r"predicates to leave out must be in the files, got <.*d>"),
    ({"format": "ntripels"}, r'`format` must be .* did you mean "ntriples"\?'),
    ({"format": "turtle"}, r"graph\.nt.*not valid turtle"),
    ({"seed": 3}, "`shares` and `seed` must be given where the labels are used"),
    ({"labels": "missing.tsv"}, r"missing\.tsv: cannot be read"),
    ({"labels": "labels.tsv", "label_predicate": f"{EX}age"}, "labels must come as one file"),
]


@pytest.mark.parametrize(("options", "message"), BAD)
def test_bad_input_is_refused_and_nothing_is_left(tmp_path, options, message):
    path = write(tmp_path, TRIPLES + ("rubbish" if options.get("format") == "turtle" else ""))
    with pytest.raises(ValueError, match=message):
        convert(path, tmp_path / "store", **options)
    assert leftovers(tmp_path) == ["graph.nt"]


def test_an_existing_store_is_refused_before_the_files_are_read(tmp_path):
    convert(write(tmp_path), tmp_path / "store")
    with pytest.raises(ValueError, match="store must be a new or empty folder, but holds files"):
        convert(tmp_path / "missing.nt", tmp_path / "store")


@pytest.mark.parametrize("size", [100, 5_000, 100_000])
def test_a_full_disk_is_one_sentence_with_the_size_needed(tmp_path, full_disk, size):
    path = write(tmp_path, made_up(20_000))
    message = (
        r"store: cannot be written: File too large \(it needs about .* MB on this disk, .*\); make room, or choose"
    )
    with pytest.raises(ValueError, match=message), full_disk(size):
        convert(path, tmp_path / "store")
    assert leftovers(tmp_path) == ["graph.nt"]


@pytest.mark.parametrize("features", [(), ("types", "degrees")])
def test_the_size_needed_counts_names_and_features(tmp_path, monkeypatch, features):
    needed = []
    monkeypatch.setattr(StoreWriter, "finish", lambda writer: needed.append(writer.needed) or finish(writer))
    lines = made_up(3000, num_nodes=2000).replace("http://", "http://" + 200 * "x")
    store = convert(write(tmp_path, lines), tmp_path / "store", features=features)
    names, x = (store.path / "node_names.npy").stat().st_size, 0 if store.x is None else store.x.nbytes
    edges = 24 * store.num_edges + 12 * store.manifest.num_triples
    assert edges + names + x <= needed[0] <= 1.6 * (edges + names + x)
    assert names > 0.2 * edges


finish = StoreWriter.finish


@pytest.mark.parametrize(
    "where", ["spool.Spool.append", "arrays.ArrayWriter.append", "sorting.TripleSorter._write_run"]
)
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_called_so_wherever_it_fills_up(tmp_path, monkeypatch, where, number):
    def fail(*arguments):
        raise OSError(number, "some words of the system")

    monkeypatch.setattr(f"rgat.data.store.{where}", fail)
    with pytest.raises(ValueError, match=r"store: cannot be written: the disk is full \(it needs about .* kB on this"):
        convert(write(tmp_path, made_up(500)), tmp_path / "store")
    assert leftovers(tmp_path) == ["graph.nt"]


@pytest.mark.parametrize("step", ["reading", "naming", "sorting"])
def test_an_interruption_leaves_nothing(tmp_path, step):
    def interrupt(reached):
        if reached.stage == step:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(write(tmp_path), tmp_path / "store", progress=interrupt)
    assert leftovers(tmp_path) == ["graph.nt"]


def test_progress_is_reported_for_every_step(tmp_path):
    calls = []
    convert(write(tmp_path, made_up(25_000)), tmp_path / "store", progress=calls.append)
    assert list(dict.fromkeys(step.stage for step in calls)) == ["reading", "naming", "sorting"]
    assert [step.items for step in calls if step.stage == "reading"] == [0, 10_000, 20_000, 25_000]
    for stage in ("reading", "naming", "sorting"):
        shares = [step.share for step in calls if step.stage == stage]
        assert shares == sorted(shares)
        assert shares[-1] == 1.0


def test_a_file_without_triples_gives_an_empty_store(tmp_path):
    store = convert(write(tmp_path, ""), tmp_path / "store")
    assert (store.num_nodes, store.num_edges, store.relation_names) == (0, 0, ("self",))


def test_memory_does_not_grow_with_the_number_of_triples(tmp_path, monkeypatch):
    monkeypatch.setattr(spool, "_CHUNK", 1_000)
    monkeypatch.setattr(writer, "_CHUNK", 1_000)
    peaks = []
    for count in (15_000, 60_000):
        path = write(tmp_path, made_up(count), f"{count}.nt")
        tracemalloc.start()
        convert(path, tmp_path / str(count), memory=1)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + 300_000  # 45,000 more triples would take 540,000 bytes as three columns of int32
