import bz2
import gzip
import lzma
import os
import subprocess
import sys

import pyoxigraph as ox
import pytest
from helpers_rdf import EX, TRIPLES, same, write

from rgat.data import from_rdf
from rgat.data.rdf import reader
from rgat.data.rdf.reader import FORMATS, SUFFIXES, parse_triples, read_triples, split_literal
from rgat.predictor.inspection import describe

PACK = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}


def test_triples_are_a_sorted_set(tmp_path):
    triples = read_triples(write(tmp_path))
    assert len(triples) == 11  # one is repeated
    assert triples.node_names == sorted(triples.node_names)
    assert triples.relation_names == sorted(f"<{EX}{p}>" for p in ("age", "has", "knows", "note", "part", "size"))
    assert len(triples.node_names) == 3 + 3 + 6
    names = {tuple(row) for row in triples.edges.tolist()}
    a, knows, b = triples.node_names.index(f"<{EX}a>"), triples.relation_names.index(f"<{EX}knows>"), f"<{EX}b>"
    assert (a, knows, triples.node_names.index(b)) in names
    assert triples.edges.tolist() == sorted(triples.edges.tolist())


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("compression", PACK)
def test_every_format_of_the_same_triples_gives_the_same_graph(tmp_path, suffix, compression):
    expected = read_triples(write(tmp_path))
    quads = list(ox.parse(TRIPLES.encode(), format=ox.RdfFormat.N_TRIPLES))
    kind = getattr(ox.RdfFormat, FORMATS[SUFFIXES[suffix]])
    items = quads if kind.supports_datasets else [quad.triple for quad in quads]
    content = ox.serialize(reversed(items), format=kind)
    path = tmp_path / f"other{suffix}{compression}"
    path.write_bytes(PACK[compression](content))
    assert same(read_triples(path), expected)
    renamed = tmp_path / f"data{compression}"
    path.rename(renamed)
    assert same(read_triples(renamed, format=SUFFIXES[suffix]), expected)


def test_blank_nodes_of_two_files_are_different_nodes(tmp_path):
    one = write(tmp_path, f"_:x <{EX}p> <{EX}a> .", "one.nt")
    two = write(tmp_path, f"_:x <{EX}p> <{EX}b> .", "two.nt")
    triples = read_triples([one, two])
    assert triples.node_names[:2] == [f"<{EX}a>", f"<{EX}b>"]
    assert len(triples.node_names) == 4
    assert len(read_triples([one, one])) == 2
    assert same(read_triples([two, one]), triples)


def test_a_literal_is_split_into_value_and_datatype_or_language():
    assert split_literal('"a\\"b"@en') == ('a\\"b', "@en")


def test_predicates_and_blank_nodes_can_be_dropped(tmp_path):
    path = write(tmp_path)
    triples = read_triples(path, drop_predicates=[f"{EX}knows", f"<{EX}age>"], blank_nodes="dropped")
    assert triples.relation_names == [f"<{EX}note>"]
    assert len(triples) == 1


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
    ("graph.nt.gz", "\x00not gzip", {}, r"graph\.nt\.gz: cannot be read"),
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


def test_a_missing_library_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyoxigraph", None)
    with pytest.raises(ImportError, match=r"pip install 'rgat\[rdf\]'"):
        read_triples(write(tmp_path))


@pytest.mark.parametrize("compression", PACK)
def test_a_compressed_file_is_recognised_whatever_its_name(tmp_path, compression):
    expected = read_triples(write(tmp_path))
    path = tmp_path / "packed.nt"
    path.write_bytes(PACK[compression](TRIPLES.encode()))
    assert same(read_triples(path), expected)


@pytest.mark.parametrize("compression", [".gz", ".bz2", ".xz"])
def test_a_compressed_file_that_is_cut_off_is_refused(tmp_path, compression):
    path = tmp_path / f"cut.nt{compression}"
    path.write_bytes(PACK[compression](TRIPLES.encode())[:-20])
    with pytest.raises(ValueError, match=rf"cut\.nt\{compression}: cannot be read: "):
        read_triples(path)


def test_zstandard_needs_a_library_and_says_which(tmp_path, monkeypatch):
    path = tmp_path / "dump.nt.zst"
    path.write_bytes(b"\x28\xb5\x2f\xfd rest")
    for name in ("compression.zstd", "backports.zstd", "compression", "backports"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(
        ImportError, match=r"need backports\.zstd; install it with `pip install backports\.zstd`, or unp"
    ):
        read_triples(path)


def test_zstandard_is_read_and_a_cut_off_file_refused(tmp_path):
    reason = "neither compression.zstd nor backports.zstd is installed"
    name = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
    zstd = pytest.importorskip(name, reason=reason)
    packed = zstd.compress(TRIPLES.encode())
    for name in ("dump.nt.zst", "dump.nt"):
        path = tmp_path / name
        path.write_bytes(packed)
        assert same(read_triples(path), read_triples(write(tmp_path)))
        path.write_bytes(packed[:-10])
        with pytest.raises(ValueError, match="cannot be read: "):
            read_triples(path)


INVALID = f"<{EX}a> <{EX}p> .\n", "no triple\n", f"<{EX}a> <{EX}p> <b c> .\n"


@pytest.mark.parametrize("batch", [1, 3, 10_000])
@pytest.mark.parametrize("kind", ["nt", "nq"])
def test_invalid_lines_are_left_out_and_counted_on_request(tmp_path, monkeypatch, batch, kind):
    monkeypatch.setattr(reader, "BATCH", batch)
    expected = read_triples(write(tmp_path))
    lines = TRIPLES.splitlines(keepends=True)
    path = tmp_path / f"some.{kind}"
    path.write_text("".join([INVALID[0], *lines[:4], INVALID[1], INVALID[2], *lines[4:]]))
    with pytest.raises(ValueError, match=rf"some\.{kind}, line 1: not valid"):
        read_triples(path)
    triples = read_triples(path, skip_invalid=True)
    assert same(triples, expected)
    assert [text.partition(": ")[0] for text in triples.skipped] == [f"{path}, line {n}" for n in (1, 6, 7)]
    assert not any(" at line " in text for text in triples.skipped)
    labels = tmp_path / "labels.tsv"
    labels.write_text(f"node\tclass\n{EX}a\tred\n{EX}b\tblue\n")
    data = from_rdf(path, labels, skip_invalid=True)
    assert data.provenance["invalid_lines"] == {"count": 3, "first": triples.skipped[0]}
    assert f"skipped: 3 invalid RDF lines, the first: {path}, line 1: " in "".join(describe(data))


def test_lines_of_formats_without_lines_cannot_be_skipped(tmp_path):
    path = tmp_path / "graph.ttl"
    path.write_text(TRIPLES)
    with pytest.raises(ValueError, match=r"graph\.ttl: invalid lines must be in N-Triples or N-Quads to be skipped"):
        read_triples(path, skip_invalid=True)


def test_a_text_whose_prefixes_multiply_it_is_refused(monkeypatch):
    monkeypatch.setattr(reader, "MAX_EXPANDED", 10_000)
    text = b"@prefix a: <http://x/" + b"p" * 900 + b"> .\na: a: " + b",".join(b"a:%d" % n for n in range(9)) + b" ."
    with pytest.raises(ValueError, match="must have at most 10,000 bytes with prefixes written out, got more"):
        parse_triples(text, "turtle")
    assert len(parse_triples(text[: text.index(b",a:3")] + b" .", "turtle").edges) == 3
