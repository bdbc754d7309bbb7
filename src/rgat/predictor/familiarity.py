"""How far an example lies from the training data, and what it has that no training example has.

The distance is measured in the last hidden layer, to the nearest of a sample of training examples. Its unit is the 99th
percentile of the distances of held-out examples, so that about one example in a hundred of those that are like them
exceeds 1. Distances among training examples alone would be too small a unit: a model with one-hot input has learned the
rows of these nodes, and not those of others. Where cross-validation holds examples out, each model of a fold measures
them in units of the distances among its own training examples, because each has a hidden space of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rgat.data import GraphData, NodeData
from rgat.data.molecules.smiles import ELEMENTS
from rgat.incoming import IncomingEdges, incoming_edges
from rgat.models import GraphClassifier, Model
from rgat.predictor.words import listed
from rgat.training.embeddings import ShardedEmbedding
from rgat.training.task import graph_logits, node_logits

MOST_ROWS = 2000  # training examples in the sample; all distances among them take a moment
UNUSUAL = 0.99  # quantile of the distances between training examples
_AT_ONCE = 4096  # examples, or nodes whose edges are read


@dataclass(frozen=True)
class Familiarity:
    """What a model has seen in training."""

    rows: Tensor  # [m, D] float32; last hidden layer of a sample of the training examples
    scale: float  # quantile of the distance from a held-out example to the nearest of them
    relations: Tensor  # [R] bool; relations of edges into training nodes, or in training molecules
    features: Tensor | None = None  # [F] bool; for molecules: atom features that some training molecule has

    def distances(self, hidden: Tensor) -> NDArray[np.float64]:
        """Return the distance of each example ``[n, D]`` to the nearest training example, in units of the scale."""
        return np.asarray(_nearest(hidden, self.rows).numpy() / self.scale)


def _nearest(hidden: Tensor, rows: Tensor) -> Tensor:
    """Return the distance of each example to the nearest row, in float64."""
    parts = [torch.cdist(part.double(), rows.double()).amin(1) for part in torch.split(hidden, _AT_ONCE)]
    return torch.cat(parts)


class HiddenRows:
    """Collects the last hidden layer during forward passes: of some nodes of a graph, or of graphs in their order."""

    def __init__(self, nodes: Tensor | None = None) -> None:
        self.parts: list[Tensor] = []
        self.nodes = nodes
        if nodes is not None:
            self.sorted, self.order = nodes.sort()

    def add(self, x: Any, graph: Any = None) -> None:
        """Add the input of the last layer; one-hot input, which a model of one layer has, is left out."""
        if not isinstance(x, Tensor) or not x.is_floating_point() or x.layout != torch.strided:
            return
        rows, ids = x.detach(), getattr(graph, "node_ids", None)
        if self.nodes is None:
            self.parts.append(rows.float().cpu())
            return
        if not self.parts:
            self.parts.append(torch.full((len(self.nodes), rows.shape[1]), math.nan))
        if ids is None:
            self.parts[0][:] = rows[self.nodes.to(rows.device)].float().cpu()
        elif len(self.sorted):
            place = torch.searchsorted(self.sorted, ids.cpu()).clamp(max=len(self.sorted) - 1)
            wanted = self.sorted[place] == ids.cpu()
            self.parts[0][self.order[place[wanted]]] = rows[wanted.to(rows.device)].float().cpu()

    @property
    def rows(self) -> Tensor | None:
        """The rows, NaN for a node that was computed in parts; None where there are none."""
        return torch.cat(self.parts) if self.parts else None


@contextmanager
def collected(model: Model, nodes: Tensor | None = None) -> Iterator[HiddenRows]:
    """Collect the last hidden layer of what the model computes in the block; ``nodes`` must be distinct."""
    found, layer = HiddenRows(nodes), model.dense2 if isinstance(model, GraphClassifier) else model.convs[-1]
    handle = layer.register_forward_pre_hook(lambda _, inputs: found.add(*inputs[:2]))
    try:
        yield found
    finally:
        handle.remove()


class TrainingRows:
    """The last hidden layer of a sample of the training examples, and of the validation part."""

    def __init__(self, model: Model, data: NodeData | GraphData, seed: int) -> None:
        """Compute the rows; there are none for a model without a hidden layer, or whose embeddings are divided."""
        generator = torch.Generator().manual_seed(seed)
        sample, valid = (
            part[torch.randperm(len(part), generator=generator)[:MOST_ROWS]] for part in (data.train, data.valid)
        )
        ids = torch.cat([sample, valid])
        self.train = self.valid = torch.empty(0, 0)
        if isinstance(getattr(model, "embedding", None), ShardedEmbedding):
            return
        with collected(model, ids if isinstance(data, NodeData) else None) as hidden:
            if isinstance(data, NodeData):
                node_logits(model, data, nodes=ids)
            else:
                graph_logits(model, data.graphs, ids)
        if hidden.rows is not None:
            parts = hidden.rows[: len(sample)], hidden.rows[len(sample) :]
            self.train, self.valid = (rows[~rows.isnan().any(1)] for rows in parts)

    @property
    def unit(self) -> float:
        """The largest usual distance from one training example to the nearest other; above 0."""
        apart = torch.cdist(self.train.double(), self.train.double()).fill_diagonal_(math.inf).amin(1)
        least = 1e-6 * float(self.train.double().norm(dim=1).mean())  # if all are alike
        return max(float(torch.quantile(apart, UNUSUAL)), least, 1e-12)

    def held_out(self) -> Tensor:
        """Return the distances of the validation part, in this unit."""
        return _nearest(self.valid, self.train) / self.unit if len(self.train) > 1 else torch.empty(0)


def learn_familiarity(
    model: Model, data: NodeData | GraphData, seed: int, held_out: Tensor | None = None
) -> Familiarity | None:
    """Return what the model has seen in training; None for a model without a hidden layer.

    ``held_out`` are the distances of held-out examples in the models of folds, by default those of the validation part.
    """
    rows = TrainingRows(model, data, seed)
    if len(rows.train) < 2:
        return None
    distances = rows.held_out() if held_out is None else held_out
    scale = rows.unit * (float(torch.quantile(distances.double(), UNUSUAL)) if len(distances) else 1.0)
    scale = max(scale, 1e-12)
    if isinstance(data, NodeData):
        return Familiarity(rows.train, scale, _relations_into(data, data.train))
    graphs = data.graphs.select(data.train)
    relations = torch.zeros(graphs.num_relations, dtype=torch.bool)
    relations[torch.unique(graphs.edge_type)] = True
    return Familiarity(rows.train, scale, relations, graphs.x.ne(0).any(0))


def _incoming(data: NodeData) -> IncomingEdges:
    graph: Any = data.graph
    edges: IncomingEdges = graph.incoming if data.is_stored else incoming_edges(graph)
    return edges


def _relations_into(data: NodeData, nodes: Tensor) -> Tensor:
    """Return which relations the edges into some nodes have."""
    found, edges = torch.zeros(len(data.relation_names), dtype=torch.bool), _incoming(data)
    for part in torch.split(nodes, _AT_ONCE):
        found[torch.unique(edges.into(part)[2])] = True
    return found


def unseen_relations(data: NodeData, nodes: Sequence[int], seen: Tensor) -> list[str]:
    """Return for each node the relations of its edges that no training node has, as words; empty where there are none.

    The last layer has not learned the kernels of such a relation.
    """
    if bool(seen.all()):
        return [""] * len(nodes)
    edges, words = _incoming(data), []
    for part in torch.split(torch.tensor(nodes, dtype=torch.long), _AT_ONCE):
        _, target, relation = edges.into(torch.unique(part))
        words += name_unseen(part, target, relation, data.relation_names, seen)
    return words


def name_unseen(nodes: Tensor, target: Tensor, relation: Tensor, names: Sequence[str], seen: Tensor) -> list[str]:
    """Return the words of `unseen_relations` for nodes whose edges have these targets and relations."""
    unseen: dict[int, set[int]] = {}
    wanted = ~seen[relation] & torch.isin(target, nodes)
    for node, number in torch.stack([target, relation])[:, wanted].t().tolist():
        unseen.setdefault(node, set()).add(number)
    found = [[names[number] for number in sorted(unseen.get(node, ()))] for node in nodes.tolist()]
    return [f"no training node has {listed(relations, 3)}" if relations else "" for relations in found]


def unseen_atoms(
    x: NDArray[Any], edges: NDArray[Any], sizes: NDArray[Any], relation_names: Sequence[str], seen: Familiarity
) -> list[str]:
    """Return for each molecule of a batch the elements and bonds that no training molecule has, as words.

    Args:
        x: atom features of all molecules; the first ones are the elements.
        edges: source, target and relation of each edge.
        sizes: number of atoms of each molecule.
        relation_names: names of the bonds.
        seen: what the model has seen.
    """
    assert seen.features is not None
    molecule = np.repeat(np.arange(len(sizes)), sizes)
    words: list[list[str]] = [[] for _ in sizes]
    elements = [*ELEMENTS, "another element"]
    for column in np.flatnonzero(~seen.features.numpy()[: len(elements)]).tolist():
        for number in np.unique(molecule[x[:, column] != 0]).tolist():
            words[number].append(elements[column])
    for relation in np.flatnonzero(~seen.relations.numpy()).tolist():
        for number in np.unique(molecule[edges[0][edges[2] == relation]]).tolist():
            words[number].append(f"a bond of type {relation_names[relation]}")
    return [f"no training molecule has {listed(found, 3)}" if found else "" for found in words]
