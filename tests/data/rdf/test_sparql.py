"""Read neighbourhoods from Oxigraph's server, from its store, and from a server that fails or lies."""

import re
import sys
import threading

import numpy as np
import pytest
import torch
from helpers_sparql import faulty_server, oxigraph_program, oxigraph_server

import rgat
from rgat.data import fetch_neighbourhood, from_rdf, from_sparql
from rgat.data.rdf import endpoint
from rgat.predictor.predictions import Predictions

ox = pytest.importorskip("pyoxigraph", reason="SPARQL needs pyoxigraph")
needs_server = pytest.mark.skipif(oxigraph_program() is None, reason="the package `oxigraph` is not installed")
W = "http://x.example/"


def lines():
    """Return a graph with literals that nodes share, a hub, several languages and odd characters."""
    found = []
    for n in range(40):
        found += [f"<{W}{n}> <{W}next> <{W}{(n * 7 + 1) % 40}> .", f"<{W}{n}> <{W}type> <{W}hub> ."]
        found += [f'<{W}{n}> <{W}age> "{n % 5}"^^<http://www.w3.org/2001/XMLSchema#integer> .']
        found += [f'<{W}{n}> <{W}says> "\\"quoted\\" \\\\ {{?s}} \\n line {n % 3}"@de .']
    found += [f"<{W}far{n}> <{W}next> <{W}far{n + 1}> ." for n in range(10)] + [f"<{W}39> <{W}next> <{W}far0> ."]
    return found


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("graph")
    (folder / "dump.nt").write_text("\n".join(lines()))
    (folder / "labels.tsv").write_text("node\tclass\n" + "".join(f"{W}{n}\t{n % 2}\n" for n in range(0, 40, 2)))
    return folder


@pytest.fixture(scope="module")
def store():
    store = ox.Store()
    store.load("\n".join(lines()), ox.RdfFormat.N_TRIPLES)
    return store


def triples(path):
    return set(path.read_text().splitlines())


@pytest.mark.parametrize("hops", [1, 2, 3])
def test_a_neighbourhood_gives_labelled_nodes_the_outputs_of_the_whole_graph(files, store, hops, tmp_path):
    fetched = fetch_neighbourhood(store, tmp_path / "near.nt", files / "labels.tsv", hops=hops)
    found = (tmp_path / "near.nt").read_text().splitlines()
    assert len(found) == len(set(found)) == fetched.triples
    whole = rgat.data.prune(from_rdf(files / "dump.nt", files / "labels.tsv"), hops)
    part = rgat.data.prune(from_rdf(tmp_path / "near.nt", files / "labels.tsv"), hops)
    assert whole.node_names == part.node_names
    assert torch.equal(whole.graph.edge_index, part.graph.edge_index)
    assert fetched.triples < len(lines())  # triples far away are never read


@needs_server
def test_the_server_and_the_store_of_oxigraph_give_the_same(files, store, tmp_path):
    fetch_neighbourhood(store, tmp_path / "memory.nt", files / "labels.tsv")
    with oxigraph_server(files / "dump.nt", tmp_path) as (url, folder):
        fetched = fetch_neighbourhood(f"{url}/query", tmp_path / "server.nt", files / "labels.tsv", page=13)
        by_predicate = from_sparql(f"{url}/query", label_predicate=f"{W}says", drop_predicates=[f"{W}type"])
        endpoint.Endpoint(f"{url}/update").update(f'INSERT DATA {{ <{W}0> <{W}added> "yes" }}')
        fetch_neighbourhood(f"{url}/query", tmp_path / "again.nt", nodes=[f"{W}0"], hops=1)
    assert triples(tmp_path / "server.nt") == triples(tmp_path / "memory.nt")
    assert len(triples(tmp_path / "server.nt")) == fetched.triples > 100
    assert f'<{W}0> <{W}added> "yes" .' in triples(tmp_path / "again.nt")
    fetch_neighbourhood(folder, tmp_path / "stored.nt", files / "labels.tsv")
    assert triples(tmp_path / "memory.nt") < triples(tmp_path / "stored.nt")  # the update is there
    assert len(by_predicate.classes) == 3
    assert not [name for name in by_predicate.relation_names if "type" in name]
    assert by_predicate.provenance["sparql"]["hops"] == 2


FAULTS = {
    "hanging": "must answer within 2 s, but did not; allow more time",
    "dripping": "must answer within 2 s, but did not",
    "dripping headers": "must answer within 2 s, but did not",
    "500 hanging": "must answer within 2 s, but did not",
    "500 cut": "must answer with status 200, but it answered 500",
    "302": "must answer with status 200, but it answered 302 Found.*; redirects are not followed.* perhaps /elsewhere",
    "cut": "must answer completely, but the connection broke: .* bytes arrived",
    "500": "must answer with status 200, but it answered 500",
    "503": "must answer completely, but it answered 503",
    "html": "must answer with application/sparql-results.json, got text/html; is it a SPARQL endpoint",
    "malformed": "must answer with valid JSON results",
    "boolean": "must answer with valid JSON results",
    "unbound": "must bind s, p, o in each row|must answer with valid JSON results",
    "repeated": "must give each row once, got some of them repeatedly",
    "missing": "must give the .* rows that it counted, got",
    "surplus": "must give at most the .* rows that it was asked for",
    "few": "must give the .* rows that it counted, got more",
    "negative": "must count its rows when asked to, got -1",
    "literal s": "must give triples whose subject is a node and predicate an IRI, got literals",
    "literal p": "must give triples whose subject is a node and predicate an IRI, got literals",
    "others": "must answer about the nodes it was asked for|must give",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_failing_or_lying_endpoint_gives_one_sentence_and_no_file(fault, files, store, tmp_path, monkeypatch):
    monkeypatch.setattr(endpoint, "PAUSE", 0.0)
    (tmp_path / "near.nt").write_text("older")
    seconds = 2.0 if "hanging" in fault or "dripping" in fault else 60  # enough for the honest answers before it
    with faulty_server(store) as server:
        server.fault, server.first = fault, 4  # half-way: after a count and two pages
        with pytest.raises(endpoint.EndpointError, match=FAULTS[fault]) as raised:
            fetch_neighbourhood(server.url, tmp_path / "near.nt", files / "labels.tsv", page=50, timeout=seconds)
        assert not [thread for thread in threading.enumerate() if thread.name == "SPARQL request"]
        if fault in ("cut", "503"):
            assert server.requests == 3 + endpoint.ATTEMPTS
    assert str(raised.value).startswith(server.url)
    assert "\n" not in str(raised.value)
    assert [path.name for path in tmp_path.iterdir()] == ["near.nt"]
    assert (tmp_path / "near.nt").read_text() == "older"


@pytest.mark.parametrize("fault", ["cut", "503"])
def test_a_request_that_was_lost_is_sent_again(fault, files, store, tmp_path, monkeypatch):
    monkeypatch.setattr(endpoint, "PAUSE", 0.0)
    fetch_neighbourhood(store, tmp_path / "memory.nt", files / "labels.tsv")
    with faulty_server(store) as server:
        server.fault, server.first, server.times = fault, 3, 2
        fetch_neighbourhood(server.url, tmp_path / "near.nt", files / "labels.tsv", page=40)
    assert triples(tmp_path / "near.nt") == triples(tmp_path / "memory.nt")


def test_blank_nodes_are_kept_from_a_store_and_left_out_from_an_endpoint(tmp_path):
    store = ox.Store()
    store.load(f"<{W}a> <{W}p> _:b . _:b <{W}p> <{W}c> . <{W}a> <{W}p> <{W}d> .", ox.RdfFormat.TURTLE)
    assert fetch_neighbourhood(store, tmp_path / "a.nt", nodes=[f"{W}a"]) == (3, 3, 0)
    with faulty_server(store) as server:
        assert fetch_neighbourhood(server.url, tmp_path / "b.nt", nodes=[f"{W}a"]) == (1, 2, 1)


def test_labelled_blank_nodes_are_left_out_from_an_endpoint_and_counted_once(tmp_path):
    store = ox.Store()
    store.load(f"<{W}a> <{W}group> 'g' . _:b <{W}group> 'g' ; <{W}p> <{W}a> .", ox.RdfFormat.TURTLE)
    with faulty_server(store) as server:
        assert fetch_neighbourhood(server.url, tmp_path / "a.nt", label_predicate=f"{W}group") == (1, 2, 2)
        with pytest.raises(ValueError, match="must have labelled nodes with IRIs, got blank nodes only"):
            fetch_neighbourhood(server.url, tmp_path / "b.nt", label_predicate=f"{W}p")
    assert triples(tmp_path / "a.nt") == {f'<{W}a> <{W}group> "g" .'}


@pytest.mark.parametrize("rows", [0, 1, 4, 5, 8])
def test_pages_end_where_the_count_says(rows):
    store = ox.Store()
    store.extend([ox.Quad(ox.NamedNode(f"{W}{n}"), ox.NamedNode(f"{W}p"), ox.Literal("x")) for n in range(rows)])
    with faulty_server(store) as server:
        assert len(endpoint.Endpoint(server.url, page=4).select("?s", f"?s <{W}p> ?o")) == rows
        server.fault = "few"
        with pytest.raises(endpoint.EndpointError, match=r"that it counted, got more|must count its rows"):
            endpoint.Endpoint(server.url, page=4).select("?s", f"?s <{W}p> ?o")


def test_an_update_that_is_redirected_is_not_done(store):
    with faulty_server(store) as server:
        server.fault = "302"
        with pytest.raises(endpoint.EndpointError, match="must answer with status 200, but it answered 302"):
            endpoint.Endpoint(server.url).update(f'INSERT DATA {{ <{W}0> <{W}added> "yes" }}')
        assert server.requests == 1


CLASSES = {
    r'"x\u0022 . <x:a> <x:b> \u0022y"@en': 'x" . <x:a> <x:b> "y',
    r'"\U00000022 \u005C\u005c"': '" \\\\',
    r'"a\tb\\u0022\"\n"^^<x:type>': 'a\tb\\u0022"\n',
    r"C:\u0022\users": r"C:\u0022\users",
    r"\u005C": r"\u005C",
    r'"\ud800"': r'"\ud800"',
    r'"\U0000D800"': r'"\U0000D800"',
}


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("replaces_first", [False, True])
def test_a_class_stays_one_literal_also_where_escapes_are_replaced_first(name, replaces_first):
    one = np.ones((1, 1))
    found = Predictions((f"<{W}0>",), (name,), one, one).triples(f"{W}p")
    if replaces_first:  # as SPARQL 1.1 says in its section 19.2
        found = re.sub(r"\\u([0-9A-F]{4})|\\U([0-9A-F]{8})", lambda code: chr(int(code[1] or code[2], 16)), found)
    store = ox.Store()
    store.update(f"INSERT DATA {{ {found} }}")
    assert [quad.object.value for quad in store] == [CLASSES[name]]


def test_wrong_requests_are_refused(files, store, tmp_path, monkeypatch):
    monkeypatch.setattr(endpoint, "PAUSE", 0.0)
    out, labels = tmp_path / "near.nt", files / "labels.tsv"
    refused = [
        ((store, tmp_path / "near.ttl", labels), {}, "must be written to a file that ends in .nt"),
        ((store, out), {}, "nodes must be given whose neighbourhood is read"),
        ((store, out), {"nodes": [f"{W}nobody"]}, "must have triples of the 1 nodes, got none"),
        ((store, out), {"nodes": ["no iri"]}, 'a node must be given by its IRI, got "no iri"'),
        (("ftp://x.example/", out, labels), {}, "must be an address such as http://localhost"),
        ((tmp_path, out, labels), {}, "must be the address of an endpoint, or the folder of an Oxigraph store"),
        (("http://127.0.0.1:9/query", out, labels), {}, "must answer completely, but it cannot be reached"),
        (("http://127.0.0.1:9/query", out, labels), {"timeout": 0}, "must be a positive number of seconds"),
    ]
    for arguments, options, sentence in refused:
        with pytest.raises(ValueError, match=sentence):
            fetch_neighbourhood(*arguments, **options)
    assert not list(tmp_path.iterdir())
    monkeypatch.setitem(sys.modules, "pyoxigraph", None)
    with pytest.raises(ImportError, match=r"pip install 'rgat\[rdf\]'"):
        fetch_neighbourhood("http://127.0.0.1:9/", out, labels)
