"""Fitted models: what `rgat.fit` returns. They know their data, so they can name what they judge."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Sequence
from functools import cached_property
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from rgat.data import MISSING, NodeData
from rgat.data.molecules.smiles import parse_smiles, store_molecules
from rgat.data.rdf.features import is_type
from rgat.graph import RelationalGraph
from rgat.models import Model
from rgat.predictor.calibration import Calibration
from rgat.predictor.new_triples import extend
from rgat.predictor.predictions import Array, Predictions
from rgat.training.configuration import Config

if TYPE_CHECKING:
    from rgat.predictor.explain_molecule import MoleculeExplanation
    from rgat.predictor.explain_node import NodeExplanation, RelationImportance

BATCH_SIZE = 256  # molecules in one forward pass


@dataclasses.dataclass(frozen=True)
class FittedModel:
    """An ensemble of trained models, and what is needed to use it.

    Attributes:
        members: the models, one per seed.
        config: what they are and how they were trained, flat.
        calibration: from logits to probabilities.
        report: how good it is: held-out performance and what it was compared with, as plain values.
    """

    members: list[Model]
    config: Config
    calibration: Calibration
    report: dict[str, Any]

    @property
    def device(self) -> torch.device:
        """Where the members are."""
        return next(self.members[0].parameters()).device

    def to(self, device: torch.device | str) -> FittedModel:
        """Move the members, in place."""
        for member in self.members:
            member.to(device)
        return self

    def member_logits(self, x: Tensor | None, graph: RelationalGraph) -> Tensor:
        """Logits of each member, on the CPU."""
        if graph.device != self.device:
            graph, x = graph.to(self.device), None if x is None else x.to(self.device)
        with torch.no_grad():
            return torch.stack([member(x, graph).float().cpu() for member in self.members])

    def _judge(self, logits: Tensor) -> tuple[Array, Array]:
        """Probabilities of the mean logits, and how far the members' own differ."""
        own = self.calibration.probabilities(logits.double())
        mean = self.calibration.probabilities(logits.double().mean(0))
        spread = (own - own.mean(0)).square().mean(0).sqrt()
        return mean.numpy(), spread.numpy()

    def save(self, folder: str | PathLike[str]) -> None:
        """Write the model into a folder of safetensors and JSON."""
        from rgat.predictor.folder import save

        save(self, folder)


@dataclasses.dataclass(frozen=True)
class NodeModel(FittedModel):
    """A fitted model of the nodes of one graph.

    Attributes:
        data: the graph, the known labels, the names.
    """

    data: NodeData

    def __repr__(self) -> str:
        return f"NodeModel({self.config['model']}, {len(self.members)} members, {self.data})"

    @cached_property
    def logits(self) -> Tensor:
        """Of each member for each node of the graph, ``[S, N, classes]``."""
        return self.member_logits(self.data.x, self.data.graph)

    @cached_property
    def places(self) -> dict[str, int]:
        """Ids of the nodes by name."""
        return {name: place for place, name in enumerate(self.data.node_names)}

    def find(self, node: str) -> int:
        """The id of a node that is named as in the graph, or by its IRI without brackets."""
        for name in (node, f"<{node}>"):
            if name in self.places:
                return self.places[name]
        raise ValueError(
            f"{node} must be a node of the graph, which has {len(self.places):,} others; a model can judge new ones if "
            "it was trained with features of nodes (--features types,literals) and is given their triples (--rdf)"
        )

    def predict(
        self,
        nodes: Sequence[str] | None = None,
        *,
        type: str | None = None,  # noqa: A002  (the word of RDF)
        rdf: str | PathLike[str] | Sequence[str | PathLike[str]] | None = None,
    ) -> Predictions:
        """Judge nodes.

        Args:
            nodes: by name; by default all unlabelled ones of ``type``.
            type: an IRI; by default the most special type that all labelled nodes share.
            rdf: files with triples that were added after training; by default the nodes that only they name, or those
                of ``type`` among them, are judged.
        """
        if rdf is not None:
            return self._predict_added(nodes, type, rdf)
        ids = self.unlabelled(type) if nodes is None else [self.find(node) for node in nodes]
        if not ids:
            kind = type or self.shared_type()
            raise ValueError(
                f"there must be nodes without a label to judge, got none of type {kind or 'any'}; "
                "name nodes (--node) or another type (--type)"
            )
        chance, spread = self._judge(self.logits[:, ids])
        return Predictions(tuple(self.data.node_names[i] for i in ids), self.data.classes, chance, spread)

    def predict_proba(self, nodes: Sequence[str] | None = None) -> Array:
        """Probabilities of the classes alone, ``[n, classes]``."""
        return self.predict(nodes).probabilities

    def _predict_added(self, nodes: Sequence[str] | None, kind: str | None, rdf: Any) -> Predictions:
        data, added, notes = extend(self.data, rdf)
        if data is self.data:  # one-hot input: only nodes seen in training can be judged
            grown, what = self, "nodes without a label that were there in training,"
        else:
            grown, what = dataclasses.replace(self, data=data), "new nodes"
        if nodes is None:
            wanted = set(added)
            kind = kind or self.shared_type()
            nodes = [name for i in grown.unlabelled(kind) if (name := data.node_names[i]) in wanted]
            if not nodes:
                unknown = f"; {notes[0]}" if notes and grown is self else ""
                raise ValueError(
                    f"the added files must name {what} of type {kind or 'any'}, got none; name nodes (--node) or "
                    f"another type (--type){unknown}"
                )
        return dataclasses.replace(grown.predict(nodes), notes=tuple(notes))

    def typed(self) -> dict[int, set[int]]:
        """The nodes of each type."""
        relations = [place for place, name in enumerate(self.data.relation_names) if is_type(name)]
        graph, found = self.data.graph, dict[int, set[int]]()
        chosen = torch.isin(graph.edge_type, torch.tensor(relations, dtype=torch.long))
        for node, kind in graph.edge_index[:, chosen].t().tolist():
            found.setdefault(kind, set()).add(node)
        return found

    def shared_type(self) -> str | None:
        """The type with the fewest nodes that all labelled nodes have, if there is one."""
        labelled = set((self.data.labels != MISSING).nonzero().squeeze(1).tolist())
        shared = [(len(nodes), kind) for kind, nodes in self.typed().items() if labelled <= nodes]
        return self.data.node_names[min(shared)[1]] if shared else None

    def unlabelled(self, kind: str | None = None) -> list[int]:
        """Ids of the nodes without a label: those of a type, or else all that are no literals."""
        labels = self.data.labels
        kind = kind or self.shared_type()
        if kind is None:
            return [
                i for i, name in enumerate(self.data.node_names) if labels[i] == MISSING and not name.startswith('"')
            ]
        types = {self.data.node_names[place].strip("<>"): nodes for place, nodes in self.typed().items()}
        if not types:
            raise ValueError(
                "the graph must say types (rdf:type) for --type to choose by, got none; name nodes (--node)"
            )
        members = types.get(kind.strip("<>"))
        if members is None:
            common = sorted(types, key=lambda name: -len(types[name]))[:5]
            near = difflib.get_close_matches(kind, types, n=1)
            hint = f"did you mean {near[0]}?" if near else f"the most common are {', '.join(common)}"
            raise ValueError(f"{kind} must be the type of some node, got one that no node has; {hint}")
        return sorted(i for i in members if labels[i] == MISSING)

    def explain(
        self, node: str | None = None, *, top: int = 20, by: str = "strength"
    ) -> NodeExplanation | RelationImportance:
        """Why a node is judged as it is or, without a node, which relations matter in the whole graph.

        Args:
            node: by name.
            top: so many edges.
            by: what puts them in order: "strength" (attention and effect together), "attention" or "effect".
        """
        from rgat.predictor.explain_node import explain_node, explain_relations

        return explain_relations(self) if node is None else explain_node(self, self.find(node), top, by)


@dataclasses.dataclass(frozen=True)
class GraphModel(FittedModel):
    """A fitted model of molecules.

    Attributes:
        tasks: their names.
        relation_names: bond types, and self where atoms have self-loops.
        in_channels: number of atom features.
        provenance: where the training data come from.
    """

    tasks: tuple[str, ...]
    relation_names: tuple[str, ...]
    in_channels: int
    provenance: dict[str, Any]

    def __repr__(self) -> str:
        return f"GraphModel({self.config['model']}, {len(self.members)} members, tasks {', '.join(self.tasks)})"

    @property
    def self_loops(self) -> bool:
        """Whether atoms have edges to themselves."""
        return "self" in self.relation_names

    def predict(self, smiles: Sequence[str] | str) -> Predictions:
        """Judge molecules; what cannot be read as SMILES gets NaN."""
        texts = [smiles] if isinstance(smiles, str) else list(smiles)
        molecules = [parse_smiles(text, relaxed=True) if text.strip() else None for text in texts]
        good = [place for place, molecule in enumerate(molecules) if molecule is not None]
        chance = np.full((2, len(texts), len(self.tasks)), np.nan)
        for start in range(0, len(good), BATCH_SIZE):
            chosen = good[start : start + BATCH_SIZE]
            store = store_molecules([molecules[place] for place in chosen], self.self_loops)
            chance[:, chosen] = self.judge(*store.batch(torch.arange(len(store))))
        return Predictions(tuple(texts), self.tasks, chance[0], chance[1], exclusive=False)

    def judge(self, x: Tensor, graph: RelationalGraph) -> Array:
        """Probabilities and spreads of the graphs of a batch, ``[2, G, tasks]``."""
        return np.stack(self._judge(self.member_logits(x, graph)))

    def predict_proba(self, smiles: Sequence[str] | str) -> Array:
        """Probabilities alone, ``[n, tasks]``."""
        return self.predict(smiles).probabilities

    def explain(self, smiles: str, task: str | None = None) -> MoleculeExplanation:
        """Which atoms and bonds a judgement rests on; by default for the task with the highest probability."""
        from rgat.predictor.explain_molecule import explain_molecule

        return explain_molecule(self, smiles, task)
