"""FEAT, WL, RDF2Vec and R-GCN: their equations on graphs small enough to work out by hand, then on the benchmarks."""

import dataclasses
import os
import sys
import tracemalloc
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rgat import RelationalGraph, memory
from rgat.baselines import NODE_BASELINES, feat, min_max, rdf2vec, rgcn, svm, wl
from rgat.data import NodeData, load
from rgat.models import NodeClassifier

needs_files = pytest.mark.skipif("RGAT_DATA" not in os.environ, reason="RGAT_DATA is not set: no benchmark files")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


def two_kinds(size=20):
    """People who like the one or the other thing, and know each other; what they like tells their class."""
    generator = torch.Generator().manual_seed(0)
    likes = torch.stack([torch.arange(size), size + torch.arange(size) % 2])
    knows = torch.randint(size, (2, 2 * size), generator=generator)
    graph = RelationalGraph(
        torch.cat([likes, knows], dim=1),
        torch.tensor([0] * size + [1] * 2 * size),
        num_nodes=size + 2,
        num_relations=2,
    )
    people = torch.randperm(size, generator=generator)
    return NodeData(
        name="two kinds",
        graph=graph.with_inverses().with_self_loops(),
        x=None,
        labels=torch.cat([torch.arange(size) % 2, torch.tensor([-1, -1])]),
        classes=("even", "odd"),
        train=people[:14],
        valid=people[14:14],
        test=people[14:],
        node_names=tuple(f"<n{i}>" for i in range(size + 2)),
        relation_names=("likes", "knows", "inverse of likes", "inverse of knows", "self"),
        provenance={"relations": 2},
    )


def test_the_original_triples_have_no_inverses_and_no_loops():
    triples = svm.original_triples(two_kinds())
    assert triples.shape == (60, 3)
    assert set(triples[:, 1]) == {0, 1}
    assert triples[0].tolist() == [0, 0, 20]


def test_feat_counts_outgoing_then_incoming_edges_per_relation():
    triples = np.array([[0, 0, 1], [0, 0, 2], [1, 1, 0], [2, 0, 0]])
    counts = feat.relation_counts(triples, np.array([0, 3, 2]), 2)
    assert counts.toarray().tolist() == [[2, 0, 1, 1], [0, 0, 0, 0], [1, 0, 1, 0]]


def gram(triples, instances, num_nodes, depth, num_features=None):
    features = wl.subtree_counts(np.array(triples), np.array(instances), num_nodes, depth, num_features)
    return svm.linear_kernel(features).astype(int).tolist()


def test_wl_counts_each_label_once_worked_out_by_hand():
    """Instances a and b; a -p-> c -q-> e and b -p-> d.

    Depth 1, a: iteration 0 finds the names I (of all instances), p and c; iteration 1 the pairs (I, {p}) and (p, c); 2
    only ((I, {p}), {(p, c)}), for c has not changed. The same of b with d. They share I, p and (I, {p}).
    Depth 2, a: 5 names; 4 pairs of two vertices and two edges that can look further; then a, c and the edge p; a and
    the edge p; a. Of b 3, 2 and 1. They share the same three.
    """
    a, b, c, d, e = range(5)
    triples = [[a, 0, c], [b, 0, d], [c, 1, e]]
    assert gram(triples, [a, b], 5, 1) == [[6, 3], [3, 6]]
    assert gram(triples, [a, b], 5, 2) == [[15, 3], [3, 6]]


def test_wl_keeps_the_first_encounter():
    """Node c is met at depth 1 and again at depth 2: it is one vertex, with the longer walk still before it.

    a -p-> c, a -p-> d, d -q-> c, depth 2: names a, c, d, p twice, q, the p counting 2 x 2 = 4 in a product; iteration 1
    changes a, d and all edges; 2 the vertices a and d and the edge to d; 3 a and that edge; 4 a.
    """
    a, c, d = range(3)
    assert gram([[a, 0, c], [a, 0, d], [d, 1, c]], [a], 3, 2) == [[1 + 1 + 1 + 4 + 1 + 5 + 3 + 2 + 1]]


def slow_labels(triples, instances, v, j, t):
    """Label of vertex v with remaining depth j after t iterations, as nested tuples, and whether t changed it."""
    if t == 0:
        return ("instance" if v in instances else v), True
    own, _ = slow_labels(triples, instances, v, j, t - 1)
    edges = [slow_edge(triples, instances, e, j - 1, t - 1) for e, x in enumerate(triples) if x[0] == v] if j else []
    if not any(changed for _, changed in edges):
        return own, False
    return (own, tuple(sorted(map(repr, (label for label, _ in edges))))), True


def slow_edge(triples, instances, e, j, t):
    if t == 0:
        return f"predicate {triples[e][1]}", True
    own, _ = slow_edge(triples, instances, e, j, t - 1)
    end, changed = slow_labels(triples, instances, triples[e][2], j, t - 1)
    return ((own, end), True) if changed else (own, False)


def slow_gram(triples, instances, depth):
    bags = []
    for start in instances:
        left, front, bag = {start: depth}, [start], {}
        for j in range(depth, 0, -1):
            front = [o for s, _, o in triples if s in front]
            front = [o for o in dict.fromkeys(front) if left.setdefault(o, j - 1) == j - 1]
        for t in range(2 * depth + 1):
            found = [slow_labels(triples, instances, v, j, t) for v, j in left.items()]
            for e, (s, _, _o) in enumerate(triples):
                if left.get(s, 0):
                    found.append(slow_edge(triples, instances, e, left[s] - 1, t))
            for label, changed in found:
                bag[repr(label)] = bag.get(repr(label), 0) + changed
        bags.append(bag)
    return [[sum(n * b.get(label, 0) for label, n in a.items()) for b in bags] for a in bags]


@settings(max_examples=30, deadline=None)
@given(st.sets(st.tuples(st.integers(0, 5), st.integers(0, 1), st.integers(0, 5)), max_size=9), st.integers(1, 2))
def test_wl_equals_its_definition_exactly_and_with_hashes(triples, depth):
    triples, instances = sorted(map(list, triples)), [0, 3]
    array = np.array(triples, dtype=np.int64).reshape(-1, 3)
    expected = slow_gram(triples, instances, depth)
    assert gram(array, instances, 6, depth) == expected
    assert gram(array, instances, 6, depth, num_features=1 << 40) == expected


def test_wl_refuses_what_cannot_be_counted():
    with pytest.raises(ValueError, match="`depth` must be an integer of at least 1, got 0"):
        gram([[0, 0, 1]], [0], 2, 0)
    with pytest.raises(ValueError, match="`num_features` must be an integer of at least 1, got 0"):
        gram([[0, 0, 1]], [0], 2, 1, 0)


PATH = np.array([[0, 0, 1], [0, 1, 2], [1, 0, 3]])  # 0 -> 1 -> 3 and 0 -> 2


def test_walks_are_all_walks_where_there_are_few():
    graph = rdf2vec.adjacency(PATH, 4, reverse=False)
    found = rdf2vec.walks(graph, np.array([0, 3]), 2, 5, np.random.default_rng(0))
    assert found.tolist() == [[0, 0, 1, 0, 3], [0, 1, 2, -1, -1], [3, -1, -1, -1, -1]]
    text = rdf2vec.sentences(graph, np.array([0, 3]), "plain", 2, 5, np.random.default_rng(0))
    assert text == [["n0", "r0", "n1", "r0", "n3"], ["n0", "r1", "n2"], ["n3"]]
    empty = rdf2vec.adjacency(PATH[:0], 4, reverse=True)
    assert rdf2vec.sentences(empty, np.array([2]), "plain", 2, 5, np.random.default_rng(0)) == [["n2"]]


def test_walks_go_backwards_under_other_relations():
    graph = rdf2vec.adjacency(PATH, 4, reverse=True)
    found = rdf2vec.walks(graph, np.array([3]), 2, 5, np.random.default_rng(0))
    assert found.tolist() == [[3, 2, 1, 0, 3], [3, 2, 1, 2, 0]]


def test_walks_are_capped():
    star = np.array([[0, 0, end] for end in range(1, 30)])
    found = rdf2vec.walks(rdf2vec.adjacency(star, 30, False), np.array([0]), 1, 10, np.random.default_rng(0))
    assert 2 <= len(found) <= 10
    assert len(rdf2vec.walks(rdf2vec.adjacency(star, 30, False), np.array([0]), 1, 29, np.random.default_rng(0))) == 29


def test_wl_walks_tell_nodes_by_what_follows_them():
    """Entities 0, 1 and 2 share a name: 0 and 1 point at 4, 2 at nothing, so that iteration 1 sets it apart."""
    graph = rdf2vec.adjacency(np.array([[0, 0, 4], [1, 0, 4], [3, 1, 0], [3, 1, 2]]), 5, False)
    labels = list(rdf2vec.wl_labels(graph, np.array([0, 1, 2]), 2))
    assert labels[0].tolist() == [5, 5, 5, 3, 4]
    for label in labels[1:]:
        assert label[0] == label[1]
        assert len(set(label.tolist())) == 4
    text = rdf2vec.sentences(graph, np.array([3]), "WL", 1, 5, np.random.default_rng(0))
    assert len(text) == 2 * (1 + rdf2vec.WL_ITERATIONS)
    assert all(walk[:2] == ["n3", "r1"] for walk in text)


def test_vectors_are_those_of_skip_gram_with_the_published_settings(monkeypatch):
    asked = {}
    models = rdf2vec.gensim().models

    class Model(models.Word2Vec):
        def __init__(self, text, **options):
            asked.update(options)
            super().__init__(text, **options)

    monkeypatch.setattr(models, "Word2Vec", Model)
    text = [["n3", "r0", "n1"], ["n2", "r0", "n1"]]
    first, again, other = (rdf2vec.embed(text, np.array([2, 3]), seed) for seed in (0, 0, 1))
    assert first.shape == (2, 500)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    published = {"sg": 1, "vector_size": 500, "window": 5, "negative": 25, "epochs": 10}
    assert asked == published | {"min_count": 1, "workers": 1, "seed": 1}


def test_rgcn_is_the_equation_of_its_paper():
    """Node 2 hears 0 and 1 by relation 0 and itself by relation 1: ReLU((w00 + w01) / 2 + w12), then the same again."""
    graph = RelationalGraph(torch.tensor([[0, 1, 2], [2, 2, 2]]), torch.tensor([0, 0, 1]), num_nodes=3, num_relations=2)
    model = NodeClassifier(3, 2, 2, layer="rgcn", hidden_channels=1)
    with torch.no_grad():
        model.conv1.kernel.weight.copy_(torch.tensor([[1.0, 4.0, 0.0], [0.0, 0.0, -2.0]]).view(2, 1, 3, 1))
        model.conv2.kernel.weight.copy_(torch.tensor([[[[9.0, 9.0]]], [[[3.0, -1.0]]]]))
    assert model(None, graph)[2].tolist() == [1.5, -0.5]  # its own hidden unit is 2.5 - 2; those of 0 and 1 are 0


def test_rgcn_takes_the_settings_of_its_paper():
    data = two_kinds()
    outcome = rgcn.run(data, 1)
    assert outcome.config["hidden_channels"] == 16
    assert (outcome.config["epochs"], len(outcome.train_loss), outcome.best_epoch) == (50, 50, 50)
    assert torch.equal(rgcn.run(data, 1).logits["test"], outcome.logits["test"])
    assert not torch.equal(rgcn.run(data, 2).logits["test"], outcome.logits["test"])
    assert outcome.scores(data)["train"] == 1
    penalised = rgcn.run(data, 1, num_bases=2, l2=1.0)
    assert penalised.config["num_bases"] == 2
    assert penalised.train_loss[-1] > 10 * outcome.train_loss[-1]
    assert rgcn.SETTINGS["am"] == {"hidden_channels": 10, "num_bases": 40, "l2": 5e-4}


@pytest.mark.parametrize("name", NODE_BASELINES)
def test_every_system_learns_what_can_be_learned(name, monkeypatch):
    # Sixty walks teach 500 numbers nothing, and all words are so frequent that most would be skipped.
    for option, value in (("vector_size", 16), ("epochs", 100), ("sample", 0)):
        monkeypatch.setitem(rdf2vec.WORD2VEC, option, value)
    data = two_kinds()
    if name == "FEAT":  # all people have the same relations: incoming edges are what is left
        data.labels[:20] = (torch.bincount(data.graph.edge_index[1, :60], minlength=22)[:20] > 2).long()
    options = {"depth": 1, "reverse": (False,)} if name == "RDF2Vec" else {}
    outcome = NODE_BASELINES[name](data, 0, **options)
    scores = outcome.scores(data)
    assert scores["test"] >= 0.8
    assert np.isnan(scores["valid"])
    assert {part: len(logits) for part, logits in outcome.logits.items()} == {"train": 14, "valid": 0, "test": 6}
    assert ("cross-validation on the training part" in outcome.selected_on) == (name != "R-GCN")


def test_rdf2vec_chooses_the_direction_with_the_vectors_of_seed_0(monkeypatch):
    made = []
    monkeypatch.setattr(rdf2vec, "embed", lambda text, entities, seed: made.append(seed) or np.eye(len(entities), 3))
    monkeypatch.setattr(rdf2vec, "WALKS_PER_ENTITY", 3)
    data = two_kinds()
    outcome = rdf2vec.run(data, 5, kind="WL", depth=1, cap=3)
    assert made == [0, 0, 5]
    assert outcome.config["reverse"] is False  # of equals the first
    assert outcome.config["walks"] == "WL"
    assert "`reverse` likewise, with the vectors of seed 0" in outcome.selected_on
    rdf2vec.run(data, 5, kind="WL", depth=1, cap=3)
    assert made == [0, 0, 5]  # kept
    for options, message in (
        ({"kind": "wide"}, '`kind` must be "plain" or "WL"'),
        ({"depth": 0}, "`depth` must be"),
        ({"cap": 0}, "`cap` must be"),
    ):
        with pytest.raises(ValueError, match=message):
            rdf2vec.run(data, **options)


def many_labelled(size):
    people = torch.randperm(size, generator=torch.Generator().manual_seed(1))
    return dataclasses.replace(two_kinds(size), train=people[: size // 2], test=people[size // 2 :])


def test_many_labelled_nodes_need_no_matrix_of_their_products():
    data = many_labelled(6_000)
    tracemalloc.start()
    try:
        outcome = wl.run(data, depths=(1,), costs=(1.0,), num_features=1 << 20)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 6_000**2 * 8 / 4, "a matrix of products alone would be four times as large"
    assert outcome.scores(data)["test"] == 1.0


def test_feat_takes_memory_linear_in_the_labelled_nodes():
    """The matrix of products of 33,423 nodes would take 8.9 GB."""
    data = many_labelled(33_423)
    tracemalloc.start()
    try:
        feat.run(data, costs=(1.0,))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 200e6


@pytest.mark.parametrize("most", [1_000, 10])
def test_a_machine_for_which_memory_is_short_says_so_before_it_takes_it(monkeypatch, most):
    monkeypatch.setattr(svm, "MOST_PRODUCTS", most)
    monkeypatch.setattr(memory, "free_memory", lambda device: 1000)
    with pytest.raises(ValueError, match=r"it may take 0\.0 GiB of memory, and 0\.0 GiB are free"):
        feat.run(many_labelled(200))


def test_features_are_classified_as_their_products_are(monkeypatch):
    data = many_labelled(200)
    for most in (1_000, 10):
        monkeypatch.setattr(svm, "MOST_PRODUCTS", most)
        outcome = wl.run(data, depths=(1,))
        assert outcome.scores(data)["test"] == 1.0
        assert outcome.config["cross_validation_accuracy"] == 1.0


def test_settings_that_are_given_are_not_called_selected():
    outcome = wl.run(two_kinds(), depths=(2,), costs=(10.0,))
    assert outcome.selected_on == "nothing: the settings are given"
    assert (outcome.config["depth"], outcome.config["iterations"], outcome.config["C"]) == (2, 4, 10.0)


def test_test_labels_have_no_influence():
    data = two_kinds()
    before = wl.run(data)
    data.labels[data.test] = 1 - data.labels[data.test]
    after = wl.run(data)
    assert torch.equal(before.logits["test"], after.logits["test"])
    assert before.config == after.config


def test_a_class_that_training_lacks_is_never_named():
    data = two_kinds()
    object.__setattr__(data, "classes", ("even", "odd", "neither"))
    data.labels[data.test] = 2
    outcome = wl.run(data)
    assert outcome.logits["test"].shape == (6, 3)
    assert outcome.scores(data)["test"] == 0
    data.labels[data.train] = 0
    with pytest.raises(ValueError, match="two kinds must have two classes to learn from"):
        wl.run(data)


def test_rows_are_divided_by_their_length_and_zero_rows_stay():
    rows = svm.normalised(np.array([[3.0, 4.0], [0.0, 0.0]])).toarray()
    np.testing.assert_allclose(rows, [[0.6, 0.8], [0, 0]])


@pytest.mark.parametrize(
    ("library", "ask"),
    [("sklearn", svm.sklearn_svm), ("scipy", svm.scipy_sparse), ("gensim.models", rdf2vec.gensim)],
)
def test_a_missing_library_is_one_sentence(monkeypatch, library, ask):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ImportError, match=r"pip install 'rgat\[baselines\]'"):
        ask()


# Of the test part; one node either way is allowed of the two that were published.
@needs_files
@pytest.mark.parametrize(
    ("name", "feat_right", "wl_right"), [("aifb", range(20, 24), 29), ("mutag", range(52, 55), 55)]
)
def test_the_published_figures(name, feat_right, wl_right):
    data = load(name)
    right = lambda outcome: round(outcome.scores(data)["test"] * len(data.test))
    assert right(feat.run(data)) in feat_right
    assert abs(right(wl.run(data, depths=(2,), costs=(10.0,))) - wl_right) <= 1
    chosen = wl.run(data)
    assert chosen.scores(data)["test"] >= wl_right / len(data.test)
    hashed = wl.run(data, num_features=1 << 20)
    assert hashed.config["depth"] == chosen.config["depth"]
    assert abs(right(hashed) - right(chosen)) <= 1


def surroundings_by_hand(data, instances, iterations):
    """What `min_max.surroundings` counts, as counters of nested tuples."""
    (sources, targets), relations = data.graph.edge_index.tolist(), data.graph.edge_type.tolist()
    edges = [(s, r, t) for s, r, t in zip(sources, relations, targets, strict=True) if s != t]
    labels = {node: () if data.x is None else tuple(data.x[node].tolist()) for node in range(data.graph.num_nodes)}
    counts = {node: Counter((r, "name", s) for s, r, t in edges if t == node) for node in instances}
    for iteration in range(iterations + 1):
        labels |= dict.fromkeys(instances, "instance")
        around = {node: sorted((r, repr(labels[s])) for s, r, t in edges if t == node) for node in labels}
        for node in instances:
            counts[node] += Counter((iteration, each) for each in around[node])
        labels = {node: (label, tuple(around[node])) for node, label in labels.items()}
    if data.x is not None:
        for node in instances:
            counts[node] += Counter((k, v) for k, v in enumerate(data.x[node].tolist()) if v)
    return counts


@pytest.mark.parametrize("iterations", [0, 1, 3])
@pytest.mark.parametrize("with_features", [False, True])
def test_the_min_max_kernel_is_its_equation(iterations, with_features):
    data = two_kinds()
    if with_features:
        x = torch.randint(-1, 2, (data.graph.num_nodes, 2), generator=torch.Generator().manual_seed(1)).float()
        data = dataclasses.replace(data, x=x)
    instances = svm.labelled(data).tolist()[:12]
    kernel = min_max.min_max(min_max.surroundings(data, np.array(instances), iterations))
    counts = surroundings_by_hand(data, instances, iterations)
    keys = {key for count in counts.values() for key in count}
    shared = {
        key: sorted(count[key] for count in counts.values())[-2] for key in keys
    }  # occurrences that two nodes have
    for i, first in enumerate(instances):
        for j, second in enumerate(instances):
            pairs = [(min(counts[first][k], shared[k]), min(counts[second][k], shared[k])) for k in shared]
            expected = sum(map(min, pairs)) / sum(map(max, pairs))
            assert kernel[i, j] == pytest.approx(expected, abs=1e-12)
    assert len({*np.round(kernel.ravel(), 6)}) > 10


def test_the_min_max_kernel_does_not_depend_on_the_order_of_edges_and_nodes():
    data, generator = two_kinds(), torch.Generator().manual_seed(2)
    edges = torch.randperm(data.graph.num_edges, generator=generator)
    nodes = torch.randperm(data.graph.num_nodes, generator=generator)  # the new number of each node
    graph = RelationalGraph(
        nodes[data.graph.edge_index[:, edges]],
        data.graph.edge_type[edges],
        num_nodes=data.graph.num_nodes,
        num_relations=data.graph.num_relations,
    )
    parts = {part: nodes[getattr(data, part)] for part in ("train", "valid", "test")}
    again = min_max.run(dataclasses.replace(data, graph=graph, labels=data.labels[nodes.argsort()], **parts))
    for part, logits in min_max.run(data).logits.items():
        assert torch.allclose(again.logits[part], logits, atol=1e-5)


@pytest.mark.parametrize("convert", [torch.Tensor.bfloat16, torch.Tensor.double, torch.Tensor.to_sparse])
def test_the_min_max_kernel_reads_features_of_any_layout(convert):
    data = two_kinds()
    x = torch.randint(0, 2, (data.graph.num_nodes, 3), generator=torch.Generator().manual_seed(1)).float()
    expected = min_max.run(dataclasses.replace(data, x=x)).logits["test"]
    assert torch.equal(min_max.run(dataclasses.replace(data, x=convert(x))).logits["test"], expected)
    assert not torch.equal(min_max.run(data).logits["test"], expected)


def test_nodes_that_share_nothing_get_the_larger_class():
    data = two_kinds()
    none = torch.zeros(2, 0, dtype=torch.int64)
    graph = RelationalGraph(none, none[0], num_nodes=data.graph.num_nodes, num_relations=5)
    data = dataclasses.replace(data, graph=graph, train=torch.tensor([0, 1, 2, 4]), test=torch.tensor([3, 5]))
    assert min_max.run(data).logits["test"].argmax(1).tolist() == [0, 0]


@pytest.mark.parametrize("train", [[0, 1], [0, 1, 2, 4, 6, 8]])
def test_machines_learn_from_few_nodes_of_a_class(train):
    data = dataclasses.replace(two_kinds(), train=torch.tensor(train))
    for run in (min_max.run, wl.run):
        assert run(data).scores(data)["train"] >= 0.5


def test_the_min_max_kernel_refuses_one_class_negative_iterations_and_many_nodes(monkeypatch):
    data = two_kinds()
    with pytest.raises(ValueError, match="two kinds must have two classes to learn from"):
        min_max.run(dataclasses.replace(data, labels=data.labels.clamp(max=0)))
    with pytest.raises(ValueError, match="`iterations` must be an integer of at least 0, got -1"):
        min_max.run(data, iterations=(-1,))
    monkeypatch.setattr(min_max, "MOST_NODES", 19)
    with pytest.raises(ValueError, match="at most 19 labelled nodes, got 20; use WL"):
        min_max.run(data)
