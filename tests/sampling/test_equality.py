"""With all edges, a sampled step equals the step on the whole graph: outputs, gradients, and dropout masks."""

import copy

import pytest
import torch
from helpers import assert_close, random_graph, with_edge_attr
from nn.test_covering_table import RGCN_ROWS, ROWS, D, N, R, build, label, make_input

from rgat import ops
from rgat.models import NodeClassifier, stack
from rgat.nn import RGCNConv
from rgat.sampling import NeighborSampler
from rgat.sampling.padded import PaddedSampler

SEEDS = torch.tensor([4, 0, 7, 8])  # node 8 has no edges
BACKENDS = [
    ("cpu", "numba"),
    ("cpu", "torch"),
    ("cpu", "torch, padded"),
    pytest.param("cuda", "triton", marks=pytest.mark.gpu),
    pytest.param("cuda", "triton, padded", marks=pytest.mark.gpu),
]


def make_batch(graph, fanouts, padded):
    sampler = NeighborSampler(graph, fanouts)
    if not padded:
        return sampler.sample(SEEDS)
    sampler = PaddedSampler(sampler, SEEDS, len(SEEDS), lambda: lambda work: work())
    sampler.draw(SEEDS, 0)
    sampler.take()
    batch, number = sampler.batch()
    assert number.tolist() == [len(SEEDS)]
    assert all(each.num_edges > 0 and bool(each.padding.any()) for each in batch.graphs)
    return batch


def step(model, x, graph, fanouts=None, padded=False, **call):
    """Return outputs of the seed nodes and all gradients of a step on the whole graph, or on a sample of it."""
    model = copy.deepcopy(model)
    if x is not None and x.is_floating_point() and x.layout == torch.strided:
        x = x.clone().requires_grad_()
    if graph.edge_attr is not None:
        graph = with_edge_attr(graph, graph.edge_attr.detach().clone().requires_grad_())
    if fanouts is None:
        out = model(x, graph, **call)[..., SEEDS.to(graph.device), :]
    else:
        batch = make_batch(graph, fanouts, padded)
        if x is not None:
            given = x.index_select(0, batch.nodes)
        graphs = batch.graphs[0] if len(fanouts) == 1 else batch.graphs
        out = model(None if x is None else given, graphs, **call)
        assert out.shape[-2] == batch.num_seeds
        out = out[..., : len(SEEDS), :]
    cotangent = torch.randn(out.shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    (out * cotangent.to(out.device)).sum().backward()
    found = {"output": out} | {name: parameter.grad for name, parameter in model.named_parameters()}
    found |= {"x": x.grad} if x is not None and x.requires_grad else {}
    found |= {"edge_attr": graph.edge_attr.grad} if graph.edge_attr is not None else {}
    return {name: value if value is None else value.cpu().to_dense() for name, value in found.items()}


def assert_same_step(sampled, whole):
    assert sampled.keys() == whole.keys()
    compared = 0
    for name, expected in whole.items():
        if expected is None:
            assert sampled[name] is None, name
        elif expected.abs().max() == 0:
            assert sampled[name].abs().max() == 0, name
        else:
            assert_close(sampled[name], expected, 1e-10, name)
            compared += 1
    assert compared >= 2


def assert_layer_agrees(conv, x, graph, device, backend, **call):
    conv = conv.double()
    with ops.backend("reference"):
        whole = step(conv, x, graph, **call)
    backend, _, padded = backend.partition(", ")
    with ops.backend(backend):
        moved = None if x is None else x.to(device)
        assert_same_step(step(conv.to(device), moved, graph.to(device), [-1], bool(padded), **call), whole)


@pytest.mark.parametrize(("device", "backend"), BACKENDS)
@pytest.mark.parametrize("row", ROWS, ids=label)
def test_a_sampled_attention_layer_equals_the_reference_on_the_whole_graph(row, device, backend):
    conv, x, graph = build(row)
    assert_layer_agrees(conv, x, graph, device, backend, constant_attention=row["constant_attention"])


@pytest.mark.parametrize(("device", "backend"), BACKENDS)
@pytest.mark.parametrize("row", RGCN_ROWS, ids=label)
def test_a_sampled_convolution_equals_the_reference_on_the_whole_graph(row, device, backend):
    x, width, nodes = make_input(row["input"])
    options = {name: row[name] for name in ("num_bases", "feature_dropout", "edge_dropout", "bias")}
    conv = RGCNConv(width, D, R, **nodes, **options)
    assert_layer_agrees(conv, x, random_graph(N, 60, R, seed=1), device, backend)


DROPOUT = {"feature_dropout": 0.4, "edge_dropout": 0.4}
MODELS = {
    "attention": {"heads": 2, "scope": ["within", "across"], "score": "multiplicative", **DROPOUT},
    "convolution": {"layer": "rgcn", **DROPOUT},
    "one-hot": {"in_channels": N, **DROPOUT},
    "compact": {"in_channels": N, "graph": random_graph(N, 60, R, seed=1), **DROPOUT},
    "features and nodes": {"identity": True, "graph": random_graph(N, 60, R, seed=1), "heads": 2, **DROPOUT},
    "features and bases of nodes": {
        "identity": True,
        "graph": random_graph(N, 60, R, seed=1),
        "num_bases": 2,
        "score": "multiplicative",
        **DROPOUT,
    },
    "residual": {"residual": True, "layer_norm": True, "num_layers": 3, **DROPOUT},
    "residual one-hot": {
        "in_channels": N,
        "graph": random_graph(N, 60, R, seed=1),
        "residual": True,
        "num_layers": 3,
        **DROPOUT,
    },
    "residual embedding": {"in_channels": N, "embedding_channels": 6, "residual": True, **DROPOUT},
    "jumping knowledge": {"jumping_knowledge": True, "num_layers": 3, "residual": True, "heads": 2, **DROPOUT},
    "edges": {"edge_dim": 3, "score": "dynamic", **DROPOUT},
    "embedding": {"in_channels": N, "embedding_channels": 6, **DROPOUT},
    "deep": {"num_layers": 4, "heads": 2, **DROPOUT},
    "shallow": {"num_layers": 1, **DROPOUT},
}


def make_model(name, seed=0):
    """Return a model, its input, and a graph."""
    torch.manual_seed(seed)
    options = {"in_channels": 5, "hidden_channels": 8} | MODELS[name]
    model = NodeClassifier(num_classes=3, num_relations=R, **options).double()
    x = None if options["in_channels"] == N else torch.randn(N, 5, dtype=torch.float64)
    return model, x, random_graph(N, 60, R, edge_dim=options.get("edge_dim"), seed=1)


@pytest.mark.parametrize(("device", "backend"), BACKENDS)
@pytest.mark.parametrize("name", MODELS)
def test_a_sampled_model_equals_the_model_on_the_whole_graph(name, device, backend):
    model, x, graph = make_model(name)
    model, graph = model.to(device), graph.to(device)
    x = None if x is None else x.to(device)
    backend, _, padded = backend.partition(", ")
    with ops.backend(backend):
        sampled = step(model, x, graph, [-1] * model.num_layers, bool(padded))
        assert_same_step(sampled, step(model, x, graph))


@pytest.mark.parametrize("backend", ["numba", "torch", "torch, padded"])
@pytest.mark.parametrize(
    "name", ["attention", "convolution", "compact", "features and nodes", "jumping knowledge", "deep"]
)
def test_a_sampled_stack_equals_the_stack_on_the_whole_graph(name, backend):
    models = [make_model(name, seed)[0] for seed in range(3)]
    _, x, graph = make_model(name)
    together = stack(models)
    backend, _, padded = backend.partition(", ")
    with ops.backend(backend):
        sampled = step(together, x, graph, [-1] * models[0].num_layers, bool(padded))
        assert_same_step(sampled, step(together, x, graph))


def test_fewer_edges_give_other_outputs():
    model, x, graph = make_model("attention")
    outputs = [step(model, x, graph, fanouts)["output"] for fanouts in ([-1, -1], [1, -1], [-1, 1])]
    assert outputs[0].shape == outputs[1].shape
    assert all((a - b).abs().max() > 1e-3 for a, b in (outputs[:2], outputs[1:]))
