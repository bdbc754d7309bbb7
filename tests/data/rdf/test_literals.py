"""Each predicate is used as what its values are, and all columns of a node without a value are zero."""

import numpy as np
import pytest
from helpers_rdf import EX, XSD

from rgat.data.rdf import literals
from rgat.data.rdf.literals import LiteralReader, encode_literals
from rgat.data.rdf.reader import Triples

PREDICATE = f"<{EX}p>"


def triples_of(values, per_node=1):
    """Each value is the literal of a node of its own, or of one of several; the last node has none."""
    num_nodes = -(-len(values) // per_node) + 1
    names = [f"<{EX}{number:05d}>" for number in range(num_nodes)]
    distinct = sorted(set(values))
    edges = [(number // per_node, 0, num_nodes + distinct.index(value)) for number, value in enumerate(values)]
    return Triples([*names, *distinct], [PREDICATE], np.array(edges).reshape(-1, 3))


def typed(values, datatype):
    return [f'"{value}"^^<{XSD}{datatype}>' for value in values]


def learn(values, per_node=1):
    """Return the encoder of some values, and the columns of their nodes."""
    triples = triples_of(values, per_node)
    reader = LiteralReader()
    reader.add(triples)
    encoder = reader.encoders()[PREDICATE]
    (x,) = encode_literals(triples, {PREDICATE: encoder})
    assert x.shape == (-(-len(values) // per_node) + 1, encoder.width)
    assert np.isfinite(x).all()
    assert not x[-1].any()
    return encoder, x[:-1]


KINDS = {
    "number": [
        typed(range(40), "integer"),
        typed([1.5e308, -1.7e308, "1e-300", 0, 3], "double"),
        [f'"{number}"' for number in range(100, 140)],  # written as plain text
        [f'"{number}"^^<{EX}kilometre>' for number in range(40)],
        [*typed(range(40), "integer"), *typed(["unknown"], "integer")],
    ],
    "date": [
        typed(["1999-12-31", "2000-02-29Z", "-0044-03-15"], "date"),
        typed(["2001-01-01T10:30:00", "2002-01-01T23:59:59.5+01:00"], "dateTime"),
        typed(["2001", "-0044", "12005"], "gYear"),
        typed(["10:30:00", "11:45:00Z"], "time"),
        ['"2001-05-06"', '"2001-05-07"'],
    ],
    "boolean": [typed(["true", "false", "0", "1"], "boolean"), ['"true"', '"false"', '"False"']],
    "category": [['"red"', '"green"', '"red"', '"green"'], ['"de"@de', '"de"@en', '"fr"@en', '"fr"@de']],
    "text": [
        [f'"the name of number {number}"' for number in range(30)],
        ['"007"', '"008"', '"009"'],  # codes
        typed(["2001-02-30"], "date"),  # there is no such day
    ],
}


@pytest.mark.parametrize(("kind", "values"), [(kind, values) for kind in KINDS for values in KINDS[kind]])
def test_the_kind_of_a_predicate_follows_from_its_values(kind, values):
    encoder, x = learn(values)
    assert (encoder.kind, encoder.values, encoder.nodes) == (kind, len(values), len(values))
    is_known = np.array(["unknown" not in value for value in values])
    assert (x[is_known, -1] == 1).all()
    assert not x[~is_known].any()


def test_numbers_are_scaled_by_quartiles_and_skewed_ones_by_their_logarithm():
    encoder, x = learn(typed([*range(100), 10**9], "integer"))
    assert encoder.logarithm == 0
    assert 0 < np.abs(x[:, 0]).mean() < 1.5
    assert x[:, 0].max() == literals.BOUND  # an outlier stays bounded
    rng = np.random.default_rng(0)
    numbers = np.sort(rng.lognormal(0, 2, 400) * np.where(np.arange(400) % 2, -1, 1))
    encoder, x = learn(typed([f"{number:.6f}" for number in numbers], "decimal"))
    assert encoder.logarithm > 0
    assert (np.diff(x[:, 0]) >= 0).all()
    steps = x[:, 1:-1]
    assert steps.min() == 0
    assert steps.max() == 1
    assert (np.diff(steps, axis=1) <= 1e-6).all()  # a segment is entered when the one before is full


def test_few_numbers_may_be_codes_and_get_a_column_each():
    encoder, x = learn(typed([1, 2, 3, 2, 1, 3], "integer"))
    assert encoder.own == ["1", "2", "3"]
    np.testing.assert_array_equal(x[:, -4:-1].argmax(1), [0, 1, 2, 1, 0, 2])


def test_several_values_of_a_node_are_averaged_and_counted():
    encoder, x = learn(typed([1, 3, 5, 9, 40, 80], "integer"), per_node=2)
    assert encoder.several
    triples = triples_of(typed([1, 3], "integer"))
    (alone,) = encode_literals(triples, {PREDICATE: encoder})
    np.testing.assert_allclose(x[0, :-2], alone[:2, :-2].mean(0), rtol=1e-6)
    np.testing.assert_allclose(x[:, -2:], [[1, np.log(3)]] * 3, rtol=1e-6)


def test_dates_have_a_position_and_cycles():
    days = [f"20{year:02d}-{month:02d}-15" for year in range(4) for month in range(1, 13)]
    encoder, x = learn(typed(days, "date"))
    assert encoder.cycles == ["year", "week"]
    assert (np.diff(x[:, 0]) > 0).all()
    first = len(encoder.knots)
    np.testing.assert_allclose(x[:12, first : first + 14], x[12:24, first : first + 14], atol=1e-6)  # same days
    np.testing.assert_array_equal(x[:12, first + 2 : first + 14], np.eye(12))
    hours, x = learn(typed([f"2001-05-06T{hour:02d}:00:00" for hour in range(24)], "dateTime"))
    assert hours.cycles == ["day"]
    first = len(hours.knots)
    np.testing.assert_allclose(x[0, first : first + 2], [0, 1], atol=1e-6)
    np.testing.assert_allclose(x[12, first : first + 2], [0, -1], atol=1e-6)


def test_frequent_words_have_columns_and_others_are_hashed():
    values = [f'"{word} Thing of its own: x{number}\\n"' for number, word in enumerate(["Alpha", "beta"] * 40)]
    encoder, x = learn(values)
    assert {"alpha", "beta", "thing", "of", "its", "own"} == set(encoder.own)
    column = encoder.own.index("alpha")
    np.testing.assert_allclose(x[:4, column], [np.log(2), 0, np.log(2), 0], rtol=1e-6)
    hashed = x[:, len(encoder.own) : len(encoder.own) + encoder.hashed]
    np.testing.assert_allclose(np.linalg.norm(hashed, axis=1), 1, rtol=1e-5)
    assert len({row.tobytes() for row in hashed}) == 80


def test_many_texts_share_a_limited_number_of_columns():
    reader = LiteralReader()
    triples = triples_of([f'"word{number} and others"' for number in range(90)])
    for number in range(40):
        reader.add(Triples(triples.node_names, [f"<{EX}{number}>"], triples.edges))
    assert sum(encoder.width for encoder in reader.encoders().values()) <= literals.TEXT_COLUMNS + 40


@pytest.mark.parametrize("block", [1, 7, 1000])
def test_blocks_of_any_size_give_the_same_encoder(monkeypatch, block):
    monkeypatch.setattr(literals, "SAMPLE", 50)
    triples = triples_of(typed(np.random.default_rng(0).integers(10**6, size=333), "integer"))
    whole, parts = LiteralReader(), LiteralReader()
    whole.add(triples)
    for start in range(0, 333, block):
        parts.add(Triples(triples.node_names, triples.relation_names, triples.edges[start : start + block]))
    assert whole.encoders() == parts.encoders()
    assert 25 < len(whole.samples[PREDICATE].kept) <= 50
