import numpy as np
import pytest
import torch
from helpers import random_graph

from rgat.nn import FeatureRows, RGATConv, RGCNConv
from rgat.ops import backend
from rgat.sampling import NeighborSampler, gather_features

CPU = torch.device("cpu")
NODES = torch.tensor([7, 0, 7, 3])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("wanted", [torch.float32, torch.float64, torch.bfloat16])
def test_rows_come_in_the_dtype_of_the_layers(dtype, wanted):
    x = torch.randn(9, 5).to(dtype)
    rows = gather_features(x, NODES, CPU, wanted)
    assert rows.dtype == wanted
    assert torch.equal(rows, x[NODES].to(wanted))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_rows_of_a_memory_mapped_file_are_read_as_they_are_needed(tmp_path, dtype):
    x = torch.randn(50, 4).to(dtype)
    is_half = dtype == torch.bfloat16  # NumPy has no such type: the same bits as integers
    np.save(tmp_path / "x.npy", (x.view(torch.int16) if is_half else x).numpy())
    mapped = torch.from_numpy(np.load(tmp_path / "x.npy", mmap_mode="r+"))
    mapped = mapped.view(torch.bfloat16) if is_half else mapped
    rows = gather_features(mapped, NODES, CPU, torch.float32)
    assert torch.equal(rows, x[NODES].float())
    rows.zero_()  # a copy
    assert torch.equal(mapped, x)


def test_integers_and_sparse_rows_stay_what_they_are():
    index = torch.arange(9) % 4
    assert torch.equal(gather_features(index, NODES, CPU, torch.float32), index[NODES])
    sparse = torch.nn.functional.one_hot(index).float().to_sparse()
    rows = gather_features(sparse, NODES, CPU, torch.float64)
    assert rows.is_sparse
    assert torch.equal(rows.to_dense(), sparse.to_dense()[NODES].double())


def test_no_nodes_have_no_rows():
    assert gather_features(torch.randn(9, 5), NODES[:0], CPU, torch.float32).shape == (0, 5)


def test_a_device_may_be_a_word_and_ids_must_be_in_range():
    x = torch.randn(9, 5)
    assert torch.equal(gather_features(x, NODES, "cpu", torch.float32), x[NODES])
    for bad in (9, -1):
        with pytest.raises(ValueError, match=r"`nodes` must lie between 0 and len\(x\) - 1 = 8, got"):
            gather_features(x, torch.tensor([0, bad]), CPU, torch.float32)


@pytest.mark.gpu
@pytest.mark.parametrize("pinned", [False, True])
def test_rows_are_moved_to_the_gpu(pinned):
    x, cuda = torch.randn(9, 5).half(), torch.device("cuda")
    expected = x[NODES].float()
    x = x.pin_memory() if pinned else x
    for nodes in (NODES, NODES.to(cuda)):
        for features in (x, x.to(cuda)):
            rows = gather_features(features, nodes, cuda, torch.float32)
            assert rows.is_cuda
            assert torch.equal(rows.cpu(), expected)
    index = torch.arange(9)
    assert torch.equal(gather_features(index, NODES, cuda, torch.float32).cpu(), NODES)


@pytest.mark.parametrize("plan", ["project", "aggregate"])
@pytest.mark.parametrize("layer", [RGATConv, RGCNConv])
def test_features_read_in_place_give_what_a_copy_gives(layer, plan):
    table = torch.randn(300, 6, dtype=torch.float64)
    batch = NeighborSampler(random_graph(300, 2000, 3), [4]).sample(torch.arange(280, 300))
    graph, conv, found = batch.graphs[0], layer(6, 5, 3).double(), []
    assert len(batch.nodes) < len(table) - 20, "rows of the table are no places in the batch"
    cotangent = torch.randn(20, 5, dtype=torch.float64)
    with backend("numba"):
        for x in (FeatureRows(table, batch.nodes), table[batch.nodes]):
            out = conv(x, graph, plan=conv.plan(graph, plan))
            found.append([out, *torch.autograd.grad(out, list(conv.parameters()), cotangent)])
    for ours, theirs in zip(*found, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-12)
        assert theirs.abs().max() > 0
