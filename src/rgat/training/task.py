"""Batches, losses and scores, for the nodes of one graph and for many graphs.

Losses and logits have a leading axis ``S``, the members of a stack; a single model is a stack of one.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rgat.data import GraphData, NodeData
from rgat.data.dataset import MISSING, PARTS
from rgat.data.graph_store import AT_ONCE, GraphStore
from rgat.data.padding import Capacity, PaddedBatch
from rgat.graph import RelationalGraph
from rgat.memory import free_memory
from rgat.models import NodeClassifier, Stack
from rgat.sampling import NeighborSampler, exact_logits
from rgat.training.distributed import processes
from rgat.training.embeddings import ShardedEmbedding
from rgat.training.loss import (
    balanced_class_weights,
    balanced_node_weights,
    multi_task_cross_entropy,
    node_cross_entropy,
)
from rgat.training.metric import mean_roc_auc

Score = tuple[float, float]  # loss and metric

_WORTH = 0.75  # use a part's receptive field if it has at most this share of all edges


def check_parts(data: NodeData | GraphData, selects: bool) -> None:
    """Raise unless there are labels to learn from and, if ``selects``, to select on; other parts may lack labels.

    Examples:
        >>> import rgat
        >>> data = rgat.data.load("institute")
        >>> rgat.training.check_parts(data, selects=True)  # no error: there are labels to learn from and to select on
    """
    needed = ("train", "valid") if selects else ("train",)
    most = len(data.classes) - 1 if isinstance(data, NodeData) else 1  # with values, labels are at most 1
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


def wide(logits: Tensor) -> Tensor:
    """Return logits in single precision at least, for scores."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def device_of(model: nn.Module) -> torch.device:
    """Return the device of a model's first parameter."""
    return next(model.parameters()).device


@torch.no_grad()
def graph_logits(model: nn.Module, store: GraphStore, graphs: Tensor, constant_attention: bool = False) -> Tensor:
    """Return a model's logits of graphs, ``[G, tasks, classes]`` or ``[G, outputs]`` on the CPU, in bounded batches.

    Examples:
        >>> import rgat
        >>> data = rgat.data.load("molecules")
        >>> model = rgat.training.build_model(data)
        >>> rgat.training.graph_logits(model, data.graphs, data.test[:5]).shape
        torch.Size([5, 6, 2])
    """
    device = device_of(model)
    batches = (store.batch(ids) for ids in store.split(graphs))
    parts = [model(x.to(device), graph.to(device), constant_attention=constant_attention) for x, graph in batches]
    logits = torch.cat([part.float().cpu() for part in parts])
    return logits.squeeze(-1) if logits.shape[-1] == 1 else logits


@torch.no_grad()
def node_logits(
    model: nn.Module, data: NodeData, constant_attention: bool = False, nodes: Tensor | None = None
) -> Tensor:
    """Return a model's logits of nodes, by default all, with all edges: ``[n, classes]`` on the CPU.

    A graph in a store, or one whose activations would not fit into memory, is computed layer by layer in blocks. A
    diverged model gives NaN. All processes must call this together if they have divided the embeddings among them.

    Examples:
        >>> import rgat
        >>> data = rgat.data.load("institute")
        >>> model = rgat.training.build_model(data)
        >>> rgat.training.node_logits(model, data, nodes=data.test[:5]).shape
        torch.Size([5, 4])
    """
    device = device_of(model)
    if isinstance(getattr(model, "embedding", None), ShardedEmbedding):
        ids = torch.arange(data.graph.num_nodes) if nodes is None else nodes
        sampler = NeighborSampler(data.graph, [-1])
        return shared_logits(model.eval(), data.x, sampler, ids, constant_attention).float().cpu()
    if data.is_stored or (isinstance(model, NodeClassifier) and _activations(model, data) > free_memory(device) / 2):
        sampler = NeighborSampler(data.graph, [-1])
        model.eval()
        return exact_logits(model, data.x, sampler, nodes, constant_attention).float().cpu()  # type: ignore[arg-type]
    graph = copy.copy(data.graph) if data.graph.device == device else data.graph.to(device)
    graph.validate = False
    x = None if data.x is None else data.x.to(device)
    logits: Tensor = model(x, graph, constant_attention=constant_attention)
    return logits.float().cpu() if nodes is None else logits[nodes.to(device)].float().cpu()


def shared_logits(
    model: Any, x: Tensor | None, sampler: NeighborSampler, nodes: Tensor, constant_attention: bool = False
) -> Tensor:
    """Return exact logits of nodes, ``[n, classes]`` or of a stack ``[S, n, classes]``; each process computes a share.

    All processes must call this together.
    """
    together = processes()
    exact = exact_logits(model, x, sampler, together.share(nodes), constant_attention)
    embedding = getattr(model, "embedding", None)
    if isinstance(embedding, ShardedEmbedding):
        embedding.serve()  # others may have more blocks
    dim = exact.dim() - 2  # of the nodes
    rows = together.gather(wide(exact).transpose(0, dim).contiguous(), len(nodes))
    return rows.transpose(0, dim)


def _activations(model: NodeClassifier, data: NodeData) -> int:
    """Return a bound of the bytes of a forward pass over all nodes: values, queries and outputs of the widest layer."""
    width = max(conv.heads * conv.out_channels for conv in model.convs)
    return 4 * 4 * width * (data.graph.num_edges + data.graph.num_nodes)


class _Part(NamedTuple):
    """The nodes of one part of each member's split, padded to the longest."""

    nodes: Tensor  # [S, n]
    known: Tensor  # [S, n], 1 for labelled nodes or 0
    weight: Tensor  # [S, n], their weights in the loss, or 0


class NodeTask:
    """Full-batch node classification; early stopping watches the validation loss.

    Members share graph and features and have their own labels and splits. Nodes without a label are not scored.
    """

    metric = "accuracy"
    label_smoothing = 0.0  # of losses to learn from, not of scores
    why_not_pad: str | None = None  # every step has the same sizes
    num_steps = 1  # of an epoch

    def __init__(
        self,
        datas: Sequence[NodeData],
        device: torch.device,
        selects: bool = True,
        class_weights: str | None = None,
    ) -> None:
        for data in datas:
            check_parts(data, selects)
        first = datas[0]
        if first.x is not None and first.x.isnan().any():
            raise ValueError(f"node features of {first.name} must not contain NaN; clean them first")
        if first.is_stored:
            raise ValueError(
                f"{first.name} must be in memory to train on the whole graph, but is in a store; sample it "
                "(`fanouts`, --fanouts 20,10)"
            )
        self.x = None if first.x is None else first.x.to(device)
        self.graph = copy.copy(first.graph.prepare())
        if device != self.graph.device:
            self.graph = self.graph.to(device)
        self.graph.validate = False  # checked when it was built; a diverged model must end its run without an error
        labels = [data.labels for data in datas]
        are_shared = all(each is labels[0] for each in labels)
        self.labels = (labels[0].expand(len(datas), -1) if are_shared else torch.stack(labels)).to(device)
        weights = [node_weights(data, class_weights) for data in datas]
        self.parts = {part: _padded(labels, [getattr(data, part) for data in datas], weights, device) for part in PARTS}
        self._fields: dict[str, RelationalGraph | tuple[RelationalGraph, ...]] = {}

    def _field(self, model: nn.Module, part: str) -> RelationalGraph | tuple[RelationalGraph, ...]:
        """Return each layer's receptive field of a part, where that saves work and changes nothing; or the graph."""
        inner = model.model if isinstance(model, Stack) else model
        if type(inner) is not NodeClassifier or not inner.depends_on_edges_alone:
            return self.graph
        if part not in self._fields:
            fields = self.graph.receptive_fields(self.parts[part].nodes, inner.num_layers)
            worth = sum(field.num_edges for field in fields) <= _WORTH * len(fields) * self.graph.num_edges
            self._fields[part] = tuple(field.prepare() for field in fields) if worth else self.graph
        return self._fields[part]

    def batches(self, generator: torch.Generator, epoch: int) -> Iterator[Tensor]:
        """Yield the ids of the training examples of each step of an epoch."""
        yield self.parts["train"].nodes

    def losses(self, model: nn.Module, ids: Tensor) -> Tensor:
        """Return the loss of each member on a batch, ``[S]``."""
        logits = _members(model, model(self.x, self._field(model, "train")))
        nodes, _, weight = self.parts["train"]
        return node_cross_entropy(logits, self.labels, nodes, weight, self.label_smoothing)

    def pad(self, ids: Tensor) -> bool:
        """Copy a batch into the padded buffer; return whether the buffer is still at the same address."""
        return True

    def padded_losses(self, model: nn.Module) -> Tensor:
        """Return the losses of the batch in the padded buffer; every batch takes the same kernel launches."""
        return self.losses(model, self.parts["train"].nodes)

    def evaluate(self, model: nn.Module, parts: Sequence[str], constant_attention: bool = False) -> list[list[Score]]:
        """Return the loss and metric of each member, for each part."""
        logits = self.logits(model, parts[0] if len(parts) == 1 else None, constant_attention)
        return [self.scores(logits, part) for part in parts]

    def keeps(self, part: str) -> bool:
        """Return whether a part's batches stay at the same address, so that its logits can be captured."""
        return True

    def logits(self, model: nn.Module, part: str | None = None, constant_attention: bool = False) -> Tensor:
        """Return logits ``[S, N, classes]``; with ``part``, only those of its nodes are valid."""
        graph = self.graph if part is None else self._field(model, part)
        logits: Tensor = model(self.x, graph, constant_attention=constant_attention)
        return wide(_members(model, logits))

    def scores(self, logits: Tensor, part: str) -> list[Score]:
        """Return the loss and accuracy of each member."""
        nodes, known, weight = self.parts[part]
        losses = node_cross_entropy(logits, self.labels, nodes, weight)
        right = (logits.argmax(-1) == self.labels).gather(1, nodes) & (known > 0)
        accuracy = right.sum(1).double() / known.sum(1)  # NaN without labels
        return list(zip(losses.tolist(), accuracy.tolist(), strict=True))

    def watched(self, score: Score) -> tuple[float, float]:
        """Return what early stopping minimises; the second number breaks ties."""
        return score[0], -score[1]

    def select(self, members: list[int]) -> None:
        """Keep only these members."""
        self.labels = self.labels[members]
        self.parts = {name: _Part(*(tensor[members] for tensor in part)) for name, part in self.parts.items()}


def node_weights(data: NodeData, class_weights: str | None) -> Tensor:
    """Return the weight of each class in the loss, ``[classes]``: 1, or balanced over the training part."""
    if class_weights != "balanced" or data.values is not None:
        return torch.ones(len(data.classes))
    return balanced_node_weights(data.labels[data.train], len(data.classes))


def graph_weights(data: GraphData, class_weights: str | None) -> Tensor:
    """Return the weight of each class of the 0/1 tasks in the loss, ``[tasks, 2]``: balanced unless this is "none"."""
    weights = balanced_class_weights(data.labels[data.train])
    return torch.ones_like(weights) if class_weights == "none" else weights


def _padded(labels: Sequence[Tensor], ids: Sequence[Tensor], weights: Sequence[Tensor], device: torch.device) -> _Part:
    nodes = [part.long() for part in ids]
    classes = [each[part] for each, part in zip(labels, nodes, strict=True)]
    known = [(each != MISSING).long() for each in classes]
    weight = [by_class[each.clamp(min=0)] * (each != MISSING) for by_class, each in zip(weights, classes, strict=True)]
    rows = (nodes, known, weight)
    return _Part(*(torch.nn.utils.rnn.pad_sequence(part, batch_first=True).to(device) for part in rows))


class GraphTask:
    """Mini-batch multi-task graph classification; early stopping watches the mean ROC-AUC.

    Members share data and the order of the batches. Class weights come from the training part. Each of several
    processes takes a share of every batch and of every evaluation.
    """

    metric = "mean ROC-AUC"
    label_smoothing = 0.0

    def __init__(
        self, data: GraphData, batch_size: int, device: torch.device, selects: bool = True, weights: str | None = None
    ) -> None:
        check_parts(data, selects)
        labels = data.labels[data.valid]
        if selects and data.values is None and not ((labels == 0).any(0) & (labels == 1).any(0)).any():
            raise ValueError(f"some task of {data.name} must have both classes among its validation graphs, got none")
        self.data = data
        self.batch_size = batch_size
        self.device = device
        self.processes = processes()
        self.num_steps = -(-len(data.train) // batch_size)
        self.why_not_pad = None if self.processes.number == 1 else "several processes share its batches"
        self.class_weights = graph_weights(data, weights).to(device)
        self._kept: dict[str, list[tuple[Tensor, RelationalGraph]]] = {}  # batches of parts
        self._padded: PaddedBatch | None = None
        self._tables: list[Any] = []  # features, edge features, descriptors and labels, with a last row for padding

    def batches(self, generator: torch.Generator, epoch: int) -> Iterator[Tensor]:
        order = torch.randperm(len(self.data.train), generator=generator)
        yield from torch.split(self.data.train[order], self.batch_size)

    def _batch(self, ids: Tensor) -> tuple[Tensor, RelationalGraph]:
        x, graph = self.data.graphs.batch(ids)
        return (x, graph) if self.device.type == "cpu" else (x.to(self.device), graph.to(self.device))

    def losses(self, model: nn.Module, ids: Tensor) -> Tensor:
        share = self.processes.share(ids)
        labels = self.data.labels[share].to(self.device)
        logits = _members(model, model(*self._batch(share)))
        scale = self.processes.number  # gradients are averaged over the processes
        terms = (labels, self.class_weights, len(ids), self.label_smoothing)
        return torch.stack([multi_task_cross_entropy(each, *terms) * scale for each in logits])

    def pad(self, ids: Tensor) -> bool:
        store, labels, size = self.data.graphs, self.data.labels, min(self.batch_size, len(self.data.train))
        same = self._padded is not None and self._padded.holds(ids)
        if self._padded is None:
            self._padded = PaddedBatch(store, size, self.device, Capacity.usual(store, self.data.train, size))
            self._tables = [
                None if table is None else nn.functional.pad(table, (0, 0, 0, 1), value=value).to(self.device)
                for table, value in ((store.x, 0), (store.edge_attr, 0), (store.graph_attr, 0), (labels, MISSING))
            ]
        if not same and not self._padded.holds(ids):
            self._padded = PaddedBatch(store, size, self.device, Capacity.usual(store, ids, size))
        self._padded.fill(ids)
        return same

    def padded_logits(self, model: nn.Module) -> tuple[Tensor, PaddedBatch]:
        """Return the logits of the batch in the padded buffer, ``[S, G, tasks, classes]``, and the buffer."""
        batch, (features, edge_attr, graph_attr, _) = self._padded, self._tables
        assert batch is not None
        batch.widen()
        if edge_attr is not None:
            batch.graph.edge_attr = edge_attr.index_select(0, batch.edges)
        if graph_attr is not None:
            described = graph_attr.index_select(0, batch.ids).float()
            batch.graph.graph_attr = nn.functional.pad(described, (0, 0, 0, 1))  # the last graph is padding
        x = features.index_select(0, batch.nodes)
        x = x if x.is_floating_point() else x.float()
        return _members(model, model(x, batch.graph))[:, : batch.num_graphs], batch

    def padded_losses(self, model: nn.Module) -> Tensor:
        logits, batch = self.padded_logits(model)
        labels = self._tables[-1].index_select(0, batch.ids)
        terms = (labels, self.class_weights, 1, self.label_smoothing)
        return torch.cat([multi_task_cross_entropy(each, *terms) / batch.number for each in logits])

    def evaluate(self, model: nn.Module, parts: Sequence[str], constant_attention: bool = False) -> list[list[Score]]:
        scores = []
        for part in parts:
            share = self.logits(model, part, constant_attention)
            ids = getattr(self.data, part)
            logits = self.processes.gather(share.transpose(0, 1).contiguous(), len(ids))  # [G, S, tasks, classes]
            scores.append(self.scores(logits.transpose(0, 1), part))
        return scores

    def keeps(self, part: str) -> bool:
        return int(self.data.graphs.sizes[getattr(self.data, part)].sum()) <= AT_ONCE

    def logits(self, model: nn.Module, part: str, constant_attention: bool = False) -> Tensor:
        """Return the logits of this process's share of a part, ``[S, G, tasks, classes]``."""
        batches = self._part_batches(part, len(model) if isinstance(model, Stack) else 1)
        logits = [model(*batch, constant_attention=constant_attention) for batch in batches]
        return torch.cat([wide(_members(model, values)) for values in logits], 1)

    def _part_batches(self, part: str, members: int) -> Iterable[tuple[Tensor, RelationalGraph]]:
        """Return this process's share of a part in batches of bounded size."""
        if part in self._kept:
            return self._kept[part]
        store = self.data.graphs
        # As large as a training batch, which fits into memory.
        trained_on = int(self.batch_size * store.sizes[self.data.train].double().mean())
        ids = self.processes.share(getattr(self.data, part))
        batches = map(self._batch, store.split(ids, max(AT_ONCE // members, trained_on)))
        if self.keeps(part):
            self._kept[part] = list(batches)
            return self._kept[part]
        return batches

    def scores(self, logits: Tensor, part: str) -> list[Score]:
        """Return the loss and mean ROC-AUC of each member."""
        labels, logits = self.data.labels[getattr(self.data, part)], logits.cpu()  # ROC-AUC is computed there
        weights = self.class_weights.cpu()
        losses = [float(multi_task_cross_entropy(each, labels, weights)) for each in logits]
        return [(loss, mean_roc_auc(each, labels)) for loss, each in zip(losses, logits, strict=True)]

    def watched(self, score: Score) -> tuple[float, float]:
        return -score[1], score[0]

    def select(self, members: list[int]) -> None:
        """Do nothing: members share all data."""
