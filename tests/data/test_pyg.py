import sys

import pytest
import torch
from helpers import random_graph

from rgat.data.pyg import from_pyg, to_hetero, to_pyg


def test_a_graph_survives_the_round_trip_through_data():
    graph = random_graph(9, 30, 4, edge_dim=2, batch=torch.arange(9) // 3)
    x = torch.randn(9, 5)
    data = to_pyg(graph, x)
    again, features = from_pyg(data, num_relations=4)
    for name in ("edge_index", "edge_type", "edge_attr", "batch"):
        assert torch.equal(getattr(again, name), getattr(graph, name))
    assert torch.equal(features, x)
    assert (again.num_nodes, again.num_relations) == (9, 4)
    assert from_pyg(data)[0].num_relations == int(graph.edge_type.max()) + 1
    del data.edge_type
    with pytest.raises(ValueError, match="must have `edge_type`"):
        from_pyg(data)


def test_a_graph_survives_the_round_trip_through_hetero_data():
    graph = random_graph(9, 30, 4)
    data = to_hetero(graph, torch.randn(9, 5))
    again, features = from_pyg(data)

    def edges(g):
        return sorted(zip(*g.edge_index.tolist(), g.edge_type.tolist(), strict=True))

    assert edges(again) == edges(graph)
    assert again.num_relations == 4
    assert features.shape == (9, 5)
    with pytest.raises(ValueError, match="`relation_names` must name 4 relations, got 1"):
        to_hetero(graph, relation_names=("one",))


def test_node_types_are_numbered_one_after_the_other():
    from torch_geometric.data import HeteroData

    data = HeteroData()
    data["paper"].num_nodes, data["author"].num_nodes = 3, 2
    data["author", "writes", "paper"].edge_index = torch.tensor([[0, 1], [2, 0]])
    data["paper", "cites", "paper"].edge_index = torch.tensor([[0], [1]])
    graph, x = from_pyg(data)
    assert x is None
    assert graph.edge_index.tolist() == [[3, 4, 0], [2, 0, 1]]
    assert graph.edge_type.tolist() == [0, 0, 1]
    assert graph.num_nodes == 5


def test_a_missing_library_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch_geometric", None)
    with pytest.raises(ImportError, match="pip install torch-geometric"):
        to_pyg(random_graph())
