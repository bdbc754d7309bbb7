"""Nodes with more edges than a block may have, whose edges are summed in parts."""

import os
import subprocess
import sys

import pytest
import torch
from helpers import random_graph

from rgat import RelationalGraph, ops
from rgat.models import NodeClassifier, stack
from rgat.sampling import NeighborSampler, exact_logits

N, R, F = 12, 3, 4
LAYERS = {
    "within": {},
    "across": {"scope": "across", "heads": 2},
    "mixed": {"scope": ["within", "across"], "heads": 2, "score": "multiplicative"},
    "dynamic": {"score": "dynamic", "attention_channels": 3, "scope": "across"},
    "edge features": {"edge_dim": 2, "score": "multiplicative", "attention_channels": 2},
    "additive with edge features": {"edge_dim": 2, "scope": "across"},
    "bases": {"num_bases": 2, "num_attention_bases": 2, "batch_norm": True},
    "one-hot": {"in_channels": N, "scope": "across"},
    "compact": {"in_channels": N, "graph": random_graph(N, 80, R)},
    "embedding": {"in_channels": N, "embedding_channels": 5},
    "convolution": {"layer": "rgcn"},
    "features and nodes": {"identity": True, "graph": random_graph(N, 80, R), "score": "multiplicative"},
    "jumping knowledge": {"jumping_knowledge": True, "residual": True, "num_layers": 3},
}


def make(name, seed=0):
    torch.manual_seed(seed)
    options = {"in_channels": F, "hidden_channels": 4} | LAYERS[name]
    model = NodeClassifier(num_classes=3, num_relations=R, **options).double()
    graph = random_graph(N, 80, R, edge_dim=options.get("edge_dim"))
    x = torch.randn(N, F).double() if options["in_channels"] == F else None
    if options.get("batch_norm"):
        model(x, graph)  # running statistics
    return model.eval(), x, graph


@pytest.mark.parametrize("backend", ["numba", "torch"])
@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_sums_over_parts_are_those_over_all_edges(name, constant, backend):
    model, x, graph = make(name)
    with ops.backend(backend):
        expected = model(x, graph, constant_attention=constant)
        for numbers in (1, 60):  # one edge at a time, and a few
            logits = exact_logits(model, x, NeighborSampler(graph, [1]), None, constant, numbers)
            torch.testing.assert_close(logits, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["within", "mixed", "compact", "convolution", "jumping knowledge"])
def test_parts_of_a_stack_are_those_of_its_members(name):
    models, (_, x, graph) = [make(name, seed)[0] for seed in range(3)], make(name)
    logits = exact_logits(stack(models), x, NeighborSampler(graph, [1]), block_numbers=1)
    for member, model in zip(logits, models, strict=True):
        torch.testing.assert_close(member, model(x, graph), rtol=1e-10, atol=1e-10)


def star(edges, relations=2):
    """Return a graph with edges from all nodes to the first, in turn of each relation, the first itself among them."""
    ends = torch.stack([torch.arange(edges), torch.zeros(edges, dtype=torch.long)])
    return RelationalGraph(ends, torch.arange(edges) % relations, num_nodes=edges, num_relations=relations)


@pytest.mark.parametrize("scope", ["within", "across"])
def test_logits_beyond_the_range_of_exponentials_are_summed(scope):
    torch.manual_seed(0)
    graph, x = star(500), torch.randn(500, F)
    model = NodeClassifier(F, 3, 2, num_layers=1, score="multiplicative", scope=scope).eval()
    with torch.no_grad():
        model.conv1.attention_kernel.weight.mul_(1000)
    _, (_, attention) = model.conv1(x, graph, return_attention_weights=True)
    assert attention.max() > 0.99, "almost all attention is on one edge"
    wide = model.double()
    expected = wide(x.double(), graph)[:1]
    logits = exact_logits(model.float(), x, NeighborSampler(graph, [1]), torch.tensor([0]), block_numbers=100)
    torch.testing.assert_close(logits.double(), expected, rtol=1e-4, atol=1e-4)


def test_the_hub_of_a_star_is_as_accurate_as_double_precision():
    torch.manual_seed(0)
    graph, x = star(100_000), torch.randn(100_000, F)
    model = NodeClassifier(F, 3, 2, num_layers=1, heads=2, scope=["within", "across"]).eval()
    logits = exact_logits(model, x, NeighborSampler(graph, [1]), torch.tensor([0]), block_numbers=10_000)
    expected = model.double()(x.double(), graph)[:1]
    torch.testing.assert_close(logits.double(), expected, rtol=1e-5, atol=1e-6)


SCRIPT = """
import ctypes
from pathlib import Path
import torch
from test_hubs import star
from rgat.models import NodeClassifier
from rgat.sampling import NeighborSampler, exact_logits

def resident(name):
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith(name))

def peak(edges, numbers):
    x, sampler = torch.randn(edges, 16), NeighborSampler(star(edges), [1])
    model = NodeClassifier(16, 4, 2, num_layers=1, heads=2).eval()
    hub = torch.tensor([0])
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
    before = resident("VmRSS")
    exact_logits(model, x, sampler, hub, block_numbers=numbers)
    return resident("VmHWM") - before

peak(1000, 2**19)  # loads and compiles
print(peak(2**18, 2**19), peak(2**20, 2**19), peak(2**20, 2**28))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of memory is read from /proc")
def test_memory_of_a_hub_does_not_follow_its_edges():
    folders = os.pathsep.join([os.path.dirname(__file__), os.path.dirname(os.path.dirname(__file__))])
    path = os.pathsep.join([folders, *filter(None, [os.environ.get("PYTHONPATH")])])
    line, environment = [sys.executable, "-c", SCRIPT], os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(line, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr
    small, large, whole = map(int, done.stdout.split())
    block = 2 * 2**20  # bytes
    assert small < 10 * block
    # Two tables with an entry per node of the graph, of one and four bytes, are all that grows.
    assert large - small < 5 * (2**20 - 2**18) + 5 * block
    assert whole > 5 * large, "a block of all edges takes this much"
