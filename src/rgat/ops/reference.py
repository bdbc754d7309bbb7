"""The relational layer written from the paper's equations (section 2.1): the oracle for every other backend.

Plain PyTorch, right in float64, differentiable by autograd alone, to be read beside the paper. It forms one
intermediate representation per node *and* relation, so it is for small graphs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu

from rgat.graph import RelationalGraph
from rgat.ops.backend import LayerCall
from rgat.ops.dropout import EDGES, FEATURES, scaled_mask


def relational_attention(
    x: Tensor,  # H in the paper: [N, F]; or [N, S, F], each input with its own share of the heads
    kernels: Tensor,  # W: [R, H, F, D]
    attention_kernels: tuple[Tensor, Tensor] | None,  # Q, K: [R, H, D, A] each; None: constant attention
    graph: RelationalGraph,
    *,
    scope: Sequence[str],  # one word per head
    negative_slope: float | None = None,  # of the additive and the dynamic score; None: the multiplicative score
    score_kernels: Tensor | None = None,  # a: [R, H, A], of the dynamic score
    edge_attr: Tensor | None = None,  # [E, edge_dim]
    edge_kernels: Tensor | None = None,  # u: [R, H, edge_dim]
    dropout_state: Tensor | None = None,  # (seed, call number); None: no dropout
    feature_dropout: float = 0.0,
    edge_dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Return the heads' outputs ``[N, H, D]`` and, in the caller's edge order, the undropped attention ``[E, H]``.

    Examples:
        >>> import torch
        >>> from rgat import RelationalGraph, ops
        >>> edges, types = torch.tensor([[0, 1, 2], [1, 2, 1]]), torch.tensor([0, 0, 1])
        >>> graph = RelationalGraph(edges, types, num_nodes=3, num_relations=2)
        >>> kernels = torch.randn(2, 1, 8, 4, dtype=torch.float64)
        >>> x = torch.randn(3, 8, dtype=torch.float64)
        >>> out, attention = ops.relational_attention(x, kernels, None, graph, scope=["across"])
        >>> attention.flatten()
        tensor([0.5000, 1.0000, 0.5000], dtype=torch.float64)
    """
    source, target = graph.edge_index
    relation = graph.edge_type
    num_heads, channels = kernels.shape[1], kernels.shape[3]

    per_head = x.unsqueeze(1) if x.dim() == 2 else x.repeat_interleave(num_heads // x.shape[1], 1)
    g = torch.einsum("nkf,rkfd->rnkd", per_head.expand(-1, num_heads, -1), kernels)  # G^(r) = H W^(r)
    if attention_kernels is None:
        logits = x.new_zeros(graph.num_edges, num_heads)
    else:
        q = torch.einsum("rnkd,rkda->rnka", g, attention_kernels[0])
        k = torch.einsum("rnkd,rkda->rnka", g, attention_kernels[1])
        q_edge, k_edge = q[relation, target], k[relation, source]  # [E, H, A]
        if negative_slope is None:
            logits = (q_edge * k_edge).sum(-1)
        elif score_kernels is None:
            logits = (q_edge + k_edge).squeeze(-1)
        else:
            logits = (score_kernels[relation] * leaky_relu(q_edge + k_edge, negative_slope)).sum(-1)
        if edge_attr is not None and edge_kernels is not None:
            logits = logits + torch.einsum("ec,ekc->ek", edge_attr, edge_kernels[relation])
        if negative_slope is not None and score_kernels is None:
            logits = leaky_relu(logits, negative_slope)

    within = target * graph.num_relations + relation
    attention = torch.stack(
        [_softmax(logits[:, h], within if word == "within" else target) for h, word in enumerate(scope)], dim=1
    )

    weight, value = attention, g[relation, source]  # [E, H], [E, H, D]
    if dropout_state is not None and edge_dropout > 0:
        # Edges are numbered in the sorted order, which does not depend on the caller's.
        number = torch.empty_like(relation).scatter_(0, graph.structure.order.long(), graph.structure.edge_ids())
        weight = weight * scaled_mask(dropout_state, EDGES, number, num_heads, edge_dropout, weight.dtype)
    if dropout_state is not None and feature_dropout > 0:
        s = graph.structure
        row = torch.empty_like(relation).scatter_(0, s.order.long(), s.source_ids()[s.source_row.long()])
        mask = scaled_mask(dropout_state, FEATURES, row, num_heads * channels, feature_dropout, value.dtype)
        value = value * mask.view_as(value)

    out = x.new_zeros(graph.num_targets, num_heads, channels)
    return out.index_add(0, target, weight.unsqueeze(-1) * value), attention


def _softmax(logits: Tensor, group: Tensor) -> Tensor:
    """Softmax of ``logits`` ``[E]`` over the entries that share a ``group``."""
    groups, group = torch.unique(group, return_inverse=True)
    # The maximum only keeps the exponentials finite; it cancels, so it needs no gradient.
    maximum = logits.detach().new_full(groups.shape, -torch.inf).scatter_reduce(0, group, logits.detach(), "amax")
    numerator = (logits - maximum[group]).exp()
    return numerator / numerator.new_zeros(groups.shape).index_add(0, group, numerator)[group]


def compute(call: LayerCall) -> tuple[Tensor, Tensor]:
    """Compute a layer by the equations, as `rgat.ops.compute_layer` does; one-hot inputs become dense matrices."""
    scores, graph, x = call.scores, call.graph, call.inputs.gathered()
    with torch.autocast(graph.device.type, enabled=False):
        kernels = call.kernel.compose()
        if x is None:
            x = torch.eye(kernels.shape[2], dtype=kernels.dtype, device=kernels.device)
            position = graph.node_ids if call.inputs.position is None else call.inputs.position
            x = x if position is None else x[position]
        if call.node_kernel is not None:  # one-hot vectors of the nodes beside the inputs
            rows = call.node_kernel.compose()
            ids = torch.arange(graph.num_nodes, device=graph.device) if graph.node_ids is None else graph.node_ids
            nodes = (ids.unsqueeze(1) == torch.arange(rows.shape[2], device=graph.device)).to(kernels.dtype)
            nodes = nodes if x.dim() == 2 else nodes.unsqueeze(1).expand(-1, x.shape[1], -1)
            x, kernels = torch.cat([x.to(kernels.dtype), nodes], -1), torch.cat([kernels, rows], 2)
        attention_kernels, options = None, {}
        if scores is not None:
            query, key = scores.kernels.to(kernels.dtype).chunk(2, dim=2)
            attention_kernels, options = (query, key), scores._asdict()
            del options["kernels"]
        out, attention = relational_attention(
            x.to(kernels.dtype),
            kernels,
            attention_kernels,
            graph,
            **options,
            scope=["across" if across else "within" for across in call.attention.across],
            dropout_state=call.state,
            feature_dropout=call.attention.feature_dropout,
            edge_dropout=call.attention.edge_dropout,
        )
        attention = attention.index_select(0, graph.structure.order)
        return out if call.bias is None else out + call.bias.view(out.shape[1:]), attention
