"""Test layers that add a learned row per node and relation to projected features."""

import copy

import pytest
import torch
from helpers import assert_matches_reference, random_graph
from torch.export import Dim
from torch.utils import _pytree as pytree

from rgat import RelationalGraph, ops
from rgat.models import NodeClassifier
from rgat.nn import FeatureRows, RGATConv, RGCNConv
from rgat.training.loss import l2_penalty

N, R, F, D = 9, 4, 5, 3
FAMILIES = [
    (RGATConv, {"heads": 2, "scope": ["within", "across"]}),
    (RGATConv, {"heads": 2, "score": "multiplicative"}),
    (RGATConv, {"score": "dynamic"}),
    (RGCNConv, {}),
]


@pytest.fixture
def graph():
    return random_graph(N, 60, R, seed=1)


def features(dtype=torch.float64):
    return torch.randn(N, F, generator=torch.Generator().manual_seed(2), dtype=dtype)


@pytest.mark.parametrize("backend", ["reference", "torch", "numba"])
@pytest.mark.parametrize("num_bases", [None, 2])
@pytest.mark.parametrize(("family", "options"), FAMILIES)
def test_rows_of_nodes_equal_a_one_hot_vector_beside_the_features(graph, family, options, num_bases, backend):
    conv = family(F, D, R, num_nodes=N, graph=graph, num_bases=num_bases, **options).double()
    wide = family(F + N, D, R, **options).double()
    with torch.no_grad():
        rows = conv.identity.compose(conv.rows)
        kernels = conv.kernel.compose()
        wide.kernel.weight.copy_(torch.cat([kernels, rows], dim=2))
    wide.load_state_dict({name: t for name, t in conv.state_dict().items() if "attention" in name}, strict=False)
    if family is RGATConv and conv.score_kernel is not None:
        wide.score_kernel.data.copy_(conv.score_kernel)
    x = features()
    with ops.backend(backend):
        beside = torch.cat([x, torch.eye(N).double()], dim=1)
        torch.testing.assert_close(conv(x, graph), wide(beside, graph), rtol=1e-10, atol=1e-10)
        assert (conv(x, graph) - conv(torch.zeros_like(x), graph)).abs().max() > 1e-3, "features matter"
    before = conv(x, graph)
    torch.nn.init.zeros_(next(conv.identity.parameters()))
    assert (conv(x, graph) - before).abs().max() > 1e-3, "rows matter"


@pytest.mark.parametrize("family", [RGATConv, RGCNConv])
def test_a_graph_makes_the_rows_compact(graph, family):
    compact, full = family(F, D, R, num_nodes=N, graph=graph), family(F, D, R, num_nodes=N)
    assert compact.identity.weight.shape == (len(compact.rows), 1, D)
    assert full.identity.weight.shape == (R, 1, N, D)
    assert full.rows is None
    assert compact.kernel.weight.shape == full.kernel.weight.shape == (R, 1, F, D)


def test_without_rows_of_nodes_nothing_changes(graph):
    torch.manual_seed(0)
    conv = RGATConv(F, D, R)
    assert conv.num_nodes is conv.node_kernel is None
    assert "identity" not in "".join(conv.state_dict()) + str(conv)
    assert "num_nodes" not in vars(conv), "checkpoints of earlier versions have no such option"
    assert "num_nodes=9" in str(RGATConv(F, D, R, num_nodes=N))


@pytest.mark.parametrize("backend", ["torch", "numba"])
@pytest.mark.parametrize("options", [{"num_nodes": N}, {}, {"feature_dropout": 0.4, "edge_dropout": 0.3}])
def test_features_of_a_batch_are_read_from_their_table(graph, backend, options):
    conv = RGATConv(F, D, R, heads=2, **options, **({"graph": graph} if "num_nodes" in options else {}))
    table, rows = torch.randn(50, F), torch.randperm(50)[:N]
    with ops.backend(backend):
        read = conv(FeatureRows(table, rows), graph)
        conv.dropout_state[1] = 0  # the same masks again, which depend on nodes and not on rows of the table
        torch.testing.assert_close(read, conv(table[rows], graph))


@pytest.mark.parametrize("backend", ["torch", "numba"])
@pytest.mark.parametrize("score", ["additive", "dynamic"])
def test_rows_that_are_not_held_are_zero(graph, score, backend):
    """A layer of some edges is called with these alone, with others, with no held row, and with nodes added since."""
    part = RelationalGraph(graph.edge_index[:, :20], graph.edge_type[:20], num_nodes=N, num_relations=R)
    conv = RGATConv(F, D, R, heads=2, num_nodes=N, graph=part, score=score).double()
    empty = RelationalGraph(graph.edge_index[:, :0], graph.edge_type[:0], num_nodes=N, num_relations=R)
    without = RGATConv(F, D, R, heads=2, num_nodes=N, graph=empty, score=score).double()
    new_edges = torch.cat([graph.edge_index, torch.tensor([[N, 0, N + 1], [1, N, N]])], dim=1)
    new_types = torch.cat([graph.edge_type, torch.tensor([0, 1, 2])])
    larger = RelationalGraph(new_edges, new_types, num_nodes=N + 2, num_relations=R)
    x = torch.cat([features(), torch.randn(2, F).double()])
    assert_matches_reference(conv, x[:N], part, backend=backend)
    assert_matches_reference(conv, x[:N], graph, backend=backend)
    assert_matches_reference(conv, x, larger, backend=backend)
    plain = RGATConv(F, D, R, heads=2, score=score).double()
    plain.load_state_dict({name: t for name, t in without.state_dict().items() if name in plain.state_dict()})
    with ops.backend(backend):
        torch.testing.assert_close(without(x, larger), plain(x, larger))


def test_loading_other_rows_fails(graph):
    part = RelationalGraph(graph.edge_index[:, :20], graph.edge_type[:20], num_nodes=N, num_relations=R)
    conv, smaller = (RGATConv(F, D, R, num_nodes=N, graph=each) for each in (graph, part))
    with pytest.raises(RuntimeError, match="`rows` must be the rows of the graph this layer was built with"):
        smaller.load_state_dict(conv.state_dict())


def test_users_mistakes_are_refused(graph):
    conv = RGATConv(F, D, R, num_nodes=N)
    with pytest.raises(ValueError, match="must get features beside its rows of nodes, got `x=None`"):
        conv(None, graph)
    with pytest.raises(ValueError, match="with rows of nodes, `num_nodes` must be the number of nodes, 7, got 9"):
        conv(torch.randn(7, F), random_graph(7, 20, R))
    with pytest.raises(ValueError, match="with rows of nodes, `num_nodes` must be the number of nodes, 7, got 9"):
        RGATConv(F, D, R, num_nodes=N, graph=graph)(torch.randn(7, F), random_graph(7, 20, R))
    with pytest.raises(ValueError, match="must have its sizes, num_nodes=9 and num_relations=4, got 8 and 4"):
        RGATConv(F, D, R, num_nodes=8, graph=graph)
    with pytest.raises(ValueError, match="`num_nodes` must be an integer of at least 0"):
        RGATConv(F, D, R, num_nodes=-1)
    with pytest.raises(ValueError, match="is featureless and takes only `x=None`; add `num_nodes=`"):
        RGATConv(N, D, R, graph=graph)(torch.randn(N, N), graph)


def test_inputs_cannot_be_aggregated_before_rows_are_added(graph):
    conv = RGATConv(F, D, R, num_nodes=N)
    assert conv.plan(graph).alternative == "project"
    with ops.backend("numba"), pytest.raises(ValueError, match="no rows of nodes"):
        conv.plan(graph, "aggregate")
    with ops.backend("numba"), pytest.raises(ValueError, match=r"must not be used with rows of nodes \(`num_nodes`\)"):
        conv(features(torch.float32), graph, plan=RGATConv(F, D, R).plan(graph, "aggregate"))


@pytest.mark.parametrize("backend", ["torch", "numba"])
def test_the_output_with_the_layers_own_attention_is_its_output(graph, backend):
    conv = RGATConv(F, D, R, heads=2, num_nodes=N, graph=graph).double()
    with ops.backend(backend):
        out, (_, attention) = conv(features(), graph, return_attention_weights=True)
        torch.testing.assert_close(conv.combine(features(), graph, attention), out)


def test_the_penalty_of_a_layer_covers_kernel_and_rows(graph):
    model = NodeClassifier(F, 3, R, identity=True, graph=graph)
    expected = 0.5 * (model.conv1.kernel.weight.square().sum() + model.conv1.identity.weight.square().sum())
    torch.testing.assert_close(l2_penalty(model, (0.5, 0.0), (0.0, 0.0)), expected)


def test_a_layer_without_edges_gives_its_rows_zero_gradients():
    empty = RelationalGraph(torch.empty(2, 0).long(), torch.empty(0).long(), num_nodes=N, num_relations=R)
    conv = RGATConv(F, D, R, num_nodes=N)
    conv(features(torch.float32), empty).sum().backward()
    assert conv.identity.weight.grad.abs().max() == 0


@pytest.mark.parametrize("compact", [False, True])
def test_a_layer_compiles_without_a_graph_break(graph, compact):
    torch.use_deterministic_algorithms(False)
    torch._dynamo.reset()
    conv = RGATConv(F, D, R, heads=2, num_nodes=N, graph=graph if compact else None, feature_dropout=0.3)
    twin = copy.deepcopy(conv)
    compiled = torch.compile(conv, fullgraph=True, backend="aot_eager")
    x, prepared = features(torch.float32), graph.prepare()
    cotangent = torch.randn(N, 2 * D)
    for layer in (compiled, twin):
        (layer(x, prepared) * cotangent).sum().backward()
    for ours, theirs in zip(conv.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_a_layer_is_exported_for_any_edges_among_its_nodes(graph):
    conv = RGATConv(F, D, R, heads=2, num_nodes=N).eval()
    x, prepared = features(torch.float32), graph.prepare()
    shapes = [[Dim.AUTO] * leaf.dim() for leaf in (x, *pytree.tree_leaves(prepared))]
    program = torch.export.export(conv, (x, prepared), dynamic_shapes=(shapes[0], shapes[1:]))
    other = random_graph(N, 30, R, seed=5).prepare()
    torch.testing.assert_close(program.module()(x, other), conv(x, other))
