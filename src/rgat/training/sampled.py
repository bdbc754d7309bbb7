"""Node classification on sampled mini-batches, with exact scores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

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
from rgat.sampling.padded import PaddedSampler
from rgat.training.capture import Captured
from rgat.training.configuration import Settings
from rgat.training.distributed import processes
from rgat.training.loss import negative_log_likelihood, summed_cross_entropy
from rgat.training.task import Score, node_weights, shared_logits, wide

ROWS = 2**16  # of the features, to check at once
GRAPH_SHARE = 0.4  # of the free memory of a GPU, for the edges of the graph and their index; as much for its features
PADDED_EDGES = 2**19  # of a batch; the kernels of a larger one take longer than their launches


class SampledTask:
    """Mini-batches of the training nodes of one graph, for a model or for a stack whose members share the split.

    Training samples the edges of each batch; scores are computed with all edges. A graph is sampled on the GPU where
    it fits there, else on the CPU; features are gathered from wherever they are kept. Batches that are made on the GPU
    are padded to one size, so that it can replay their steps.
    """

    metric = "accuracy"
    label_smoothing = 0.0

    def __init__(self, data: NodeData, settings: Settings, device: torch.device, seed: int = 0) -> None:
        assert settings.fanouts is not None
        self.data, self.device, self.processes = data, device, processes()
        self.x = data.x
        in_memory = None if data.is_stored else data.x
        if in_memory is not None and any(bool(rows.isnan().any()) for rows in torch.split(in_memory, ROWS)):
            raise ValueError(f"node features of {data.name} must not contain NaN; clean them first")
        graph = data.graph
        if isinstance(graph, RelationalGraph) and graph.device != device and _fits(80 * graph.num_edges, device):
            graph = graph.to(device)
        if in_memory is not None and in_memory.device != device and _fits(in_memory.nbytes, device):
            self.x = in_memory.to(device)
        options = {"fanouts": settings.fanouts, "batch_size": settings.batch_size, "seed": seed}
        self.loader = NeighborLoader(graph, data.train, share=self.processes, **options)  # type: ignore[arg-type]
        self.num_steps = len(self.loader)
        self.labels = data.labels
        self.weight = node_weights(data, settings.class_weights) if settings.class_weights == "balanced" else None
        self.dtype = torch.bfloat16 if settings.autocast else None
        self._padded: PaddedSampler | None = None
        self._same_place = False
        self.pads = False  # whether `batches` are padded, for steps that are replayed
        self.why_not_pad = self._why_not_pad()

    def _why_not_pad(self) -> str | None:
        """Say why batches are not padded, and make ready to pad them if they can be."""
        sampler = self.loader.sampler
        if sampler.device != self.device:
            return "its batches are sampled on the CPU"
        if self.processes.number > 1:
            return "several processes share its batches"
        if self.x is not None and self.x.device != self.device:
            return "its features are not in the memory of the GPU"
        if self.device.type != "cuda" or sampler.incoming.num_edges == 0:
            return "there is nothing to gain"
        padded = PaddedSampler(sampler, self.loader.nodes, self.loader.batch_size, Captured)
        if padded.mean_edges > PADDED_EDGES:
            return "its batches are large"
        self._padded, self._known = padded, self.labels.to(self.device)
        self.weight = None if self.weight is None else self.weight.to(self.device)
        return None

    def batches(self, generator: torch.Generator, epoch: int) -> Iterator[Any]:
        """Yield this process's share of each batch of an epoch, counted from 0, and the weight of the whole batch.

        Padded batches are in the memory of `pad`; nothing is yielded.
        """
        if self.pads:
            yield from self._padded_batches(epoch)
            return
        self.loader.epoch = epoch
        wholes = torch.split(self.loader.order(epoch), self.loader.batch_size)
        yield from zip(self.loader, map(self._weight_of, wholes), strict=True)

    def _padded_batches(self, epoch: int) -> Iterator[None]:
        padded = self._padded
        assert padded is not None
        parts = torch.split(self.loader.order(epoch), self.loader.batch_size)
        first = epoch * len(parts)
        padded.draw(parts[0], first)
        for number in range(len(parts)):
            self._same_place = padded.take()
            if number + 1 < len(parts):  # it is made before this one is used, so that its sizes are known in time
                padded.draw(parts[number + 1], first + number + 1)
            yield None

    def pad(self, ids: None) -> bool:
        """Return whether the padded batch is still at the same address."""
        return self._same_place

    def padded_losses(self, model: nn.Module) -> Tensor:
        """Return the losses of the padded batch; every batch takes the same kernel launches."""
        assert self._padded is not None
        batch, number = self._padded.batch()
        labels = self._known[batch.nodes[: batch.num_seeds]].clamp(min=0)
        weight = (torch.arange(batch.num_seeds, device=self.device) < number).float()
        if self.weight is not None:
            weight = weight * self.weight[labels]
        logits = model(self._features(model, batch), batch.graphs)
        members = wide(logits if isinstance(model, Stack) else logits.unsqueeze(0))
        nll = negative_log_likelihood(members, labels.expand(len(members), -1), self.label_smoothing)
        return torch.where(weight > 0, nll * weight, 0).sum(1) / weight.double().sum()  # as in several processes

    def _features(self, model: nn.Module, batch: Batch) -> Tensor | FeatureRows | None:
        """Return the features of a batch, in place where a layer can read them there."""
        if self.x is None:
            return None
        dtype = self.dtype or next(model.parameters()).dtype
        if self.x.device == self.device and self.x.dtype == dtype:
            return FeatureRows(self.x, batch.nodes.to(self.device))
        return gather_features(self.x, batch.nodes, self.device, dtype)

    def _weight_of(self, nodes: Tensor) -> float:
        """Return the sum of the weights of nodes in the loss; without class weights, their number."""
        return len(nodes) if self.weight is None else float(self.weight[self.labels[nodes]].double().sum())

    def losses(self, model: nn.Module, sampled: tuple[Batch, float]) -> Tensor:
        """Return the loss of each member on a batch, ``[S]``."""
        batch, total = sampled
        labels = self.labels[batch.nodes[: batch.num_seeds].cpu()].to(self.device)
        outputs = self.seed_logits(model, batch)
        scale = self.processes.number / total  # gradients are averaged over the processes
        weight = None if self.weight is None else self.weight.to(outputs[0])
        return (
            torch.stack([summed_cross_entropy(each, labels, weight, self.label_smoothing) for each in outputs]) * scale
        )

    def seed_logits(self, model: nn.Module, batch: Batch) -> list[Tensor]:
        """Return the logits of a batch's seed nodes by each member, ``[n, classes]``."""
        x = self._features(model, batch)
        if self.processes.number > 1 and any(isinstance(module, nn.BatchNorm1d) for module in model.modules()):
            for graph in batch.graphs[:-1]:  # shares may have nodes in common
                once = self.processes.counts_once(batch.nodes[: graph.num_targets].to(self.device))
                graph.counted = once.to(graph.device)
        logits = model(x, batch.graphs if batch.nodes.device == self.device else batch.to(self.device).graphs)
        members = logits if isinstance(model, Stack) else logits.unsqueeze(0)
        return [wide(each[: batch.num_seeds]) for each in members]

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


def _fits(size: int, device: torch.device) -> bool:
    """Tell whether so many bytes fit well on a GPU."""
    return device.type == "cuda" and size < GRAPH_SHARE * free_memory(device)
