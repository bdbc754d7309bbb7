"""Relations, literals and flags that tell the class are found, whether literals are nodes or features."""

import dataclasses
import random

import pytest
from helpers_rdf import EX

from rgat.data import from_rdf, load
from rgat.predictor.inspection import describe, find_leaks, literal_rows

XSD = "http://www.w3.org/2001/XMLSchema#"
FEATURES = [(), ("types", "literals"), ("literals",)]


def read(folder, lines, features, size=60, classes=3):
    """A graph of nodes in turns of so many classes, each known by some other; ``lines`` maps a node to more triples."""
    chance = random.Random(0)
    text = "".join(f"<{EX}n{i}> <{EX}knows> <{EX}n{chance.randrange(size)}> .\n" for i in range(size))
    text += "".join(f"<{EX}n{i}> {line} .\n" for i in range(size) for line in lines(i))
    (folder / "graph.nt").write_text(text)
    rows = "".join(f"{EX}n{i}\tclass {i % classes}\n" for i in range(size))
    (folder / "labels.tsv").write_text("node\tclass\n" + rows)
    return from_rdf(folder / "graph.nt", folder / "labels.tsv", shares=(0.8, 0.0), features=features)


@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.parametrize("value", ['"group {}"', '"{}"^^<' + XSD + "integer>"])
def test_a_literal_that_states_the_class_is_found(tmp_path, features, value):
    data = read(tmp_path, lambda i: [f"<{EX}code> {value.format(i % 3)}", f'<{EX}name> "node {i}"'], features)
    (leak,) = find_leaks(data)
    assert (leak.relation, leak.coverage, leak.accuracy, leak.of_class) == (f"<{EX}code>", 1.0, 1.0, None)
    assert sum(line.startswith(f"warning: <{EX}code> alone determines") for line in describe(data)) == 1


@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.parametrize("value", ['"{}"', f"<{EX}v{{}}>"])
def test_a_predicate_that_only_one_class_has_is_found(tmp_path, features, value):
    data = read(tmp_path, lambda i: [f"<{EX}retired> {value.format(i)}"] * (i % 3 == 1), features)
    (leak,) = find_leaks(data)
    assert leak == (f"<{EX}retired>", 1.0, 1.0, "class 1", None)
    assert str(leak).startswith(f'100% of the labelled nodes with <{EX}retired> are "class 1", and 100% of these have')


@pytest.mark.parametrize("features", FEATURES)
def test_a_value_that_only_one_class_has_is_found_among_many(tmp_path, features):
    tags = lambda i: [f'<{EX}tag> "t{i}"', f'<{EX}tag> "t{i + 1}"', *([f'<{EX}tag> "climate"'] * (i % 3 == 2))]
    (leak,) = find_leaks(read(tmp_path, tags, features))
    assert leak == (f"<{EX}tag>", 1.0, 1.0, "class 2", '"climate"')
    assert f'with <{EX}tag> "climate" are "class 2"' in str(leak)


@pytest.mark.parametrize("features", FEATURES)
def test_a_flag_that_states_one_of_two_classes_is_found(tmp_path, features):
    flag = lambda i: [f'<{EX}active> "{str(i % 2 == 0).lower()}"^^<{XSD}boolean>']
    (leak,) = find_leaks(read(tmp_path, flag, features, classes=2))
    assert (leak.relation, leak.of_class) == (f"<{EX}active>", None)


@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.parametrize("value", ['"{}.5"^^<' + XSD + "decimal>", '"{}-05-01"^^<' + XSD + "date>"])
def test_a_number_or_date_that_divides_the_classes_is_found(tmp_path, features, value):
    data = read(tmp_path, lambda i: [f"<{EX}mass> {value.format(1000 + 100 * (i % 3) + i)}"], features)
    assert [(leak.relation, leak.accuracy, leak.of_class) for leak in find_leaks(data)] == [(f"<{EX}mass>", 1.0, None)]
    mixed = read(
        tmp_path, lambda i: [f"<{EX}mass> {value.format(1000 + i // 10)}"], features
    )  # of all classes in turns
    assert find_leaks(mixed) == []


@pytest.mark.parametrize("features", FEATURES)
def test_names_numbers_and_weak_signals_are_no_leaks(tmp_path, features):
    chance = random.Random(1)

    def lines(i):
        yield f'<{EX}name> "node {i}"'
        yield f'<{EX}age> "{chance.randrange(90)}"^^<{XSD}integer>'
        if chance.random() < (0.8 if i % 3 == 0 else 0.3):
            yield f'<{EX}flag> "true"^^<{XSD}boolean>'

    assert find_leaks(read(tmp_path, lines, features)) == []


@pytest.mark.parametrize("features", FEATURES)
def test_test_nodes_do_not_count(tmp_path, features):
    data = read(tmp_path, lambda i: [f'<{EX}code> "{i % 3}"'], features)
    labels = data.labels.clone()
    labels[data.test] = 0
    assert find_leaks(dataclasses.replace(data, labels=labels)) == find_leaks(data) != []


def test_built_in_data_have_no_leak():
    assert find_leaks(load("institute")) == []


def test_the_use_of_each_predicate_is_described(tmp_path):
    lines = lambda i: [
        f'<{EX}name> "n{i}"',
        f'<{EX}age> "{i}"^^<{XSD}integer>',
        f"a <{EX}Person>".replace("a <", f"<{EX}type> <"),
    ]
    said = describe(read(tmp_path, lines, ()))
    assert "edges: 4 predicates (age, knows, name, type)" in said
    assert (
        "literals: values of age, name are only nodes, which equal values share; --features literals reads them as "
        "numbers and text"
    ) in said
    said = describe(read(tmp_path, lines, ("types", "degrees", "literals")))
    assert "edges: 2 predicates (knows, type)" in said
    assert "features of types: 1 type (Person)" in said
    assert "features of degrees: of 2 predicates, in and out" in said
    assert literal_rows(read(tmp_path, lines, ("literals",))) == [
        ("age", "number", "60", "60"),
        ("name", "words and n-grams", "60", "60"),
    ]
    assert not any(line.startswith("literals:") for line in said)
