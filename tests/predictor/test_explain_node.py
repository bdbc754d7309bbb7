import dataclasses
import itertools
import json
import math

import pytest
import torch
from helpers import random_graph

import rgat
from rgat import RelationalGraph
from rgat.models import NodeClassifier
from rgat.nn import RGATConv
from rgat.predictor import variants
from rgat.predictor.attention_flow import flow, layer_attention
from rgat.predictor.ensemble import Calibration, Ensemble
from rgat.predictor.explain_node import agreement
from rgat.predictor.text import node_rows, node_sentences
from rgat.predictor.variants import logits_at_equal_share

PERSON = "http://institute.example/person/3"


@pytest.fixture(scope="module")
def explained(node_model):
    return node_model.explain(PERSON, top=6)


def test_walks_are_credited_to_the_edge_they_start_with():
    # 0 -> 1 -> 2, and self-loops of 1 and 2.
    edge_index = torch.tensor([[0, 1, 1, 2], [1, 2, 1, 2]])
    graph = RelationalGraph(edge_index, torch.tensor([0, 0, 1, 1]), num_nodes=3, num_relations=2)
    first, second = torch.tensor([0.7, 0.4, 0.3, 0.6]), torch.tensor([0.1, 0.8, 0.9, 0.2])
    shares = flow([(first, second)], graph, torch.tensor([2]))
    # 0-1-2: .7 * .8; 1-1-2 counts for 1-2: .3 * .8; 1-2-2: .4 * .2; 2-2-2 is its own: .6 * .2
    expected = torch.tensor([0.56, 0.24 + 0.08, 0, 0]).double()
    assert torch.allclose(shares.edges, expected / 1.0)
    assert torch.allclose(shares.own, torch.tensor([0, 0, 0.12]).double())


def test_the_receptive_field_alone_gives_the_same_logits(node_model):
    data, node = node_model.data, node_model.find(PERSON)
    graph, _ = data.graph.receptive_fields(torch.tensor([node]))
    assert node_model.explain(PERSON).num_edges == graph.num_edges < data.graph.num_edges
    logits = node_model.member_logits(data.x, graph)
    assert torch.allclose(logits[:, node], node_model.logits[:, node], atol=1e-5)


@pytest.mark.parametrize("model", ["RGCN", "additive ARGAT"])
def test_shares_sum_to_one_and_equal_shares_are_those_of_constant_attention(node_data, model):
    predictor = rgat.fit(node_data, model=model, max_epochs=3, patience=3, comparison=False)
    graph, nodes = node_data.graph, torch.tensor([5])
    shares, equal = (
        flow(layer_attention(predictor, None, graph, constant), graph, nodes) for constant in (False, True)
    )
    assert float(shares.edges.sum() + shares.own.sum()) == pytest.approx(1)
    assert torch.allclose(shares.edges, equal.edges) == (model == "RGCN")


def test_the_effect_is_what_happens_without_the_triple(node_model, explained):
    reason = explained.reasons[0]
    data = node_model.data
    base = reason.relation.removeprefix("inverse of ")
    ends = {node_model.find(reason.source), node_model.find(reason.target)}
    names = [data.relation_names.index(name) for name in (base, f"inverse of {base}")]
    source, target = data.graph.edge_index.tolist()
    kept = [
        edge
        for edge, (a, b, r) in enumerate(zip(source, target, data.graph.edge_type.tolist(), strict=True))
        if not ({a, b} == ends and r in names)
    ]
    assert len(kept) == data.graph.num_edges - 2
    logits = node_model.member_logits(data.x, data.graph.with_edges(torch.tensor(kept)))
    node = node_model.find(PERSON)
    after = node_model.calibration.probabilities(logits.double().mean(0))[node].max()
    assert float(after) - explained.probability == pytest.approx(reason.effect, abs=1e-5)


def test_an_explanation_names_the_node_and_its_prediction(tmp_path, node_model, explained):
    assert explained.node == f"<{PERSON}>"
    assert explained.predicted == str(node_model.predict([PERSON]).labels[0])
    assert explained.probability == pytest.approx(node_model.predict([PERSON]).probabilities.max(), abs=1e-6)
    assert explained.label in node_model.data.classes
    assert len(explained.reasons) == 6
    assert sum(explained.relations.values()) + explained.own == pytest.approx(1)
    explained.save(tmp_path / "e.json")
    assert json.loads((tmp_path / "e.json").read_text())["node"] == explained.node


def test_relations_that_matter_have_larger_effects(node_model):
    importance = node_model.explain()
    assert importance.nodes == 48
    assert len(importance.attention) == 21
    assert sum(importance.attention.values()) < 1
    effect = {name.strip("<>").rpartition("/")[2]: value for name, value in importance.effect.items()}
    assert min(effect["researches"], effect["worksOn"]) < effect["phone"] - 0.01
    assert set(importance.changed) == set(importance.effect)


def test_on_a_planted_set_the_planted_edge_comes_first():
    data = rgat.data.load("planted-rivals")
    options = {"learning_rate": 0.05, "feature_dropout": 0.0, "kernel_l2_1": 0.0, "kernel_l2_2": 0.0}
    predictor = rgat.fit(data, model="additive ARGAT", comparison=False, **options)
    right = predictor.logits.mean(0).argmax(1) == data.labels
    loud = data.x[:, 4] > 0
    nodes = [node for node in data.test[:40].tolist() if right[node]]
    first = [predictor.explain(data.node_names[node], top=1).reasons[0].source for node in nodes]
    assert len(nodes) > 30
    assert sum(bool(loud[predictor.find(name)]) for name in first) >= 0.9 * len(nodes)


def test_an_edge_that_the_model_ignores_comes_first():
    data = rgat.data.load("planted-needle")
    predictor = rgat.fit(data, seed=0, comparison=False)  # this seed learns what all but the loud one say
    loud = data.x[:, 4] > 0
    right = predictor.logits.mean(0).argmax(1) == data.labels
    nodes = [node for node in data.test[:40].tolist() if right[node]]
    firsts = [predictor.explain(data.node_names[node], top=8).reasons[0] for node in nodes]
    ignored = [first for first in firsts if loud[predictor.find(first.source)] and first.attention < first.equal_share]
    assert len(ignored) >= 0.9 * len(nodes)
    assert all(abs(first.log_odds) < abs(first.choice) for first in ignored)


@pytest.mark.parametrize(
    "more", [{}, {"residual": True, "layer_norm": True}, {"jumping_knowledge": True, "residual": True}]
)
def test_an_equal_share_for_each_edge_is_constant_attention(more):
    graph = random_graph(9, 30, 3)
    for options in ({}, {"heads": 2, "scope": ["within", "across"]}, {"score": "multiplicative", "head_merge": "mean"}):
        conv, x = RGATConv(5, 4, 3, **options), torch.randn(9, 5)
        out, (_, attention) = conv(x, graph, return_attention_weights=True)
        assert torch.allclose(conv.combine(x, graph, attention), out, atol=1e-6)
    calibration = Calibration(torch.ones(()), torch.zeros(3))
    model = NodeClassifier(5, 3, 3, layer="rgcn", **more)
    assert torch.equal(
        logits_at_equal_share(Ensemble([model], {}, calibration, {}), x, graph, torch.tensor([0]))[0], model(x, graph)
    )
    model = NodeClassifier(5, 3, 3, **more).eval()
    pair = RelationalGraph(torch.tensor([[0, 1], [2, 2]]), torch.tensor([0, 0]), num_nodes=9, num_relations=3)
    expected = model(x, pair, constant_attention=True)
    logits = logits_at_equal_share(Ensemble([model], {}, calibration, {}), x, pair, torch.tensor([1]))
    assert torch.allclose(logits[0], expected, atol=1e-6)


@pytest.mark.parametrize("most_edges", [1, 70, 50_000])  # copies in one pass: 1, some, all
@pytest.mark.parametrize("layer", ["rgat", "rgcn"])
def test_variants_side_by_side_equal_each_alone(monkeypatch, most_edges, layer):
    monkeypatch.setattr(variants, "MOST_EDGES", most_edges)
    graph, x, node = random_graph(12, 30, 3), torch.randn(12, 5), 4
    options = {"heads": 2, "scope": ["within", "across"]} if layer == "rgat" else {}
    members = [NodeClassifier(5, 3, 3, layer=layer, hidden_channels=8, **options).eval() for _ in range(2)]
    ensemble = Ensemble(members, {}, Calibration(torch.ones(()), torch.zeros(3)), {})
    field = graph.receptive_fields(torch.tensor([node]))[0]
    found = variants.Variants(ensemble, x, field, node)

    def alone(x, graph):
        return ensemble.probabilities(ensemble.member_logits(x, graph)[:, node])

    edges = list(range(field.num_edges))
    removed = [torch.tensor([edge, (edge + 3) % len(edges)]) for edge in edges]
    masks = [~torch.isin(torch.tensor(edges), each) for each in removed]
    expected = torch.stack([alone(x, field.with_edges(mask)) for mask in masks])
    assert torch.allclose(found.without_edges(removed), expected, atol=1e-6)
    expected = torch.stack(
        [ensemble.probabilities(logits_at_equal_share(ensemble, x, field, torch.tensor([e]))[:, node]) for e in edges]
    )
    assert torch.allclose(found.at_equal_share(edges), expected, atol=1e-6)
    places = [(int(near), slice(1, 3)) for near in field.edge_index[0]]
    changed = [x.clone() for _ in places]
    for features, (near, place) in zip(changed, places, strict=True):
        features[near, place] = 0
    expected = torch.stack([alone(features, field) for features in changed])
    assert torch.allclose(found.without_columns(places), expected, atol=1e-6)
    assert expected.std(0).max() > 1e-4


def test_rank_correlation():
    assert agreement([1, 2, 3, 4], [10, 20, 30, 40]) == pytest.approx(1)
    assert agreement([1, 2, 3, 4], [4, 3, 2, 1]) == pytest.approx(-1)
    assert agreement([1, 2, 3, 4], [1, 2, 2, 4]) == pytest.approx(0.9486833)
    assert agreement([1, 2], [1, 2]) is None
    assert agreement([1, 1, 1], [1, 2, 3]) is None


def test_effects_of_relations_are_given_in_log_odds_too(node_model):
    """With logits so large that probabilities are saturated, only log-odds tell relations apart."""
    sharp = Calibration(node_model.calibration.slope * 30, node_model.calibration.intercept)
    ranked = dataclasses.replace(node_model, calibration=sharp).explain()
    assert ranked.log_odds.keys() == ranked.effect.keys()
    assert max(map(abs, ranked.log_odds.values())) > 10 * max(map(abs, ranked.effect.values())) > 0


@pytest.mark.parametrize("num_layers", [1, 2, 3])
def test_the_flow_of_attention_is_the_sum_over_all_walks(num_layers):
    torch.manual_seed(0)
    graph = random_graph(5, 12, 2).with_self_loops()
    edges, end = list(zip(*graph.edge_index.tolist(), strict=True)), 3
    layers = [torch.rand(graph.num_edges).double() for _ in range(num_layers)]
    credit, own = torch.zeros(graph.num_edges).double(), torch.zeros(graph.num_nodes).double()
    count = 0
    for walk in itertools.product(range(len(edges)), repeat=num_layers):
        steps = itertools.pairwise(walk)
        if edges[walk[-1]][1] != end or any(edges[one][1] != edges[two][0] for one, two in steps):
            continue
        count += 1
        weight = math.prod(float(layer[edge]) for layer, edge in zip(layers, walk, strict=True))
        first = next((edge for edge in walk if edges[edge][0] != edges[edge][1]), None)
        if first is None:
            own[end] += weight
        else:
            credit[first] += weight
    shares, total = flow([layers], graph, torch.tensor([end])), credit.sum() + own.sum()
    assert count > num_layers
    torch.testing.assert_close(shares.edges, credit / total)
    torch.testing.assert_close(shares.own, own / total)


@pytest.mark.parametrize("options", [{"num_layers": 1}, {"num_layers": 3, "heads": 2}, {"num_layers": 4}])
def test_models_of_any_depth_are_explained(node_data, options):
    predictor = rgat.fit(node_data, max_epochs=2, patience=2, comparison=False, **options)
    node, layers = predictor.find(PERSON), options["num_layers"]
    explanation = predictor.explain(PERSON, top=4)
    field = node_data.graph.receptive_fields(torch.tensor([node]), layers)[0]
    assert explanation.num_edges == field.num_edges
    assert sum(explanation.relations.values()) + explanation.own == pytest.approx(1)
    (attentions,) = layer_attention(predictor, None, field.prepare())
    assert len(attentions) == layers
    reason = next(each for each in explanation.reasons if abs(each.effect) > 1e-6)
    removed = (predictor.find(reason.source), predictor.find(reason.target))
    base = [node_data.relation_names[relation] for relation in node_data.base_relation]
    name = base[node_data.relation_names.index(reason.relation)]
    kept = [
        base[relation] != name or (source, target) not in (removed, removed[::-1])
        for (source, target), relation in zip(
            node_data.graph.edge_index.t().tolist(), node_data.graph.edge_type.tolist(), strict=True
        )
    ]
    logits = predictor.member_logits(None, node_data.graph.with_edges(torch.tensor(kept)))
    after = predictor.probabilities(logits[:, node])[list(node_data.classes).index(explanation.predicted)]
    assert float(after) - explanation.probability == pytest.approx(reason.effect, abs=1e-5)
    assert set(predictor.explain().attention) <= set(base)


@pytest.mark.parametrize(
    "options", [{"embedding_channels": 8}, {"residual": True, "jumping_knowledge": True, "layer_norm": True}]
)
def test_a_model_with_other_options_is_explained(node_data, options):
    predictor = rgat.fit(node_data, max_epochs=1, patience=1, comparison=False, **options)
    explanation = predictor.explain(PERSON)
    assert explanation.predicted in node_data.classes
    assert sum(explanation.relations.values()) + explanation.own == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize(("probability", "effect"), [(0.98, "effect, points"), (0.995, "log-odds")])
def test_a_narrow_table_has_the_effect_that_is_not_saturated(node_model, probability, effect):
    explanation = dataclasses.replace(node_model.explain(PERSON, top=4), probability=probability)
    columns, rows = node_rows(explanation)
    assert node_rows(explanation, wide=False) == (
        ("relation", "source", "target", "attention", effect),
        [(*row[:4], row[columns.index(effect)]) for row in rows],
    )
    said = " ".join(node_sentences(explanation))
    assert ("read the effects as changes of its log-odds" in said) == (effect == "log-odds")
