import sys

import pytest
import torch
from helpers import random_graph
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import NodeLoader
from torch_geometric.sampler import BaseSampler, SamplerOutput

from rgat.data.pyg import from_pyg, to_hetero, to_pyg
from rgat.models import NodeClassifier
from rgat.sampling import Batch


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
    data = HeteroData()
    data["paper"].num_nodes, data["author"].num_nodes = 3, 2
    data["author", "writes", "paper"].edge_index = torch.tensor([[0, 1], [2, 0]])
    data["paper", "cites", "paper"].edge_index = torch.tensor([[0], [1]])
    graph, x = from_pyg(data)
    assert x is None
    assert graph.edge_index.tolist() == [[3, 4, 0], [2, 0, 1]]
    assert graph.edge_type.tolist() == [0, 0, 1]
    assert graph.num_nodes == 5


def test_node_types_with_other_numbers_of_features_have_columns_of_their_own():
    data = HeteroData()
    data["paper"].x, data["author"].x = torch.full((2, 3), 2.0), torch.full((2, 1), 3.0)
    data["venue"].num_nodes = 1
    data["author", "writes", "paper"].edge_index = torch.tensor([[0], [1]])
    _, x = from_pyg(data)
    assert x.tolist() == [[2, 2, 2, 0, 0]] * 2 + [[0, 0, 0, 3, 0]] * 2 + [[0, 0, 0, 0, 1]]
    data["paper", "cites", "paper"].edge_index = torch.tensor([[0], [1]])
    data["paper", "cites", "paper"].edge_attr = torch.ones(1, 2)
    with pytest.raises(ValueError, match=r"`edge_attr` must .* got author-writes-paper none, paper-cites-paper of"):
        from_pyg(data)
    del data["paper", "cites", "paper"].edge_attr
    data["author"].x = torch.ones(2)
    with pytest.raises(ValueError, match=r"`x` of node type author must be a dense table .* got of shape \(2,\)"):
        from_pyg(data)


def test_a_missing_library_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch_geometric", None)
    with pytest.raises(ImportError, match="pip install torch-geometric"):
        to_pyg(random_graph())


def loaded(data, nodes, edges):
    """Return what a loader of PyTorch Geometric yields for these nodes, seed nodes first, and some of the edges."""
    batch = Data(x=data.x[nodes], edge_type=data.edge_type[edges], n_id=nodes, batch_size=2, num_nodes=len(nodes))
    position = torch.full((data.num_nodes,), -1).scatter_(0, nodes, torch.arange(len(nodes)))
    batch.edge_index = position[data.edge_index[:, edges]]
    if data.edge_attr is not None:
        batch.edge_attr = data.edge_attr[edges]
    return batch


@pytest.mark.parametrize("edge_dim", [None, 2])
def test_a_homogeneous_batch_gives_seed_nodes_the_outputs_of_the_whole_graph(edge_dim):
    graph, x = random_graph(9, 60, 4, edge_dim=edge_dim), torch.randn(9, 5).double()
    data, nodes = to_pyg(graph, x), torch.tensor([4, 1, 0, 2, 3, 5, 6, 7])  # node 8 has no edges
    batch = Batch.from_pyg(loaded(data, nodes, torch.randperm(60)), data, num_layers=2, num_relations=4)
    assert (batch.num_seeds, len(batch.graphs)) == (2, 2)
    assert torch.equal(batch.nodes, nodes)
    model = NodeClassifier(5, 3, 4, edge_dim=edge_dim, heads=2).double()
    torch.testing.assert_close(model(x[batch.nodes], batch.graphs)[:2], model(x, graph)[nodes[:2]])
    embedding = NodeClassifier(9, 3, 4, embedding_channels=4, edge_dim=edge_dim).double()
    torch.testing.assert_close(embedding(None, batch.graphs)[:2], embedding(None, graph)[nodes[:2]])
    few = Batch.from_pyg(loaded(data, nodes, (graph.edge_type == 0).nonzero().squeeze(1)), data, 2)
    assert few.graphs[0].num_relations == 3  # those of the whole


class AllNeighbours(BaseSampler):
    """Return all nodes within two steps, seed nodes first, and all edges into those within one."""

    def __init__(self, data):
        self.data = data

    sample_from_edges = None

    def sample_from_nodes(self, index, **_):
        (source, target), nodes, edges = self.data.edge_index, index.node, torch.empty(0, dtype=torch.long)
        for _ in range(2):
            edges = torch.isin(target, nodes).nonzero().squeeze(1)
            found = source[edges].unique()
            nodes = torch.cat([nodes, found[~torch.isin(found, nodes)]])
        place = torch.full((self.data.num_nodes,), -1).scatter_(0, nodes, torch.arange(len(nodes)))
        return SamplerOutput(nodes, place[source[edges]], place[target[edges]], edges, metadata=(index.input_id, None))


def test_batches_of_a_loader_of_pytorch_geometric_are_taken():
    """`NeighborLoader` is this loader with a compiled sampler, of a library that is not installed here."""
    graph, x = random_graph(30, 60, 4), torch.randn(30, 5).double()
    data = to_pyg(graph, x)
    seeds, model = torch.tensor([7, 3, 11, 20, 4]), NodeClassifier(5, 3, 4, heads=2).double()
    expected, sizes = model(x, graph), []
    for number, given in enumerate(NodeLoader(data, AllNeighbours(data), input_nodes=seeds, batch_size=2)):
        batch = Batch.from_pyg(given, data, num_layers=2, num_relations=4)
        assert torch.equal(batch.nodes[: batch.num_seeds], seeds[2 * number : 2 * number + 2])
        found = model(x[batch.nodes], batch.graphs)[: batch.num_seeds]
        torch.testing.assert_close(found, expected[batch.nodes[: batch.num_seeds]])
        sizes.append(len(batch.nodes))
    assert len(sizes) == 3
    assert max(sizes) < 30


def hetero():
    """Return data of two node types and three edge types."""
    data = HeteroData()
    generator = torch.Generator().manual_seed(0)
    sizes = {"paper": 6, "author": 4}
    for name, size in sizes.items():
        data[name].x = torch.randn(size, 5, generator=generator).double()
    for source, name, target in (("author", "writes", "paper"), ("paper", "cites", "paper"), ("paper", "by", "author")):
        ends = [torch.randint(sizes[each], (12,), generator=generator) for each in (source, target)]
        data[source, name, target].edge_index = torch.stack(ends)
    return data


@pytest.mark.parametrize("seeds", ["paper", "author"])
def test_a_heterogeneous_batch_gives_seed_nodes_the_outputs_of_the_whole_graph(seeds):
    data = hetero()
    whole, x = from_pyg(data)
    batch, position = HeteroData(), {}
    for name in ("author", "paper"):  # in another order than in the whole
        nodes = torch.randperm(data[name].num_nodes)
        batch[name].x, batch[name].n_id = data[name].x[nodes], nodes
        position[name] = nodes.argsort()
    for name in reversed(data.edge_types):
        source, target = data[name].edge_index
        batch[name].edge_index = torch.stack([position[name[0]][source], position[name[2]][target]])
    batch[seeds].batch_size = 3
    given = Batch.from_pyg(batch, data, num_layers=2)
    first = 0 if seeds == "paper" else 6
    assert torch.equal(given.nodes[:3], batch[seeds].n_id[:3] + first)
    assert torch.equal(given.nodes.sort()[0], torch.arange(10))
    model = NodeClassifier(5, 2, 3, scope="across").double()
    torch.testing.assert_close(model(x[given.nodes], given.graphs)[:3], model(x, whole)[given.nodes[:3]])


def test_batches_that_no_loader_made_are_refused():
    data = to_pyg(random_graph(9, 60, 4), torch.randn(9, 5))
    batch = loaded(data, torch.arange(9), torch.arange(60))
    del batch.batch_size
    with pytest.raises(ValueError, match="a batch must have `batch_size`, the number of its seed nodes, got none"):
        Batch.from_pyg(batch, data, 2)
    with pytest.raises(ValueError, match="a batch must have `n_id`, as the loaders of PyTorch Geometric give it"):
        Batch.from_pyg(data, data, 2)
    both = hetero()
    with pytest.raises(ValueError, match="seed nodes of one node type, got 0 types with `batch_size`"):
        Batch.from_pyg(both, both, 2)
    both["paper"].batch_size = 1
    with pytest.raises(ValueError, match="a batch must have `n_id`"):
        Batch.from_pyg(both, both, 2)
