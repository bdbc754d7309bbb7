"""Node classification on sampled mini-batches, with exact scores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from rgat.data import NodeData
from rgat.data.dataset import MISSING
from rgat.graph import RelationalGraph
from rgat.memory import free_memory
from rgat.models import Stack
from rgat.nn import FeatureRows
from rgat.sampling import Batch, NeighborLoader, gather_features
from rgat.training.configuration import Settings
from rgat.training.distributed import processes
from rgat.training.task import Score, node_weights, shared_logits, wide

ROWS = 2**16  # of the features, to check at once
GRAPH_SHARE = 0.4  # of the free memory of a GPU, for the edges of the graph and their index


class SampledTask:
    """Mini-batches of the training nodes of one graph, for a model or for a stack whose members share the split.

    Training samples the edges of each batch; scores are computed with all edges. A graph is sampled on the GPU where
    it fits there, else on the CPU; features are gathered from wherever they are kept.
    """

    metric = "accuracy"
    why_not_pad = "its batches are sampled"

    def __init__(self, data: NodeData, settings: Settings, device: torch.device, seed: int = 0) -> None:
        assert settings.fanouts is not None
        self.data, self.device, self.processes = data, device, processes()
        self.x = data.x
        in_memory = None if data.is_stored else data.x
        if in_memory is not None and any(bool(rows.isnan().any()) for rows in torch.split(in_memory, ROWS)):
            raise ValueError(f"node features of {data.name} must not contain NaN; clean them first")
        graph = data.graph
        if isinstance(graph, RelationalGraph) and graph.device != device and _fits(graph, device):
            graph = graph.to(device)
        options = {"fanouts": settings.fanouts, "batch_size": settings.batch_size, "seed": seed}
        self.loader = NeighborLoader(graph, data.train, share=self.processes, **options)  # type: ignore[arg-type]
        self.num_steps = len(self.loader)
        self.labels = data.labels
        self.weight = None if settings.class_weights is None else node_weights(data, settings.class_weights)
        self.dtype = torch.bfloat16 if settings.autocast else None

    def batches(self, generator: torch.Generator, epoch: int) -> Iterator[tuple[Batch, float]]:
        """Yield this process's share of each batch of an epoch, counted from 0, and the weight of the whole batch."""
        self.loader.epoch = epoch
        wholes = torch.split(self.loader.order(epoch), self.loader.batch_size)
        yield from zip(self.loader, map(self._weight_of, wholes), strict=True)

    def _weight_of(self, nodes: Tensor) -> float:
        """Return the sum of the weights of nodes in the loss; without class weights, their number."""
        return len(nodes) if self.weight is None else float(self.weight[self.labels[nodes]].double().sum())

    def losses(self, model: nn.Module, sampled: tuple[Batch, float]) -> Tensor:
        """Return the loss of each member on a batch, ``[S]``."""
        batch, total = sampled
        x: Tensor | FeatureRows | None = None
        if self.x is not None:
            dtype = self.dtype or next(model.parameters()).dtype
            in_place = self.x.device == self.device and self.x.dtype == dtype
            x = FeatureRows(self.x, batch.nodes.to(self.device)) if in_place else None
            x = x or gather_features(self.x, batch.nodes, self.device, dtype)
        seeds = batch.nodes[: batch.num_seeds]
        labels = self.labels[seeds.cpu()].to(self.device)
        if self.processes.number > 1 and any(isinstance(module, nn.BatchNorm1d) for module in model.modules()):
            for graph in batch.graphs[:-1]:  # shares may have nodes in common
                once = self.processes.counts_once(batch.nodes[: graph.num_targets].to(self.device))
                graph.counted = once.to(graph.device)
        logits = model(x, batch.graphs if batch.nodes.device == self.device else batch.to(self.device).graphs)
        members = logits if isinstance(model, Stack) else logits.unsqueeze(0)
        wides = [wide(each[: len(labels)]) for each in members]
        scale = self.processes.number / total  # gradients are averaged over the processes
        weight = None if self.weight is None else self.weight.to(wides[0])
        return torch.stack([cross_entropy(each, labels, weight, reduction="sum") for each in wides]) * scale

    def evaluate(self, model: nn.Module, parts: Sequence[str], constant_attention: bool = False) -> list[list[Score]]:
        """Return the loss and metric of each member, for each part."""
        nodes = [getattr(self.data, part) for part in parts]
        logits = self.logits(model, torch.cat(nodes), constant_attention)
        by_part = logits.split_with_sizes([len(part) for part in nodes], dim=1)
        return [self._scores(each, part) for each, part in zip(by_part, nodes, strict=True)]

    def logits(self, model: nn.Module, nodes: Tensor, constant_attention: bool = False) -> Tensor:
        """Return exact logits of nodes, ``[S, n, classes]`` on the CPU."""
        distinct, place = torch.unique(nodes, return_inverse=True)
        logits = shared_logits(model, self.x, self.loader.sampler, distinct, constant_attention)
        return (logits if isinstance(model, Stack) else logits.unsqueeze(0)).cpu()[:, place]

    def _scores(self, logits: Tensor, nodes: Tensor) -> list[Score]:
        labels = self.labels[nodes]
        known = labels != MISSING
        scores = []
        for each in logits:
            weight = None if self.weight is None else self.weight.to(each)
            loss = float(cross_entropy(each[known], labels[known], weight)) if known.any() else float("nan")
            right = (each.argmax(-1) == labels)[known]
            scores.append((loss, float(right.double().mean())))
        return scores

    def watched(self, score: Score) -> tuple[float, float]:
        """Return what early stopping minimises; the second number breaks ties."""
        return score[0], -score[1]

    def select(self, members: list[int]) -> None:
        """Do nothing: members share all data."""


def _fits(graph: RelationalGraph, device: torch.device) -> bool:
    """Tell whether the edges of a graph and their index fit on a GPU."""
    return device.type == "cuda" and 80 * graph.num_edges < GRAPH_SHARE * free_memory(device)
