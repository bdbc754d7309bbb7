"""Dumps that would not fit into memory are converted to a store in the folder of the model."""

import gzip

import numpy as np
import pytest
import torch
from helpers_institute import write_institute

import rgat
from rgat.data import from_rdf
from rgat.data.rdf import reader
from rgat.predictor import dumps, estimates
from rgat.predictor.dumps import CONVERTED, estimate_size, read_within_memory
from rgat.predictor.files import read
from rgat.predictor.files import train as train_model

CPU = torch.device("cpu")
QUICK = {"max_epochs": 1, "comparison": False}


@pytest.fixture
def files(tmp_path):
    graph, labels = write_institute(tmp_path)
    return {"rdf": [graph], "labels": labels, "seed": 0}


@pytest.fixture
def little_memory(monkeypatch):
    for module in (dumps, estimates):
        monkeypatch.setattr(module, "free_memory", lambda device="cpu": 1000)


def test_the_size_of_a_dump_is_estimated_from_its_beginning(files, tmp_path, monkeypatch):
    (graph,) = files["rdf"]
    whole = from_rdf(graph, files["labels"]).graph
    assert estimate_size([graph]) == (whole.num_nodes, whole.num_edges, 0)
    monkeypatch.setattr(reader, "BATCH", 100)
    monkeypatch.setattr(dumps, "SAMPLE", 300)
    packed = tmp_path / "packed.nt.gz"
    packed.write_bytes(gzip.compress(graph.read_bytes() * 20))  # the reader buffers the beginning of a file
    size = estimate_size([packed], num_features=3)
    assert size.num_features == 3
    assert size.num_edges > 1.5 * whole.num_edges, "20 times the same triples count as others"
    empty = tmp_path / "empty.nt"
    empty.write_bytes(b"")
    assert estimate_size([empty]) is None


def test_a_dump_that_does_not_fit_is_trained_on_from_a_store(files, tmp_path, little_memory):
    out, said = tmp_path / "model", []
    data, sampling = read_within_memory(None, out, {}, CPU, say=said.append, **files)
    assert data.is_stored
    assert sampling == {"fanouts": [20, 10], "embedding_channels": 64}
    assert f"it is converted to the store {out / CONVERTED}, of which only parts are read" in said[0]
    assert "samples instead, with --fanouts 20,10" in said[1]
    whole = read(None, **files)
    assert list(data.node_names) == list(whole.node_names)
    assert data.relation_names == whole.relation_names
    for name in ("labels", "train", "test"):
        assert torch.equal(getattr(data, name), getattr(whole, name)), name
    train_model(data, out, batch_size=16, **sampling, **QUICK)
    out.rename(tmp_path / "moved")
    predictor = rgat.load(tmp_path / "moved")
    assert predictor.data.is_stored
    name = data.node_names[int(data.test[0])]
    assert np.isfinite(predictor.predict([name]).probabilities).all()
    assert predictor.explain(name).num_edges > 0


def test_an_interrupted_training_goes_on_with_its_store(files, tmp_path, little_memory, monkeypatch):
    out = tmp_path / "model"
    first, _ = read_within_memory(None, out, {}, CPU, **files)
    monkeypatch.setattr(dumps, "convert", None)  # is not called
    again, _ = read_within_memory(None, out, {}, CPU, resume=True, **files)
    assert again.graph.path == first.graph.path
    assert torch.equal(again.train, first.train)


def test_a_store_that_a_killed_training_left_is_written_again(files, tmp_path, little_memory):
    out = tmp_path / "model"
    read_within_memory(None, out, {}, CPU, **files)
    before = (out / CONVERTED / "store.json").stat().st_mtime_ns
    read_within_memory(None, out, {}, CPU, **files)
    assert (out / CONVERTED / "store.json").stat().st_mtime_ns > before


def test_a_store_that_turns_out_to_fit_is_removed(files, tmp_path, monkeypatch):
    monkeypatch.setattr(dumps, "free_memory", lambda: 1000)
    data, sampling = read_within_memory(None, tmp_path / "model", {}, CPU, **files)
    assert not data.is_stored
    assert sampling == {}
    assert not (tmp_path / "model" / CONVERTED).exists()


def test_what_chooses_triples_is_chosen_when_they_are_converted(files, tmp_path, little_memory):
    (graph,) = files["rdf"]
    graph.write_bytes(b"no triple\n" + graph.read_bytes())
    predicate = next(name for name in read(None, **files, skip_invalid=True).relation_names if "phone" in name)
    options = files | {"drop_predicates": (predicate.strip("<>"),), "features": ("degrees",), "skip_invalid": True}
    data, sampling = read_within_memory(None, tmp_path / "model", {}, CPU, **options)
    whole = read(None, **options)
    assert data.relation_names == whole.relation_names
    torch.testing.assert_close(data.x.float(), whole.x)
    assert data.provenance["invalid_lines"] == whole.provenance["invalid_lines"]
    assert "embedding_channels" not in sampling


def test_a_batch_size_is_for_a_graph_that_is_sampled(files, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"--batch-size must be left out here.*this one fits into memory"):
        read_within_memory(None, tmp_path / "model", {"batch_size": 16}, CPU, **files)
    monkeypatch.setattr(estimates, "free_memory", lambda device="cpu": 1000)
    data, sampling = read_within_memory(None, tmp_path / "model", {"batch_size": 16}, CPU, **files)
    assert not data.is_stored, "it fits, but not training on the whole of it"
    assert sampling["fanouts"] == [20, 10]


def test_contradictions_are_refused_before_anything_is_converted(files, tmp_path, little_memory):
    out, none = tmp_path / "model", {"rdf": files["rdf"]}
    with pytest.raises(ValueError, match="classes of some nodes must be given"):
        read_within_memory(None, out, {}, CPU, **none)
    with pytest.raises(ValueError, match="one of a data set's name, --rdf and --smiles must be given"):
        read_within_memory("aifb", out, {}, CPU, **files)
    assert not out.exists()
