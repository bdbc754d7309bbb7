"""Contributions of predicates and effects of literals are what happens when these are exchanged or missing."""

import dataclasses

import pytest
import torch
from helpers_literals import EX, XSD, write_people

import rgat
from rgat.data import from_rdf
from rgat.predictor.contributions import _permute, _uses, contributions, exchange_objects, num_passes
from rgat.predictor.explain_literals import literal_columns
from rgat.predictor.explorer import write_explorer
from rgat.predictor.text import explanation_table, node_rows, node_sentences

PERSON = f"{EX}person/3"


@pytest.fixture(scope="module")
def predictor(tmp_path_factory):
    graph, labels = write_people(tmp_path_factory.mktemp("people"), "number", count=60)
    data = from_rdf(graph, labels, features=("types", "degrees", "literals"), shares=(0.75, 0.0))
    return rgat.fit(data, model="RGCN", max_epochs=60, comparison=False)


def test_each_use_of_a_predicate_is_permuted_alone(predictor):
    data = predictor.data
    uses = {use.predicate.strip("<>").rpartition("/")[2]: use for use in _uses(data)}
    assert {name: use.used_as for name, use in uses.items()} == {
        "knows": "links",
        "22-rdf-syntax-ns#type": "links",
        "weight": "number",
        "room": "number",
        "name": "text",
    }
    generator = torch.Generator().manual_seed(0)
    x, graph = _permute(data, uses["weight"], generator)
    (place,) = uses["weight"].places
    assert graph is data.graph
    others = torch.ones(x.shape[1], dtype=torch.bool)
    others[place] = False
    assert torch.equal(x[:, others], data.x[:, others])
    assert not torch.equal(x[:, place], data.x[:, place])
    order = lambda rows: rows[rows[:, 0].argsort()]
    assert torch.equal(order(x[:, place]), order(data.x[:, place]))
    x, graph = _permute(data, uses["knows"], generator)
    assert not torch.equal(graph.edge_index, data.graph.edge_index)
    assert not torch.equal(x, data.x)  # the degrees, which follow from the edges


def test_exchanged_objects_keep_subjects_and_are_inverted_together(predictor):
    data = predictor.data
    relation = data.relation_names.index(f"<{EX}knows>")
    inverse = data.relation_names.index(f"inverse of <{EX}knows>")
    graph = exchange_objects(data, relation, torch.Generator().manual_seed(0))
    ends = lambda graph, number: graph.edge_index[:, graph.edge_type == number]
    assert torch.equal(ends(graph, relation)[0], ends(data.graph, relation)[0])
    assert torch.equal(ends(graph, relation)[1].sort().values, ends(data.graph, relation)[1].sort().values)
    assert torch.equal(ends(graph, inverse), ends(graph, relation).flip(0))
    rest = ~torch.isin(graph.edge_type, torch.tensor([relation, inverse]))
    assert torch.equal(graph.edge_index[:, rest], data.graph.edge_index[:, rest])


def test_contributions_are_scores_of_held_out_nodes_or_left_out(predictor, monkeypatch):
    found = predictor.report["contributions"]
    assert (found["part"], found["nodes"]) == ("test", len(predictor.data.test))
    assert found["score"] == predictor.report["scores"]["test"]
    assert [row["score"] for row in found["predicates"]] == sorted(row["score"] for row in found["predicates"])
    assert found["predicates"][0]["predicate"] == f"<{EX}weight>"
    nothing = dataclasses.replace(predictor.data, test=predictor.data.test[:0])
    assert contributions(predictor, nothing, 0, lambda *_: None) == {}
    sampled = dataclasses.replace(predictor, config=predictor.config | {"fanouts": [2, 2]})
    assert contributions(sampled, predictor.data, 0, lambda *_: None) == {}
    assert num_passes(predictor.data) == 5 * len(found["predicates"])
    monkeypatch.setattr("rgat.predictor.contributions.ENOUGH", len(predictor.data.test) + 1)
    assert num_passes(predictor.data) == 2 * len(found["predicates"])  # more nodes than one part are enough
    monkeypatch.setattr("rgat.predictor.contributions.MOST_EDGES", 1)
    assert contributions(predictor, predictor.data, 0, lambda *_: None) == {}


def test_the_effect_of_a_literal_is_what_happens_when_it_is_missing(predictor):
    explanation = predictor.explain(PERSON)
    reason = next(each for each in explanation.literals if each.node == f"<{PERSON}>" and "weight" in each.predicate)
    place = next(place for _, name, place in literal_columns(predictor.data) if name == reason.predicate)
    x, node = predictor.data.x.clone(), predictor.find(PERSON)
    x[node, place] = 0
    after, before = (
        predictor.probabilities(predictor.member_logits(each, predictor.data.graph)[:, node])
        for each in (x, predictor.data.x)
    )
    predicted = int(before.argmax())
    assert reason.effect == pytest.approx(float(after[predicted] - before[predicted]), abs=1e-5)
    odds = torch.logit(after[predicted]) - torch.logit(before[predicted])
    assert reason.log_odds == pytest.approx(float(odds), abs=1e-3)
    effects = [abs(each.log_odds) for each in explanation.literals]
    assert effects == sorted(effects, reverse=True)
    assert {each.node for each in explanation.literals} > {f"<{PERSON}>"}  # near nodes too


def test_literals_are_told_with_their_values(predictor, tmp_path):
    explanation = predictor.explain(PERSON, top=3)
    first = explanation.literals[0]
    kept = predictor.data.provenance["literal_values"]
    values = {
        value
        for node, name, value in zip(kept["node"], kept["predicate"], kept["value"], strict=True)
        if (node, name) == (predictor.find(first.node), first.predicate)
    }
    assert {first.value} == values
    assert any(f'"{first.value}"' in line for line in node_sentences(explanation))
    _, rows = node_rows(explanation)
    assert [row[1] for row in rows[: len(explanation.literals)]] == [f'"{r.value}"' for r in explanation.literals]
    assert len(rows) == len(explanation.literals) + len(explanation.reasons)
    write_explorer(predictor, tmp_path / "page.html", PERSON, explanation)
    page = (tmp_path / "page.html").read_text()
    assert f'\\"{first.value}\\"' in page
    assert '"contributions": {"part": "test"' in page


def test_predicates_with_literals_are_ranked_with_the_relations(predictor):
    ranked = predictor.explain()
    names = list(ranked.attention)
    assert names[0] == f"<{EX}weight>"
    assert {f"<{EX}room>", f"<{EX}name>"} < set(names[:3])
    assert [ranked.attention[name] for name in names[:3]] == [0, 0, 0]
    assert set(names) == set(ranked.effect) == set(ranked.log_odds) == set(ranked.changed)
    _, _, rows, _ = explanation_table(ranked, 10, wide=True)
    assert rows[0][:2] == ("weight", "-")


def test_literals_of_unknown_predicates_are_left_out_and_counted(predictor, tmp_path):
    new = tmp_path / "new.nt"
    new.write_text(
        f'<{EX}person/new> <{EX}weight> "7"^^<{XSD}decimal> .\n<{EX}person/new> <{EX}height> "180" .\n'
        f"<{EX}person/new> <http://www.w3.org/1999/02/22-rdf-syntax-ns#type> <{EX}Person> .\n"
    )
    notes = predictor.predict(rdf=new).notes
    assert notes == (f"literals of 1 predicate unknown to the model are left out: <{EX}height>",)
