"""Compare layers and models in plain operations, which other runtimes have, with the layers themselves."""

import pytest
import torch
from helpers import random_graph

from rgat.models import GraphClassifier, NodeClassifier
from rgat.nn import RGATConv
from rgat.nn.plain import PlainConv, PlainGraph, as_plain

R = 4
OPTIONS = {
    "additive-within": {},
    "multiplicative-across": {"score": "multiplicative", "scope": "across", "heads": 2},
    "mixed-dynamic": {"score": "dynamic", "scope": ["across", "within", "within", "across"], "heads": 4},
    "bases": {"num_bases": 2, "num_attention_bases": 3, "feature_dropout": 0.5},
    "rgcn": {"layer": "rgcn", "num_bases": 2},
    "normalised": {"batch_norm": True, "residual": True, "layer_norm": True, "num_layers": 3},
    "jumping": {"jumping_knowledge": True, "num_layers": 3},
}


def plain(graph):
    return PlainGraph(graph.edge_index, graph.edge_type, graph.num_nodes, graph.batch, graph.num_graphs)


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("inputs", ["features", "one-hot", "one-hot-of-a-graph", "features-and-rows", "embedding"])
def test_a_plain_node_classifier_equals_the_model(name, inputs):
    options, graph = OPTIONS[name], random_graph(9, 40, R)
    if inputs == "one-hot" and options.get("residual"):
        pytest.skip("residual connections need features or a graph")
    x = torch.randn(9, 5) if inputs.startswith("features") else None
    built = {
        "one-hot-of-a-graph": {"graph": graph},
        "features-and-rows": {"graph": graph, "identity": True},
        "embedding": {"embedding_channels": 6},
    }.get(inputs, {})
    model = NodeClassifier(9 if x is None else 5, 3, R, hidden_channels=8, **options, **built).eval()
    one_hot = inputs.startswith("one-hot")
    copy = as_plain(model, graph, with_features=not one_hot)
    expected = model(x, graph)
    torch.testing.assert_close(copy(x, (plain(graph),) * model.num_layers), expected)
    assert torch.equal(model(x, graph), expected)  # it has its own layers still
    few = graph.with_edges(torch.arange(0, 40, 3))
    torch.testing.assert_close(copy(x, (plain(few),) * model.num_layers), model(x, few))


def test_new_nodes_have_rows_of_zero():
    graph = random_graph(9, 40, R)
    model = NodeClassifier(5, 3, R, hidden_channels=8, graph=graph, identity=True).eval()
    more, x = random_graph(14, 80, R, seed=1), torch.randn(14, 5)
    torch.testing.assert_close(as_plain(model, graph)(x, (plain(more),) * 2), model(x, more))


@pytest.mark.parametrize("batch", [torch.arange(9) // 3, torch.tensor([0, 0, 0, 2, 2, 3, 3, 3, 3]), None])
def test_a_plain_graph_classifier_equals_the_model(batch):
    graph, x = random_graph(9, 40, R, batch=batch), torch.randn(9, 5)
    model = GraphClassifier(5, 2, R, hidden_channels=8, heads=2, scope="mixed", batch_norm=True).eval()
    torch.testing.assert_close(as_plain(model)(x, plain(graph)), model(x, graph))


def test_large_logits_and_no_edges_give_no_nan():
    conv, graph = RGATConv(5, 3, R).eval(), random_graph(9, 40, R)
    x = torch.randn(9, 5) * 1e4
    # Logits of 10,000 are rounded by a thousandth, and so is the attention.
    torch.testing.assert_close(PlainConv(conv, None, True)(x, plain(graph)), conv(x, graph), rtol=1e-3, atol=1e-1)
    empty = random_graph(9, 0, R)
    torch.testing.assert_close(PlainConv(conv, None, True)(x, plain(empty)), conv(x, empty))


def test_edge_features_are_refused():
    with pytest.raises(ValueError, match="single one without edge features, got a stack or `edge_dim`"):
        PlainConv(RGATConv(5, 3, R, edge_dim=2), None, True)
