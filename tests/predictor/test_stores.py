"""Fit, predict and explain graphs that stay in a store, and the choice to sample."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import rgat
from rgat.data import StoreWriter, from_rdf
from rgat.predictor import estimates, explain_node
from rgat.predictor.estimates import GraphSize, sampling_for
from rgat.predictor.explorer import write_explorer
from rgat.training import Settings, build_model, fit

NUMBERS = ("attention", "equal_share", "effect", "log_odds", "choice")
OPTIONS = {"fanouts": [5, 5], "batch_size": 32, "max_epochs": 3, "embedding_channels": 8, "comparison": False}


@pytest.fixture
def store(tmp_path):
    generator = np.random.default_rng(0)
    with StoreWriter(tmp_path / "store", 120, ["<http://x/in>", "<http://x/knows>"]) as writer:
        writer.add(np.arange(100), np.zeros(100, dtype=int), 100 + np.arange(100) % 20)
        writer.add(np.arange(100), np.ones(100, dtype=int), generator.integers(100, size=100))
    lines = ["node class", *(f"n{node} {'ab'[node % 2]}" for node in range(100))]
    (tmp_path / "labels.tsv").write_text("\n".join(lines).replace(" ", "\t") + "\n")
    return tmp_path / "store", tmp_path / "labels.tsv"


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_a_graph_in_a_store_is_fitted_saved_and_explained_as_one_in_memory(store, tmp_path, layers):
    path, labels = store
    stored, loaded = (from_rdf(path, labels, in_memory=in_memory) for in_memory in (False, True))
    assert (stored.is_stored, loaded.is_stored) == (True, False)
    options = OPTIONS | {"num_layers": layers, "fanouts": [5] * layers}
    predictors = [rgat.fit(data, **options) for data in (stored, loaded)]
    first, second = (predictor.predict(["n3", "n4"]).probabilities for predictor in predictors)
    np.testing.assert_allclose(first, second, atol=1e-6)
    predictors[0].save(tmp_path / "model")
    again = rgat.load(tmp_path / "model")
    assert again.data.is_stored
    np.testing.assert_array_equal(again.predict(["n3", "n4"]).probabilities, first)
    found, expected = (predictor.explain("n3", top=100) for predictor in (again, predictors[1]))
    assert found.num_edges == expected.num_edges
    effects, others = (
        {(each.relation, each.source, each.target): each.effect for each in one.reasons} for one in (found, expected)
    )
    assert effects == pytest.approx(others, abs=1e-5)
    ranked, others = (predictor.explain() for predictor in (again, predictors[1]))
    for name in ("attention", "effect", "log_odds", "changed"):
        assert getattr(ranked, name) == pytest.approx(getattr(others, name), abs=1e-5)
    assert (ranked.nodes, len(ranked.attention)) == (100, 2)
    with pytest.raises(ValueError, match="to write a page, the graph must be in memory, but it is in a store; leave"):
        write_explorer(again, tmp_path / "page.html", "n3")


def test_numbers_and_labels_of_nodes_in_a_store_are_learned_as_those_in_memory(store, tmp_path):
    path, _ = store
    rows = ["node\tage\tgenre", *(f"n{node}\t{node % 20 + 0.5}\t{'ab'[node % 2]}|c" for node in range(100))]
    (tmp_path / "targets.tsv").write_text("\n".join(rows) + "\n")
    options = {"label_column": ["age", "genre"]}
    datas = [from_rdf(path, tmp_path / "targets.tsv", in_memory=each, **options) for each in (False, True)]
    predictors = [rgat.fit(data, **OPTIONS) for data in datas]
    stored, loaded = (predictor.predict(["n3", "n4"]) for predictor in predictors)
    assert stored.columns == ("age", "genre=a", "genre=b", "genre=c")
    np.testing.assert_allclose(stored.probabilities, loaded.probabilities, atol=1e-5)
    assert predictors[0].report["intervals"]["age"]["covered"] > 0.5
    predictors[0].save(tmp_path / "model")
    again = rgat.load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict(["n3", "n4"]).probabilities, stored.probabilities)
    for task in ("age", "genre=a"):
        found, expected = (predictor.explain("n3", top=100, task=task) for predictor in (again, predictors[1]))
        assert {(r.source, r.target): r.effect for r in found.reasons} == pytest.approx(
            {(r.source, r.target): r.effect for r in expected.reasons}, abs=1e-4
        )
    assert again.explain(task="age").attention == pytest.approx(predictors[1].explain(task="age").attention, abs=1e-5)


def test_a_large_field_of_a_store_is_explained_in_blocks(store, monkeypatch):
    path, labels = store
    predictor = rgat.fit(from_rdf(path, labels, in_memory=False), **OPTIONS)
    expected = predictor.explain("n100", top=100)
    monkeypatch.setattr(explain_node, "BLOCK_NUMBERS", 100)
    monkeypatch.setattr(explain_node, "receptive_data", None)  # not called
    found = predictor.explain("n100", top=100)
    assert (found.num_edges, found.predicted) == (expected.num_edges, expected.predicted)
    assert found.relations == pytest.approx(expected.relations, abs=1e-6)
    numbers, others = (
        {
            (each.relation, each.source, each.target, name): getattr(each, name)
            for each in one.reasons
            for name in NUMBERS
        }
        for one in (found, expected)
    )
    assert numbers == pytest.approx(others, abs=1e-5)
    assert len(numbers) > 50


def test_fanouts_of_some_relations_are_fitted_saved_and_resumed(store, tmp_path):
    path, labels = store
    data = from_rdf(path, labels, in_memory=False)
    options = OPTIONS | {"fanouts": [{1: 2}, 3]}
    fitted = rgat.fit(data, **options)
    fitted.save(tmp_path / "model")
    assert rgat.load(tmp_path / "model").predict(["n3"]).probabilities == pytest.approx(
        fitted.predict(["n3"]).probabilities
    )
    settings = Settings(fanouts=({1: 2}, 3), max_epochs=2, batch_size=32)
    for _ in range(2):  # the second call resumes
        torch.manual_seed(0)
        fit(build_model(data, embedding_channels=4), data, settings, checkpoint=tmp_path / "checkpoint")


def test_a_damaged_store_is_refused_before_it_is_read(store):
    path, labels = store
    content = bytearray((path / "source.npy").read_bytes())
    content[-1] ^= 0x40
    (path / "source.npy").write_bytes(content)
    with pytest.raises(ValueError, match=r"source\.npy"):
        from_rdf(path, labels, in_memory=False)


def test_training_samples_where_the_whole_graph_would_not_fit(monkeypatch):
    monkeypatch.setattr(estimates, "free_memory", lambda device: 2**30)
    options, sentence = sampling_for(GraphSize(10**6, 10**7, 0), {"num_layers": 3}, False, "cpu")
    assert options == {"fanouts": [20, 10, 10], "embedding_channels": 64}
    assert sentence.startswith("memory: training on the whole graph may take")
    assert "samples instead, with --fanouts 20,10,10 and 64 learned channels" in sentence
    assert sampling_for(GraphSize(1000, 5000, 0), {}, False, "cpu") == ({}, None)
    _, without = sampling_for(GraphSize(10**6, 10**10, 1), {}, False, "cpu")
    _, beside = sampling_for(GraphSize(10**6, 10**10, 1), {"identity": True}, False, "cpu")
    assert without != beside, "rows of nodes beside features take memory too"
    assert sampling_for(GraphSize(10**6, 10**7, 1), {"fanouts": [5, 5]}, True, "cpu") == ({}, None)
    options, sentence = sampling_for(GraphSize(1000, 5000, 0), {"fanouts": [5, 5]}, True, "cpu")
    assert options == {"embedding_channels": 64}
    assert "64 learned channels per node" in sentence


def test_features_and_other_processes_count_in_the_choice_to_sample(monkeypatch):
    monkeypatch.setattr(estimates, "free_memory", lambda device: 8 * 2**30)
    sizes = [GraphSize(10**6, 2 * 10**6, width) for width in (16, 2048)]
    assert [bool(sampling_for(size, {}, True, "cpu")[0]) for size in sizes] == [False, True]
    other = SimpleNamespace(number=2, least=lambda number: min(number, 1000))  # which has less memory
    monkeypatch.setattr(estimates, "processes", lambda: other)
    assert sampling_for(sizes[0], {}, True, "cpu")[0]


def test_whole_graph_training_on_a_store_is_refused(store):
    path, labels = store
    data = from_rdf(path, labels, in_memory=False)
    with pytest.raises(ValueError, match="must be in memory to train on the whole graph, but is in a store; sample it"):
        rgat.fit(data, embedding_channels=8, max_epochs=1, comparison=False)
    assert torch.equal(data.labels[data.train] >= 0, torch.ones(len(data.train), dtype=torch.bool))
