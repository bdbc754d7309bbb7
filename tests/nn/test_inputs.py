"""Test all forms of one-hot input, compact rows, and invalid input to the layers."""

import os
import re
from pathlib import Path

import pytest
import torch
from helpers import random_graph, with_edge_attr
from torch.nn.functional import one_hot

from rgat import RelationalGraph, ops
from rgat.nn import RGATConv, RGCNConv

N, R, F, D = 9, 4, 5, 3


@pytest.fixture
def graph():
    return random_graph(N, 60, R)


def both(width, **options):
    return [
        RGATConv(width, D, R, heads=2, score="multiplicative", **options).double(),
        RGCNConv(width, D, R, **options).double(),
    ]


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize("num_bases", [None, 2])
def test_one_hot_inputs_behave_as_their_matrix(graph, num_bases):
    index = torch.randint(F, (N,))
    dense = one_hot(index, F).double()
    for conv in both(F, num_bases=num_bases):
        expected = conv(dense, graph)
        stored_zeros = torch.sparse_coo_tensor([[0, 1], [0, 1]], [0.0, 0.0], (N, F), check_invariants=True).double()
        for x in (index, index.int(), dense.to_sparse(), dense.to_sparse_csr(), dense.to_sparse() + stored_zeros):
            torch.testing.assert_close(conv(x, graph), expected)
    for conv in both(N, num_bases=num_bases):
        torch.testing.assert_close(conv(None, graph), conv(torch.eye(N).double(), graph))
        torch.testing.assert_close(conv(None, graph.edge_index, graph.edge_type), conv(None, graph))


def test_a_compact_layer_holds_exactly_the_rows_that_edges_use(graph):
    source, target = graph.edge_index
    used = {(int(r), int(j)) for r, j in zip(graph.edge_type, source, strict=True)}
    ends = used | {(int(r), int(i)) for r, i in zip(graph.edge_type, target, strict=True)}
    for conv, expected in zip(both(N, graph=graph), (ends, used), strict=True):
        assert conv.rows.tolist() == sorted(r * N + j for r, j in expected)
        assert conv.rows.dtype == torch.int64
        assert "rows" in dict(conv.named_buffers())
        assert conv.kernel.weight.shape[0] == len(expected)
        kernels = conv.kernels() if isinstance(conv, RGATConv) else conv.kernels().unsqueeze(1)
        held = kernels.abs().sum((1, 3)) > 0  # [R, N]
        assert {(r, j) for r, j in held.nonzero().tolist()} == expected
        full = type(conv)(
            N, D, R, **({"heads": 2, "score": "multiplicative"} if isinstance(conv, RGATConv) else {})
        ).double()
        state = {k: v for k, v in conv.state_dict().items() if k != "rows"} | {"kernel.weight": kernels.detach()}
        full.load_state_dict(state)
        torch.testing.assert_close(full(None, graph), conv(None, graph))


def test_compact_rows_do_not_depend_on_the_order_of_the_edges(graph):
    order = torch.randperm(60)
    shuffled = RelationalGraph(graph.edge_index[:, order], graph.edge_type[order], num_nodes=N, num_relations=R)
    torch.manual_seed(5)
    first = both(N, graph=graph)
    torch.manual_seed(5)
    for a, b in zip(first, both(N, graph=shuffled), strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


def test_a_compact_layer_takes_graphs_with_a_subset_of_its_rows(graph):
    part = RelationalGraph(graph.edge_index[:, :20], graph.edge_type[:20], num_nodes=N, num_relations=R)
    for conv, smaller in zip(both(N, graph=graph), both(N, graph=part), strict=True):
        with ops.backend("reference"):
            expected = conv(None, part)
        torch.testing.assert_close(conv(None, part), expected)
        with pytest.raises(
            ValueError, match=r"only rows \(relation, node\) of the graph this layer was built with, got \d+ others"
        ):
            smaller(None, graph)
        for backend, options in (("torch", {"constant_attention": True}), ("reference", {})):
            if backend == "reference" or isinstance(conv, RGATConv):
                with ops.backend(backend), pytest.raises(ValueError, match="only rows"):
                    smaller(None, graph, **options)
        with pytest.raises(RuntimeError, match="`rows` must be the rows of the graph this layer was built with"):
            smaller.load_state_dict(conv.state_dict())
        with pytest.raises(ValueError, match="takes only `x=None`"):
            conv(torch.eye(N).double(), graph)


def test_loading_other_rows_fails_and_leaves_the_parameters_unchanged(graph):
    other = RelationalGraph(graph.edge_index.flip(0), graph.edge_type, num_nodes=N, num_relations=R)
    conv, saved = RGATConv(N, D, R, graph=graph), RGATConv(N, D, R, graph=other)
    before = conv.kernel.weight.clone()
    with pytest.raises(RuntimeError, match="`rows` must be"):
        conv.load_state_dict(saved.state_dict() | {"rows": saved.rows + 1})
    assert torch.equal(conv.kernel.weight, before)


def test_with_bases_there_is_nothing_to_compact(graph):
    RGATConv(F, D, R, graph=graph, num_bases=2)  # even for a graph of another size
    for conv in both(N, graph=graph, num_bases=2):
        assert conv.rows is None
        assert conv.kernel.bases.shape == (2, N, D)


def test_the_layer_keeps_no_graph(graph):
    for conv in both(N, graph=graph):
        assert not any(isinstance(value, RelationalGraph) for value in vars(conv).values())


@pytest.mark.skipif("RGAT_DATA" not in os.environ, reason="RGAT_DATA is not set: no AIFB file")
def test_featureless_layers_on_aifb_hold_only_the_rows_that_exist():
    import gzip

    path = Path(os.environ["RGAT_DATA"]) / "aifb" / "aifb_stripped.nt.gz"
    lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    triples = {re.fullmatch(r"(\S+) (\S+) (.+?) \.", line.strip()).groups() for line in lines if line.strip()}
    nodes = {name: i for i, name in enumerate(sorted({s for s, _, _ in triples} | {o for _, _, o in triples}))}
    relations = {name: i for i, name in enumerate(sorted({p for _, p, _ in triples}))}
    edges = torch.tensor([(nodes[s], nodes[o], relations[p]) for s, p, o in triples])
    graph = RelationalGraph(edges[:, :2].t(), edges[:, 2], num_nodes=len(nodes), num_relations=len(relations))
    graph = graph.with_inverses().with_self_loops()
    assert (graph.num_nodes, graph.num_edges, graph.num_relations) == (8285, 66371, 91)
    assert len(RGATConv(8285, 2, 91, graph=graph).rows) == 61057
    assert len(RGCNConv(8285, 2, 91, graph=graph).rows) == 34710


BAD_OPTIONS = [
    ({"scope": "accross"}, r'`scope` must be "within" or "across", got "accross"; did you mean "across"\?'),
    ({"scope": ["within"]}, r"`scope` must be one word or one word per head, 2, got 1"),
    ({"scope": ["within", "beyond"]}, r'`scope` must be "within" or "across", got "beyond"$'),
    ({"score": "multiplicativ"}, r'did you mean "multiplicative"\?'),
    ({"score": "mult"}, r'did you mean "multiplicative"\?'),
    ({"scope": 3}, r"`scope` must be .* got 3"),
    ({"head_merge": "cat"}, r'`head_merge` must be "concat", "mean", "sum" or "projection", got "cat"; did you mean'),
    ({"attention_channels": 2}, r"`attention_channels` must be 1 for the additive score, got 2"),
    (
        {"attention_channels": 0, "score": "multiplicative"},
        r"`attention_channels` must be an integer of at least 1, got 0",
    ),
    ({"heads": 0}, r"`heads` must be an integer of at least 1, got 0"),
    ({"in_channels": -1}, r"`in_channels` must be an integer of at least 0, got -1"),
    ({"out_channels": 1.5}, r"`out_channels` must be an integer of at least 1, got 1.5"),
    ({"num_bases": 0}, r"`num_bases` must be an integer of at least 1, got 0"),
    ({"num_attention_bases": -3}, r"`num_attention_bases` must be an integer of at least 1, got -3"),
    ({"edge_dim": 0}, r"`edge_dim` must be an integer of at least 1, got 0"),
    ({"feature_dropout": 1.0}, r"`feature_dropout` must be at least 0 and below 1, got 1.0"),
    ({"edge_dropout": -0.1}, r"`edge_dropout` must be at least 0 and below 1, got -0.1"),
    ({"graph": random_graph(N, 5, R)}, r"must have its sizes, in_channels=9 and num_relations=4, got 5 and 4"),
]


@pytest.mark.parametrize(
    ("change", "message"), BAD_OPTIONS, ids=lambda value: value[:40] if isinstance(value, str) else ""
)
def test_bad_options_are_refused_in_one_sentence(change, message):
    with pytest.raises(ValueError, match=message):
        RGATConv(**({"in_channels": F, "out_channels": D, "num_relations": R, "heads": 2} | change))


def call(conv_options=None, **change):
    graph = random_graph(N, 60, R)
    conv = RGATConv(F, D, R, **(conv_options or {}))
    return conv(**({"x": torch.randn(N, F), "edge_index": graph} | change))


TENSORS = {"edge_index": torch.tensor([[0], [1]]), "edge_type": torch.tensor([0])}
NAN = torch.full((N, F), torch.nan)
BAD_CALLS = [
    ({"x": torch.randn(N, F + 1)}, r"`x` must have shape \[num_nodes, 5\], got \[9, 6\]"),
    ({"x": torch.randn(N + 1, F)}, r"`x` must have one row per node of the graph, 9, got 10"),
    ({"x": torch.randn(N, F, 1)}, r"`x` must have shape \[num_nodes, 5\], got \[9, 5, 1\]"),
    ({"x": torch.zeros(N, F).long()}, r"`x` must be floating point, got torch.int64"),
    ({"x": torch.randn(N, F).double()}, r"`x` must have the layer's dtype torch.float32, got torch.float64"),
    ({"x": NAN}, r"`x` must not contain NaN"),
    ({"x": None}, r"without features, `in_channels` must be the number of nodes, 9, got 5"),
    ({"x": torch.full((N,), F)}, r"`x` must lie between 0 and in_channels - 1 = 4, got 5"),
    ({"x": torch.full((N,), -1)}, r"`x` must lie .* got -1"),
    ({"x": torch.zeros(N + 1).long()}, r"`x` must have one row per node of the graph, 9, got 10"),
    ({"x": torch.ones(N, F).to_sparse()}, r"a sparse `x` must be one-hot"),
    ({"x": torch.zeros(N, F).to_sparse()}, r"a sparse `x` must be one-hot"),
    ({"x": (one_hot(torch.zeros(N).long(), F) * 2.0).to_sparse()}, r"a sparse `x` must be one-hot"),
    ({"x": torch.eye(N).to_sparse()}, r"`x` must have shape \[num_nodes, 5\], got \[9, 9\]"),
    ({"edge_index": random_graph(N, 5, R + 1)}, r"the graph must have the layer's 4 relations, got 5"),
    ({"edge_type": torch.zeros(60).long()}, r"`edge_type` must not be given with a RelationalGraph"),
    ({"edge_index": TENSORS["edge_index"]}, r"`edge_type` must be given with `edge_index`, got None"),
    (TENSORS | {"edge_type": torch.tensor([R])}, r"`edge_type` must lie between 0 and num_relations - 1 = 3, got 4"),
    (
        TENSORS | {"edge_index": torch.tensor([[0], [N]])},
        r"`edge_index` must lie between 0 and num_nodes - 1 = 8, got 9",
    ),
    (
        {"conv_options": {"edge_dim": 2}, "edge_attr": torch.full((60, 2), torch.nan)},
        r"`edge_attr` must not contain NaN",
    ),
    (
        {"conv_options": {"edge_dim": 2}, "edge_attr": torch.ones(60, 2).long()},
        r"`edge_attr` must be floating point, got torch.int64",
    ),
    ({"x": torch.ones(N).bool()}, r"`x` must have shape \[num_nodes, 5\], got \[9\]"),
    ({"edge_attr": torch.ones(60, 2)}, r"a layer without `edge_dim` takes no edge features, got some"),
    (
        {"edge_index": random_graph(N, 60, R, edge_dim=2)},
        r"a layer without `edge_dim` takes no edge features, got some",
    ),
    ({"conv_options": {"edge_dim": 2}}, r"a layer with `edge_dim=2` needs edge features, got None"),
    (
        {"conv_options": {"edge_dim": 2}, "edge_attr": torch.ones(60, 3)},
        r"`edge_attr` must have shape \[60, 2\], got \[60, 3\]",
    ),
]


@pytest.mark.parametrize(
    ("change", "message"), BAD_CALLS, ids=lambda value: value[:40] if isinstance(value, str) else ""
)
def test_bad_calls_are_refused_in_one_sentence(change, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call(**change)


def test_nan_passes_if_validation_is_off():
    graph = RelationalGraph(**TENSORS, num_nodes=N, num_relations=R, validate=False)
    assert call(x=NAN, edge_index=graph)[1].isnan().all()


def test_edge_kernels_exist_only_with_edge_dim():
    with pytest.raises(ValueError, match="edge kernels only with `edge_dim`"):
        RGATConv(F, D, R).edge_kernels()
    assert RGATConv(F, D, R, heads=2, edge_dim=7).edge_kernels().shape == (R, 2, 7)


def test_constant_attention_and_rgcn_ignore_edge_features():
    graph = random_graph(N, 60, R)
    x = torch.randn(N, F)
    conv = RGATConv(F, D, R, edge_dim=2)
    outputs = [conv(x, with_edge_attr(graph, torch.randn(60, 2)), constant_attention=True) for _ in range(2)]
    torch.testing.assert_close(outputs[0], outputs[1], rtol=1e-5, atol=1e-6)
    rgcn = RGCNConv(F, D, R)
    assert torch.equal(rgcn(x, with_edge_attr(graph, torch.randn(60, 2))), rgcn(x, graph))


def test_one_node_and_a_relation_without_edges_are_legal():
    graph = RelationalGraph(torch.zeros(2, 3).long(), torch.tensor([0, 2, 2]), num_nodes=1, num_relations=R)
    for conv in both(F):
        out = conv(torch.randn(1, F).double(), graph)
        (out * torch.randn_like(out)).sum().backward()
        assert out.isfinite().all()
        assert conv.kernel.weight.grad[[1, 3]].abs().max() == 0
        assert conv.kernel.weight.grad[0].abs().max() > 0


@pytest.mark.parametrize("layer", [RGATConv, RGCNConv])
def test_a_compact_layer_survives_the_meta_device(layer):
    graph, other = random_graph(9, 60, 4), random_graph(9, 60, 4, seed=1)
    built = layer(9, 5, 4, graph=graph)
    with torch.device("meta"):
        conv = layer(9, 5, 4, graph=graph)
    assert {tensor.device.type for tensor in conv.state_dict().values()} == {"meta"}
    conv.to_empty(device="cpu")
    with pytest.raises(RuntimeError, match="must be the rows of the graph this layer was built with"):
        conv.load_state_dict(layer(9, 5, 4, graph=other).state_dict())
    conv.load_state_dict(built.state_dict())
    assert torch.equal(conv(None, graph), built(None, graph))


@pytest.mark.parametrize("slope", ["0.2", [1], float("nan"), True])
def test_a_slope_must_be_a_number(slope):
    with pytest.raises(ValueError, match="`negative_slope` must be a finite number"):
        RGATConv(3, 2, 2, negative_slope=slope)
