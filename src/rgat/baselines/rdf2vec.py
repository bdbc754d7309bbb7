"""RDF2Vec (Ristoski and Paulheim, 2016): embed entities by word2vec on the random walks that start at them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from rgat.baselines.outcome import Outcome
from rgat.baselines.svm import Array, Ids, classify, labelled, linear_kernel, original_triples
from rgat.checks import check_count, check_word
from rgat.data import NodeData
from rgat.data.cache import Arrays, cached
from rgat.data.rdf.blank_nodes import mix

COSTS = (0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)
WALKS = ("plain", "WL")
WALKS_PER_ENTITY = 60  # at most; many entities have millions, and time grows with their number
WL_ITERATIONS = 4
WORD2VEC = {"vector_size": 500, "window": 5, "negative": 25, "epochs": 10}  # skip-gram, as published


class Adjacency(NamedTuple):
    """The outgoing edges of each node: those of node ``v`` are ``ptr[v]:ptr[v + 1]``."""

    ptr: Ids
    relation: Ids
    target: Ids


def adjacency(triples: Ids, num_nodes: int, reverse: bool) -> Adjacency:
    """Sort edges by source; with ``reverse``, add an inverse edge with its own relation for each edge."""
    if reverse:
        back = triples[:, [2, 1, 0]] + np.array([0, int(triples[:, 1].max(initial=-1)) + 1, 0])
        triples = np.concatenate([triples, back])
    triples = triples[np.argsort(triples[:, 0], kind="stable")]
    return Adjacency(np.searchsorted(triples[:, 0], np.arange(num_nodes + 1)), triples[:, 1], triples[:, 2])


def walks(graph: Adjacency, starts: Ids, depth: int, cap: int, rng: np.random.Generator) -> Ids:
    """Return walks as rows: node, relation, node, ...; -1 after the end of a walk that stops early.

    A start with at most ``cap`` walks has all of them; any other has ``cap`` walks, each step drawn at random.
    """
    num_walks = _count_walks(graph, depth, cap + 1)[starts]
    every = starts[num_walks <= cap][:, None]
    drawn = np.repeat(starts[num_walks > cap], cap)[:, None]
    for _ in range(depth):
        every, drawn = _step(graph, every, None), _step(graph, drawn, rng)
    return np.unique(np.concatenate([every, drawn]), axis=0)


def _count_walks(graph: Adjacency, depth: int, limit: int) -> Ids:
    """Return the number of walks of ``depth`` steps from each node, at most ``limit``; a dead end ends a walk."""
    counts = np.ones(len(graph.ptr) - 1, dtype=np.int64)
    for _ in range(depth):
        total = np.concatenate([[0], np.cumsum(counts[graph.target])])
        counts = np.where(np.diff(graph.ptr) > 0, np.minimum(np.diff(total[graph.ptr]), limit), 1)
    return counts


def _step(graph: Adjacency, rows: Ids, rng: np.random.Generator | None) -> Ids:
    """Return the walks one step longer: along a random edge, or without a generator along each edge."""
    last = rows[:, -1]
    degree = np.where(last >= 0, np.diff(graph.ptr)[last], 0)
    copies = np.ones_like(degree) if rng is not None else np.maximum(degree, 1)
    rows, last, degree = rows.repeat(copies, axis=0), last.repeat(copies), degree.repeat(copies)
    if rng is not None:
        offset = rng.integers(np.maximum(degree, 1))
    else:
        offset = np.arange(len(rows)) - (np.cumsum(copies) - copies).repeat(copies)
    edge = np.where(degree > 0, graph.ptr[last] + offset, -1)
    step = [np.append(values, -1)[edge] for values in (graph.relation, graph.target)]
    return np.concatenate([rows, np.stack(step, axis=1)], axis=1)


def wl_labels(graph: Adjacency, entities: Ids, iterations: int) -> Iterator[Ids]:
    """Yield the labels of the nodes after 0, 1, ... iterations: a hash of a node's label and its outgoing edges.

    All entities start with the same label, as in the WL kernel.
    """
    label = np.arange(len(graph.ptr) - 1).astype(np.uint64)
    label[entities] = len(label)
    yield label.view(np.int64)
    for _ in range(iterations):
        around = mix(mix(label[graph.target]) ^ graph.relation.astype(np.uint64))
        total = np.concatenate([np.zeros(1, dtype=np.uint64), np.cumsum(around, dtype=np.uint64)])
        label = mix(mix(label) + total[graph.ptr[1:]] - total[graph.ptr[:-1]])
        yield label.view(np.int64)


def sentences(
    graph: Adjacency, entities: Ids, kind: str, depth: int, cap: int, rng: np.random.Generator
) -> list[list[str]]:
    """Return walks as words; in WL walks, all nodes but the start are named by their label after each iteration."""
    rows = walks(graph, entities, depth, cap, rng)
    labels = [np.arange(len(graph.ptr) - 1)] if kind == "plain" else list(wl_labels(graph, entities, WL_ITERATIONS))
    text = []
    for label in labels:
        nodes = np.where(rows[:, 2::2] >= 0, label[rows[:, 2::2]], -1)
        for row, others in zip(rows.tolist(), nodes.tolist(), strict=True):
            pairs = zip(row[1::2], others, strict=True)
            steps = ((f"r{relation}", f"n{node}") for relation, node in pairs if relation >= 0)
            text.append([f"n{row[0]}", *chain.from_iterable(steps)])
    return text


def embed(text: list[list[str]], entities: Ids, seed: int) -> Array:
    """Return vectors ``[entities, 500]`` by skip-gram with negative sampling; one thread makes them reproducible."""
    model = gensim().models.Word2Vec(text, sg=1, min_count=1, workers=1, seed=seed, **WORD2VEC)
    return np.stack([model.wv[f"n{entity}"] for entity in entities]).astype(np.float64)


def gensim() -> Any:
    """Import gensim, or raise an error with the command that installs it."""
    try:
        import gensim.models
    except ImportError as error:
        raise ImportError("RDF2Vec needs gensim; install it with `pip install 'rgat[baselines]'`") from error
    return gensim


def run(
    data: NodeData,
    seed: int = 0,
    *,
    kind: str = "plain",
    depth: int | None = None,
    cap: int = WALKS_PER_ENTITY,
    reverse: tuple[bool, ...] = (False, True),
    costs: tuple[float, ...] = COSTS,
) -> Outcome:
    """Train a linear support vector machine on the vectors of the labelled nodes, from which the walks start.

    Walks are "plain", over nodes, or "WL", over labels of subtrees; there are at most ``cap`` for each node, of
    ``depth`` edges, by default 4 or 2. Whether they may follow edges backwards is selected from ``reverse`` with the
    vectors of seed 0, and `C` from ``costs``.
    """
    check_word("kind", kind, WALKS)
    depth = (4 if kind == "plain" else 2) if depth is None else depth
    check_count("depth", depth)
    check_count("cap", cap)
    triples, entities = original_triples(data), labelled(data).numpy()
    content = hashlib.sha256(triples.tobytes() + entities.tobytes()).hexdigest()

    def kernel(backwards: bool, seed: int) -> Any:
        def build() -> Arrays:
            graph = adjacency(triples, data.graph.num_nodes, backwards)
            text = sentences(graph, entities, kind, depth, cap, np.random.default_rng(seed))
            return {"vectors": embed(text, entities, seed)}

        options = config | {"reverse": backwards, "seed": seed, "gensim": gensim().__version__}
        return linear_kernel(cached("rdf2vec", content, options, build)["vectors"])

    config = {"walks": kind, "depth": depth, "walks_per_entity": cap, "iterations": WL_ITERATIONS, **WORD2VEC}
    candidates = [({"reverse": choice}, lambda choice=choice: kernel(choice, 0)) for choice in reverse]
    chosen = classify(data, candidates, costs, {}).config["reverse"] if len(reverse) > 1 else reverse[0]
    outcome = classify(data, [({"reverse": chosen}, lambda: kernel(chosen, seed))], costs, config)
    return replace(outcome, selected_on=f"{outcome.selected_on}; `reverse` likewise, with the vectors of seed 0")
