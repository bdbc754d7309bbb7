import pytest
import torch
from helpers import random_graph
from torch.utils.checkpoint import checkpoint

from rgat.nn import RGATConv
from rgat.ops.dropout import EDGES, FEATURES, count_call, keep_mask, member_rates, scaled_mask


def test_the_generator_never_changes():
    """Golden bits: any backend that draws other masks, on any machine, breaks this."""
    mask = keep_mask(torch.tensor([123456789, 3]), FEATURES, torch.tensor([0, 1, 2**40 + 7]), 16, 0.5)
    words = [sum(int(bit) << place for place, bit in enumerate(row)) for row in mask.tolist()]
    assert words == GOLDEN


GOLDEN = [8223, 34992, 12867]  # computed once with Python integers, one element at a time


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.8])
@pytest.mark.parametrize("kind", [FEATURES, EDGES])
def test_masks_keep_the_right_share_in_every_row_and_column(kind, rate):
    mask = keep_mask(torch.tensor([1, 0]), kind, torch.arange(4096), 64, rate).double()
    assert abs(mask.mean() - (1 - rate)) < 0.005
    # Five standard deviations of a binomial share.
    for axis, count in ((0, 4096), (1, 64)):
        assert (mask.mean(axis) - (1 - rate)).abs().max() < 5 * (rate * (1 - rate) / count) ** 0.5


def test_elements_are_uncorrelated_between_neighbouring_ids_columns_calls_seeds_and_kinds():
    def draw(seed, call, kind):
        return keep_mask(torch.tensor([seed, call]), kind, torch.arange(2048), 32, 0.5).double() * 2 - 1

    base = draw(5, 7, FEATURES)
    others = [draw(6, 7, FEATURES), draw(5, 8, FEATURES), draw(5, 7, EDGES), base.roll(1, 0), base.roll(1, 1)]
    for other in others:
        assert abs((base * other).mean()) < 5 / base.numel() ** 0.5


def test_a_mask_depends_on_its_ids_alone():
    state = torch.tensor([9, 9])
    ids = torch.randperm(100)
    assert torch.equal(keep_mask(state, EDGES, ids, 4, 0.3), keep_mask(state, EDGES, torch.arange(100), 4, 0.3)[ids])
    assert torch.equal(keep_mask(state, EDGES, ids, 3, 0.3), keep_mask(state, EDGES, ids, 4, 0.3)[:, :3])


def test_a_stacks_mask_is_that_of_its_members_side_by_side():
    rates, ids = [0.3, 0.0, 0.8], torch.arange(50)
    pairs = torch.tensor([[5, 7], [6, 0], [5, 8]])
    for kind, edges_first in ((FEATURES, False), (EDGES, True)):
        other = [0.1] * 3
        state = torch.cat([pairs, member_rates(*((other, rates) if edges_first else (rates, other)))], dim=1)
        mask = scaled_mask(state, kind, ids, 12, 0.8, torch.float64)
        alone = [scaled_mask(pair, kind, ids, 4, rate, torch.float64) for pair, rate in zip(pairs, rates, strict=True)]
        torch.testing.assert_close(mask, torch.cat(alone, dim=1))


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_is_exact_without_dropout_and_refused_with_it(reentrant):
    graph, x = random_graph(9, 60, 4), torch.randn(9, 8, requires_grad=True)
    conv, cotangent = RGATConv(8, 4, 4, feature_dropout=0.5), torch.randn(9, 4)
    with pytest.raises(RuntimeError, match="must not be called again in a backward pass"):
        checkpoint(conv, x, graph, use_reentrant=reentrant).backward(cotangent)
    conv = RGATConv(8, 4, 4)
    expected = torch.autograd.grad(conv(x, graph), x, cotangent)[0]
    x.grad = None
    checkpoint(conv, x, graph, use_reentrant=reentrant).backward(cotangent)
    assert torch.equal(x.grad, expected)


def test_only_members_with_dropout_count_calls():
    pairs = torch.tensor([[5, 7], [6, 0]])
    assert torch.equal(count_call(pairs, torch.tensor([1, 0])), torch.tensor([[5, 7], [6, 0]]))
    assert pairs.tolist() == [[5, 8], [6, 0]]
