"""Graphs that are samples of a larger one: fewer targets than nodes, and ids of the whole graph."""

import copy
import io
import pickle

import pytest
import torch
from helpers import random_graph
from torch.export import Dim
from torch.utils import _pytree as pytree

from rgat import RelationalGraph, ops
from rgat.nn import RGATConv, RGCNConv
from rgat.sampling import NeighborSampler


def sampled(**options):
    """Return the first of two sampled graphs, with more nodes than targets, and its whole graph."""
    whole = random_graph(40, 200, 4, **options)
    return NeighborSampler(whole, [2, 2], seed=1).sample(torch.tensor([3, 8, 30])).graphs[0], whole


def ids_by_edge(graph):
    """Return all edges of a sample in the ids of the whole graph, each with its id there, and the ids of the rows."""
    s = graph.structure
    source, target = graph.node_ids[graph.edge_index[:, s.order.long()]]
    relation = graph.edge_type[s.order.long()]
    edges = sorted(zip(*(each.tolist() for each in (s.edge_id, target, relation, source)), strict=True))
    return edges, s.row_id.tolist()


def saved(graph):
    buffer = io.BytesIO()
    torch.save(graph, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


@pytest.mark.parametrize("edge_dim", [None, 2])
def test_a_sample_survives_copies_files_and_moves(edge_dim):
    graph, _ = sampled(edge_dim=edge_dim)
    conv = RGATConv(5, 3, 4, edge_dim=edge_dim, feature_dropout=0.4, edge_dropout=0.4).double()
    x = torch.randn(graph.num_nodes, 5).double()
    expected = copy.deepcopy(conv)(x, graph)
    copies = (copy.copy(graph), copy.deepcopy(graph), pickle.loads(pickle.dumps(graph)), saved(graph), graph.to("cpu"))
    for copied in copies:
        assert copied.is_prepared
        assert copied.num_targets == graph.num_targets < graph.num_nodes
        assert torch.equal(copied.node_ids, graph.node_ids)
        assert ids_by_edge(copied) == ids_by_edge(graph)
        torch.testing.assert_close(copy.deepcopy(conv)(x, copied), expected)  # the same masks
    leaves, spec = pytree.tree_flatten(graph)
    assert len(leaves) == 24 + (edge_dim is not None)
    again = pytree.tree_unflatten(leaves, spec)
    assert ids_by_edge(again) == ids_by_edge(graph)
    assert torch.equal(copy.deepcopy(conv)(x, again), expected)


def test_changed_graphs_keep_targets_and_node_ids():
    graph, _ = sampled()
    kept = torch.arange(0, graph.num_edges, 2)
    changed = [graph.with_edges(kept), graph.with_self_loops(), *graph.receptive_fields(torch.tensor([0]))]
    for each in changed:
        assert (each.num_nodes, each.num_targets) == (graph.num_nodes, graph.num_targets)
        assert torch.equal(each.node_ids, graph.node_ids)
        assert RGATConv(5, 3, each.num_relations)(torch.randn(each.num_nodes, 5), each).shape[0] == graph.num_targets
    assert graph.with_self_loops().num_edges == graph.num_edges + graph.num_targets
    with pytest.raises(ValueError, match="must not get inverse edges; add them to the whole graph, then sample"):
        graph.with_inverses()


def test_collated_samples_have_the_outputs_of_each():
    (graph, _), other = sampled(), random_graph(6, 20, 4)
    batch = RelationalGraph.collate([graph, other])
    assert batch.num_targets == batch.num_nodes
    assert torch.equal(batch.node_ids, torch.cat([graph.node_ids, torch.arange(6)]))
    conv = RGATConv(40, 3, 4)
    out = conv(None, batch)
    torch.testing.assert_close(out[: graph.num_targets], conv(None, graph))
    padded = RelationalGraph(other.edge_index, other.edge_type, num_nodes=40, num_relations=4)
    torch.testing.assert_close(out[graph.num_nodes :], conv(None, padded)[:6])
    assert RelationalGraph.collate([other, other]).node_ids is None


def test_a_compact_layer_refuses_a_node_that_comes_twice():
    graph, whole = sampled()
    conv = RGATConv(40, 3, 4, graph=whole)
    out = conv(None, graph)
    torch.testing.assert_close(conv(None, RelationalGraph.collate([graph]))[: len(out)], out)
    with pytest.raises(ValueError, match="must get each node of its graph once, got one several times"):
        conv(None, RelationalGraph.collate([graph, graph]))


def test_layers_give_outputs_of_the_targets_alone():
    whole = random_graph(40, 200, 4)
    graph = RelationalGraph(
        torch.tensor([[5, 6], [0, 1]]), torch.tensor([0, 3]), num_nodes=9, num_relations=4, num_targets=2
    )
    x = torch.randn(9, 5)
    all_nodes = RelationalGraph(graph.edge_index, graph.edge_type, num_nodes=9, num_relations=4)
    for backend in ("numba", "torch", "reference"):
        with ops.backend(backend):
            conv = RGATConv(5, 3, 4, heads=2)
            assert torch.equal(conv(x, graph), conv(x, all_nodes)[:2])
    assert whole.num_targets == whole.num_nodes == 40


def test_a_layer_without_features_refuses_ids_beyond_its_kernel():
    graph, _ = sampled()
    for conv in (RGATConv(30, 3, 4), RGCNConv(30, 3, 4)):
        with pytest.raises(ValueError, match="`node_ids` must lie between 0 and in_channels - 1 = 29, got"):
            conv(None, graph)


@pytest.mark.parametrize("options", [{"feature_dropout": 0.3, "edge_dropout": 0.3}, {"edge_dim": 2, "heads": 2}])
def test_a_layer_compiles_on_samples(options):
    torch.use_deterministic_algorithms(False)
    torch._dynamo.reset()
    conv = RGATConv(5, 3, 4, **options)
    twin = copy.deepcopy(conv)
    compiled = torch.compile(conv, fullgraph=True, backend="aot_eager")
    graph, _ = sampled(edge_dim=options.get("edge_dim"))
    graph.edge_attr = None if graph.edge_attr is None else graph.edge_attr.float()
    x = torch.randn(graph.num_nodes, 5)
    for layer in (compiled, twin):
        layer(x, graph).square().sum().backward()
    for a, b in zip(conv.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)


@pytest.mark.parametrize("featureless", [False, True])
def test_a_layer_exports_with_samples_of_any_size(featureless):
    torch.use_deterministic_algorithms(False)
    conv = RGATConv(40 if featureless else 5, 3, 4, heads=2).eval()
    whole = random_graph(40, 200, 4)
    sampler = NeighborSampler(whole, [2, 2])
    first, second = (sampler.sample(torch.tensor(seeds)).graphs[0] for seeds in ([3, 8, 30], [1, 2, 5, 7, 11, 12]))
    assert first.num_targets != second.num_targets
    x, y = (None if featureless else torch.randn(graph.num_nodes, 5) for graph in (first, second))
    leaves = [leaf for leaf in pytree.tree_leaves((x, first)) if leaf is not None]
    shapes = [[Dim.AUTO] * leaf.dim() for leaf in leaves]
    dynamic = (None, shapes) if featureless else (shapes[0], shapes[1:])
    program = torch.export.export(conv, (x, first), dynamic_shapes=dynamic)
    torch.testing.assert_close(program.module()(y, second), conv(y, second))
