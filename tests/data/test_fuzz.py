"""Damaged inputs: each gives data, or an error of ours that names the file."""

import random

import pyoxigraph as ox
import pytest
from helpers_rdf import TRIPLES

from rgat.data import from_rdf, from_smiles
from rgat.data.molecules.smiles import parse_smiles, store_molecules
from rgat.data.rdf.labels import read_labels
from rgat.data.rdf.reader import FORMATS, SUFFIXES
from rgat.data.tables import read_table

TSV = 'node\tid\tclass\nhttp://example.org/a\t1\tred\nhttp://example.org/b\t2\t"bl\nue"\n'
CSV = 'smiles,t1,t2\nCCO,1,0\nc1ccccc1O,,1\n"CC(=O)N",0,\nC[N+](C)(C)C,1,1\n'
SMILES = ["CC(=O)Nc1ccc(O)cc1", "C[C@H](N)C(=O)O", "[Na+].[Cl-]", "F/C=C/F", "c1ccc2[nH]ccc2c1", "OS(=O)(=O)O", "C1CC1"]
TOKENS = [
    token.encode("latin-1")
    for token in ["<", ">", '"', "\\", "@", "_:", "^^", ".", ",", "[", "]", "{", "(", "%", "\x00", "ÿ"]
] + [b"\n", b"\t"]


def mutate(content, rng):
    content = bytearray(content)
    for _ in range(rng.choice([1, 1, 2, 4, 8])):
        place = rng.randrange(len(content) + 1)
        kind = rng.randrange(5)
        if kind == 0:
            content[place : place + rng.randrange(1, 9)] = b""
        elif kind == 1:
            content[place:place] = rng.choice(TOKENS)
        elif kind == 2 and place < len(content):
            content[place] = rng.randrange(256)
        elif kind == 3:
            start = rng.randrange(len(content) + 1)
            content[place:place] = content[start : start + rng.randrange(40)]
        else:
            content = content[:place] if rng.random() < 0.3 else content
    return bytes(content)


def tally(inputs, read, name):
    """How many inputs were read and how many refused; anything else fails the test."""
    outcome = {"read": 0, "refused": 0}
    for content in inputs:
        message = None
        try:
            read(content)
        except ValueError as error:
            message = str(error)
        outcome["read" if message is None else "refused"] += 1
        assert message is None or name in message, (content, message)
    return outcome


@pytest.mark.parametrize("suffix", [".nt", ".nq", ".ttl", ".trig", ".rdf", ".n3", ".jsonld"])
def test_damaged_rdf(tmp_path, suffix):
    rng = random.Random(suffix)
    quads = list(ox.parse(TRIPLES.encode(), format=ox.RdfFormat.N_TRIPLES))
    kind = getattr(ox.RdfFormat, FORMATS[SUFFIXES[suffix]])
    whole = ox.serialize(quads if kind.supports_datasets else [quad.triple for quad in quads], format=kind)
    path = tmp_path / f"graph{suffix}"

    def read(content):
        path.write_bytes(content)
        from_rdf(path)

    outcome = tally((mutate(whole, rng) for _ in range(400)), read, path.name)
    assert sum(outcome.values()) == 400
    assert min(outcome.values()) > 10


@pytest.mark.parametrize("suffix", [".gz", ".bz2"])
def test_damaged_archives(tmp_path, suffix):
    import bz2
    import gzip

    rng = random.Random(suffix)
    pack = {".gz": gzip.compress, ".bz2": bz2.compress}[suffix]
    graph, table = tmp_path / f"graph.nt{suffix}", tmp_path / f"table.tsv{suffix}"

    def read(content):
        graph.write_bytes(content)
        from_rdf(graph)

    def read_rows(content):
        table.write_bytes(content)
        read_table(table)

    for content, reader, path in ((pack(TRIPLES.encode()), read, graph), (pack(TSV.encode()), read_rows, table)):
        outcome = tally((mutate(content, rng) for _ in range(150)), reader, path.name)
        assert outcome["refused"] > 50


def test_damaged_label_tables(tmp_path):
    rng = random.Random(1)
    path = tmp_path / "labels.tsv"

    def read(content):
        path.write_bytes(content)
        read_labels(path, rng.choice(["node", None]), rng.choice(["class", None]))

    outcome = tally((mutate(TSV.encode(), rng) for _ in range(700)), read, path.name)
    assert sum(outcome.values()) == 700
    assert min(outcome.values()) > 30


def test_damaged_molecule_tables(tmp_path):
    rng = random.Random(2)
    path = tmp_path / "molecules.csv"

    def read(content):
        path.write_bytes(content)
        from_smiles(path, relaxed=rng.random() < 0.5, skip_invalid=rng.random() < 0.5)

    outcome = tally((mutate(CSV.encode(), rng) for _ in range(700)), read, path.name)
    assert sum(outcome.values()) == 700
    assert min(outcome.values()) > 30


def test_damaged_smiles():
    rng = random.Random(3)
    outcome = {True: 0, False: 0}
    for _ in range(1000):
        text = mutate(rng.choice(SMILES).encode(), rng).decode(errors="replace")
        molecule = parse_smiles(text, relaxed=rng.random() < 0.5)
        outcome[molecule is not None] += 1
        if molecule is not None:
            assert store_molecules([molecule], rich=True, bonds=True).x.isfinite().all()
    assert min(outcome.values()) > 100
