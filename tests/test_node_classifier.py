"""Node classifiers of any number of layers, with node embeddings, on one graph or one for each layer."""

import pytest
import torch
from helpers import random_graph

from rgat.models import NodeClassifier, stack
from rgat.sampling import NeighborSampler

N, R, F = 9, 4, 5
FAMILIES = [{"layer": "rgcn"}, {"heads": 2, "scope": "across", "score": "multiplicative"}]


@pytest.mark.parametrize("num_layers", [1, 2, 3, 4])
@pytest.mark.parametrize("options", FAMILIES)
def test_a_node_classifier_has_as_many_layers_as_asked(num_layers, options):
    graph, x = random_graph(N, 60, R), torch.randn(N, F)
    model = NodeClassifier(F, 3, R, hidden_channels=8, batch_norm=True, num_layers=num_layers, **options).eval()
    assert model.num_layers == len(model.convs) == num_layers
    hidden = x
    for conv in model.convs[:-1]:
        assert conv.head_merge == "concat"
        hidden = (conv(hidden, graph) / (1 + 1e-5) ** 0.5).relu()
    assert model.convs[-1].heads == model.convs[0].heads
    torch.testing.assert_close(model(x, graph), model.convs[-1](hidden, graph))
    assert sum(name.startswith("norm") for name, _ in model.named_children()) == num_layers - 1
    assert model.depends_on_edges_alone
    assert not model.train().depends_on_edges_alone or num_layers == 1


def test_two_layers_are_the_default_and_have_the_names_of_earlier_versions():
    graph = random_graph(N, 60, R)
    names = NodeClassifier(N, 3, R, batch_norm=True, graph=graph).state_dict().keys()
    layers = ["kernel.weight", "attention_kernel.weight", "bias", "dropout_state"]
    norm = ["weight", "bias", "running_mean", "running_var", "num_batches_tracked"]
    expected = {f"{conv}.{name}" for conv in ("conv1", "conv2") for name in layers} | {"conv1.rows"}
    assert set(names) == expected | {f"norm1.{name}" for name in norm}
    assert "embedding" not in vars(NodeClassifier(F, 3, R))
    assert "num_layers" not in vars(NodeClassifier(F, 3, R))  # what a checkpoint of an earlier version lacks


def test_embeddings_are_learned_features_of_the_nodes():
    graph = random_graph(N, 60, R)
    model = NodeClassifier(N, 3, R, embedding_channels=64, graph=graph)
    assert model.conv1.in_channels == 64
    assert model.conv1.rows is None
    weight = model.embedding.weight
    assert weight.shape == (N, 64)
    assert weight.square().sum(1).mean().item() == pytest.approx(1, abs=0.1)
    twin = NodeClassifier(64, 3, R)
    twin.load_state_dict({name: t for name, t in model.state_dict().items() if not name.startswith("embedding")})
    x = weight.detach().clone().requires_grad_()
    out, expected = model(None, graph), twin(x, graph)
    assert torch.equal(out, expected)
    cotangent = torch.randn_like(out)
    for each in (out, expected):
        (each * cotangent).sum().backward()
    assert weight.grad.is_sparse
    torch.testing.assert_close(weight.grad.to_dense(), x.grad)
    batch = NeighborSampler(graph, [1, 1]).sample(torch.tensor([2]))
    weight.grad = None
    model(None, batch.graphs).sum().backward()
    assert set(weight.grad.coalesce().indices().flatten().tolist()) <= set(batch.nodes.tolist())
    with pytest.raises(ValueError, match="a model with `embedding_channels` is featureless and takes only `x=None`"):
        model(torch.randn(N, 64), graph)
    with pytest.raises(ValueError, match="node embeddings, of which there are no stacks"):
        stack([model, model])


@pytest.mark.parametrize(("num_layers", "given"), [(2, 3), (3, 2), (1, 2), (2, 0)])
def test_a_model_needs_one_graph_or_one_for_each_layer(num_layers, given):
    graph, x = random_graph(N, 60, R), torch.randn(N, F)
    model = NodeClassifier(F, 3, R, num_layers=num_layers)
    message = f"a model of {num_layers} layers needs one graph, or one for each layer, got {given}; sample with one"
    with pytest.raises(ValueError, match=message):
        model(x, (graph,) * given)
    assert torch.equal(model(x, [graph] * num_layers), model(x, graph))


def test_models_compile_on_a_batch():
    torch.use_deterministic_algorithms(False)
    torch._dynamo.reset()
    model = NodeClassifier(F, 3, R, hidden_channels=8, **FAMILIES[1])
    batch = NeighborSampler(random_graph(N, 60, R), [2, 2]).sample(torch.tensor([1, 4]))
    x = torch.randn(len(batch.nodes), F)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, batch.graphs), model(x, batch.graphs))


@pytest.mark.parametrize("options", [{"num_layers": 0}, {"embedding_channels": 0}])
def test_bad_sizes_are_refused_in_one_sentence(options):
    (name,) = options
    with pytest.raises(ValueError, match=f"`{name}` must be an integer of at least 1, got 0"):
        NodeClassifier(N, 3, R, **options)


@pytest.mark.gpu
def test_an_embedding_model_takes_batches_on_a_gpu():
    graph = random_graph(N, 60, R)
    model = NodeClassifier(N, 3, R, embedding_channels=8, heads=2)
    batch = NeighborSampler(graph, [2, 2]).sample(torch.tensor([1, 4]))
    expected = model(None, batch.graphs)
    model.to("cuda")
    on_gpu = NeighborSampler(graph.to("cuda"), [2, 2]).sample(torch.tensor([1, 4]))
    for each in (batch.to("cuda"), on_gpu):
        torch.testing.assert_close(model(None, each.graphs).cpu(), expected, rtol=1e-4, atol=1e-5)
