"""Test depth, residual connections, layer normalisation, jumping knowledge and mixed scopes of both models."""

import copy

import pytest
import torch
from helpers import random_graph
from torch.export import Dim
from torch.nn.functional import layer_norm
from torch.utils import _pytree as pytree

from rgat import RelationalGraph
from rgat.models import GraphClassifier, NodeClassifier, stack
from rgat.nn import FeatureRows, RGATConv

N, R, F, C, HIDDEN = 9, 4, 5, 3, 8
DEEP = {"num_layers": 3, "hidden_channels": HIDDEN, "heads": 2}


@pytest.fixture
def graph():
    return random_graph(N, 60, R, seed=1)


@pytest.fixture
def x():
    return torch.randn(N, F)


def test_a_residual_model_adds_each_hidden_layers_input(graph, x):
    model = NodeClassifier(F, C, R, residual=True, **DEEP)
    h1 = torch.relu(model.conv1(x, graph)) + x @ model.residual1.weight.t()
    h2 = torch.relu(model.conv2(h1, graph)) + h1
    torch.testing.assert_close(model(x, graph), model.conv3(h2, graph))


def test_a_featureless_residual_model_has_no_input_to_add_to_its_first_layer(graph):
    model = NodeClassifier(N, C, R, residual=True, graph=graph, **DEEP)
    h1 = torch.relu(model.conv1(None, graph))
    h2 = torch.relu(model.conv2(h1, graph)) + h1
    torch.testing.assert_close(model(None, graph), model.conv3(h2, graph))
    unknown = NodeClassifier(N, C, R, residual=True, **DEEP)
    for given in (None, torch.arange(N)):
        with pytest.raises(ValueError, match="`residual` without dense features needs a model built with `graph=`"):
            unknown(given, graph)


def test_features_read_from_a_table_have_a_residual_too(graph):
    model = NodeClassifier(F, C, R, residual=True)
    table, rows = torch.randn(50, F), torch.randperm(50)[:N]
    torch.testing.assert_close(model(FeatureRows(table, rows), graph), model(table[rows], graph))


def test_layer_normalisation_stands_before_each_relu(graph, x):
    model = NodeClassifier(F, C, R, layer_norm=True, batch_norm=True, **DEEP).eval()
    h = x
    for number in (1, 2):
        norm = getattr(model, f"layer_norm{number}")
        torch.nn.init.normal_(norm.weight)
        torch.nn.init.normal_(norm.bias)
        out = getattr(model, f"norm{number}")(getattr(model, f"conv{number}")(h, graph))
        h = torch.relu(layer_norm(out, (HIDDEN,), norm.weight, norm.bias))
    torch.testing.assert_close(model(x, graph), model.conv3(h, graph))


def test_jumping_knowledge_adds_the_outputs_of_all_layers_to_the_logits(graph, x):
    model = NodeClassifier(F, C, R, jumping_knowledge=True, **DEEP)
    h1 = torch.relu(model.conv1(x, graph))
    h2 = torch.relu(model.conv2(h1, graph))
    logits = model.conv3(h2, graph) + h1 @ model.jump1.weight.t() + h2 @ model.jump2.weight.t()
    torch.testing.assert_close(model(x, graph), logits)
    shallow = NodeClassifier(F, C, R, jumping_knowledge=True, residual=True, num_layers=1)
    torch.testing.assert_close(shallow(x, graph), shallow.conv1(x, graph))


@pytest.mark.parametrize("num_layers", [1, 2, 3])
@pytest.mark.parametrize("jumping_knowledge", [False, True])
def test_a_wide_map_adds_the_features_to_the_logits(graph, x, num_layers, jumping_knowledge):
    options = DEEP | {"num_layers": num_layers, "jumping_knowledge": jumping_knowledge}
    torch.manual_seed(0)
    narrow = NodeClassifier(F, C, R, **options)
    model = NodeClassifier(F, C, R, wide=True, **options)
    model.load_state_dict(narrow.state_dict(), strict=False)
    torch.testing.assert_close(model(x, graph), narrow(x, graph))  # it begins with zeros
    torch.nn.init.normal_(model.jump0.weight)
    torch.testing.assert_close(model(x, graph), narrow(x, graph) + x @ model.jump0.weight.t())
    nodes = torch.tensor([2, 5])
    torch.testing.assert_close(model(x, graph.receptive_fields(nodes, num_layers))[nodes], model(x, graph)[nodes])


def test_a_wide_map_needs_features(graph):
    for options in ({"graph": graph}, {"embedding_channels": 4}):
        assert not hasattr(NodeClassifier(N, C, R, wide=True, **options), "jump0")
    model = NodeClassifier(N, C, R, wide=True)
    with pytest.raises(ValueError, match="`wide` without dense features needs such features; leave it out"):
        model(None, graph)


@pytest.mark.parametrize("option", ["residual", "layer_norm", "jumping_knowledge", "wide"])
def test_options_that_are_off_leave_parameters_and_description_alone(option):
    models = []
    for options in ({}, {option: False}, {option: True}):
        torch.manual_seed(0)
        models.append(NodeClassifier(F, C, R, **DEEP, **options))
    off, also_off, on = models
    assert str(off) == str(also_off) != str(on)
    assert vars(off).keys() == vars(also_off).keys()
    assert all(torch.equal(a, b) for a, b in zip(off.parameters(), also_off.parameters(), strict=True))


def test_every_parameter_learns(graph, x):
    model = NodeClassifier(
        F, C, R, residual=True, layer_norm=True, jumping_knowledge=True, wide=True, identity=True, graph=graph, **DEEP
    )
    (model(x, graph) * torch.randn(N, C)).sum().backward()
    assert all(parameter.grad.abs().max() > 0 for parameter in model.parameters())


def test_receptive_fields_give_the_same_logits_and_gradients(graph, x):
    options = {"residual": True, "layer_norm": True, "jumping_knowledge": True, "wide": True, **DEEP}
    model, nodes = NodeClassifier(F, C, R, **options).double(), torch.tensor([2, 5])
    assert model.depends_on_edges_alone
    cotangent, gradients = torch.randn(2, C), []
    for graphs in (graph, graph.receptive_fields(nodes, 3)):
        model.zero_grad()
        (model(x.double(), graphs)[nodes] * cotangent).sum().backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    torch.testing.assert_close(*gradients)


def test_models_compile_and_export(graph, x):
    torch.use_deterministic_algorithms(False)
    torch._dynamo.reset()
    model = NodeClassifier(F, C, R, residual=True, layer_norm=True, jumping_knowledge=True, wide=True, **DEEP)
    twin, prepared, cotangent = copy.deepcopy(model), graph.prepare(), torch.randn(N, C)
    for each in (torch.compile(model, fullgraph=True, backend="aot_eager"), twin):
        (each(x, prepared) * cotangent).sum().backward()
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)
    shapes = [[Dim.AUTO] * leaf.dim() for leaf in (x, *pytree.tree_leaves(prepared))]
    program = torch.export.export(model.eval(), (x, prepared), dynamic_shapes=(shapes[0], shapes[1:]))
    larger, y = random_graph(30, 100, R).prepare(), torch.randn(30, F)
    torch.testing.assert_close(program.module()(y, larger), model(y, larger))


def test_models_with_and_without_residuals_are_not_stacked(graph):
    models = [NodeClassifier(N, C, R, graph=graph, residual=residual) for residual in (True, False)]
    with pytest.raises(ValueError, match="models with and without `residual`"):
        stack(models)


def batch_of_graphs():
    return RelationalGraph.collate([random_graph(n, 4 * n, R, seed=n) for n in (3, 5, 1)]), torch.randn(9, F)


def gathered(h):
    parts = h.split([3, 5, 1])
    return torch.stack([torch.cat([part.mean(0), part.max(0).values]) for part in parts]).tanh()


@pytest.mark.parametrize("num_layers", [1, 3, 4])
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("jumping_knowledge", [False, True])
def test_a_deep_graph_classifier_follows_its_equations(num_layers, residual, jumping_knowledge):
    graph, x = batch_of_graphs()
    options = {"residual": residual, "jumping_knowledge": jumping_knowledge, "layer_norm": True, "batch_norm": True}
    model = GraphClassifier(F, 2, R, hidden_channels=HIDDEN, heads=2, num_layers=num_layers, **options).eval()
    assert model.num_layers == len(model.convs) == num_layers
    h, outputs = x, []
    for number, conv in enumerate(model.convs, start=1):
        norm = getattr(model, f"layer_norm{number}")
        torch.nn.init.normal_(norm.weight)
        torch.nn.init.normal_(norm.bias)
        out = getattr(model, f"norm{number}")(conv(h, graph))
        out = torch.relu(layer_norm(out, (HIDDEN,), norm.weight, norm.bias))
        if residual:
            out = out + (x @ model.residual1.weight.t() if number == 1 else h)
        outputs.append(h := out)
    z = gathered(torch.cat(outputs, 1) if jumping_knowledge else h)
    torch.testing.assert_close(model(x, graph), model.dense2(model.dense1(z).relu()).view(3, 2, 2))


ALL = {"num_layers": 3, "residual": True, "layer_norm": True, "jumping_knowledge": True, "gather_sum": True}


def test_every_parameter_of_a_deep_graph_classifier_learns_and_its_stack_equals_its_members():
    graph, x = batch_of_graphs()
    models = [GraphClassifier(F, 2, R, hidden_channels=HIDDEN, batch_norm=True, **ALL).double() for _ in range(3)]
    together, x, cotangent = stack(models), x.double(), torch.randn(3, 3, 2, 2, dtype=torch.float64)
    logits = together(x, graph)
    (logits * cotangent).sum().backward()
    for model, ours, cot, unstacked in zip(models, logits, cotangent, together.unstack(), strict=True):
        expected = model(x, graph)
        torch.testing.assert_close(ours, expected)
        (expected * cot).sum().backward()
        assert all(parameter.grad.abs().max() > 0 for parameter in model.parameters())
        assert unstacked.state_dict().keys() == model.state_dict().keys()
    for name, parameter in together.model.named_parameters():
        single = torch.stack([model.get_parameter(name).grad for model in models])
        torch.testing.assert_close(parameter.grad, single, msg=name)


@pytest.mark.parametrize("option", ["residual", "layer_norm", "jumping_knowledge"])
def test_options_that_are_off_leave_a_graph_classifier_alone(option):
    models = []
    for options in ({}, {option: False, "num_layers": 2}, {option: True}):
        torch.manual_seed(0)
        models.append(GraphClassifier(F, 2, R, **options))
    off, also_off, on = models
    assert str(off) == str(also_off) != str(on)
    assert all(torch.equal(a, b) for a, b in zip(off.parameters(), also_off.parameters(), strict=True))


def test_a_deep_graph_classifier_compiles_and_refuses_what_it_cannot_do():
    torch.use_deterministic_algorithms(False)
    torch._dynamo.reset()
    graph, x = batch_of_graphs()
    model, prepared = GraphClassifier(F, 2, R, hidden_channels=HIDDEN, **ALL).eval(), graph.prepare()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, prepared), model(x, graph))
    with pytest.raises(ValueError, match="`residual` without dense features needs them; leave it out"):
        GraphClassifier(9, 2, R, residual=True)(torch.arange(9), graph)
    with pytest.raises(ValueError, match="`num_layers` must be an integer of at least 1, got 0"):
        GraphClassifier(F, 2, R, num_layers=0)


def test_mixed_scopes_are_half_within_and_half_across(graph, x):
    conv = RGATConv(F, 2, R, heads=4, scope="mixed")
    assert conv.scope == ("within", "within", "across", "across")
    spelt_out = RGATConv(F, 2, R, heads=4, scope=["within", "within", "across", "across"])
    spelt_out.load_state_dict(conv.state_dict())
    assert torch.equal(conv(x, graph), spelt_out(x, graph))
    assert GraphClassifier(F, 2, R, heads=2, scope="mixed").conv2.scope == ("within", "across")
    for heads in (1, 3):
        with pytest.raises(ValueError, match=f'`scope="mixed"` needs an even number of heads, .*, got {heads}'):
            RGATConv(F, 2, R, heads=heads, scope="mixed")
