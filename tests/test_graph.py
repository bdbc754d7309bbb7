import copy
import io
import pickle
from unittest import mock

import pytest
import torch
from helpers import random_graph
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils import _pytree as pytree

from rgat import RelationalGraph, ops
from rgat.nn import RGCNConv
from rgat.structure import Structure, sorted_edges


def make(edges, num_nodes=4, num_relations=3, **options):
    edges = torch.tensor(edges, dtype=torch.long).view(-1, 3)
    return RelationalGraph(edges[:, :2].t(), edges[:, 2], num_nodes=num_nodes, num_relations=num_relations, **options)


@st.composite
def graphs(draw):
    num_nodes, num_relations = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    edge = st.tuples(st.integers(0, num_nodes - 1), st.integers(0, num_nodes - 1), st.integers(0, num_relations - 1))
    return make(draw(st.lists(edge, max_size=30)), num_nodes, num_relations)


@settings(max_examples=100, deadline=None)
@given(graphs())
def test_the_structure_matches_its_definition(graph):
    s = graph.structure
    source, target = graph.edge_index
    edges = [(int(target[e]), int(graph.edge_type[e]), int(source[e])) for e in s.order]
    assert edges == sorted(edges)
    assert sorted(s.order.tolist()) == list(range(graph.num_edges))
    rows = {
        side: list(zip(r.relation.tolist(), r.node.tolist(), strict=True))
        for side, r in (("s", s.sources), ("t", s.targets))
    }
    assert rows["s"] == sorted({(r, j) for _, r, j in edges})
    assert rows["t"] == sorted({(r, i) for i, r, _ in edges})
    groups = sorted({(i, r) for i, r, _ in edges})
    for e, (i, r, j) in enumerate(edges):
        assert s.target[e] == i
        assert rows["s"][s.source_row[e]] == (r, j)
        assert groups[s.group[e]] == (i, r)
        assert rows["t"][s.targets.by_node[s.group[e]]] == (r, i)
        assert s.target_ptr[i] <= e < s.target_ptr[i + 1]
        assert s.group_ptr[s.group[e]] <= e < s.group_ptr[s.group[e] + 1]
    for u in range(len(rows["s"])):
        mine = s.by_source[s.source_ptr[u] : s.source_ptr[u + 1]].tolist()
        assert mine == [e for e in range(len(edges)) if s.source_row[e] == u]
    for side in (s.sources, s.targets):
        for r in range(graph.num_relations):
            assert (side.relation[side.relation_ptr[r] : side.relation_ptr[r + 1]] == r).all()
        assert side.relation_ptr[-1] == len(side.node)
    assert (len(s.target_ptr), len(s.sources.relation_ptr)) == (graph.num_nodes + 1, graph.num_relations + 1)
    assert all(t.dtype == torch.int32 for t in s.leaves()[:-1])


def test_the_structure_does_not_depend_on_the_order_of_the_edges():
    graph = random_graph(5, 80, 3, edge_dim=2)  # 80 edges among 32 possible ones, so many are parallel
    order = torch.randperm(80)
    shuffled = RelationalGraph(
        graph.edge_index[:, order],
        graph.edge_type[order],
        num_nodes=5,
        num_relations=3,
        edge_attr=graph.edge_attr[order],
    )
    leaves = [each.structure._replace(order=graph.structure.order).leaves() for each in (graph, shuffled)]
    assert all(torch.equal(a, b) for a, b in zip(*leaves, strict=True))
    # Parallel edges are ordered by their features.
    sorted_features = graph.edge_attr[graph.structure.order.long()]
    assert torch.equal(sorted_features, shuffled.edge_attr[shuffled.structure.order.long()])


def test_edges_are_sorted_alike_where_their_ids_exceed_one_number():
    source, target, relation = torch.randint(5, (3, 60), generator=torch.Generator().manual_seed(0))
    features = torch.randint(2, (60, 1), generator=torch.Generator().manual_seed(1)).float()
    expected = sorted(range(60), key=lambda e: (*(int(ids[e]) for ids in (target, relation, source)), features[e]))
    for sizes in ((5, 5), (2**31, 5)):
        assert sorted_edges(source, target, relation, sizes, features).tolist() == expected


def test_prepare_computes_once():
    graph = random_graph()
    assert not graph.is_prepared
    assert graph.prepare() is graph
    assert graph.prepare().structure is graph.structure


def test_with_inverses_adds_reverse_edges_with_new_relations():
    graph = make([(0, 1, 2), (3, 3, 0)], edge_attr=torch.tensor([[1.0], [2.0]])).with_inverses()
    assert graph.edge_index.tolist() == [[0, 3, 1, 3], [1, 3, 0, 3]]
    assert graph.edge_type.tolist() == [2, 0, 5, 3]
    assert graph.num_relations == 6
    assert graph.edge_attr.flatten().tolist() == [1, 2, 1, 2]


def test_with_self_loops_adds_one_relation():
    graph = make([(0, 1, 2)], edge_attr=torch.tensor([[1.0]])).with_self_loops()
    assert graph.edge_index.tolist() == [[0, 0, 1, 2, 3], [1, 0, 1, 2, 3]]
    assert graph.edge_type.tolist() == [2, 3, 3, 3, 3]
    assert graph.num_relations == 4
    assert graph.edge_attr.flatten().tolist() == [1, 0, 0, 0, 0]


def test_collate_keeps_graphs_separate_even_without_nodes():
    empty = make([], num_nodes=0)
    batch = RelationalGraph.collate([make([(0, 1, 2)], 2), empty, make([(2, 0, 1)], 3), empty])
    assert (batch.num_graphs, batch.num_nodes, batch.num_edges) == (4, 5, 2)
    assert batch.edge_index.tolist() == [[0, 4], [1, 2]]
    assert batch.batch.tolist() == [0, 0, 2, 2, 2]
    assert batch.structure.graph_sizes.tolist() == [2, 0, 3, 0]
    assert batch.num_graphs == 4
    nested = RelationalGraph.collate([batch, make([(0, 0, 0)], 1)])
    assert nested.batch.tolist() == [0, 0, 2, 2, 2, 4]
    assert nested.with_inverses().with_self_loops().num_graphs == 5
    assert RelationalGraph.collate([nested, empty]).with_self_loops().num_graphs == 6


def test_collate_concatenates_edge_features():
    parts = [random_graph(4, 5, 2, edge_dim=3, seed=seed) for seed in (0, 1)]
    batch = RelationalGraph.collate(parts)
    assert torch.equal(batch.edge_attr, torch.cat([part.edge_attr for part in parts]))


@pytest.mark.parametrize("options", [{}, {"edge_dim": 2}, {"batch": torch.arange(9) // 3}])
def test_a_graph_is_a_pytree_of_tensors(options):
    graph = random_graph(**options)
    leaves, spec = pytree.tree_flatten(graph)
    assert len(leaves) == 21 + len(options)
    assert all(isinstance(leaf, torch.Tensor) for leaf in leaves)
    again = pytree.tree_unflatten(leaves, spec)
    assert again.is_prepared
    sizes = ("num_nodes", "num_edges", "num_relations", "num_graphs")
    assert [getattr(again, name) for name in sizes] == [getattr(graph, name) for name in sizes]
    assert pytree.tree_structure(random_graph(7, 20, seed=9, **options) if "batch" not in options else graph) == spec
    keyed, _ = pytree.tree_flatten_with_path(graph)
    assert [leaf for _, leaf in keyed] == leaves


@pytest.mark.parametrize("prepared", [False, True])
def test_graphs_survive_copies_pickle_and_moves(prepared):
    graph = random_graph(edge_dim=2, batch=torch.arange(9) // 3)
    if prepared:
        RGCNConv(4, 3, 4).plan(graph)
    for copied in (copy.deepcopy(graph), pickle.loads(pickle.dumps(graph)), graph.to("cpu")):
        assert copied.is_prepared == prepared
        assert torch.equal(copied.edge_index, graph.edge_index)
        assert torch.equal(copied.structure.order, graph.structure.order)
        assert copied.plans == {}
        assert copied.num_graphs == 3
    buffer = io.BytesIO()
    torch.save(graph, buffer)
    buffer.seek(0)
    assert torch.equal(torch.load(buffer, weights_only=True).structure.order, graph.structure.order)
    with pytest.raises(TypeError):
        graph.to(torch.float64)


def test_a_graph_prints_its_sizes():
    text = repr(random_graph(9, 60, 4, edge_dim=2, batch=torch.arange(9)).prepare())
    assert text == "RelationalGraph(num_nodes=9, num_edges=60, num_relations=4, num_graphs=9, edge_dim=2, prepared)"


EDGE = torch.tensor([[0], [1]])
TYPE = torch.tensor([0])
BAD = [
    ({"edge_index": torch.tensor([[0], [4]])}, r"`edge_index` must lie between 0 and num_nodes - 1 = 3, got 4"),
    ({"edge_index": torch.tensor([[-1], [0]])}, r"`edge_index` must lie .* got -1"),
    ({"edge_type": torch.tensor([3])}, r"`edge_type` must lie between 0 and num_relations - 1 = 2, got 3"),
    ({"edge_type": torch.tensor([-2])}, r"got -2"),
    ({"edge_index": EDGE.t()}, r"`edge_index` must have shape \[2, E\], got \[1, 2\]"),
    ({"edge_index": EDGE.float()}, r"`edge_index` must hold integers, got torch.float32"),
    ({"edge_index": [[0], [1]]}, r"`edge_index` must be a tensor, got list"),
    ({"edge_type": TYPE.bool()}, r"`edge_type` must hold integers, got torch.bool"),
    ({"edge_type": torch.tensor([0, 0])}, r"`edge_type` must have one entry per edge, shape \[1\], got \[2\]"),
    ({"num_nodes": -1}, r"`num_nodes` must be an integer of at least 0, got -1"),
    ({"num_relations": 2.0}, r"`num_relations` must be an integer of at least 0, got 2.0"),
    ({"edge_attr": torch.ones(2, 1)}, r"`edge_attr` must have shape \[1, edge_dim\], got \[2, 1\]"),
    ({"edge_attr": torch.ones(1, 1).long()}, r"`edge_attr` must be floating point, got torch.int64"),
    ({"edge_attr": torch.tensor([[torch.nan]])}, r"`edge_attr` must not contain NaN"),
    ({"batch": torch.zeros(3).long()}, r"`batch` must have one entry per node, shape \[4\], got \[3\]"),
    ({"batch": torch.tensor([0, 0, -1, 0])}, r"`batch` must lie between 0 and num_graphs - 1 = 0, got -1"),
    (
        {"batch": torch.tensor([0, 1, 0, 5]), "num_graphs": 3},
        r"`batch` must lie between 0 and num_graphs - 1 = 2, got 5",
    ),
    ({"num_nodes": 2**31}, r"fewer than 2\^31"),
    ({"num_graphs": "two"}, r"`num_graphs` must be an integer of at least 0, got 'two'"),
    ({"edge_attr": [[1.0]]}, r"`edge_attr` must be a tensor, got list"),
    ({"num_targets": 5}, r"`num_targets` must lie between 0 and `num_nodes` = 4, got 5"),
    ({"num_targets": 2.0}, r"`num_targets` must be an integer of at least 0, got 2.0"),
    ({"num_targets": 1}, r"`edge_index\[1\]` must lie between 0 and num_targets - 1 = 0, got 1"),
]


@pytest.mark.parametrize(("change", "message"), BAD, ids=lambda value: value[:40] if isinstance(value, str) else "")
def test_bad_graphs_are_refused_in_one_sentence(change, message):
    arguments = {"edge_index": EDGE, "edge_type": TYPE, "num_nodes": 4, "num_relations": 3} | change
    with pytest.raises((ValueError, TypeError), match=message):
        RelationalGraph(**arguments)


def test_validation_can_be_switched_off():
    RelationalGraph(EDGE, TYPE, num_nodes=4, num_relations=3, edge_attr=torch.tensor([[torch.nan]]), validate=False)


def test_collate_refuses_incompatible_graphs():
    with pytest.raises(ValueError, match="at least one graph"):
        RelationalGraph.collate([])
    with pytest.raises(ValueError, match=r"same `num_relations`, got \[3, 4\]"):
        RelationalGraph.collate([make([]), make([], num_relations=4)])
    with pytest.raises(ValueError, match=r"same number of edge features, got \[1, 2\]"):
        RelationalGraph.collate([make([], edge_attr=torch.ones(0, 2)), make([], edge_attr=torch.ones(0, 1))])
    with pytest.raises(ValueError, match="or none must have `edge_attr`, got 1 of 2"):
        RelationalGraph.collate([make([]), make([], edge_attr=torch.ones(0, 2))])


@pytest.mark.parametrize("prepared", [True, False])
@pytest.mark.parametrize("validate", [True, False])
def test_a_graph_does_not_see_later_changes_to_the_tensors_it_was_built_from(prepared, validate):
    edge_index, edge_type, batch = torch.randint(5, (2, 30)), torch.randint(3, (30,)), torch.arange(5)
    kept = [tensor.clone() for tensor in (edge_index, edge_type, batch)]
    sizes = {"num_nodes": 5, "num_relations": 3, "validate": validate}
    graph = RelationalGraph(edge_index, edge_type, batch=batch, **sizes)
    if prepared:
        graph.prepare()
    for tensor in (edge_index, edge_type, batch):
        tensor.numpy()[...] = 10**6  # also without PyTorch counting versions
    assert all(torch.equal(a, b) for a, b in zip((graph.edge_index, graph.edge_type, graph.batch), kept, strict=True))
    expected = RelationalGraph(kept[0], kept[1], batch=kept[2], **sizes)
    assert all(map(torch.equal, graph.structure.leaves(), expected.structure.leaves()))


@pytest.mark.parametrize("prepared", [True, False])
@pytest.mark.parametrize("name", ["edge_index", "edge_type", "batch"])
def test_a_graph_changed_in_place_is_refused(prepared, name):
    graph = random_graph(batch=torch.arange(9) // 3)
    if prepared:
        graph.prepare()
    getattr(graph, name).fill_(10**6)
    uses = {
        "layer": lambda: RGCNConv(4, 3, 4)(torch.randn(9, 4), graph),
        "move": lambda: graph.to("cpu"),
        "batch": lambda: RelationalGraph.collate([graph]),
        "edges": lambda: graph.with_edges(torch.arange(3)),
        "inverses": lambda: graph.with_inverses(),
        "file": lambda: pickle.dumps(graph),
        "copy": lambda: copy.copy(graph).structure,
    }
    for use in uses.values():
        with pytest.raises(RuntimeError, match="must not be changed"):
            use()
    with ops.backend("reference"), pytest.raises(RuntimeError, match="must not be changed"):
        uses["layer"]()


def test_a_graph_whose_edges_were_replaced_is_refused():
    graph = random_graph().prepare()
    graph.edge_index = graph.edge_index.clone()
    with pytest.raises(RuntimeError, match="must not be changed"):
        RGCNConv(4, 3, 4)(torch.randn(9, 4), graph)


class OwnGraph(RelationalGraph):
    pass


def test_copies_keep_values_set_by_the_caller():
    graph = random_graph(edge_dim=2, validate=False)
    graph.edge_attr[0] = torch.nan  # allowed without validation
    graph.name = "mine"
    for copied in (copy.copy(graph), copy.deepcopy(graph), pickle.loads(pickle.dumps(graph))):
        assert copied.name == "mine"
        assert not copied.validate
        assert copied.edge_attr[0].isnan().all()
    own = object.__new__(OwnGraph)
    own.__dict__ = graph.__dict__
    assert type(copy.copy(own)) is OwnGraph


def test_a_graph_moves_inside_compiled_code():
    graph = random_graph().prepare()
    moved = torch.compile(lambda x: x + graph.to("cpu").edge_type.sum(), backend="eager", fullgraph=True)
    assert moved(torch.zeros(1)) == graph.edge_type.sum()


def test_a_graph_made_in_inference_mode_can_be_trained_on():
    with torch.inference_mode():
        graph = random_graph()
    graph = graph.with_inverses().prepare()
    RGCNConv(4, 3, 8)(torch.randn(9, 4, requires_grad=True), graph).square().sum().backward()


def forge(graph, **changes):
    """Store a graph with manipulated state and load it as an untrusted file."""
    state, buffer = graph.__getstate__() | changes, io.BytesIO()
    with mock.patch.object(RelationalGraph, "__getstate__", return_value=state):
        torch.save(graph, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


def test_a_stored_structure_is_never_trusted():
    graph = random_graph()
    false = Structure.from_leaves([torch.full_like(leaf, 10**8) for leaf in graph.structure.leaves()])
    legacy = {"_structure": false, "_complete": false, "_num_nodes": 9, "_num_relations": 4, "_num_graphs": 1}
    for changes in ({}, legacy):
        loaded = forge(graph, **changes)
        assert loaded.is_prepared
        assert all(map(torch.equal, loaded.structure.leaves(), graph.structure.leaves()))
        assert not hasattr(loaded, "_complete")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"edge_index": torch.full((2, 60), 10**8)}, "`edge_index` must lie between"),
        ({"edge_type": torch.full((60,), -1)}, "`edge_type` must lie between"),
        ({"validate": False, "edge_index": torch.full((2, 60), -(10**8))}, "`edge_index` must lie between"),
        ({"edge_index": None}, "must have the tensors"),
        ({"num_nodes": "nine"}, "`num_nodes` must be an integer"),
        ({"num_graphs": -4}, "`num_graphs` must be an integer"),
        ({"counted": torch.ones(2)}, r"`counted` of a stored graph must have shape \[9\]"),
        ({"node_ids": torch.ones(2)}, r"`node_ids` of a stored graph must have shape \[9\]"),
        ({"num_targets": 3}, r"`edge_index\[1\]` must lie between 0 and num_targets - 1 = 2"),
        ({"prepared": True, "row_id": torch.ones(2)}, r"`row_id` of a stored graph must have shape"),
        ({"prepared": True, "edge_id": [1]}, r"`edge_id` of a stored graph must have shape \[60\]"),
    ],
)
def test_a_stored_graph_is_validated(changes, message):
    with pytest.raises(ValueError, match=message):
        forge(random_graph(), **changes)


def test_building_a_graph_leaves_transforms_as_they_are():
    random_graph(9, 40, 3).prepare()
    assert torch.func.grad(lambda x: (x * x).sum())(torch.ones(3)).tolist() == [2.0, 2.0, 2.0]
    rows = torch.func.vmap(torch.func.grad(lambda x: (x * x).sum()))(torch.ones(2, 3))
    assert rows.tolist() == [[2.0] * 3] * 2
