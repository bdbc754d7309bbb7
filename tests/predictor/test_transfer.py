"""Fine-tuning a saved model on another table, and cross-validation of a whole fit."""

import dataclasses

import pytest
import torch

import rgat
from rgat.predictor import cross_validate
from rgat.predictor.cross_validation import fold_data
from rgat.predictor.text import performance
from rgat.predictor.transfer import TAKEN

QUICK = {"max_epochs": 1, "comparison": False}


@pytest.fixture(scope="module")
def data():
    return rgat.data.load("molecules")


@pytest.fixture(scope="module")
def first(data):
    return rgat.fit(data, hidden_channels=8, heads=1, dense_channels=16, **QUICK)


@pytest.fixture(scope="module")
def other(data):
    """Another table: one task of some of the molecules."""
    return dataclasses.replace(data, labels=data.labels[:, :1].contiguous(), tasks=("new",), train=data.train[:60])


def layers(predictor):
    state = predictor.members[0].state_dict()
    return {name: tensor for name, tensor in state.items() if name.startswith(TAKEN) and tensor.is_floating_point()}


def test_frozen_layers_stay_and_others_start_where_the_model_ended(first, other):
    frozen = rgat.fit(other, start_from=first, freeze=True, ensemble=2, **QUICK)
    assert frozen.config["hidden_channels"] == 8
    assert frozen.tasks == ("new",)
    for member in frozen.members:
        state = member.state_dict()
        assert all(torch.equal(state[name], tensor) for name, tensor in layers(first).items())
    assert len(layers(first)) >= 4
    assert not torch.equal(frozen.members[0].dense2.weight, frozen.members[1].dense2.weight)
    assert frozen.report["started_from"] == {"tasks": list(first.tasks), "frozen": True}
    assert any("relational layers, frozen" in line for line in performance(frozen))
    tuned = rgat.fit(other, start_from=first, learning_rate=1e-6, **QUICK)
    moved = [(layers(tuned)[name] - tensor).abs().max() for name, tensor in layers(first).items()]
    assert 0 < max(moved) < 1e-4
    assert all(parameter.requires_grad for parameter in tuned.members[0].parameters())


def test_a_start_that_does_not_fit_is_one_sentence(first, other, data):
    with pytest.raises(ValueError, match="`hidden_channels` must be that of the model to start from, 8, got 16"):
        rgat.fit(other, start_from=first, hidden_channels=16, **QUICK)
    with pytest.raises(ValueError, match="needs a model to start from"):
        rgat.fit(other, freeze=True, **QUICK)
    with pytest.raises(ValueError, match="is for models and tables of molecules, got data of nodes"):
        rgat.fit("institute", start_from=first, **QUICK)
    renamed = dataclasses.replace(other, relation_names=("single", "double", "triple", "aromatic", "hydrogen"))
    with pytest.raises(
        ValueError, match=r"must have the bond types of the data, single, .*hydrogen, got single, .*self"
    ):
        rgat.fit(renamed, start_from=first, **QUICK)


def test_cross_validation_tests_every_molecule_once_and_says_the_spread(data):
    seen = []
    found = cross_validate(data, 2, on_fold=seen.append, hidden_channels=8, heads=1, **QUICK)
    assert seen == [0, 1]
    mean = sum(found["scores"]) / 2
    assert found["mean"] == pytest.approx(mean)
    assert found["deviation"] == pytest.approx(abs(found["scores"][0] - found["scores"][1]) / 2**0.5)


def test_folds_of_a_split_by_group_keep_groups_together(tmp_path):
    rows = [f"{'C' * (1 + number % 24)}O,{number % 2},lab {number % 24 % 6}" for number in range(48)]
    (tmp_path / "table.csv").write_text("\n".join(["smiles,active,laboratory", *rows]) + "\n")
    data = rgat.data.from_smiles(
        tmp_path / "table.csv", tasks=["active"], split="group", split_column="laboratory", shares=(0.5, 0.25)
    )
    folds = fold_data(data, 3, seed=0)
    assert sorted(torch.cat([fold.test for fold in folds]).tolist()) == list(range(48))
    for fold in folds:
        parts = [{data.groups[i] for i in part.tolist()} for part in (fold.train, fold.valid, fold.test)]
        assert all(parts)
        assert sum(map(len, parts)) == 6
    with pytest.raises(ValueError, match="`folds` must be at most the number of groups, 6, got 7"):
        fold_data(data, 7, seed=0)
    pair = dataclasses.replace(data, groups=("a", "b") * 24)
    with pytest.raises(ValueError, match="a fold must leave a group to train on and one to validate on"):
        fold_data(pair, 2, seed=0)


def test_folds_are_disjoint_and_keep_molecules_and_scaffolds_together(data):
    for kind in ("random", "scaffold"):
        told = dataclasses.replace(data, provenance={"split": kind})
        folds = fold_data(told, 4, seed=0)
        tests = torch.cat([fold.test for fold in folds])
        assert sorted(tests.tolist()) == list(range(len(data.graphs)))
        for fold in folds:
            together = torch.cat([fold.train, fold.valid, fold.test])
            assert sorted(together.tolist()) == list(range(len(data.graphs)))
            assert len(fold.valid) > 0
    for kind, reason in (("time", "it would train on newer rows"), ("column", "the table says the parts")):
        told = dataclasses.replace(data, provenance={"split": kind})
        with pytest.raises(ValueError, match=f"without a fixed test part, got one by {kind}: {reason}"):
            fold_data(told, 4, seed=0)
    with pytest.raises(ValueError, match="`folds` must be at most the number of molecules, 320, got 400"):
        fold_data(data, 400, seed=0)
    nodes = rgat.data.load("institute")
    tests = torch.cat([fold.test for fold in fold_data(nodes, 3, seed=0)])
    assert sorted(tests.tolist()) == sorted(torch.cat([nodes.train, nodes.valid, nodes.test]).tolist())
