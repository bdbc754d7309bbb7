"""Write predictions as triples with their probability and the model they come from, to files and to an endpoint."""

import dataclasses
import sys

import pytest
from helpers_sparql import oxigraph_program, oxigraph_server

import rgat
from rgat import cli
from rgat.data.rdf.endpoint import Endpoint
from rgat.predictor import files

ox = pytest.importorskip("pyoxigraph", reason="triples are read with pyoxigraph")
PERSON = "http://institute.example/person/99"
PROV = "http://www.w3.org/ns/prov#"
QUERY = """
PREFIX rdf: <http://www.w3.org/1999/02/22-rdf-syntax-ns#> PREFIX prov: <http://www.w3.org/ns/prov#>
SELECT ?s ?class ?probability ?model WHERE {
  ?s <http://x.example/field> ?class . ?model a prov:SoftwareAgent .
  ?statement rdf:subject ?s ; rdf:predicate <http://x.example/field> ; rdf:object ?class ;
    <urn:rgat:probability> ?probability ; <urn:rgat:spread> ?spread ; prov:wasAttributedTo ?model . }
"""


@pytest.fixture(scope="module")
def model():
    return rgat.fit("institute", hidden_channels=4, max_epochs=1, comparison=False)


def solutions(path):
    store = ox.Store()
    store.load(path=path, format=ox.RdfFormat.N_TRIPLES)
    return [[term.value for term in row] for row in store.query(QUERY)]


def test_triples_have_the_probability_and_the_model(model, tmp_path):
    predictions = model.predict([PERSON, "http://institute.example/person/7"])
    predictions.save(tmp_path / "a.nt", "http://x.example/field", model.record)
    found = solutions(tmp_path / "a.nt")
    assert {row[0] for row in found} == {PERSON, "http://institute.example/person/7"}
    for node, name, probability, iri in found:
        row = predictions.names.index(f"<{node}>")
        assert name == predictions.labels[row]
        assert float(probability) == pytest.approx(predictions.probabilities[row].max(), abs=1e-6)
        assert iri == model.record.iri
    predictions.save(tmp_path / "b.nt", "http://x.example/field")
    assert len((tmp_path / "b.nt").read_text().splitlines()) == 2  # without a model: one triple per node


def test_a_model_keeps_its_name_and_another_has_another(model, tmp_path):
    model.save(tmp_path / "model")
    again = rgat.load(tmp_path / "model")
    assert again.record == model.record
    assert model.record.iri.startswith("urn:rgat:model:")
    changed = dataclasses.replace(model, config=model.config | {"seed": 5})
    assert changed.record.iri != model.record.iri
    for parameter in again.members[0].parameters():
        parameter.data += 1
    fresh = dataclasses.replace(again, data=again.data)  # nothing remembered
    assert fresh.record.iri != model.record.iri
    hashed = dataclasses.replace(model.data, provenance={"sha256": {"dump.nt": "ab12", "odd": "> <x:y> <x:z"}})
    assert dataclasses.replace(model, data=hashed).record.files == ("ab12",)


@pytest.mark.skipif(oxigraph_program() is None, reason="the package `oxigraph` is not installed")
def test_predictions_are_inserted_at_an_endpoint(model, tmp_path):
    (tmp_path / "dump.nt").write_text("")
    with oxigraph_server(tmp_path / "dump.nt", tmp_path) as (url, _):
        given = {"node": [PERSON], "predicate": "http://x.example/field", "provenance": True, "update": f"{url}/update"}
        _, notes = files.predict(model, None, **given)
        assert notes == [f"1 prediction inserted at {url}/update"]
        found = Endpoint(f"{url}/query").select("?s ?o", "?s <http://x.example/field> ?o")
        assert [subject.value for subject, _ in found] == [PERSON]
        assert len(Endpoint(f"{url}/query").select("?s", f"?s <{PROV}wasAttributedTo> ?m")) == 1
        with pytest.raises(ValueError, match="must answer with status 200, but it answered 404"):
            files.predict(model, None, **given | {"update": f"{url}/nowhere"})


def test_options_without_triples_are_refused(model, tmp_path):
    with pytest.raises(ValueError, match=r"--provenance must be left out here: it is for an --out that ends in \.nt"):
        files.predict(model, tmp_path / "a.csv", node=[PERSON], provenance=True)
    names = ("_:b0",)
    blank = dataclasses.replace(model.predict([PERSON]), names=names)
    with pytest.raises(ValueError, match="nodes must have IRIs to be updated at an endpoint, got blank nodes"):
        files._insert(blank, "http://127.0.0.1:9/", "http://x.example/field", None)


def test_the_commands_say_what_they_wrote(model, tmp_path, monkeypatch, capsys):
    model.save(tmp_path / "model")

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["rgat", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        printed = capsys.readouterr()
        return ended.value.code, printed.out + printed.err

    code, text = run("predict", tmp_path / "model", "--node", PERSON, "--out", tmp_path / "p.nt", "--provenance")
    assert (code, "1 prediction written" in text) == (0, True)
    assert "wasAttributedTo" in (tmp_path / "p.nt").read_text()
    store = ox.Store(str(tmp_path / "store"))
    store.load("<x:a> <x:p> <x:b> . <x:b> <x:p> _:c .", ox.RdfFormat.TURTLE)
    store.flush()
    del store
    (tmp_path / "labels.tsv").write_text("node\tclass\nx:a\t1\n")
    code, text = run("data", "sparql", tmp_path / "store", tmp_path / "n.nt", "--labels", tmp_path / "labels.tsv")
    assert (code, "n.nt: 2 triples, all that 2 nodes have" in text) == (0, True)
    code, text = run("data", "sparql", "http://127.0.0.1:9/", tmp_path / "m.nt", "--nodes", tmp_path / "none")
    assert code == 2
    assert text.count("\n") == 1
    code, text = run("export", tmp_path / "model", tmp_path / "model.txt")
    assert (code, "must be exported to a file that ends in .onnx or .pt2" in text) == (2, True)
