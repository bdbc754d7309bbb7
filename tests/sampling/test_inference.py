import pytest
import torch
from helpers import random_graph

from rgat import ops
from rgat.models import NodeClassifier, stack
from rgat.sampling import NeighborSampler, exact_logits

N, R, F = 30, 4, 5
OPTIONS = {
    "features": {},
    "one-hot": {"in_channels": N},
    "compact": {"in_channels": N, "graph": random_graph(N, 150, R)},
    "features and nodes": {"identity": True, "graph": random_graph(N, 150, R)},
    "residual": {"residual": True, "layer_norm": True, "num_layers": 3},
    "jumping knowledge": {"jumping_knowledge": True, "num_layers": 3, "residual": True, "heads": 2},
    "wide": {"wide": True, "num_layers": 3, "heads": 2},
    "embedding": {"in_channels": N, "embedding_channels": 6},
    "three layers": {"num_layers": 3, "heads": 2, "batch_norm": True, "scope": "across"},
    "one layer": {"num_layers": 1, "score": "multiplicative"},
    "edge features": {"edge_dim": 2},
    "convolution": {"layer": "rgcn", "num_bases": 2},
}
SMALL = 200  # numbers of a block: a few nodes


def make(name, seed=0):
    """Return a model in float64, its features, the graph and a sampler."""
    torch.manual_seed(seed)
    options = {"in_channels": F, "hidden_channels": 8} | OPTIONS[name]
    model = NodeClassifier(num_classes=3, num_relations=R, **options).double()
    if options.get("wide"):
        torch.nn.init.normal_(model.jump0.weight)
    graph = random_graph(N, 150, R, edge_dim=options.get("edge_dim"))
    x = torch.randn(N, F).double() if options["in_channels"] == F else None
    if options.get("batch_norm"):
        model(x, graph)  # running statistics
    return model.eval(), x, graph, NeighborSampler(graph, [1] * model.num_layers)


@pytest.mark.parametrize("backend", ["numba", "torch"])
@pytest.mark.parametrize("name", OPTIONS)
def test_exact_logits_are_those_of_the_whole_graph(name, backend):
    model, x, graph, sampler = make(name)
    some = torch.tensor([29, 3, 3, 17])  # in any order, one of them twice, one without edges
    calls = [(None, False, {}), (None, True, {"block_numbers": 10 * SMALL}), (some, False, {"block_numbers": SMALL})]
    with ops.backend(backend), torch.no_grad():
        for nodes, constant, size in (*calls, (some[:2].int(), False, {"block_numbers": 1})):
            whole = model(x, graph, constant_attention=constant)
            logits = exact_logits(model, x, sampler, nodes, constant, **size)
            expected = whole if nodes is None else whole[nodes.long()]
            torch.testing.assert_close(logits, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["features", "compact", "features and nodes", "jumping knowledge", "wide"])
def test_exact_logits_of_a_stack_are_those_of_its_members(name):
    models = [make(name, seed)[0] for seed in range(3)]
    _, x, graph, sampler = make(name)
    nodes = torch.tensor([4, 9])
    logits = exact_logits(stack(models), x, sampler, nodes, block_numbers=SMALL)
    assert logits.shape == (3, 2, 3)
    for member, model in zip(logits, models, strict=True):
        torch.testing.assert_close(member, model(x, graph)[nodes], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["features", "one-hot", "three layers"])
def test_no_nodes_have_no_logits(name):
    model, x, _, sampler = make(name)
    assert exact_logits(model, x, sampler, torch.empty(0, dtype=torch.long)).shape == (0, 3)


def test_blocks_are_bounded_and_progress_is_told():
    model, x, _, sampler = make("features")
    sizes, block = [], sampler.block

    def watched(targets):
        graph = block(targets)
        sizes.append(len(targets) + graph.num_edges)
        return graph

    def watched_part(target, first, last):
        sizes.append(last - first)
        return part(target, first, last)

    part = sampler.part
    sampler.block, sampler.part = watched, watched_part
    seen = []
    exact_logits(model, x, sampler, block_numbers=SMALL // 2, advance=seen.append)
    assert sum(seen) == 2 * N  # both layers
    width = min(conv.in_channels + conv.out_channels for conv in model.convs)
    most = SMALL // 2 // width
    assert max(sizes) <= most < max(sampler.degrees(torch.arange(N))) + 1, "no block has all edges of the largest node"
    assert len(sizes) > 10


def test_blocks_of_one_hot_nodes_are_not_smaller_for_more_nodes():
    model, _, _, sampler = make("one-hot")
    seen = []
    exact_logits(model, None, sampler, block_numbers=100 * N, advance=seen.append)
    assert len(seen) == 2


def test_only_nodes_that_others_depend_on_are_computed():
    model, x, graph, sampler = make("three layers")
    seen = []
    exact_logits(model, x, sampler, torch.tensor([5]), advance=seen.append)
    fields = graph.receptive_fields(torch.tensor([5]), 3)
    sources = [set(field.edge_index[0].tolist()) | {5} for field in fields]
    assert seen == [len(sources[1] | sources[2]), len(sources[2]), 1]


def test_index_features_and_half_precision_features_are_taken():
    model, _, graph, sampler = make("features")
    index = torch.arange(N) % F
    torch.testing.assert_close(exact_logits(model, index, sampler), model(index, graph))
    half = torch.randn(N, F).half()
    torch.testing.assert_close(exact_logits(model, half, sampler), model(half.double(), graph))


def test_training_goes_on_after_inference_mode():
    model, x, _, sampler = make("features")
    with torch.inference_mode():
        exact_logits(model, x, sampler)
    batch = sampler.sample(torch.tensor([1]))
    model.train()(x[batch.nodes], batch.graphs).sum().backward()
    assert model.conv1.kernel.weight.grad.abs().max() > 0


def test_bad_calls_are_refused_in_one_sentence():
    model, x, _, sampler = make("features")
    with pytest.raises(ValueError, match="`nodes` must lie between 0 and num_nodes - 1 = 29, got 30"):
        exact_logits(model, x, sampler, torch.tensor([30]))
    with pytest.raises(ValueError, match="`x` must have one row per node of the graph, 30, got 29"):
        exact_logits(model, x[1:], sampler)
    with pytest.raises(ValueError, match=r"in evaluation mode, got one in training; call `model.eval\(\)`"):
        exact_logits(model.train(), x, sampler)


@pytest.mark.gpu
@pytest.mark.parametrize("on_gpu", [False, True])
@pytest.mark.parametrize("name", OPTIONS)
def test_exact_logits_on_a_gpu_are_those_of_the_cpu(name, on_gpu):
    model, x, graph, sampler = make(name)
    expected = model(x, graph)
    if on_gpu:
        sampler = NeighborSampler(graph.to("cuda"), [1] * model.num_layers)
    logits = exact_logits(model.to("cuda"), x, sampler, block_numbers=SMALL)
    assert logits.is_cuda
    torch.testing.assert_close(logits.cpu(), expected, rtol=1e-9, atol=1e-9)


def test_nodes_may_be_a_list():
    model, graph = NodeClassifier(4, 3, 3).eval(), random_graph(9, 30, 3)
    x, sampler = torch.randn(9, 4), NeighborSampler(graph, [1, 1])
    expected = exact_logits(model, x, sampler)[[2, 1]]
    assert torch.allclose(exact_logits(model, x, sampler, nodes=[2, 1]), expected)
    for bad in (["n1"], [True], 3, torch.tensor([0.5])):
        with pytest.raises(TypeError, match="`nodes` must be integer node ids, a list or a tensor of shape"):
            exact_logits(model, x, sampler, nodes=bad)
