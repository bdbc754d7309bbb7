import gc
import subprocess
import sys
import textwrap
import threading

import pytest
import torch
from helpers import random_graph
from sampling.test_sampler import assert_same

from rgat.sampling import NeighborLoader, NeighborSampler

N, R = 200, 4
NODES = torch.arange(10, 110)


def loader(**options):
    return NeighborLoader(random_graph(N, 3000, R), **{"nodes": NODES, "fanouts": [3, 2], "batch_size": 32} | options)


def workers():
    return [thread for thread in threading.enumerate() if thread.name == "rgat-sampling"]


def test_an_epoch_has_each_seed_node_once_in_a_new_order():
    batches = loader()
    assert len(batches) == 4
    orders = []
    for _ in range(2):
        epoch = list(batches)
        assert [batch.num_seeds for batch in epoch] == [32, 32, 32, 4]
        orders.append(torch.cat([batch.nodes[: batch.num_seeds] for batch in epoch]))
        assert torch.equal(orders[-1].sort()[0], NODES)
        assert not torch.equal(orders[-1], NODES)
    assert not torch.equal(*orders)
    assert batches.epoch == 2
    unshuffled = [batch.nodes[: batch.num_seeds] for batch in loader(shuffle=False)]
    assert torch.equal(torch.cat(unshuffled), NODES)


@pytest.mark.parametrize("prefetch", [1, 2, 9])
def test_batches_made_in_the_background_are_those_made_on_demand(prefetch):
    background, demand = loader(prefetch=prefetch, seed=4), loader(prefetch=0, seed=4)
    for _ in range(2):
        for batch, expected in zip(background, demand, strict=True):
            assert_same(batch, expected)
    assert workers() == []


def test_an_epoch_depends_on_seed_and_number_alone():
    first, second, other = loader(seed=1), loader(seed=1), loader(seed=2)
    epochs = [list(first) for _ in range(3)]
    second.epoch = 2
    for batch, expected in zip(second, epochs[2], strict=True):
        assert_same(batch, expected)
    assert not torch.equal(next(iter(other)).nodes[:32], epochs[0][0].nodes[:32])
    same = loader(shuffle=False)
    edges = [next(iter(same)).graphs[1].structure.edge_id for _ in range(2)]
    assert not torch.equal(*edges)  # a new sample each epoch


def test_a_batch_is_what_the_sampler_gives_for_its_step():
    sampler = NeighborSampler(random_graph(N, 3000, R), [3, 2])
    batches = loader(shuffle=False)
    list(batches)
    for step, (batch, seeds) in enumerate(zip(batches, NODES.split(32), strict=True), start=len(batches)):
        assert_same(batch, sampler.sample(seeds, step))


def test_a_loader_without_nodes_has_no_batches():
    empty = loader(nodes=NODES[:0])
    assert len(empty) == 0
    assert list(empty) == []
    assert len(loader(nodes=NODES[:1])) == 1


@pytest.mark.parametrize("leave", ["break", "close", "forget", "raise"])
def test_the_thread_ends_with_an_epoch_that_is_left_early(leave):
    batches = loader(batch_size=1)
    iterator = iter(batches)
    next(iterator)
    assert len(workers()) == 1
    if leave == "close":
        iterator.close()
    elif leave == "raise":
        with pytest.raises(KeyError):
            iterator.throw(KeyError())
    elif leave == "break":
        for _ in iterator:
            break
    del iterator
    gc.collect()
    assert workers() == []
    assert len(list(batches)) == len(batches)  # another epoch


@pytest.mark.parametrize("prefetch", [0, 2])
def test_an_error_in_the_thread_reaches_the_caller(prefetch, monkeypatch):
    batches = loader(prefetch=prefetch)
    sample = batches.sampler.sample

    def failing(nodes, step):
        if step == 2:
            raise MemoryError("no room for a batch")
        return sample(nodes, step)

    monkeypatch.setattr(batches.sampler, "sample", failing)
    seen = []
    with pytest.raises(MemoryError, match="no room for a batch"):
        seen.extend(batches)
    assert len(seen) == 2
    assert workers() == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_size": 0}, "`batch_size` must be an integer of at least 1, got 0"),
        ({"prefetch": -1}, "`prefetch` must be an integer of at least 0, got -1"),
        ({"nodes": torch.tensor([1, 1])}, "`nodes` must name each seed node once"),
        ({"nodes": torch.tensor([N])}, "`nodes` must lie between 0 and num_nodes - 1 = 199, got 200"),
        ({"fanouts": [0]}, "a fan-out must be a number of at least 1"),
    ],
)
def test_bad_loaders_are_refused_in_one_sentence(change, message):
    with pytest.raises(ValueError, match=message):
        loader(**change)


@pytest.mark.gpu
def test_batches_of_a_side_stream_are_those_made_on_demand():
    graph = random_graph(20_000, 400_000, R)
    options = {"nodes": torch.arange(5000), "fanouts": [8, {0: 3}, 5], "batch_size": 512, "seed": 4}
    expected = list(NeighborLoader(graph, prefetch=0, **options))
    for _ in range(3):  # at once after the graph was copied, while the copy may still run
        background = NeighborLoader(graph.to("cuda"), prefetch=3, **options)
        x = torch.randn(20_000, 64, device="cuda")
        found = []
        for batch in background:
            for _ in range(5):
                x = x + x.index_select(0, batch.nodes).sum() * 0  # keep the stream of the caller busy
            found.append(batch)
        assert not x.isnan().any()
        for batch, other in zip(found, expected, strict=True):
            assert_same(batch, other)
    iterator = iter(background)  # leave an epoch early, then use its sampler at once
    next(iterator)
    iterator.close()
    assert_same(
        background.sampler.sample(torch.arange(9), 1),
        NeighborSampler(graph, **_sampling(options)).sample(torch.arange(9), 1),
    )


def _sampling(options):
    return {name: options[name] for name in ("fanouts", "seed")}


LEAVE = """
    import torch
    from rgat.graph import RelationalGraph
    from rgat.sampling import NeighborLoader

    torch.set_num_threads(1)
    edges = torch.randint(3000, (2, 60_000))
    graph = RelationalGraph(edges, torch.zeros(60_000, dtype=torch.int64), num_nodes=3000, num_relations=1)

    def train():
        batches = iter(NeighborLoader(graph, torch.arange(3000), fanouts=[5, 5], batch_size=8, prefetch=1000))
        next(batches)  # others are sampled meanwhile
        raise ValueError("left with an error, whose traceback keeps the batches")

    train()
"""


def test_a_process_that_ends_while_batches_are_sampled_is_not_aborted():
    for _ in range(3):  # without the loader's care, two of three aborted
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(LEAVE)], capture_output=True, text=True, timeout=240
        )
        assert done.returncode == 1, done.stderr
        assert "left with an error" in done.stderr


@pytest.mark.parametrize("share", [(2, 2), (-1, 2), (0, 0), (0,), (0, 1.0), 3])
def test_a_share_that_is_none_is_refused_in_one_sentence(share):
    with pytest.raises(ValueError, match=r"`share` must be \(k, K\) with k from 0 to K - 1, such as \(0, 2\), got"):
        NeighborLoader(random_graph(9, 30, 3), torch.arange(5), [2], share=share)
