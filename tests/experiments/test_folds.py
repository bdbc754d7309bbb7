"""Folds and splits keep test data apart; their file restores all of a data set, and damaged files are refused."""

import dataclasses
import os
import sys

import pytest
import torch

from rgat.data import MISSING, load
from rgat.experiments.folds import NUM_FOLDS, decode, encode, fold_data
from rgat.training.configuration import task_of


@pytest.fixture(scope="module")
def folded_sets():
    return {name: fold_data(load(name)) for name in ("institute", "molecules", "planted-needle")}


@pytest.mark.parametrize("name", ["institute", "molecules"])
def test_folds_cover_the_pool_and_never_see_a_test_example(folded_sets, name):
    folded = folded_sets[name]
    tested = torch.cat([parts[2] for parts in folded.splits.values()]).unique()
    assert len(folded.folds) == NUM_FOLDS[task_of(folded.data)]
    pools = []
    for number, (train, valid) in enumerate(folded.folds):
        pool = torch.cat([train, valid])
        assert len(pool.unique()) == len(pool)
        pools.append(pool.sort().values)
        assert not torch.isin(tested, pool).any()
        fold = folded.fold(number)
        assert not len(fold.test)
        assert (fold.labels[tested] == MISSING).all()
        assert torch.equal(fold.labels[pool], folded.data.labels[pool])
    assert all(torch.equal(pool, pools[0]) for pool in pools)
    valid = torch.cat([valid for _, valid in folded.folds])
    assert torch.equal(valid.sort().values, pools[0])


def test_node_folds_are_stratified_and_the_retrain_uses_the_whole_training_set(folded_sets):
    folded = folded_sets["institute"]
    counts = torch.stack([folded.data.labels[valid].bincount(minlength=4) for _, valid in folded.folds])
    assert (counts.max(0).values - counts.min(0).values).max() <= 1
    final = folded.split(None)
    assert len(final.train) == 180
    assert not len(final.valid)
    assert torch.equal(final.test, folded.data.test)
    unlabelled = dataclasses.replace(folded.data, test=folded.data.test[:0])
    with pytest.raises(ValueError, match="institute must have a test part to report on, got none"):
        fold_data(unlabelled)


def test_repeated_molecules_are_set_aside_and_folded_together():
    data = load("molecules")
    twice = torch.arange(len(data.graphs)).repeat(2)
    repeated = dataclasses.replace(
        data, graphs=data.graphs.select(twice), labels=data.labels[twice], graph_names=data.graph_names * 2
    )
    folded = fold_data(repeated)
    tested = {repeated.graph_names[row] for parts in folded.splits.values() for row in parts[2].tolist()}
    seen = 0
    for train, valid in folded.folds:
        names = [{repeated.graph_names[row] for row in rows.tolist()} for rows in (train, valid)]
        assert not names[0] & names[1]
        assert not tested & (names[0] | names[1])
        seen += len(valid)
    assert seen == 2 * (len(data.graphs) - len(tested)) > 0


def test_real_test_sets_are_set_aside():
    if not os.environ.get("RGAT_DATA"):
        pytest.skip("RGAT_DATA names no folder with the benchmarks")
    for name, count in (("aifb", 140), ("tox21-distinct", 5705)):
        folded = fold_data(load(name))
        assert sum(len(valid) for _, valid in folded.folds) == count
    test = load("tox21-distinct", split=123).test
    assert torch.equal(folded.splits[123][2], test)


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
