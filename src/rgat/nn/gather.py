"""From nodes to graphs (section 2.3, GraphGather)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rgat.graph import RelationalGraph

TYPICAL_SIZE = 20.0  # atoms of a molecule: sums then have the size of means


class GraphGather(nn.Module):
    r"""The mean of a graph's node representations beside their feature-wise maximum.

    $$
    \mathrm{GraphGather}(H) = \Big(\frac1N \sum_i h_i\Big) \oplus \Big[\bigoplus_f \max_i h_{i,f}\Big]
    \in \mathbb{R}^{2F}.
    $$

    A graph without nodes gathers to zero. Where several nodes share the maximum, the first one gets its gradient.

    Examples:
        >>> import torch
        >>> from rgat import RelationalGraph
        >>> from rgat.nn import GraphGather
        >>> edges = torch.tensor([[0], [1]])
        >>> graph = RelationalGraph(edges, torch.tensor([0]), num_nodes=2, num_relations=1)
        >>> batch = RelationalGraph.collate([graph, graph])
        >>> GraphGather()(torch.tensor([[1.0], [3.0], [5.0], [5.0]]), batch)
        tensor([[2., 3.],
                [5., 5.]])
    """

    def forward(self, x: Tensor, graph: RelationalGraph) -> Tensor:
        """Map node representations ``[N, F]`` to one row per graph, ``[G, 2 F]``."""
        if x.dim() != 2 or x.shape[0] != graph.num_nodes:
            raise ValueError(f"`x` must have shape [{graph.num_nodes}, F], one row per node, got {list(x.shape)}")
        graph_id, sizes = graph.graph_ids(), graph.graph_sizes
        wide = torch.promote_types(x.dtype, torch.float32)  # a sum may exceed float16
        total = x.new_zeros(sizes.shape[0], x.shape[1], dtype=wide).index_add(0, graph_id, x.to(wide))
        mean = (total / sizes.clamp(min=1).unsqueeze(1)).to(x.dtype)
        return torch.cat([mean, _maximum(x, graph_id, sizes.shape[0])], dim=1)


def _maximum(x: Tensor, graph_id: Tensor, num_graphs: int) -> Tensor:
    """Return the largest value of each feature in each graph, ``[G, F]``; 0 where there are no nodes."""
    if not torch.compiler.is_compiling() and not (x.requires_grad and torch.is_grad_enabled()):
        index = graph_id.unsqueeze(1).expand_as(x)
        return x.new_zeros(num_graphs, x.shape[1]).scatter_reduce(0, index, x, "amax", include_self=False)
    # A row of zeros stands where a graph without nodes looks for its maximum.
    padded = torch.cat([x, x.new_zeros(1, x.shape[1])])
    return padded.gather(0, _first_maximum(x.detach(), graph_id, num_graphs))


@torch.library.custom_op("rgat::first_maximum", mutates_args=())
def _first_maximum(x: Tensor, graph_id: Tensor, num_graphs: int) -> Tensor:
    """The first node of each graph that has the largest value of each feature, ``[G, F]``; ``N`` where there is none.

    An operator, and no reduction with a gradient of its own: that one compares values with their maximum, which a
    compiler may have rounded differently.
    """
    index = graph_id.unsqueeze(1).expand_as(x)
    lowest = x.new_full((num_graphs, x.shape[1]), -torch.inf)
    maximum = lowest.scatter_reduce(0, index, x, "amax")
    node = torch.arange(x.shape[0], device=x.device).unsqueeze(1).expand_as(x)
    is_largest = (x == maximum.index_select(0, graph_id)) | x.isnan()  # the maximum of a graph with NaN is NaN
    node = torch.where(is_largest, node, x.shape[0])
    return node.new_full(maximum.shape, x.shape[0]).scatter_reduce(0, index, node, "amin")


@_first_maximum.register_fake
def _(x: Tensor, graph_id: Tensor, num_graphs: int) -> Tensor:
    return graph_id.new_empty(num_graphs, x.shape[1])


def sum_of_mean(mean: Tensor, graph: RelationalGraph) -> Tensor:
    """Return the sum of each graph's node representations, in units of `TYPICAL_SIZE`, from their mean.

    Both are ``[G, F]``, or ``[G, S, F]`` of a stack.
    """
    share = graph.graph_sizes.to(mean.dtype) / TYPICAL_SIZE
    return mean * share.view(-1, *[1] * (mean.dim() - 1))


def join_descriptors(z: Tensor, graph: RelationalGraph, channels: int) -> Tensor:
    """Return gathered vectors ``[G, F]``, of a stack ``[G, S, F]``, with the descriptors of each graph behind them."""
    given = graph.graph_attr
    if given is None or given.shape[-1] != channels:
        raise ValueError(
            f"a model with `descriptor_channels` needs a batch with {channels} descriptors of each graph in "
            f"`graph_attr`, got {'none' if given is None else given.shape[-1]}"
        )
    given = given.unsqueeze(1) if z.dim() == 3 else given
    return torch.cat([z, given.to(z.dtype).expand(*z.shape[:-1], -1)], dim=-1)
