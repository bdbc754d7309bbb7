"""The portable form of a data set restores all of it, and damaged files are refused."""

import dataclasses
import sys

import pytest
import torch

from rgat.data import load
from rgat.experiments.folds import decode, encode, fold_data


@pytest.fixture(scope="module")
def folded_sets():
    return {name: fold_data(load(name)) for name in ("institute", "molecules", "planted-needle")}


@pytest.mark.parametrize("name", ["institute", "molecules", "planted-needle"])
def test_the_portable_form_gives_everything_back(folded_sets, name):
    folded = folded_sets[name]
    found = decode(encode(folded))
    for before, after in zip(folded.folds, found.folds, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert found.splits.keys() == folded.splits.keys()
    for seed, parts in folded.splits.items():
        assert all(torch.equal(a, b) for a, b in zip(parts, found.splits[seed], strict=True))
    for field in dataclasses.fields(folded.data):
        before, after = getattr(folded.data, field.name), getattr(found.data, field.name)
        if isinstance(before, torch.Tensor):
            assert torch.equal(before, after)
            assert before.dtype == after.dtype
        elif field.name == "graph":
            assert torch.equal(before.edge_index, after.edge_index)
            assert torch.equal(before.edge_type, after.edge_type)
            assert (before.num_nodes, before.num_relations) == (after.num_nodes, after.num_relations)
        elif field.name == "graphs":
            assert torch.equal(before.x, after.x)
            assert torch.equal(
                before.batch(torch.tensor([3, 1]))[1].edge_index, after.batch(torch.tensor([3, 1]))[1].edge_index
            )
        else:
            assert before == after


def test_edge_features_travel_too(folded_sets):
    folded = folded_sets["molecules"]
    store = folded.data.graphs
    featured = dataclasses.replace(store, edge_attr=torch.rand(len(store.edge_type), 2))
    data = dataclasses.replace(folded.data, graphs=featured)
    assert torch.equal(decode(encode(dataclasses.replace(folded, data=data))).data.graphs.edge_attr, featured.edge_attr)


@pytest.mark.parametrize("missing", ["edge_index", "labels", "fold.0.valid"])
def test_a_file_without_some_of_its_parts_is_refused(folded_sets, missing):
    import safetensors.torch

    tensors = safetensors.torch.load(encode(folded_sets["institute"]))
    del tensors[missing]
    with pytest.raises(ValueError, match="prepared data must be complete, but their parts do not fit"):
        decode(safetensors.torch.save(tensors))


def test_foreign_and_newer_files_are_refused(folded_sets, monkeypatch):
    with pytest.raises(ValueError, match="prepared data must be a safetensors file of a data set and its folds"):
        decode(b"no such file")
    content = encode(folded_sets["institute"])
    with pytest.raises(ValueError, match="must be a safetensors file"):
        decode(content[: len(content) // 2])
    monkeypatch.setattr("rgat.experiments.folds.VERSION", 2)
    with pytest.raises(ValueError, match="prepared data must have version 2, got 1; write the file again"):
        decode(content)
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    with pytest.raises(ImportError, match="prepared data need safetensors"):
        encode(folded_sets["institute"])
