"""Predict nodes added after training for many callers at once: one forward pass over their receptive fields.

`NodePredictor.predict` with ``rdf`` extends the whole graph and computes all of it. Here each caller's triples extend
only the receptive field of the nodes asked for, and the fields of all callers stand side by side in one graph, so that
no caller's triples change another's predictions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rgat.baselines.svm import original_triples
from rgat.data.rdf.features import encode, is_type, read_vocabulary
from rgat.data.rdf.literals import is_literal
from rgat.data.rdf.reader import Ids, Triples
from rgat.graph import RelationalGraph
from rgat.incoming import incoming_edges, ranges
from rgat.predictor.familiarity import collected, name_unseen
from rgat.predictor.new_triples import unknown_literals, unknown_relations
from rgat.predictor.predictions import Predictions, take
from rgat.predictor.predictor import NodePredictor
from rgat.predictor.uncertainty import with_uncertainty
from rgat.predictor.words import titles_among

MAX_EDGES = 1_000_000  # of receptive fields in one forward pass


class Request(NamedTuple):
    """The triples of one caller and the nodes to predict; added nodes have the ids after those of the graph."""

    names: list[str]  # of the nodes to predict
    nodes: list[int]  # their ids
    edges: Ids  # [E, 3]: the triples that the graph does not have
    x: Tensor  # [n, F] features of the added nodes
    notes: tuple[str, ...]


class AddedNodes:
    """Predicts nodes added to the graph of a predictor, which must have node features and be in memory."""

    def __init__(self, predictor: NodePredictor) -> None:
        predictor.refuse_stored("predict nodes that were added later")
        data, vocabulary = predictor.data, read_vocabulary(predictor.data.provenance)
        if data.x is None or vocabulary is None:
            raise ValueError(
                "to predict nodes added later, the model must have node features, but its input is one-hot; "
                "train with --features types,literals"
            )
        self.predictor, self.x, self.vocabulary = predictor, data.x, vocabulary
        self.num_nodes, self.num_given = len(data.node_names), data.provenance.get("relations", len(data.base_relation))
        self.has_inverses = any(base != relation for relation, base in enumerate(data.base_relation))
        self.has_loops = "self" in data.relation_names
        incoming = incoming_edges(data.graph)
        self.first = incoming.group_ptr[incoming.node_ptr]  # [N + 1], of the edges into each node
        self.source = incoming.source.long()
        self.relation = incoming.group_relation.long().repeat_interleave(incoming.group_ptr.diff())
        self.known = np.sort(self._keys(original_triples(data)))
        names = data.relation_names[: self.num_given]
        self.relation_ids = {name: relation for relation, name in enumerate(names)}
        self.is_type = np.array([*map(is_type, names), False], dtype=bool)  # the last one: an unknown relation, -1
        self.type = predictor.shared_type()
        self.type_id = -1 if self.type is None else predictor.node_ids[self.type]
        # Layers with rows of nodes (features and identity) take each node once, so their requests are apart.
        self.has_rows = any(getattr(conv, "num_nodes", None) is not None for conv in predictor.members[0].convs)
        self.degrees = torch.full((len(data.relation_names),), -1)  # the first of two columns of each relation
        for group, name, place in vocabulary.columns():
            if group == "degrees":
                self.degrees[data.relation_names.index(name)] = place.start

    def _keys(self, edges: Ids) -> Ids:
        """Return one integer for each triple of nodes of the graph."""
        keys: Ids = (edges[:, 0] * self.num_given + edges[:, 1]) * self.num_nodes + edges[:, 2]
        return keys

    def read(self, given: Sequence[tuple[Triples, Sequence[str] | None]]) -> list[Request | ValueError]:
        """Return the requests of several callers, each of which has triples and the names of the nodes to predict.

        None stands for the added nodes of the type that all labelled nodes share. A caller gets an error if a node is
        neither in the graph nor in the triples, or if there is none to predict. Features are computed once for all.
        """
        whole, owner = _join([triples for triples, _ in given])
        if self.vocabulary.reads_literals:
            owner = owner[~is_literal(whole.node_names)]
        kept, x = encode(whole, self.vocabulary)
        known = self.predictor.node_ids
        ids = np.array([known.get(name, -1) for name in kept.node_names], dtype=np.int64)
        added = np.flatnonzero(ids < 0)
        starts = np.searchsorted(owner[added], np.arange(len(given) + 1))
        ids[added] = self.num_nodes + np.arange(len(added)) - starts[owner[added]]
        added_names, added_x = [kept.node_names[node] for node in added.tolist()], x[torch.from_numpy(added)]
        relations = np.array([self.relation_ids.get(name, -1) for name in kept.relation_names], dtype=np.int64)
        subject, relation, value = kept.edges.T
        edges = np.stack([ids[subject], relations[relation], ids[value]], axis=1)
        is_new = ~self._has(edges)
        ends = np.searchsorted(owner[subject], np.arange(len(given) + 1))
        requests: list[Request | ValueError] = []
        for number, (triples, nodes) in enumerate(given):
            here, own = slice(*ends[number : number + 2]), slice(*starts[number : number + 2])
            try:
                wanted = self._wanted(nodes, edges[here], added_names[own])
            except ValueError as error:
                requests.append(error)
                continue
            names = [kept.relation_names[k] for k in relation[here][edges[here, 1] < 0].tolist()]
            notes = (*unknown_relations(names), *unknown_literals(triples, self.vocabulary))
            new = edges[here][is_new[here] & (edges[here, 1] >= 0)]
            requests.append(Request(*wanted, new, added_x[own], notes))
        return requests

    def _has(self, edges: Ids) -> Any:
        """Return which triples are in the graph."""
        found = (edges[:, [0, 2]] < self.num_nodes).all(1) & (edges[:, 1] >= 0)
        keys = self._keys(edges[found])
        places = np.searchsorted(self.known, keys)
        found[found] = self.known[np.minimum(places, len(self.known) - 1)] == keys if len(self.known) else places < 0
        return found

    def _wanted(self, nodes: Sequence[str] | None, edges: Ids, added: Sequence[str]) -> tuple[list[str], list[int]]:
        """Return names and ids of the nodes to predict, given the triples of a caller and the nodes that they add."""
        if nodes is None:
            chosen = (edges[:, 2] == self.type_id) & self.is_type[edges[:, 1]] & (edges[:, 0] >= self.num_nodes)
            ids = np.unique(edges[chosen, 0]).tolist()
            if not ids:
                kinds = "" if self.type is None else f" of type {self.type}"
                raise ValueError(f"the triples must describe new nodes{kinds}, got none; or name the nodes to predict")
            return [added[node - self.num_nodes] for node in ids], ids
        new_ids = {name: node for node, name in enumerate(added, self.num_nodes)}
        found = [self._find(node, new_ids) for node in nodes]
        return [name for name, _ in found], [node for _, node in found]

    def _find(self, node: str, new_ids: dict[str, int]) -> tuple[str, int]:
        """Return name and id of a node by its name or by its IRI without brackets."""
        for name in (node, f"<{node}>"):
            found = new_ids.get(name, self.predictor.node_ids.get(name))
            if found is not None:
                return name, found
        raise ValueError(f"{node} must be a node of the graph or of the added triples, and is neither")

    def predict(self, requests: Sequence[Request]) -> list[Predictions]:
        """Return the predictions of each request."""
        if self.has_rows and len(requests) > 1:
            return [predictions for request in requests for predictions in self._predict([request])]
        try:
            return self._predict(requests)
        except _TooLargeError:
            middle = len(requests) // 2
            return self.predict(requests[:middle]) + self.predict(requests[middle:])

    def _predict(self, requests: Sequence[Request]) -> list[Predictions]:
        """Predict in one graph, in which node ``i`` of request ``b`` has the key ``b * size + i``; ``b`` counts from 1.

        Nodes that are only read, and have the features of the graph, are shared by all requests: their key is ``i``.
        """
        model, data = self.predictor, self.predictor.data
        size = self.num_nodes + max(len(request.x) for request in requests)
        offsets = [number * size for number in range(1, len(requests) + 1)]
        wanted = torch.tensor(
            [node + k for request, k in zip(requests, offsets, strict=True) for node in request.nodes]
        )
        given = torch.cat(
            [torch.from_numpy(r.edges) + torch.tensor([k, 0, k]) for r, k in zip(requests, offsets, strict=True)]
        )
        (source, target, relation), members = self._reach(wanted, *self._new_edges(requests, given, size), size)
        nodes = members % size
        starts = torch.tensor([0, 0, *(len(request.x) for request in requests)]).cumsum(0)  # of added nodes
        is_old = nodes < self.num_nodes
        x = self.x.new_empty(len(nodes), self.x.shape[1])
        x[is_old] = self.x[nodes[is_old]]
        added = torch.cat([request.x for request in requests])
        x[~is_old] = added[starts[members[~is_old] // size] + nodes[~is_old] - self.num_nodes]
        self._count_degrees(x, members, given, size)
        ends = torch.searchsorted(members, torch.stack([source, target]))
        graph = RelationalGraph(
            ends, relation, num_nodes=len(nodes), num_relations=data.graph.num_relations, validate=False
        )
        graph.node_ids = nodes
        place = torch.searchsorted(members, wanted)
        with collected(model.members[0]) as hidden:
            logits = model.member_logits(x, graph)[:, place]
        rows, words = None if hidden.rows is None else hidden.rows[place], None
        if model.familiarity is not None:
            words = name_unseen(place, ends[1], relation, data.relation_names, model.familiarity.relations)
        titles = titles_among(data.classes, model.titles)
        outputs = (model.probabilities(logits).numpy(), model.spread(logits).numpy())
        names = tuple(name for request in requests for name in request.names)
        whole = Predictions(names, data.classes, *outputs, titles=titles, targets=model.targets)
        whole = with_uncertainty(model, whole, None, rows, words)
        last = np.cumsum([len(request.nodes) for request in requests]).tolist()
        return [
            replace(take(whole, slice(end - len(request.nodes), end)), notes=request.notes)
            for request, end in zip(requests, last, strict=True)
        ]

    def _new_edges(self, requests: Sequence[Request], given: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return source, target and relation of the edges that all triples add, with inverses and self-loops."""
        subject, relation, value = given.unbind(1)
        loops = torch.cat(
            [torch.arange(len(request.x)) + self.num_nodes + b * size for b, request in enumerate(requests, 1)]
        )[slice(None) if self.has_loops else slice(0)]
        back = slice(None) if self.has_inverses else slice(0)
        last = torch.full_like(loops, len(self.predictor.data.relation_names) - 1)
        return (
            torch.cat([subject, value[back], loops]),
            torch.cat([value, subject[back], loops]),
            torch.cat([relation, relation[back] + self.num_given, last]),
        )

    def _reach(
        self, wanted: Tensor, source: Tensor, target: Tensor, relation: Tensor, size: int
    ) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor]:
        """Return all edges that the layers read for some nodes (source, target and relation), and their nodes, sorted.

        The first arguments are these nodes and the new edges. Raise if the edges of several requests are too many.
        """
        members = frontier = torch.unique(wanted)
        parts: list[tuple[Tensor, Tensor, Tensor]] = []
        total = 0
        for _ in range(self.predictor.num_layers):
            is_here = torch.isin(target, frontier)
            parts.append((source[is_here], target[is_here], relation[is_here]))
            old = frontier[frontier % size < self.num_nodes]
            nodes = old % size
            counts = self.first[nodes + 1] - self.first[nodes]
            total += int(counts.sum())
            if total > MAX_EDGES and int(members[-1]) >= 2 * size:
                raise _TooLargeError
            edges, number = ranges(self.first[nodes], counts)
            base = (old - nodes)[number]
            parts.append((self.source[edges] + base, old[number], self.relation[edges]))
            reached = torch.unique(torch.cat([parts[-2][0], parts[-1][0]]))
            frontier = reached[~torch.isin(reached, members)]
            members = torch.cat([members, frontier]).sort().values
        a, b, c = (torch.cat([part[i] for part in parts]) for i in range(3))
        shared = frontier[~torch.isin(frontier, torch.cat([source, target]))]
        a = torch.where(torch.isin(a, shared), a % size, a)
        return (a, b, c), torch.unique(torch.cat([members[~torch.isin(members, shared)], shared % size]))

    def _count_degrees(self, x: Tensor, members: Tensor, given: Tensor, size: int) -> None:
        """Add new triples to the degrees of nodes of the graph; those of added nodes are counted already."""
        column = self.degrees[given[:, 1]]
        for side, ends in enumerate((given[:, 0].contiguous(), given[:, 2].contiguous())):
            row = torch.searchsorted(members, ends).clamp(max=len(members) - 1)
            counts = (column >= 0) & (ends % size < self.num_nodes) & (members[row] == ends)
            place, number = torch.unique((row * x.shape[1] + column + side)[counts], return_counts=True)
            degree = x.view(-1)[place].double().expm1().round() + number
            x.view(-1)[place] = degree.log1p().to(x.dtype)


def _join(parts: Sequence[Triples]) -> tuple[Triples, Ids]:
    """Return the triples of all callers side by side, and the caller of each node; no caller shares a node."""
    relation_ids: dict[str, int] = {}
    edges, start = [], 0
    for part in parts:
        numbers = [relation_ids.setdefault(name, len(relation_ids)) for name in part.relation_names]
        subject, relation, value = part.edges.T
        edges.append(np.stack([subject + start, np.array(numbers, dtype=np.int64)[relation], value + start], axis=1))
        start += len(part.node_names)
    names = [name for part in parts for name in part.node_names]
    owner = np.repeat(np.arange(len(parts)), [len(part.node_names) for part in parts])
    return Triples(names, list(relation_ids), np.concatenate(edges)), owner


class _TooLargeError(Exception):
    """The receptive fields of several requests have more than ``MAX_EDGES`` edges."""
