"""What one step of training is, for nodes of one graph and for many graphs: batches, losses, scores.

Everything has an axis ``S`` in front, that of the members of a stack; a model alone is one member.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from rgat.data import GraphData, NodeData
from rgat.data.dataset import MISSING, PARTS
from rgat.data.padding import Capacity, PaddedBatch
from rgat.data.store import AT_ONCE, GraphStore
from rgat.graph import RelationalGraph
from rgat.models import NodeClassifier, Stack
from rgat.training.distributed import processes
from rgat.training.loss import balanced_class_weights, member_cross_entropy, multi_task_cross_entropy
from rgat.training.metric import mean_roc_auc

Score = tuple[float, float]  # loss and metric

_WORTH = 0.75  # a part's own edges are taken where they are at most this share of all


class Task(Protocol):
    """Data as the training loop sees it."""

    metric: str

    def batches(self, generator: torch.Generator) -> Iterator[Tensor]:
        """Ids of the training examples of each step of an epoch."""

    def losses(self, model: nn.Module, ids: Tensor) -> Tensor:
        """The loss of each member in one step, ``[S]``."""

    def pad(self, ids: Tensor) -> bool:
        """Put a batch where ``padded_losses`` finds it; whether that is the place of the batch before."""

    def padded_losses(self, model: nn.Module) -> Tensor:
        """The losses of the batch that was put there; the same work whatever the batch."""

    def evaluate(self, model: nn.Module, parts: Sequence[str], constant_attention: bool = False) -> list[list[Score]]:
        """For each of the parts the loss and metric of each member."""

    def keeps(self, part: str) -> bool:
        """Whether the logits of a part are computed from the same memory each time, so that they can be captured."""

    def logits(self, model: nn.Module, part: str) -> Tensor:
        """What :meth:`scores` scores, of each member."""

    def scores(self, logits: Tensor, part: str) -> list[Score]:
        """The loss and metric of each member on a part."""

    def watched(self, score: Score) -> tuple[float, float]:
        """What early stopping makes small; the second number decides ties."""

    def select(self, members: list[int]) -> None:
        """Keep some members only."""


def check_parts(data: NodeData | GraphData, selects: bool) -> None:
    """Refuse parts that cannot be learned from or selected on; the others may lack labels, and are then not scored."""
    needed = ("train", "valid") if selects else ("train",)
    most = len(data.classes) - 1 if isinstance(data, NodeData) else 1
    for part in PARTS:
        labels = data.labels[getattr(data, part)]
        if part in needed and not len(labels):
            raise ValueError(f"{data.name} must have examples to learn from and to select on, got an empty {part} part")
        wrong = labels[(labels > most) | (labels < MISSING)]
        if len(wrong):
            raise ValueError(
                f"labels of {data.name} must be classes from 0 to {most}, or {MISSING} for none, got {int(wrong[0])} "
                f"in the {part} part"
            )
        missing = int((labels == MISSING).sum())
        if part == "train" and missing == labels.numel():
            raise ValueError(f"{data.name} must have labels to learn from, got none in the train part")
        if isinstance(data, NodeData) and part in needed and missing:
            raise ValueError(
                f"every {part} node of {data.name} must have a label, got {missing:,} of {len(labels):,} without one; "
                "leave them out of the part"
            )


def _members(model: nn.Module, logits: Tensor) -> Tensor:
    return logits if isinstance(model, Stack) else logits.unsqueeze(0)


def _wide(logits: Tensor) -> Tensor:
    """Scores are computed in single precision at least."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


@torch.no_grad()
def graph_logits(model: nn.Module, store: GraphStore, graphs: Tensor, constant_attention: bool = False) -> Tensor:
    """Return a model's logits of graphs, ``[G, tasks, classes]`` on the CPU, in batches of bounded memory."""
    device = next(model.parameters()).device
    batches = (store.batch(ids) for ids in store.split(graphs))
    parts = [model(x.to(device), graph.to(device), constant_attention=constant_attention) for x, graph in batches]
    return torch.cat([part.float().cpu() for part in parts])


@torch.no_grad()
def node_logits(model: nn.Module, data: NodeData, constant_attention: bool = False) -> Tensor:
    """Return a model's logits of all nodes, ``[N, classes]`` on the CPU; a diverged model gives NaN."""
    device = next(model.parameters()).device
    graph = copy.copy(data.graph) if data.graph.device == device else data.graph.to(device)
    graph.validate = False
    x = None if data.x is None else data.x.to(device)
    logits: Tensor = model(x, graph, constant_attention=constant_attention)
    return logits.float().cpu()


class _Part(NamedTuple):
    """The nodes of one part of each member's split, padded to the longest, and which of them count: those labelled."""

    nodes: Tensor  # [S, n]
    known: Tensor  # [S, n], 1 or 0


class NodeTask:
    """Full-batch node classification; early stopping watches the validation loss.

    Members share graph and features; labels and splits are their own. Scores leave out nodes without a label.
    """

    metric = "accuracy"

    def __init__(self, datas: Sequence[NodeData], device: torch.device, selects: bool = True) -> None:
        for data in datas:
            check_parts(data, selects)
        first = datas[0]
        if first.x is not None and first.x.isnan().any():
            raise ValueError(f"node features of {first.name} must not contain NaN; clean them first")
        if processes().number > 1:
            raise ValueError(
                f"nodes of one graph are learned from together, by one process, got {processes().number} for "
                f"{first.name}; only graph classification can be shared out"
            )
        self.x = None if first.x is None else first.x.to(device)
        self.graph = copy.copy(first.graph.prepare())
        if device != self.graph.device:
            self.graph = self.graph.to(device)
        self.graph.validate = False  # checked when it was made; a diverged model must end its run, not the program
        labels = [data.labels for data in datas]
        same = all(one is labels[0] for one in labels)
        self.labels = (labels[0].expand(len(datas), -1) if same else torch.stack(labels)).to(device)
        self.parts = {part: _padded(labels, [getattr(data, part) for data in datas], device) for part in PARTS}
        self._fields: dict[str, RelationalGraph | tuple[RelationalGraph, ...]] = {}

    def _field(self, model: nn.Module, part: str) -> RelationalGraph | tuple[RelationalGraph, ...]:
        """The graph; or for each layer, if that changes nothing and saves work, only the edges that a part needs."""
        inner = model.model if isinstance(model, Stack) else model
        if type(inner) is not NodeClassifier or not inner.depends_on_edges_alone:
            return self.graph
        if part not in self._fields:
            fields = self.graph.fields(self.parts[part].nodes)
            worth = sum(field.num_edges for field in fields) <= _WORTH * len(fields) * self.graph.num_edges
            self._fields[part] = tuple(field.prepare() for field in fields) if worth else self.graph
        return self._fields[part]

    def batches(self, generator: torch.Generator) -> Iterator[Tensor]:
        yield self.parts["train"].nodes

    def losses(self, model: nn.Module, ids: Tensor) -> Tensor:
        logits = _members(model, model(self.x, self._field(model, "train")))
        return member_cross_entropy(logits, self.labels, *self.parts["train"])

    def pad(self, ids: Tensor) -> bool:
        return True

    def padded_losses(self, model: nn.Module) -> Tensor:
        return self.losses(model, self.parts["train"].nodes)

    def evaluate(self, model: nn.Module, parts: Sequence[str], constant_attention: bool = False) -> list[list[Score]]:
        logits = self.logits(model, parts[0] if len(parts) == 1 else None, constant_attention)
        return [self.scores(logits, part) for part in parts]

    def keeps(self, part: str) -> bool:
        return True

    def logits(self, model: nn.Module, part: str | None = None, constant_attention: bool = False) -> Tensor:
        """Those of all nodes, or with ``part`` those of its nodes among all, ``[S, N, classes]``."""
        graph = self.graph if part is None else self._field(model, part)
        logits: Tensor = model(self.x, graph, constant_attention=constant_attention)
        return _wide(_members(model, logits))

    def scores(self, logits: Tensor, part: str) -> list[Score]:
        """The loss and accuracy of each member."""
        nodes, known = self.parts[part]
        losses = member_cross_entropy(logits, self.labels, nodes, known)
        right = (logits.argmax(-1) == self.labels).gather(1, nodes) & (known > 0)
        accuracy = right.sum(1).double() / known.sum(1)  # NaN without labels
        return list(zip(losses.tolist(), accuracy.tolist(), strict=True))

    def watched(self, score: Score) -> tuple[float, float]:
        return score[0], -score[1]

    def select(self, members: list[int]) -> None:
        self.labels = self.labels[members]
        self.parts = {name: _Part(*(tensor[members] for tensor in part)) for name, part in self.parts.items()}


def _padded(labels: Sequence[Tensor], ids: Sequence[Tensor], device: torch.device) -> _Part:
    known = [(one[own] != MISSING).long() for one, own in zip(labels, ids, strict=True)]
    nodes = [own.long() for own in ids]
    return _Part(*(torch.nn.utils.rnn.pad_sequence(part, batch_first=True).to(device) for part in (nodes, known)))


def _with_filler(table: Tensor, value: int) -> Tensor:
    """One more row, for what fills a batch up."""
    return torch.cat([table, table.new_full((1, *table.shape[1:]), value)])


class GraphTask:
    """Mini-batch multi-task graph classification; early stopping watches the mean ROC-AUC.

    Members share data and the order of the batches. Class weights come from the training part alone. With several
    processes each has its share of every batch and of every evaluation.
    """

    metric = "mean ROC-AUC"

    def __init__(self, data: GraphData, batch_size: int, device: torch.device, selects: bool = True) -> None:
        check_parts(data, selects)
        labels = data.labels[data.valid]
        if selects and not ((labels == 0).any(0) & (labels == 1).any(0)).any():
            raise ValueError(f"some task of {data.name} must have both classes among its validation graphs, got none")
        self.data = data
        self.batch_size = batch_size
        self.device = device
        self.processes = processes()
        self.class_weights = balanced_class_weights(data.labels[data.train]).to(device)
        self._kept: dict[str, list[tuple[Tensor, RelationalGraph]]] = {}  # batches of parts that are scored often
        self._padded: PaddedBatch | None = None

    def batches(self, generator: torch.Generator) -> Iterator[Tensor]:
        order = torch.randperm(len(self.data.train), generator=generator)
        yield from torch.split(self.data.train[order], self.batch_size)

    def _batch(self, ids: Tensor) -> tuple[Tensor, RelationalGraph]:
        x, graph = self.data.graphs.batch(ids)
        return (x, graph) if self.device.type == "cpu" else (x.to(self.device), graph.to(self.device))

    def losses(self, model: nn.Module, ids: Tensor) -> Tensor:
        own = self.processes.share(ids)
        labels = self.data.labels[own].to(self.device)
        logits = _members(model, model(*self._batch(own)))
        # Gradients will be averaged over the processes.
        scale = self.processes.number
        parts = [multi_task_cross_entropy(one, labels, self.class_weights, len(ids)) * scale for one in logits]
        return torch.stack(parts)

    def pad(self, ids: Tensor) -> bool:
        """Put a batch where ``padded_losses`` finds it; whether that is the place of the batch before."""
        store, size = self.data.graphs, min(self.batch_size, len(self.data.train))
        same = self._padded is not None and self._padded.holds(ids)
        if self._padded is None:
            self._padded = PaddedBatch(store, size, self.device, Capacity.usual(store, self.data.train, size))
            self._tables = [
                None if table is None else _with_filler(table, value).to(self.device)
                for table, value in ((store.x, 0), (store.edge_attr, 0), (self.data.labels, MISSING))
            ]
        if not same and not self._padded.holds(ids):
            self._padded = PaddedBatch(store, size, self.device, Capacity.usual(store, ids, size))
        self._padded.fill(ids)
        return same

    def padded_losses(self, model: nn.Module) -> Tensor:
        """The losses of the batch that was put there; the same work whatever the batch."""
        batch, (features, edge_attr, known) = self._padded, self._tables
        assert batch is not None
        assert features is not None
        assert known is not None
        batch.widen()
        if edge_attr is not None:
            batch.graph.edge_attr = edge_attr.index_select(0, batch.edges)
        labels = known.index_select(0, batch.ids)
        logits = _members(model, model(features.index_select(0, batch.nodes), batch.graph))[:, : batch.num_graphs]
        parts = [multi_task_cross_entropy(one, labels, self.class_weights, 1) / batch.number for one in logits]
        return torch.cat(parts)

    def evaluate(self, model: nn.Module, parts: Sequence[str], constant_attention: bool = False) -> list[list[Score]]:
        found = []
        for part in parts:
            own = self.logits(model, part, constant_attention)
            ids = getattr(self.data, part)
            logits = self.processes.gather(own.transpose(0, 1).contiguous(), len(ids))  # [G, S, tasks, classes]
            found.append(self.scores(logits.transpose(0, 1), part))
        return found

    def keeps(self, part: str) -> bool:
        return int(self.data.graphs.sizes[getattr(self.data, part)].sum()) <= AT_ONCE

    def logits(self, model: nn.Module, part: str, constant_attention: bool = False) -> Tensor:
        """Those of this process's share of a part, ``[S, G, tasks, classes]``."""
        batches = self._scored(part, len(model) if isinstance(model, Stack) else 1)
        return torch.cat(
            [_wide(_members(model, model(*one, constant_attention=constant_attention))) for one in batches], 1
        )

    def _scored(self, part: str, members: int) -> Iterable[tuple[Tensor, RelationalGraph]]:
        """This process's share of a part in batches that need no more memory than is usual, however large it is."""
        if part in self._kept:
            return self._kept[part]
        store = self.data.graphs
        trained_on = int(self.batch_size * store.sizes[self.data.train].double().mean())  # that much fits in any case
        ids = self.processes.share(getattr(self.data, part))
        batches = map(self._batch, store.split(ids, max(AT_ONCE // members, trained_on)))
        if self.keeps(part):
            self._kept[part] = list(batches)
            return self._kept[part]
        return batches

    def scores(self, logits: Tensor, part: str) -> list[Score]:
        """The loss and mean ROC-AUC of each member."""
        labels, logits = self.data.labels[getattr(self.data, part)], logits.cpu()  # at once: ranks are found there
        weights = self.class_weights.cpu()
        return [(float(multi_task_cross_entropy(one, labels, weights)), mean_roc_auc(one, labels)) for one in logits]

    def watched(self, score: Score) -> tuple[float, float]:
        return -score[1], score[0]

    def select(self, members: list[int]) -> None:
        """Nothing here is a member's own."""
