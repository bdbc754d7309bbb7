"""Full-graph node classification whose nodes are divided among processes, with the result of one process.

Each process computes a range of nodes, with all edges into them. Between two layers it receives the outputs of the
other nodes that these edges start from, its halo, and in the backward pass returns their gradients. Dropout masks
depend on ids of the whole graph, so they are those of one process.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from rgat.data import NodeData
from rgat.data.dataset import MISSING, PARTS
from rgat.graph import RelationalGraph
from rgat.models import NodeClassifier
from rgat.sampling import NeighborSampler, gather_features
from rgat.sampling.sampler import HasIncomingEdges
from rgat.training.distributed import Requests, processes
from rgat.training.loss import summed_cross_entropy
from rgat.training.task import Score, check_parts, node_weights


def balanced_ranges(edges_before: Tensor, number: int) -> Tensor:
    """Return where contiguous ranges of nodes with about equally many edges and nodes begin and end, ``[number + 1]``.

    They differ by at most the in-degree of one node.

    Args:
        edges_before: number of edges into the nodes before each node, and into all, ``[N + 1]``.
        number: of ranges.
    """
    before = edges_before + torch.arange(len(edges_before), device=edges_before.device)
    cuts = before[-1] * torch.arange(number + 1, device=before.device) // number
    return torch.searchsorted(before, cuts)


def own_graph(graph: RelationalGraph | HasIncomingEdges, rank: int, number: int) -> tuple[RelationalGraph, Tensor]:
    """Return the graph of all edges into a process's range of nodes, which are its first, and all ranges.

    No other edges are sorted or copied. Edges and rows keep the ids of the whole graph.
    """
    if isinstance(graph, RelationalGraph):
        target = graph.edge_index[1]
        counts = target.bincount(minlength=graph.num_nodes)
        edges_before = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    else:
        edges_before = graph.incoming.group_ptr[graph.incoming.node_ptr]
    ranges = balanced_ranges(edges_before, number)
    first, last = ranges[rank : rank + 2].tolist()
    skipped = 0
    if isinstance(graph, RelationalGraph):
        graph = graph.with_edges(((target >= first) & (target < last)).nonzero().squeeze(1))
        skipped = int(edges_before[first])
    sampler = NeighborSampler(graph, [-1])
    block = sampler.block(torch.arange(first, last, device=sampler.device))
    structure = block.structure._replace(edge_id=block.structure.edge_ids() + skipped)
    edges = (block.edge_index, block.edge_type)
    return RelationalGraph.from_structure(*edges, structure, block.edge_attr, block.node_ids), ranges


class Halo:
    """The nodes of other processes that a process reads.

    Args:
        nodes: their ids.
        ranges: which nodes each process computes, as `balanced_ranges` returns them.
    """

    def __init__(self, nodes: Tensor, ranges: Tensor) -> None:
        self.requests = Requests(nodes, torch.searchsorted(ranges[1:].contiguous(), nodes, right=True))
        self.rows = self.requests.ids - ranges[processes().rank]  # of this process, that others read

    def complete(self, own: Tensor) -> Tensor:
        """Append the halo's rows to the rows of a process's own nodes."""
        return torch.cat([own, self.requests.fetch(own.index_select(0, self.rows))])


class ShardedNodeTask:
    """Full-batch node classification of this process's range of nodes; scores are those of all nodes."""

    metric = "accuracy"
    label_smoothing = 0.0
    why_not_pad = "several processes share its graph"
    num_steps = 1  # of an epoch

    def __init__(
        self, data: NodeData, device: torch.device, selects: bool = True, class_weights: str | None = None
    ) -> None:
        check_parts(data, selects)
        rank, number = processes()
        graph, ranges = own_graph(data.graph, rank, number)
        first, last = ranges[rank : rank + 2].tolist()
        self.first = first  # of this process's nodes
        self.graph = graph.to(device)
        self.graph.validate = False  # a diverged model must end its run without an error
        assert self.graph.node_ids is not None
        self.x = None if data.x is None else gather_features(data.x, self.graph.node_ids, device, data.x.dtype)
        if self.x is not None and self.x.isnan().any():
            raise ValueError(f"node features of {data.name} must not contain NaN; clean them first")
        self.halo = Halo(self.graph.node_ids[last - first :], ranges.to(device))
        self.labels = data.labels[first:last].to(device)
        self.parts: dict[str, Tensor] = {}  # this process's labelled nodes of each part
        for part in PARTS:
            nodes = getattr(data, part)
            own = nodes[(nodes >= first) & (nodes < last) & (data.labels[nodes] != MISSING)] - first
            self.parts[part] = own.to(device)
        weight = node_weights(data, class_weights)
        self.weight, self.total = weight.to(device), float(weight[data.labels[data.train]].double().sum())

    def batches(self, generator: torch.Generator, epoch: int) -> Iterator[Tensor]:
        """Yield the ids of the training examples of each step of an epoch."""
        yield self.parts["train"]

    def losses(self, model: nn.Module, ids: Tensor) -> Tensor:
        """Return this process's part of the loss, ``[1]``."""
        scale = processes().number / self.total  # gradients are averaged over the processes
        logits = self.logits(model).index_select(0, ids)
        terms = (self.labels[ids], self.weight.to(logits), self.label_smoothing)
        return summed_cross_entropy(logits, *terms).unsqueeze(0) * scale

    def logits(self, model: nn.Module, constant_attention: bool = False) -> Tensor:
        """Return the logits of this process's nodes."""
        if not isinstance(model, NodeClassifier):
            raise ValueError(f"several processes must train a NodeClassifier, got a {type(model).__name__}")
        hidden = model.inputs(self.x, self.graph)
        for number in range(1, model.num_layers + 1):
            if number > 1:
                assert isinstance(hidden, Tensor)
                hidden = self.halo.complete(hidden)
            hidden = model.layer(number, hidden, self.graph, constant_attention)
        assert isinstance(hidden, Tensor)
        return hidden

    def evaluate(self, model: nn.Module, parts: Sequence[str], constant_attention: bool = False) -> list[list[Score]]:
        """Return the loss and metric of each part over the nodes of all processes."""
        logits = self.logits(model, constant_attention).double()
        sums = []
        for part in parts:
            nodes = self.parts[part]
            labels, each = self.labels[nodes], logits[nodes]
            weight, right = self.weight.to(each), (each.argmax(-1) == labels).sum()
            loss = cross_entropy(each, labels, weight, reduction="sum")
            sums.append(torch.stack([loss, weight[labels].sum(), right, right.new_tensor(len(nodes))]))
        totals = torch.stack(sums)
        dist.all_reduce(totals)
        return [
            [(loss / (weight or 1), right / number if number else float("nan"))]
            for loss, weight, right, number in totals.tolist()
        ]

    def watched(self, score: Score) -> tuple[float, float]:
        """Return what early stopping minimises; the second number breaks ties."""
        return score[0], -score[1]

    def select(self, members: list[int]) -> None:
        """Do nothing: there is one member."""
