"""Test the operators with PyTorch's own checks, and under its transforms and modes."""

import copy

import pytest
import torch
from helpers import random_graph
from torch.autograd import forward_ad

from rgat.nn import RGATConv, RGCNConv
from rgat.ops import registration as operator

LAYERS = {
    "dense": (RGATConv(8, 4, 4, heads=2), None),
    "featureless": (RGATConv(9, 4, 4, heads=2), None),
    "featureless, bases": (RGCNConv(9, 4, 4, num_bases=2), None),
    "featureless, rows of a graph": (RGATConv(9, 4, 4, heads=2, graph=random_graph(9, 60, 4)), None),
    "featureless, dynamic": (RGATConv(9, 4, 4, score="dynamic", graph=random_graph(9, 60, 4)), None),
}
CASES = [(name, torch.float32, "cpu") for name in LAYERS]
CASES += [("dense", torch.bfloat16, "cpu")]
CASES += [pytest.param("dense", dtype, "cuda", marks=pytest.mark.gpu) for dtype in (torch.float32, torch.bfloat16)]


@pytest.mark.parametrize(("name", "dtype", "device"), CASES)
def test_operators_pass_the_checks_of_torch_library(name, dtype, device, monkeypatch):
    graph, (conv, plan) = random_graph(9, 60, 4).to(device), LAYERS[name]
    conv = copy.deepcopy(conv).to(device, dtype)
    called, usual = {}, operator.Operator.call_flat

    def watch(self, *arguments):
        key = self.name, str(arguments[-1])  # with and without the gradient of the inputs
        called.setdefault(key, (self, arguments))
        return usual(self, *arguments)

    monkeypatch.setattr(operator.Operator, "call_flat", watch)
    forward = set()
    for needs_grad in (True, False):
        x = (
            None
            if name.startswith("featureless")
            else torch.randn(9, 8, device=device, dtype=dtype, requires_grad=needs_grad)
        )
        out = conv(x, graph, plan=plan and conv.plan(graph, plan))
        forward |= {one for one, _ in called} if needs_grad else set()
        (out * torch.randn_like(out)).sum().backward()
    monkeypatch.undo()
    assert forward
    assert {one for one, _ in called} - forward
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    for one, arguments in called.values():
        again = tuple(
            value.detach().requires_grad_(value.requires_grad) if isinstance(value, torch.Tensor) else value
            for value in arguments
        )
        also = ("test_aot_dispatch_dynamic",) if one.name in forward else ()  # gradient operators have no backward pass
        torch.library.opcheck(one.traced, again, test_utils=(*checks, *also))


def test_operators_run_on_the_meta_device():
    rows = [leaf.to("meta") for leaf in random_graph(9, 60, 4).structure.sources]
    x, weight = torch.empty(9, 1, 8, device="meta"), torch.empty(4, 1, 8, 3, device="meta", requires_grad=True)
    assert torch.ops.rgat.project(x, weight, rows, None, False).shape == (len(rows[0]), 1, 3)


def test_functionalisation_changes_no_value():
    graph, conv, x = random_graph(9, 60, 4), RGATConv(8, 4, 4, heads=2), torch.randn(9, 8)
    with torch.no_grad():
        actual = torch.func.functionalize(lambda t: conv(t, graph))(x)
        assert torch.equal(actual, conv(x, graph))


def test_refused_transforms_leave_the_graph_unchanged():
    graph, conv, x = random_graph(9, 60, 4), RGATConv(8, 4, 4, heads=2), torch.randn(9, 8)
    with pytest.raises(RuntimeError, match="functorch"):
        torch.func.grad(lambda t: conv(t, graph).sum())(x)
    assert torch.equal(conv(x, graph), conv(x, random_graph(9, 60, 4)))


def test_forward_mode_is_refused_instead_of_dropping_tangents():
    graph, x = random_graph(9, 60, 4), torch.randn(9, 8)
    conv = RGATConv(8, 4, 4, heads=2).requires_grad_(False)
    with forward_ad.dual_level():
        assert not conv(x, graph).isnan().any()
        with pytest.raises(NotImplementedError, match="forward mode"):
            conv(forward_ad.make_dual(x, torch.ones_like(x)), graph)
