import subprocess
import sys

import pytest
import torch
from helpers import random_graph

from rgat import ops
from rgat.nn import RGATConv


def test_auto_is_the_default_and_backend_blocks_nest(monkeypatch):
    assert ops.active_backend() == "numba"
    assert ops.active_backend("meta") == "torch"
    with ops.backend("reference"):
        assert ops.active_backend() == "reference"
        with ops.backend("torch"):
            assert ops.active_backend() == "torch"
        assert ops.active_backend() == "reference"
    monkeypatch.setenv("RGAT_BACKEND", "reference")
    assert ops.active_backend() == "reference"
    with ops.backend("auto"):
        assert ops.active_backend() == "numba"


def test_a_backend_block_ends_after_an_error():
    with pytest.raises(KeyError), ops.backend("reference"):
        raise KeyError
    assert ops.active_backend() == "numba"


def test_without_numba_the_torch_backend_runs_and_the_reason_is_reported():
    code = """
import sys
sys.modules["numba"] = None
import torch
from rgat import ops
from rgat.nn import RGATConv
edge_index = torch.tensor([[0, 1], [1, 2]])
print(ops.active_backend(), RGATConv(2, 2, 1)(torch.ones(3, 2), edge_index, torch.zeros(2, dtype=torch.long)).shape)
try:
    with ops.backend("numba"):
        pass
except ValueError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("torch torch.Size([3, 2])")
    assert 'the backend "numba" cannot be used here: ' in done.stdout
    assert "`pip install numba` adds it" in done.stdout


def test_a_backend_refuses_tensors_on_another_device():
    with ops.backend("numba"), pytest.raises(ValueError, match='"numba" must be given tensors on cpu, got meta'):
        ops.active_backend("meta")


def test_unknown_and_missing_backends_are_refused(monkeypatch):
    with (
        pytest.raises(ValueError, match=r'`backend` must be "auto", .* got "touch"; did you mean "torch"\?'),
        ops.backend("touch"),
    ):
        pass
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match='the backend "triton" cannot be used here'), ops.backend("triton"):
            pass
    monkeypatch.setenv("RGAT_BACKEND", "numbat")
    with pytest.raises(ValueError, match=r'`RGAT_BACKEND` must be .*did you mean "numba"\?'):
        RGATConv(2, 2, 4)(torch.randn(9, 2), random_graph())


def test_the_torch_backend_allocates_no_tensor_of_nodes_times_relations_or_edges_times_kernels():
    from torch.utils._python_dispatch import TorchDispatchMode

    num_nodes, num_relations, num_edges, F, D = 300, 50, 400, 8, 4
    graph = random_graph(num_nodes, num_edges, num_relations).prepare()
    largest = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            out = function(*args, **(kwargs or {}))
            largest.extend(t.numel() for t in torch.utils._pytree.tree_leaves(out) if isinstance(t, torch.Tensor))
            return out

    conv = RGATConv(F, D, num_relations)
    x = torch.randn(num_nodes, F, requires_grad=True)
    with ops.backend("torch"), Watch():
        out = conv(x, graph, plan=conv.plan(graph, "project"))
        out.backward(torch.randn(out.shape))
    assert len(largest) > 30
    assert max(largest) < num_nodes * num_relations
    assert max(largest) <= max(num_edges * F, num_nodes * F)
