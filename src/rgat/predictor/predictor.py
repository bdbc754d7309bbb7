"""Predictors: fitted models with the vocabulary of their data, as `rgat.fit` and `rgat.load` return them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from functools import cached_property, partial
from os import PathLike
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rgat.data import GraphData, NodeData
from rgat.data.molecules.descriptors import describe, needs_stereo
from rgat.data.molecules.smiles import parse_smiles, store_molecules
from rgat.data.rdf.labels import similar_node
from rgat.graph import RelationalGraph
from rgat.predictor.ensemble import Columns, Ensemble, MoleculeVocabulary
from rgat.predictor.explain_molecule import MoleculeExplanation, explain_molecule
from rgat.predictor.explain_node import NodeExplanation, RelationImportance, explain_node
from rgat.predictor.explain_relations import explain_relations
from rgat.predictor.export import export
from rgat.predictor.familiarity import collected, unseen_atoms, unseen_relations
from rgat.predictor.folder import read_folder, write_folder
from rgat.predictor.new_triples import extend
from rgat.predictor.predictions import Array, Predictions, concatenate
from rgat.predictor.provenance import ModelRecord, model_record
from rgat.predictor.selection import select, shared_type
from rgat.predictor.uncertainty import with_uncertainty
from rgat.predictor.words import titles_among, titles_of
from rgat.training.task import node_logits

BATCH_SIZE = 512  # molecules in one forward pass: more would not be faster


@dataclasses.dataclass(frozen=True)
class NodePredictor(Ensemble):
    """Predicts classes of the nodes of one graph.

    Examples:
        >>> import rgat
        >>> model = rgat.fit("institute", comparison=False, max_epochs=2)
        >>> predictions = model.predict(["http://institute.example/person/99"])
        >>> predictions.names, predictions.probabilities.shape
        (('<http://institute.example/person/99>',), (1, 4))
        >>> reasons = model.explain("http://institute.example/person/99").reasons
    """

    data: NodeData  # the graph, the known labels and all names

    def __repr__(self) -> str:
        return f"NodePredictor({self.config['model']}, {len(self.members)} members, {self.data})"

    @cached_property
    def logits(self) -> Tensor:
        """Logits of each member for each node of the graph, ``[S, N, classes]``."""
        return self._all_outputs[0]

    @cached_property
    def _all_outputs(self) -> tuple[Tensor, Tensor | None]:
        return self._compute(torch.arange(self.data.graph.num_nodes))

    def _compute(self, nodes: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the logits of each member for distinct nodes, and the last hidden layer of the first member."""
        with collected(self.members[0], nodes) as hidden:
            logits = [node_logits(self.members[0], self.data, nodes=nodes)]
        logits += [node_logits(member, self.data, nodes=nodes) for member in self.members[1:]]
        return torch.stack(logits), hidden.rows

    def outputs_of(self, nodes: Sequence[int]) -> tuple[Tensor, Tensor | None]:
        """Return the logits of each member for some nodes, ``[S, n, classes]``, and their last hidden layer."""
        place = torch.tensor(nodes, dtype=torch.long)
        if self.data.is_stored:
            ids, place = torch.unique(place, return_inverse=True)
            logits, hidden = self._compute(ids)
        else:
            logits, hidden = self._all_outputs
        return logits[:, place], None if hidden is None else hidden[place]

    def logits_of(self, nodes: Sequence[int]) -> Tensor:
        """Return the logits of each member for some nodes, ``[S, n, classes]``."""
        return self.outputs_of(nodes)[0]

    @cached_property
    def record(self) -> ModelRecord:
        """What triples of predictions say about this model."""
        return model_record(self, self.data.provenance)

    @cached_property
    def titles(self) -> dict[str, str]:
        """The `rdfs:label` of each node, class or relation that has one, by its name."""
        return titles_of(self.data)

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
            f"{node} must be one of the {len(names):,} nodes of the graph, such as {similar_node(node, names)}; to "
            "predict nodes added later, train with node features (--features types,literals) and give their triples "
            "(--rdf)"
        )

    def predict(
        self,
        nodes: Sequence[str] | None = None,
        *,
        type: str | None = None,  # noqa: A002  (the word of RDF)
        rdf: str | PathLike[str] | Sequence[str | PathLike[str]] | None = None,
        format: str | None = None,  # noqa: A002
        coverage: float | None = None,
    ) -> Predictions:
        """Predict the classes of nodes.

        Args:
            nodes: names of nodes; by default all unlabelled nodes of ``type``.
            type: IRI of an RDF type; by default the kind of the labelled nodes (`rgat.predictor.selection`).
            rdf: files with triples added after training; the default nodes are then those that only these files name.
            format: format of these files, if their names do not tell it.
            coverage: share of nodes whose set of classes holds the true one; by default 0.9.
        """
        if rdf is not None:
            return self._predict_added(nodes, type, rdf, format, coverage)
        ids, kind = (
            select(self.data, type) if nodes is None else ([self.find(node) for node in nodes], "that are named")
        )
        if not ids:
            raise ValueError(
                f"there must be unlabelled nodes to predict, got none {kind}; name nodes (--node) or another type "
                "(--type)"
            )
        logits, hidden = self.outputs_of(ids)
        probabilities, spread = self.probabilities(logits).numpy(), self.spread(logits).numpy()
        names = tuple(self.data.node_names[i] for i in ids)
        notes = (f"predicted the unlabelled nodes {kind} (--type and --node select others)",) * (nodes is None)
        titles = titles_among([*names, *self.data.classes], self.titles)
        fields: dict[str, Any] = {"notes": notes, "titles": titles, "targets": self.targets}
        predictions = Predictions(names, self.data.classes, probabilities, spread, **fields)
        unlike = None
        if self.familiarity is not None:
            unlike = unseen_relations(self.data, ids, self.familiarity.relations)
        return with_uncertainty(self, predictions, coverage, hidden, unlike)

    def predict_proba(self, nodes: Sequence[str] | None = None) -> Array:
        """Return only the probabilities of the classes, ``[n, classes]``."""
        return self.predict(nodes).probabilities

    def _predict_added(
        self,
        nodes: Sequence[str] | None,
        type_name: str | None,
        rdf: Any,
        rdf_format: str | None,
        coverage: float | None,
    ) -> Predictions:
        self.refuse_stored("predict nodes that were added later")
        data, candidates, notes = extend(self.data, rdf, rdf_format)
        is_extended = data is not self.data  # False for one-hot input
        extended = dataclasses.replace(self, data=data) if is_extended else self
        if nodes is None:
            ids, kind = select(data, type_name or self.shared_type())
            nodes = [name for i in ids if (name := data.node_names[i]) in candidates]
            if not nodes:
                wanted = "new nodes" if is_extended else "unlabelled nodes of the training graph"
                unknown = f"; {notes[0]}" if notes and not is_extended else ""
                raise ValueError(
                    f"the added files must name {wanted} {kind}, got none; name nodes (--node) "
                    f"or another type (--type){unknown}"
                )
        return dataclasses.replace(extended.predict(nodes, coverage=coverage), notes=tuple(notes))

    def shared_type(self) -> str | None:
        """Return the rarest type that all labelled nodes share, if there is one."""
        return shared_type(self.data)

    def explain(
        self, node: str | None = None, *, top: int = 20, by: str = "strength", task: str | None = None
    ) -> NodeExplanation | RelationImportance:
        """Explain the prediction of a node or, without a node, the importance of each relation in the whole graph.

        A node's ``top`` edges come in the order of "strength" (attention and effect together), "attention" or "effect".
        ``task`` names a target, or one of its classes or labels; by default the first target is explained.
        """
        if task is not None and not self.targets:
            raise ValueError("`task` (--task) must be left out: this model predicts one class of each node")
        if node is None:
            ranked = explain_relations(self, self.data, task)
            return dataclasses.replace(ranked, titles=titles_among(list(ranked.attention), self.titles))
        explanation = explain_node(self, self.data, self.find(node), top, by, task)
        return dataclasses.replace(explanation, titles=titles_among(explanation.names(), self.titles))

    def refuse_stored(self, purpose: str, instead: str = "name a node (--node)") -> None:
        """Raise if the graph is in a store."""
        if self.data.is_stored:
            raise ValueError(f"to {purpose}, the graph must be in memory, but it is in a store; {instead}")

    def save(self, folder: str | PathLike[str]) -> None:
        """Write the predictor into a folder, which `load` reads."""
        write_folder(folder, self, self.data)

    def export(self, path: str | PathLike[str]) -> float:
        """Write a program that runs without this package, .onnx or .pt2 (`torch.export`).

        Returns:
            The largest difference of its probabilities from those of this predictor, at most 1e-5.
        """
        self.refuse_stored("export a model", "train on the dump itself")
        return export(self, self.data, path)


class MoleculeBatch(NamedTuple):
    """Parsed molecules as compact arrays, which worker processes return."""

    valid: list[int]  # positions of the valid SMILES
    x: Any  # int8 [atoms, F]; atom features are small integers
    edges: Any  # int32 [3, edges]: source, target, relation
    sizes: Any  # int32, atoms of each molecule
    columns: Any = None  # float32 [molecules, D], descriptors


def parse_molecules(
    smiles: Sequence[str], self_loops: bool, columns: Columns | None = None, largest: bool = False
) -> MoleculeBatch:
    """Parse SMILES into one batch, without the invalid ones, and compute descriptors if asked."""
    # Atoms and bonds have no stereo marks, some descriptors do.
    stereo = columns is not None and needs_stereo(columns[1])
    parse = partial(parse_smiles, relaxed=True, largest=largest, stereo=stereo)
    molecules = [parse(text) if text.strip() else None for text in smiles]
    valid = [i for i, molecule in enumerate(molecules) if molecule is not None]
    kept = [molecules[i] for i in valid]
    store = store_molecules(kept, self_loops)
    described = None if columns is None else describe(kept, *columns).numpy()
    edges = torch.cat([store.edge_index, store.edge_type.unsqueeze(0)]).int()
    sizes = store.node_ptr.diff().int().numpy()
    return MoleculeBatch(valid, store.x.to(torch.int8).numpy(), edges.numpy(), sizes, described)


@dataclasses.dataclass(frozen=True)
class MoleculePredictor(Ensemble):
    """Predicts the tasks of a molecule data set for any molecule.

    Examples:
        >>> import rgat
        >>> model = rgat.fit("molecules", comparison=False, max_epochs=2)
        >>> model.predict(["CCO", "c1ccccc1"]).probabilities.shape
        (2, 6)
        >>> model.explain("CC(=O)NC", "amide").task
        'amide'
    """

    vocabulary: MoleculeVocabulary

    def __repr__(self) -> str:
        return f"MoleculePredictor({self.config['model']}, {len(self.members)} members, tasks {', '.join(self.tasks)})"

    @property
    def tasks(self) -> tuple[str, ...]:
        return self.vocabulary.tasks

    def predict(self, smiles: Sequence[str] | str, *, coverage: float | None = None) -> Predictions:
        """Predict all tasks for molecules; invalid SMILES get NaN.

        Args:
            smiles: one or several.
            coverage: share of molecules, per task and class, whose set of results holds the true one; by default 0.9.
        """
        texts = [smiles] if isinstance(smiles, str) else list(smiles)
        others = [f"{text!r}; leave such rows out" for text in texts if not isinstance(text, str)]
        if others or hasattr(smiles, "columns"):
            got = "a data frame; give its column of SMILES" if hasattr(smiles, "columns") else others[0]
            raise ValueError(f"`smiles` must be texts, got {got}")
        parts = []
        for start in range(0, max(len(texts), 1), BATCH_SIZE):
            batch = texts[start : start + BATCH_SIZE]
            parts.append(self.predict_parsed(batch, parse_molecules(batch, *self.vocabulary.reading), coverage))
        return concatenate(parts)

    def predict_parsed(self, smiles: Sequence[str], batch: MoleculeBatch, coverage: float | None = None) -> Predictions:
        """Predict all tasks for molecules that `parse_molecules` has parsed, in one forward pass."""
        probabilities, spread = np.full((2, len(smiles), len(self.tasks)), np.nan)
        hidden, unlike = None, [""] * len(smiles)
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
            if self.vocabulary.descriptors is not None:
                columns = torch.from_numpy(batch.columns)
                graph.graph_attr = self.vocabulary.descriptors.standardise(columns).float()
            with collected(self.members[0]) as found:
                logits = self.member_logits(torch.from_numpy(batch.x).float(), graph)
            probabilities[batch.valid], spread[batch.valid] = self.probabilities(logits), self.spread(logits)
            if found.rows is not None and self.familiarity is not None:
                hidden = torch.full((len(smiles), found.rows.shape[1]), math.nan)
                hidden[batch.valid] = found.rows
                names = self.vocabulary.relation_names
                words = unseen_atoms(batch.x, batch.edges, batch.sizes, names, self.familiarity)
                for position, word in zip(batch.valid, words, strict=True):
                    unlike[position] = word
        predictions = Predictions(
            tuple(smiles), self.tasks, probabilities, spread, exclusive=False, targets=self.targets
        )
        return with_uncertainty(self, predictions, coverage, hidden, unlike)

    def predict_proba(self, smiles: Sequence[str] | str) -> Array:
        """Return only the probabilities, ``[n, tasks]``."""
        return self.predict(smiles).probabilities

    def explain(self, smiles: str, task: str | None = None) -> MoleculeExplanation:
        """Explain a prediction by atoms and bonds; by default for the task with the highest probability."""
        return explain_molecule(self, self.vocabulary, smiles, task)

    def save(self, folder: str | PathLike[str]) -> None:
        """Write the predictor into a folder, which `load` reads."""
        write_folder(folder, self, self.vocabulary)

    def export(self, path: str | PathLike[str]) -> float:
        """Write a program that runs without this package, .onnx or .pt2 (`torch.export`).

        Returns:
            The largest difference of its probabilities from those of this predictor, at most 1e-5.
        """
        return export(self, self.vocabulary, path)


Predictor = NodePredictor | MoleculePredictor


def make_predictor(ensemble: Ensemble, data: NodeData | GraphData | MoleculeVocabulary) -> Predictor:
    """Return the predictor of an ensemble and the data that it was trained on."""
    if isinstance(data, NodeData):
        return NodePredictor(**vars(ensemble), data=data)
    if isinstance(data, GraphData):
        targets = () if data.values is None else data.targets
        fields = (data.tasks, data.relation_names, data.in_channels, data.provenance, targets, data.descriptors)
        data = MoleculeVocabulary(*fields)
    return MoleculePredictor(**vars(ensemble), vocabulary=data)


def load(folder: str | PathLike[str], device: torch.device | str = "cpu") -> Predictor:
    """Read a predictor from a folder that its ``save`` wrote; incomplete, changed or foreign files are refused.

    Examples:
        >>> import rgat
        >>> model = rgat.fit("institute", comparison=False, max_epochs=2)
        >>> model.save("model")
        >>> rgat.load("model").data.name
        'institute'
    """
    predictor = make_predictor(*read_folder(folder))
    predictor.to(device)
    return predictor
