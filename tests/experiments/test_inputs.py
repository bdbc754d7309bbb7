"""Inputs of a trial: groups of features, pruned relations with their inverses, and hubs."""

import dataclasses
from collections import Counter

import pytest
import torch

from rgat.data import load
from rgat.data.dataset import INVERSE
from rgat.experiments.inputs import base_relations, feature_groups, select_inputs, without_inputs


@pytest.fixture(scope="module")
def data():
    return load("institute")


def edges(data):
    return {*zip(*data.graph.edge_index.tolist(), data.graph.edge_type.tolist(), strict=True)}


def with_features(data):
    x = torch.arange(9.0).repeat(data.graph.num_nodes, 1)
    vocabulary = {"types": ["a", "b"], "degrees": ["p"], "numbers": {}}
    return dataclasses.replace(data, x=x, provenance=data.provenance | {"vocabulary": vocabulary})


def test_groups_of_features_are_columns(data):
    full = with_features(data)
    assert feature_groups(data) == {}
    assert feature_groups(full) == {"types": slice(0, 3), "degrees": slice(3, 5), "literals": slice(5, 9)}
    chosen = select_inputs(full, {"features": "types,literals"})
    assert chosen.x[0].tolist() == [0, 1, 2, 5, 6, 7, 8]
    assert chosen.graph is full.graph
    assert select_inputs(full, {"features": "none"}).x is None
    assert select_inputs(full, {"hidden_channels": 8}) is full


def test_a_relation_is_pruned_with_its_inverse(data):
    names = base_relations(data)
    assert not any(name.startswith(INVERSE) for name in names)
    sizes = [sum(t == data.relation_names.index(name) for *_, t in edges(data)) for name in names]
    assert sizes == sorted(sizes, reverse=True)
    pruned = select_inputs(data, {"pruned_relations": names[:2]})
    gone = {data.relation_names[relation] for *_, relation in edges(data) - edges(pruned)}
    assert gone == {*names[:2], *(INVERSE + name for name in names[:2])}
    assert pruned.graph.num_relations == data.graph.num_relations
    assert select_inputs(data, {"pruned_relations": []}) is data


def test_hubs_are_cut_from_a_relation_in_both_directions(data):
    most = 10
    out = Counter((source, relation) for source, _, relation in edges(data))
    into = Counter((target, relation) for _, target, relation in edges(data))
    expected = {(s, t, r) for s, t, r in edges(data) if out[s, r] <= most and into[t, r] <= most}
    assert 0 < len(expected) < len(edges(data))
    cut = select_inputs(data, {"max_degree": most})
    assert edges(cut) == expected
    inverse = {name: number for number, name in enumerate(data.relation_names)}
    mirrored = {
        (t, s, inverse[INVERSE + data.relation_names[r]])
        for s, t, r in expected
        if INVERSE + data.relation_names[r] in inverse
    }
    assert mirrored <= expected


def test_columns_of_neighbours_are_sums_above_thresholds(data):
    full = dataclasses.replace(with_features(data), x=torch.randint(3, (data.graph.num_nodes, 9)).float())
    columns, known = select_inputs(full, {"neighbours": True}).x[:, 9:], torch.cat([full.train, full.valid])
    sums = torch.zeros(full.graph.num_relations, full.graph.num_nodes, 9)
    for (source, target), relation in zip(
        full.graph.edge_index.t().tolist(), full.graph.edge_type.tolist(), strict=True
    ):
        sums[relation, target] += full.x[source]
    assert 5 < columns.shape[1] <= 512
    for column in columns.t():
        above = column > column.min()
        lowest = sums[:, above].amin(1)
        highest = sums[:, ~above].amax(1)
        assert (highest < lowest).any(), "no feature of one relation has a threshold that explains the column"
        assert 5 <= int(above[known].sum()) <= len(known) - 5
    patterns = {tuple((column > column.min())[known].tolist()) for column in columns.t()}
    assert len(patterns) == columns.shape[1]
    assert columns.abs().max() <= 3
    typical = columns[:, columns.abs().amax(0) < 3]
    torch.testing.assert_close(typical[known].mean(0), torch.zeros(typical.shape[1]), atol=1e-5, rtol=0)


def test_columns_of_neighbours_depend_on_selected_features_and_edges_and_on_no_label(data):
    full = dataclasses.replace(with_features(data), x=torch.randint(3, (data.graph.num_nodes, 9)).float())
    some = select_inputs(full, {"neighbours": True, "features": "types"}).x
    changed = full.x.clone()
    changed[:, 3:] = 0
    other = dataclasses.replace(full, x=changed, labels=full.labels.flip(0))
    assert torch.equal(some, select_inputs(other, {"neighbours": True, "features": "types"}).x)
    name = base_relations(full)[0]
    pruned = select_inputs(full, {"neighbours": True, "features": "types", "pruned_relations": [name]})
    assert pruned.x.shape != some.shape
    assert select_inputs(full, {"neighbours": True, "features": "none"}).x is None


def test_options_of_inputs_do_not_reach_the_model():
    config = {
        "features": "types",
        "neighbours": True,
        "max_degree": 3,
        "num_pruned": 1,
        "pruned_relations": ["p"],
        "heads": 2,
    }
    assert without_inputs(config) == {"heads": 2}
