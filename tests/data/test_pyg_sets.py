"""Turn labelled graphs of PyTorch Geometric into data sets, and train on them."""

import pytest
import torch
from torch_geometric.data import Data, HeteroData

import rgat
from rgat.data import MISSING, from_pyg_data
from rgat.training import Settings


def draw(*shape, high=None, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator) if high is None else torch.randint(high, shape, generator=generator)


def labelled_graph(**fields):
    return Data(draw(30, 5), draw(2, 90, high=30), edge_type=draw(90, high=3), y=torch.arange(30) % 3, **fields)


def graphs(number=24, **fields):
    return [
        Data(draw(4, 5, seed=n), draw(2, 6, high=4, seed=n), y=torch.tensor([n % 2]), **fields) for n in range(number)
    ]


def test_a_graph_with_masks_keeps_them():
    masks = {name: torch.arange(30) % 5 == n for n, name in enumerate(("train_mask", "val_mask", "test_mask"))}
    data = from_pyg_data(labelled_graph(**masks), inverses=True)
    assert data.train.tolist() == list(range(0, 30, 5))
    assert data.valid.tolist() == list(range(1, 30, 5))
    assert torch.equal(data.labels != MISSING, masks["train_mask"] | masks["val_mask"] | masks["test_mask"])
    assert data.relation_names[3:] == (*(f"inverse of relation {n}" for n in range(3)), "self")
    assert data.graph.num_edges == 2 * 90 + 30
    assert from_pyg_data(labelled_graph(train_mask=masks["train_mask"])).test.tolist() == []


def test_a_predictor_is_fitted_to_a_graph():
    data = from_pyg_data(labelled_graph(), self_loops=False)
    assert sorted(torch.cat([data.train, data.valid, data.test]).tolist()) == list(range(30))
    model = rgat.fit(data, comparison=False, max_epochs=1, hidden_channels=4)
    assert model.predict(["node 3"]).columns == ("class 0", "class 1", "class 2")


def test_labels_of_one_node_type_are_found():
    data = HeteroData()
    data["author"].x, data["paper"].x = draw(4, 5), draw(6, 5)
    data["paper"].y = torch.tensor([0, 1, 0, 1, -1, 0])
    data["author", "writes", "paper"].edge_index = torch.tensor([[0, 1, 3], [5, 0, 1]])
    converted = from_pyg_data(data, shares=(0.6, 0.2))
    assert converted.labels.tolist() == [-1, -1, -1, -1, 0, 1, 0, 1, -1, 0]
    assert converted.node_names[4] == "paper 0"
    assert converted.relation_names == ("author writes paper", "self")
    assert converted.graph.edge_index[:, 0].tolist() == [0, 9]
    data["author"].y = torch.zeros(4).long()
    with pytest.raises(ValueError, match="must have `y` in one node type, got 2 with it"):
        from_pyg_data(data)


def test_a_batch_of_a_set_is_its_graphs():
    given = graphs(edge_type=torch.tensor([0, 1, 2, 0, 1, 2]))
    data = from_pyg_data(given, seed=1)
    assert (len(data.train), len(data.valid), len(data.test)) == (19, 2, 3)
    x, batch = data.graphs.batch(torch.tensor([5, 2]))
    assert torch.equal(x, torch.cat([given[5].x, given[2].x]))
    edges = {(s, t, r) for s, t, r in zip(*batch.edge_index.tolist(), batch.edge_type.tolist(), strict=True)}
    own = {(s, t, r) for s, t, r in zip(*given[5].edge_index.tolist(), given[5].edge_type.tolist(), strict=True)}
    assert own | {(n, n, 3) for n in range(4)} == {edge for edge in edges if edge[1] < 4}
    assert data.labels.flatten().tolist() == [n % 2 for n in range(24)]
    result = rgat.training.fit(rgat.training.build_model(data), data, Settings(max_epochs=1, batch_size=8))
    assert result.metric == "mean ROC-AUC"


def test_one_hot_edge_attributes_are_relations_and_others_stay_features():
    one_hot = torch.eye(4)[torch.tensor([0, 1, 1, 0, 2, 2])]
    data = from_pyg_data(graphs(edge_attr=one_hot))
    assert (data.graphs.num_relations, data.graphs.edge_attr) == (5, None)  # with the column that no edge has
    assert from_pyg_data(graphs()).relation_names == ("relation 0", "self")
    features = from_pyg_data(graphs(edge_attr=draw(6, 2)), self_loops=False).graphs
    assert (features.num_relations, features.edge_attr.shape) == (1, (24 * 6, 2))


def test_several_classes_become_tasks_and_nan_is_no_label():
    given = graphs(6)
    for number, graph in enumerate(given):
        graph.y = torch.tensor([number % 3])
    data = from_pyg_data(given)
    assert data.tasks == ("class 0", "class 1", "class 2")
    assert torch.equal(data.labels, torch.eye(3).long().repeat(2, 1))
    for graph in given:
        graph.y = torch.tensor([[1.0, float("nan")]])
    data = from_pyg_data(given)
    assert (data.tasks, data.labels[0].tolist()) == (("y0", "y1"), [1, MISSING])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda given: given.clear(), "must be a Data, a HeteroData or a sequence of Data"),
        (lambda given: setattr(given[1], "y", None), "must all have `y` with the same number of labels"),
        (lambda given: setattr(given[1], "y", torch.tensor([0.5])), "must be class ids, 0, 1, 2 and so on, or NaN"),
        (lambda given: [setattr(g, "y", torch.tensor([[0, 7]])) for g in given], "must be 0 or 1 each, got a class 7"),
        (lambda given: setattr(given[1], "x", None), "must have node features `x`, got one without"),
        (lambda given: setattr(given[0], "edge_type", torch.zeros(6).long()), "all have `edge_type` or none of them"),
    ],
)
def test_unfit_sets_are_refused(change, sentence):
    given = graphs(4)
    change(given)
    with pytest.raises(ValueError, match=sentence):
        from_pyg_data(given)


def test_nodes_without_classes_are_refused():
    data = labelled_graph()
    data.y = data.y.float()
    with pytest.raises(ValueError, match="nodes must have `y`, one class id each"):
        from_pyg_data(data)


def test_a_mask_of_several_splits_is_refused():
    data = labelled_graph()
    data.train_mask = torch.zeros(data.num_nodes, 10, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"`train_mask` must have one truth value per node, .*; of several splits"):
        from_pyg_data(data)
