"""Test the Triton backend on sizes, degrees and modes that the covering table does not include."""

import pytest
import torch
from helpers import assert_close, assert_matches_reference, hub_graph, pack_half, random_graph, unpack

from rgat import RelationalGraph, ops
from rgat.models import NodeClassifier
from rgat.nn import RGATConv, RGCNConv
from rgat.ops import cache
from rgat.ops.torch import backend as vectorised
from rgat.ops.triton import recording

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("size", [1, 3, 17, 63, 100])
@pytest.mark.parametrize("score", ["additive", "multiplicative"])
def test_awkward_sizes(size, score):
    graph = random_graph(40, 300, 5)
    for F, D in ((size, 16), (16, size), (size, size)):
        conv = RGATConv(F, D, 5, heads=3, scope=["within", "across", "within"], score=score)
        assert_matches_reference(conv, torch.randn(40, F), graph, torch.float32, backend="triton", device="cuda")


@pytest.mark.parametrize(("F", "D"), [(2048, 2048), (4096, 1024), (70_000, 2), (2, 9000)])
@pytest.mark.parametrize("layer", [RGCNConv, RGATConv])
def test_kernels_of_any_size_fit_the_grid(F, D, layer):
    graph, conv = random_graph(12, 60, 2), layer(F, D, 2)
    options = {"backend": "triton", "device": "cuda", "attention": False}
    assert_matches_reference(conv, torch.randn(12, F), graph, torch.float32, **options)


def test_attention_with_many_channels():
    graph, conv = random_graph(12, 60, 2), RGATConv(4, 5000, 2, heads=2, score="multiplicative", num_bases=3)
    with torch.no_grad():
        conv.attention_kernel.weight /= 50  # keeps logits moderate
    assert_matches_reference(conv, torch.randn(12, 4), graph, torch.float32, backend="triton", device="cuda")


@pytest.mark.parametrize("as_target", [True, False])
@pytest.mark.parametrize("scope", ["within", "across"])
def test_a_row_of_degree_a_million(scope, as_target):
    graph, conv = hub_graph(1_000_000, as_target), RGATConv(6, 4, 3, heads=2, scope=scope)
    # Sums have a million float32 terms.
    options = {"backend": "triton", "device": "cuda", "tolerance": 1e-4}
    assert_matches_reference(conv, torch.randn(50, 6), graph, torch.float32, **options)
    assert_matches_reference(conv, torch.randn(50, 6), graph, torch.float64, backend="triton", device="cuda")


def test_no_edges_no_relations_no_nodes():
    for N, R in ((5, 3), (5, 0), (0, 3)):
        empty = torch.empty(2, 0, dtype=torch.long)
        graph = RelationalGraph(empty, empty[0], num_nodes=N, num_relations=R).to("cuda")
        for conv in (RGATConv(4, 3, R, heads=2), RGCNConv(4, 3, R), RGATConv(4, 3, R, num_bases=2)):
            x = torch.randn(N, 4, device="cuda", requires_grad=True)
            conv.cuda()(x, graph).sum().backward()
            assert not x.grad.any()
            assert all(not p.grad.any() for name, p in conv.named_parameters() if name != "bias")


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(("heads", "bases", "channels"), [(1, 1, 1), (3, 5, 17), (4, 30, 4), (20, 10, 63)])
def test_bases_agree_with_the_torch_backend(heads, bases, channels, shared):
    from rgat.ops.triton import basis_kernels as triton_bases

    graph = random_graph(40, 3000, 7).to("cuda")
    table = torch.randn(40, 1 if shared else heads, bases, channels, device="cuda", dtype=torch.float64)
    coefficients = torch.randn(7, heads, bases, device="cuda", dtype=torch.float64)
    rows = graph.structure.sources
    values = torch.randn(len(rows.node), heads, channels, device="cuda", dtype=torch.float64)
    for node in (rows.node, rows.node.flip(0)):
        for name, arguments in (
            ("spread", (table, coefficients, rows, node)),
            ("pair", (table, values, rows, node)),
            ("collect", (values, coefficients, rows, node, 40, table.shape[1])),
        ):
            expected = getattr(vectorised, name)(*arguments)
            assert_close(getattr(triton_bases, name)(*arguments), expected, 1e-10)


def step(conv, x, graph, x_is_given=False):
    x = x.detach().clone().requires_grad_(not x_is_given)
    conv.zero_grad()
    out = conv(x, graph)
    out.backward(torch.ones_like(out))
    return [out.detach()] + [leaf.grad.clone() for leaf in (x, *conv.parameters()) if leaf.requires_grad]


@pytest.mark.parametrize("options", [{"scope": "within"}, {"scope": "across", "score": "multiplicative"}])
def test_repeated_steps_give_the_same_bits(options):
    graph = random_graph(3000, 40_000, 9).to("cuda")
    conv, x = RGATConv(32, 16, 9, heads=4, **options).cuda(), torch.randn(3000, 32, device="cuda")
    assert all(torch.equal(a, b) for a, b in zip(step(conv, x, graph), step(conv, x, graph), strict=True))


def test_a_captured_step_equals_the_eager_step():
    graph = random_graph(3000, 40_000, 9).to("cuda").prepare()
    conv = RGATConv(32, 16, 9, heads=4).cuda()
    x = torch.randn(3000, 32, device="cuda", requires_grad=True)
    inputs = [x, *conv.parameters()]

    def run():
        out = conv(x, graph)
        return torch.autograd.grad(out, inputs, torch.ones_like(out))

    expected = run()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run()
    torch.cuda.current_stream().wait_stream(side)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        actual = run()
    captured.replay()
    assert all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")  # PyTorch itself captures an empty one first
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_a_compiled_two_layer_model_agrees_with_eager(mode):
    graph = random_graph(4000, 60_000, 9).to("cuda").prepare()
    model = NodeClassifier(32, 8, 9, hidden_channels=64, heads=4).cuda()
    x = torch.randn(4000, 32, device="cuda")
    compiled = torch.compile(model, fullgraph=True, mode=mode)

    def assert_agreement():
        assert_close(compiled(x, graph).clone(), model(x, graph), 1e-4)

    assert_agreement()
    for _ in range(20):  # until launches are replayed
        model.zero_grad()  # the next step overwrites the memory of gradients
        compiled(x, graph).square().sum().backward()
    assert_agreement()


@pytest.mark.parametrize("num_bases", [None, 2])
def test_a_featureless_layer_is_built_on_the_default_device(num_bases):
    graph = random_graph(40, 300, 5)
    built = RGATConv(40, 8, 5, graph=graph, num_bases=num_bases)
    with torch.device("cuda"):
        conv = RGATConv(40, 8, 5, graph=graph, num_bases=num_bases)
    conv.load_state_dict(built.state_dict())
    assert_close(conv(None, graph.to("cuda")).cpu(), built(None, graph), 1e-5)


def test_tables_of_a_graph_are_dropped_with_it():
    conv, x = RGATConv(8, 4, 3).cuda(), torch.randn(20, 8, device="cuda")
    before = len(cache._entries)
    graphs = [random_graph(20, 200, 3, seed=seed).to("cuda").prepare() for seed in range(20)]
    for graph in graphs:
        for _ in range(15):
            conv(x, graph)
    assert len(cache._entries) >= before + len(graphs)
    del graphs, graph
    assert len(cache._entries) <= before + 1  # the features


@pytest.mark.parametrize("scale", [1.0, 1e8, 1e-8])
def test_a_feature_of_another_magnitude_costs_the_others_no_digits(scale):
    graph, conv = random_graph(300, 4000, 3).to("cuda"), RGCNConv(64, 64, 3).cuda()
    x = torch.randn(300, 64, device="cuda")
    x[:, 0] *= scale
    cotangent, grads = torch.randn(300, 64, device="cuda"), []
    for backend, dtype in (("reference", torch.float64), ("triton", torch.float32)):
        conv = conv.to(dtype)
        conv.zero_grad()
        with ops.backend(backend):
            conv(x.to(dtype), graph).backward(cotangent.to(dtype))
        grads.append(conv.kernel.weight.grad.double())
    exact, ours = (grad[:2] for grad in grads)  # the last relation has no edges
    assert ((ours - exact).abs().amax(-1) <= 1e-5 * exact.abs().amax(-1)).all()  # per feature


def test_nan_is_checked_once_per_input_and_not_in_computed_tensors():
    graph, conv = random_graph(30, 100, 4).to("cuda"), RGATConv(8, 4, 4).cuda()
    x = torch.randn(30, 8, device="cuda")
    conv(x, graph)
    x[3, 2] = torch.nan  # another version of the tensor
    for _ in range(2):
        with pytest.raises(ValueError, match="`x` must not contain NaN"):
            conv(x, graph)
    weight = torch.ones(8, device="cuda", requires_grad=True)
    assert conv(x * weight, graph).isnan().any()


def test_cached_tables_of_a_graph_change_no_bit():
    graph = random_graph(500, 9000, 3)
    hub = torch.stack(
        [torch.randint(400, (700,)), torch.zeros(700, dtype=torch.long)]
    )  # a long segment in both directions
    edges = torch.cat([graph.edge_index, hub, hub.flip(0)], dim=1)
    relation = torch.cat([graph.edge_type, torch.zeros(1400, dtype=torch.long)])
    graph = RelationalGraph(edges, relation, num_nodes=500, num_relations=3).to("cuda").prepare()
    for options in ({}, {"scope": "across", "score": "multiplicative", "attention_channels": 1}):
        conv, x = RGATConv(16, 8, 3, heads=2, **options).cuda(), torch.randn(500, 16, device="cuda")
        first, *others = [step(conv, x, graph) for _ in range(14)]  # tables are built meanwhile
        for other in others:
            assert all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("x_is_given", [False, True])
@pytest.mark.parametrize(
    ("options", "dtype", "recordings"),
    [
        ({}, torch.float32, 2),
        ({}, torch.float64, 2),
        ({}, torch.bfloat16, 0),  # kernels are folded in float32, and casts are not recorded
        ({"scope": ["within", "across"], "bias": False}, torch.float32, 2),
        ({"scope": "across", "score": "multiplicative", "attention_channels": 1}, torch.float32, 2),
        (
            {"scope": "across", "score": "multiplicative", "attention_channels": 5},
            torch.float32,
            0,
        ),  # kernels are transposed by PyTorch
        ({"feature_dropout": 0.3, "edge_dropout": 0.3}, torch.float32, 2),
        ({"head_merge": "mean", "edge_dim": 3}, torch.float32, 2),
    ],
)
def test_replayed_launches_are_those_of_a_first_call(options, dtype, recordings, x_is_given, monkeypatch):
    width = options.get("edge_dim")
    graph = random_graph(300, 4000, 5, edge_dim=width)
    hub = torch.stack([torch.randint(300, (700,)), torch.zeros(700, dtype=torch.long)])
    edges, relation = torch.cat([graph.edge_index, hub], dim=1), torch.cat([graph.edge_type, hub[1]])
    attributes = None if width is None else torch.randn(4700, width, dtype=dtype)
    graph = RelationalGraph(edges, relation, num_nodes=300, num_relations=5, edge_attr=attributes).to("cuda").prepare()
    conv = RGATConv(16, 8, 5, heads=2, **options).to("cuda", dtype)
    inputs = [torch.randn(300, 16, device="cuda", dtype=dtype) for _ in range(20)]

    def run(patience):
        monkeypatch.setattr(recording, "_CALLS_BEFORE_RECORDING", patience)
        recording._entries.clear()
        if "feature_dropout" in options:
            conv.dropout_state.zero_()
        return [step(conv, x, graph, x_is_given) for x in inputs]

    for expected, actual in zip(run(10**9), run(16), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(expected, actual, strict=True))
    assert sum(entry.recording is not None for entry in recording._entries.values()) == recordings


@pytest.mark.parametrize("how", ["inference", "compiled"])
@pytest.mark.parametrize("options", [{"score": "multiplicative"}, {"constant": True}])
def test_replay_reads_parameters_that_changed_between_calls(how, options):
    graph = random_graph(300, 4000, 5).to("cuda").prepare()
    constant = options.get("constant", False)
    conv = RGATConv(16, 8, 5, heads=2, score=options.get("score", "additive")).cuda()
    x = torch.randn(300, 16, device="cuda")
    called = torch.compile(conv, fullgraph=True) if how == "compiled" else conv
    for _ in range(20):
        with torch.no_grad():
            for parameter in conv.parameters():
                parameter.copy_(torch.randn_like(parameter))
        with torch.inference_mode(how == "inference"):
            actual = called(x, graph, constant_attention=constant)
        with ops.backend("torch"), torch.no_grad():
            assert_close(actual, conv(x, graph, constant_attention=constant), 1e-4)


def test_a_new_graph_in_old_memory_is_not_taken_for_the_old_one(monkeypatch):
    monkeypatch.setattr(recording, "_CALLS_BEFORE_RECORDING", 2)
    conv, x = RGATConv(16, 8, 3, heads=2).cuda(), torch.randn(50, 16, device="cuda")
    for seed in range(6):
        graph = random_graph(50, 300, 3, seed=seed).to("cuda")
        steps = [step(conv, x, graph) for _ in range(4)]
        for other in steps[1:]:
            assert all(torch.equal(a, b) for a, b in zip(steps[0], other, strict=True))


@pytest.mark.parametrize("score", ["additive", "multiplicative"])
@pytest.mark.parametrize("scope", ["within", "across"])
def test_a_nan_logit_makes_the_attention_of_its_group_nan(scope, score):
    graph = random_graph(40, 500, 5, validate=False)
    conv, x = RGATConv(6, 4, 5, heads=2, scope=scope, score=score), torch.randn(40, 6)
    x[3] = torch.nan
    with torch.no_grad():
        with ops.backend("reference"):
            _, (_, expected) = conv(x, graph, return_attention_weights=True)
        _, (_, actual) = conv.cuda()(x.cuda(), graph.to("cuda"), return_attention_weights=True)
    assert 0 < expected.isnan().sum() < expected.numel()
    assert torch.equal(actual.isnan().cpu(), expected.isnan())


@pytest.mark.parametrize("options", [{}, {"edge_dim": 3}, {"graph": True}])
def test_saved_tensors_in_half_precision_cost_no_more_than_their_rounding(options):
    graph = random_graph(300, 6000, 5, edge_dim=options.get("edge_dim"))
    if graph.edge_attr is not None:
        graph.edge_attr = graph.edge_attr.float()
    if "graph" in options:
        conv, x = RGATConv(300, 6, 5, heads=3, scope=["within", "across", "within"], graph=graph), None
    else:
        conv, x = RGATConv(8, 6, 5, heads=3, scope=["within", "across", "within"], **options), torch.randn(300, 8)
    cotangent = torch.randn(300, 18)
    with ops.backend("reference"):
        conv(x, graph).backward(cotangent)
    expected = {name: parameter.grad.clone() for name, parameter in conv.named_parameters()}
    conv = conv.cuda()
    conv.zero_grad()
    with torch.autograd.graph.saved_tensors_hooks(pack_half, unpack):
        out = conv(None if x is None else x.cuda(), graph.to("cuda"))
    out.backward(cotangent.cuda())
    for name, parameter in conv.named_parameters():
        assert_close(parameter.grad.cpu(), expected[name], 0.05, f"gradient of {name}")


def test_misaligned_inputs():
    graph = random_graph(40, 300, 5).to("cuda")
    conv = RGATConv(16, 16, 5, heads=4).cuda()
    flat = torch.randn(40 * 16 + 1, device="cuda")
    for memory in (flat[1:], flat[:-1]):  # not aligned to 16 bytes, and aligned; each after the other was compiled
        x = memory.view(40, 16)
        for _ in range(18):  # until launches are replayed
            assert_close(conv(x, graph), conv(x.clone(), graph), 1e-6)


def test_half_precision_layers():
    graph = random_graph(300, 4000, 5).to("cuda")
    for dtype in (torch.bfloat16, torch.float16):
        conv = RGATConv(32, 16, 5, heads=4).cuda()
        x = torch.randn(300, 32, device="cuda")
        exact = conv(x, graph)
        with ops.backend("triton"):
            assert_close(conv.to(dtype)(x.to(dtype), graph).float(), exact, 3e-2)
