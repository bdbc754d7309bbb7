"""Provide random graphs, comparisons with the float64 reference, covering tables, and changed model folders."""

import copy
import itertools

import torch

from rgat import RelationalGraph, ops
from rgat.data import GraphData, GraphStore, NodeData
from rgat.training import load_checkpoint, save_checkpoint

TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-5, torch.bfloat16: 3e-2}


def random_graph(num_nodes=9, num_edges=60, num_relations=4, edge_dim=None, seed=0, **options):
    """Return a graph with parallel edges, an isolated last node and an unused last relation."""
    generator = torch.Generator().manual_seed(seed)
    edge_index = torch.randint(max(num_nodes - 1, 1), (2, num_edges), generator=generator)
    edge_type = torch.randint(max(num_relations - 1, 1), (num_edges,), generator=generator)
    edge_attr = None
    if edge_dim is not None:
        edge_attr = torch.randn(num_edges, edge_dim, generator=generator, dtype=torch.float64)
    return RelationalGraph(
        edge_index, edge_type, num_nodes=num_nodes, num_relations=num_relations, edge_attr=edge_attr, **options
    )


def hub_graph(degree, as_target):
    """Return a graph in which one node has a very high degree in one of three relations."""
    generator = torch.Generator().manual_seed(3)
    many = torch.randint(1, 50, (degree,), generator=generator)
    few = torch.randint(50, (2, 100), generator=generator)
    edges = torch.stack([many, torch.zeros_like(many)] if as_target else [torch.zeros_like(many), many])
    relation = torch.cat([torch.ones(degree, dtype=torch.long), torch.randint(3, (100,), generator=generator)])
    return RelationalGraph(torch.cat([edges, few], dim=1), relation, num_nodes=50, num_relations=3)


def with_edge_attr(graph, edge_attr):
    return RelationalGraph(
        graph.edge_index,
        graph.edge_type,
        num_nodes=graph.num_nodes,
        num_relations=graph.num_relations,
        edge_attr=edge_attr,
        batch=graph.batch,
    )


def relative_error(actual, expected):
    """Return the largest difference relative to the largest expected value."""
    if expected.numel() == 0:
        return 0.0
    actual, expected = actual.detach(), expected.detach()
    assert not actual.isnan().any(), "NaN"
    return float((actual.double() - expected.double()).abs().max() / expected.double().abs().max().clamp(min=1e-30))


def assert_close(actual, expected, tolerance, what="value"):
    assert actual.shape == expected.shape, f"{what}: {list(actual.shape)} is not {list(expected.shape)}"
    error = relative_error(actual, expected)
    assert error <= tolerance, f"{what}: relative error {error:.2e} > {tolerance:.0e}"


def pack_half(tensor):
    """Cast a tensor saved for backward to bfloat16; with ``unpack``, for ``saved_tensors_hooks``."""
    return (tensor.dtype, tensor.bfloat16()) if tensor.is_floating_point() else (None, tensor)


def unpack(packed):
    dtype, tensor = packed
    return tensor if dtype is None else tensor.to(dtype)


def run(conv, x, graph, cotangents, backend, autocast=None, device="cpu", x_is_given=False, **call):
    """Return outputs and all gradients of one call of a copy of ``conv``; given features need no gradient."""
    conv = copy.deepcopy(conv).to(device)
    graph = graph.to(device)
    if x is not None:
        x = x.to(device)
        if x.is_floating_point() and x.layout == torch.strided:
            x = x.detach().clone().requires_grad_(not x_is_given)
    edge_attr = None
    if graph.edge_attr is not None and getattr(conv, "edge_dim", None) is not None:
        edge_attr = graph.edge_attr.detach().clone().to(next(conv.parameters()).dtype).requires_grad_()
        graph = with_edge_attr(graph, edge_attr)
    with ops.backend(backend), torch.autocast(device, dtype=autocast, enabled=autocast is not None):
        out = conv(x, graph, **call)
        results = {"output": out}
        if call.get("return_attention_weights"):
            results["output"], (_, results["attention"]) = out
    loss = sum((results[name].cpu().double() * cotangent).sum() for name, cotangent in cotangents.items())
    loss.backward()
    for name, parameter in conv.named_parameters():
        results[f"gradient of {name}"] = parameter.grad
    if x is not None and x.requires_grad:
        results["gradient of x"] = x.grad
    if edge_attr is not None:
        results["gradient of edge_attr"] = edge_attr.grad
    return {name: None if value is None else value.cpu() for name, value in results.items()}


def assert_matches_reference(
    conv,
    x,
    graph,
    dtype=torch.float64,
    autocast=None,
    backend="auto",
    device="cpu",
    attention=True,
    plan=None,
    tolerance=None,
    **call,
):
    """Compare output, attention and every gradient, under random cotangents, with the reference in float64.

    ``plan`` is the alternative, or the plan, that the layer is to use.
    """
    if attention:
        call["return_attention_weights"] = True
    exact = copy.deepcopy(conv).double()
    for parameter, rounded in zip(exact.parameters(), conv.to(dtype).parameters(), strict=True):
        parameter.data.copy_(rounded.data)
    is_float = x is not None and x.is_floating_point() and x.layout == torch.strided
    x_exact = x.to(dtype).double() if is_float else x.double() if x is not None and x.layout != torch.strided else x
    with torch.no_grad(), ops.backend("reference"):
        shapes = copy.deepcopy(exact)(x_exact, graph, **call)
    generator = torch.Generator().manual_seed(7)
    outputs = {"output": shapes[0], "attention": shapes[1][1]} if attention else {"output": shapes}
    cotangents = {k: torch.randn(v.shape, generator=generator, dtype=torch.float64) for k, v in outputs.items()}
    expected = run(exact, x_exact, graph, cotangents, "reference", **call)
    if isinstance(plan, str):
        with ops.backend(backend):
            plan = conv.plan(graph, plan)
    if plan is not None:
        call["plan"] = plan
    arguments = (conv, x.to(dtype) if is_float else x, graph, cotangents, backend, autocast, device)
    actual = run(*arguments, **call)
    assert actual.keys() == expected.keys()
    tolerance = tolerance or TOLERANCE[autocast or dtype]
    compared = _compare(actual, expected, tolerance)
    if is_float:
        expected.pop("gradient of x")
        given = run(*arguments, x_is_given=True, **call)
        assert given.keys() == expected.keys()
        _compare(given, expected, tolerance)
    return compared


def _compare(actual, expected, tolerance):
    """Return the number of values that were compared."""
    compared = 0
    for name, value in expected.items():
        if value is None:
            assert actual[name] is None, name
            continue
        if name.startswith("gradient") and value.numel():
            assert value.abs().max() > 0, f"{name} of the reference is zero everywhere: nothing is tested"
        assert_close(actual[name], value, tolerance, name)
        compared += 1
    return compared


def pairwise(options):
    """Return rows that contain every pair of values of any two options; greedy and deterministic."""
    names = list(options)

    def pair(row, a, b):
        return (a, row[a], b, row[b]) if names.index(a) < names.index(b) else (b, row[b], a, row[a])

    pairs = itertools.combinations(names, 2)
    missing = {(a, x, b, y) for a, b in pairs for x in range(len(options[a])) for y in range(len(options[b]))}
    rows = []
    while missing:
        a, x, b, y = min(missing)
        row = {a: x, b: y}
        for name in names:
            if name not in row:
                trials = [{**row, name: value} for value in range(len(options[name]))]
                row = max(trials, key=lambda t, n=name: sum(pair(t, n, o) in missing for o in t if o != n))
        rows.append({name: options[name][row[name]] for name in names})
        missing -= {pair(row, a, b) for a, b in itertools.combinations(names, 2)}
    return rows


def labelled_graph(num_nodes=40):
    """Return a small labelled graph with all parts as a data set."""
    nodes = torch.randperm(num_nodes, generator=torch.Generator().manual_seed(1))
    names = tuple(map(str, range(num_nodes)))
    parts = (nodes[: num_nodes // 2], nodes[num_nodes // 2 : num_nodes * 3 // 4], nodes[num_nodes * 3 // 4 :])
    graph = random_graph(num_nodes, 5 * num_nodes, 4)
    return NodeData("made up", graph, None, nodes % 3, ("a", "b", "c"), *parts, names, names[:4])


def random_graphs():
    """Return a set of small graphs that needs no reader of molecules."""
    graphs, nodes, edges = 60, 5, 12
    relation = torch.randint(3, (graphs * edges,))
    ends = torch.randint(nodes, (2, graphs * edges)) + nodes * torch.arange(graphs).repeat_interleave(edges)
    ptr = [size * torch.arange(graphs + 1) for size in (nodes, edges)]
    store = GraphStore(torch.randn(graphs * nodes, 4), ends, relation, *ptr, num_relations=3)
    labels, ids = torch.randint(2, (graphs, 2)), torch.arange(graphs)
    return GraphData("made up", store, labels, ("a", "b"), ids[:40], ids[40:50], ids[50:], (), ())


def large_graphs():
    """Return twelve graphs of 50,000 nodes and edges each, of which two fit into a scoring batch."""
    graphs, nodes, edges = 12, 20_000, 30_000
    ends = torch.randint(nodes, (2, graphs * edges)) + nodes * torch.arange(graphs).repeat_interleave(edges)
    ptr = [size * torch.arange(graphs + 1) for size in (nodes, edges)]
    store = GraphStore(torch.randn(graphs * nodes, 2), ends, torch.zeros(graphs * edges).long(), *ptr, num_relations=1)
    labels, ids = torch.arange(graphs).unsqueeze(1) % 2, torch.arange(graphs)
    return GraphData("large", store, labels, ("a",), ids[:5], ids[5:9], ids[9:], (), ())


def rewrite(folder, tensors=None, **changes):
    """Write a valid checkpoint again with another record or other tensors."""
    stored, record = load_checkpoint(folder, "fitted")
    record = {key: value for key, value in record.items() if key not in ("format", "tensors", "tensors_sha256")}
    save_checkpoint(folder, stored | (tensors or {}), {**record, **changes}, "fitted")
