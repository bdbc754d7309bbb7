import dataclasses
import re

import numpy as np
import pytest
from helpers_institute import PREFIX, write_institute

import rgat
from rgat.data import from_rdf
from rgat.data.rdf.reader import parse_triples
from rgat.predictor import added_nodes
from rgat.predictor.added_nodes import AddedNodes

pytest.importorskip("pyoxigraph", reason="reading RDF needs pyoxigraph")


def lines(subject, *pairs):
    return "".join(f"<{PREFIX}{subject}> <{PREFIX}{relation}> {end} .\n" for relation, end in pairs)


def iri(name):
    return f"<{PREFIX}{name}>"


def person(number, *topics):
    pairs = [("type", iri("Person")), *(("researches", iri(f"topic/{topic}")) for topic in topics)]
    return lines(f"person/n{number}", *pairs, ("phone", f'"{number}"'))


TEXTS = [
    person(1, "alloys", "glass"),
    person(2, "alloys") + lines("person/n2", ("sharesLabWith", iri("person/n3"))) + person(3, "faces"),  # two new nodes
    person(4, "depth") + lines("person/1", ("researches", iri("topic/depth"))),  # a known node gets a triple too
    person(5) + lines("person/n5", ("admires", iri("person/1"))),  # an unknown relation
    person(6, "glass") + lines("topic/storms", ("relatedTo", iri("topic/faces"))),
]


@pytest.fixture(scope="module", params=["features", "features and identity", "no inverses"])
def model(request, tmp_path_factory):
    files = write_institute(tmp_path_factory.mktemp("added"))
    options = {"inverses": False} if request.param == "no inverses" else {}
    data = from_rdf(*files, features=("types", "degrees", "literals"), shares=(0.75, 0.0), **options)
    identity = request.param == "features and identity"
    return rgat.fit(data, max_epochs=2, comparison=False, identity=identity, ensemble=1 if identity else 2)


def predicted_alone(model, text, path, nodes=None):
    path.write_text(text)
    return model.predict(nodes, rdf=path)


@pytest.mark.parametrize("most_edges", [added_nodes.MAX_EDGES, 100])
def test_many_requests_in_one_pass_equal_each_alone(model, tmp_path, monkeypatch, most_edges):
    monkeypatch.setattr(added_nodes, "MAX_EDGES", most_edges)
    added = AddedNodes(model)
    answers = added.predict(added.read([(parse_triples(text.encode(), "ntriples"), None) for text in TEXTS]))
    assert len(answers) == len(TEXTS)
    for text, answer in zip(TEXTS, answers, strict=True):
        alone = predicted_alone(model, text, tmp_path / "new.nt")
        assert answer.names == alone.names
        assert set(answer.notes) == set(alone.notes)
        np.testing.assert_allclose(answer.probabilities, alone.probabilities, atol=1e-6)
        np.testing.assert_allclose(answer.spread, alone.spread, atol=1e-6)
        np.testing.assert_allclose(answer.distance, alone.distance, rtol=1e-4)
        np.testing.assert_array_equal(answer.sets["class"], alone.sets["class"])
        assert answer.warnings == alone.warnings


def test_nodes_can_be_named_and_known_ones_change_with_new_triples(model, tmp_path):
    added, nodes = AddedNodes(model), [f"{PREFIX}person/1", iri("person/n4")]
    (answer,) = added.predict(added.read([(parse_triples(TEXTS[2].encode(), "ntriples"), nodes)]))
    alone = predicted_alone(model, TEXTS[2], tmp_path / "new.nt", nodes)
    np.testing.assert_allclose(answer.probabilities, alone.probabilities, atol=1e-6)
    assert abs(alone.probabilities[0] - model.predict([nodes[0]]).probabilities[0]).max() > 1e-7


def test_what_cannot_be_predicted_is_refused(model):
    added = AddedNodes(model)
    triples = parse_triples(lines("person/1", ("researches", iri("topic/glass"))).encode(), "ntriples")
    valid = parse_triples(TEXTS[0].encode(), "ntriples")
    first, request, second = added.read([(triples, None), (valid, None), (triples, ["nobody"])])
    assert re.search(r"must describe new nodes of type .*Person.*, got none; or name the nodes", str(first))
    assert str(second) == "nobody must be a node of the graph or of the added triples, and is neither"
    assert request.names == [iri("person/n1")]  # an error beside it does not matter


def test_a_model_without_features_is_refused(model):
    one_hot = dataclasses.replace(model, data=dataclasses.replace(model.data, x=None))
    with pytest.raises(ValueError, match=r"must have node features, but its input is one-hot; train with --features"):
        AddedNodes(one_hot)


def test_text_is_parsed_from_memory_with_the_limits_of_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "triples").write_text("not to be opened")
    assert len(parse_triples(b"<http://a> <http://b> <http://c>, <http://d> .", "turtle")) == 2
    with pytest.raises(ValueError, match=r"triples, line 2: not valid ntriples"):
        parse_triples(b"<http://a> <http://b> <http://c> .\n<x", "ntriples")
    with pytest.raises(ValueError, match=r"triples, line 1: quoted triples must be nested at most 256 deep"):
        parse_triples(b"<< " * 300, "turtle")
