import torch
from helpers import random_graph
from hypothesis import given
from hypothesis import strategies as st

from rgat import RelationalGraph
from rgat.ops.triton.single_edges import find_single_edges, single_edges


@given(st.integers(1, 8), st.integers(1, 25), st.integers(1, 4), st.booleans(), st.integers(0, 2**20))
def test_the_table_has_the_only_edge_of_each_row_and_the_places_of_the_others(
    num_nodes, num_edges, num_relations, inverse, seed
):
    generator = torch.Generator().manual_seed(seed)
    edges = torch.randint(num_nodes, (2, num_edges), generator=generator)
    relation = torch.randint(num_relations, (num_edges,), generator=generator)
    graph = RelationalGraph(edges, relation, num_nodes=num_nodes, num_relations=num_relations)
    s = (graph.with_inverses() if inverse else graph).structure
    of_row = [[e for e, row in enumerate(s.source_row.tolist()) if row == u] for u in range(len(s.sources.node))]
    several = [u for u, its in enumerate(of_row) if len(its) > 1]
    table = find_single_edges(s)
    assert bool(table) == (2 * len(several) <= len(of_row))
    if not table:
        return
    assert table.several.tolist() == several
    sizes = s.group_ptr.diff()[s.group.long()].tolist()
    for u, its in enumerate(of_row):
        if len(its) > 1:
            assert table.row[u] == -1 - several.index(u)
            assert table.place[u] == several.index(u)
        else:
            assert table.row[u] == s.target[its[0]]
            assert table.edge[u] == (-1 - its[0] if sizes[its[0]] == 1 else its[0])


def test_single_edges_of_small_graphs_are_not_looked_for():
    assert single_edges(random_graph(20, 60, 3).structure) is None
