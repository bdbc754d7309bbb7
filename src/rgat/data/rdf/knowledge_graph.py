"""Knowledge graphs with labelled nodes: RDF files and a label table to one data set (section 3.1, AIFB and MUTAG)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rgat.checks import check_count, check_word
from rgat.data.dataset import INVERSE, MISSING, PARTS, NodeData
from rgat.data.rdf.features import encode, learn_vocabulary
from rgat.data.rdf.labels import RDFS_LABEL, FilePath, LabelSource, choose_titles, find_labels, match_labels
from rgat.data.rdf.leaks import literal_leaks
from rgat.data.rdf.reader import Triples, read_triples
from rgat.data.splits import stratified_parts
from rgat.graph import RelationalGraph


def from_rdf(
    files: FilePath | Sequence[FilePath],
    labels: FilePath | None = None,
    *,
    label_predicate: str | None = None,
    train: FilePath | None = None,
    valid: FilePath | None = None,
    test: FilePath | None = None,
    node_column: str | None = None,
    label_column: str | None = None,
    split_column: str | None = None,
    shares: tuple[float, float] = (0.8, 0.1),
    seed: int = 0,
    skip_unknown: bool = False,
    skip_invalid: bool = False,
    format: str | None = None,  # noqa: A002
    inverses: bool = True,
    self_loops: bool = True,
    literals: str = "nodes",
    features: Sequence[str] = (),
    blank_nodes: str = "kept",
    drop_predicates: Sequence[str] = (),
    hops: int | None = None,
    name: str = "knowledge graph",
) -> NodeData:
    """Read a knowledge graph and the classes of some of its nodes.

    Args:
        files: one or several RDF files; see :func:`rgat.data.rdf.reader.read_triples`.
        labels: a TSV or CSV file of nodes and classes, split by ``split_column`` or else at random, stratified.
        label_predicate: the IRI whose triples name the class of their subject, instead of ``labels``. These triples and
            their inverses are removed from the graph.
        train: a label file of the training part, instead of ``labels``.
        valid: a label file of the validation part.
        test: a label file of the test part.
        node_column: the column that names the node; by default the first.
        label_column: the column that names the class; by default the last other one.
        split_column: a column with the words train, valid and test.
        shares: shares of the training and validation parts in a random split; the rest is the test part.
        seed: random seed of the split.
        skip_unknown: leave out labels of nodes that are not in the graph.
        skip_invalid: leave out invalid lines of N-Triples and N-Quads files.
        format: format of the RDF files, if their suffixes do not tell it.
        inverses: add an inverse of every relation.
        self_loops: add a relation from every node to itself.
        literals: "nodes", "dropped", or "features" of their subjects.
        features: node features "types", "degrees" and "literals"; models with features can predict for new nodes.
        blank_nodes: "kept" or "dropped".
        drop_predicates: IRIs whose triples are left out.
        hops: keep only the receptive field of the labelled nodes in a model of so many layers.
        name: name of the data set.
    """
    columns = (node_column, label_column, split_column)
    source = LabelSource(labels, label_predicate, train, valid, test, *columns, shares, seed, skip_unknown)
    if hops is not None:
        check_count("hops", hops)
    check_word("literals", literals, ("nodes", "dropped", "features"))
    features = (*features, "literals") if literals == "features" else features
    literals = "nodes" if "literals" in features else literals
    triples = read_triples(files, format, literals, blank_nodes, drop_predicates, skip_invalid)
    data = label_triples(triples, source, features, inverses, self_loops, name)
    if triples.skipped:
        data.provenance["invalid_lines"] = {"count": len(triples.skipped), "first": triples.skipped[0]}
    return data if hops is None else prune(data, hops)


def label_triples(
    triples: Triples,
    source: LabelSource,
    features: Sequence[str] = (),
    inverses: bool = True,
    self_loops: bool = True,
    name: str = "knowledge graph",
) -> NodeData:
    """Return a data set of triples, with the labels and the split of a source and the requested node features."""
    triples, labels = find_labels(triples, source)
    x, provenance, given = None, dict[str, Any](), triples
    if features:
        vocabulary = learn_vocabulary(triples, features)
        triples, x = encode(triples, vocabulary)
        provenance["vocabulary"] = asdict(vocabulary)
    matched, num_unknown = match_labels(labels, triples.node_names, source.skip_unknown)
    if num_unknown:
        provenance["unknown_nodes"] = num_unknown
    classes = tuple(sorted({label.name for label in matched.values()}))
    targets = torch.full((len(triples.node_names),), MISSING)
    for node, label in matched.items():
        targets[node] = classes.index(label.name)
    unsplit = torch.tensor(sorted(node for node, label in matched.items() if label.part is None), dtype=torch.long)
    if len(unsplit):
        parts = [unsplit[part] for part in stratified_parts(targets[unsplit].tolist(), source.shares, source.seed)]
    else:
        by_part = ([node for node, label in matched.items() if label.part == part] for part in PARTS)
        parts = [torch.tensor(nodes, dtype=torch.long) for nodes in by_part]
    data = assemble(triples, x, targets, classes, parts, inverses, self_loops, name)
    if "literals" in features:
        provenance |= _describe_literals(given, data, provenance["vocabulary"]["numbers"])
    return replace(data, provenance=data.provenance | provenance)


def _describe_literals(triples: Triples, data: NodeData, numbers: dict[str, list[float]]) -> dict[str, Any]:
    """Return what the literals say, which are no more in the graph: titles, leaks of classes, which are text."""
    is_literal = np.array([name[0] == '"' for name in triples.node_names], dtype=bool)
    labels = np.full(len(triples.node_names), MISSING)
    labels[np.flatnonzero(~is_literal)[data.train.numpy()]] = data.labels[data.train].numpy()
    used = np.unique(triples.edges[is_literal[triples.edges[:, 2]], 1]).tolist()
    relation = triples.relation_names.index(RDFS_LABEL) if RDFS_LABEL in triples.relation_names else -1
    names = triples.node_names
    pairs = ((names[s], names[o]) for s, _, o in triples.edges[triples.edges[:, 1] == relation].tolist())
    return {
        "titles": choose_titles(pairs),
        "literal_leaks": [leak._asdict() for leak in literal_leaks(triples, labels, data.classes)],
        "text_predicates": [name for i in used if (name := triples.relation_names[i]) not in numbers],
    }


def assemble(
    triples: Triples,
    x: Tensor | None,
    labels: Tensor,
    classes: tuple[str, ...],
    parts: Sequence[Tensor],
    inverses: bool,
    self_loops: bool,
    name: str,
) -> NodeData:
    """Return a data set of triples, labels and parts, with inverse and self-loop relations added on request."""
    edges = torch.from_numpy(triples.edges)
    num_relations = len(triples.relation_names)
    graph = RelationalGraph(
        edges[:, [0, 2]].t(), edges[:, 1], num_nodes=len(triples.node_names), num_relations=num_relations
    )
    relation_names = list(triples.relation_names)
    if inverses:
        graph = graph.with_inverses()
        relation_names += [f"{INVERSE}{relation}" for relation in triples.relation_names]
    if self_loops:
        graph = graph.with_self_loops()
        relation_names.append("self")
    return NodeData(
        name=name,
        graph=graph,
        x=x,
        labels=labels,
        classes=classes,
        train=parts[0],
        valid=parts[1],
        test=parts[2],
        node_names=tuple(triples.node_names),
        relation_names=tuple(relation_names),
        provenance={"nodes": graph.num_nodes, "edges": len(triples), "relations": num_relations},
    )


def prune(data: NodeData, hops: int) -> NodeData:
    """Keep the receptive field of the labelled nodes in a model of ``hops`` layers; outputs there stay the same."""
    source, target = data.graph.edge_index
    needed = data.labels != MISSING  # nodes whose hidden representation affects an output
    for _ in range(hops - 1):
        needed = needed.clone().index_fill_(0, source[needed[target]], True)
    kept_edges = needed[target]  # all edges of a softmax group stay together
    kept_nodes = needed.clone().index_fill_(0, source[kept_edges], True)
    new_id = kept_nodes.cumsum(0) - 1
    nodes = kept_nodes.nonzero().squeeze(1)
    graph = RelationalGraph(
        new_id[data.graph.edge_index[:, kept_edges]],
        data.graph.edge_type[kept_edges],
        num_nodes=len(nodes),
        num_relations=data.graph.num_relations,
    )
    return replace(
        data,
        graph=graph,
        x=None if data.x is None else data.x[nodes],
        labels=data.labels[nodes],
        train=new_id[data.train],
        valid=new_id[data.valid],
        test=new_id[data.test],
        node_names=tuple(data.node_names[node] for node in nodes.tolist()),
        provenance=data.provenance | {"hops": hops},
    )
