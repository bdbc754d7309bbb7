import pytest
import torch
from helpers_institute import PREFIX, write_institute

import rgat
from rgat.data import convert, from_rdf
from rgat.predictor.new_triples import extend

NEW = "".join(
    f"<{PREFIX}person/new> <{PREFIX}{relation}> <{PREFIX}{end}> .\n"
    for relation, end in (("type", "Person"), ("researches", "topic/alloys"), ("researches", "topic/glass"))
)


@pytest.fixture(scope="module")
def inductive(tmp_path_factory):
    graph, labels = write_institute(tmp_path_factory.mktemp("inductive"))
    data = from_rdf(graph, labels, features=("types", "literals"), shares=(0.75, 0.0))
    return rgat.fit(data, max_epochs=60, comparison=False, feature_dropout=0.0)


def test_nodes_added_after_training_are_predicted_by_their_features(tmp_path, inductive):
    new = tmp_path / "new.nt"
    new.write_text(NEW + f'<{PREFIX}person/new> <{PREFIX}phone> "123"^^<http://www.w3.org/2001/XMLSchema#integer> .\n')
    inductive.save(tmp_path / "model")
    loaded = rgat.load(tmp_path / "model")
    for model in (inductive, loaded):
        predictions = model.predict(rdf=new)
        assert predictions.names == (f"<{PREFIX}person/new>",)
        assert predictions.notes == ()
        assert predictions.labels.tolist() == ["materials"]
    assert loaded.predict([f"{PREFIX}person/new"], rdf=new).names == (f"<{PREFIX}person/new>",)


def test_a_model_with_features_and_identity_predicts_nodes_added_after_training(tmp_path):
    graph, labels = write_institute(tmp_path)
    data = from_rdf(graph, labels, features=("types", "literals"), shares=(0.75, 0.0))
    model = rgat.fit(data, max_epochs=60, comparison=False, feature_dropout=0.0, identity=True)
    assert model.members[0].conv1.num_nodes == data.graph.num_nodes
    model.save(tmp_path / "model")
    loaded, new = rgat.load(tmp_path / "model"), tmp_path / "new.nt"
    assert torch.equal(loaded.members[0].conv1.identity.weight, model.members[0].conv1.identity.weight)
    new.write_text(NEW)
    assert loaded.predict(rdf=new).labels.tolist() == ["materials"]
    assert (loaded.predict().probabilities == model.predict().probabilities).all()
    assert model.explain(model.predict().names[0]).reasons


def test_degrees_are_those_of_the_extended_graph(tmp_path, files):
    data = from_rdf(files[0], files[1], features=("types", "degrees"))
    new = tmp_path / "new.nt"
    new.write_text(NEW)
    extended, _, _ = extend(data, new)
    again = tmp_path / "again.nt"
    again.write_text(files[0].read_text() + NEW)
    whole = from_rdf(again, files[1], features=("types", "degrees"))
    node_ids = {name: node for node, name in enumerate(whole.node_names)}
    torch.testing.assert_close(extended.x, whole.x[[node_ids[name] for name in extended.node_names]])


def test_triples_that_are_there_already_change_nothing(tmp_path, files, inductive):
    known = tmp_path / "known.nt"
    known.write_text("".join(line + "\n" for line in files[0].read_text().splitlines()[::9]))
    extended, added, notes = extend(inductive.data, known)
    assert (added, notes) == (set(), [])
    before, after = inductive.data.graph, extended.graph
    assert (before.num_nodes, before.num_edges) == (after.num_nodes, after.num_edges)
    logits = inductive.member_logits(extended.x, after)
    assert torch.allclose(logits, inductive.logits, atol=1e-5)


def test_unknown_relations_are_left_out_and_counted(tmp_path, inductive):
    new = tmp_path / "new.nt"
    new.write_text(NEW + f"<{PREFIX}person/new> <{PREFIX}admires> <{PREFIX}person/1> .\n")
    notes = inductive.predict(rdf=new).notes
    assert len(notes) == 1
    assert "1 triples of 1 relations unknown to the model are left out" in notes[0]
    new.write_text(f"<{PREFIX}person/1> <{PREFIX}researches> <{PREFIX}topic/alloys> .\n")
    with pytest.raises(ValueError, match="must name new nodes of type"):
        inductive.predict(rdf=new)


def test_a_one_hot_model_counts_the_nodes_it_cannot_predict_and_names_how_to(tmp_path, node_model):
    new = tmp_path / "new.nt"
    new.write_text(NEW)
    with pytest.raises(ValueError, match=r"1 of 4 nodes .* train with --features types,literals"):
        node_model.predict(rdf=new)
    new.write_text(NEW + f"<{PREFIX}person/59> <{PREFIX}researches> <{PREFIX}topic/alloys> .\n")
    predictions = node_model.predict(rdf=new)
    assert predictions.names == (f"<{PREFIX}person/59>",)  # not the topics, which have another type
    assert "1 of 5 nodes" in predictions.notes[0]
    assert "--features types,literals" in predictions.notes[0]
    new.write_text("<http://x/a> <http://x/p> <http://x/b> .\n")
    with pytest.raises(ValueError, match=r"2 of 2 nodes .* cannot predict them; train with --features types,literals"):
        node_model.predict(rdf=new)
    new.write_text(f"<{PREFIX}person/58> <{PREFIX}researches> <{PREFIX}topic/alloys> .\n")
    assert "only select the nodes to predict" in node_model.predict(rdf=new).notes[0]
    with pytest.raises(ValueError, match=r"person must be the type of some node, .*; did you mean .*Person\?"):
        node_model.predict(type=f"{PREFIX}person")
    with pytest.raises(ValueError, match=r"must be the type of some node, .*; the most common are http"):
        node_model.predict(type="building")


def test_new_triples_may_come_as_a_store(tmp_path, inductive):
    new = tmp_path / "new.nt"
    new.write_text(NEW)
    convert(new, tmp_path / "store")
    assert inductive.predict(rdf=tmp_path / "store").labels.tolist() == inductive.predict(rdf=new).labels.tolist()
    convert(new, tmp_path / "featured", features=("types",))
    with pytest.raises(ValueError, match="featured: must be a store without features here, got one with"):
        inductive.predict(rdf=tmp_path / "featured")
