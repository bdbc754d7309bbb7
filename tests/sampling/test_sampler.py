import copy
import itertools
import pickle
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import hub_graph, random_graph

from rgat import RelationalGraph, ops
from rgat.models import NodeClassifier
from rgat.nn import RGATConv
from rgat.sampling import Batch, NeighborSampler

N, E, R = 300, 6000, 5
FANOUTS = [[2, 1], [-1, -1], [3, {0: 2, 1: 4}], [5], [1, 2, 3], [{}], [{2: -1, 0: 1}]]


def leaves(batch):
    found = [batch.nodes]
    for graph in batch.graphs:
        found += [graph.edge_index, graph.edge_type, graph.node_ids, *graph.structure.leaves()]
        found += [] if graph.edge_attr is None else [graph.edge_attr]
    return [tensor.cpu() for tensor in found]


def assert_same(first, second):
    assert first.num_seeds == second.num_seeds
    assert all(map(torch.equal, leaves(first), leaves(second)))
    assert len(leaves(first)) == len(leaves(second))


def edges_of(graph, nodes):
    """Return the edges as (source, relation, target) of the whole graph, with the id of each."""
    source, target = nodes[graph.edge_index]
    numbers = (source, graph.edge_type, target, graph.structure.edge_id)
    return list(zip(*(each.tolist() for each in numbers), strict=True))


@pytest.mark.parametrize("backend", ["numba", "torch"])
@pytest.mark.parametrize("fanouts", FANOUTS, ids=str)
def test_a_sample_has_at_most_fanout_edges_of_each_target_and_relation(fanouts, backend):
    whole, seeds = random_graph(N, E, R), torch.tensor([5, 1, 299, 40])
    with ops.backend(backend):
        batch = NeighborSampler(whole, fanouts, seed=3).sample(seeds)
    assert torch.equal(batch.nodes[:4], seeds)
    assert len(batch.graphs) == len(fanouts)
    assert len(batch.nodes.unique()) == len(batch.nodes) == batch.graphs[0].num_nodes
    assert batch.graphs[-1].num_targets == batch.num_seeds == 4
    s = whole.structure
    sorted_edges = [
        *zip(*(each[s.order.long()].tolist() for each in (*whole.edge_index, whole.edge_type)), strict=True)
    ]
    degree = {}
    for _, target, relation in sorted_edges:
        degree[target, relation] = degree.get((target, relation), 0) + 1
    for layer, (graph, fanout) in enumerate(zip(batch.graphs, fanouts, strict=True)):
        if layer:
            assert graph.num_nodes == batch.graphs[layer - 1].num_targets
        assert torch.equal(graph.node_ids, batch.nodes[: graph.num_nodes])
        found = edges_of(graph, batch.nodes)
        assert all(sorted_edges[number] == (j, i, r) for j, r, i, number in found)
        assert len({number for *_, number in found}) == len(found)
        taken = {}
        for _, r, i, _ in found:
            taken[i, r] = taken.get((i, r), 0) + 1
        targets = set(batch.nodes[: graph.num_targets].tolist())
        most = {r: fanout.get(r, -1) if isinstance(fanout, dict) else fanout for r in range(R)}
        expected = {(i, r): d if most[r] < 0 else min(d, most[r]) for (i, r), d in degree.items() if i in targets}
        assert taken == expected


@pytest.mark.parametrize("backend", ["numba", "torch"])
def test_the_structure_of_a_sample_is_that_of_its_edges(backend):
    with ops.backend(backend):
        batch = NeighborSampler(random_graph(N, E, R), [4, {0: 2}], seed=1).sample(torch.arange(20, 30))
    for graph in batch.graphs:
        s, sizes = graph.structure, {"num_nodes": graph.num_nodes, "num_relations": R, "num_targets": graph.num_targets}
        again = RelationalGraph(graph.edge_index, graph.edge_type, **sizes).structure
        for name in ("target", "group", "target_ptr", "group_ptr", "source_ptr", "graph_sizes"):
            assert torch.equal(getattr(s, name), getattr(again, name)), name
        for side in ("sources", "targets"):
            assert all(map(torch.equal, getattr(s, side), getattr(again, side))), side
        order = again.order.long()  # edges of a group are sorted by sources of the whole graph, not by local ones
        assert torch.equal(s.source_row[order], again.source_row)
        for row in range(len(s.sources.node)):
            mine = s.by_source[s.source_ptr[row] : s.source_ptr[row + 1]].tolist()
            assert mine == (s.source_row == row).nonzero().squeeze(1).tolist()
        keys = s.sources.relation.long() * N + batch.nodes[s.sources.node.long()]
        assert torch.equal(s.row_id, keys)


@pytest.mark.parametrize("fanouts", FANOUTS, ids=str)
def test_loops_and_operations_give_the_same_sample_of_a_prepared_and_an_unprepared_graph(fanouts):
    seeds, batches = torch.tensor([5, 1, 9]), []
    for prepared, backend in itertools.product((False, True), ("numba", "torch")):
        whole = random_graph(N, E, R, edge_dim=2)
        with ops.backend(backend):
            batches.append(NeighborSampler(whole.prepare() if prepared else whole, fanouts, seed=3).sample(seeds))
    for batch in batches[1:]:
        assert_same(batch, batches[0])


def test_a_sampler_may_be_used_with_one_backend_after_another():
    sampler, seeds = NeighborSampler(random_graph(N, E, R), [3, 3]), torch.tensor([1, 7])
    batches = []
    for backend in ("numba", "torch", "numba"):
        with ops.backend(backend):
            batches.append(sampler.sample(seeds, step=4))
    assert_same(batches[0], batches[1])
    assert_same(batches[0], batches[2])


def test_a_sample_does_not_depend_on_the_order_of_the_edges():
    whole = random_graph(N, E, R, edge_dim=2)
    order = torch.randperm(E)
    shuffled = RelationalGraph(
        whole.edge_index[:, order],
        whole.edge_type[order],
        num_nodes=N,
        num_relations=R,
        edge_attr=whole.edge_attr[order],
    )
    assert_same(*(NeighborSampler(each, [2, 2]).sample(torch.tensor([3, 8])) for each in (whole, shuffled)))


def test_the_edges_of_a_node_do_not_depend_on_the_other_nodes_of_the_batch():
    sampler = NeighborSampler(random_graph(N, E, R), [2])
    alone, together = (sampler.sample(torch.tensor(seeds), step=9) for seeds in ([5], [17, 5, 3]))
    found = [edge for edge in edges_of(together.graphs[0], together.nodes) if edge[2] == 5]
    assert found == edges_of(alone.graphs[0], alone.nodes)


def test_seed_step_and_layer_each_change_the_sample():
    whole, seeds = random_graph(N, E, R), torch.arange(20)
    same = [NeighborSampler(whole, [2], seed=s).sample(seeds, step) for s, step in ((0, 0), (0, 1), (1, 0))]
    deep = NeighborSampler(whole, [2, 2]).sample(seeds)
    chosen = [each.graphs[-1].structure.edge_id.tolist() for each in (*same, deep)]
    assert all(a != b for a, b in itertools.combinations(chosen, 2))
    counting = NeighborSampler(whole, [2])
    for step in range(2):
        assert_same(counting.sample(seeds), same[step])
    assert_same(counting.sample(seeds, step=0), same[0])
    assert_same(counting.sample(seeds), same[1])  # it counts on from there


def test_threads_that_share_a_sampler_get_the_samples_they_ask_for():
    sampler = NeighborSampler(random_graph(N, E, R), [3, 2])
    parts = torch.randperm(N)[:240].split(8)
    expected = [sampler.sample(part, step) for step, part in enumerate(parts)]
    found = {}

    def work(first):
        for step in range(first, len(parts), 4):
            found[step] = sampler.sample(parts[step], step)

    threads = [threading.Thread(target=work, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == len(parts)
    for step, batch in enumerate(expected):
        assert_same(found[step], batch)


@pytest.fixture(scope="module")
def stars():
    """Return a graph of 4,000 targets, each with six sources under each of two relations."""
    targets = torch.arange(4000).repeat_interleave(12)
    return RelationalGraph(
        torch.stack([4000 + torch.arange(48_000) % 6, targets]),
        torch.arange(48_000) // 6 % 2,
        num_nodes=4006,
        num_relations=2,
    )


def drawn(graph, size, relation=0, seed=0, step=0, layer=0):
    """Return the sources that each target drew, [4000, size], from 0 to 5."""
    sampler = NeighborSampler(graph, [size] * (layer + 1), seed)
    edges = sampler.sample(torch.arange(4000), step).graphs[layer]
    source, target = edges.node_ids[edges.edge_index[:, edges.edge_type == relation]]
    return source[target < 4000].view(4000, size) - 4000


def chi_squared(counts, expected):
    return float(((counts - expected) ** 2 / expected).sum())


# Below, limits are the 0.999 quantiles of the chi-squared distribution.
@pytest.mark.parametrize(("size", "sets", "limit"), [(1, 6, 20.52), (2, 15, 36.12), (3, 20, 43.82), (5, 6, 20.52)])
def test_every_set_of_edges_is_equally_probable(stars, size, sets, limit):
    chosen = drawn(stars, size)
    assert (chosen.diff(dim=1) > 0).all()  # none twice
    _, counts = (2**chosen).sum(1).unique(return_counts=True)
    assert len(counts) == sets
    assert chi_squared(counts, 4000 / sets) < limit


CHANGES = {"step": {"step": 1}, "seed": {"seed": 1}, "relation": {"relation": 1}, "layer": {"layer": 1}, "node": {}}


@pytest.mark.parametrize("change", CHANGES)
def test_draws_of_different_steps_seeds_relations_layers_and_nodes_are_independent(stars, change):
    first, second = drawn(stars, 1), drawn(stars, 1, **CHANGES[change])
    if change == "node":
        second = second.roll(1, 0)
    counts = torch.bincount((6 * first + second).flatten(), minlength=36)
    assert chi_squared(counts, 4000 / 36) < 66.62


def test_edge_features_follow_their_edges():
    whole = random_graph(N, E, R, edge_dim=3)
    for graph in (whole, random_graph(N, E, R, edge_dim=3).prepare()):
        edges = NeighborSampler(graph, [2]).sample(torch.arange(9)).graphs[0]
        position = whole.structure.order[edges.structure.edge_id].long()
        assert torch.equal(edges.edge_attr, whole.edge_attr[position])


@pytest.mark.parametrize("backend", ["numba", "torch"])
def test_no_seeds_isolated_nodes_and_empty_graphs_have_samples(backend):
    empty = RelationalGraph(torch.empty(2, 0).long(), torch.empty(0).long(), num_nodes=3, num_relations=0)
    cases = [
        (random_graph(N, E, R), [], 0),
        (random_graph(N, E, R), [299], 0),  # isolated
        (random_graph(3, 0, R), [2, 0], 0),
        (empty, [1], 0),
        (random_graph(N, 0, R), [], 0),
    ]
    for whole, seeds, num_edges in cases:
        with ops.backend(backend):
            batch = NeighborSampler(whole, [2, -1]).sample(torch.tensor(seeds, dtype=torch.long))
            assert batch.nodes.tolist() == seeds
            assert [graph.num_edges for graph in batch.graphs] == [num_edges] * 2
            model = NodeClassifier(4, 3, whole.num_relations, heads=2, hidden_channels=4)
            out = model(torch.randn(len(seeds), 4), batch.graphs)
            assert torch.equal(out, torch.zeros(len(seeds), 3))  # the bias
            out.sum().backward()
        assert all(parameter.grad is not None for parameter in model.parameters())


def test_integer_seeds_of_any_width_are_taken_and_not_kept():
    sampler = NeighborSampler(random_graph(N, E, R), [2])
    expected = sampler.sample(torch.tensor([4, 2]), 0)
    for dtype in (torch.int32, torch.int16, torch.uint8):
        assert_same(sampler.sample(torch.tensor([4, 2], dtype=dtype), 0), expected)
    seeds = torch.tensor([4, 2])
    batch = sampler.sample(seeds, 0)
    seeds.zero_()
    assert_same(batch, expected)


def test_fanouts_may_be_larger_than_every_degree():
    whole, seeds = hub_graph(2000, as_target=True), torch.tensor([0, 3])
    everything = NeighborSampler(whole, [-1]).sample(seeds)
    for backend in ("numba", "torch"):
        with ops.backend(backend):
            for fanout in (10**6, 10**40, np.int64(5000)):
                batch = NeighborSampler(whole, [fanout]).sample(seeds)
                assert torch.equal(batch.graphs[0].structure.edge_id, everything.graphs[0].structure.edge_id)
            many = NeighborSampler(whole, [1500]).sample(seeds).graphs[0]
        in_degree = torch.bincount(many.edge_index[1] * 3 + many.edge_type)
        assert in_degree.max() == 1500


def test_a_sample_made_in_inference_mode_can_be_trained_on():
    for backend in ("numba", "torch"):
        with ops.backend(backend), torch.inference_mode():
            sampler = NeighborSampler(random_graph(N, E, R), [2])
            batch = sampler.sample(torch.tensor([1, 2]))
        assert not any(tensor.is_inference() for tensor in leaves(batch))
        x = torch.randn(len(batch.nodes), 4, requires_grad=True)
        RGATConv(4, 3, R)(x, batch.graphs[0]).square().sum().backward()
        assert x.grad.abs().max() > 0


def test_a_graph_that_knows_its_incoming_edges_is_enough():
    whole = random_graph(N, E, R)
    incoming = NeighborSampler(whole, [1]).incoming
    stored = SimpleNamespace(num_relations=R, incoming=incoming._replace(edge_id=None))
    seeds = torch.tensor([1, 2])
    assert_same(NeighborSampler(stored, [2, 2]).sample(seeds), NeighborSampler(whole, [2, 2]).sample(seeds))


BAD_SAMPLERS = [
    ({"fanouts": []}, ValueError, r"`fanouts` must be a list with one entry per layer, such as \[15, 10\], got \[\]"),
    ({"fanouts": 5}, ValueError, "`fanouts` must be a list with one entry per layer, .* got 5"),
    ({"fanouts": {0: 1}}, ValueError, "`fanouts` must be a list with one entry per layer"),
    ({"fanouts": [0, 1]}, ValueError, "a fan-out must be a number of at least 1, or -1 for all edges, got 0"),
    ({"fanouts": [-2]}, ValueError, "a fan-out must be .* got -2"),
    ({"fanouts": [1.5]}, ValueError, "a fan-out must be .* got 1.5"),
    ({"fanouts": [True]}, ValueError, "a fan-out must be .* got True"),
    ({"fanouts": [{1: 0}]}, ValueError, "a fan-out must be .* got 0"),
    ({"fanouts": [{5: 1}]}, ValueError, "a fan-out must be for a relation between 0 and 4, got one for 5"),
    ({"fanouts": [{None: 2}]}, ValueError, "a fan-out must be for a relation between 0 and 4, got one for None"),
    ({"fanouts": [{True: 2}]}, ValueError, "a fan-out must be for a relation between 0 and 4, got one for True"),
    ({"fanouts": [{"x": 1}]}, ValueError, "a fan-out must be for a relation between 0 and 4, got one for 'x'"),
    ({"seed": -1}, ValueError, r"`seed` must be an integer between 0 and 2\^63 - 1, got -1"),
    ({"seed": 1.0}, ValueError, "`seed` must be an integer .* got 1.0"),
    ({"graph": torch.ones(2)}, TypeError, "`graph` must be a RelationalGraph or a store .*, got Tensor"),
]


@pytest.mark.parametrize(("change", "error", "message"), BAD_SAMPLERS, ids=[str(case[0])[:30] for case in BAD_SAMPLERS])
def test_bad_samplers_are_refused_in_one_sentence(change, error, message):
    with pytest.raises(error, match=message):
        NeighborSampler(**{"graph": random_graph(9, 60, R), "fanouts": [1]} | change)


BAD_SEEDS = [
    (torch.tensor([0, 9]), ValueError, "`nodes` must lie between 0 and num_nodes - 1 = 8, got 9"),
    (torch.tensor([-1]), ValueError, "`nodes` must lie between 0 and num_nodes - 1 = 8, got -1"),
    (torch.tensor([3, 1, 3]), ValueError, "`nodes` must name each seed node once, got one of them several times"),
    (torch.tensor([[1]]), TypeError, r"`nodes` must be integer node ids, .* shape \[1, 1\]"),
    (torch.tensor([1.0]), TypeError, "`nodes` must be integer node ids, .* got torch.float32"),
    (torch.ones(9).bool(), TypeError, "`nodes` must be integer node ids, .* got torch.bool"),
    (["n1"], TypeError, "`nodes` must be integer node ids, .* got list"),
]


@pytest.mark.parametrize(("nodes", "error", "message"), BAD_SEEDS, ids=[case[2][-30:] for case in BAD_SEEDS])
def test_bad_seed_nodes_are_refused_in_one_sentence(nodes, error, message):
    sampler = NeighborSampler(random_graph(9, 60, R), [1])
    with pytest.raises(error, match=message):
        sampler.sample(nodes)
    assert sampler.step == 0
    with pytest.raises(ValueError, match="`step` must be an integer of at least 0, got -1"):
        sampler.sample(torch.tensor([1]), step=-1)


def test_a_batch_moves_with_all_its_tensors():
    batch = NeighborSampler(random_graph(9, 60, R, edge_dim=2), [2, 2]).sample(torch.tensor([3]))
    moved = batch.to("meta")
    assert isinstance(moved, Batch)
    for graph in moved.graphs:
        tensors = [graph.edge_index, graph.edge_type, graph.edge_attr, graph.node_ids, *graph.structure.leaves()]
        assert {tensor.device.type for tensor in tensors} == {"meta"}
    assert_same(batch.to("cpu"), batch)


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["torch", "triton"])
@pytest.mark.parametrize("fanouts", [*FANOUTS, [1500], [{1: 1024}], [7, 1025]], ids=str)
def test_cpu_and_gpu_give_the_same_sample(fanouts, backend):
    for whole in (random_graph(N, E, R, edge_dim=2), hub_graph(5000, as_target=True), hub_graph(5000, as_target=False)):
        seeds = torch.arange(20).flip(0)  # with the hub
        fanouts_here = [f if isinstance(f, int) else {r: n for r, n in f.items() if r < 3} for f in fanouts]
        expected = NeighborSampler(whole, fanouts_here, seed=5).sample(seeds, step=3)
        with ops.backend(backend):
            sampler = NeighborSampler(whole.to("cuda"), fanouts_here, seed=5)
            for _ in range(2):
                batch = sampler.sample(seeds, step=3)
                assert batch.nodes.is_cuda
                assert_same(batch, expected)


def test_a_pickled_or_copied_sampler_samples_the_same():
    sampler = NeighborSampler(random_graph(), [2, 1], seed=3)
    sampler.sample(torch.tensor([1, 2]))
    for other in (pickle.loads(pickle.dumps(sampler)), copy.deepcopy(sampler)):
        assert torch.equal(other.sample(torch.tensor([4, 0]), 7).nodes, sampler.sample(torch.tensor([4, 0]), 7).nodes)


def test_numbers_beyond_64_bits_are_refused_and_change_nothing():
    sampler = NeighborSampler(random_graph(50, 200, 3), [3, 3])
    with pytest.raises(
        ValueError, match="`nodes` must lie between 0 and num_nodes - 1 = 49, got 1180591620717411303424"
    ):
        sampler.sample([1, 2**70])
    with pytest.raises(ValueError, match=r"`step` must be below 2\^62, got 9223372036854775808"):
        sampler.sample([1], step=2**63)
    assert sampler.step == 0
    assert sampler.sample([1]).num_seeds == 1
