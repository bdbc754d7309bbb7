import dataclasses

import pytest
import torch
from helpers import assert_matches_reference, random_graph

from rgat import RelationalGraph, ops
from rgat.nn import RGATConv, RGCNConv
from rgat.ops.planner import ALTERNATIVES

GRAPH = random_graph(12, 80, 4)


@pytest.mark.parametrize("alternative", ALTERNATIVES)
@pytest.mark.parametrize("num_bases", [None, 3])
@pytest.mark.parametrize("layer", ["rgat", "rgcn"])
def test_every_alternative_agrees_with_the_reference(layer, num_bases, alternative):
    options = {"num_bases": num_bases, "edge_dropout": 0.4}
    if layer == "rgat":
        conv = RGATConv(5, 3, 4, heads=2, scope=["within", "across"], score="multiplicative", **options)
    else:
        conv = RGCNConv(5, 3, 4, **options)
    plan = alternative
    if alternative == "per relation":
        plan = ops.Plan(alternative, (True, False, True, False))
    for dtype in (torch.float64, torch.float32):
        x = torch.randn(12, 5)
        assert_matches_reference(conv, x, GRAPH, dtype, backend="numba", plan=plan, attention=layer == "rgat")


def test_an_aggregated_relation_of_a_layer_with_edge_features_and_one_head_agrees():
    graph = random_graph(12, 80, 4, edge_dim=2)
    for heads in (1, 3):
        conv = RGATConv(40, 20, 4, heads=heads, edge_dim=2)
        plan = ops.Plan("per relation", (False, True, True, False))
        assert_matches_reference(conv, torch.randn(12, 40), graph, backend="numba", plan=plan)


def test_a_plan_can_be_read_and_lists_its_costs():
    conv = RGATConv(5, 3, 4, heads=2, num_bases=2)
    plan = conv.plan(GRAPH)
    assert plan.alternative == min(plan.costs, key=plan.costs.get)
    assert set(plan.costs) >= {"project", "aggregate"}
    text = str(plan)
    assert f"-> {plan.alternative}" in text
    assert text.count(" ms") == len(plan.costs)


def test_a_plan_is_made_once_per_graph_and_sizes():
    graph = random_graph(12, 80, 4)
    conv = RGATConv(5, 3, 4)
    assert conv.plan(graph) is conv.plan(graph)
    assert conv.plan(graph) == RGATConv(5, 3, 4).plan(graph)
    assert len(graph.plans) == 1
    with torch.no_grad():
        conv.plan(graph)
    assert len(graph.plans) == 2


def test_impossible_plans_are_refused():
    conv = RGATConv(5, 3, 4, feature_dropout=0.5)
    with pytest.raises(ValueError, match='the plan "aggregate" is not possible here'):
        conv.plan(GRAPH, "aggregate")
    with pytest.raises(ValueError, match=r'"aggregate" is not possible here .*a score that is not dynamic'):
        RGATConv(5, 3, 4, score="dynamic").plan(GRAPH, "aggregate")
    with pytest.raises(ValueError, match=r'`alternative` must be .*did you mean "project"\?'):
        conv.plan(GRAPH, "projekt")
    with ops.backend("torch"), pytest.raises(ValueError, match="not possible"):
        RGATConv(5, 3, 4).plan(GRAPH, "aggregate")
    assert conv.eval().plan(GRAPH, "aggregate").alternative == "aggregate"


def test_a_relation_with_few_targets_is_aggregated_first_and_one_with_few_sources_projected_first():
    many, few = torch.arange(2000), torch.arange(2000) % 3
    source, target = torch.cat([many, few]), torch.cat([few, many])
    relation = torch.arange(2).repeat_interleave(2000)
    graph = RelationalGraph(torch.stack([source, target]), relation, num_nodes=2000, num_relations=2)
    plan = RGCNConv(64, 64, 2).plan(graph)
    assert plan.alternative == "per relation"
    assert plan.aggregated == (True, False)


def test_a_compiled_layer_uses_the_plan_made_in_eager_mode_and_makes_none():
    graph = random_graph(12, 80, 4).prepare()
    conv = RGATConv(5, 3, 4)
    x = torch.randn(12, 5)
    key, plan = next(iter((conv.plan(graph), graph.plans)[1].items()))
    graph.plans[key] = dataclasses.replace(plan, alternative="aggregate", aggregated=(True,) * 4)
    seen = []

    def watch(module, example_inputs):
        seen.extend(str(node.target) + str(node.args) for node in module.graph.nodes if "rgat" in str(node.target))
        return module

    out = torch.compile(conv, fullgraph=True, backend=watch)(x, graph)
    assert torch.allclose(out, conv(x, graph, plan=conv.plan(graph, "project")), atol=1e-6)
    assert any("convolve" in text and "[True, True, True, True]" in text for text in seen)
    fresh = random_graph(12, 80, 4, seed=3).prepare()
    torch.compile(conv, fullgraph=True, backend="eager")(x, fresh)
    assert fresh.plans == {}
