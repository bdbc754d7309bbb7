"""What a service answers: requests as plain values in, predictions and explanations as plain values out.

Nothing here reads a file or an address that a request names: nodes are looked up in the graph, triples and SMILES are
parsed from memory.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from rgat.data import MISSING
from rgat.data.molecules.smiles import parse_smiles
from rgat.data.rdf.reader import Triples, parse_triples
from rgat.predictor import MoleculePredictor, NodePredictor, Predictions
from rgat.predictor.added_nodes import AddedNodes, Request
from rgat.predictor.explain_node import NodeExplanation
from rgat.predictor.explorer import effects
from rgat.predictor.new_triples import extend_by
from rgat.predictor.predictions import take
from rgat.predictor.text import node_sentences
from rgat.predictor.words import titled
from rgat.serve.batching import Job
from rgat.serve.limits import Limits, RefusedError, quoted
from rgat.serve.names import NameIndex

MOST_TOGETHER = 64  # requests of triples or molecules in one pass: more would delay the first of them
MOST_CHARACTERS = 50_000  # of SMILES in one pass, which bounds its memory
MOST_TRIPLES = 200_000  # characters of triples in one pass, likewise; a request alone may have more
MOST_READY = 100_000  # nodes whose predictions are computed before the first request
MOST_ATOMS = 250  # of a molecule to explain, which takes one copy of it for each atom and bond
KEPT_EXPLANATIONS = 256
FORMATS = ("turtle", "ntriples")


def refused(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a function returns; what it says about a wrong value becomes the answer to the request."""
    try:
        return function(*arguments)
    except RefusedError as error:
        return error
    except ValueError as error:
        return RefusedError(422, str(error))


def number(value: float) -> float | None:
    """Return a number that JSON can have; None for NaN and infinity."""
    return float(value) if math.isfinite(value) else None


class NodeAnswers:
    """Answers about the nodes of one graph and about nodes added to it."""

    kind = "nodes"

    def __init__(self, predictor: NodePredictor, limits: Limits) -> None:
        self.predictor, self.limits, self.data = predictor, limits, predictor.data
        self.added: AddedNodes | str = "the graph must be in memory to predict new nodes, but it is in a store"
        self.names = NameIndex((), {})
        self.ready: Predictions | None = None  # of all nodes
        if not self.data.is_stored:
            _ = predictor.logits, predictor.node_ids  # once, before the first request
            if 0 < len(self.data.node_names) <= MOST_READY:
                self.ready = predictor.predict(self.data.node_names)
            self.names = NameIndex(self.data.node_names, predictor.titles)
            try:
                self.added = AddedNodes(predictor)
            except ValueError as error:
                self.added = str(error)
        self.columns = described_columns(self.data.classes, predictor)
        self._explained = lru_cache(KEPT_EXPLANATIONS)(self._explain)

    @property
    def jobs(self) -> dict[str, tuple[Job, int]]:
        """The work that the model does for requests, the most urgent first."""
        return {
            "nodes": (self._predict_stored, MOST_TOGETHER),
            "new nodes": (self._predict_new, MOST_TOGETHER),
            "explain": (lambda items: [refused(self._explained, *item) for item in items], 1),
            "explain new": (lambda items: [refused(self._explain_new, *item) for item in items], 1),
        }

    def describe(self) -> dict[str, Any]:
        """Return what the model is and how good it was on held-out nodes."""
        return _described(self.predictor, self.kind) | {
            "name": self.data.name,
            "nodes": len(self.data.node_names),
            "relations": len(set(self.data.base_relation)),
            "columns": self.columns,
            "new_nodes": not isinstance(self.added, str),
            "examples": [
                self.data.node_names[i] for i in (self.data.labels != MISSING).nonzero()[:3].flatten().tolist()
            ],
        }

    def search(self, text: str, most: int) -> list[dict[str, str]]:
        """Return name and title of nodes; of a graph in a store, only the node with exactly this name."""
        if self.data.is_stored:
            names: Any = self.data.node_names
            found = [name for name in (text, f"<{text}>") if names.find(name) is not None]
            return [{"name": name, "title": ""} for name in found[:1]]
        return [{"name": name, "title": title} for name, title in self.names.search(text, most)]

    def check_nodes(self, nodes: Sequence[str]) -> None:
        """Raise unless all nodes are in the graph."""
        for node in nodes:
            try:
                self.predictor.find(node)
            except ValueError as error:
                raise RefusedError(
                    422, f"nodes must be in the graph, got {quoted(node)}; GET /search?q=TEXT finds names"
                ) from error

    def predict(self, nodes: Sequence[str]) -> dict[str, Any]:
        """Return the predictions of nodes of a graph in memory, whose logits are known."""
        if self.ready is None:
            return self._answer(self._rows(self.predictor.predict(nodes)))
        places = map(self.predictor.find, nodes)
        return self._answer([self._rows(take(self.ready, slice(place, place + 1)))[0] for place in places])

    def _predict_stored(self, items: list[Sequence[str]]) -> list[Any]:
        """Return the predictions of nodes of a graph in a store, for several requests in one pass."""
        rows = self._rows(self.predictor.predict([node for nodes in items for node in nodes]))
        return [self._answer(part) for part in split(rows, items)]

    def read_new(self, text: str, rdf_format: str) -> Triples:
        """Return the triples of a text."""
        if isinstance(self.added, str):
            raise RefusedError(422, self.added)
        triples = parse_triples(text.encode(), rdf_format)
        if not len(triples):
            raise RefusedError(422, "`triples` must have at least one triple, got none")
        return triples

    def _predict_new(self, items: list[tuple[str, str, Sequence[str] | None]]) -> list[Any]:
        """Return the predictions of new nodes for several requests (triples, format, nodes), in few passes."""
        answers = [refused(self.read_new, text, rdf_format) for text, rdf_format, _ in items]
        valid = [place for place, answer in enumerate(answers) if isinstance(answer, Triples)]
        for part in passes([len(items[place][0]) for place in valid], MOST_TRIPLES):
            places = valid[part]
            assert isinstance(self.added, AddedNodes)
            read = self.added.read([(answers[place], items[place][2]) for place in places])
            for place, request in zip(places, read, strict=True):
                answers[place] = refused(self._check_request, request)
            places = [place for place in places if isinstance(answers[place], Request)]
            predicted = self.added.predict([answers[place] for place in places]) if places else []
            for place, predictions in zip(places, predicted, strict=True):
                answers[place] = self._answer(self._rows(predictions), predictions.notes)
        return answers

    def _check_request(self, request: Request | ValueError) -> Request:
        if isinstance(request, ValueError):
            raise request
        check_items(len(request.nodes), "new nodes", self.limits)
        return request

    def _explain(self, node: str, top: int, by: str, task: str | None) -> dict[str, Any]:
        self.check_nodes([node])
        explanation = self.predictor.explain(node, top=top, by=by, task=task)
        assert isinstance(explanation, NodeExplanation)
        return explained(self.predictor, explanation)

    def _explain_new(self, text: str, rdf_format: str, *asked: Any) -> dict[str, Any]:
        """Return the explanation of a node (name, top, by, task) of the extended graph."""
        node, top, by, task = asked
        data, _, notes = extend_by(self.data, self.read_new(text, rdf_format))
        extended = dataclasses.replace(self.predictor, data=data)
        explanation = extended.explain(node, top=top, by=by, task=task)
        assert isinstance(explanation, NodeExplanation)
        return explained(extended, explanation) | {"notes": notes}

    def _title(self, name: str) -> str:
        return titled(name, self.predictor.titles)

    def _answer(self, rows: Sequence[Any], notes: Sequence[str] = ()) -> dict[str, Any]:
        return {"columns": self.columns, "predictions": rows, "notes": list(notes)}

    def _rows(self, predictions: Predictions) -> list[dict[str, Any]]:
        rows = []
        known: Mapping[str, int] = {} if self.data.is_stored else self.predictor.node_ids
        for place, (name, values) in enumerate(zip(predictions.names, row_values(predictions), strict=True)):
            row = {"node": name, "title": self._title(name), **values}
            if not predictions.targets:
                best, node = int(predictions.probabilities[place].argmax()), known.get(name)
                label = MISSING if node is None else int(self.data.labels[node])
                row |= {"class": predictions.columns[best], "probability": values["probabilities"][best]}
                row |= {
                    "spread": values["spreads"][best],
                    "label": None if label == MISSING else self.data.classes[label],
                }
            rows.append(row)
        return rows


class MoleculeAnswers:
    """Answers about molecules."""

    kind = "molecules"

    def __init__(self, predictor: MoleculePredictor, limits: Limits) -> None:
        self.predictor, self.limits = predictor, limits
        self.columns = described_columns(predictor.tasks, predictor)
        self._explained = lru_cache(KEPT_EXPLANATIONS)(self._explain)

    @property
    def jobs(self) -> dict[str, tuple[Job, int]]:
        """The work that the model does for requests, the most urgent first."""
        return {
            "molecules": (self._predict, MOST_TOGETHER),
            "explain": (lambda items: [refused(self._explained, *item) for item in items], 1),
        }

    def describe(self) -> dict[str, Any]:
        """Return what the model is and how good it was on held-out molecules."""
        return _described(self.predictor, self.kind) | {
            "name": "molecules",
            "columns": self.columns,
            "examples": ["CC(=O)Nc1ccc(O)cc1", "c1ccccc1C(=O)NC"],
        }

    def _predict(self, items: list[Sequence[str]]) -> list[Any]:
        """Return the predictions of molecules, for several requests in few passes."""
        smiles = [text for texts in items for text in texts]
        rows: list[dict[str, Any]] = []
        for part in passes(list(map(len, smiles)), MOST_CHARACTERS):
            rows += self._rows(self.predictor.predict(smiles[part]))
        return [{"columns": self.columns, "predictions": part} for part in split(rows, items)]

    def _rows(self, predictions: Predictions) -> list[dict[str, Any]]:
        rows = []
        for smiles, values in zip(predictions.names, row_values(predictions), strict=True):
            problem = "cannot be read as SMILES" if None in values["probabilities"] else None
            rows.append({"smiles": smiles, "problem": problem, **values})
        return rows

    def _explain(self, smiles: str, task: str | None) -> dict[str, Any]:
        molecule = parse_smiles(smiles, relaxed=True) if smiles.strip() else None
        if molecule is None:
            raise RefusedError(422, f"`smiles` must be a SMILES, got {quoted(smiles)}")
        if (size := molecule.GetNumAtoms()) > MOST_ATOMS:
            raise RefusedError(422, f"a molecule to explain must have at most {MOST_ATOMS} atoms, got {size:,}")
        explanation = self.predictor.explain(smiles, task)
        shades = {shade: explanation.svg(shade) for shade in ("effect", "attention")}
        return {"explanation": explanation.as_json(), "svg": shades, "rows": explanation.named()}


Answers = NodeAnswers | MoleculeAnswers


def make_answers(predictor: NodePredictor | MoleculePredictor, limits: Limits) -> Answers:
    """Return the answers of a predictor."""
    return (
        NodeAnswers(predictor, limits) if isinstance(predictor, NodePredictor) else MoleculeAnswers(predictor, limits)
    )


def check_items(count: int, what: str, limits: Limits) -> None:
    """Raise if a request asks for too many items."""
    if count > limits.num_items:
        raise RefusedError(413, f"a request must have at most {limits.num_items:,} {what}, got {count:,}; send less")


def explained(predictor: NodePredictor, explanation: NodeExplanation) -> dict[str, Any]:
    """Return an explanation with its sentences, the effects of triples, and the titles of all that it names."""
    titles = {name: titled(name, predictor.titles) for name in explanation.names()}
    return {"explanation": explanation.as_json(), "sentences": node_sentences(explanation), "shown": titles} | effects(
        predictor, explanation
    )


def row_values(predictions: Predictions) -> list[dict[str, Any]]:
    """Return what is predicted for each example, with sets, intervals and warnings where there are any."""
    warnings = predictions.warnings
    rows: list[dict[str, Any]] = []
    for place, (probability, spread) in enumerate(zip(predictions.probabilities, predictions.spread, strict=True)):
        row: dict[str, Any] = {"probabilities": list(map(number, probability)), "spreads": list(map(number, spread))}
        insides = [(region, region.inside[place].tolist()) for region in predictions.regions]
        sets = {
            region.name: [name for name, is_in in zip(region.classes, inside, strict=True) if is_in]
            for region, inside in insides
            if region.classes
        }
        intervals = {region.name: list(map(number, inside)) for region, inside in insides if not region.classes}
        row |= {"coverage": predictions.coverage, "sets": sets, "intervals": intervals}
        rows.append(row | {"warning": warnings[place]})
    return rows


def passes(sizes: Sequence[int], most: int) -> Iterator[slice]:
    """Yield the places of items, one after the other, whose sizes are together at most ``most``, or of a larger one."""
    start, total = 0, 0
    for place, size in enumerate(sizes):
        if place > start and total + size > most:
            yield slice(start, place)
            start, total = place, 0
        total += size
    if start < len(sizes):
        yield slice(start, len(sizes))


def split(rows: Sequence[Any], items: Sequence[Sequence[Any]]) -> list[Sequence[Any]]:
    """Return the rows of several requests, which were made together."""
    ends = list(itertools.accumulate(map(len, items)))
    return [rows[end - len(item) : end] for end, item in zip(ends, items, strict=True)]


def described_columns(names: Sequence[str], predictor: NodePredictor | MoleculePredictor) -> list[dict[str, str]]:
    """Return name, title, kind and unit of each output of a model."""
    kind = "class" if isinstance(predictor, NodePredictor) else "binary"
    kinds = [(target.kind, target.unit) for target in predictor.targets for _ in range(target.width)]
    titles = predictor.titles if isinstance(predictor, NodePredictor) else {}
    return [
        {"name": name, "title": titled(name, titles), "kind": each, "unit": unit}
        for name, (each, unit) in zip(names, kinds or [(kind, "")] * len(names), strict=True)
    ]


def _described(predictor: NodePredictor | MoleculePredictor, kind: str) -> dict[str, Any]:
    """Return what both kinds of models have: members, and scores and intervals on the test part."""
    words = ("metric", "right", "tested", "interval", "macro_f1", "balanced_accuracy", "pr_auc")
    report = {word: predictor.report[word] for word in words if word in predictor.report}
    score = predictor.report.get("scores", {}).get("test")
    slope = predictor.calibration.slope.double()
    calibration = {"slope": slope.tolist(), "held_out": bool((slope != 1).any())}
    members = len(predictor.members)
    return {
        "kind": kind,
        "model": predictor.config["model"],
        "members": members,
        "test": report | {"score": score},
        "calibration": calibration,
    }
