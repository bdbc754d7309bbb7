import pytest
import torch
from helpers import random_graph

from rgat import ops
from rgat.nn import RGATConv
from rgat.nn.kernels import find_rows


@pytest.mark.parametrize("backend", ["numba", "torch"])
@pytest.mark.parametrize("ends", [("sources",), ("sources", "targets")])
@pytest.mark.parametrize("fewer", [False, True])
def test_embedding_lookup_and_its_gradient_equal_indexing(backend, ends, fewer):
    graph = random_graph(9, 60, 4)
    conv = RGATConv(9, 3, 4, heads=2, graph=graph).double()
    part = random_graph(9, 60, 4)
    if fewer:  # a graph that uses only some of the rows
        part = type(graph)(graph.edge_index[:, :20], graph.edge_type[:20], num_nodes=9, num_relations=4)
    places = [find_rows(conv.rows, getattr(part.structure, end), part, 9) for end in ends]
    table = conv.kernel.weight
    with ops.backend(backend):
        rows = ops.look_up(table, *places)
        expected = [table[place.place] for place in places]
        assert len(rows) == len(ends)
        cotangents = [torch.randn_like(exact) for exact in expected]
        actual = torch.autograd.grad(sum((a * c).sum() for a, c in zip(rows, cotangents, strict=True)), table)[0]
    assert all(torch.equal(a, b) for a, b in zip(rows, expected, strict=True))
    exact = torch.autograd.grad(sum((a * c).sum() for a, c in zip(expected, cotangents, strict=True)), table)[0]
    torch.testing.assert_close(actual, exact)
    assert exact.abs().max() > 0


def test_row_positions_are_computed_once_per_graph_and_layer():
    graph = random_graph(9, 60, 4)
    first, second = (RGATConv(9, 3, 4, graph=graph) for _ in range(2))
    rows = graph.structure.sources
    assert find_rows(first.rows, rows, graph, 9) is find_rows(first.rows, rows, graph, 9)
    assert find_rows(second.rows, rows, graph, 9) is not find_rows(first.rows, rows, graph, 9)
    with torch.inference_mode():
        find_rows(second.rows, graph.structure.targets, graph, 9)
    second(None, graph).sum().backward()
    assert second.kernel.weight.grad is not None


def test_double_backward_of_an_embedding_lookup_is_refused():
    graph = random_graph(9, 60, 4)
    conv = RGATConv(9, 3, 4, graph=graph)
    (rows,) = ops.look_up(conv.kernel.weight, find_rows(conv.rows, graph.structure.sources, graph, 9))
    (grad,) = torch.autograd.grad(rows.square().sum(), conv.kernel.weight, create_graph=True)
    with pytest.raises(RuntimeError, match="first derivatives only"):
        grad.sum().backward()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("score", ["additive", "multiplicative"])
@pytest.mark.parametrize("scope", ["within", "across"])
@pytest.mark.parametrize(("constant", "dropout"), [(False, 0.0), (False, 0.4), (True, 0.0), (True, 0.4)])
def test_attending_to_rows_in_place_equals_attending_to_copies(threads, score, scope, constant, dropout):
    """The graph uses only some rows, and is large enough for two threads that split within a relation."""
    graph = random_graph(300, 4000, 3)
    options = {"heads": 2, "scope": scope, "score": score, "edge_dropout": 0.3, "feature_dropout": dropout}
    conv = RGATConv(300, 8, 3, graph=graph, **options).double()
    part = type(graph)(graph.edge_index[:, :2500], graph.edge_type[:2500], num_nodes=300, num_relations=3)
    before = torch.get_num_threads()
    results = []
    try:
        torch.set_num_threads(threads)
        for backend in ("numba", "torch"):
            conv.dropout_state[1] = 7
            with ops.backend(backend):
                out, (_, attention) = conv(None, part, return_attention_weights=True, constant_attention=constant)
                loss = (out * torch.linspace(-1, 1, out.numel()).view_as(out)).sum() + attention.square().sum()
                parameters = [p for p in conv.parameters() if p.requires_grad]
                results.append([out, attention, *torch.autograd.grad(loss, parameters, allow_unused=True)])
    finally:
        torch.set_num_threads(before)
    for fast, plain in zip(*results, strict=True):
        assert (fast is None) == (plain is None)
        if fast is not None:
            torch.testing.assert_close(fast, plain)


def test_rows_of_several_layers_are_found_once_and_forgotten_with_their_layer(monkeypatch):
    from rgat.nn import kernels
    from rgat.ops import cache

    graph = random_graph(9, 60, 4)
    layers = [RGATConv(9, 3, 4, graph=graph) for _ in range(3)]
    for _ in range(3):
        for conv in layers:
            conv(None, graph)
    known = cache.kept_with(graph.structure.sources.node)["places"]
    assert len(known) == 3
    monkeypatch.setattr(kernels, "_find_rows", None)
    for conv in layers:
        conv(None, graph)  # nothing is looked up again
    monkeypatch.undo()
    del layers, conv
    last = RGATConv(9, 3, 4, graph=graph)
    last(None, graph)
    assert len(known) == 1
    last.rows.add_(0)  # changed in place: looked up again
    last(None, graph)
    assert len(known) == 1
