"""Gradients of a logit through a large receptive field, block by block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from rgat.sampling.blocks import PART, Inputs, edge_ranges, is_hub, most_edges, runs
from rgat.sampling.hubs import hub_sums, is_across, relation_of_edges


def literal_gradients(
    chain: Sequence[Inputs], needed: Sequence[Tensor], gradient: Tensor, places: Sequence[slice], block_numbers: int
) -> Tensor:
    """Return the sum of gradient times feature over each of some columns, for every node, ``[N, places]``.

    Args:
        chain: the inputs of every layer, the first one with features.
        needed: the nodes whose output each layer computes.
        gradient: of the logits of the last of these, ``[n, classes]``.
        places: columns of the features.
        block_numbers: the size of a block.
    """
    sampler = chain[0].sampler
    found = torch.zeros(sampler.num_nodes, len(places))
    outer = gradient.to(chain[0].like)
    for number in range(len(needed), 0, -1):
        inputs, targets = chain[number - 1], needed[number - 1]
        inner = None if inputs.hidden is None else torch.zeros_like(inputs.hidden)
        most, done = most_edges(inputs, number, block_numbers), 0
        for chosen in runs(sampler, targets, most):
            rows = outer[done : done + len(chosen)]
            done += len(chosen)
            through = _through_hub if is_hub(sampler, chosen, most) else _through_block
            for ids, given, part in through(inputs, number, chosen, rows, most):
                if inner is not None:
                    assert inputs.position is not None
                    inner.index_add_(0, inputs.position[ids].to(inner.device), part)
                    continue
                product = (given * part).float().cpu()
                sums = torch.stack([product[:, place].sum(1) for place in places], dim=1)
                found.index_add_(0, ids.cpu(), sums)
        if inner is not None:
            outer = inner
    return found


Gradients = Iterator[tuple[Tensor, Tensor, Tensor]]  # ids of nodes, their inputs, and the gradients of these


def _through_block(inputs: Inputs, number: int, targets: Tensor, gradient: Tensor, most: int) -> Gradients:
    """Yield the gradients of a layer's inputs, given those of its outputs for some targets."""
    block = inputs.sampler.block(targets)
    x, graph = inputs.of(block)
    assert x is not None
    assert block.node_ids is not None
    leaf = x.detach().requires_grad_()
    with torch.enable_grad():
        out = inputs.layers.layer(number, leaf, graph)
        (found,) = torch.autograd.grad(out, leaf, gradient)
    yield block.node_ids, x, found


def _through_hub(inputs: Inputs, number: int, targets: Tensor, gradient: Tensor, most: int) -> Gradients:
    """Yield the same for one target, in parts of its edges.

    With the attention ``a`` of an edge and the gradient ``g`` of the output, the gradient of its value ``v`` is
    ``a g``, and that of its logit ``a (g . v - g . m)``, where ``m`` is the output of its softmax group.
    """
    sampler, layers, target = inputs.sampler, inputs.layers, int(targets)
    conv, most = layers.convs[number - 1], max(1, most // PART)
    across = is_across(conv)
    sums = hub_sums(conv, inputs.parts(number, target, edge_ranges(sampler, target, most)), False)
    shares, (shift, divisor) = sums.shares(across), sums.softmax(across)
    own, _ = inputs.of(sampler.part(target, 0, 0))
    assert own is not None
    raw, leaf = shares.sum(0, keepdim=True).requires_grad_(), own.detach().requires_grad_()
    with torch.enable_grad():
        out = layers.activate(number, conv.finish(raw.to(sums.dtype)), x=leaf)
        g, through_own = torch.autograd.grad(out, [raw, leaf], gradient, allow_unused=True)
    if through_own is not None:
        yield targets, own, through_own
    mean = (shares * g).sum(-1)
    mean = torch.where(across, mean.sum(0), mean)  # [R, H]
    for first, last in edge_ranges(sampler, target, most):
        part = sampler.part(target, first, last)
        x, graph = inputs.of(part)
        assert x is not None
        assert part.node_ids is not None
        leaf, relation = x.detach().requires_grad_(), relation_of_edges(graph)
        with torch.enable_grad():
            logits, values = conv.logits_and_values(layers.conv_input(number, leaf), graph)
            along = (values.index_select(0, graph.structure.source_row).double() * g).sum(-1)  # [E, H]
            attention = (logits.detach().double() - shift[relation]).exp() / divisor[relation]
            slope = attention * (along.detach() - mean[relation])
            total = (attention * along).sum() + (slope * logits.double()).sum()
            (found,) = torch.autograd.grad(total, leaf)
        yield part.node_ids, x, found
