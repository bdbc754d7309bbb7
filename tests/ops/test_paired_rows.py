import contextlib

import torch
from helpers import random_graph
from hypothesis import given
from hypothesis import strategies as st

from rgat import RelationalGraph
from rgat.nn import RGATConv
from rgat.ops import backend, cache
from rgat.ops.numba.queries import project_queries
from rgat.ops.triton import paired_rows as module
from rgat.ops.triton.paired_rows import find_pairs, paired_rows


def pairs_by_hand(graph):
    """Return for each relation those whose targets are its sources, as sets of nodes."""
    ends = [[set(), set()] for _ in range(graph.num_relations)]
    for source, target, relation in zip(*graph.edge_index.tolist(), graph.edge_type.tolist(), strict=True):
        ends[relation][0].add(source)
        ends[relation][1].add(target)
    return [[r for r, (_, targets) in enumerate(ends) if targets == sources] for sources, _ in ends]


@given(st.integers(1, 8), st.integers(1, 25), st.integers(1, 4), st.booleans(), st.booleans(), st.integers(0, 2**20))
def test_pairs_are_found_exactly_where_a_permutation_of_the_relations_pairs_their_ends(
    num_nodes, num_edges, num_relations, inverse, loops, seed
):
    generator = torch.Generator().manual_seed(seed)
    edges = torch.randint(num_nodes, (2, num_edges), generator=generator)
    relation = torch.randint(num_relations, (num_edges,), generator=generator)
    graph = RelationalGraph(edges, relation, num_nodes=num_nodes, num_relations=num_relations)
    graph = graph.with_inverses() if inverse else graph
    graph = graph.with_self_loops() if loops else graph
    possible, s = pairs_by_hand(graph), graph.structure
    pairs = find_pairs(s)
    if inverse:
        assert pairs
    if not pairs:
        sources = sorted(tuple(sorted(set(edges[0][relation == r].tolist()))) for r in range(num_relations))
        targets = sorted(tuple(sorted(set(edges[1][relation == r].tolist()))) for r in range(num_relations))
        assert sources != targets
        return
    assert sorted(pairs.relation.tolist()) == list(range(graph.num_relations))
    assert all(other in possible[r] for r, other in enumerate(pairs.relation.tolist()))
    row = torch.arange(len(s.sources.node)) + pairs.shift[s.sources.relation.long()]
    assert torch.equal(s.targets.node[row], s.sources.node)
    assert torch.equal(s.targets.relation[row], pairs.relation[s.sources.relation.long()])


def test_rows_of_small_graphs_and_of_graphs_with_fewer_targets_are_not_paired():
    graph = random_graph(20, 60, 3)
    assert paired_rows(graph.with_inverses().structure) is None
    assert paired_rows(graph.structure) is None


def test_pairs_are_not_looked_for_again_where_rows_read_other_nodes(monkeypatch):
    monkeypatch.setattr(module, "_MIN_ROWS", 0)
    monkeypatch.setattr(module, "cached", lambda tensor, name, compute: compute())
    s = random_graph(20, 60, 3).with_inverses().structure
    assert paired_rows(s)
    other = s.reading_at(torch.randperm(s.num_nodes), False)
    assert paired_rows(other) is None
    assert paired_rows(s)


def test_the_first_call_of_compiled_code_makes_no_table(monkeypatch):
    monkeypatch.setattr(module, "_MIN_ROWS", 0)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(contextlib.nullcontext, "synchronize", lambda self: None, raising=False)
    found = []
    monkeypatch.setattr(
        "rgat.ops.numba.backend.project_queries",
        lambda operands, call: found.append(paired_rows(call.structure)) or project_queries(operands, call),
    )
    graph, conv, x = random_graph(20, 60, 3).with_inverses().prepare(), RGATConv(4, 3, 6), torch.randn(20, 4)
    compiled = torch.compile(conv, backend="aot_eager", fullgraph=True)
    with backend("numba"):
        compiled(x, graph).sum().backward()
        with torch.no_grad():
            compiled(x, graph)
        assert found == [None, None]
        conv(x, graph)
        assert found[2] is not None
        compiled(x, graph)
        assert found[3] is found[2]


def test_what_is_asked_for_at_once_is_computed_in_the_first_call_and_only_there(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(contextlib.nullcontext, "synchronize", lambda self: None, raising=False)
    tensor, made = torch.zeros(3), []

    def make():
        made.append(len(made))
        return "made"

    assert cache.cached(tensor, "one", make) is None
    with cache.at_once():
        assert cache.cached(tensor, "one", make) == "made"
        with cache.at_once():
            pass
        assert cache.cached(tensor, "two", make) == "made"
    assert cache.cached(tensor, "one", make) == "made"
    assert cache.cached(tensor, "three", make) is None
    assert made == [0, 1]
