import contextlib
import functools

import pytest
import torch
from helpers import assert_close, random_graph
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
from torch.utils.flop_counter import FlopCounterMode

from rgat import ops
from rgat.nn import RGATConv
from rgat.nn.stacked import stack_layers
from rgat.ops.dropout import EDGES, FEATURES, count_call, keep_mask, member_rates, scaled_mask


def test_the_generator_never_changes():
    """Compare with golden bits: they fail on any machine whose backend draws other masks."""
    mask = keep_mask(torch.tensor([123456789, 3]), FEATURES, torch.tensor([0, 1, 2**40 + 7]), 16, 0.5)
    words = [sum(int(bit) << place for place, bit in enumerate(row)) for row in mask.tolist()]
    assert words == GOLDEN


GOLDEN = [8223, 34992, 12867]  # computed once with Python integers, one element at a time


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.8])
@pytest.mark.parametrize("kind", [FEATURES, EDGES])
def test_masks_keep_the_right_share_in_every_row_and_column(kind, rate):
    mask = keep_mask(torch.tensor([1, 0]), kind, torch.arange(4096), 64, rate).double()
    assert abs(mask.mean() - (1 - rate)) < 0.005
    # Allow five standard deviations of a binomial proportion.
    for axis, count in ((0, 4096), (1, 64)):
        assert (mask.mean(axis) - (1 - rate)).abs().max() < 5 * (rate * (1 - rate) / count) ** 0.5


def test_elements_are_uncorrelated_between_neighbouring_ids_columns_calls_seeds_and_kinds():
    def draw(seed, call, kind):
        return keep_mask(torch.tensor([seed, call]), kind, torch.arange(2048), 32, 0.5).double() * 2 - 1

    base = draw(5, 7, FEATURES)
    others = [draw(6, 7, FEATURES), draw(5, 8, FEATURES), draw(5, 7, EDGES), base.roll(1, 0), base.roll(1, 1)]
    for other in others:
        assert abs((base * other).mean()) < 5 / base.numel() ** 0.5


def test_a_mask_depends_only_on_its_ids():
    state = torch.tensor([9, 9])
    ids = torch.randperm(100)
    assert torch.equal(keep_mask(state, EDGES, ids, 4, 0.3), keep_mask(state, EDGES, torch.arange(100), 4, 0.3)[ids])
    assert torch.equal(keep_mask(state, EDGES, ids, 3, 0.3), keep_mask(state, EDGES, ids, 4, 0.3)[:, :3])


def test_the_mask_of_a_stack_concatenates_the_masks_of_its_members():
    rates, ids = [0.3, 0.0, 0.8], torch.arange(50)
    pairs = torch.tensor([[5, 7], [6, 0], [5, 8]])
    for kind, edges_first in ((FEATURES, False), (EDGES, True)):
        other = [0.1] * 3
        state = torch.cat([pairs, member_rates(*((other, rates) if edges_first else (rates, other)))], dim=1)
        mask = scaled_mask(state, kind, ids, 12, 0.8, torch.float64)
        alone = [scaled_mask(pair, kind, ids, 4, rate, torch.float64) for pair, rate in zip(pairs, rates, strict=True)]
        torch.testing.assert_close(mask, torch.cat(alone, dim=1))


def save_products(ctx, op, *args, **kwargs):
    return CheckpointPolicy.MUST_SAVE if op is torch.ops.aten.mm.default else CheckpointPolicy.PREFER_RECOMPUTE


CHECKPOINTS = {
    "reentrant": {"use_reentrant": True},
    "plain": {"use_reentrant": False},
    "selective": {
        "use_reentrant": False,
        "context_fn": functools.partial(create_selective_checkpoint_contexts, save_products),
    },
}


def gradients(model, x, graph, call, mode=contextlib.nullcontext):
    """Return the gradients of x and all parameters over two forward passes followed by two backward passes."""
    for layer in model.modules():
        if hasattr(layer, "dropout_state"):
            layer.dropout_state[..., 1] = 0
    x = x.detach().clone().requires_grad_()
    generator = torch.Generator().manual_seed(1)
    with mode():
        outs = [call(model, x * scale, graph) for scale in (1.0, 0.5)]
        for out in outs:
            out.backward(torch.randn(out.shape, generator=generator))
    return [x.grad, *(parameter.grad for parameter in model.parameters())]


def two_layers():
    first, second = (RGATConv(8, 8, 4, feature_dropout=0.5, edge_dropout=0.3) for _ in range(2))
    return TwoLayers(first, second)


class TwoLayers(nn.Module):
    """Call one layer twice, then another: a checkpoint has to restore three masks in the right order."""

    def __init__(self, first, second):
        super().__init__()
        self.first, self.second, self.between = first, second, nn.Linear(8, 8)

    def forward(self, x, graph):
        return self.second(self.between(self.first(self.first(x, graph).relu(), graph)).relu(), graph)


@pytest.mark.parametrize("mode", [contextlib.nullcontext, lambda: FlopCounterMode(display=False)], ids=["", "flops"])
@pytest.mark.parametrize("kind", CHECKPOINTS)
@pytest.mark.parametrize("backend", ["torch", "numba", "reference"])
def test_a_recomputed_call_draws_the_masks_of_the_original_call(kind, mode, backend):
    graph, model, x = random_graph(9, 60, 4), two_layers(), torch.randn(9, 8)
    with ops.backend(backend):
        expected = gradients(model, x, graph, lambda model, *inputs: model(*inputs))
        model.zero_grad()
        actual = gradients(
            model, x, graph, lambda model, *inputs: checkpoint(model, *inputs, **CHECKPOINTS[kind]), mode
        )
    for ours, exact in zip(actual, expected, strict=True):
        assert_close(ours, exact, 1e-6)
    assert model.first.dropout_state[1] == 4  # recomputed calls are not counted


def test_a_recomputed_stack_draws_the_masks_of_the_original_call():
    graph, x = random_graph(9, 60, 4), torch.randn(9, 8)
    layers = [RGATConv(8, 8, 4, feature_dropout=rate) for rate in (0.5, 0.0)]
    together = stack_layers(layers)
    expected = gradients(together, x, graph, lambda model, *inputs: model(*inputs))
    together.zero_grad()
    actual = gradients(together, x, graph, lambda model, *inputs: checkpoint(model, *inputs, use_reentrant=False))
    for ours, exact in zip(actual, expected, strict=True):
        assert_close(ours, exact, 1e-6)


@pytest.mark.parametrize("rate", [0.0, 0.4])
@pytest.mark.parametrize("backend", ["torch", "numba"])
def test_a_recomputed_featureless_layer_draws_the_masks_of_the_original_call(backend, rate):
    graph = random_graph(9, 60, 4)
    conv = RGATConv(9, 4, 4, graph=graph, feature_dropout=rate)
    cotangent, gradients_of_calls = torch.randn(9, 4), []
    for call in (lambda: conv(None, graph), lambda: checkpoint(conv, None, graph, use_reentrant=False)):
        conv.zero_grad()
        conv.dropout_state[1] = 0
        with ops.backend(backend):
            call().backward(cotangent)
        gradients_of_calls.append([parameter.grad.clone() for parameter in conv.parameters()])
    assert all(map(torch.equal, *gradients_of_calls))


@pytest.mark.parametrize("compiler", ["aot_eager", "inductor"])
def test_a_compiled_checkpoint_with_dropout_is_refused(compiler):
    graph, x = random_graph(9, 60, 4).prepare(), torch.randn(9, 8, requires_grad=True)
    conv = RGATConv(8, 8, 4, feature_dropout=0.5)
    conv(x, graph)  # plans are made in eager mode
    options = {"backend": compiler, "fullgraph": True}
    call = torch.compile(lambda x: checkpoint(conv, x, graph, use_reentrant=False).sin(), **options)
    with pytest.raises(RuntimeError, match="must get the masks of its first call"):
        call(x).backward(torch.randn(9, 8))


def test_masks_that_cannot_be_recovered_raise_an_error():
    graph, x, cotangent = random_graph(9, 60, 4), torch.randn(9, 8, requires_grad=True), torch.randn(9, 8)
    conv = RGATConv(8, 8, 4, feature_dropout=0.5)
    forgetful = checkpoint(conv, x, graph, use_reentrant=False, preserve_rng_state=False)
    ambiguous = []
    for _ in range(2):
        torch.manual_seed(3)
        ambiguous.append(checkpoint(conv, x, graph, use_reentrant=False))
    for out in (forgetful, *ambiguous):
        with pytest.raises(RuntimeError, match="must get the masks of its first call"):
            out.backward(cotangent)


def test_only_members_with_dropout_count_calls():
    pairs = torch.tensor([[5, 7], [6, 0]])
    assert torch.equal(count_call(pairs, torch.tensor([1, 0])), torch.tensor([[5, 7], [6, 0]]))
    assert pairs.tolist() == [[5, 8], [6, 0]]
