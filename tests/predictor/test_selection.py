"""Which nodes are predicted if none is named: those of the labelled kind, and a note says which kind that is."""

import pytest
from helpers_rdf import EX

import rgat
from rgat.data import from_rdf
from rgat.predictor.selection import select

TYPE = "<http://www.w3.org/1999/02/22-rdf-syntax-ns#type>"


def graph(folder, lines, labels="ab"):
    """A graph of these triples in which some nodes, by default a and b, are labelled."""
    path, table = folder / "graph.nt", folder / "labels.tsv"
    path.write_text("".join(f"{line} .\n" for line in lines))
    table.write_text("node\tclass\n" + "".join(f"{EX}{node}\t{number % 2}\n" for number, node in enumerate(labels)))
    return from_rdf(path, table, shares=(1.0, 0.0))


def triple(subject, relation, value):
    return f"<{EX}{subject}> {TYPE if relation == 'type' else f'<{EX}{relation}>'} <{EX}{value}>"


def selected(data):
    nodes, kind = select(data)
    return {data.node_names[node].removeprefix(f"<{EX}")[:-1] for node in nodes}, kind


def test_nodes_of_the_rarest_shared_type_are_selected(tmp_path):
    typed = [triple(node, "type", "Thing") for node in "abcde"] + [triple(node, "type", "Person") for node in "abc"]
    nodes, kind = selected(graph(tmp_path, typed))
    assert nodes == {"c"}
    assert kind == f"of type <{EX}Person>, which all labelled nodes have"


def test_without_a_shared_type_nodes_of_the_types_of_labelled_nodes_are_selected(tmp_path):
    types = {"a": "Cat", "b": "Dog", "c": "Cat", "d": "Dog", "e": "House"}
    nodes, kind = selected(
        graph(
            tmp_path,
            [
                triple(*pair, value)
                for pair, value in zip([(node, "type") for node in types], types.values(), strict=True)
            ],
        )
    )
    assert nodes == {"c", "d"}
    assert kind == f"of the types of the labelled nodes: <{EX}Cat>, <{EX}Dog>"


def test_without_types_nodes_with_the_rarest_shared_relation_are_selected(tmp_path):
    lines = [triple(node, "born", "Rome") for node in "abc"] + [triple(node, "near", "Rome") for node in "abcde"]
    nodes, kind = selected(graph(tmp_path, lines))
    assert nodes == {"c"}
    assert kind == f"that have <{EX}born>, as all labelled nodes do"
    nodes, kind = selected(graph(tmp_path, [triple("Rome", "houses", node) for node in "abc"]))
    assert nodes == {"c"}
    assert kind == f"that are values of <{EX}houses>, as all labelled nodes do"


def test_without_anything_in_common_all_nodes_are_selected_and_that_is_said(tmp_path):
    nodes, kind = selected(graph(tmp_path, [triple("a", "p", "c"), triple("b", "q", "d"), f'<{EX}b> <{EX}q> "text"']))
    assert nodes == {"c", "d"}
    assert kind.startswith("of the graph, of any kind, because the labelled nodes share neither")


def test_predictions_say_which_nodes_were_selected(node_model):
    (note,) = node_model.predict().notes
    assert note == (
        "predicted the unlabelled nodes of type <http://institute.example/Person>, which all labelled nodes have "
        "(--type and --node select others)"
    )
    assert node_model.predict(["http://institute.example/person/59"]).notes == ()


def test_a_graph_without_types_predicts_no_other_nodes(tmp_path):
    people = "abcdefgh"
    lines = [triple(node, "born", f"City{number % 2}") for number, node in enumerate(people)]
    lines += [triple(f"City{number}", "in", "Italy") for number in range(2)]
    model = rgat.fit(graph(tmp_path, lines, people[:6]), max_epochs=2, comparison=False)
    assert model.predict().names == (f"<{EX}g>", f"<{EX}h>")
    with pytest.raises(ValueError, match="the graph must have types"):
        model.predict(type=f"{EX}Person")
