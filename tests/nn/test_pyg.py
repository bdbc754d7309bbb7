"""Use layers inside models of PyTorch Geometric, with its explainers, and by what its own tests ask of its layer."""

import sys

import pytest
import torch
from helpers import random_graph
from torch_geometric.explain import AttentionExplainer, CaptumExplainer, Explainer, GNNExplainer
from torch_geometric.nn import GCNConv, Sequential

from rgat.models import GraphClassifier, NodeClassifier
from rgat.nn import RGATConv, RGCNConv, as_pyg

N, E, R = 9, 40, 3
LAYERS = {
    "mixed": lambda: RGATConv(5, 4, R, heads=4, scope=["across", "within", "within", "across"], head_merge="mean"),
    "multiplicative": lambda: RGATConv(5, 4, R, heads=2, score="multiplicative", head_merge="projection"),
    "dynamic": lambda: RGATConv(5, 4, R, score="dynamic", num_bases=2),
    "edges": lambda: RGATConv(5, 4, R, edge_dim=2),
    "rgcn": lambda: RGCNConv(5, 4, R),
}


def tensors(seed=0):
    graph = random_graph(N, E, R, seed=seed)
    return torch.randn(N, 5, generator=torch.Generator().manual_seed(seed)), graph.edge_index, graph.edge_type


def hooked(module):
    """Make all layers hand their messages to PyTorch Geometric."""
    for layer in module.modules():
        if hasattr(layer, "register_message_forward_hook"):
            layer.register_message_forward_hook(lambda *_: None)
    return module


@pytest.mark.parametrize("name", LAYERS)
def test_messages_of_a_layer_add_up_to_its_output_and_gradients(name):
    conv, (x, edge_index, edge_type) = LAYERS[name]().double(), tensors()
    x, attr = x.double().requires_grad_(), torch.randn(E, 2).double() if name == "edges" else None
    layer = as_pyg(conv)
    given = (x, edge_index, edge_type, *([] if attr is None else [attr]))
    fast, slow = layer(*given), hooked(as_pyg(conv))(*given)
    torch.testing.assert_close(slow, fast)
    cotangent = torch.randn_like(fast)
    expected, found = (torch.autograd.grad((out * cotangent).sum(), [x, *conv.parameters()]) for out in (fast, slow))
    torch.testing.assert_close(found, expected)
    if name != "rgcn":
        _, (_, attention) = conv(*given, return_attention_weights=True)
        _, (_, alpha) = hooked(as_pyg(conv))(*given, return_attention_weights=True)
        torch.testing.assert_close(alpha, attention)


def test_layers_stand_in_a_sequential_model_beside_others():
    x, edge_index, edge_type = tensors()
    given, both = "x, edge_index, edge_type", "x, edge_index, edge_type -> x"
    model = Sequential(
        given,
        [
            (RGATConv(5, 4, R, heads=2), both),
            torch.nn.ReLU(),
            (GCNConv(8, 6), "x, edge_index -> x"),
            (as_pyg(RGCNConv(6, 3, R)), both),
        ],
    )
    out = model(x, edge_index, edge_type)
    out.square().sum().backward()
    assert out.shape == (N, 3)
    assert all(parameter.grad is not None for parameter in model.parameters())


def settings(level, **options):
    config = {"mode": "multiclass_classification", "task_level": level, "return_type": "raw"}
    return {"explanation_type": "model", "edge_mask_type": "object", "model_config": config} | options


def one_relation_model():
    """Return a model that reads the edges of relation 0 alone."""
    model = NodeClassifier(5, 3, R, hidden_channels=8, scope="within").eval()
    with torch.no_grad():
        for conv in model.convs:
            conv.kernel.weight[1:] = 0
    return model


EXPLAINERS = {
    "GNNExplainer": lambda: GNNExplainer(epochs=10),
    "IntegratedGradients": lambda: CaptumExplainer("IntegratedGradients", n_steps=5),
    "Saliency": lambda: CaptumExplainer("Saliency"),
}


@pytest.mark.filterwarnings("ignore:Input Tensor . did not already require gradients")
@pytest.mark.parametrize("name", EXPLAINERS)
def test_explainers_find_the_edges_that_a_model_reads(name):
    if name != "GNNExplainer":
        pytest.importorskip("captum", reason="Captum is not installed")
    x, edge_index, edge_type = tensors()
    explainer = Explainer(
        as_pyg(one_relation_model()), EXPLAINERS[name](), **settings("node", node_mask_type="attributes")
    )
    mask = explainer(x, edge_index, edge_type=edge_type, index=3).edge_mask.detach().abs()
    into = {3, *edge_index[0, (edge_index[1] == 3) & (edge_type == 0)].tolist()}
    reads = (edge_type == 0) & torch.tensor([target in into for target in edge_index[1].tolist()])
    assert 0 < reads.sum() < E
    assert (mask[reads] > 0).all()
    assert (mask[~reads] == 0).all()


def test_the_attention_explainer_gets_the_attention_of_all_layers_and_heads():
    x, edge_index, edge_type = tensors()
    conv = RGATConv(5, 4, R, heads=2)
    mask = Explainer(as_pyg(conv), AttentionExplainer(), **settings("node"))(
        x, edge_index, edge_type=edge_type
    ).edge_mask
    _, (_, attention) = conv(x, edge_index, edge_type, return_attention_weights=True)
    torch.testing.assert_close(mask, attention.max(1).values)


def test_graph_classifiers_and_featureless_models_are_explained():
    x, edge_index, edge_type = tensors()
    batch = torch.arange(N) // 3
    graph = random_graph(N, E, R, batch=batch)
    model = GraphClassifier(5, 2, R, hidden_channels=4, dense_channels=4).eval()
    adapter = as_pyg(model, task=1)
    torch.testing.assert_close(adapter(x, edge_index, edge_type, batch), model(x, graph)[:, 1])
    explain = Explainer(adapter, GNNExplainer(epochs=2), **settings("graph"))
    assert explain(x, edge_index, edge_type=edge_type, batch=batch, index=0).edge_mask.sum() > 0
    featureless = NodeClassifier(N, 3, R, graph=graph).eval()
    explain = Explainer(as_pyg(featureless), GNNExplainer(epochs=2), **settings("node"))
    none = torch.empty(N, 0)
    assert explain(none, edge_index, edge_type=edge_type, index=1).edge_mask.sum() > 0
    torch.testing.assert_close(hooked(as_pyg(featureless))(none, edge_index, edge_type), featureless(None, graph))


def test_an_explanation_leaves_the_mode_of_the_model_as_it_is():
    x, edge_index, edge_type = tensors()
    model = NodeClassifier(5, 4, R, hidden_channels=8, edge_dropout=0.5).eval()
    explainer = Explainer(as_pyg(model), GNNExplainer(epochs=1), **settings("node"))
    explainer(x, edge_index, edge_type=edge_type, index=0)
    assert not any(module.training for module in model.modules())


def test_what_has_no_relational_layers_is_refused(monkeypatch):
    with pytest.raises(ValueError, match="a model must have relational layers, got Linear without any"):
        as_pyg(torch.nn.Linear(2, 2))
    with pytest.raises(TypeError, match="`edge_attr` must not be given with a RelationalGraph here"):
        hooked(as_pyg(LAYERS["edges"]()))(tensors()[0], random_graph(N, E, R), edge_attr=torch.randn(E, 2))
    monkeypatch.setitem(sys.modules, "rgat.nn.message_passing", None)
    with pytest.raises(ImportError, match="pip install torch-geometric"):
        as_pyg(LAYERS["rgcn"]())


# What PyTorch Geometric's own tests of its RGATConv ask for and both layers define; docs/interoperation.md counts them.
MECHANISMS = {"within-relation": "within", "across-relation": "across"}
MODES = {"additive-self-attention": "additive", "multiplicative-self-attention": "multiplicative"}


def adapted(in_channels, out_channels, num_relations, attention_mechanism, attention_mode, concat=True, **options):
    """Return our layer for the arguments of PyTorch Geometric's; its `dropout` is that of attention."""
    merge = "concat" if concat else "mean"
    if "dropout" in options:
        options["edge_dropout"] = options.pop("dropout")
    words = {"scope": MECHANISMS[attention_mechanism], "score": MODES[attention_mode], "head_merge": merge}
    return RGATConv(in_channels, out_channels, num_relations, **words, **options)


@pytest.mark.parametrize("edge_dim", [8, None])
@pytest.mark.parametrize("concat", [True, False])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_our_layer_behaves_as_the_tests_of_pytorch_geometric_ask(mechanism, mode, concat, edge_dim):
    x, edge_index = torch.randn(4, 8), torch.tensor([[0, 1, 2, 3], [0, 0, 1, 1]])
    edge_type, edge_attr = torch.tensor([0, 2, 1, 2]), None if edge_dim is None else torch.randn(4, edge_dim)
    for options in ({"num_bases": 4}, {}, {"dropout": 0.5}):
        conv = adapted(8, 16, 4, mechanism, mode, concat, heads=2, edge_dim=edge_dim, **options)
        out = conv(x, edge_index, edge_type, edge_attr)
        assert out.shape == (4, 32 if concat else 16)
        again, (edges, alpha) = conv(x, edge_index, edge_type, edge_attr, return_attention_weights=True)
        assert again.shape == out.shape
        assert edges.shape == edge_index.shape
        assert alpha.shape == (4, 2)
        assert not out.isnan().any()


def test_our_layer_works_without_bias_as_the_tests_of_pytorch_geometric_ask():
    options = {"num_bases": 4, "heads": 2, "edge_dim": 8, "bias": False}
    conv = adapted(8, 20, 4, "across-relation", "additive-self-attention", **options)
    edge_index, edge_type = torch.tensor([[0, 1, 2, 3], [0, 0, 1, 1]]), torch.tensor([0, 2, 1, 2])
    out = conv(torch.randn(4, 8), edge_index, edge_type, torch.randn(4, 8))
    assert out.shape == (4, 40)
    assert (out[2:] == 0).all()  # no edge ends there
