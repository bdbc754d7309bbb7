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


def test_options_of_inputs_do_not_reach_the_model():
    config = {"features": "types", "max_degree": 3, "num_pruned": 1, "pruned_relations": ["p"], "heads": 2}
    assert without_inputs(config) == {"heads": 2}
