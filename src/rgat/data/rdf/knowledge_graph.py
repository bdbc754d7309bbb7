"""Knowledge graphs with labelled nodes: RDF files and a label table to one data set (section 3.1, AIFB and MUTAG)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rgat.checks import check_count
from rgat.data.dataset import MISSING, PARTS, NodeData
from rgat.data.files import write_atomically
from rgat.data.labels import Label, read_labels
from rgat.data.rdf.features import encode, learn_vocabulary
from rgat.data.rdf.reader import Triples, read_triples
from rgat.data.splits import stratified_parts
from rgat.graph import RelationalGraph

Path_ = str | PathLike[str]


def from_rdf(
    files: Path_ | Sequence[Path_],
    labels: Path_ | None = None,
    *,
    label_predicate: str | None = None,
    train: Path_ | None = None,
    valid: Path_ | None = None,
    test: Path_ | None = None,
    node_column: str | None = None,
    label_column: str | None = None,
    split_column: str | None = None,
    shares: tuple[float, float] = (0.8, 0.1),
    seed: int = 0,
    skip_unknown: bool = False,
    format: str | None = None,  # noqa: A002
    inverses: bool = True,
    self_loops: bool = True,
    literals: str = "nodes",
    features: Sequence[str] = (),
    blank_nodes: str = "kept",
    drop_predicates: Sequence[str] = (),
    hops: int | None = None,
    ids: Path_ | None = None,
    name: str | None = None,
) -> NodeData:
    """Read a knowledge graph and the classes of some of its nodes.

    Args:
        files: one or several RDF files; see :func:`rgat.data.rdf.reader.read_triples`.
        labels: a TSV or CSV file of nodes and classes, split by ``split_column`` or else at random, stratified.
        label_predicate: instead of ``labels``, the IRI whose triples say the class of their subject. They leave the
            graph, and with them all triples from such a class back to its node.
        train: instead of ``labels``, a file for each part.
        valid: likewise.
        test: likewise.
        node_column: the column that names the node; by default the first.
        label_column: the column that names the class; by default the last that is neither of the others.
        split_column: a column with the words train, valid and test.
        shares: of the training and the validation part in a random split; the rest is the test part.
        seed: of the random split.
        skip_unknown: leave out labels of nodes that are not in the graph.
        format: of the RDF files, where their names do not say it.
        inverses: add an inverse relation for every relation.
        self_loops: add a relation from every node to itself.
        literals: "nodes" (each spelling one), "merged" (each value one), "dropped", or "features" of their subjects.
        features: of "types", "degrees" and "literals" of nodes, instead of a one-hot input; a model of these can judge
            nodes that it has not seen.
        blank_nodes: "kept" or "dropped".
        drop_predicates: IRIs whose triples are left out.
        hops: keep only what a model of so many layers can see from the labelled nodes; its outputs there stay the same.
        ids: number nodes and relations as in this file, written by :func:`write_ids`; new nodes come after the known.
        name: of the data set.
    """
    if hops is not None:
        check_count("hops", hops)
    if "literals" in features:
        literals = "features"
    elif literals == "features":
        features = (*features, "literals")
    if ids is not None and (hops is not None or features):
        raise ValueError("`ids` must not be given with `hops` or features, which number and scale anew")
    triples = read_triples(files, format, literals, blank_nodes, drop_predicates)
    given: list[Label] = []
    if label_predicate is not None:
        triples, given = take_labels(triples, label_predicate)
    x: Tensor | None = None
    vocabulary = None
    if features:
        vocabulary = learn_vocabulary(triples, features)
        triples, x = encode(triples, vocabulary)
    if ids is not None:
        triples = _renumber(triples, *read_ids(ids))
    source = LabelSource(
        labels, train, valid, test, node_column, label_column, split_column, shares, seed, skip_unknown
    )
    data = label_triples(triples, source, x, inverses, self_loops, name or "knowledge graph", given)
    if vocabulary is not None:
        data.provenance["vocabulary"] = vocabulary.as_json()
    return data if hops is None else prune(data, hops)


@dataclass(frozen=True)
class LabelSource:
    """Where labels come from, and how they are split; the fields are arguments of :func:`from_rdf`."""

    labels: Path_ | None = None
    train: Path_ | None = None
    valid: Path_ | None = None
    test: Path_ | None = None
    node_column: str | None = None
    label_column: str | None = None
    split_column: str | None = None
    shares: tuple[float, float] = (0.8, 0.1)
    seed: int = 0
    skip_unknown: bool = False


def label_triples(
    triples: Triples,
    source: LabelSource,
    features: Tensor | None = None,
    inverses: bool = True,
    self_loops: bool = True,
    name: str = "knowledge graph",
    taken: Sequence[Label] = (),
) -> NodeData:
    """Give nodes of a read graph their classes: those of the source, or those taken from the graph."""
    parts = {part: path for part in PARTS if (path := getattr(source, part)) is not None}
    if (source.labels is not None) + bool(parts) + bool(taken) > 1:
        raise ValueError("labels must come as one file (`labels`), or a file per part, or by a predicate, got several")
    columns = (source.node_column, source.label_column)
    given = [read_labels(source.labels, *columns, source.split_column)] if source.labels is not None else []
    given += [_in_part(read_labels(path, *columns), part) for part, path in parts.items()]
    given.append(list(taken))
    places = {node: place for place, node in enumerate(triples.node_names)}
    known = _known([label for table in given for label in table], places, source.skip_unknown)
    classes = tuple(sorted({label.name for label in known}))
    targets = torch.full((len(places),), MISSING)
    by_part: dict[str | None, list[int]] = {part: [] for part in (*PARTS, None)}
    for label in known:
        place = places[_term(label.node, places)]
        targets[place] = classes.index(label.name)
        by_part[label.part].append(place)
    if by_part[None]:
        nodes = torch.tensor(sorted(by_part[None]))
        cut = [nodes[part] for part in stratified_parts(targets[nodes].tolist(), source.shares, source.seed)]
    else:
        cut = [torch.tensor(by_part[part], dtype=torch.long) for part in PARTS]
    data = assemble(triples, features, targets, classes, cut, inverses, self_loops, name)
    terms = {_term(label.node, places) for table in given for label in table}
    dropped = sum(term not in places for term in terms)
    if dropped:
        data.provenance["unknown_nodes"] = dropped
    return data


def take_labels(triples: Triples, predicate: str) -> tuple[Triples, list[Label]]:
    """Classes that a predicate gives to its subjects, and the triples without these and their inverses."""
    word = f"<{predicate.strip('<>')}>"
    if word not in triples.relation_names:
        known = ", ".join(triples.relation_names[:5])
        raise ValueError(f"`label_predicate` must be a predicate of the graph, got {word}; it has {known}, ...")
    subject, relation, value = triples.edges.T
    said = relation == triples.relation_names.index(word)
    size, labels = len(triples.node_names), dict[str, Label]()
    for node, name in zip(subject[said].tolist(), value[said].tolist(), strict=True):
        node, name = triples.node_names[node], triples.node_names[name]
        if node in labels:
            raise ValueError(f"{node} must have one value of {word}, got {labels[node].name} and {name}; keep one")
        labels[node] = Label(node, name, None, f"predicate {word}")
    back = np.isin(value * size + subject, subject[said] * size + value[said])
    return triples.keep(~said & ~back)[0], list(labels.values())


def _in_part(labels: list[Label], part: str) -> list[Label]:
    return [Label(label.node, label.name, part, label.place) for label in labels]


def _term(node: str, places: dict[str, int]) -> str:
    """A node as the label table names it, as the graph does: IRIs usually come without brackets."""
    return node if node in places else f"<{node}>"


def _known(labels: list[Label], places: dict[str, int], skip_unknown: bool) -> list[Label]:
    """The labels whose nodes are in the graph, each node once."""
    unknown = [label for label in labels if _term(label.node, places) not in places]
    if unknown and not places and not skip_unknown:
        raise ValueError(
            f"{unknown[0].place}: the graph must have edges, got none, so no label has a node; check the RDF file"
        )
    if unknown and not skip_unknown:
        raise ValueError(
            f"{unknown[0].place}: node {unknown[0].node} is not in the graph ({len(unknown)} of {len(labels)} labels "
            "unknown); pass `skip_unknown` (--skip-unknown) to drop them"
        )
    seen: dict[str, Label] = {}
    for label in labels:
        other = seen.setdefault(_term(label.node, places), label)
        if other is not label and (other.name, other.part) != (label.name, label.part):
            raise ValueError(f"{label.place}: {label.node} has a label in {other.place} already; keep one of them")
    missing = {label.node for label in unknown}
    return [label for label in seen.values() if label.node not in missing]


def assemble(
    triples: Triples,
    features: Tensor | None,
    targets: Tensor,
    classes: tuple[str, ...],
    parts: Sequence[Tensor],
    inverses: bool,
    self_loops: bool,
    name: str,
) -> NodeData:
    """A data set of read triples, classes and parts, with the relations that layers want added."""
    edges = torch.from_numpy(triples.edges)
    num_relations = len(triples.relation_names)
    graph = RelationalGraph(
        edges[:, [0, 2]].t(), edges[:, 1], num_nodes=len(triples.node_names), num_relations=num_relations
    )
    relation_names = list(triples.relation_names)
    if inverses:
        graph = graph.with_inverses()
        relation_names += [f"inverse of {relation}" for relation in triples.relation_names]
    if self_loops:
        graph = graph.with_self_loops()
        relation_names.append("self")
    return NodeData(
        name=name,
        graph=graph,
        x=features,
        labels=targets,
        classes=classes,
        train=parts[0],
        valid=parts[1],
        test=parts[2],
        node_names=tuple(triples.node_names),
        relation_names=tuple(relation_names),
        provenance={"nodes": graph.num_nodes, "edges": len(triples), "relations": num_relations},
    )


def prune(data: NodeData, hops: int) -> NodeData:
    """Keep what a model of ``hops`` layers sees from the labelled nodes; its outputs there do not change."""
    source, target = data.graph.edge_index
    heard = data.labels != MISSING  # nodes whose representation matters
    for _ in range(hops - 1):
        heard = heard.clone().index_fill_(0, source[heard[target]], True)
    kept_edges = heard[target]  # all edges of a softmax group stay together
    kept_nodes = heard.clone().index_fill_(0, source[kept_edges], True)
    new_id = kept_nodes.cumsum(0) - 1
    nodes = kept_nodes.nonzero().squeeze(1)
    graph = RelationalGraph(
        new_id[data.graph.edge_index[:, kept_edges]],
        data.graph.edge_type[kept_edges],
        num_nodes=len(nodes),
        num_relations=data.graph.num_relations,
    )
    return NodeData(
        name=data.name,
        graph=graph,
        x=None if data.x is None else data.x[nodes],
        labels=data.labels[nodes],
        classes=data.classes,
        train=new_id[data.train],
        valid=new_id[data.valid],
        test=new_id[data.test],
        node_names=tuple(data.node_names[node] for node in nodes.tolist()),
        relation_names=data.relation_names,
        provenance=data.provenance | {"hops": hops},
    )


def write_ids(data: NodeData, path: Path_) -> None:
    """Write the numbering of nodes and given relations, for reading further files with the same ids."""
    given = data.provenance.get("relations", len(data.relation_names))
    tables = {"format": "rgat ids 1", "nodes": data.node_names, "relations": data.relation_names[:given]}
    write_atomically(path, json.dumps(tables, ensure_ascii=False).encode())


def read_ids(path: Path_) -> tuple[list[str], list[str]]:
    """Read names of nodes and relations in the order of their ids."""
    try:
        tables: Any = json.loads(Path(path).read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path}: cannot be read as id tables: {error}") from error
    if not isinstance(tables, dict) or tables.get("format") != "rgat ids 1":
        raise ValueError(f'{path}: must be id tables of format "rgat ids 1", as `write_ids` writes them')
    columns = [tables.get("nodes"), tables.get("relations")]
    for column in columns:
        if not isinstance(column, list) or not all(isinstance(name, str) for name in column):
            raise ValueError(f"{path}: nodes and relations must be lists of names")
        if len(set(column)) != len(column):
            raise ValueError(f"{path}: names of nodes and of relations must differ from each other")
    return columns[0], columns[1]  # type: ignore[return-value]


def _renumber(triples: Triples, nodes: list[str], relations: list[str]) -> Triples:
    """The same triples with known names numbered as given, and new nodes after them."""
    known = set(nodes)
    node_names = nodes + [name for name in triples.node_names if name not in known]
    place = {name: i for i, name in enumerate(node_names)}
    relation_place = {name: i for i, name in enumerate(relations)}
    strangers = [name for name in triples.relation_names if name not in relation_place]
    if strangers:
        raise ValueError(
            f"relations must be among the {len(relations)} of the id tables, got {strangers[0]} "
            f"({len(strangers)} unknown); drop them with `drop_predicates`"
        )
    node_map = np.array([place[name] for name in triples.node_names], dtype=np.int64)
    relation_map = np.array([relation_place[name] for name in triples.relation_names], dtype=np.int64)
    edges = np.stack(
        [node_map[triples.edges[:, 0]], relation_map[triples.edges[:, 1]], node_map[triples.edges[:, 2]]], axis=1
    )
    return Triples(node_names, relations, edges)
