"""The operators as PyTorch checks them: schema, gradients, shapes without values, tracing."""

import pytest
import torch
from helpers import random_graph

from rgat.nn import RGATConv, RGCNConv
from rgat.ops import operator

LAYERS = {
    "dense": (RGATConv(8, 4, 4, heads=2), None),
    "featureless": (RGATConv(9, 4, 4, heads=2), None),
    "bases": (RGCNConv(8, 4, 4, num_bases=2), "basis"),
    "bases, sums first": (RGATConv(8, 4, 4, num_bases=2), "basis aggregate"),
}


@pytest.mark.parametrize("name", LAYERS)
def test_operators_pass_the_checks_of_torch_library(name, monkeypatch):
    graph, (conv, plan) = random_graph(9, 60, 4), LAYERS[name]
    called, usual = {}, operator.Operator.__call__

    def watch(self, *arguments):
        called.setdefault(self.name, (self, arguments))
        return usual(self, *arguments)

    monkeypatch.setattr(operator.Operator, "__call__", watch)
    x = torch.randn(9, 8, requires_grad=True)
    out = conv(None, graph) if name == "featureless" else conv(x, graph, plan=plan and conv.plan(graph, plan))
    forward = set(called)
    (out * torch.randn_like(out)).sum().backward()
    assert forward
    assert set(called) - forward
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    for one, arguments in called.values():
        again = tuple(
            value.detach().requires_grad_(value.requires_grad) if isinstance(value, torch.Tensor) else value
            for value in arguments
        )
        also = ("test_aot_dispatch_dynamic",) if one.name in forward else ()  # gradients have none themselves
        torch.library.opcheck(one.traced, again, test_utils=(*checks, *also))
