"""Test the theoretical properties of the layers and the guarantees to users."""

import copy
import pickle

import pytest
import torch
from helpers import assert_close, random_graph, with_edge_attr

from rgat import RelationalGraph, ops
from rgat.nn import GraphGather, RGATConv, RGCNConv

N, R, F, D = 9, 4, 5, 3
VARIANTS = [(scope, score) for scope in ("within", "across") for score in ("additive", "multiplicative", "dynamic")]


@pytest.fixture
def graph():
    return random_graph(N, 60, R)


@pytest.fixture
def x():
    return torch.randn(N, F, dtype=torch.float64)


def layers(**options):
    for scope, score in VARIANTS:
        yield RGATConv(F, D, R, heads=2, scope=scope, score=score, **options).double()
    yield RGCNConv(F, D, R, **{k: v for k, v in options.items() if k != "edge_dim"}).double()


@pytest.mark.parametrize(("scope", "score"), VARIANTS)
def test_attention_sums_to_one_per_group(graph, x, scope, score):
    conv = RGATConv(F, D, R, heads=2, scope=scope, score=score).double()
    _, (edge_index, attention) = conv(x, graph, return_attention_weights=True)
    assert torch.equal(edge_index, graph.edge_index)
    group = graph.edge_index[1] * R + graph.edge_type if scope == "within" else graph.edge_index[1]
    sums = torch.zeros(N * R, 2).double().index_add(0, group, attention.detach())
    present = torch.zeros(N * R).bool().index_fill(0, group, True)
    assert present.sum() > 5
    torch.testing.assert_close(sums[present], torch.ones_like(sums[present]))


@pytest.mark.parametrize("score", ["additive", "multiplicative", "dynamic"])
def test_one_relation_makes_both_scopes_equal(x, score):
    graph = random_graph(N, 40, 1)
    within = RGATConv(F, D, 1, heads=2, score=score).double()
    across = RGATConv(F, D, 1, heads=2, score=score, scope="across").double()
    across.load_state_dict(within.state_dict())
    torch.testing.assert_close(within(x, graph), across(x, graph))


@pytest.mark.parametrize("scope", ["within", "across"])
def test_adding_a_constant_to_the_logits_of_a_group_changes_nothing(graph, x, scope):
    conv = RGATConv(F, D, R, scope=scope, score="multiplicative", edge_dim=1).double()
    torch.nn.init.ones_(conv.edge_kernel)
    group = graph.edge_index[1] * R + graph.edge_type if scope == "within" else graph.edge_index[1]
    shift = torch.randn(N * R, 1, dtype=torch.float64)[group]
    noise = torch.randn(60, 1, dtype=torch.float64)
    out = conv(x, with_edge_attr(graph, noise))
    torch.testing.assert_close(conv(x, with_edge_attr(graph, noise + shift)), out)
    assert relative_change(conv(x, with_edge_attr(graph, noise * 2)), out) > 1e-3


def relative_change(a, b):
    return float((a - b).detach().abs().max() / b.detach().abs().max())


@pytest.mark.parametrize("num_bases", [None, 2])
def test_constant_attention_within_relations_is_rgcn(graph, x, num_bases):
    rgat = RGATConv(F, D, R, num_bases=num_bases).double()
    rgcn = RGCNConv(F, D, R, num_bases=num_bases).double()
    rgcn.load_state_dict({k: v for k, v in rgat.state_dict().items() if "attention" not in k})
    torch.testing.assert_close(rgat(x, graph, constant_attention=True), rgcn(x, graph))
    assert relative_change(rgat(x, graph), rgcn(x, graph)) > 1e-3


def test_permuting_nodes_permutes_the_output(graph, x):
    order = torch.randperm(N)
    place = torch.empty_like(order).scatter_(0, order, torch.arange(N))
    renamed = RelationalGraph(place[graph.edge_index], graph.edge_type, num_nodes=N, num_relations=R)
    for conv in layers():
        torch.testing.assert_close(conv(x[order], renamed), conv(x, graph)[order])


def test_permuting_relations_with_their_kernels_changes_nothing(graph, x):
    order = torch.randperm(R)
    place = torch.empty_like(order).scatter_(0, order, torch.arange(R))
    renamed = RelationalGraph(graph.edge_index, place[graph.edge_type], num_nodes=N, num_relations=R)
    for conv in layers():
        expected = conv(x, graph)
        conv.kernel.weight.data = conv.kernel.weight.data[order]
        if isinstance(conv, RGATConv):
            conv.attention_kernel.weight.data = conv.attention_kernel.weight.data[order]
            if conv.score_kernel is not None:
                conv.score_kernel.data = conv.score_kernel.data[order]
        torch.testing.assert_close(conv(x, renamed), expected)


@pytest.mark.parametrize("backend", ["torch", "reference"])
def test_the_order_of_the_edges_changes_nothing_even_with_dropout(x, backend):
    graph = random_graph(N, 200, R, edge_dim=2)
    order = torch.randperm(200)
    shuffled = RelationalGraph(
        graph.edge_index[:, order],
        graph.edge_type[order],
        num_nodes=N,
        num_relations=R,
        edge_attr=graph.edge_attr[order],
    )
    with ops.backend(backend):
        for conv in layers(edge_dim=2, feature_dropout=0.3, edge_dropout=0.3):
            again = copy.deepcopy(conv)
            out = conv(x, graph)
            assert_close(again(x, shuffled), out, 0 if backend == "torch" else 1e-12)
            if isinstance(conv, RGATConv):
                conv.eval()
                _, (_, attention) = conv(x, graph, return_attention_weights=True)
                _, (_, moved) = conv(x, shuffled, return_attention_weights=True)
                torch.testing.assert_close(moved, attention[order])


def test_a_batch_equals_its_graphs_one_by_one():
    graphs = [random_graph(n, e, R, edge_dim=2, seed=n) for n, e in ((4, 9), (1, 2), (7, 30), (3, 0))]
    xs = [torch.randn(graph.num_nodes, F).double() for graph in graphs]
    for conv in layers(edge_dim=2):
        together = conv(torch.cat(xs), RelationalGraph.collate(graphs))
        torch.testing.assert_close(together, torch.cat([conv(x, graph) for x, graph in zip(xs, graphs, strict=True)]))


def test_as_many_bases_as_kernels_with_identity_coefficients_equals_the_full_kernel(graph, x):
    full = RGATConv(F, D, R, heads=2, score="multiplicative").double()
    basis = RGATConv(F, D, R, heads=2, score="multiplicative", num_bases=R * 2, num_attention_bases=R * 2).double()
    for kernel, whole in ((basis.kernel, full.kernel), (basis.attention_kernel, full.attention_kernel)):
        kernel.bases.data.copy_(whole.weight.data.flatten(0, 1))
        kernel.coefficients.data.copy_(torch.eye(R * 2).view(R, 2, R * 2))
    torch.testing.assert_close(basis.kernels(), full.kernels())
    torch.testing.assert_close(basis.attention_kernels(), full.attention_kernels())
    torch.testing.assert_close(basis(x, graph), full(x, graph))


def test_bare_tensors_and_a_prepared_graph_give_the_same_output(x):
    graph = random_graph(N, 60, R, edge_dim=2)
    for conv in layers(edge_dim=2):
        attributes = (graph.edge_attr,) if isinstance(conv, RGATConv) else ()
        assert torch.equal(conv(x, graph.edge_index, graph.edge_type, *attributes), conv(x, graph.prepare()))


def test_heads_merge_as_their_names_say(graph, x):
    convs = {
        m: RGATConv(F, D, R, heads=2, head_merge=m, bias=False).double()
        for m in ("concat", "mean", "sum", "projection")
    }
    for conv in convs.values():
        conv.load_state_dict(convs["concat"].state_dict(), strict=False)
    heads = convs["concat"](x, graph).view(N, 2, D)
    torch.testing.assert_close(convs["mean"](x, graph), heads.mean(1))
    torch.testing.assert_close(convs["sum"](x, graph), heads.sum(1))
    projection = convs["projection"].projection
    assert projection.shape == (2 * D, D)
    torch.testing.assert_close(convs["projection"](x, graph), heads.flatten(1) @ projection)


def test_every_option_changes_the_output(graph, x):
    def output(call=None, train=False, **options):
        torch.manual_seed(3)
        attr = torch.randn(60, 2, dtype=torch.float64)
        conv = RGATConv(F, D, R, **({"heads": 2} | options)).double().train(train)
        return conv(x, with_edge_attr(graph, attr) if options.get("edge_dim") else graph, **(call or {}))

    base = output()
    changes = [
        {"scope": "across"},
        {"scope": ["within", "across"]},
        {"score": "multiplicative"},
        {"score": "multiplicative", "attention_channels": 2},
        {"score": "dynamic"},
        {"score": "dynamic", "attention_channels": 2},
        {"score": "dynamic", "negative_slope": 0.7},
        {"num_bases": 2},
        {"num_attention_bases": 2},
        {"edge_dim": 2},
        {"negative_slope": 0.7},
        {"feature_dropout": 0.5, "train": True},
        {"edge_dropout": 0.5, "train": True},
        {"call": {"constant_attention": True}},
    ]
    outputs = [base] + [output(**change) for change in changes]
    for a in range(len(outputs)):
        for b in range(a):
            assert relative_change(outputs[a], outputs[b]) > 1e-6, (a, b)
    assert output(head_merge="mean").shape == (N, D)


def test_only_the_dynamic_score_lets_each_node_prefer_another_neighbour():
    """Two nodes share both neighbours, and each attends to itself: no common ranking of sources does that."""
    graph = RelationalGraph(
        torch.tensor([[0, 1, 0, 1], [0, 0, 1, 1]]), torch.zeros(4, dtype=torch.long), num_nodes=2, num_relations=1
    )
    conv = RGATConv(2, 2, 1, score="dynamic").double()
    with torch.no_grad():
        conv.kernel.weight.copy_(torch.eye(2))
        conv.attention_kernel.weight.copy_(torch.cat([torch.eye(2), -torch.eye(2)]))
        conv.score_kernel.fill_(-10.0)  # logit -10 * sum of LeakyReLU(x_i - x_j): 0 for itself, -8 for the other
    _, (_, attention) = conv(torch.eye(2).double(), graph, return_attention_weights=True)
    assert attention.flatten().tolist() == pytest.approx([1, 0, 0, 1], abs=1e-3)
    _, (_, additive) = RGATConv(2, 2, 1).double()(torch.eye(2).double(), graph, return_attention_weights=True)
    first, second = additive.view(2, 2)
    assert first.argmax() == second.argmax()


def test_a_dynamic_layer_refuses_plans_that_aggregate(graph, x):
    conv = RGATConv(F, D, R, score="dynamic").double()
    assert conv.plan(graph).alternative == "project"
    with pytest.raises(ValueError, match='the plan "aggregate" is not possible here'):
        conv.plan(graph, "aggregate")
    with pytest.raises(ValueError, match='the plan "aggregate" must not be used with the dynamic score'):
        conv(x, graph, plan=RGATConv(F, D, R).plan(graph, "aggregate"))
    torch.testing.assert_close(conv(x, graph, plan=conv.plan(graph)), conv(x, graph))


def test_dropout_is_off_in_evaluation_and_new_in_every_training_call(graph, x):
    for conv in layers(feature_dropout=0.5, edge_dropout=0.5):
        first, second = conv(x, graph), conv(x, graph)
        assert relative_change(first, second) > 1e-3
        assert conv.dropout_state[1] == 2
        conv.eval()
        torch.testing.assert_close(conv(x, graph), conv(x, graph), rtol=0, atol=0)
        plain = copy.deepcopy(conv).train()
        plain.feature_dropout = plain.edge_dropout = 0.0
        assert torch.equal(plain(x, graph), conv(x, graph))


def test_dropout_keeps_the_mean(graph, x):
    conv = RGATConv(F, D, R, feature_dropout=0.4, edge_dropout=0.4).double()
    mean = torch.stack([conv(x, graph).detach() for _ in range(3000)]).mean(0)
    assert_close(mean, conv.eval()(x, graph), 0.08)


def test_returned_attention_is_before_dropout(graph, x):
    conv = RGATConv(F, D, R, edge_dropout=0.9, feature_dropout=0.5).double()
    _, (_, attention) = conv(x, graph, return_attention_weights=True)
    _, (_, expected) = conv.eval()(x, graph, return_attention_weights=True)
    torch.testing.assert_close(attention, expected)


def test_the_same_seed_gives_the_same_parameters_and_masks(graph, x):
    def draw():
        torch.manual_seed(4)
        conv = RGATConv(F, D, R, heads=2, feature_dropout=0.5, edge_dim=None, num_bases=2).double()
        return [conv(x, graph).detach(), *conv.state_dict().values()]

    assert all(torch.equal(a, b) for a, b in zip(draw(), draw(), strict=True))


def test_initial_kernels_have_glorot_variance():
    def check(kernels, fan):
        assert abs(kernels.var() / (2 / fan) - 1) < 0.1

    full = RGATConv(40, 20, 30, heads=4, score="multiplicative", attention_channels=10, edge_dim=25)
    check(full.kernels(), 60)
    for kernels in full.attention_kernels():
        check(kernels, 30)
        assert kernels.abs().max() <= (6 / 30) ** 0.5
    check(full.edge_kernels(), 26)
    check(RGATConv(5, 20, 30, heads=4, score="dynamic").score_kernel, 21)
    assert full.bias.abs().max() == 0
    basis = RGATConv(
        40, 20, 300, heads=8, score="multiplicative", attention_channels=10, num_bases=50, num_attention_bases=50
    )
    assert basis.kernel.bases.shape == (50, 40, 20)
    assert basis.attention_kernel.bases.shape == (50, 40, 10)
    check(basis.kernels(), 60)
    check(basis.attention_kernels()[0], 30)
    assert abs(basis.kernel.coefficients.var() * 50 - 1) < 0.05
    check(RGCNConv(40, 20, 30).kernels(), 60)


@pytest.mark.parametrize(("scope", "score"), VARIANTS)
def test_gradcheck(scope, score):
    graph = random_graph(4, 12, 2, edge_dim=2, seed=5)
    conv = RGATConv(3, 2, 2, heads=2, scope=scope, score=score, edge_dim=2, head_merge="projection").double()
    names = [name for name, _ in conv.named_parameters()]

    def call(x, edge_attr, *parameters):
        values = dict(zip(names, parameters, strict=True))
        out, (_, a) = torch.func.functional_call(
            conv, values, (x, graph), {"edge_attr": edge_attr, "return_attention_weights": True}
        )
        return out, a

    x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    edge_attr = graph.edge_attr.clone().requires_grad_()
    assert torch.autograd.gradcheck(call, (x, edge_attr, *conv.parameters()))


def test_double_backward_is_refused_in_one_sentence_and_the_reference_allows_it(graph, x):
    x = x.requires_grad_()
    for conv in layers():
        (grad,) = torch.autograd.grad(conv(x, graph).square().sum(), x, create_graph=True)
        with pytest.raises(RuntimeError, match="first derivatives only"):
            grad.square().sum().backward()
        with ops.backend("reference"):
            (grad,) = torch.autograd.grad(conv(x, graph).square().sum(), x, create_graph=True)
            grad.square().sum().backward()


def test_no_nan_from_huge_logits(graph, x):
    for scope, score in VARIANTS:
        conv = RGATConv(F, D, R, scope=scope, score=score).double()
        y = (x * 1e4).requires_grad_()
        out, (_, attention) = conv(y, graph, return_attention_weights=True)
        (out * torch.randn_like(out)).sum().backward()
        assert all(t.isfinite().all() for t in (out, attention, y.grad, conv.attention_kernel.weight.grad))


def test_a_node_without_edges_gets_only_the_bias(graph, x):
    for conv in layers():
        torch.nn.init.normal_(conv.bias)
        assert torch.equal(conv(x, graph)[N - 1], conv.bias)


@pytest.mark.parametrize("num_nodes", [0, 1, 3])
@pytest.mark.parametrize("num_relations", [0, 2])
@pytest.mark.parametrize("featureless", [False, True])
def test_without_edges_every_parameter_gets_a_zero_gradient(num_nodes, num_relations, featureless):
    graph = random_graph(num_nodes, 0, num_relations, edge_dim=2)
    for bases in (None, 2):
        conv = RGATConv(
            num_nodes if featureless else F,
            D,
            num_relations,
            heads=2,
            edge_dim=2,
            num_bases=bases,
            num_attention_bases=bases,
        ).double()
        x = None if featureless else torch.randn(num_nodes, F).double()
        with ops.backend("reference"):
            assert conv(x, graph).shape == (num_nodes, 2 * D)
        out, (_, attention) = conv(x, graph, return_attention_weights=True)
        assert out.shape == (num_nodes, 2 * D)
        assert attention.shape == (0, 2)
        assert torch.equal(out, torch.zeros_like(out))
        (out * torch.randn_like(out)).sum().backward()
        visited = 0
        for name, parameter in conv.named_parameters():
            visited += 1
            if name != "bias":
                assert torch.equal(parameter.grad, torch.zeros_like(parameter)), name
        assert visited == (4 if bases is None else 6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_layers_sum_in_float32(graph, x, dtype):
    for conv in layers():
        expected = conv(x, graph)
        out = conv.to(dtype)(x.to(dtype), graph)
        assert out.dtype == dtype
        assert_close(out, expected, 3e-2)


def test_fp16_autocast(graph, x):
    for conv in layers():
        expected = conv(x, graph)
        with torch.autocast("cpu", dtype=torch.float16):
            out = conv.float()(x.float(), graph)
        assert out.dtype == torch.float16
        assert_close(out, expected, 1e-2)


@pytest.mark.parametrize("backend", ["torch", "reference"])
def test_backward_inside_autocast(graph, x, backend):
    with torch.autocast("cpu", dtype=torch.bfloat16), ops.backend(backend):
        for conv in [*layers(), *layers(num_bases=2)]:
            y = x.float().requires_grad_()
            out = conv.float()(y, graph)
            (out * torch.randn_like(out)).sum().backward()
            assert y.grad.isfinite().all()
            with pytest.raises(TypeError, match="`x` must have the layer's dtype"):
                conv(x, graph)


def test_logits_keep_their_precision_under_autocast(graph):
    conv = RGATConv(N, D, R, heads=2, num_bases=2, score="multiplicative")
    conv.attention_kernel.weight.data *= 20
    _, (_, expected) = conv(None, graph, return_attention_weights=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        _, (_, attention) = conv(None, graph, return_attention_weights=True)
    torch.testing.assert_close(attention, expected, rtol=1e-4, atol=1e-5)


def test_a_graph_first_used_in_inference_mode_can_be_trained_on(graph, x):
    for conv in layers():
        graph = random_graph(N, 60, R)
        with torch.inference_mode():
            conv(x, graph)
        out = conv(x, graph)
        (out * torch.randn_like(out)).sum().backward()
        assert conv.kernel.weight.grad.abs().max() > 0


def test_non_contiguous_input(graph, x):
    wide = torch.randn(F, 2 * N).double()
    for conv in layers():
        torch.testing.assert_close(conv(wide.t()[::2], graph), conv(wide.t()[::2].contiguous(), graph))


def test_layers_survive_pickle_deepcopy_and_state_dict(graph, x):
    for conv in layers(feature_dropout=0.5):
        for twin in (pickle.loads(pickle.dumps(conv)), copy.deepcopy(conv)):
            assert torch.equal(twin(x, graph), copy.deepcopy(conv)(x, graph))
        other = type(conv)(
            F, D, R, **({"heads": 2, "scope": conv.scope, "score": conv.score} if isinstance(conv, RGATConv) else {})
        )
        other = other.double()
        other.feature_dropout = 0.5
        other.load_state_dict(conv.state_dict())
        assert torch.equal(other(x, graph), conv(x, graph))  # the sequence of masks continues


def test_reset_parameters_touches_every_parameter(graph):
    conv = RGATConv(F, D, R, heads=2, edge_dim=2, head_merge="projection", num_bases=2, num_attention_bases=2)
    for parameter in conv.parameters():
        torch.nn.init.constant_(parameter, torch.nan)
    conv.reset_parameters()
    assert sum(not p.isnan().any() for p in conv.parameters()) == 7


def test_gather_is_mean_and_maximum_per_graph():
    x = torch.tensor([[1.0, -5.0], [3.0, -1.0], [7.0, -2.0]])
    graph = RelationalGraph(
        torch.empty(2, 0).long(), torch.empty(0).long(), num_nodes=3, num_relations=1, batch=torch.tensor([1, 1, 3])
    )
    expected = [[0, 0, 0, 0], [2, -3, 3, -1], [0, 0, 0, 0], [7, -2, 7, -2]]
    assert GraphGather()(x, graph).tolist() == expected
    assert GraphGather()(x.clone().requires_grad_(), graph).tolist() == expected
    one = RelationalGraph(torch.empty(2, 0).long(), torch.empty(0).long(), num_nodes=3, num_relations=1)
    torch.testing.assert_close(GraphGather()(x, one), torch.tensor([[11 / 3, -8 / 3, 7, -1]]))
    with pytest.raises(ValueError, match=r"`x` must have shape \[3, F\], one row per node, got \[2, 2\]"):
        GraphGather()(x[:2], graph)


def test_gather_does_not_overflow_in_half_precision():
    graph = random_graph(70_000, 0, 1)
    assert GraphGather()(torch.full((70_000, 1), 3.0, dtype=torch.float16), graph).tolist() == [[3.0, 3.0]]


@pytest.mark.parametrize("with_gradient", [False, True])
def test_gather_of_a_node_that_is_nan_is_nan(with_gradient):
    graph = random_graph(4, 3, 1, batch=torch.tensor([0, 0, 1, 1]))
    x = torch.tensor([[1.0], [torch.nan], [2.0], [3.0]], requires_grad=with_gradient)
    gathered = GraphGather()(x, graph)
    assert gathered[0].isnan().all()
    assert gathered[1].tolist() == [2.5, 3.0]


def test_gather_gradients():
    graph = random_graph(6, 5, 2, batch=torch.tensor([0, 2, 0, 2, 2, 0]))
    x = torch.randn(6, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: GraphGather()(x, graph), (x,))


def test_combining_values_with_a_given_attention_counts_no_call(graph, x):
    conv = RGATConv(F, D, R, feature_dropout=0.5, edge_dropout=0.5).double().train()
    attention = torch.rand(graph.num_edges, 1, dtype=torch.float64)
    before = torch.get_rng_state()
    assert torch.equal(conv.combine(x, graph, attention), conv.eval().combine(x, graph, attention))
    assert conv.dropout_state[1] == 0
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("merge", ["concat", "mean", "projection"])
def test_returned_attention_keeps_its_precision_under_autocast(graph, merge):
    conv = RGATConv(N, D, R, heads=2, head_merge=merge)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        _, (_, attention) = conv(None, graph, return_attention_weights=True)
    assert attention.dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("score", ["additive", "dynamic"])
def test_a_compact_layer_trains_in_half_precision(graph, dtype, score):
    conv = RGATConv(N, D, R, score=score, graph=graph).to(dtype)
    conv(None, graph).float().square().sum().backward()
    assert all(p.grad.isfinite().all() and p.grad.dtype == dtype for p in conv.parameters())
    assert conv.kernel.weight.grad.abs().max() > 0


def test_a_graph_moved_in_inference_mode_can_be_trained_on(graph, x):
    with torch.inference_mode():
        moved = graph.prepare().to("cpu")
    conv = RGATConv(F, D, R).double()
    conv(x, moved).sum().backward()
    assert conv.kernel.weight.grad.abs().max() > 0


def test_a_plan_of_another_backend_is_refused(graph, x):
    conv = RGATConv(F, D, R).double()
    plan = conv.plan(graph, "aggregate")
    with ops.backend("torch"), pytest.raises(ValueError, match='"aggregate" must not be used with this backend'):
        conv(x, graph, plan=plan)
