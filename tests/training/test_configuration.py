"""Test which options a configuration takes, and the models that they make."""

import dataclasses

import pytest
import torch

from rgat.data import load
from rgat.training.configuration import build_model, check_options, configure, known_options, read_config, split_config

FLAGS = ("identity", "residual", "layer_norm", "jumping_knowledge", "wide")


def with_features(data):
    x = torch.randn(data.graph.num_nodes, 6, generator=torch.Generator().manual_seed(0))
    return dataclasses.replace(data, x=x)


def build(data, **given):
    options, _ = split_config(configure("node", given))
    return build_model(data, 0, **options)


def test_options_beyond_the_paper_are_flags():
    assert set(FLAGS) < set(known_options("node"))
    assert set(FLAGS) - set(known_options("graph")) == {"identity", "wide"}
    for name in FLAGS:
        check_options({name: True}, "node")
        with pytest.raises(ValueError, match=f"`{name}` must be true or false, got 1"):
            check_options({name: 1}, "node")
    for name in ("identity", "wide"):
        with pytest.raises(ValueError, match="`option` must be"):
            check_options({name: True}, "graph")
    for name in ("attention_l2_1", "attention_l2_4", "heads"):
        with pytest.raises(ValueError, match=f"`{name}` must not be given for RGCN, which has no attention"):
            check_options({"model": "RGCN", name: 1}, "graph")
    with pytest.raises(ValueError, match="`option` must be"):
        check_options({"num_nodes": 3}, "node")


def test_identity_is_what_it_was_without_features_and_beside_features_a_row_per_node():
    data = load("institute")
    plain, same = build(data), build(data, identity=True)
    assert str(plain) == str(same)
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), same.parameters(), strict=True))
    featured = with_features(data)
    assert build(featured).conv1.num_nodes is None
    both = build(featured, identity=True)
    assert both.conv1.num_nodes == data.graph.num_nodes
    assert both.conv1.in_channels == 6
    assert torch.equal(both.conv1.rows, plain.conv1.rows)
    assert both.conv2.num_nodes is None


def test_options_of_the_model_reach_it():
    model = build(
        with_features(load("institute")), residual=True, layer_norm=True, jumping_knowledge=True, num_layers=3
    )
    children = {name for name, _ in model.named_children()}
    assert {"residual1", "layer_norm1", "layer_norm2", "jump1", "jump2"} < children
    assert model.residual


def test_scope_is_a_word_of_configurations_only_where_it_is_mixed(tmp_path):
    mixed = {"scope": "mixed", "heads": 4, "model": "multiplicative WIRGAT"}
    model = build(load("institute"), **mixed)
    assert [conv.scope for conv in model.convs] == [("within", "within", "across", "across")] * 2
    assert model.conv1.score == "multiplicative"
    with pytest.raises(ValueError, match='`scope` must be "mixed", got "across"'):
        check_options({"scope": "across"}, "node")
    with pytest.raises(ValueError, match="`scope` must not be given for RGCN"):
        check_options({"scope": "mixed", "model": "RGCN"}, "node")
    path = tmp_path / "config.toml"
    path.write_text('model = "additive ARGAT"\n[config]\nscope = "mixed"\nscore = "additive"\nheads = 2\n')
    assert read_config(path) == {"model": "additive ARGAT", "heads": 2, "scope": "mixed"}
    path.write_text('model = "additive ARGAT"\n[config]\nscope = "across"\nheads = 2\n')
    assert read_config(path) == {"model": "additive ARGAT", "heads": 2}


def test_a_file_of_the_paper_s_graph_classifier_has_neither_sum_nor_residual(tmp_path):
    path = tmp_path / "config.toml"
    path.write_text('model = "RGCN"\n[config]\ndense_channels = 8\n')
    for name in ("gather_sum", "residual"):
        assert configure("graph", read_config(path))[name] is False
        assert configure("graph", {"dense_channels": 8})[name] is True
