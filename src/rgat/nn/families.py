"""Make a layer of either family, attention or convolution, from the same arguments."""

from __future__ import annotations

from typing import Any

from rgat.checks import check_count, check_word
from rgat.nn.rgat import RGATConv
from rgat.nn.rgcn import RGCNConv

LAYERS = ("rgat", "rgcn")
RGCN_OPTIONS = ("num_bases", "feature_dropout", "edge_dropout", "bias", "graph", "num_nodes")


def make_layer(
    family: str,
    in_channels: int,
    out_channels: int,
    num_relations: int,
    heads: int,
    head_merge: str,
    options: dict[str, Any],
) -> RGATConv | RGCNConv:
    """Return a relational layer of ``out_channels`` per head, heads merged as told."""
    check_word("layer", family, LAYERS)
    if family == "rgat":
        return RGATConv(in_channels, out_channels, num_relations, heads=heads, head_merge=head_merge, **options)
    if heads != 1:
        raise ValueError(f'`heads` must be 1 for layer="rgcn", which has no heads, got {heads}')
    for name in options:
        if name not in RGCN_OPTIONS:
            raise ValueError(f'`{name}` must not be given for layer="rgcn", which has no attention; leave it out')
    return RGCNConv(in_channels, out_channels, num_relations, **options)


def units_per_head(hidden_channels: int, heads: int) -> int:
    """Return the number of units of each head, so that all heads have so many hidden channels."""
    check_count("hidden_channels", hidden_channels)
    check_count("heads", heads)
    if hidden_channels % heads:
        raise ValueError(f"`hidden_channels` must be divisible by `heads`, got {hidden_channels} and {heads}")
    return hidden_channels // heads
