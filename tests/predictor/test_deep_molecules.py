"""Models of molecules with more than two layers, from the fit to explanations, saved models, export and fine-tuning."""

import dataclasses

import numpy as np
import pytest
import torch
from torch.export import Dim
from torch.utils import _pytree as pytree

import rgat
from rgat.predictor.attention_flow import layer_attention

DEEP = {"num_layers": 3, "residual": True, "layer_norm": True, "jumping_knowledge": True, "batch_norm": True}
QUICK = {"max_epochs": 1, "comparison": False, "ensemble": 1}
SMILES = ["c1ccccc1C(=O)NC", "CCO", "C"]


@pytest.fixture(scope="module")
def data():
    return rgat.data.load("molecules")


@pytest.fixture(scope="module")
def deep(data):
    return rgat.fit(data, hidden_channels=8, heads=2, dense_channels=16, kernel_l2_3=1e-4, **DEEP, **QUICK)


def test_a_deep_model_is_fitted_saved_and_loaded(deep, tmp_path):
    assert deep.num_layers == 3
    assert {name: deep.config[name] for name in DEEP} == DEEP
    deep.save(tmp_path / "model")
    loaded = rgat.load(tmp_path / "model")
    assert np.array_equal(loaded.predict_proba(SMILES), deep.predict_proba(SMILES))


def test_explanations_follow_all_layers_as_the_model_computes_them(deep, data):
    seen = []
    model = deep.members[0]
    hook = model.conv3.register_forward_pre_hook(lambda conv, given: seen.append(given[0]))
    x, graph = data.graphs.batch(torch.arange(3))
    model(x, graph)
    attention = layer_attention(deep, x, graph)
    hook.remove()
    assert len(attention[0]) == 3
    torch.testing.assert_close(*seen)
    assert sum(deep.explain(SMILES[0]).atom_attention) == pytest.approx(1)


def test_the_export_of_a_deep_model_takes_graphs_of_any_size(deep, data, tmp_path):
    model = deep.members[0]
    (x, graph), (y, larger) = (data.graphs.batch(torch.arange(count)) for count in (3, 40))
    leaves = pytree.tree_leaves(graph)
    shapes = [[Dim.AUTO] * leaf.dim() for leaf in (x, *leaves)]
    program = torch.export.export(model.eval(), (x, graph), dynamic_shapes=(shapes[0], shapes[1:]))
    torch.testing.assert_close(program.module()(y, larger), model(y, larger))
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    assert deep.export(tmp_path / "deep.onnx") < 1e-5


def test_fine_tuning_takes_over_all_relational_layers(deep, data):
    other = dataclasses.replace(data, labels=data.labels[:, :1].contiguous(), tasks=("new",), train=data.train[:60])
    tuned = rgat.fit(other, start_from=deep, freeze=True, **QUICK)
    ours, theirs = tuned.members[0].state_dict(), deep.members[0].state_dict()
    taken = [name for name in theirs if not name.startswith("dense") and theirs[name].is_floating_point()]
    for name in ("conv3.kernel.weight", "layer_norm3.weight", "residual1.weight"):
        assert name in taken
    assert all(torch.equal(ours[name], theirs[name]) for name in taken if "running" not in name)
    with pytest.raises(ValueError, match="`num_layers` must be that of the model to start from, 3, got 2"):
        rgat.fit(other, start_from=deep, num_layers=2, **QUICK)


def test_a_model_of_a_version_without_residuals_can_be_a_start(data):
    plain = rgat.fit(data, hidden_channels=8, heads=1, residual=False, **QUICK)
    del plain.config["residual"]  # as such versions saved it
    tuned = rgat.fit(data, start_from=plain, **QUICK)
    assert tuned.config["residual"] is False
    assert not hasattr(tuned.members[0], "residual1")
    for name, kept, given in (
        *(("num_layers", 2, 3), ("num_layers", 2, 1), ("layer_norm", False, True), ("batch_norm", False, True)),
        *(("bias", True, False), ("num_bases", None, 5)),
    ):
        with pytest.raises(ValueError, match=f"`{name}` must be that of the model to start from, {kept}, got {given}"):
            rgat.fit(data, start_from=plain, **{name: given}, **QUICK)
