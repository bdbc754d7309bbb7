import copy
import dataclasses
import re

import pytest
import torch
from helpers import assert_close, pairwise, random_graph
from torch.export import Dim
from torch.utils import _pytree as pytree

from rgat import RelationalGraph, ops
from rgat.data import load
from rgat.models import GraphClassifier, NodeClassifier, stack
from rgat.nn import RGATConv, RGCNConv
from rgat.nn.stacked import stack_layers
from rgat.training import Settings, build_model, fit

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


def test_hidden_channels_are_divided_among_heads():
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
    (NodeClassifier, {"identity": True}, "`identity` needs the graph whose nodes get rows of their own; pass `graph=`"),
    (NodeClassifier, {"identity": True, "graph": object()}, "`identity` needs a graph in memory, got one in a store"),
    (
        NodeClassifier,
        {"identity": True, "graph": random_graph(), "embedding_channels": 2},
        "`identity` must not be given with `embedding_channels`",
    ),
    (NodeClassifier, {"num_nodes": 3}, "`num_nodes` must not be given: it follows from `graph`"),
    (GraphClassifier, {"num_nodes": 3}, "`num_nodes` must not be given: a graph classifier is for many graphs"),
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
    """Select the epoch by the training nodes."""
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
    assert results[0].curve[-1] != results[1].curve[-1]  # autocast has an effect


STACKS = pairwise(
    {
        "layer": ["rgat", "rgcn"],
        "scope": ["within", "across"],
        "score": ["additive", "multiplicative", "dynamic"],
        "batch_norm": [False, True],
        "bias": [True, False],
        "num_bases": [None, 2],
        "x": [None, "compact", "shared", "index", "own"],
        "identity": [False, True],
        "residual": [False, True],
        "layer_norm": [False, True],
        "jumping_knowledge": [False, True],
        "wide": [False, True],
        "num_layers": [2, 3],
        "edge_dim": [None, 2],
        "heads": [1, 2],
        "backend": ["numba", "torch", "reference"],
        "constant_attention": [False, True],
    }
)
RATES = [(0.3, 0.2), (0.0, 0.0), (0.5, 0.0)]  # feature and edge dropout of each member


def members(kind, *sizes, **options):
    models = []
    for seed, (feature_dropout, edge_dropout) in enumerate(RATES):
        torch.manual_seed(seed)
        rates = {"feature_dropout": feature_dropout, "edge_dropout": edge_dropout}
        models.append(kind(*sizes, **rates, **options).double())
        if hasattr(models[-1], "jump0"):
            torch.nn.init.normal_(models[-1].jump0.weight)
    return models


def assert_stack_equals_members(models, x, graph, own=False, **call):
    """Return logits, gradients under a random cotangent and, after two training steps, all buffers."""
    together = stack(models)
    for _ in range(2):
        for parameter in (*together.parameters(), *(p for model in models for p in model.parameters())):
            parameter.grad = None
        actual = together(x, graph, **call)
        expected = torch.stack([model(x[:, s] if own else x, graph, **call) for s, model in enumerate(models)])
        torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)
        cotangent = torch.randn_like(expected)
        (actual * cotangent).sum().backward()
        (expected * cotangent).sum().backward()
        compared = 0
        for name, parameter in together.model.named_parameters():
            for s, model in enumerate(models):
                alone = dict(model.named_parameters())[name].grad
                if alone is not None:
                    torch.testing.assert_close(parameter.grad[s], alone, rtol=1e-9, atol=1e-10)
                    compared += 1
        assert compared
    for model, again in zip(models, together.unstack(), strict=True):
        assert str(model) == str(again)
        for name, tensor in model.state_dict().items():
            torch.testing.assert_close(again.state_dict()[name], tensor)


@pytest.mark.parametrize("row", STACKS, ids=lambda row: "-".join(str(value) for value in row.values()))
def test_a_stack_equals_its_members_one_by_one(row):
    graph = random_graph(N, 60, R, edge_dim=row["edge_dim"])
    names = ("layer", "batch_norm", "bias", "num_bases", "layer_norm", "jumping_knowledge", "num_layers")
    options = {name: row[name] for name in names}
    for name in ("residual", "wide"):
        options[name] = row[name] and row["x"] in ("compact", "shared", "own")
    if row["layer"] == "rgat":
        options |= {name: row[name] for name in ("scope", "score", "heads", "edge_dim")}
        options["num_attention_bases"] = row["num_bases"]
    if row["x"] == "compact":
        options["graph"] = graph
    if row["x"] in ("shared", "index", "own") and row["identity"]:
        options |= {"graph": graph, "identity": True}
    inputs = {
        "shared": torch.randn(N, F).double(),
        "own": torch.randn(N, len(RATES), F).double(),
        "index": torch.randint(N, (N,)),
    }
    x = inputs.get(row["x"])
    sizes = (F if row["x"] in ("shared", "own") else N, 3, R)
    with ops.backend(row["backend"]):
        assert_stack_equals_members(
            members(NodeClassifier, *sizes, hidden_channels=8, **options),
            x,
            graph,
            own=row["x"] == "own",
            constant_attention=row["constant_attention"],
        )


def test_the_gathered_sum_tells_a_graph_from_two_copies_of_it():
    single = random_graph()
    twice = RelationalGraph(
        torch.cat([single.edge_index, single.edge_index + N], 1),
        single.edge_type.repeat(2),
        num_nodes=2 * N,
        num_relations=R,
    )
    x = torch.randn(N, F)
    for gather_sum in (False, True):
        model = GraphClassifier(F, 2, R, hidden_channels=8, gather_sum=gather_sum)
        one, two = model(x, single), model(x.repeat(2, 1), twice)
        assert torch.allclose(one, two, atol=1e-6) is not gather_sum


@pytest.mark.parametrize(
    "options", [*FAMILIES, {"heads": 2, "scope": ["within", "across"]}, {"layer": "rgcn", "gather_sum": True}]
)
def test_a_stack_of_graph_classifiers_equals_its_members_one_by_one(options):
    graph = batch_of_graphs(3, 5, 1)
    models = members(GraphClassifier, F, 4, R, hidden_channels=8, dense_channels=6, batch_norm=True, **options)
    assert_stack_equals_members(models, torch.randn(9, F).double(), graph)
    assert stack(models)(torch.randn(9, F).double(), graph).shape == (3, 3, 4, 2)


@pytest.mark.parametrize("head_merge", ["sum", "projection"])
def test_a_stack_merges_heads_as_its_members_do(head_merge):
    graph, x = random_graph(N, 60, R), torch.randn(N, F).double()
    layers = [RGATConv(F, 3, R, heads=2, head_merge=head_merge).double() for _ in range(3)]
    together = stack_layers(layers)
    torch.testing.assert_close(together(x, graph), torch.stack([layer(x, graph) for layer in layers], dim=1))


def test_members_are_copies_and_can_be_removed():
    graph = random_graph(N, 60, R)
    models = members(NodeClassifier, N, 3, R, graph=graph)
    together = stack(models)
    expected = together(None, graph)
    together.select([2, 0])
    assert len(together) == 2
    before = together.unstack()
    with torch.no_grad():
        for parameter in together.parameters():
            parameter.zero_()
    with torch.no_grad():  # the second call draws the second masks
        for model in models:
            model(None, graph)
        again = torch.stack([model(None, graph) for model in (models[2], models[0])])
        assert torch.equal(torch.stack([model(None, graph) for model in before]), again)
        assert not torch.equal(again, expected[[2, 0]])
        assert together.eval()(None, graph).abs().max() == 0


def test_a_stack_moves_to_another_precision():
    graph = random_graph(N, 60, R)
    together = stack([NodeClassifier(F, 3, R).eval() for _ in range(2)])
    x = torch.randn(N, F)
    torch.testing.assert_close(together.double()(x.double(), graph).float(), together.float()(x, graph))


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ([], "needs at least one model"),
        ([NodeClassifier(F, 3, R), NodeClassifier(F, 4, R)], "got different `conv2.attention_kernel.weight`"),
        ([NodeClassifier(F, 3, R), NodeClassifier(F, 3, R, scope="across")], "got `scope` ('within',) and ('across',)"),
        ([NodeClassifier(F, 3, R), GraphClassifier(F, 3, R)], "got a NodeClassifier and a GraphClassifier"),
        ([NodeClassifier(F, 3, R), NodeClassifier(F, 3, R, negative_slope=0.1)], "got `negative_slope` 0.2 and 0.1"),
        (
            [NodeClassifier(9, 3, R, graph=random_graph(9, 60, R, seed=s), batch_norm=True) for s in (0, 0, 1)],
            "got different `conv1",
        ),
    ],
)
def test_stacking_incompatible_models_is_refused(others, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        stack(others)


def test_stack_refuses_other_modules_and_features_of_another_number_of_members():
    with pytest.raises(TypeError, match="takes NodeClassifiers or GraphClassifiers, got a RGATConv"):
        stack([RGATConv(F, 3, R)])
    with pytest.raises(ValueError, match=re.escape("`x` must have one entry per member, [N, 2, F], got [9, 3, 5]")):
        stack([NodeClassifier(F, 3, R)] * 2)(torch.randn(N, 3, F), random_graph(N, 60, R))
    x = torch.randn(N, 2, F)
    x[3, 1, 0] = torch.nan
    with pytest.raises(ValueError, match="`x` must not contain NaN"):
        stack([NodeClassifier(F, 3, R)] * 2)(x, random_graph(N, 60, R))


@pytest.mark.parametrize("name", ["reference", "torch", "numba"])
@pytest.mark.parametrize("options", FAMILIES)
def test_a_batch_without_graphs_has_no_logits(name, options):
    data = load("molecules")
    model = GraphClassifier(data.in_channels, 6, 5, hidden_channels=16, **options).eval()
    with ops.backend(name), torch.no_grad():
        for constant in (False, True):
            assert model(*data.graphs.batch(data.test[:0]), constant_attention=constant).shape == (0, 6, 2)


def test_models_without_a_stacked_form_are_refused():
    model = NodeClassifier(5, 3, 4, embedding_channels=2)
    with pytest.raises(ValueError, match="node embeddings, of which there are no stacks"):
        stack([model, model])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"layer": "rgcn"},
        {"scope": "across", "score": "multiplicative", "heads": 2},
        {"score": "dynamic", "edge_dim": 3},
        {"feature_dropout": 0.4},
    ],
)
@pytest.mark.parametrize("featureless", [True, False])
def test_receptive_fields_give_the_same_logits_and_gradients_as_the_whole_graph(options, featureless):
    graph = random_graph(30, 90, 4, edge_dim=options.get("edge_dim")).with_self_loops()
    given = {"in_channels": 30, "graph": graph} if featureless else {"in_channels": 6}
    torch.manual_seed(0)
    model = NodeClassifier(num_classes=3, num_relations=5, hidden_channels=8, **given, **options).double()
    assert model.depends_on_edges_alone
    x, nodes = None if featureless else torch.randn(30, 6).double(), torch.tensor([4, 7, 7])
    fields = graph.receptive_fields(nodes)
    assert fields[1].num_edges < fields[0].num_edges < graph.num_edges
    weight, found = torch.randn(3, 3).double(), []
    for edges in (graph, fields):
        model.zero_grad()
        for conv in (model.conv1, model.conv2):
            conv.dropout_state.zero_()
        logits = model(x, edges)[nodes]
        (logits * weight).sum().backward()
        found.append([logits.detach(), *(parameter.grad for parameter in model.parameters())])
    for whole, part in zip(*found, strict=True):
        assert_close(part, whole, 1e-12)


def test_receptive_fields_of_no_node_and_of_all_nodes():
    graph = random_graph(9, 60, 4)
    assert [field.num_edges for field in graph.receptive_fields(torch.empty(0, dtype=torch.long))] == [0, 0]
    assert [field.num_edges for field in graph.receptive_fields(torch.arange(9), layers=3)] == [60, 60, 60]


def test_batch_norm_and_edge_dropout_make_nodes_depend_on_more_than_their_receptive_field():
    for option in ({"batch_norm": True}, {"edge_dropout": 0.1}):
        for model in (NodeClassifier(6, 3, 4, **option), stack([NodeClassifier(6, 3, 4, **option)]).model):
            assert not model.depends_on_edges_alone
            assert model.eval().depends_on_edges_alone
    assert stack([NodeClassifier(6, 3, 4)]).model.depends_on_edges_alone


def test_a_stack_runs_no_hooks_of_a_member_and_draws_no_parameters():
    graph, calls = random_graph(9, 60, 4), []
    models = [NodeClassifier(5, 2, 4) for _ in range(2)]
    models[0].conv1.register_forward_hook(lambda *_: calls.append(1))
    together = stack(models)
    together(torch.randn(9, 5), graph)
    assert calls == []
    with pytest.raises(RuntimeError, match="a stack cannot draw new parameters"):
        together.model.conv1.reset_parameters()
    assert together.model.conv1.plan(graph).alternative == "project"
    assert repr(together.model.conv1).startswith("StackedRGATConv(\n  members=2, 5, 16")
