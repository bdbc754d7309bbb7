"""Training on targets other than one class per node and 0/1 tasks: numbers, labels, classes of graphs, mixed ones.

A model has one flat vector of outputs, whose columns belong to the targets (`rgat.data.targets`). Missing values have
weight 0 in the loss. Early stopping watches the validation loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rgat.data import GraphData, NodeData, Target
from rgat.data.targets import places
from rgat.sampling import Batch
from rgat.training.configuration import Settings
from rgat.training.distributed import processes
from rgat.training.loss import target_losses
from rgat.training.metric import metric_name, score_targets
from rgat.training.sampled import SampledTask
from rgat.training.sharded import ShardedNodeTask
from rgat.training.task import GraphTask, NodeTask, Score, _members, wide

CLASSES = ("binary", "multi-class", "multi-label")  # kinds whose classes can be balanced
LEAST_SCORE = -1.0  # of a validation, so that one fold whose few numbers are nearly equal does not decide


class Goals(NamedTuple):
    """What outputs are to be, ``[rows, outputs]`` each."""

    values: Tensor  # standardised, 0 where missing
    weights: Tensor  # 0 where missing
    bounds: Tensor | None

    def to(self, device: torch.device) -> Goals:
        """Return the same on a device."""
        return Goals(*(None if tensor is None else tensor.to(device) for tensor in self))  # type: ignore[arg-type]

    def rows(self, ids: Tensor) -> Goals:
        """Return those of some rows, in the shape of their ids."""
        return Goals(*(None if tensor is None else tensor[ids] for tensor in self))  # type: ignore[arg-type]

    def losses(self, outputs: Tensor, targets: Sequence[Target], smoothing: float = 0.0) -> Tensor:
        """Return the summed loss of each member, ``[S]``, from outputs ``[S, rows, outputs]``."""
        losses = target_losses(wide(outputs), self.values, self.bounds, targets, smoothing)
        return (losses * self.weights).sum((1, 2))


def units(targets: Sequence[Target]) -> tuple[Tensor, Tensor]:
    """Return the mean and scale of each output, 0 and 1 for classes and labels."""
    pairs = [(target.mean, target.scale) for target in targets for _ in range(target.width)]
    means, scales = torch.tensor(pairs, dtype=torch.float64).t()
    return means, scales


def in_units(outputs: Tensor, targets: Sequence[Target]) -> Tensor:
    """Return outputs with numbers in their units; logits stay as they are."""
    means, scales = (each.to(outputs) for each in units(targets))
    return outputs * scales + means


def make_goals(data: NodeData | GraphData, balanced: Sequence[str]) -> Goals:
    """Return the goals of a data set; classes of the ``balanced`` kinds count equally in the training part."""
    assert data.values is not None
    means, scales = units(data.targets)
    known = ~data.values.isnan()
    values = ((data.values - means) / scales).nan_to_num()
    weights = known.double()
    for target, place in places(data.targets):
        if target.kind in balanced:
            learned, is_known = values[data.train, place], known[data.train, place]
            ones, count = learned.sum(0), is_known.sum(0)  # [outputs of the target]
            if target.kind == "multi-class":
                ratio = count / (ones.clamp(min=1) * (ones > 0).sum().clamp(min=1))
                weights[:, place] *= (values[:, place] * ratio).sum(1, keepdim=True)
            else:
                ratio = torch.where((ones > 0) & (ones < count), (count - ones) / ones.clamp(min=1), 1.0)
                weights[:, place] *= 1 + values[:, place] * (ratio - 1)
    bounds = None if data.bounds is None else data.bounds.float()
    return Goals(values.float(), weights.float(), bounds)


def _score(outputs: Tensor, data: NodeData | GraphData, ids: Tensor) -> float:
    """Return the score of the outputs of some examples, ``[n, outputs]``."""
    assert data.values is not None
    bounds = None if data.bounds is None else data.bounds[ids]
    score = score_targets(in_units(outputs.double(), data.targets), data.values[ids], data.targets, bounds)
    return LEAST_SCORE if score < LEAST_SCORE else score  # NaN stays


def _balanced(class_weights: str | None) -> tuple[str, ...]:
    """Return the kinds whose classes count equally, for nodes."""
    return CLASSES if class_weights == "balanced" else ()


class _Losses:
    """Losses and scores of rows of a data set, for tasks whose members share its goals."""

    def __init__(self, data: NodeData | GraphData, balanced: Sequence[str]) -> None:
        self.data, self.goals = data, make_goals(data, balanced)

    def sums(self, outputs: Tensor, ids: Tensor, smoothing: float = 0.0) -> Tensor:
        """Return the summed loss of each member, ``[S]``, from outputs ``[S, n, outputs]`` of some examples."""
        return self.goals.rows(ids.cpu()).to(outputs.device).losses(outputs, self.data.targets, smoothing)

    def scores(self, outputs: Tensor, ids: Tensor) -> list[Score]:
        """Return the loss per example and the score of each member, from outputs ``[S, n, outputs]``."""
        outputs = outputs.cpu()
        losses = self.sums(outputs, ids) / max(len(ids), 1)
        return [(loss, _score(each, self.data, ids)) for loss, each in zip(losses.tolist(), outputs, strict=True)]


class NodeTargetTask(NodeTask):
    """Full-batch training on the targets of the nodes of one graph."""

    def __init__(
        self, datas: Sequence[NodeData], device: torch.device, selects: bool = True, class_weights: str | None = None
    ) -> None:
        super().__init__(datas, device, selects)
        self.data, self.metric = datas[0], metric_name(datas[0].targets)
        balanced = _balanced(class_weights)
        goals = [make_goals(data, balanced) for data in (datas if balanced else datas[:1])]
        self.goals = goals[0].to(device)
        # Class weights follow from each member's training part.
        self.weights = torch.stack([each.weights for each in goals]).expand(len(datas), -1, -1).to(device)

    def _losses(self, logits: Tensor, part: str, smoothing: float = 0.0) -> Tensor:
        """Return the loss of each member over a part, summed over the targets, per node: ``[S]``."""
        nodes, known, _ = self.parts[part]
        index = nodes.unsqueeze(-1).expand(-1, -1, logits.shape[2])
        goals, outputs = self.goals.rows(nodes), wide(logits.gather(1, index))
        weights = self.weights.gather(1, index) * known.unsqueeze(-1)
        losses = target_losses(outputs, goals.values, goals.bounds, self.data.targets, smoothing)
        return (losses * weights).sum((1, 2)) / known.sum(1).clamp(min=1)

    def losses(self, model: nn.Module, ids: Tensor) -> Tensor:
        """Return the loss of each member on a batch, ``[S]``."""
        logits = _members(model, model(self.x, self._field(model, "train")))
        return self._losses(logits, "train", self.label_smoothing)

    def scores(self, logits: Tensor, part: str) -> list[Score]:
        """Return the loss and score of each member."""
        nodes, known, _ = (each.cpu() for each in self.parts[part])
        losses, members = self._losses(logits, part).tolist(), zip(logits.cpu(), nodes, known > 0, strict=True)
        scores = [_score(outputs[ids[own]], self.data, ids[own]) for outputs, ids, own in members]
        return list(zip(losses, scores, strict=True))

    def select(self, members: list[int]) -> None:
        """Keep only these members."""
        super().select(members)
        self.weights = self.weights[members]


class SampledTargetTask(SampledTask):
    """Sampled mini-batches of nodes with any targets; scores are computed with all edges."""

    def __init__(self, data: NodeData, settings: Settings, device: torch.device, seed: int = 0) -> None:
        super().__init__(data, settings, device, seed)
        self.metric, self.targets = metric_name(data.targets), _Losses(data, _balanced(settings.class_weights))

    def _why_not_pad(self) -> str:
        return "it learns numbers, several labels or mixed targets"

    def losses(self, model: nn.Module, sampled: tuple[Batch, float]) -> Tensor:
        """Return the loss of each member on a batch, ``[S]``."""
        batch, total = sampled
        outputs = torch.stack(self.seed_logits(model, batch))
        scale = self.processes.number / total  # gradients are averaged over the processes
        return self.targets.sums(outputs, batch.nodes[: batch.num_seeds], self.label_smoothing) * scale

    def _scores(self, logits: Tensor, nodes: Tensor) -> list[Score]:
        return self.targets.scores(logits, nodes)


class ShardedTargetTask(ShardedNodeTask):
    """Full-batch training on the targets of nodes that are divided among processes."""

    def __init__(
        self, data: NodeData, device: torch.device, selects: bool = True, class_weights: str | None = None
    ) -> None:
        super().__init__(data, device, selects)
        self.data, self.metric = data, metric_name(data.targets)
        self.targets = _Losses(data, _balanced(class_weights))

    def losses(self, model: nn.Module, ids: Tensor) -> Tensor:
        """Return this process's part of the loss, ``[1]``."""
        scale = processes().number / len(self.data.train)  # gradients are averaged over the processes
        outputs = self.logits(model).index_select(0, ids).unsqueeze(0)
        return self.targets.sums(outputs, ids + self.first, self.label_smoothing) * scale

    def evaluate(self, model: nn.Module, parts: Sequence[str], constant_attention: bool = False) -> list[list[Score]]:
        """Return the loss and score of each part over the nodes of all processes."""
        outputs, scores = self.logits(model, constant_attention).double(), []
        for part in parts:
            nodes = getattr(self.data, part).to(outputs.device)
            is_own = (nodes >= self.first) & (nodes < self.first + len(outputs))
            rows = outputs.new_zeros(len(nodes), outputs.shape[1])
            rows[is_own] = outputs[nodes[is_own] - self.first]
            dist.all_reduce(rows)  # each row is that of one process
            scores.append(self.targets.scores(rows.unsqueeze(0), nodes.cpu()))
        return scores


class GraphTargetTask(GraphTask):
    """Mini-batches of graphs with any targets; by default, positives and negatives of labels count equally."""

    def __init__(
        self, data: GraphData, batch_size: int, device: torch.device, selects: bool = True, weights: str | None = None
    ) -> None:
        super().__init__(data, batch_size, device, selects)
        self.metric = metric_name(data.targets)
        kinds = {"balanced": CLASSES, "none": ()}
        self.targets = _Losses(data, kinds.get(weights or "", ("binary", "multi-label")))
        if selects and not bool(self.targets.goals.weights[data.valid].any()):
            raise ValueError(
                f"{data.name} must have known values among its validation graphs, got none; give more rows"
            )

    def losses(self, model: nn.Module, ids: Tensor) -> Tensor:
        """Return the loss of each member on a batch, ``[S]``."""
        share = self.processes.share(ids)
        outputs = _members(model, model(*self._batch(share))).squeeze(-1)
        scale = self.processes.number / len(ids)  # gradients are averaged over the processes
        return self.targets.sums(outputs, share, self.label_smoothing) * scale

    def pad(self, ids: Tensor) -> bool:
        """Copy a batch into the padded buffer; return whether the buffer is still at the same address."""
        is_first = self._padded is None
        same = super().pad(ids)
        if is_first:  # the last row is for the padding of a batch
            padded = [None if t is None else nn.functional.pad(t, (0, 0, 0, 1)) for t in self.targets.goals]
            self._table = Goals(*padded).to(self.device)  # type: ignore[arg-type]
        return same

    def padded_losses(self, model: nn.Module) -> Tensor:
        """Return the losses of the batch in the padded buffer; every batch takes the same kernel launches."""
        logits, batch = self.padded_logits(model)
        goals = Goals(*(None if t is None else t.index_select(0, batch.ids) for t in self._table))  # type: ignore[arg-type]
        return goals.losses(logits.squeeze(-1), self.data.targets, self.label_smoothing) / batch.number

    def scores(self, logits: Tensor, part: str) -> list[Score]:
        """Return the loss and score of each member."""
        return self.targets.scores(logits.squeeze(-1), getattr(self.data, part))

    def watched(self, score: Score) -> tuple[float, float]:
        """Return what early stopping minimises; the second number breaks ties."""
        return score[0], -score[1]
