import copy
import dataclasses

import pytest
import torch
from helpers import random_graph
from torch.export import Dim
from torch.utils import _pytree as pytree

from rgat import RelationalGraph, ops
from rgat.data import load
from rgat.experiments.variants import build_model
from rgat.models import GraphClassifier, NodeClassifier
from rgat.nn import RGATConv, RGCNConv
from rgat.training import Settings, fit

N, R, F = 9, 4, 5
FAMILIES = [{"layer": "rgcn"}, {"heads": 2, "scope": "across", "score": "multiplicative"}]


def batch_of_graphs(*sizes, seed=0):
    parts = [random_graph(size, 4 * size, R, seed=seed + k) for k, size in enumerate(sizes)]
    return RelationalGraph.collate(parts)


@pytest.mark.parametrize("options", FAMILIES)
@pytest.mark.parametrize("batch_norm", [False, True])
def test_a_node_classifier_is_two_layers_with_relu_between(options, batch_norm):
    graph, x = random_graph(N, 60, R), torch.randn(N, F)
    model = NodeClassifier(F, 3, R, hidden_channels=8, batch_norm=batch_norm, **options)
    hidden = model.conv1(x, graph)
    assert hidden.shape == (N, 8)
    if batch_norm:
        hidden = (hidden - hidden.mean(0)) / (hidden.var(0, unbiased=False) + 1e-5).sqrt()
    torch.testing.assert_close(model(x, graph), model.conv2(hidden.relu(), graph))
    assert model(x, graph).shape == (N, 3)


@pytest.mark.parametrize("options", FAMILIES)
@pytest.mark.parametrize("batch_norm", [False, True])
def test_a_graph_classifier_follows_the_papers_figure(options, batch_norm):
    graph = batch_of_graphs(3, 5, 1)
    x = torch.randn(9, F)
    model = GraphClassifier(
        F, 4, R, num_classes=3, hidden_channels=8, dense_channels=6, batch_norm=batch_norm, **options
    )

    def norm(h):
        return (h - h.mean(0)) / (h.var(0, unbiased=False) + 1e-5).sqrt() if batch_norm else h

    h = norm(model.conv1(x, graph)).relu()
    h = norm(model.conv2(h, graph)).relu()
    parts = h.split([3, 5, 1])
    z = torch.stack([torch.cat([part.mean(0), part.max(0).values]) for part in parts]).tanh()
    expected = model.dense2(model.dense1(z).relu()).view(3, 4, 3)
    torch.testing.assert_close(model(x, graph), expected)


def test_units_per_head_shrink_so_that_the_total_stays():
    for heads in (1, 2, 4):
        model = NodeClassifier(F, 3, R, hidden_channels=8, heads=heads)
        assert (model.conv1.heads, model.conv1.out_channels, model.conv1.head_merge) == (heads, 8 // heads, "concat")
        assert (model.conv2.heads, model.conv2.out_channels, model.conv2.head_merge) == (heads, 3, "mean")
        assert model.conv2.in_channels == 8
        model = GraphClassifier(F, 3, R, hidden_channels=8, heads=heads)
        for conv in (model.conv1, model.conv2):
            assert (conv.heads, conv.out_channels, conv.head_merge) == (heads, 8 // heads, "concat")


def test_multiplicative_attention_channels_are_the_units_per_head_of_each_layer():
    model = NodeClassifier(F, 3, R, hidden_channels=8, heads=2, score="multiplicative")
    assert [conv.attention_channels for conv in (model.conv1, model.conv2)] == [4, 3]


def test_layer_options_reach_both_layers():
    options = {"num_bases": 2, "feature_dropout": 0.1, "edge_dropout": 0.2, "bias": False}
    for family, layer in (("rgat", RGATConv), ("rgcn", RGCNConv)):
        model = NodeClassifier(F, 3, R, layer=family, **options)
        for conv in (model.conv1, model.conv2):
            assert isinstance(conv, layer)
            assert (conv.feature_dropout, conv.edge_dropout, conv.bias) == (0.1, 0.2, None)
            assert conv.kernel.bases.shape[0] == 2


@pytest.mark.parametrize("options", FAMILIES)
def test_a_featureless_classifier_holds_only_the_rows_of_its_graph(options):
    graph = random_graph(N, 12, R)
    compact = NodeClassifier(N, 3, R, hidden_channels=4, graph=graph, **options)
    assert compact.conv1.rows is not None
    assert compact.conv2.rows is None
    assert compact(None, graph).shape == (N, 3)


def test_constant_attention_reaches_both_layers_and_leaves_an_rgcn_alone():
    graph, x = random_graph(N, 60, R), torch.randn(N, F)
    model = NodeClassifier(F, 3, R)
    expected = model.conv2(model.conv1(x, graph, constant_attention=True).relu(), graph, constant_attention=True)
    torch.testing.assert_close(model(x, graph, constant_attention=True), expected)
    rgcn = NodeClassifier(F, 3, R, layer="rgcn")
    assert torch.equal(rgcn(x, graph, constant_attention=True), rgcn(x, graph))


def test_edge_features_reach_both_layers():
    graph = random_graph(N, 60, R, edge_dim=2)
    model = NodeClassifier(F, 3, R, edge_dim=2)
    out = model(torch.randn(N, F), graph)
    (out * torch.randn_like(out)).sum().backward()
    assert all(conv.edge_kernel.grad.abs().max() > 0 for conv in (model.conv1, model.conv2))


BAD = [
    (NodeClassifier, {"hidden_channels": 6, "heads": 4}, "`hidden_channels` must be divisible by `heads`, got 6 and 4"),
    (GraphClassifier, {"hidden_channels": 6, "heads": 4}, "`hidden_channels` must be divisible by `heads`"),
    (NodeClassifier, {"layer": "rgta"}, r'`layer` must be "rgat" or "rgcn", got "rgta"; did you mean "rgat"\?'),
    (NodeClassifier, {"layer": "rgcn", "heads": 2}, '`heads` must be 1 for layer="rgcn"'),
    (NodeClassifier, {"layer": "rgcn", "scope": "within"}, '`scope` must not be given for layer="rgcn"'),
    (GraphClassifier, {"dense_channels": 0}, "`dense_channels` must be an integer of at least 1, got 0"),
    (GraphClassifier, {"graph": random_graph()}, "`graph` must not be given: a graph classifier is for many graphs"),
]


@pytest.mark.parametrize(("model", "options", "message"), BAD)
def test_bad_options_are_refused_in_one_sentence(model, options, message):
    with pytest.raises(ValueError, match=message):
        model(F, 3, R, **options)


def dynamic(x, graph):
    shapes = [[Dim.AUTO] * leaf.dim() for leaf in (x, *pytree.tree_leaves(graph))]
    return shapes[0], shapes[1:]


MODELS = {
    "node": lambda options: (
        NodeClassifier(F, 3, R, hidden_channels=8, batch_norm=True, **options),
        (4, 5),
        (5, 30, 3),
    ),
    "graph": lambda options: (GraphClassifier(F, 3, R, hidden_channels=8, **options), (3, 5, 2), (7, 1, 4, 12)),
}


@pytest.mark.parametrize("options", FAMILIES)
@pytest.mark.parametrize("kind", MODELS)
def test_models_compile_and_export(kind, options):
    torch.use_deterministic_algorithms(False)
    torch._dynamo.reset()
    model, sizes, other_sizes = MODELS[kind](options)
    x, graph = torch.randn(sum(sizes), F), batch_of_graphs(*sizes).prepare()
    twin = copy.deepcopy(model)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    cotangent = torch.randn(model(x, graph).shape)
    for m in (compiled, twin):
        (m(x, graph) * cotangent).sum().backward()
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)

    model.eval()
    program = torch.export.export(model, (x, graph), dynamic_shapes=dynamic(x, graph))
    other = batch_of_graphs(*other_sizes, seed=50).prepare()
    y = torch.randn(sum(other_sizes), F)
    torch.testing.assert_close(program.module()(y, other), model(y, other))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # raised inside the code generator
def test_a_graph_classifier_compiles_with_the_default_compiler_under_autocast():
    torch.use_deterministic_algorithms(False)
    torch._dynamo.reset()
    model = GraphClassifier(F, 3, R, hidden_channels=8, batch_norm=True)
    twin = copy.deepcopy(model)
    x, graph = torch.randn(10, F), batch_of_graphs(3, 5, 2).prepare()
    cotangent = torch.randn(3, 3, 2)
    for m in (torch.compile(model, fullgraph=True), twin):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = m(x, graph)
        (out.float() * cotangent).sum().backward()
    scale = max(parameter.grad.abs().max() for parameter in twin.parameters())
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        assert (a.grad - b.grad).abs().max() <= 0.05 * scale


def watch_training_part(data):
    """Let early stopping choose the epoch that is best on what is learned."""
    return dataclasses.replace(data, valid=data.train)


@pytest.mark.parametrize("options", [{"layer": "rgcn"}, {}, {"scope": "across", "score": "multiplicative"}])
def test_node_classifiers_overfit_the_institute(options):
    data = watch_training_part(load("institute"))
    result = fit(build_model(data, **options), data, Settings(max_epochs=40, learning_rate=0.02))
    assert result.scores["train"] == 1.0


@pytest.mark.parametrize("options", [{"layer": "rgcn"}, {"heads": 2}])
def test_graph_classifiers_overfit_the_molecules(options):
    data = watch_training_part(load("molecules"))
    model = build_model(data, hidden_channels=32, **options)
    result = fit(model, data, Settings(max_epochs=60, patience=60, learning_rate=0.01))
    assert result.scores["train"] == 1.0
    labels = data.labels[data.train]
    right = (model(*data.graphs.batch(data.train)).argmax(-1) == labels)[labels != -1]
    assert len(right) > 900
    assert right.all()


@pytest.mark.parametrize("name", ["institute", "molecules"])
def test_models_train_under_bf16_autocast(name):
    data = load(name)
    results = [
        fit(build_model(data, hidden_channels=16, heads=2), data, Settings(max_epochs=15, autocast=autocast))
        for autocast in (True, False)
    ]
    for result in results:
        assert result.curve[-1].train_loss < 0.6 * result.curve[0].train_loss
    assert results[0].curve[-1] != results[1].curve[-1]  # autocast is noticed


@pytest.mark.parametrize("name", ["reference", "torch", "numba"])
@pytest.mark.parametrize("options", FAMILIES)
def test_a_batch_without_graphs_has_no_logits(name, options):
    data = load("molecules")
    model = GraphClassifier(data.in_channels, 6, 5, hidden_channels=16, **options).eval()
    with ops.backend(name), torch.no_grad():
        for constant in (False, True):
            assert model(*data.graphs.batch(data.test[:0]), constant_attention=constant).shape == (0, 6, 2)
