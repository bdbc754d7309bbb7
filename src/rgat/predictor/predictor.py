"""Predictors: fitted models with the vocabulary of their data, as `rgat.fit` and `rgat.load` return them."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Sequence
from functools import cached_property
from os import PathLike
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rgat.data import MISSING, GraphData, NodeData
from rgat.data.molecules.smiles import parse_smiles, store_molecules
from rgat.data.rdf.features import is_type
from rgat.graph import RelationalGraph
from rgat.predictor.ensemble import Ensemble, MoleculeVocabulary
from rgat.predictor.explain_molecule import MoleculeExplanation, explain_molecule
from rgat.predictor.explain_node import NodeExplanation, RelationImportance, explain_node, explain_relations
from rgat.predictor.folder import read_folder, write_folder
from rgat.predictor.new_triples import extend
from rgat.predictor.predictions import Array, Predictions
from rgat.sampling import NeighborSampler
from rgat.training.task import node_logits

BATCH_SIZE = 256  # molecules in one forward pass


@dataclasses.dataclass(frozen=True)
class NodePredictor(Ensemble):
    """Predicts classes of the nodes of one graph."""

    data: NodeData  # the graph, the known labels and all names

    def __repr__(self) -> str:
        return f"NodePredictor({self.config['model']}, {len(self.members)} members, {self.data})"

    @cached_property
    def logits(self) -> Tensor:
        """Logits of each member for each node of the graph, ``[S, N, classes]``."""
        return torch.stack([node_logits(member, self.data) for member in self.members])

    def logits_of(self, nodes: Sequence[int]) -> Tensor:
        """Return the logits of each member for some nodes, ``[S, n, classes]``."""
        if not self.data.is_stored:
            return self.logits[:, nodes]
        ids, place = torch.unique(torch.tensor(nodes, dtype=torch.long), return_inverse=True)
        return torch.stack([node_logits(member, self.data, nodes=ids) for member in self.members])[:, place]

    @cached_property
    def node_ids(self) -> dict[str, int]:
        return {name: node for node, name in enumerate(self.data.node_names)}

    def find(self, node: str) -> int:
        """Return the id of a node by its name in the graph, or by its IRI without brackets."""
        names: Any = self.data.node_names
        for name in (node, f"<{node}>"):
            found = names.find(name) if self.data.is_stored else self.node_ids.get(name)
            if found is not None:
                return int(found)
        raise ValueError(
            f"{node} must be one of the {len(names):,} nodes of the graph; to predict nodes added later, train "
            "with node features (--features types,literals) and give their triples (--rdf)"
        )

    def predict(
        self,
        nodes: Sequence[str] | None = None,
        *,
        type: str | None = None,  # noqa: A002  (the word of RDF)
        rdf: str | PathLike[str] | Sequence[str | PathLike[str]] | None = None,
    ) -> Predictions:
        """Predict the classes of nodes.

        Args:
            nodes: names of nodes; by default all unlabelled nodes of ``type``.
            type: IRI of an RDF type; by default the rarest type that all labelled nodes share.
            rdf: files with triples added after training; the default nodes are then those that only these files name.
        """
        if rdf is not None:
            return self._predict_added(nodes, type, rdf)
        ids = self.unlabelled(type) if nodes is None else [self.find(node) for node in nodes]
        if not ids:
            raise ValueError(
                f"there must be unlabelled nodes to predict, got none of type {type or self.shared_type() or 'any'}; "
                "name nodes (--node) or another type (--type)"
            )
        logits = self.logits_of(ids)
        probabilities, spread = self.probabilities(logits).numpy(), self.spread(logits).numpy()
        return Predictions(tuple(self.data.node_names[i] for i in ids), self.data.classes, probabilities, spread)

    def predict_proba(self, nodes: Sequence[str] | None = None) -> Array:
        """Return only the probabilities of the classes, ``[n, classes]``."""
        return self.predict(nodes).probabilities

    def _predict_added(self, nodes: Sequence[str] | None, type_name: str | None, rdf: Any) -> Predictions:
        self._refuse_stored("predict nodes that were added later")
        data, candidates, notes = extend(self.data, rdf)
        is_extended = data is not self.data  # False for one-hot input
        extended = dataclasses.replace(self, data=data) if is_extended else self
        if nodes is None:
            type_name = type_name or self.shared_type()
            nodes = [name for i in extended.unlabelled(type_name) if (name := data.node_names[i]) in candidates]
            if not nodes:
                wanted = "new nodes" if is_extended else "unlabelled nodes of the training graph"
                unknown = f"; {notes[0]}" if notes and not is_extended else ""
                raise ValueError(
                    f"the added files must name {wanted} of type {type_name or 'any'}, got none; name nodes (--node) "
                    f"or another type (--type){unknown}"
                )
        return dataclasses.replace(extended.predict(nodes), notes=tuple(notes))

    def nodes_by_type(self) -> dict[int, set[int]]:
        """Return the nodes of each RDF type."""
        nodes = dict[int, set[int]]()
        for relation in (number for number, name in enumerate(self.data.relation_names) if is_type(name)):
            if self.data.is_stored:
                graph: Any = self.data.graph
                source, target = graph.incoming.of_relation(relation)
            else:
                source, target = self.data.graph.edge_index[:, self.data.graph.edge_type == relation]
            for node, type_node in zip(source.tolist(), target.tolist(), strict=True):
                nodes.setdefault(type_node, set()).add(node)
        return nodes

    def shared_type(self) -> str | None:
        """Return the rarest type that all labelled nodes share, if there is one."""
        labelled = set((self.data.labels != MISSING).nonzero().squeeze(1).tolist())
        shared = [(len(nodes), type_node) for type_node, nodes in self.nodes_by_type().items() if labelled <= nodes]
        return self.data.node_names[min(shared)[1]] if shared else None

    def unlabelled(self, type_name: str | None = None) -> list[int]:
        """Return the ids of the unlabelled nodes of a type, or of all that are not literals where there is no type."""
        labels = self.data.labels
        type_name = type_name or self.shared_type()
        if type_name is None:
            return [
                i for i, name in enumerate(self.data.node_names) if labels[i] == MISSING and not name.startswith('"')
            ]
        types = {self.data.node_names[node].strip("<>"): nodes for node, nodes in self.nodes_by_type().items()}
        if not types:
            raise ValueError("the graph must have types (rdf:type) to select by --type, got none; name nodes (--node)")
        nodes = types.get(type_name.strip("<>"))
        if nodes is None:
            common = sorted(types, key=lambda name: -len(types[name]))[:5]
            near = difflib.get_close_matches(type_name, types, n=1)
            hint = f"did you mean {near[0]}?" if near else f"the most common are {', '.join(common)}"
            raise ValueError(f"{type_name} must be the type of some node, but no node has it; {hint}")
        return sorted(i for i in nodes if labels[i] == MISSING)

    def explain(
        self, node: str | None = None, *, top: int = 20, by: str = "strength"
    ) -> NodeExplanation | RelationImportance:
        """Explain the prediction of a node or, without a node, the importance of each relation in the whole graph.

        A node's ``top`` edges come in the order of "strength" (attention and effect together), "attention" or "effect".
        """
        if node is None:
            self._refuse_stored("explain all relations")
            return explain_relations(self, self.data)
        if self.data.is_stored:
            return explain_node(self, receptive_data(self.data, self.find(node)), 0, top, by)
        return explain_node(self, self.data, self.find(node), top, by)

    def _refuse_stored(self, purpose: str) -> None:
        if self.data.is_stored:
            raise ValueError(f"to {purpose}, the graph must be in memory, but it is in a store; name a node (--node)")

    def save(self, folder: str | PathLike[str]) -> None:
        """Write the predictor into a folder, which :func:`load` reads."""
        write_folder(folder, self, self.data)


def receptive_data(data: NodeData, node: int) -> NodeData:
    """Return the receptive field of a node of a graph in a store, as a data set in memory whose node 0 it is."""
    batch = NeighborSampler(data.graph, [-1, -1]).sample(torch.tensor([node]))
    sampled, nodes = batch.graphs[0], batch.nodes
    graph = RelationalGraph(
        sampled.edge_index, sampled.edge_type, num_nodes=len(nodes), num_relations=data.graph.num_relations
    )
    graph.node_ids = nodes
    names = tuple(data.node_names[i] for i in nodes.tolist())
    none = torch.empty(0, dtype=torch.long)
    x = None if data.x is None else data.x[nodes].float()
    fields: dict[str, Any] = {"graph": graph, "x": x, "labels": data.labels[nodes], "node_names": names}
    return dataclasses.replace(data, **fields, train=none, valid=none, test=none)


class MoleculeBatch(NamedTuple):
    """Parsed molecules as compact arrays, which worker processes return."""

    valid: list[int]  # positions of the valid SMILES
    x: Any  # int8 [atoms, F]; atom features are small integers
    edges: Any  # int32 [3, edges]: source, target, relation
    sizes: Any  # int32, atoms of each molecule


def parse_molecules(smiles: Sequence[str], self_loops: bool) -> MoleculeBatch:
    """Parse SMILES into one batch, without the invalid ones."""
    molecules = [parse_smiles(text, relaxed=True) if text.strip() else None for text in smiles]
    valid = [i for i, molecule in enumerate(molecules) if molecule is not None]
    store = store_molecules([molecules[i] for i in valid], self_loops)
    edges = torch.cat([store.edge_index, store.edge_type.unsqueeze(0)]).int()
    return MoleculeBatch(valid, store.x.to(torch.int8).numpy(), edges.numpy(), store.node_ptr.diff().int().numpy())


@dataclasses.dataclass(frozen=True)
class MoleculePredictor(Ensemble):
    """Predicts the tasks of a molecule data set for any molecule."""

    vocabulary: MoleculeVocabulary

    def __repr__(self) -> str:
        return f"MoleculePredictor({self.config['model']}, {len(self.members)} members, tasks {', '.join(self.tasks)})"

    @property
    def tasks(self) -> tuple[str, ...]:
        return self.vocabulary.tasks

    def predict(self, smiles: Sequence[str] | str) -> Predictions:
        """Predict all tasks for molecules; invalid SMILES get NaN."""
        texts = [smiles] if isinstance(smiles, str) else list(smiles)
        probabilities, spread = np.full((2, len(texts), len(self.tasks)), np.nan)
        for start in range(0, len(texts), BATCH_SIZE):
            batch = slice(start, start + BATCH_SIZE)
            parsed = parse_molecules(texts[batch], self.vocabulary.self_loops)
            part = self.predict_parsed(texts[batch], parsed)
            probabilities[batch], spread[batch] = part.probabilities, part.spread
        return Predictions(tuple(texts), self.tasks, probabilities, spread, exclusive=False)

    def predict_parsed(self, smiles: Sequence[str], batch: MoleculeBatch) -> Predictions:
        """Predict all tasks for molecules that :func:`parse_molecules` has parsed, in one forward pass."""
        probabilities, spread = np.full((2, len(smiles), len(self.tasks)), np.nan)
        if batch.valid:
            edges, sizes = torch.from_numpy(batch.edges).long(), torch.from_numpy(batch.sizes).long()
            graph = RelationalGraph(
                edges[:2],
                edges[2],
                num_nodes=len(batch.x),
                num_relations=len(self.vocabulary.relation_names),
                batch=torch.arange(len(sizes)).repeat_interleave(sizes),
                num_graphs=len(sizes),
                validate=False,
            )
            logits = self.member_logits(torch.from_numpy(batch.x).float(), graph)
            probabilities[batch.valid], spread[batch.valid] = self.probabilities(logits), self.spread(logits)
        return Predictions(tuple(smiles), self.tasks, probabilities, spread, exclusive=False)

    def predict_proba(self, smiles: Sequence[str] | str) -> Array:
        """Return only the probabilities, ``[n, tasks]``."""
        return self.predict(smiles).probabilities

    def explain(self, smiles: str, task: str | None = None) -> MoleculeExplanation:
        """Explain a prediction by atoms and bonds; by default for the task with the highest probability."""
        return explain_molecule(self, self.vocabulary, smiles, task)

    def save(self, folder: str | PathLike[str]) -> None:
        """Write the predictor into a folder, which :func:`load` reads."""
        write_folder(folder, self, self.vocabulary)


Predictor = NodePredictor | MoleculePredictor


def make_predictor(ensemble: Ensemble, data: NodeData | GraphData | MoleculeVocabulary) -> Predictor:
    """Return the predictor of an ensemble and the data that it was trained on."""
    if isinstance(data, NodeData):
        return NodePredictor(**vars(ensemble), data=data)
    if isinstance(data, GraphData):
        data = MoleculeVocabulary(data.tasks, data.relation_names, data.in_channels, data.provenance)
    return MoleculePredictor(**vars(ensemble), vocabulary=data)


def load(folder: str | PathLike[str], device: torch.device | str = "cpu") -> Predictor:
    """Read a predictor from a folder that its ``save`` wrote; incomplete, changed or foreign files are refused."""
    predictor = make_predictor(*read_folder(folder))
    predictor.to(device)
    return predictor
