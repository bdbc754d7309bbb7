"""Folds and splits keep test data apart; the portable form gives them back; a GPU machine needs little to read it."""

import dataclasses
import os
import subprocess
import sys

import pytest
import torch

from rgat.data import MISSING, load
from rgat.experiments.folds import NUM_FOLDS, divide
from rgat.experiments.transfer import decode, encode


@pytest.fixture(scope="module")
def divisions():
    return {name: divide(load(name)) for name in ("institute", "molecules", "planted-needle")}


@pytest.mark.parametrize("name", ["institute", "molecules"])
def test_folds_cover_the_pool_and_never_see_a_test_example(divisions, name):
    division = divisions[name]
    tested = torch.cat([parts[2] for parts in division.splits.values()]).unique()
    assert len(division.folds) == NUM_FOLDS[division.task]
    pools = []
    for number, (train, valid) in enumerate(division.folds):
        pool = torch.cat([train, valid])
        assert len(pool.unique()) == len(pool)
        pools.append(pool.sort().values)
        assert not torch.isin(tested, pool).any()
        fold = division.fold(number)
        assert not len(fold.test)
        assert (fold.labels[tested] == MISSING).all()
        assert torch.equal(fold.labels[pool], division.data.labels[pool])
    assert all(torch.equal(pool, pools[0]) for pool in pools)
    valid = torch.cat([valid for _, valid in division.folds])
    assert torch.equal(valid.sort().values, pools[0])


def test_node_folds_are_stratified_and_the_retrain_uses_the_whole_training_set(divisions):
    division = divisions["institute"]
    counts = torch.stack([division.data.labels[valid].bincount(minlength=4) for _, valid in division.folds])
    assert (counts.max(0).values - counts.min(0).values).max() <= 1
    final = division.split(None)
    assert len(final.train) == 180
    assert not len(final.valid)
    assert torch.equal(final.test, division.data.test)
    unlabelled = dataclasses.replace(division.data, test=division.data.test[:0])
    with pytest.raises(ValueError, match="institute must have a test part to report on, got none"):
        divide(unlabelled)


def test_repeated_molecules_are_set_aside_and_folded_together():
    data = load("molecules")
    twice = torch.arange(len(data.graphs)).repeat(2)
    repeated = dataclasses.replace(
        data, graphs=data.graphs.select(twice), labels=data.labels[twice], graph_names=data.graph_names * 2
    )
    division = divide(repeated)
    tested = {repeated.graph_names[row] for parts in division.splits.values() for row in parts[2].tolist()}
    seen = 0
    for train, valid in division.folds:
        names = [{repeated.graph_names[row] for row in rows.tolist()} for rows in (train, valid)]
        assert not names[0] & names[1]
        assert not tested & (names[0] | names[1])
        seen += len(valid)
    assert seen == 2 * (len(data.graphs) - len(tested)) > 0


@pytest.mark.parametrize("name", ["institute", "molecules", "planted-needle"])
def test_the_portable_form_gives_everything_back(divisions, name):
    division = divisions[name]
    found = decode(encode(division))
    for before, after in zip(division.folds, found.folds, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert found.splits.keys() == division.splits.keys()
    for seed, parts in division.splits.items():
        assert all(torch.equal(a, b) for a, b in zip(parts, found.splits[seed], strict=True))
    for field in dataclasses.fields(division.data):
        before, after = getattr(division.data, field.name), getattr(found.data, field.name)
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


def test_edge_features_travel_too(divisions):
    division = divisions["molecules"]
    store = division.data.graphs
    featured = dataclasses.replace(store, edge_attr=torch.rand(len(store.edge_type), 2))
    data = dataclasses.replace(division.data, graphs=featured)
    assert torch.equal(
        decode(encode(dataclasses.replace(division, data=data))).data.graphs.edge_attr, featured.edge_attr
    )


@pytest.mark.parametrize("missing", ["edge_index", "labels", "fold.0.valid"])
def test_a_file_without_some_of_its_parts_is_refused(divisions, missing):
    import safetensors.torch

    tensors = safetensors.torch.load(encode(divisions["institute"]))
    del tensors[missing]
    with pytest.raises(ValueError, match="prepared data must be whole, but their parts do not fit"):
        decode(safetensors.torch.save(tensors))


def test_foreign_and_newer_files_are_refused(divisions, monkeypatch):
    with pytest.raises(ValueError, match="prepared data must be a safetensors file of a data set and its folds"):
        decode(b"no such file")
    content = encode(divisions["institute"])
    with pytest.raises(ValueError, match="must be a safetensors file"):
        decode(content[: len(content) // 2])
    monkeypatch.setattr("rgat.experiments.transfer.VERSION", 2)
    with pytest.raises(ValueError, match="prepared data must have version 2, got 1; write them anew"):
        decode(content)
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    with pytest.raises(ImportError, match="prepared data need safetensors"):
        encode(divisions["institute"])


def test_real_test_sets_are_set_aside():
    if not os.environ.get("RGAT_DATA"):
        pytest.skip("RGAT_DATA names no folder with the benchmarks")
    for name, count in (("aifb", 140), ("tox21-distinct", 5705)):
        division = divide(load(name))
        assert sum(len(valid) for _, valid in division.folds) == count
    test = load("tox21-distinct", split=123).test
    assert torch.equal(division.splits[123][2], test)


def test_work_needs_only_torch_numpy_and_safetensors():
    blocked = "typer rich numba pyoxigraph rdkit optuna sqlalchemy scipy sklearn matplotlib pandas ray"
    code = (
        "import sys\n"
        f"blocked = {blocked!r}.split()\n"
        "class Block:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in blocked: raise ImportError(name)\n"
        "sys.meta_path.insert(0, Block())\n"
        "import rgat.experiments.work, rgat.experiments.protocol\n"
        "print('ok')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "ok", done.stderr
