import pytest
import torch

from rgat import ops
from rgat.data import load
from rgat.data.padding import Capacity, PaddedBatch
from rgat.models import stack
from rgat.training import Settings, build_model
from rgat.training.loop import make_task

CPU = torch.device("cpu")


def pad(store, ids, number):
    batch = PaddedBatch(store, number, CPU, Capacity.usual(store, ids, number))
    assert batch.holds(ids)
    batch.fill(ids)
    batch.widen()
    return torch.cat([store.x, store.x.new_zeros(1, store.x.shape[1])])[batch.nodes], batch


@pytest.mark.parametrize("backend", ["torch", "numba"])
@pytest.mark.parametrize(
    "options", [{}, {"batch_norm": True, "heads": 2}, {"layer": "rgcn", "batch_norm": True}], ids=str
)
@pytest.mark.parametrize("members", [1, 2])
def test_padding_changes_nothing(backend, options, members):
    data, ids = load("molecules"), torch.tensor([3, 9, 1, 1, 30, 22])

    def run(x, graph):
        models = [build_model(data, k, hidden_channels=8, **options).double().train() for k in range(members)]
        model = models[0] if members == 1 else stack(models)
        with ops.backend(backend):
            logits = model(x.double(), graph)
        logits = logits[..., : len(ids), :, :]
        logits.square().sum().backward()
        return [logits, *(p.grad for p in model.parameters()), *model.buffers()]

    x, batch = pad(data.graphs, ids, 8)
    assert batch.graph.num_graphs == 9
    for ours, expected in zip(run(x, batch.graph), run(*data.graphs.batch(ids)), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-12, atol=1e-12)


def test_a_padded_batch_is_a_graph_like_any_other():
    data, ids = load("molecules"), torch.tensor([5, 2, 11])
    _, batch = pad(data.graphs, ids, 4)
    graph, s = batch.graph, batch.graph.structure
    assert graph.edge_index.max() < graph.num_nodes
    position = torch.arange(graph.num_edges)
    for ptr, of in ((s.target_ptr, s.target), (s.group_ptr, s.group), (s.source_ptr, s.source_row[s.by_source])):
        assert torch.equal(torch.searchsorted(ptr, position.int(), right=True).int() - 1, of)
    assert torch.equal(s.targets.node[s.targets.by_node[s.group]], s.target)
    for rows, nodes in ((s.sources, graph.edge_index[0]), (s.targets, graph.edge_index[1])):
        place = torch.arange(len(rows.node)).int()
        assert torch.equal(torch.searchsorted(rows.relation_ptr, place, right=True).int() - 1, rows.relation)
        assert torch.equal(torch.searchsorted(rows.node_ptr, place, right=True).int() - 1, rows.node[rows.by_node])
        assert torch.equal(rows.by_node.sort().values, place)
        assert int(rows.node.max()) == int(nodes.max()) == graph.num_nodes - 1
    assert torch.equal(s.sources.node[s.source_row], graph.edge_index[0][s.order])
    assert torch.equal(s.sources.relation[s.source_row], graph.edge_type[s.order])
    assert torch.equal(s.targets.relation[s.targets.by_node[s.group]], graph.edge_type[s.order])
    assert s.graph_sizes.tolist() == graph.batch.bincount(minlength=5).tolist()
    assert graph.counted.sum() == s.graph_sizes[:4].sum()
    assert batch.ids.tolist() == [5, 2, 11, len(data.graphs)]
    assert batch.number.tolist() == [3]


def test_losses_of_padded_batches_are_those_of_batches():
    data = load("molecules")
    task = make_task([data], Settings(batch_size=16), CPU)
    model = build_model(data, hidden_channels=8)
    small, large = data.train[:16], data.train[torch.arange(16) % 3]
    sizes = data.graphs.node_ptr.diff()
    large = sizes.topk(16).indices  # more than any batch is expected to hold
    assert [task.pad(ids) for ids in (small, small[:5], small)] == [False, True, True]
    for ids in (small, small[:5], large, small):
        task.pad(ids)
        torch.testing.assert_close(task.padded_losses(model), task.losses(model, ids))
    assert task._padded.capacity.nodes > sizes[large].sum()
