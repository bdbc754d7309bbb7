import copy
import pickle
import sys
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import rgat.graph
from rgat import RelationalGraph
from rgat.data import GraphStore, graph_store, load
from rgat.nn import RGATConv

ORDERING = ("sort", "unique", "bincount", "histogram", "topk", "search", "nonzero", "where")


def make_store(graphs, num_relations=3, edge_dim=None, **changes):
    """A store of graphs given as (number of nodes, list of (source, target, relation, feature))."""
    sizes = torch.tensor([0] + [num_nodes for num_nodes, _ in graphs])
    edge_sizes = torch.tensor([0] + [len(edges) for _, edges in graphs])
    node_ptr = sizes.cumsum(0)
    starts = zip(node_ptr.tolist()[:-1], graphs, strict=True)
    edges = [(start + s, start + t, r, feature) for start, (_, own) in starts for s, t, r, feature in own]
    table = torch.tensor(edges, dtype=torch.long).view(-1, 4)
    parts = {
        "x": torch.randn(int(node_ptr[-1]), 2),
        "edge_index": table[:, :2].t(),
        "edge_type": table[:, 2],
        "node_ptr": node_ptr,
        "edge_ptr": edge_sizes.cumsum(0),
        "num_relations": num_relations,
        "edge_attr": None if edge_dim is None else (table[:, 3:] >> torch.arange(edge_dim) & 1).double(),
    }
    return GraphStore(**{**parts, **changes})


def random_store(num_graphs=30, num_relations=4, edge_dim=None, seed=0):
    """Graphs of up to 9 nodes, some without nodes, some without edges; the last relation is unused."""
    generator = torch.Generator().manual_seed(seed)
    graphs = []
    for num_nodes in torch.randint(10, (num_graphs,), generator=generator).tolist():
        count = int(torch.randint(40, (1,), generator=generator)) if num_nodes > 1 else 0
        bounds = torch.tensor([max(num_nodes, 1), max(num_nodes, 1), num_relations - 1, 4])
        graphs.append((num_nodes, (torch.rand(count, 4, generator=generator) * bounds).long().tolist()))
    return make_store(graphs, num_relations, edge_dim)


@st.composite
def stores_and_ids(draw):
    num_relations = draw(st.integers(0, 4))

    def edges(num_nodes):
        node, relation = (st.integers(0, max(count - 1, 0)) for count in (num_nodes, num_relations))
        edge = st.tuples(node, node, relation, st.integers(0, 3))
        return st.tuples(st.just(num_nodes), st.lists(edge, max_size=12 if num_nodes and num_relations else 0))

    graphs = draw(st.lists(st.integers(0, 4).flatmap(edges), max_size=6))
    ids = draw(st.lists(st.integers(0, max(len(graphs) - 1, 0)), max_size=8 if graphs else 0))
    edge_dim = draw(st.sampled_from([None, 0, 1, 2]))
    return make_store(graphs, num_relations, edge_dim), torch.tensor(ids, dtype=torch.long)


def unprepared(batch):
    return RelationalGraph(
        batch.edge_index,
        batch.edge_type,
        num_nodes=len(batch.batch),
        num_relations=batch._num_relations,
        edge_attr=batch.edge_attr,
        batch=batch.batch,
        num_graphs=batch._num_graphs,
    )


def assert_same_structure(batch):
    """Compare every leaf with what sorting the batch gives."""
    assert batch.is_prepared
    actual, expected = (graph.structure.leaves() for graph in (batch, unprepared(batch)))
    assert len(actual) == len(expected) == 19
    for a, b in zip(actual, expected, strict=True):
        assert a.dtype == b.dtype
        assert a.is_contiguous()
        assert torch.equal(a, b)


def one_by_one(graphs, ids):
    """The batch's features and edges, collected in a loop."""
    x, edges, types, attributes, owner, num_nodes = [], [], [], [], [], 0
    for place, k in enumerate(ids.tolist()):
        nodes, mine = (slice(int(ptr[k]), int(ptr[k + 1])) for ptr in (graphs.node_ptr, graphs.edge_ptr))
        x.append(graphs.x[nodes])
        edges.append(graphs.edge_index[:, mine] - graphs.node_ptr[k] + num_nodes)
        types.append(graphs.edge_type[mine])
        attributes.append(None if graphs.edge_attr is None else graphs.edge_attr[mine])
        owner += [place] * len(x[-1])
        num_nodes += len(x[-1])
    return x, edges, types, attributes, owner


@settings(max_examples=150, deadline=None)
@given(stores_and_ids())
def test_a_batch_is_its_graphs_side_by_side_with_the_structure_that_sorting_gives(drawn):
    graphs, ids = drawn
    x, batch = graphs.batch(ids)
    assert_same_structure(batch)
    assert (batch.num_graphs, batch.num_nodes, batch.num_relations) == (len(ids), len(x), graphs.num_relations)
    features, edges, types, attributes, owner = one_by_one(graphs, ids)
    assert batch.batch.tolist() == owner
    assert batch.edge_index.dtype == batch.edge_type.dtype == batch.batch.dtype == torch.long
    if len(ids):
        assert torch.equal(x, torch.cat(features))
        assert torch.equal(batch.edge_index, torch.cat(edges, dim=1))
        assert torch.equal(batch.edge_type, torch.cat(types))
        assert graphs.edge_attr is None or torch.equal(batch.edge_attr, torch.cat(attributes))
    assert (batch.edge_attr is None) == (graphs.edge_attr is None)


@pytest.mark.parametrize("edge_dim", [None, 2])
@pytest.mark.parametrize("wide", [False, True])
def test_large_batches_too(edge_dim, wide, monkeypatch):
    if wide:  # as in a store with more entries than 32 bits can number
        monkeypatch.setattr(graph_store, "INT32_LIMIT", 0)
    graphs = random_store(200, edge_dim=edge_dim)
    assert (graphs.node_ptr.diff() == 0).any()
    assert ((graphs.edge_ptr.diff() == 0) & (graphs.node_ptr.diff() > 0)).any()
    for ids in (torch.arange(200), torch.randint(200, (300,)), torch.randint(200, (64,)).int()):
        assert_same_structure(graphs.batch(ids)[1])


def test_edges_of_a_batch_keep_the_order_of_the_store():
    graphs = make_store([(3, [(2, 1, 1, 0), (0, 1, 0, 0)]), (2, [(1, 1, 2, 0), (0, 0, 0, 0)])])
    batch = graphs.batch(torch.tensor([1, 0]))[1]
    assert batch.edge_index.tolist() == [[1, 0, 4, 2], [1, 0, 3, 3]]
    assert batch.structure.order.tolist() == [1, 0, 3, 2]


@pytest.mark.parametrize("edge_dim", [None, 1])
def test_selected_graphs_are_a_store_of_their_own(edge_dim):
    graphs = random_store(edge_dim=edge_dim)
    ids = torch.tensor([4, 29, 4, 0, 11])
    chosen = graphs.select(ids)
    assert len(chosen) == 5
    for places in (torch.arange(5), torch.tensor([3, 1, 1]), torch.tensor([], dtype=torch.long)):
        (x, batch), (expected_x, expected) = chosen.batch(places), graphs.batch(ids[places])
        assert torch.equal(x, expected_x)
        leaves = [pytree.tree_leaves(graph) for graph in (batch, expected)]
        assert len(leaves[0]) == 22 + (edge_dim is not None)
        assert all(torch.equal(a, b) for a, b in zip(*leaves, strict=True))
    assert torch.equal(chosen.edge_index[:, -1:], graphs.select(ids[-1:]).edge_index[:, -1:] + chosen.node_ptr[-2])


def test_an_index_gives_one_prepared_graph():
    graphs = random_store()
    for k in (0, 7, 29, -1, -30):
        assert_same_structure(graphs[k])
        assert torch.equal(graphs[k].edge_index, graphs.batch(torch.tensor([k % 30]))[1].edge_index)
    for k in (30, -31):
        with pytest.raises(IndexError, match=f"graph {k} of 30"):
            graphs[k]


class Watch(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def calls(graphs, ids):
    """Names of all functions, of Python and of C, that one batch calls, and of the operators of torch."""
    names = []

    def note(frame, event, argument):
        if event in ("call", "c_call"):
            names.append(frame.f_code.co_qualname if event == "call" else argument.__qualname__)

    sys.setprofile(note)
    try:
        graphs.batch(ids)
    finally:
        sys.setprofile(None)
    with Watch() as watch:
        graphs.batch(ids)
    return names, watch.names


def test_a_batch_of_a_prepared_store_neither_sorts_nor_loops(monkeypatch):
    graphs = random_store(edge_dim=2)
    before = calls(graphs, torch.arange(30))[0]
    assert any("sort" in name for name in before), "preparing a store sorts: the watch must see it"

    def derive(*_):
        raise AssertionError("derived again")

    monkeypatch.setattr(rgat.graph, "derive", derive)
    few, many = (calls(graphs, torch.randint(30, (count,))) for count in (2, 500))
    assert len(few[0]) > 50
    assert "aten.index_select.default" in few[1]
    for names in (*few, *many):
        assert not [name for name in names if any(word in name.lower() for word in ORDERING)]
    assert few == many, "what is called must not depend on the number of graphs"
    graphs.batch(torch.arange(3))[1].prepare()


def test_gradients_reach_the_features_of_the_store():
    graphs = random_store(edge_dim=2)
    graphs = replace(graphs, x=graphs.x.requires_grad_(), edge_attr=graphs.edge_attr.requires_grad_())
    x, batch = graphs.batch(torch.tensor([3, 5, 3]))
    (x.sum() + batch.edge_attr.sum()).backward()
    expected = torch.zeros(30)
    expected[3], expected[5] = 2, 1
    assert torch.equal(graphs.x.grad[:, 0], expected.repeat_interleave(graphs.node_ptr.diff()))
    assert torch.equal(graphs.edge_attr.grad[:, 0], expected.double().repeat_interleave(graphs.edge_ptr.diff()))


def test_a_batch_made_in_inference_mode_can_be_trained_on():
    graphs = random_store()
    with torch.inference_mode():
        batch = graphs.batch(torch.arange(30))[1]
    assert not any(leaf.is_inference() for leaf in pytree.tree_leaves(batch))
    conv = RGATConv(2, 3, 4, score="multiplicative")
    conv(graphs.x, batch).square().sum().backward()
    assert conv.bias.grad.abs().max() > 0


def test_prepared_stores_and_their_batches_survive_copies():
    graphs = random_store(edge_dim=2)
    ids = torch.tensor([3, 5, 3])
    expected = pytree.tree_leaves(graphs.batch(ids)[1])
    for copied in (copy.deepcopy(graphs), pickle.loads(pickle.dumps(graphs))):
        for batch in (copied.batch(ids)[1], copy.deepcopy(copied.batch(ids)[1]), copied.batch(ids)[1].to("cpu")):
            assert all(torch.equal(a, b) for a, b in zip(pytree.tree_leaves(batch), expected, strict=True))


@pytest.mark.gpu
def test_a_moved_batch_stays_prepared():
    batch = random_store(edge_dim=2).batch(torch.tensor([3, 5, 3]))[1]
    moved = batch.to("cuda")
    assert moved.is_prepared
    for a, b in zip(pytree.tree_leaves(moved), pytree.tree_leaves(batch), strict=True):
        assert a.is_cuda
        assert torch.equal(a.cpu(), b)


@pytest.mark.parametrize("ids", [[0, 2], [-1]])
def test_ids_of_graphs_must_exist(ids):
    graphs = make_store([(1, []), (2, [])])
    with pytest.raises(ValueError, match=r"`graphs` must lie between 0 and the number of graphs - 1 = 1, got (2|-1)"):
        graphs.batch(torch.tensor(ids))


def test_a_store_is_checked_when_it_is_prepared():
    edges = [(2, [(0, 1, 2, 1)]), (2, [(0, 1, 0, 1)])]
    with pytest.raises(ValueError, match="got an edge that leaves its graph; add"):
        make_store(edges, edge_index=torch.tensor([[0, 0], [1, 1]])).batch(torch.tensor([0]))
    with pytest.raises(ValueError, match="`edge_type` must lie between 0 and num_relations - 1 = 1, got 2"):
        make_store(edges, num_relations=2).batch(torch.tensor([1]))
    with pytest.raises(ValueError, match="`edge_attr` must not contain NaN"):
        make_store(edges, edge_attr=torch.tensor([[float("nan")], [0.0]])).batch(torch.tensor([1]))


def test_a_list_of_graphs_is_cut_by_nodes_and_edges():
    store, ids = random_store(), torch.arange(30)
    sizes = [graph.num_nodes + graph.num_edges for graph in (store[k] for k in range(30))]
    assert store.sizes.tolist() == sizes
    for most in (1, max(sizes), 2 * max(sizes), sum(sizes)):
        parts = list(store.split(ids, most))
        assert torch.equal(torch.cat(parts), ids)
        totals = [sum(sizes[k] for k in part) for part in parts]
        assert all(total <= most or len(part) == 1 for total, part in zip(totals, parts, strict=True))
        for total, after in zip(totals, parts[1:], strict=False):
            assert total + sizes[after[0]] > most, "there was room for one more"
    assert [part.tolist() for part in store.split(ids[:0])] == [[]]


def test_batches_of_a_store_equal_collated_graphs():
    store = load("molecules").graphs
    ids = torch.tensor([5, 0, 5, 300, 17])
    x, batch = store.batch(ids)
    expected = RelationalGraph.collate([store[int(k)] for k in ids])
    assert torch.equal(batch.edge_index, expected.edge_index)
    assert torch.equal(batch.edge_type, expected.edge_type)
    assert torch.equal(batch.batch, expected.batch)
    assert (batch.num_graphs, batch.num_nodes) == (5, expected.num_nodes)
    assert torch.equal(x, torch.cat([store.batch(k.view(1))[0] for k in ids]))
    assert torch.equal(store[-1].edge_type, store[319].edge_type)
    with pytest.raises(IndexError, match="graph 320 of 320"):
        store[320]
