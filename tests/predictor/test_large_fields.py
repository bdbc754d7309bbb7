"""Explanations in blocks of bounded memory are those in memory."""

import pytest
import torch
from helpers import random_graph

from rgat.data import NodeData
from rgat.models import NodeClassifier
from rgat.predictor import explain_node as explaining
from rgat.predictor import explain_relations as ranking
from rgat.predictor.ensemble import Calibration, Ensemble
from rgat.predictor.explain_node import explain_node
from rgat.predictor.explain_relations import explain_relations
from rgat.predictor.large_field import LargeField
from rgat.predictor.near_field import NearField

N, F, CLASSES = 14, 6, 3
NAMES = ("r", "s", "inverse of r", "inverse of s", "self")
PLACES = [("number", "<p>", slice(0, 2)), ("text", "<q>", slice(2, 6))]
LAYERS = {
    "within": {},
    "across": {"scope": "across", "heads": 2},
    "mixed": {"scope": ["within", "across"], "heads": 2, "score": "multiplicative"},
    "dynamic, three layers": {"score": "dynamic", "num_layers": 3, "batch_norm": True},
    "one layer": {"num_layers": 1, "scope": "across"},
    "convolution": {"layer": "rgcn"},
    "jumping knowledge": {"jumping_knowledge": True, "residual": True, "num_layers": 3},
    "wide": {"wide": True},
    "embedding": {"in_channels": N, "embedding_channels": 5, "scope": "across"},
    "one-hot": {"in_channels": N},
}


def make(name, members=2, edges=16):
    """Return an ensemble in double precision, and data whose first nodes have literals."""
    options = {"in_channels": F, "hidden_channels": 4} | LAYERS[name]
    graph = random_graph(N, edges, 3).with_inverses().with_self_loops()
    graph = graph.with_edges(~torch.isin(graph.edge_type, torch.tensor([2, 5])))  # the helper's unused relation
    types = graph.edge_type - (graph.edge_type > 2).long() - (graph.edge_type > 5).long()
    graph = type(graph)(graph.edge_index, types, num_nodes=N, num_relations=5)
    models = []
    for seed in range(members):
        torch.manual_seed(seed)
        models.append(NodeClassifier(num_classes=CLASSES, num_relations=5, **options).double().eval())
        if options.get("wide"):
            torch.nn.init.normal_(models[-1].jump0.weight)  # zero at first
    x = None if options["in_channels"] == N else torch.randn(N, F).double() * (torch.rand(N, F) < 0.7)
    calibration = Calibration(torch.tensor(1.3), torch.tensor([0.1, -0.2, 0.0]))
    labels = torch.arange(N) % CLASSES
    labels[N // 2 :] = -1
    none = torch.empty(0, dtype=torch.long)
    fields = {"classes": ("a", "b", "c"), "train": none, "valid": none, "test": none, "relation_names": NAMES}
    names = tuple(f"n{node}" for node in range(N))
    data = NodeData(name="made up", graph=graph, x=x, labels=labels, node_names=names, **fields)
    return Ensemble(models, {}, calibration, {}), data


@pytest.mark.parametrize("numbers", [1, 300])  # every node is a hub, some are
@pytest.mark.parametrize("name", LAYERS)
def test_a_field_in_blocks_is_the_field_in_memory(name, numbers):
    ensemble, data = make(name)
    visited = 0
    for node in (3, N - 1):  # the last has a self-loop alone
        near = NearField(ensemble, data, node)
        large = LargeField(ensemble, data, torch.tensor([node]), numbers)
        assert large.num_edges == near.num_edges
        torch.testing.assert_close(large.before, near.before, rtol=1e-6, atol=1e-7)
        expected, found = near.shares(1000), large.shares(1000)
        assert found.own == pytest.approx(expected.own, abs=1e-6)
        assert found.choice == pytest.approx(expected.choice, abs=1e-5)
        torch.testing.assert_close(found.relations, expected.relations, rtol=1e-5, atol=1e-6)
        pairs = list(zip(sorted(expected.edges, key=key), sorted(found.edges, key=key), strict=True))
        for one, other in pairs:
            assert key(one) == key(other)
            assert other[4:] == pytest.approx(one[4:], abs=1e-6)
        for effect in ("without_edges", "at_equal_share"):
            first, second = (
                getattr(field, effect)([pair[place] for pair in pairs[:10]])
                for place, field in enumerate((near, large))
            )
            torch.testing.assert_close(second, first, rtol=1e-5, atol=1e-6)
        visited += len(pairs)
        if data.x is not None:
            predicted = int(near.before.argmax())
            gradients = near.gradients(predicted, PLACES).float()
            torch.testing.assert_close(large.gradients(predicted, PLACES), gradients, rtol=1e-4, atol=1e-5)
            near_nodes = gradients.abs().sum(1).nonzero().squeeze(1).tolist()
            places = [(other, place) for other in near_nodes[:4] for *_, place in PLACES]
            first, second = (field.without_columns(places) for field in (near, large))
            torch.testing.assert_close(second, first, rtol=1e-5, atol=1e-6)
            assert gradients.abs().max() > 0
    assert visited >= 3


def key(edge):
    """Return an order of edges; the number tells parallel edges apart, and is that of one field."""
    return edge.source, edge.target, edge.relation


@pytest.mark.parametrize("name", ["mixed", "embedding"])
def test_explanations_are_the_same_in_blocks(name, monkeypatch):
    ensemble, data = make(name)
    vocabulary = [("numbers", "<p>", slice(0, 2)), ("texts", "<q>", slice(2, 6))]
    columns = lambda given: [] if given.x is None else vocabulary
    monkeypatch.setattr("rgat.predictor.explain_literals.literal_columns", columns)
    monkeypatch.setattr(ranking, "literal_columns", columns)
    expected = explain_node(ensemble, data, 3, top=100), explain_relations(ensemble, data)
    for module in (explaining, ranking):
        monkeypatch.setattr(module, "BLOCK_NUMBERS", 50)
    assert isinstance(explaining.find_field(ensemble, data, 3)[0], LargeField)
    found = explain_node(ensemble, data, 3, top=100), explain_relations(ensemble, data)
    for one, other in zip(expected, found, strict=True):
        assert plain(other) == pytest.approx(plain(one), abs=1e-5)
    assert bool(expected[0].literals) == (data.x is not None)
    assert len(expected[1].effect) == (4 if data.x is not None else 2)


def plain(explanation, path=""):
    """Return all numbers of an explanation by where they are; lists by what their entries are about."""
    found = {}
    for name, value in explanation.as_json().items():
        if isinstance(value, list):
            words = [[word for word in entry.values() if isinstance(word, str)] for entry in value]
            for place, entry in sorted(zip(words, value, strict=True), key=lambda pair: pair[0]):
                found |= {(name, *place, key): number for key, number in entry.items() if isinstance(number, float)}
        elif isinstance(value, dict):
            found |= {(name, key): number for key, number in value.items() if isinstance(number, float)}
        elif isinstance(value, float | int):
            found[name] = value
    return found
