"""Test layers under `torch.compile`, `torch.export` and `DistributedDataParallel`."""

import copy
import io

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from helpers import random_graph
from torch.export import Dim
from torch.utils import _pytree as pytree

from rgat.nn import GraphGather, RGATConv, RGCNConv

F, R = 5, 4
LAYERS = {
    "within-additive": lambda: RGATConv(F, 3, R, heads=2),
    "across-multiplicative": lambda: RGATConv(F, 3, R, heads=2, scope="across", score="multiplicative", num_bases=2),
    "mixed-edges-projection": lambda: RGATConv(
        F, 3, R, heads=2, scope=["within", "across"], edge_dim=2, head_merge="projection", num_attention_bases=2
    ),
    "dynamic": lambda: RGATConv(F, 3, R, heads=2, score="dynamic"),
    "dropout": lambda: RGATConv(F, 3, R, feature_dropout=0.5, edge_dropout=0.5),
    "rgcn": lambda: RGCNConv(F, 3, R, feature_dropout=0.2),
}


def inputs(name, num_nodes, num_edges, seed=0):
    graph = random_graph(num_nodes, num_edges, R, edge_dim=2 if "edges" in name else None, seed=seed)
    if graph.edge_attr is not None:
        graph.edge_attr = graph.edge_attr.float()
    return torch.randn(num_nodes, F, requires_grad=True), graph.prepare()


def gradients(module, conv, x, graph):
    conv.zero_grad()
    out = module(x, graph)
    cotangent = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
    return [out.detach(), *torch.autograd.grad((out * cotangent).sum(), [x, *conv.parameters()])]


@pytest.fixture
def _ordinary_memory():
    # Inductor's scratch memory must not be filled with NaN.
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("_ordinary_memory")
@pytest.mark.parametrize("name", LAYERS)
def test_layers_compile_without_a_graph_break(name):
    torch._dynamo.reset()
    conv = LAYERS[name]()
    twin = copy.deepcopy(conv)
    compiled = torch.compile(conv, fullgraph=True, backend="aot_eager")
    for num_nodes, num_edges in ((9, 60), (12, 40), (30, 200)):  # the second call makes sizes dynamic
        x, graph = inputs(name, num_nodes, num_edges)
        torch.testing.assert_close(gradients(compiled, conv, x, graph), gradients(twin, twin, x, graph))


class TwoLayers(torch.nn.Module):
    """Use dropout in two calls of a step, and non-contiguous values, as one-hot input with bases gives."""

    def __init__(self):
        super().__init__()
        self.first = RGATConv(9, 4, R, heads=2, num_bases=2, feature_dropout=0.5)
        self.second = RGCNConv(8, 3, R, edge_dropout=0.5, feature_dropout=0.2)

    def forward(self, x, graph):
        return self.second(self.first(None, graph).relu() + x.sum(), graph)


@pytest.mark.usefixtures("_ordinary_memory")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # raised inside the code generator
def test_layers_compile_with_the_default_compiler():
    torch._dynamo.reset()
    model = TwoLayers()
    twin = copy.deepcopy(model)
    compiled = torch.compile(model, fullgraph=True)
    x, graph = inputs("", 9, 60)
    for _ in range(3):  # a new mask in every call, the same in its backward pass
        torch.testing.assert_close(gradients(compiled, model, x, graph), gradients(twin, twin, x, graph))
    assert model.first.dropout_state[1] == 3


@pytest.mark.usefixtures("_ordinary_memory")
def test_an_unprepared_graph_is_refused_by_compiled_code():
    torch._dynamo.reset()
    conv = LAYERS["within-additive"]()
    with pytest.raises(Exception, match=r"call `graph.prepare\(\)` first"):
        torch.compile(conv, fullgraph=True, backend="aot_eager")(torch.randn(9, F), random_graph(9, 60, R))


def dynamic(x, graph):
    """Mark every axis of every tensor as dynamic; `torch.export` expects a list of leaves for a registered class."""
    shapes = [[Dim.AUTO] * leaf.dim() for leaf in (x, *pytree.tree_leaves(graph))]
    return shapes[0], shapes[1:]


@pytest.mark.usefixtures("_ordinary_memory")
@pytest.mark.parametrize("name", LAYERS)
def test_layers_export_with_dynamic_sizes(name):
    conv = LAYERS[name]().eval()
    x, graph = inputs(name, 9, 60)
    program = torch.export.export(conv, (x, graph), dynamic_shapes=dynamic(x, graph))
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    buffer.seek(0)
    for module in (program.module(), torch.export.load(buffer).module()):
        for num_nodes, num_edges in ((9, 60), (33, 20), (100, 700)):
            x, graph = inputs(name, num_nodes, num_edges, seed=num_nodes)
            torch.testing.assert_close(module(x, graph), conv(x, graph))


@pytest.mark.usefixtures("_ordinary_memory")
def test_featureless_layers_compile():
    torch._dynamo.reset()
    graph = random_graph(9, 12, R).prepare()
    for layer in (RGATConv, RGCNConv):
        for options in ({}, {"graph": graph}, {"num_bases": 2}):
            conv = layer(9, 3, R, **options)
            compiled = torch.compile(conv, fullgraph=True, backend="aot_eager")
            torch.testing.assert_close(compiled(None, graph), conv(None, graph))
            if "graph" in options:
                with pytest.raises(ValueError, match="only rows"):
                    compiled(None, random_graph(9, 60, R, seed=1).prepare())


@pytest.mark.usefixtures("_ordinary_memory")
def test_gather_compiles_and_exports_for_batches():
    x, graph = torch.randn(9, F), random_graph(9, 30, R, batch=torch.arange(9) // 3).prepare()
    program = torch.export.export(GraphGather(), (x, graph), dynamic_shapes=dynamic(x, graph))
    other = random_graph(14, 30, R, batch=torch.arange(14) // 2).prepare()
    y = torch.randn(14, F)
    assert torch.equal(program.module()(y, other), GraphGather()(y, other))
    compiled = torch.compile(GraphGather(), fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(y, other), GraphGather()(y, other))


def _ddp_worker(rank, port, results):
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = RGATConv(F, 3, R, heads=2, num_bases=2, num_attention_bases=2, edge_dim=2, feature_dropout=0.2)
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    graph = random_graph(9, 0 if rank else 60, R, edge_dim=2, seed=rank)  # one process has no edges
    graph.edge_attr = graph.edge_attr.float()
    x = torch.randn(9, F, generator=torch.Generator().manual_seed(rank))
    for _ in range(3):  # a parameter without a gradient would make the second step fail
        model.zero_grad()
        out = wrapped(x, graph)
        (out * torch.linspace(-1, 1, out.numel()).view_as(out)).sum().backward()
    results[rank] = [parameter.grad.tolist() for parameter in model.parameters()]
    dist.destroy_process_group()


def test_two_processes_train_with_ddp_and_no_unused_parameters(free_port):
    with mp.get_context("spawn").Manager() as manager:
        results = manager.dict()
        mp.spawn(_ddp_worker, (free_port, results), nprocs=2)
        assert len(results[0]) == 6
        assert results[0] == results[1]
        assert any(value for value in torch.tensor(results[0][0]).flatten().tolist())
