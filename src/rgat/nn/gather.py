"""From nodes to graphs (section 2.3, GraphGather)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rgat.graph import RelationalGraph


class GraphGather(nn.Module):
    r"""The mean of a graph's node representations beside their feature-wise maximum.

    .. math::
        \mathrm{GraphGather}(H) = \Big(\frac1N \sum_i h_i\Big) \oplus \Big[\bigoplus_f \max_i h_{i,f}\Big]
        \in \mathbb{R}^{2F}.

    A graph without nodes gathers to zero. Ties of the maximum share its gradient evenly.
    """

    def forward(self, x: Tensor, graph: RelationalGraph) -> Tensor:
        """Map node representations ``[N, F]`` to one row per graph, ``[G, 2 F]``."""
        if x.dim() != 2 or x.shape[0] != graph.num_nodes:
            raise ValueError(f"`x` must have shape [{graph.num_nodes}, F], one row per node, got {list(x.shape)}")
        graph_id, sizes = graph.graph_ids(), graph.structure.graph_sizes
        zeros = x.new_zeros(sizes.shape[0], x.shape[1])
        wide = torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else x.dtype  # a sum may exceed float16
        total = zeros.to(wide).index_add(0, graph_id, x.to(wide))
        mean = (total / sizes.clamp(min=1).unsqueeze(1)).to(x.dtype)
        maximum = zeros.scatter_reduce(0, graph_id.unsqueeze(1).expand_as(x), x, "amax", include_self=False)
        return torch.cat([mean, maximum], dim=1)
